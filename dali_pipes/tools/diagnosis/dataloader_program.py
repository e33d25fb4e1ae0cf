"""diagnose(): a user's DataLoader and step as a training program."""

import inspect
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rich.console import Console
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.data import DataLoader, IterableDataset

from dali_pipes.backends.config import DaliConfig
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError, ManifestError, checks_arguments, shown
from dali_pipes.loader.loader import build_loader
from dali_pipes.plan.transforms import TrainTransform
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.progress import steps
from dali_pipes.tools.diagnosis.examine import Diagnosis, ProbeBudget, examine, print_diagnosis
from dali_pipes.tools.diagnosis.probes import Feed, Fix, TrainingProgram, loader_feed
from dali_pipes.tools.diagnosis.window import Step

_MORE_WORKERS = ("prep-bound (too few workers)", "fetch-bound", "straggler")
_OURS = ("prep-bound (too few workers)", "prep-bound (CPU saturated)", "decode-contention", "cgroup-throttled", "transfer-bound")


@checks_arguments(seconds=(0, 86_400), rounds=(1, 10_000))
def diagnose(
    loader: DataLoader, step: Step, *, seconds: float = 3.0, rounds: int = 3, cold: bool = True, show: bool = True
) -> Diagnosis:
    """Why training waits, for a program that uses PyTorch's DataLoader.

    The loader is run from its start several times, and the step with real batches: do it before training.

    Args:
        loader: any DataLoader. If its dataset has `samples`, like torchvision's ImageFolder, the files are known: then cold files
            are tried as well, and the gain of DALI with a random resized crop of the same size.
        step: is called with each batch as the loader yields it, and does all that training does with it. On a GPU it copies the
            batch there, unless the batch is already there.
        seconds: minimum duration of each measurement; at least three steps are taken.
        rounds: how often each part is measured.
        cold: also train on files that were dropped from the page cache, if the files are known.
        show: print the tables to stderr.

    Returns:
        The verdict with its evidence, and fixes with their predicted gain; docs/diagnose.md explains it.

    Raises:
        ConfigError: not a DataLoader, or one without batches.
    """
    if not isinstance(loader, DataLoader):
        raise ConfigError(f"{type(loader).__name__} is not a torch DataLoader; for loaders of dali_pipes use dali-pipes diagnose")
    if not callable(step):
        raise ConfigError(f"step is {shown(step)}; it takes the function that trains on a batch: diagnose(loader, step)")
    program = DataLoaderProgram(loader, step)
    budget = ProbeBudget(rounds, seconds, cold=cold)
    with steps(budget.steps) as announce:
        diagnosis = examine(program, budget, announce if show else lambda text: None)
    if show:
        print_diagnosis(diagnosis, program.workers, Console(stderr=True))
    return diagnosis


class DataLoaderProgram(TrainingProgram):
    """A DataLoader and a step."""

    def __init__(self, loader: DataLoader, step: Step):
        self._loader, self._step = loader, step
        self.workers = self.burst = max(1, loader.num_workers)
        self.in_flight = loader.num_workers * (loader.prefetch_factor or 0)
        self.paths: Sequence[Path] = [Path(path) for path, _ in _samples(loader.dataset)]
        self.data_bytes = sum(path.stat().st_size for path in self.paths)

    @contextmanager
    def feed(self) -> Iterator[Feed]:
        epochs = _Epochs(self._loader)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores may help
            try:
                yield Feed(iter(epochs), lambda: epochs.at_start, _on_device)
            finally:
                epochs.close()

    def step(self) -> Step:
        return self._step

    def transfer_size(self) -> tuple[int, bool]:
        tensors = [each for each in _tensors(next(iter(self._loader))) if not each.is_cuda]
        return sum(each.nbytes for each in tensors), all(each.is_pinned() for each in tensors)

    def count(self, batch: Any) -> int:
        return next((len(each) for each in _tensors(batch) if each.ndim), 1)

    def concat(self, batches: Sequence[Any]) -> Any:
        def cat(*parts: Any) -> Any:
            if not isinstance(parts[0], torch.Tensor):
                raise TypeError(f"a batch holds a {type(parts[0]).__name__}")
            return torch.cat(parts)

        return tree_map(cat, batches[0], *batches[1:])

    def fixes(self, verdict: str) -> list[Fix]:
        return [*self._more_workers(verdict), *self._ours(verdict)]

    def _more_workers(self, verdict: str) -> Iterator[Fix]:
        cores, now = available_cpus(), self._loader.num_workers
        counts = {cores, 2 * cores, 4 * cores} if verdict == "fetch-bound" else {max(now + 1, cores)}
        for workers in sorted(counts if verdict in _MORE_WORKERS else ()):
            if workers > now:
                changed = DataLoaderProgram(_again(self._loader, num_workers=workers), self._step)
                yield Fix(f"num_workers={workers}", "more batches are made at the same time", changed)

    def _ours(self, verdict: str) -> Iterator[Fix]:
        """The same files through DALI. Only its pace is measured: its batches are not what the step expects."""
        if verdict not in _OURS or not self.paths:
            return
        images = next((each for each in _tensors(next(iter(self._loader))) if each.ndim == 4), None)
        if images is not None and (manifest := _manifest(self._loader.dataset)):
            what, why = "dali_pipes.build_loader(manifest, dali_pipes.DaliConfig(), …)", "decodes and crops outside Python"
            changed = DaliProgram(manifest, images)
            note = f"with RandomResizedCrop({changed.transform.size}), whatever the dataset's own transform does"
            yield Fix(what, why, changed, note=note)


class DaliProgram(TrainingProgram):
    """The files of an attached dataset, loaded by DALI."""

    burst, in_flight = 1, 3

    def __init__(self, manifest: Manifest, like: torch.Tensor):
        self._manifest, self._batch_size, self.workers = manifest, len(like), available_cpus()
        self.transform = TrainTransform(size=tuple(like.shape[-2:]))

    @contextmanager
    def feed(self) -> Iterator[Feed]:
        options: dict[str, Any] = {"batch_size": self._batch_size, "last_batch": "pad"}
        with build_loader(self._manifest, DaliConfig(), transform=self.transform, **options) as loader:
            yield loader_feed(loader)

    def step(self) -> Step:
        return lambda batch: None


class _Epochs:
    """A DataLoader, epoch after epoch."""

    def __init__(self, loader: DataLoader):
        self._loader = loader
        self._iterator: Any = None
        self._taken = 0

    @property
    def at_start(self) -> bool:
        """Whether the next batch is the first of an epoch; for an iterable dataset only the very first is known."""
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
                raise ConfigError("the DataLoader yields no batch; check its dataset, batch_size and drop_last")

    def close(self) -> None:
        if hasattr(self._iterator, "_shutdown_workers"):
            self._iterator._shutdown_workers()
        self._loader._iterator = None  # persistent workers have ended


def _again(loader: DataLoader, **changes: Any) -> DataLoader:
    """The same DataLoader with other options."""
    names = set(inspect.signature(DataLoader).parameters) - {"batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"}
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
    if not isinstance(samples, list) or not all(isinstance(each, tuple) and len(each) == 2 for each in samples):
        return []
    if not all(isinstance(path, (str, Path)) and isinstance(label, int) for path, label in samples):
        return []
    return samples if samples and Path(samples[0][0]).is_file() else []


def _manifest(dataset: Any) -> Manifest | None:
    """None: the files are no images."""
    with suppress(ManifestError), tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        paths, labels = zip(*((str(Path(path).absolute()), label) for path, label in _samples(dataset)), strict=True)
        pq.write_table(pa.table({"path": paths, "label": labels}), file.name)
        return Manifest.from_table(file.name, progress=False)
    return None


def _tensors(batch: Any) -> list[torch.Tensor]:
    return [each for each in tree_flatten(batch)[0] if isinstance(each, torch.Tensor)]


def _on_device(batch: Any) -> Any:
    if not torch.cuda.is_available():
        return batch
    return tree_map(lambda each: each.cuda() if isinstance(each, torch.Tensor) else each, batch)
