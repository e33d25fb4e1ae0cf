"""build_loader() and the Loader that it returns: what all backends share, such as epochs, resume,
and what happens when an image fails.

How a batch comes about:

    next() of _Epoch        asks the loader for the batch of its next step
    Loader._deliver         refuses abandoned epochs, and moves the loader's place on
    Loader._next_batch      measures the wait, joins labels and targets, applies batch_transform
    Loader._make            asks Work for the decoded batch; if that fails, finds the bad samples
                            and asks again, with others in their place

`Work` (work.py) owns the backend and its threads, and lets one thread in at a time. The loader
itself keeps only its place: epoch and step.
"""

import logging
import operator
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import cache
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch

from dali_pipes.backends.base import Backend, Batch, BatchTransform, DecodedBatch
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.registry import entry_of
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.reader import PAUSE_S
from dali_pipes.data.shards import traffic
from dali_pipes.errors import (
    LARGEST_SEED,
    BadSampleError,
    ConfigError,
    NoGpuError,
    check_choice,
    checks_arguments,
    proposal,
    shown,
)
from dali_pipes.loader.bad_samples import BadSamples, find_bad_samples
from dali_pipes.loader.classes import refuse_other_classes
from dali_pipes.loader.decode_probe import try_regions
from dali_pipes.loader.fetching import Fetcher, check_room
from dali_pipes.loader.fingerprint import changes, fingerprint, with_defaults
from dali_pipes.loader.mistakes import ELSEWHERE, RefusesMisuse, refuse_other_kinds
from dali_pipes.loader.mixing import check_fits
from dali_pipes.loader.ranks import choose_rank, compare_ranks
from dali_pipes.loader.targets import Begun, TargetReader
from dali_pipes.loader.work import Work
from dali_pipes.plan.flips import check_flips
from dali_pipes.plan.philox import LARGEST_EPOCH, BatchDraws
from dali_pipes.plan.plan import LARGEST_BATCH, Plan, Rank
from dali_pipes.plan.sampling import Sampling, choose_sampling
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.cuda import why_no_gpu
from dali_pipes.system.gpu_memory import gpu_memory, release_unused
from dali_pipes.system.interrupts import interrupt_behind
from dali_pipes.system.modes import in_own_modes
from dali_pipes.system.traces import span

log = logging.getLogger(__name__)

OTHER_PIXELS = "pixels are made in another way than before this resume"
_END_S = 10.0  # how long the end of the program waits for a next() in another thread, at most


@checks_arguments(
    ELSEWHERE, batch_size=(1, LARGEST_BATCH), seed=(0, LARGEST_SEED), max_bad_fraction=(0, 1)
)
@in_own_modes
def build_loader(
    manifest: Manifest,
    config: LoaderConfig,
    *,
    transform: Transform,
    batch_size: int,
    seed: int = 0,
    rank: Rank | None = None,
    shuffle: bool | None = None,
    sampling: Sampling | Mapping[str, Any] | str | None = None,
    last_batch: str | None = None,
    on_bad_sample: str = "raise",
    max_bad_fraction: float = 0.01,
    strict: bool = False,
    device: str | torch.device = "auto",
    batch_transform: BatchTransform | None = None,
) -> "Loader":
    """Builds a loader of `manifest` with the backend that `config` belongs to. All other options
    mean the same for every backend.

    Args:
        batch_size: images per batch and rank.
        rank: this process's part; by default all, with a warning under torchrun. `Rank.from_env()`
            reads it from torchrun or SLURM. Where the process group has as many ranks, they are
            compared: all must load the same images in the same way.
        shuffle: a new order each epoch; by default for training transforms only.
        sampling: which samples make an epoch and in which order, instead of `shuffle`: a Sampling,
            its name, or {"name": …} with its options (docs/sampling.md).
        last_batch: "drop", "partial", "pad" or "even" (see `Plan`); by default "drop" for training
            transforms, else "partial".
        on_bad_sample: "raise" stops at an image that cannot be decoded and names it; "substitute"
            delivers another image in its place and lists the bad one in `bad_samples`. The other
            image is of the same class or source where the sampling can give one, else of the same
            batch, or of the batches around it if that whole batch is bad.
        max_bad_fraction: the share of the images that may be bad: those that the scan found, and
            with "substitute" also those that are found while loading.
        strict: makes an error of images and objects that the scan left out; without it the log
            counts them in one line.
        device: where batches arrive: "cpu", "cuda", "cuda:1" …; "auto" takes the current GPU if
            there is one.
        batch_transform: changes each batch, on the device: MixUp, CutMix, RandomChoice, or your own
            function of a batch and its random numbers (docs/mixing.md).

    Raises:
        ConfigError: options cannot work, or a GPU is asked for where there is none.
        ManifestError: the scan has left out more images than `max_bad_fraction` allows; or a class
            has another number than in the images that are trained on.
        OmissionError: `strict` is set, and the scan has left something out.
    """
    refuse_other_kinds(manifest, config, transform, rank, sampling, batch_transform)
    # own copies: what the caller sets later has no effect; replace() checks what was set until now
    config, transform = replace(deepcopy(config)), replace(deepcopy(transform))
    check_choice("on_bad_sample", on_bad_sample, ("raise", "substitute"))
    check_choice("last_batch", last_batch, (None, "partial", "drop", "pad", "even"))

    manifest.tell_omissions(strict)
    manifest.refuse_bad_images(max_bad_fraction)
    refuse_other_classes(manifest, transform.training)

    plan = Plan(
        manifest,
        transform,
        batch_size,
        seed=seed,
        sampling=choose_sampling(sampling, shuffle, manifest, transform.training),
        rank=choose_rank(rank),
        last_batch=last_batch or ("drop" if transform.training else "partial"),
    )
    check_room(plan)
    transform.check(manifest)
    check_flips(manifest, transform)
    if batch_transform is not None:
        check_fits(batch_transform, manifest)

    backend, target = entry_of(config).load(), _resolve_device(device, config)
    config = config.on_cores()

    # cached: each size of images has another backend, and what this GPU decodes stays the same
    @cache
    def probe() -> str:
        return try_regions(manifest, transform.exif, config, batch_size, target)

    def build(at: Transform) -> Backend:
        return backend(manifest, at, config, batch_size, target, probe)

    compare_ranks(plan, fingerprint(plan, transform, batch_transform))
    return Loader(plan, transform, build, on_bad_sample, max_bad_fraction, batch_transform)


def _resolve_device(device: str | torch.device, config: LoaderConfig) -> torch.device:
    what = (
        f"{type(config).__name__}(device='gpu')"
        if hasattr(config, "device")
        else type(config).__name__
    )
    try:
        target = torch.device(_automatic(config) if device == "auto" else device)
    except (RuntimeError, TypeError):
        target = torch.device("meta")  # refused in the next lines, like any other device

    if target.type not in ("cpu", "cuda") or isinstance(device, bool):
        raise ConfigError(f"device is {shown(device)}; choose auto, cpu, cuda or cuda:N")
    if config.needs_gpu and target.type != "cuda":
        raise ConfigError(
            f"{what} makes batches on a GPU, but device={device} wants them elsewhere; leave "
            "device at auto"
        )

    if target.type == "cuda" and (reason := why_no_gpu()):
        wanted = what if config.needs_gpu else f"device={device}"
        instead = "use DaliConfig(device='cpu') or TorchConfig(), or check the driver (nvidia-smi)"
        message = f"{wanted}, but PyTorch sees no GPU here; {instead}. PyTorch says: {reason}"
        raise NoGpuError(message, config.needs_gpu, reason)
    if target.type == "cuda" and (target.index or 0) >= (count := torch.cuda.device_count()):
        raise ConfigError(
            f"device={device}, but PyTorch sees {count} GPUs here, cuda:0 to cuda:{count - 1}; "
            "choose one of these"
        )

    if target.type == "cuda" and target.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return target


def _automatic(config: LoaderConfig) -> str:
    """The device of "auto": the GPU, if the loader needs one or PyTorch can use one."""
    if config.needs_gpu:
        return "cuda"
    if not torch.cuda.is_available():
        return "cpu"

    if reason := why_no_gpu():  # PyTorch warns of it only where is_available() is False
        log.warning(
            (
                "the loader works on the CPU, since PyTorch cannot use the GPU that is here; "
                "PyTorch says: %s"
            ),
            reason,
        )
        return "cpu"
    return "cuda"


class LoaderStats(NamedTuple):
    """What a loader has waited for and fetched so far.

    Attributes:
        wait_s: seconds inside `next()`.
        fetch_wait_s: how much of `wait_s`, at most, was the wait for shards: the readers' waiting
            in that time. The rest is preparation.
        fetched, fetched_bytes: shards, or row groups, that this process and its workers copied into
            the local cache.
        found: how often one was opened that was in the cache already.
        retries: requests to the object store that were sent again.
        window: with `sampling="windows"`, how many shards of the present and the next windows are
            in the cache, and how many there are.
    """

    wait_s: float
    fetch_wait_s: float
    fetched: float
    fetched_bytes: float
    found: float
    retries: float
    window: tuple[int, int]


class Loader(RefusesMisuse):
    """Batches, epoch after epoch: each `iter()` is the next epoch, and leaving a loop early
    abandons the epoch.

    One thread at a time uses it; others wait. It belongs to the process that built it, and ends
    with its last reference.

    Attributes:
        plan: what is loaded, and in which order.
    """

    _set_once = ("plan",)

    def __init__(
        self,
        plan: Plan,
        transform: Transform,
        build_backend: Callable[[Transform], Backend],
        on_bad_sample: str,
        max_bad_fraction: float,
        batch_transform: BatchTransform | None = None,
    ):
        self.plan = plan
        self._transform, self._batch_transform = transform, batch_transform
        self._bad = BadSamples(plan, transform, on_bad_sample == "substitute", max_bad_fraction)
        fetcher = Fetcher(plan) if plan.manifest.copied else None
        self._work = Work(transform, build_backend, TargetReader(plan, transform), fetcher)
        # a method of Work, which does not know the loader: its own would keep the loader alive
        weakref.finalize(self, self._work.close_unowned, _END_S)

        # Epoch and step of the next batch, and whether the next iter() leaves out the rest of that
        # epoch. It is one value, so that an interrupt or another thread finds the place before a
        # batch or after it, and nothing between.
        self._place = (0, 0, False)
        # number of the one iterator that may deliver; the iterator itself would hold the loader
        self._running = 0
        self._wait_s = self._fetch_wait_s = 0.0
        self._traffic = traffic.current()
        self._tried_again = (-1, -1)  # epoch and step of the batch that was made a second time
        self._made_by = self._work.describe(0).name

    @property
    def bad_samples(self) -> list[tuple[int, str, str]]:
        """(id, path, reason) of each image that has failed so far. In a shard the path is
        SHARD/MEMBER.
        """
        return self._bad.found

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to, from 0."""
        return self._place[0]

    @property
    def batches_left(self) -> int:
        """Batches of this epoch that are still to come on this rank."""
        return len(self.plan) - self._place[1]

    @property
    def dataset(self) -> Manifest:
        """The images. `len()` of it is the number of usable ones, as of a DataLoader's
        `dataset`.
        """
        return self.plan.manifest

    @property
    def batch_size(self) -> int:
        """Images of a full batch on this rank."""
        return self.plan.batch_size

    def __len__(self) -> int:
        """Batches of one epoch on this rank."""
        return len(self.plan)

    def stats(self) -> LoaderStats:
        """What the loader has waited for and fetched since it was built."""
        fetched = traffic.current().since(self._traffic)
        fetcher = self._work.fetcher
        return LoaderStats(
            self._wait_s, self._fetch_wait_s, *fetched[:4], fetcher.progress if fetcher else (0, 0)
        )

    @property
    def decodes(self) -> str:
        """How images will be decoded and why, in one line."""
        return self._work.describe(self.epoch).explanation

    def explain(self) -> str:
        """The text of `decodes`, and with DALI on a GPU also who holds the GPU's memory now."""
        found = self._work.describe(self.epoch)
        return (
            f"{found.explanation}; in GiB, {gpu_memory(found.gpu)}"
            if found.gpu
            else found.explanation
        )

    def __iter__(self) -> Iterator[Batch]:
        return self._work.use("iter()", self._begin_epoch)

    def _begin_epoch(self) -> Iterator[Batch]:
        self._refuse_closed()
        epoch, step, abandoned = self._place
        if abandoned:
            # where this rank has had its last batch, the stream goes on with the next epoch itself
            if step < len(self.plan):
                self._work.stop()
            self._move_to(epoch + 1, 0)

        self._running += 1
        return _Epoch(self, self._running, *self._place[:2])

    @checks_arguments(epoch=(0, LARGEST_EPOCH))
    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next `iter()`, which begins at its start, or, after a resume
        into this very epoch, where that goes on.
        """
        self._work.use("set_epoch()", self._choose_epoch, epoch)

    def _choose_epoch(self, epoch: int) -> None:
        current, _, abandoned = self._place
        if abandoned or epoch != current:
            self._go_to(epoch, 0)

    def _go_to(self, epoch: int, step: int) -> None:
        """Lets the next `iter()` begin here; iterators from before may deliver no more."""
        self._work.stop()
        self._running += 1
        self._move_to(epoch, step)

    def _move_to(self, epoch: int, step: int) -> None:
        # a stream has images of one size only, and ends where the plan changes it
        if self._transform.size_at(epoch) != self._transform.size_at(self._place[0]):
            self._work.stop()
        self._place = (epoch, step, False)

    def _deliver(self, running: "_Epoch") -> Batch | None:
        """The next batch of an epoch; None when the epoch has ended."""
        self._refuse_closed()
        if running.number != self._running:
            raise RuntimeError(
                "this epoch was abandoned when another one was begun; a loader delivers one "
                "epoch at a time"
            )

        epoch, step, left = running.epoch, running.step, self._place[2]
        if step == len(self.plan):
            # the last global batch was too small for all ranks, and this one has no part of it
            if self._place[0] == epoch:
                self._move_to(epoch + 1, 0)
            return None

        handled = sys.exception()  # what the caller is handling did not cause what fails below
        try:
            batch = self._next_batch(epoch, step)
            if step + 1 == self.plan.steps:
                self._move_to(epoch + 1, 0)
            else:
                self._place = (epoch, step + 1, True)
            running.step = step + 1

        except BaseException as error:
            # the backend may have stopped half-way: the next batch is made by a new one
            self._work.end_backend()
            interrupt = interrupt_behind(error, handled)
            # an error ends the epoch, also in its first batch, which would fail again for ever; an
            # interrupt leaves the place, and the same batch comes next
            self._place = (epoch, step, (isinstance(error, Exception) and not interrupt) or left)
            if interrupt:
                raise interrupt from error
            raise
        return batch

    @in_own_modes
    def _next_batch(self, epoch: int, step: int) -> Batch:
        start, before = time.monotonic(), traffic.current().waited_s if self._work.fetcher else 0.0
        try:
            with span("wait"):
                decoded, begun = self._make(epoch, step)
        finally:
            waited = time.monotonic() - start
            self._wait_s += waited
            # several readers wait at the same time, so their sum can be more than this wait
            self._fetch_wait_s += (
                min(waited, traffic.current().waited_s - before) if self._work.fetcher else 0.0
            )

        with span("targets"):
            batch = self._work.targets.join(decoded, begun)
        if self._batch_transform is None:
            return batch

        ids = begun.planned.ids if begun else decoded.ids.numpy()
        with span("mixing"):
            made = self._batch_transform(
                batch, BatchDraws(self.plan.seed, epoch, self.plan.batch_offset(step), ids)
            )
        if not isinstance(made, Batch):  # of these, None would end the epoch without a word
            returned = "None" if made is None else f"a {type(made).__name__}"
            instead = "a Batch, such as dataclasses.replace(batch, images=…)"
            raise ConfigError(f"batch_transform returned {returned}; it must return {instead}")
        return made

    def _make(self, epoch: int, step: int) -> tuple[DecodedBatch, Begun | None]:
        """The decoded batch and its targets; bad samples are found and substituted until one
        succeeds.
        """
        handled = sys.exception()
        while True:
            try:
                return self._work.next(lambda: self._bad.planned_from(epoch, step), epoch, step)
            except Exception as error:
                self._work.end_backend()
                # neither says anything about a file
                if isinstance(error, ConfigError) or interrupt_behind(error, handled):
                    raise
                self._record_bad_samples(error, epoch, step)

    def _record_bad_samples(self, error: Exception, epoch: int, step: int) -> None:
        """Records the bad samples of a failed batch. Raises if that is the policy, or if none is
        bad and the batch fails a second time.
        """
        planned = self._bad.planned_at(epoch, step)
        where, manifest = f"epoch {epoch}, step {step}", self.plan.manifest
        backend, controls = self._work.backend_at(epoch), self._bad.controls(planned)
        reasons = find_bad_samples(
            manifest, planned, backend, controls, self._transform.ignore_index
        )

        if reasons:
            try:
                failed = self._bad.record(planned, reasons)
            except BadSampleError as named:
                raise named from error
            for _, path, why in failed:
                log.warning("%s: %s", path, why)
            return

        # no file is to blame: a file server may have been away for a moment
        if self._tried_again != (epoch, step):
            self._tried_again = epoch, step
            log.warning(
                ("%s: the batch failed (%s), and its files can be read now; trying it once more"),
                where,
                _shown(error),
            )
            traffic.add(retries=1)
            time.sleep(PAUSE_S)
            return

        names = {manifest.name(sample_id) for sample_id in planned.ids.tolist()}
        what = f", and none of its {len(names)} files is to blame"
        if len(names) == 1:
            what = (
                f"; Pillow can decode its only file, {names.pop()}, so either the loader "
                "cannot, or something else is wrong"
            )
        error.add_note(f"{where}: the batch failed{what}")
        raise error

    def _refuse_closed(self) -> None:
        if self._work.closed:
            raise RuntimeError("the loader is closed; build a new one")

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch is: its epoch, the samples delivered in it by all ranks, and what
        must not change before a resume.

        All ranks have the same state after the same step. A resume goes on in the middle of an
        epoch, also of one that was left with `break`; the loader that was left with `break` goes on
        with the next epoch.
        """
        epoch, step, _ = self._place
        return {
            "epoch": epoch,
            # samples of all ranks and not steps: a resume may have another number of ranks
            "samples": min(step * self.plan.global_batch_size, self.plan.epoch_samples),
            "engine_mix": self._work.describe(epoch).engine_mix,
            "fingerprint": fingerprint(self.plan, self._transform, self._batch_transform),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state_dict` was called, with any backend, and any number of ranks that
        have the same global batch size.

        Raises:
            ConfigError: what decides the order or the pixels has changed since, and the text names
                it; or `state` is not a loader's.
        """
        now, block = (
            fingerprint(self.plan, self._transform, self._batch_transform),
            self.plan.global_batch_size,
        )
        # index() takes integers of any library, as torch.load may give them, and no fractions
        try:
            epoch, samples, then = (
                *map(operator.index, (state["epoch"], state["samples"])),
                dict(state["fingerprint"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"not the state of a loader ({type(error).__name__}: {error}); pass on "
                "what state_dict() gave"
            ) from None

        changed = [
            f"{name} ({before} → {after})"
            for name, before, after in changes(with_defaults(then, self._transform), now)
        ]
        if changed:
            images = (
                " (manifest: other images, labels or sizes than then)"
                if then.get("manifest") != now["manifest"]
                else ""
            )
            instead = (
                "start a new run"
                if samples
                else f"go on with the start of this state's epoch by set_epoch({epoch})"
            )
            what = f"cannot resume, since these have changed: {', '.join(changed)}{images}"
            raise ConfigError(f"{what}; restore them, or {instead}")

        # states are made between two global batches
        if (
            not 0 <= epoch <= LARGEST_EPOCH
            or samples % block
            or not 0 <= samples < max(self.plan.epoch_samples, 1)
        ):
            raise ConfigError(
                f"epoch {epoch} with {samples} samples delivered is no state of this "
                "loader; pass on what state_dict() gave"
            )

        # the JPEG engine rounds in another way than the CUDA decoder: docs/gpu-path.md
        mix = self._work.describe(self.epoch).engine_mix
        if (before := state.get("engine_mix", mix)) != mix:
            log.warning(
                (
                    "%s: %s before, now %s (with equal options of the decoder and exact=True "
                    "they stay equal bit for bit)"
                ),
                OTHER_PIXELS,
                before or "no GPU",
                mix or "no GPU",
            )

        self._work.use("load_state_dict()", self._go_to, epoch, samples // block)

    @checks_arguments()
    def close(self, release: bool = False) -> None:
        """Ends the backend's threads and processes, after a `next()` that runs in another thread.
        The loader cannot be used afterwards.

        Args:
            release: also gives the memory that the allocators of DALI and PyTorch keep for later
                back to the GPU and the host. All loaders of a program share these allocators, so
                the loaders that go on allocate anew.
        """
        self._work.close()
        if release:
            release_unused()

    def __getattr__(self, name: str) -> Any:
        """Explains attributes that a loader lacks, such as those of a DataLoader that Accelerate's
        `skip_first_batches` asks for.
        """
        if name in ("sampler", "batch_sampler", "collate_fn"):
            raise AttributeError(
                f"a loader has no {name}: its plan says which samples come when; to go on "
                "in mid-epoch use load_state_dict(), and "
                "for Accelerate dali_pipes.adapters.accelerate.AccelerateLoader"
            )
        raise AttributeError(
            f"'{type(self).__name__}' object has no attribute "
            f"'{name}'{proposal(name, dir(type(self)))}"
        )

    def __reduce__(self) -> Any:
        raise TypeError(
            "a loader cannot be pickled or copied, for it has threads; build one in the "
            "process that uses it"
        )

    def __repr__(self) -> str:
        manifest, plan = self.plan.manifest, self.plan
        who = f" of rank {plan.rank.index} of {plan.rank.count}" if plan.rank.count > 1 else ""
        batches = f"{len(self)} batches of {plan.batch_size} an epoch{who}"
        where = (
            "closed"
            if self._work.closed
            else f"next is step {self._place[1]} of epoch {self._place[0]}"
        )

        return (
            f"Loader({str(manifest.root)!r}: {len(manifest):,} images, {batches}, "
            f"{self._made_by}; {where})"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Epoch(Iterator[Batch]):
    """The batches that are left of one epoch."""

    def __init__(self, loader: Loader, number: int, epoch: int, step: int):
        self._loader, self.number, self.epoch, self.step = loader, number, epoch, step
        # whether all batches are delivered, and the type of the error that this iterator raised
        self._ended, self._error = False, ""

    def __next__(self) -> Batch:
        if self._error:
            raise RuntimeError(
                f"this epoch was left with an error ({self._error}); iter() of the loader "
                "begins another one"
            )

        try:
            batch = (
                None
                if self._ended
                else self._loader._work.use("next()", self._loader._deliver, self)
            )
        except BaseException as error:
            self._error = type(error).__name__
            raise

        if batch is None:
            self._ended = True
            raise StopIteration
        return batch


def _shown(error: Exception) -> str:
    """An error in one line: what its notes say of the files, or else its own text."""
    text = "; ".join(getattr(error, "__notes__", [])) or f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:200]
