"""build_loader(), and what all backends share: epochs, resume, and what happens when an image fails."""

import logging
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from dali_pipes.backends.base import Backend, Batch, BatchTransform, DecodedBatch
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.registry import entry_of
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.shards import traffic
from dali_pipes.errors import LARGEST_SEED, BadSampleError, ConfigError, NoGpuError, check_choice, checks_arguments, shown
from dali_pipes.loader.bad_samples import find_bad_samples
from dali_pipes.loader.classes import refuse_other_classes
from dali_pipes.loader.decode_probe import try_regions
from dali_pipes.loader.fetching import Fetcher, check_room
from dali_pipes.loader.fingerprint import changes, fingerprint, with_defaults
from dali_pipes.loader.mistakes import refuse_other_kinds
from dali_pipes.loader.mixing import check_fits
from dali_pipes.loader.targets import Begun, TargetReader
from dali_pipes.plan.flips import check_flips
from dali_pipes.plan.philox import LARGEST_EPOCH, BatchDraws
from dali_pipes.plan.plan import LARGEST_BATCH, Plan, PlannedBatch, Shard
from dali_pipes.plan.sampling import Sampling, chosen
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.modes import in_own_modes

log = logging.getLogger(__name__)


@checks_arguments(batch_size=(1, LARGEST_BATCH), seed=(0, LARGEST_SEED), max_bad_fraction=(0, 1))
@in_own_modes
def build_loader(
    manifest: Manifest,
    config: LoaderConfig,
    *,
    transform: Transform,
    batch_size: int,
    seed: int = 0,
    shard: Shard | None = None,
    shuffle: bool | None = None,
    sampling: Sampling | Mapping[str, Any] | str | None = None,
    last_batch: str | None = None,
    on_bad_sample: str = "raise",
    max_bad_fraction: float = 0.01,
    strict: bool = False,
    device: str | torch.device = "auto",
    batch_transform: BatchTransform | None = None,
) -> "Loader":
    """A loader of `manifest`, by whichever backend `config` belongs to. Everything else means the same for all of them.

    Args:
        batch_size: images per batch and shard.
        shard: this process's part; by default all. `Shard.from_env()` reads it from torchrun or SLURM.
        shuffle: a new order each epoch; by default for training transforms only.
        sampling: which samples make an epoch and in which order, instead of `shuffle`: a Sampling, its name, or {"name": …} with
            its options (docs/sampling.md).
        last_batch: "drop", "partial", "pad" or "even" (see `Plan`); by default "drop" for training transforms, else "partial".
        on_bad_sample: "raise" stops at an image that cannot be decoded and names it; "substitute" delivers another image in its
            place and lists it in `bad_samples`: one of its class or source where the sampling has such, else of the same batch.
        max_bad_fraction: the share of the images that may be bad: those that the scan found, and with "substitute" those that are
            found while loading.
        strict: images and objects that the scan left out are an error; without it they are said in one line of the log.
        device: where batches arrive: "cpu", "cuda", "cuda:1" …; "auto" takes the current GPU if there is one.
        batch_transform: makes another batch of each, on the device: MixUp, CutMix, RandomChoice, or a function of your own of a
            batch and its random numbers (docs/mixing.md).

    Raises:
        ConfigError: options that cannot work, or a GPU asked for where there is none.
        ManifestError: the scan has left out more images than `max_bad_fraction` allows; or a class has another number than in
            the images that are trained on.
        OmissionError: `strict`, and it has left out any.
    """
    refuse_other_kinds(manifest, config, transform, shard, sampling, batch_transform)
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
        sampling=chosen(sampling, shuffle, manifest, transform.training),
        shard=shard or Shard(),
        last_batch=last_batch or ("drop" if transform.training else "partial"),
    )
    check_room(plan)
    transform.check(manifest)
    check_flips(manifest, transform)
    if batch_transform is not None:
        check_fits(batch_transform, manifest)
    backend, target = entry_of(config).load(), _resolve_device(device, config)
    config = config.on_cores()

    @cache  # images of another size are made by another backend, and what this GPU can decode stays the same
    def probe() -> str:
        return try_regions(manifest, transform.exif, config, batch_size, target)

    def build(at: Transform) -> Backend:
        return backend(manifest, at, config, batch_size, target, probe)

    return Loader(plan, transform, build, on_bad_sample, max_bad_fraction, batch_transform)


def _resolve_device(device: str | torch.device, config: LoaderConfig) -> torch.device:
    available, name = torch.cuda.is_available(), type(config).__name__
    what = f"{name}(device='gpu')" if hasattr(config, "device") else name
    try:
        target = torch.device(("cuda" if available or config.needs_gpu else "cpu") if device == "auto" else device)
    except (RuntimeError, TypeError):
        target = torch.device("meta")
    if target.type not in ("cpu", "cuda") or isinstance(device, bool):
        raise ConfigError(f"device is {shown(device)}; choose auto, cpu, cuda or cuda:N")
    if config.needs_gpu and target.type != "cuda":
        raise ConfigError(f"{what} makes batches on a GPU, but device={device} wants them elsewhere; leave device at auto")
    if target.type == "cuda" and not available:
        wanted = what if config.needs_gpu else f"device={device}"
        instead = "use DaliConfig(device='cpu') or TorchConfig(), or check the driver (nvidia-smi)"
        raise NoGpuError(f"{wanted}, but PyTorch sees no GPU here; {instead}", config.needs_gpu)
    if target.type == "cuda" and (target.index or 0) >= (count := torch.cuda.device_count()):
        raise ConfigError(f"device={device}, but PyTorch sees {count} GPUs here, cuda:0 to cuda:{count - 1}; choose one of these")
    if target.type == "cuda" and target.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return target


class LoaderStats(NamedTuple):
    """What a loader has waited for and fetched so far.

    Attributes:
        wait_s: time inside `next()`.
        fetch_wait_s: as much of it, at most, as readers waited for shards meanwhile; the rest is preparation.
        fetched, fetched_bytes: shards, or row groups, that were copied into the local cache by this process and its workers.
        found: times that one was opened whose copy was there.
        retries: requests to the object store that were sent again.
        window: of `sampling="windows"`, how many shards of the present and the next windows are here, and how many they are.
    """

    wait_s: float
    fetch_wait_s: float
    fetched: float
    fetched_bytes: float
    found: float
    retries: float
    window: tuple[int, int]


class Loader:
    """Batches, epoch after epoch: each `iter()` is the next epoch, and leaving a loop early abandons the epoch.

    Attributes:
        plan: what is loaded, and in which order.
        bad_samples: (id, path, reason) of the images that failed so far; the path of one in a shard is SHARD/MEMBER.
    """

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
        self.bad_samples: list[tuple[int, str, str]] = []
        self._transform, self._build_backend = transform, build_backend
        self._size = transform.size_at(0)
        self._backend, self._targets = build_backend(transform.at(0)), TargetReader(plan, transform)
        self._batch_transform = batch_transform
        self._substitute, self._max_bad_fraction = on_bad_sample == "substitute", max_bad_fraction
        self._bad_when_scanned = plan.manifest.bad_images
        self._epoch = self._step = 0  # of the next batch to deliver
        self._abandoned = False  # whether the next iter() leaves the rest of this epoch out
        self._stream: Iterator[DecodedBatch] | None = None
        self._fetcher = Fetcher(plan) if plan.manifest.copied else None
        if self._fetcher:
            weakref.finalize(self, self._fetcher.close)  # a loader that is dropped holds no shards
        self._in_work: deque[Begun] = deque()  # the rows that the backend was given and has not yielded
        self._iteration = 0
        self._wait_s = self._fetch_wait_s = 0.0
        self._traffic = traffic.current()
        self._tried_again = (-1, -1)
        self._closed = False

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to, from 0."""
        return self._epoch

    @property
    def batches_left(self) -> int:
        """Batches of this epoch that are still to come on this shard."""
        return len(self.plan) - self._step

    def __len__(self) -> int:
        """Batches of one epoch on this shard."""
        return len(self.plan)

    def stats(self) -> LoaderStats:
        """What was waited for and fetched since the loader was built."""
        fetched = traffic.current().since(self._traffic)
        window = self._fetcher.progress if self._fetcher else (0, 0)
        return LoaderStats(self._wait_s, self._fetch_wait_s, *fetched[:4], window)

    def explain(self) -> str:
        """How images will be decoded and why, in one line."""
        return self._backend.explain()

    def __iter__(self) -> Iterator[Batch]:
        if self._closed:
            raise RuntimeError("the loader is closed; build a new one")
        if self._abandoned:
            if self._step < len(self.plan):
                self._stream = None
            self._move_to(self._epoch + 1, 0)
        self._iteration += 1
        return self._one_epoch(self._iteration)

    @checks_arguments(epoch=(0, LARGEST_EPOCH))
    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next `iter()`: from its start, or from where a resume into this very epoch goes on."""
        if self._abandoned or epoch != self._epoch:
            self._move_to(epoch, 0)
            self._stream, self._iteration = None, self._iteration + 1

    def _one_epoch(self, iteration: int) -> Iterator[Batch]:
        epoch = self._epoch
        for step in range(self._step, len(self.plan)):
            if iteration != self._iteration:
                raise RuntimeError("this epoch was abandoned when iter() was called again; a loader delivers one epoch at a time")
            decoded, begun = self._next_batch()
            last = step + 1 == self.plan.steps
            self._move_to(epoch + last, 0 if last else step + 1)
            self._abandoned = not last
            batch = self._targets.join(decoded, begun)
            if self._batch_transform is not None:
                ids = begun.rows.ids if begun else decoded.ids.numpy()
                batch = self._batch_transform(batch, BatchDraws(self.plan.seed, epoch, self.plan.batch_offset(step), ids))
            yield batch
        if (iteration, epoch) == (self._iteration, self._epoch):  # others have a part of the last global batch, this shard has none
            self._move_to(epoch + 1, 0)

    def _move_to(self, epoch: int, step: int) -> None:
        self._epoch, self._step, self._abandoned = epoch, step, False
        if self._transform.size_at(epoch) != self._size:
            self._stream = None

    @in_own_modes
    def _next_batch(self) -> tuple[DecodedBatch, Begun | None]:
        """With its targets, unless the backend takes nothing of the plan, as DALI's own reader."""
        start, before = time.monotonic(), traffic.current().waited_s if self._fetcher else 0.0
        try:
            return self._made()
        finally:
            waited = time.monotonic() - start
            self._wait_s += waited
            self._fetch_wait_s += min(waited, traffic.current().waited_s - before) if self._fetcher else 0.0

    def _made(self) -> tuple[DecodedBatch, Begun | None]:
        while True:
            size = self._transform.size_at(self._epoch)
            if self._stream is None and size != self._size:  # another backend, if this epoch's images are of another size
                self._backend.close()
                self._backend, self._size = self._build_backend(self._transform.at(self._epoch)), size
            try:
                if self._stream is None:
                    self._drop_work()
                    self._stream = self._backend.stream(self._begun())
                    if self._fetcher:  # only now, since workers are forked
                        self._fetcher.start(self._epoch, self._step)
                elif self._fetcher:
                    self._fetcher.deliver(self._epoch, self._step)
                decoded, begun = next(self._stream), self._in_work.popleft() if self._in_work else None
                if begun:
                    begun.wait()
                return decoded, begun
            except Exception as error:
                self._stream = None
                self._record_bad_samples(error)
            except BaseException:  # such as Ctrl-C in the middle of it: the next one is made anew
                self._stream = None
                raise

    def _begun(self) -> Iterator[PlannedBatch]:
        for rows in self._rows():
            if self._fetcher:
                self._fetcher.plan(rows.epoch, rows.step)
            self._in_work.append(self._targets.begin(rows))
            yield rows

    def _drop_work(self) -> None:
        for each in self._in_work:
            each.cancel()
        self._in_work = deque()

    def _rows(self) -> Iterator[PlannedBatch]:
        """The plan from the next batch on, while the size stays, with good samples in the place of the bad ones known so far."""
        bad = np.array([sample_id for sample_id, _, _ in self.bad_samples if self._substitute], np.int64)
        for ahead, rows in enumerate(self.plan.iter_from(self._epoch, self._step, bad)):
            if self._transform.size_at(rows.epoch) != self._size:
                return
            if ahead and np.isin(rows.ids, bad).all():
                return  # the run ends at this batch, and not before those that come first are delivered
            yield _without(rows, bad) if len(bad) else rows

    def _record_bad_samples(self, error: Exception) -> None:
        """Records the bad samples behind a failed batch, or raises if that is the policy or there are none."""
        rows = next(self._rows())
        where = f"epoch {rows.epoch}, step {rows.step}"
        manifest = self.plan.manifest
        reasons = find_bad_samples(manifest, rows, self._backend, self._transform.ignore_index)
        if not reasons and manifest.is_fetched and self._tried_again != (rows.epoch, rows.step):
            self._tried_again = rows.epoch, rows.step
            log.warning("%s: the batch failed, and all of its files can be read now; trying it once more", where)
            return
        if not reasons:
            names = {manifest.name(sample_id) for sample_id in rows.ids.tolist()}
            what = f", and none of its {len(names)} files is to blame"
            if len(names) == 1:
                what = f"; Pillow can decode its only file, {names.pop()}, so either the loader cannot, or something else is wrong"
            error.add_note(f"{where}: the batch failed{what}")
            raise error
        found = [(sample_id, manifest.name(sample_id), why) for sample_id, why in reasons.items()]
        self.bad_samples += found
        for _, path, why in found:
            log.warning("%s: %s", path, why)
        named = "\n".join(f"  {path}: {why}" for _, path, why in found)
        if not self._substitute:
            raise BadSampleError(
                f"{where}: {len(found)} of {len(rows)} images cannot be loaded:\n{named}\n"
                "Fix or remove them and scan again (verify='full' of Manifest.scan, from_table, from_coco or from_masks lists all, "
                "also masks), or go on without them with on_bad_sample='substitute'",
                found,
            ) from error
        bad, images = len(self.bad_samples) + self._bad_when_scanned, len(manifest) + self._bad_when_scanned
        if bad > self._max_bad_fraction * images:
            raise BadSampleError(
                f"{where}: {bad} of {images} images are bad so far, more than max_bad_fraction allows "
                f"({self._max_bad_fraction * images:g}); the last ones:\n{named}",
                self.bad_samples,
            ) from error

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch stands: epoch, samples delivered in it over all shards, and what must not change until then.

        It is the same on all shards after the same step. Resuming goes on in the middle of an epoch, also of one that was left with
        `break`; the loader that was left itself goes on with the next.
        """
        return {
            "epoch": self._epoch,
            "samples": min(self._step * self.plan.global_batch_size, self.plan.epoch_samples),
            "engine_mix": self._backend.engine_mix,
            "fingerprint": fingerprint(self.plan, self._transform, self._batch_transform),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state_dict` was called, on any backend and any number of shards with the same global batch size.

        Raises:
            ConfigError: something that decides the order or the pixels has changed since, which the text names; or no such state.
        """
        now, block = fingerprint(self.plan, self._transform, self._batch_transform), self.plan.global_batch_size
        try:
            epoch, samples, then = int(state["epoch"]), int(state["samples"]), dict(state["fingerprint"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"not the state of a loader ({type(error).__name__}: {error}); pass on what state_dict() gave"
            ) from None
        changed = [f"{name} ({before} → {after})" for name, before, after in changes(with_defaults(then, self._transform), now)]
        if changed:
            images = " (manifest: other images, labels or sizes than then)" if then.get("manifest") != now["manifest"] else ""
            raise ConfigError(
                f"cannot resume, since these have changed: {', '.join(changed)}{images}; restore them, or start a new run"
            )
        if epoch < 0 or samples % block or not 0 <= samples < max(self.plan.epoch_samples, 1):
            raise ConfigError(
                f"epoch {epoch} with {samples} samples delivered is no state of this loader; pass on what state_dict() gave"
            )
        mix = self._backend.engine_mix
        if (before := state.get("engine_mix", mix)) != mix:
            log.warning(
                "pixels are made in another way than before this resume: %s before, now %s (with equal options of the decoder and "
                "exact=True they stay equal bit for bit)",
                before or "no GPU",
                mix or "no GPU",
            )
        self._move_to(epoch, samples // block)
        self._stream = None
        self._iteration += 1

    def close(self) -> None:
        """Ends the backend's threads and processes. The loader cannot be used afterwards."""
        self._closed, self._stream = True, None
        self._drop_work()
        self._backend.close()
        self._targets.close()
        if self._fetcher:
            self._fetcher.close()

    def __repr__(self) -> str:
        manifest, plan = self.plan.manifest, self.plan
        rank = f" of rank {plan.shard.index} of {plan.shard.count}" if plan.shard.count > 1 else ""
        batches = f"{len(self)} batches of {plan.batch_size} an epoch{rank}"
        where = "closed" if self._closed else f"next is step {self._step} of epoch {self._epoch}"
        return f"Loader({str(manifest.root)!r}: {len(manifest):,} images, {batches}, {self._backend!r}; {where})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _without(rows: PlannedBatch, bad: np.ndarray) -> PlannedBatch:
    """Each bad sample replaced by the next good one of the batch, the first following the last."""
    is_bad = np.isin(rows.ids, bad)
    if not is_bad.any():
        return rows
    good = np.flatnonzero(~is_bad)
    if not len(good):
        raise BadSampleError(f"epoch {rows.epoch}, step {rows.step}: all {len(rows)} images of the batch are bad; scan again", [])
    places = np.arange(len(rows))
    places[is_bad] = good[np.searchsorted(good, places[is_bad]) % len(good)]
    return rows.take(places)
