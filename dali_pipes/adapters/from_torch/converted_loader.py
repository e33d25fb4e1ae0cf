"""What `from_torch` returns: `ConvertedLoader`, a loader with the interface of a DataLoader."""

from collections.abc import Iterator
from typing import Any, Self

from dali_pipes.adapters.from_torch.conversion import Conversion
from dali_pipes.loader.loader import Loader
from dali_pipes.loader.mistakes import RefusesAttributes


class ConvertedLoader(RefusesAttributes):
    """A loader with the interface of a DataLoader: yields what the old loader's collate function
    made, one epoch for each `iter()`.

    Attributes:
        loader: from `build_loader`, whose batches have ids as well.
        dataset: the old data set.
        batch_size: images of a full batch of this process.
        sampler: `sampler.set_epoch(epoch)` chooses the epoch of the next `iter()`, and
            `len(sampler)` is this process's samples.
        batch_sampler: the same for batches.
    """

    _set_once = ("loader", "dataset", "batch_size", "sampler", "batch_sampler")

    def __init__(self, loader: Loader, conversion: Conversion, found: str):
        self.loader, self.dataset, self.batch_size = (
            loader,
            conversion.dataset,
            conversion.order.batch_size,
        )
        self.sampler, self.batch_sampler = _EpochSampler(loader), _EpochBatchSampler(loader)
        self._output = conversion.output
        self._steps, self._found = conversion.steps, found
        self._facts = conversion.facts

    def __iter__(self) -> Iterator[Any]:
        self._facts.refuse_changes()
        # begins the epoch at once, as the loader does
        return self._batches(iter(self.loader))

    def _batches(self, epoch: Any) -> Iterator[Any]:
        # seeded by the place, so that a resumed loader draws the same numbers for the same batch
        seed = self.loader.plan.seed
        for batch in epoch:
            yield self._output(batch, (seed, epoch.epoch, epoch.step))

    def __len__(self) -> int:
        return len(self.loader)

    def explain(self) -> str:
        """Says how images are decoded, what carries out each old step, and what the comparison with
        the old loader found.
        """
        lines = [f"  {step.text}\n    → {step.by}" for step in self._steps]
        return "\n".join(
            [self.loader.explain(), *lines, f"compared with the old loader: {self._found}"]
        )

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)

    def close(self) -> None:
        self.loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ConvertedLoader of {self.loader!r}"

    def __getattr__(self, name: str) -> Any:
        # only called for attributes that do not exist: a program may ask for those of a DataLoader
        instead = "its options are those of .loader, and of the config it was made with"
        raise AttributeError(
            f"{name}: this loader took a DataLoader's place, but has no {name}; {instead}"
        )


class _EpochSampler:
    """The part of a sampler that training programs use: its length and `set_epoch`."""

    _loader: Loader

    def __init__(self, loader: Loader):
        object.__setattr__(self, "_loader", loader)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"{name}: this sampler took that of a DataLoader's place, and has only set_epoch; "
            "change the DataLoader's own sampler, and call from_torch again"
        )

    def __len__(self) -> int:
        return self._loader.plan.rank_samples

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next `iter()`."""
        self._loader.set_epoch(epoch)


class _EpochBatchSampler(_EpochSampler):
    """The same part of a batch sampler."""

    def __len__(self) -> int:
        return len(self._loader)
