"""Accelerate: a loader that tells its Accelerator which batch is the last one of an epoch, so that
gradients are synchronized on it.
"""

from collections.abc import Iterator
from typing import Any

from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState

from dali_pipes.errors import ConfigError
from dali_pipes.loader.batch import Batch
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

    def __init__(self, loader: Loader):
        if not isinstance(loader, Loader):
            what = f"{type(loader).__name__} is no loader of build_loader"
            raise ConfigError(
                f"{what}; pass what that returns, or the .loader of what from_torch returns"
            )
        self._loader, self.gradient_state = loader, GradientState()
        self.dataset, self.total_batch_size = loader.plan.manifest, loader.plan.global_batch_size
        self._drop_last = loader.plan.last_batch == "drop"

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        self.begin()
        try:
            for batch in self._loader:
                # after the last batch the loader counts those of the next epoch already
                self.end_of_dataloader = self._loader.batches_left in (0, len(self))
                yield batch
        finally:
            self.end()

    def __getattr__(self, name: str) -> Any:
        # a copy that is being made has no attributes yet, and would ask for `_loader` without end
        if name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)
