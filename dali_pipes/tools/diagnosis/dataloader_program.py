"""A user's DataLoader and step as a training program."""

import inspect
import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, default_collate

from dali_pipes.adapters.from_torch.convert import Conversion, from_torch
from dali_pipes.backends.common.dataloader import end_workers
from dali_pipes.errors import ConfigError, DaliPipesError
from dali_pipes.system.cpus import available_cpus
from dali_pipes.tools.diagnosis.items import ItemProfile, profile_items
from dali_pipes.tools.diagnosis.patch import patch_of
from dali_pipes.tools.diagnosis.probes import Feed, Fix, TrainingProgram
from dali_pipes.tools.diagnosis.span import Step
from dali_pipes.tools.diagnosis.step_calls import StepCalls
from dali_pipes.tools.diagnosis.verdict import COSTS, Figures

_OURS = (
    "prep-bound (too few workers)",
    "prep-bound (item by item)",
    "prep-bound (CPU saturated)",
    "decode-contention",
    "cgroup-throttled",
    "transfer-bound",
)
_SHORT_EPOCH = 50  # batches; there the start of workers counts
_WAITING = 0.5  # share of an item's time in which it only waits; then more workers than cores help


class DataLoaderProgram(TrainingProgram):
    """A DataLoader and a step; without a step, a program's own loop trains on what it yields.

    Args:
        built_at: the file that builds it, and the line if that is known.
    """

    def __init__(
        self,
        loader: DataLoader,
        step: Step | None = None,
        built_at: tuple[Path, int | None] | None = None,
    ):
        self._loader, self._step, self._built_at = loader, step, built_at
        self.step_calls: StepCalls | None = None  # those of the step, if they are counted
        self.processes = loader.num_workers
        self.workers = self.burst = max(1, loader.num_workers)
        self.in_flight = loader.num_workers * (loader.prefetch_factor or 0)
        self.starts_anew = bool(loader.num_workers) and not loader.persistent_workers
        self.paths: Sequence[Path] = [Path(path) for path, _ in _samples(loader.dataset)]
        self.data_bytes = sum(path.stat().st_size for path in self.paths)
        try:
            self.epoch = len(loader)
        except TypeError:  # of a stream
            self.epoch = None

    @contextmanager
    def feed(self) -> Iterator[Feed]:
        epochs = Epochs(self._loader)
        with warnings.catch_warnings():
            # more workers than cores may help
            warnings.filterwarnings("ignore", "This DataLoader will create")
            try:
                yield Feed(iter(epochs), lambda: epochs.at_start, put_on_device)
            finally:
                epochs.close()

    def step(self) -> Step | None:
        return self._step

    def remarks(self) -> list[str]:
        return self.step_calls.remarks(self._loader.pin_memory) if self.step_calls else []

    def transfer_size(self) -> tuple[int, bool]:
        tensors = [
            each
            for each in arrays_of(next(iter(self._loader)))
            if isinstance(each, torch.Tensor) and not each.is_cuda
        ]
        return sum(each.nbytes for each in tensors), all(each.is_pinned() for each in tensors)

    def count(self, batch: Any) -> int:
        return count_items(batch, self._loader.batch_size)

    def concat(self, batches: Sequence[Any]) -> Any:
        def cat(*parts: Any) -> Any:
            if not isinstance(parts[0], torch.Tensor):
                raise TypeError(f"a batch holds a {type(parts[0]).__name__}")
            return torch.cat(parts)

        return tree_map(cat, batches[0], *batches[1:])

    def profile(self, seconds: float) -> ItemProfile | None:
        loader = self._loader
        order = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        batches: Iterable[Any] = order
        if isinstance(loader.dataset, IterableDataset):
            batches = itertools.repeat([0] * (loader.batch_size or 1))
        return profile_items(
            loader.dataset,
            batches,
            loader.collate_fn,
            seconds,
            auto_collation=loader.batch_sampler is not None or bool(loader.batch_size),
        )

    def other_workers(self, found: Figures, items: ItemProfile | None) -> list[Fix]:
        """Settings of the worker processes that the figures make likely."""
        now, cores = self._loader.num_workers, available_cpus()
        fixes = list[Fix]()
        if self.starts_anew and found.start_share >= COSTS:
            fixes.append(self._with("workers live from epoch to epoch", persistent_workers=True))

        waits = items is not None and items.blocked_s >= _WAITING * items.seconds
        counts = set[int]()
        if waits:
            counts |= {max(cores, 2 * now), 4 * max(cores, now), 8 * max(cores, now)}
        elif now == 0:
            counts |= {1, cores}
        elif now < cores:
            # also where all are busy, with other programs: more processes get more of them
            counts |= {max(now + 1, cores)}
        # a batch is handed over by copying it into shared memory; where items cost less than that,
        # no worker is fastest
        serial = 1 / (1 / found.model + items.seconds) if items else 0.0
        if now and not waits and serial > found.together:
            counts |= {0, 1}
        if now > cores and not waits:
            counts |= {cores}
        for count in sorted(counts - {now}):
            why = (
                "more batches are made at the same time"
                if count > now
                else "fewer processes share the cores"
            )
            if not count:
                why = "batches need not be handed over"
            fixes.append(self._with(why, num_workers=count))
        return fixes

    def fixes(self, verdict: str) -> list[Fix]:
        return [*self._more_ahead(verdict), *self._whole_batches(verdict), *self._ours(verdict)]

    def _with(self, why: str, **options: Any) -> Fix:
        """The fix that is another value of options of the DataLoader."""
        what = ", ".join(f"{name}={value}" for name, value in options.items())
        if options.get("num_workers") == 0:
            options |= {
                "persistent_workers": False,
                "prefetch_factor": None,
                "multiprocessing_context": None,
            }
        elif self._loader.persistent_workers or self.epoch is None or self.epoch < _SHORT_EPOCH:
            what += (
                ""
                if "persistent_workers" in options or self._loader.persistent_workers
                else ", persistent_workers=True"
            )
            options.setdefault("persistent_workers", True)
        patch = patch_of(self._built_at[0], options, self._built_at[1]) if self._built_at else ""
        return Fix(
            what, why, DataLoaderProgram(_again(self._loader, **options), self._step), patch=patch
        )

    def _more_ahead(self, verdict: str) -> Iterator[Fix]:
        if verdict == "straggler" and self._loader.num_workers:
            yield self._with(
                "more lies ready", prefetch_factor=4 * (self._loader.prefetch_factor or 2)
            )

    def _whole_batches(self, verdict: str) -> Iterator[Fix]:
        """The same batches of tensors in memory, each indexed at once rather than sample by sample
        and collated.
        """
        loader, dataset = self._loader, self._loader.dataset
        while isinstance(dataset, Subset):
            dataset = dataset.dataset
        if (
            not verdict.startswith("prep-bound")
            or type(dataset) is not TensorDataset
            or loader.batch_sampler is None
        ):
            return
        if loader.collate_fn is default_collate:
            whole = DataLoader(
                loader.dataset,
                sampler=loader.batch_sampler,
                batch_size=None,
                generator=loader.generator,
            )
            what = (
                "DataLoader(dataset, sampler=BatchSampler(sampler, batch_size, drop_last), "
                "batch_size=None)"
            )
            why = "the tensors are indexed once for a whole batch; the batches stay the same"
            yield Fix(what, why, DataLoaderProgram(whole, self._step))

    def _ours(self, verdict: str) -> Iterator[Fix]:
        """The same samples, transform and batches, made by DALI, if all of it can be converted."""
        if verdict not in _OURS:
            return
        with suppress(DaliPipesError):
            converted = ConvertedProgram(self._loader, self._step)
            yield Fix(
                "dali_pipes.from_torch(loader)", "the same batches, made outside Python", converted
            )


class ConvertedProgram(TrainingProgram):
    """What `from_torch` makes of a DataLoader.

    Raises:
        NotConvertibleError: a part of it cannot be carried over.
    """

    burst, in_flight = 1, 3

    def __init__(self, loader: DataLoader, step: Step | None):
        self._loader, self._step, self.workers = loader, step, available_cpus()
        self.epoch = len(loader)
        Conversion.of(loader)

    @contextmanager
    def feed(self) -> Iterator[Feed]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what differs: this is a measurement
            with from_torch(self._loader) as loader:
                epochs = Epochs(loader)
                yield Feed(iter(epochs), lambda: epochs.at_start, put_on_device)

    def step(self) -> Step | None:
        return self._step

    def transfer_size(self) -> tuple[int, bool]:
        return 0, True  # its batches are on the device

    def count(self, batch: Any) -> int:
        return count_items(batch, self._loader.batch_size)


class Epochs:
    """A DataLoader, or what is like one, epoch after epoch."""

    def __init__(self, loader: Any, name: str = "DataLoader"):
        self._loader, self._name = loader, name
        self._iterator: Any = None
        self._taken = 0

    @property
    def at_start(self) -> bool:
        """Whether the next batch is the first of an epoch; for an iterable dataset only the very
        first is known.
        """
        try:
            return self._taken % len(self._loader) == 0
        except TypeError:
            return self._taken == 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            before = self._taken
            self._iterator = iter(self._loader)
            for batch in self._iterator:
                self._taken += 1
                yield batch
            if self._taken == before:
                raise ConfigError(
                    f"the {self._name} yields no batch; check its dataset, batch_size and drop_last"
                )

    def close(self) -> None:
        end_workers(self._iterator)
        if isinstance(self._loader, DataLoader):
            self._loader._iterator = None  # persistent workers have ended
        self._iterator = None


def _again(loader: DataLoader, **changes: Any) -> DataLoader:
    """The same DataLoader with other options."""
    names = set(inspect.signature(DataLoader).parameters) - {
        "batch_size",
        "shuffle",
        "sampler",
        "batch_sampler",
        "drop_last",
    }
    options = {name: getattr(loader, name) for name in names if hasattr(loader, name)} | changes
    if options["num_workers"] and options.get("prefetch_factor") is None:
        options["prefetch_factor"] = 2
    order: dict[str, Any] = {"batch_sampler": loader.batch_sampler}
    if isinstance(loader.dataset, IterableDataset):
        order = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif loader.batch_sampler is None:
        order = {"batch_size": None, "sampler": loader.sampler}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        return DataLoader(**options, **order)


def _samples(dataset: Any) -> list[tuple[str, int]]:
    """Path and label of each, as torchvision's ImageFolder has them; empty for anything else."""
    samples = getattr(dataset, "samples", None)
    if not isinstance(samples, list) or not all(
        isinstance(each, tuple) and len(each) == 2 for each in samples
    ):
        return []
    if not all(isinstance(path, (str, Path)) and isinstance(label, int) for path, label in samples):
        return []
    return samples if samples and Path(samples[0][0]).is_file() else []


def count_items(batch: Any, batch_size: int | None = None) -> int:
    """How many samples a batch of any structure holds; 1 if nothing in it has a length.

    Where the DataLoader's batch_size is a length of something in it, that is the number; the last
    batch of an epoch, and a batch of a program's own, has that of the first array or list of
    samples.
    """
    lengths = list(_lengths(batch))
    if batch_size and batch_size > 1 and batch_size in lengths:
        return batch_size
    return lengths[0] if lengths else 1


def _lengths(batch: Any) -> Iterator[int]:
    """Numbers of samples that parts of a batch may stand for, the outermost first."""
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        if batch.ndim:
            yield len(batch)
        return
    if isinstance(batch, (list, tuple)) and _are_samples(batch):
        yield len(batch)
    for each in _parts(batch):
        yield from _lengths(each)


def _are_samples(batch: Sequence[Any]) -> bool:
    """Whether each is one sample, such as an image of a detection batch, rather than images, labels
    and so on of all samples.
    """
    if len({type(each) for each in batch}) != 1:
        return False
    if not isinstance(batch[0], (torch.Tensor, np.ndarray)):
        return isinstance(batch[0], (Mapping, str, bytes, int, float))
    # a number, or an image (channels, height, width)
    is_one = all(each.ndim in (0, 3) for each in batch)
    return is_one or (len(batch) > 2 and len({tuple(each.shape) for each in batch}) == 1)


def arrays_of(batch: Any) -> list[Any]:
    """All arrays in a batch of any structure."""
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return [batch]
    return [array for each in _parts(batch) for array in arrays_of(each)]


def _parts(batch: Any) -> list[Any]:
    """What a container holds, or the fields of an object."""
    if isinstance(batch, Mapping):
        return list(batch.values())
    return list(batch) if isinstance(batch, (list, tuple)) else _fields(batch)


def _fields(batch: Any) -> list[Any]:
    """Of a dataclass, or of another object of a user's own class."""
    if isinstance(batch, (str, bytes, type(None), int, float)):
        return []
    if is_dataclass(batch):
        return [getattr(batch, each.name) for each in fields(batch)]
    return list(vars(batch).values()) if hasattr(batch, "__dict__") else []


def put_on_device(batch: Any) -> Any:
    if not torch.cuda.is_available():
        return batch
    return tree_map(lambda each: each.cuda() if isinstance(each, torch.Tensor) else each, batch)
