"""Hugging Face: the loader for a Trainer's get_train_dataloader and get_eval_dataloader to return.

The Trainer handles a DataLoader: `_Steps` is its batch sampler, which yields numbers of steps, and
`_Batches` is its data set, which returns the batch of a step.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, Dataset

from dali_pipes.adapters.accelerate import AccelerateLoader
from dali_pipes.adapters.lazy.loader import LazyLoader
from dali_pipes.loader.loader import Loader
from dali_pipes.options import check_arguments
from dali_pipes.plan.draws import LARGEST_EPOCH


class TrainerLoader(DataLoader):
    """A DataLoader with the batches of `loader`. One of two values becomes a dict, {"pixel_values":
    (N, 3, H, W), "labels": (N,)}.

    A Trainer that resumes skips entries of the batch sampler (transformers 5.23, trainer.py,
    _run_epoch; Accelerate 1.15, data_loader.py, skip_first_batches). Here these are numbers of
    steps, so nothing is decoded only to be skipped.
    """

    def __init__(self, loader: Loader | LazyLoader):
        # one batch is one entry of the batch sampler, and is not collated
        steps = _Steps()
        batches = _Batches(loader, steps)
        steps += ([step] for step in range(len(loader)))
        super().__init__(batches, batch_sampler=steps, collate_fn=lambda batch: batch)

    @check_arguments(epoch=(0, LARGEST_EPOCH))
    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next `iter()`."""
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]


class _Steps(list[list[int]]):
    """The batch sampler: the numbers of an epoch's steps."""

    epoch: int | None = None  # None: nobody has set an epoch, as in an evaluation
    anew = True  # whether an iteration has begun, and no batch of it has been read yet

    def __iter__(self) -> Iterator[list[int]]:
        self.anew = True
        return super().__iter__()

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class _Batches(Dataset):
    """The data set: returns the batch of a step. Steps in sequence come from one iteration of the
    loader, which reads ahead.
    """

    def __init__(self, loader: Loader | LazyLoader, steps: _Steps):
        self._loader, self._steps = AccelerateLoader(loader), steps
        self._batches: Iterator[Any] = iter(())
        self._next = 0

    def __len__(self) -> int:
        return len(self._loader.dataset)  # type: ignore[arg-type]

    def __getitems__(self, steps: list[int]) -> Mapping[str, Any]:
        (step,) = steps
        # a new epoch, or a resume in the middle of one
        if self._steps.anew or step != self._next:
            self._begin(step)
        batch = next(self._batches)
        self._next = step + 1
        if isinstance(batch, Mapping):
            return batch
        images, labels = batch
        return {"pixel_values": images, "labels": labels}

    def _begin(self, step: int) -> None:
        self._steps.anew, self._batches = False, iter(())  # drops and so ends the old iteration
        if self._steps.epoch is not None:
            self._loader.set_epoch(self._steps.epoch)
        # the loader itself goes to the step, so that it decodes nothing before it
        if step:
            samples = step * self._loader.total_batch_size
            self._loader.load_state_dict({**self._loader.state_dict(), "samples": samples})
        self._batches = iter(self._loader)
