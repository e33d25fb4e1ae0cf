"""Accelerate: a loader that tells its Accelerator which batch is the last one of an epoch, so that
gradients are synchronized on it.
"""

from collections.abc import Iterator
from typing import Any

from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState, PartialState

from dali_pipes.adapters.lazy.loader import LazyLoader
from dali_pipes.errors import ConfigError
from dali_pipes.loader.loader import Loader
from dali_pipes.loader.mistakes import RefusesAttributes


class AccelerateLoader(RefusesAttributes, DataLoaderStateMixin):
    """A loader for `Accelerator.prepare`, which passes it through, and
    `Accelerator.register_for_checkpointing`.

    `accumulate` and `gather_for_metrics` ask the loader in use whether a batch is the last one, and
    how many of its samples are not repeated (Accelerate 1.15: state.py, GradientState;
    data_loader.py, DataLoaderStateMixin). Everything else comes from `loader`.
    """

    _set_once = ("dataset", "total_batch_size", "gradient_state")
    _set_often = ("end_of_dataloader", "remainder")  # by Accelerate

    def __init__(self, loader: Loader | LazyLoader):
        self._loader, self.gradient_state = loader, GradientState()
        if isinstance(loader, Loader):
            total, self._drop_last = loader.plan.global_batch_size, loader.plan.last_batch == "drop"
        elif isinstance(loader, LazyLoader):
            total = (loader.batch_size or 1) * PartialState().num_processes
            self._drop_last = loader.drop_last
        else:
            raise ConfigError(
                f"{type(loader).__name__} is no loader of build_loader or from_torch; pass what "
                "these return"
            )
        self.dataset, self.total_batch_size = loader.dataset, total

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        self.begin()
        loader = self._loader
        try:
            batches = iter(loader)
            epoch = loader.epoch
            for batch in batches:
                # after the last batch the loader is in the next epoch, but for a rank that has no
                # part of the last global batch
                is_last = isinstance(loader, Loader) and not loader.batches_left
                self.end_of_dataloader = is_last or loader.epoch != epoch
                yield batch
        finally:
            self.end()

    def __getattr__(self, name: str) -> Any:
        # a copy that is being made has no attributes yet, and would ask for `_loader` without end
        if name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)
