"""`IterableLoader`: batches of what an iterator of the program yields, with pictures of a backend.

Which samples there are, and in which order, is in the iterator's code. So there is no plan of
samples: `IteratedPlan` numbers their places in an epoch, by which crops, flips and augmentation are
drawn, and a resume runs the iterator from the start of its epoch, without decoding, and compares
what it yields.
"""

import itertools
import logging
import operator
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from dali_pipes.adapters.every_epoch.iterated import IteratedBatch
from dali_pipes.adapters.from_torch.reading import NotConvertibleError
from dali_pipes.adapters.items.backend import ITEM, ItemsBackend
from dali_pipes.adapters.items.bad_items import PictureError
from dali_pipes.adapters.items.run import BadPicture, ItemBatch, seeds_of
from dali_pipes.backends.torch.workers import end_workers, start_workers
from dali_pipes.data.loose_images import NO_IMAGES, LooseImages
from dali_pipes.errors import BadSampleError, ConfigError
from dali_pipes.loader.bad_files import find_bad_samples
from dali_pipes.loader.mistakes import RefusesAttributes
from dali_pipes.options import check_arguments
from dali_pipes.plan.philox import LARGEST_EPOCH, Kind
from dali_pipes.plan.plan import PlannedBatch, Rank
from dali_pipes.system.interrupts import delayed_signals
from dali_pipes.system.modes import in_own_modes

log = logging.getLogger(__name__)

_COMPARED = 8  # samples of two workers that are compared
_KNOWN = 2**16  # samples whose worker is known
_INSTEAD = (
    "To have each sample once, take every n-th one in __iter__, from an order that all workers "
    "have in common: info = torch.utils.data.get_worker_info(), and itertools.islice(samples, "
    "info.id, None, info.num_workers); or use num_workers=1"
)
_NO_TARGETS: Any = None  # of a transform only what belongs to masks would be asked


@dataclass(frozen=True, slots=True)
class IteratedPlan:
    """The places of an epoch's samples.

    Attributes:
        batch_size: samples of a full batch of this rank.
    """

    batch_size: int
    seed: int
    rank: Rank

    def iter_epoch(self, epoch: int) -> Iterator[PlannedBatch]:
        """Endless full batches of one epoch, without pictures; ids are places."""
        for step in itertools.count():
            first = (step * self.rank.count + self.rank.index) * self.batch_size
            ids = np.arange(first, first + self.batch_size)
            yield PlannedBatch(epoch, step, ids, (), NO_IMAGES)

    def draw_numbers(
        self, epoch: int, step: int, ids: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], Kind]:
        """As of a `Plan`: draws are keyed by places."""
        return ids, Kind.PLACE

    def worker_seed(self, epoch: int) -> int:
        """By which the workers of an epoch are seeded."""
        low, high = seeds_of(self.seed, epoch, np.zeros(1, np.int64))[0][2:].tolist()
        return int(low | high >> 1 << 32)

    @property
    def rank_samples(self) -> int:
        raise TypeError(
            "an IterableDataset has no sampler, and how many samples it yields is in its code"
        )


class BadPictures:
    """Names the pictures that cannot be used. None is replaced: what comes next is in the program's
    code.

    Attributes:
        failures: (place in the worker, path, reason) of each.
    """

    # none is known to the workers before
    keys: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        self.failures: list[tuple[int, str, str]] = []

    def note(self, bad: list[BadPicture], epoch: int, step: int, count: int) -> None:
        """Raises a BadSampleError if there are bad pictures among `count`."""
        if not bad:
            return
        failed = [(each.item, each.name, each.reason) for each in bad]
        self.failures += failed
        named = "\n".join(f"  {name}: {why}" for _, name, why in failed)
        raise BadSampleError(
            f"epoch {epoch}, step {step}: {len(failed)} of {count} images cannot be loaded:\n"
            f"{named}\nFix or remove them, or leave them out in the data set's iterator",
            failed,
        )

    def name_failed(self, error: PictureError, backend: ItemsBackend) -> None:
        """Raises a BadSampleError that names the pictures that made a batch fail, if one did."""
        planned = error.pictures
        images = cast(LooseImages, planned.images)
        part = backend.backend_of(error.part)
        reasons = find_bad_samples(images, planned, part, iter(()), _NO_TARGETS)
        bad = [
            BadPicture(int(error.ids[at % len(error.ids)]), "", images.name(at), why)
            for at, why in reasons.items()
        ]
        self.note(bad, planned.epoch, planned.step, len(planned))


class IteratedBackend(ItemsBackend):
    """Takes the items that an iterator yields, batch by batch, in place of planned ones.

    Attributes:
        skipped: batches at the start of the next stream that were delivered before.
        digests: by step, what tells the samples up to this step from others.
        warned: holds something once a sample of several workers was named.
    """

    _when: ClassVar[str] = "anew in every epoch"

    def prepare(self) -> None:
        super().prepare()
        self.skipped, self.digests, self.warned = 0, dict[int, str](), list[bool]()

    def _run(
        self, loader: Any, planned: Iterator[PlannedBatch], asked: deque[PlannedBatch]
    ) -> Iterator[ItemBatch]:
        # those of an epoch that was left; persistent ones serve the new iterator
        if not loader.persistent_workers:
            end_workers(self._iterator)
        self._iterator = start_workers(loader)
        self.digests = {}
        return self._take(self._iterator, planned, asked, self.skipped)

    def _take(
        self,
        batches: Iterator[IteratedBatch],
        planned: Iterator[PlannedBatch],
        asked: deque[PlannedBatch],
        skipped: int,
    ) -> Iterator[ItemBatch]:
        known, digest = _Yielded(type(self.dataset).__name__, self.warned), b""
        for batch, full in zip(batches, planned, strict=False):
            known.add(batch)
            digest = blake2b(digest + b"".join(batch.keys), digest_size=16).digest()
            self.digests[full.step + 1] = digest.hex()
            if full.step < skipped and not batch.error:
                continue
            asked.append(full.take(slice(0, len(batch.ids))))
            yield batch
        known.compare(at_end=True)


class _Yielded:
    """What each worker has yielded in an epoch: if nothing shards the data set, all yield the same
    samples.
    """

    def __init__(self, name: str, warned: list[bool]):
        self._name, self._warned = name, warned
        self._keys: dict[int, list[bytes]] = {}
        self._is_done, self._workers = False, dict[bytes, int]()
        self._doubled = ""

    def add(self, batch: IteratedBatch) -> None:
        self._note(batch)
        if not self._is_done:
            keys = self._keys.setdefault(batch.worker, [])
            keys += batch.keys[: _COMPARED - len(keys)]
            self.compare()
        # after it was compared, which may say the same as an error
        if self._is_done and self._doubled and not self._warned:
            self._warned.append(True)
            log.warning(
                "The IterableDataset %s: %s in one epoch. %s", self._name, self._doubled, _INSTEAD
            )

    def _note(self, batch: IteratedBatch) -> None:
        """Notes a sample that another worker has yielded, too."""
        if self._doubled or self._warned:
            return
        for place, key in enumerate(batch.keys):
            other = self._workers.setdefault(key, batch.worker)
            if other != batch.worker:
                workers = f"workers {other} and {batch.worker}"
                self._doubled = f"{workers} both yield a sample of {batch.name_of(place)}"
                return
        if len(self._workers) > _KNOWN:
            self._workers.clear()

    def compare(self, *, at_end: bool = False) -> None:
        """Refuses two workers that yield the same pictures in the same order.

        Args:
            at_end: whether they yield no more.
        """
        enough = 2 if at_end else _COMPARED
        full = [keys for keys in self._keys.values() if len(keys) >= enough]
        if len(full) < 2 or self._is_done:
            return
        self._is_done = True
        if full[0] == full[1]:
            raise NotConvertibleError(
                f"the IterableDataset {self._name}",
                "all of its workers yield the same samples, so an epoch has each of them once for "
                "every worker",
                _INSTEAD.replace("To", "to", 1),
            )


class IterableLoader(RefusesAttributes):
    """Batches, epoch after epoch: each `iter()` is the next epoch, and leaving a loop early
    abandons the epoch.

    It belongs to the process that built it.

    Args:
        length: the number of batches, or raises a TypeError.
        about: what a state must have in common with the loader that takes it.

    Attributes:
        plan: the places of samples.
    """

    _set_once = ("plan",)

    def __init__(
        self,
        plan: IteratedPlan,
        build_backend: Callable[[], IteratedBackend],
        generator: Any,
        bad: BadPictures,
        length: Callable[[], int],
        about: dict[str, Any],
    ):
        self.plan = plan
        self._build_backend, self._generator, self._bad = build_backend, generator, bad
        self._backends = [build_backend()]
        self._explanation = self._backend.describe().text
        self._dataset, self._backend_name = self._backend.dataset, repr(self._backend)
        self._length, self._about = length, about
        self._epoch, self._step, self._is_abandoned = 0, 0, False
        # of the samples before `_step`; of a state that was loaded: it is compared
        self._digest, self._running, self._closed = "", 0, False
        self._process = os.getpid()
        # the backend does not know the loader, which so ends with its last reference
        weakref.finalize(self, _close, self._backends, self._process)

    def __iter__(self) -> Iterator[Any]:
        self._refuse_unusable()
        if self._is_abandoned:
            self._move_to(self._epoch + 1, 0, "")
        self._running += 1
        self._generator.manual_seed(self.plan.worker_seed(self._epoch))
        # an interrupt now would leave processes behind that nobody ends
        with delayed_signals():
            if not self._backends:
                self._backends.append(self._build_backend())
            self._backend.skipped = self._step
            stream = in_own_modes(self._backend.stream)(self.plan.iter_epoch(self._epoch))
        return _IteratedEpoch(self, stream, self._running, self._epoch, self._step)

    @in_own_modes
    def _deliver(self, running: "_IteratedEpoch") -> Any:
        """The next batch of an epoch; None: it has ended."""
        self._refuse_unusable()
        if running.number != self._running:
            raise RuntimeError(
                "this epoch was abandoned when another one was begun; a loader delivers one "
                "epoch at a time"
            )
        handled = sys.exception()
        try:
            found = next(running.stream, None)
            self._refuse_other_samples(found is None)
        except BaseException as error:
            self._is_abandoned = True
            if isinstance(error, PictureError):
                self._bad.name_failed(error, self._backend)
                raise cast(Exception, error.__cause__) from None
            raise
        finally:
            # the next epoch is made by a new one, which no failure has touched
            if sys.exception() is not handled:
                _close(self._backends, self._process)
        if found is None:
            self._move_to(self._epoch + 1, 0, "")
            return None

        self._step, self._is_abandoned = found.planned.step + 1, True
        self._digest = self._backend.digests[self._step]
        self._backend.digests.pop(self._step - 1, None)
        running.step = self._step
        return found.targets[ITEM]

    def _refuse_other_samples(self, has_ended: bool) -> None:
        """Refuses to go on where the samples before were others than those of the state."""
        # before the first batch of a resume; the state's digest is that of the step before
        if not self._step or self._is_abandoned:
            return
        if self._backend.digests.get(self._step) != self._digest:
            raise ConfigError(
                f"cannot resume: the first {self._step} batches of epoch {self._epoch} have other "
                "samples now than when the state was saved; let the data set's order depend on "
                "random, numpy.random or torch, which each epoch seeds, or on set_epoch(), and not "
                "on the time, or go on with the next epoch by set_epoch()"
            )

    @property
    def _backend(self) -> IteratedBackend:
        return self._backends[0]

    def _move_to(self, epoch: int, step: int, digest: str) -> None:
        self._epoch, self._step, self._digest = epoch, step, digest
        self._is_abandoned = False

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to, from 0."""
        return self._epoch

    @check_arguments(epoch=(0, LARGEST_EPOCH))
    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next `iter()`, as of a `Loader`."""
        if self._is_abandoned or epoch != self._epoch:
            self._running += 1
            self._move_to(epoch, 0, "")

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch of this rank is, and what tells the samples before it from others.
        Each rank has a state of its own.
        """
        return {
            "epoch": self._epoch,
            "batches": self._step,
            "samples_digest": self._digest,
            "iterated": dict(self._about),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was called: the iterator is run from the start of the epoch,
        and what was delivered before is not decoded.

        Raises:
            ConfigError: what decides the order or the pixels has changed since, and the text names
                it; or `state` is not such a loader's.
        """
        try:
            epoch, step = map(operator.index, (state["epoch"], state["batches"]))
            digest, then = str(state["samples_digest"]), dict(state["iterated"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"not the state of a loader of an IterableDataset ({type(error).__name__}: "
                f"{error}); pass on what state_dict() gave"
            ) from None
        changed = [name for name, value in self._about.items() if then.get(name) != value]
        if changed:
            raise ConfigError(
                f"cannot resume, since these have changed: {', '.join(changed)}; restore them, or "
                f"go on with the start of this state's epoch by set_epoch({epoch})"
            )
        if not 0 <= epoch <= LARGEST_EPOCH or step < 0:
            raise ConfigError(f"epoch {epoch} with {step} batches is no state of a loader")
        self._running += 1
        self._move_to(epoch, step, digest)

    def __len__(self) -> int:
        """Batches of one epoch on this rank, as PyTorch computes them from the data set's length.

        Raises:
            TypeError: the data set has none.
        """
        return self._length()

    @property
    def dataset(self) -> Any:
        """The data set whose samples it loads."""
        return self._dataset

    @property
    def batch_size(self) -> int:
        """Samples of a full batch on this rank."""
        return self.plan.batch_size

    @property
    def bad_samples(self) -> list[tuple[int, str, str]]:
        """(place in its worker, path, reason) of each picture that has failed so far."""
        return self._bad.failures

    def explain(self) -> str:
        """How images are decoded and why."""
        return self._explanation

    def close(self) -> None:
        """Ends the backend's threads and processes. The loader cannot be used afterwards."""
        self._closed = True
        _close(self._backends, self._process)

    def _refuse_unusable(self) -> None:
        if self._closed:
            raise RuntimeError("the loader is closed; build a new one")
        if self._process != os.getpid():
            raise RuntimeError(
                f"this loader belongs to process {self._process}, and this is {os.getpid()}; "
                "build a loader in the process that uses it"
            )

    def __repr__(self) -> str:
        where = "closed" if self._closed else f"next is step {self._step} of epoch {self._epoch}"
        return (
            f"IterableLoader({type(self.dataset).__name__}: batches of {self.batch_size}, "
            f"{self._backend_name}; {where})"
        )

    def __reduce__(self) -> Any:
        raise TypeError(
            "a loader cannot be pickled or copied, because it has threads and processes"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _close(backends: list[IteratedBackend], process: int) -> None:
    if process == os.getpid():
        with delayed_signals():
            while backends:
                backends.pop().close()


class _IteratedEpoch(Iterator[Any]):
    """The batches that are left of one epoch."""

    def __init__(
        self, loader: IterableLoader, stream: Iterator[Any], number: int, epoch: int, step: int
    ):
        self._loader, self.stream, self.number = loader, stream, number
        self.epoch, self.step, self._ended = epoch, step, False

    def __next__(self) -> Any:
        batch = None if self._ended else self._loader._deliver(self)
        if batch is None:
            self._ended = True
            raise StopIteration
        return batch
