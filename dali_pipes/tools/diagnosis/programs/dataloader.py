"""A user's DataLoader and step as a training program.

`DataLoaderProgram` runs the loader as it is and proposes other options of it. `_rebuild` builds the
same loader with these options.
"""

import inspect
import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, default_collate

from dali_pipes.errors import DaliPipesError
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.memory import memory_left
from dali_pipes.system.page_cache import spread
from dali_pipes.tools.diagnosis.items.profile import ItemProfile, profile_items
from dali_pipes.tools.diagnosis.measuring.training import Step
from dali_pipes.tools.diagnosis.programs.base import Feed, Fix, TrainingProgram
from dali_pipes.tools.diagnosis.programs.batches import arrays_of, count_items, put_on_device
from dali_pipes.tools.diagnosis.programs.converted import ConvertedProgram
from dali_pipes.tools.diagnosis.programs.epochs import Epochs
from dali_pipes.tools.diagnosis.programs.patch import patch_of
from dali_pipes.tools.diagnosis.programs.step_calls import StepCalls
from dali_pipes.tools.diagnosis.verdict.figures import TrainingFigures
from dali_pipes.tools.diagnosis.verdict.rules import MIN_COST

_HELPED_BY_DALI = (
    "prep-bound (too few workers)",
    "prep-bound (item by item)",
    "prep-bound (CPU saturated)",
    "decode-contention",
    "cgroup-throttled",
    "transfer-bound",
)
_WITHOUT_WORKERS: dict[str, Any] = {
    "num_workers": 0,
    "persistent_workers": False,
    "prefetch_factor": None,
    "multiprocessing_context": None,
}
_MOST_WORKERS = 128  # that are tried; a worker takes this much memory at least, and often more
_WORKER_BYTES = 300 * 2**20
_LOOKED_AT = 2000  # files whose sizes are added up
_SHORT_EPOCH = 50  # batches; in a shorter one the start of workers counts
_WAITING = 0.5  # share of an item's time; if it waits for more, more workers than cores help


class DataLoaderProgram(TrainingProgram):
    """A DataLoader and a step. Without a step, a program's own loop trains on what this yields.

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
        self.step_calls: StepCalls | None = None  # None: the calls of the step are not counted

        self.processes = loader.num_workers
        self.workers = self.burst = max(1, loader.num_workers)
        self.in_flight = loader.num_workers * (loader.prefetch_factor or 0)
        self.works_beside = loader.num_workers > 0
        self.starts_anew = self.works_beside and not loader.persistent_workers

        try:
            self.epoch = len(loader)
        except TypeError:  # an iterable dataset without a length
            self.epoch = None

    # of the program that is diagnosed, and not of the many that are tried out as its fixes

    @cached_property
    def paths(self) -> Sequence[Path]:  # type: ignore[override]
        return [Path(path) for path, _ in _samples(self._loader.dataset)]

    @cached_property
    def data_bytes(self) -> int:  # type: ignore[override]
        some = spread(self.paths, _LOOKED_AT)
        return sum(path.stat().st_size for path in some) * len(self.paths) // max(1, len(some))

    @contextmanager
    def feed(self) -> Iterator[Feed]:
        epochs = Epochs(self._loader)
        with warnings.catch_warnings():
            # it warns of more workers than cores, which may help
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
        # of a loader of its own: with persistent workers iter() would reset the one that is in use
        loader = _rebuild(self._loader, **_WITHOUT_WORKERS)
        tensors = [
            array
            for array in arrays_of(next(iter(loader)))
            if isinstance(array, torch.Tensor) and not array.is_cuda
        ]
        return sum(tensor.nbytes for tensor in tensors), all(
            tensor.is_pinned() for tensor in tensors
        )

    def count(self, batch: Any) -> int:
        return count_items(batch, self._loader.batch_size)

    def concat(self, batches: Sequence[Any]) -> Any:
        # torch.cat takes a list, tree_map gives its function one argument for each batch
        def cat(*parts: Any) -> Any:
            if not isinstance(parts[0], torch.Tensor):
                raise TypeError(f"a batch holds a {type(parts[0]).__name__}")
            return torch.cat(parts)

        return tree_map(cat, batches[0], *batches[1:])

    def profile(self, seconds: float) -> ItemProfile | None:
        loader = self._loader
        order = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        batches: Iterable[Any] = order
        # an iterable dataset has no indices: only the lengths of these batches count
        if isinstance(loader.dataset, IterableDataset):
            batches = itertools.repeat([0] * (loader.batch_size or 1))

        return profile_items(
            loader.dataset,
            batches,
            loader.collate_fn,
            seconds,
            auto_collation=loader.batch_sampler is not None or bool(loader.batch_size),
        )

    def other_workers(self, figures: TrainingFigures, items: ItemProfile | None) -> list[Fix]:
        """Returns the settings of the worker processes that are likely to help, by the figures."""
        now, cores = self._loader.num_workers, available_cpus()
        fixes = list[Fix]()
        if self.starts_anew and figures.start_share >= MIN_COST:
            fixes.append(
                self._fix_with("workers live from epoch to epoch", persistent_workers=True)
            )

        waits = items is not None and items.blocked_s >= _WAITING * items.seconds
        counts, room = set[int](), 0
        if waits:
            # an item that waits needs no core, so many more workers than cores may help, as far as
            # the machine has memory for them
            room = min(_MOST_WORKERS, max(1, memory_left() // _WORKER_BYTES))
            wanted = {max(cores, 2 * now), 4 * max(cores, now), 8 * max(cores, now)}
            counts |= {min(each, max(room, now)) for each in wanted}
        elif now == 0:
            counts |= {1, cores}
        elif now < cores:
            # also where other programs keep the cores busy: more processes get more of them
            counts |= {max(now + 1, cores)}

        # workers copy batches into shared memory; for items that cost less, no worker is fastest
        serial = 1 / (1 / figures.model + items.seconds) if items else 0.0
        if now and not waits and serial > figures.together:
            counts |= {0, 1}
        if now > cores and not waits:
            counts |= {cores}

        for count in sorted(counts - {now}):
            why = (
                "more batches are made at the same time"
                if count > now
                else "fewer processes share the cores"
            )
            if waits and count == room:
                why += f"; more than {count} were not tried, for the memory that they take"
            if not count:
                why = "no process has to hand batches over"
            fixes.append(self._fix_with(why, num_workers=count))
        return fixes

    def fixes(self, verdict: str) -> list[Fix]:
        return [
            *self._more_ahead(verdict),
            *self._whole_batches(verdict),
            *self._converted_fixes(verdict),
        ]

    def _fix_with(self, why: str, **options: Any) -> Fix:
        """Returns the fix that gives the DataLoader other values of these options."""
        what = ", ".join(f"{name}={value}" for name, value in options.items())
        # DataLoader refuses these three without workers
        if options.get("num_workers") == 0:
            options |= _WITHOUT_WORKERS
        # in a short epoch, or one of unknown length, the start of workers would count
        elif self._loader.persistent_workers or self.epoch is None or self.epoch < _SHORT_EPOCH:
            what += (
                ""
                if "persistent_workers" in options or self._loader.persistent_workers
                else ", persistent_workers=True"
            )
            options.setdefault("persistent_workers", True)

        patch = patch_of(self._built_at[0], options, self._built_at[1]) if self._built_at else ""
        return Fix(
            what, why, DataLoaderProgram(_rebuild(self._loader, **options), self._step), patch=patch
        )

    def _more_ahead(self, verdict: str) -> Iterator[Fix]:
        if verdict == "straggler" and self._loader.num_workers:
            yield self._fix_with(
                "more batches are ready", prefetch_factor=4 * (self._loader.prefetch_factor or 2)
            )

    def _whole_batches(self, verdict: str) -> Iterator[Fix]:
        """Yields the same batches of tensors in memory, each indexed at once rather than sample by
        sample and collated.
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

        # a TensorDataset takes a list of indices; with batch_size=None the sampler's lists reach it
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

    def _converted_fixes(self, verdict: str) -> Iterator[Fix]:
        """Yields the same batches, whose pixels DALI makes, if there are any that it can make."""
        if verdict not in _HELPED_BY_DALI:
            return
        with suppress(DaliPipesError):
            lazy = ConvertedProgram(self._loader, self._step)
            yield Fix(
                "dali_pipes.from_torch(loader)", "the same batches, made outside Python", lazy
            )


def _rebuild(loader: DataLoader, **changes: Any) -> DataLoader:
    """Returns the same DataLoader with other options."""
    # batch_sampler excludes the other four
    names = set(inspect.signature(DataLoader).parameters) - {
        "batch_size",
        "shuffle",
        "sampler",
        "batch_sampler",
        "drop_last",
    }
    options = {name: getattr(loader, name) for name in names if hasattr(loader, name)} | changes

    if options["num_workers"] and options.get("prefetch_factor") is None:
        # what DataLoader chooses itself for workers, and keeps as None without them
        options["prefetch_factor"] = 2

    order: dict[str, Any] = {"batch_sampler": loader.batch_sampler}
    # an iterable dataset takes no sampler
    if isinstance(loader.dataset, IterableDataset):
        order = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif loader.batch_sampler is None:
        order = {"batch_size": None, "sampler": loader.sampler}

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        return DataLoader(**options, **order)


def _samples(dataset: Any) -> list[tuple[str, int]]:
    """Returns the path and label of each sample, as torchvision's ImageFolder has them; empty for
    any other dataset.
    """
    samples = getattr(dataset, "samples", None)
    # other data sets have a `samples` too, of another kind
    if not isinstance(samples, list) or not all(
        isinstance(sample, tuple) and len(sample) == 2 for sample in samples
    ):
        return []
    if not all(isinstance(path, (str, Path)) and isinstance(label, int) for path, label in samples):
        return []

    return samples if samples and Path(samples[0][0]).is_file() else []
