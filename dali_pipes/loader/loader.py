"""The Loader that `build_loader` returns: the way of a batch, and what all backends share, such as
epochs and resume.

    plan → targets started → backend → joined → mixed

_Epoch.__next__         asks for the next batch of an epoch
Loader._deliver         refuses abandoned epochs, and moves the loader's position on
Loader._next_batch      the batch from the images that the backend made: labels and targets are
                        joined, and batch_transform changes it
Loader._decode          those images; where that fails, the bad samples are found (bad_samples.py),
                        and the batch is made again with others in their place
Loader._start_stream    sends the plan through the backend, from the first batch of an epoch or of a
                        resume on

`Work` (work.py) owns the backend and its threads, and lets one thread in at a time. The loader
itself keeps only its position.
"""

import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

from dali_pipes.backends.backend import Backend, Decoded
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.loader.bad_samples import BadSamples
from dali_pipes.loader.batch import Batch, BatchTransform
from dali_pipes.loader.fetching import Fetcher
from dali_pipes.loader.mistakes import RefusesAttributes
from dali_pipes.loader.mixing import transform_batch
from dali_pipes.loader.resume import make_state, read_state, warn_of_other_pixels
from dali_pipes.loader.statistics import LoaderStats, StatsRecorder
from dali_pipes.loader.targets import PendingTargets, TargetReader
from dali_pipes.loader.work import Work, with_order_ahead
from dali_pipes.options import check_arguments
from dali_pipes.plan.draws import LARGEST_EPOCH, BatchDraws
from dali_pipes.plan.plan import Plan
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.gpu_memory import gpu_memory, release_unused
from dali_pipes.system.interrupts import interrupt_behind
from dali_pipes.system.modes import in_own_modes
from dali_pipes.system.traces import span

_END_S = 10.0  # how long the end of the program waits for a next() in another thread, at most


class Position(NamedTuple):
    """Where a loader is.

    Attributes:
        epoch, step: of the next batch.
        is_abandoned: whether the next `iter()` leaves out the rest of this epoch.
    """

    epoch: int
    step: int
    is_abandoned: bool


class Loader(RefusesAttributes):
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
        build_backend: Callable[[Transform, Any], Backend],
        bad: BadSamples,
        batch_transform: BatchTransform | None = None,
    ):
        self.plan = plan
        self._transform, self._batch_transform = transform, batch_transform
        self._bad = bad
        fetcher = Fetcher(plan) if plan.manifest.copied else None
        self._work = Work(transform, build_backend, TargetReader(plan, transform), fetcher)
        # a method of Work, which does not know the loader: its own would keep the loader alive
        weakref.finalize(self, self._work.close_unowned, _END_S)

        # It is one value, so that an interrupt or another thread finds the position before a batch
        # or after it, and nothing between.
        self._position = Position(0, 0, False)
        # number of the one iterator that may deliver; the iterator itself would hold the loader
        self._running = 0
        self._recorder = StatsRecorder(fetcher)

    def __iter__(self) -> Iterator[Batch]:
        return self._work.use("iter()", self._begin_epoch)

    def _begin_epoch(self) -> Iterator[Batch]:
        self._refuse_closed()
        epoch, step, is_abandoned = self._position
        if is_abandoned:
            # where this rank has had its last batch, the stream goes on with the next epoch itself
            if step < len(self.plan):
                self._work.stop()
            self._move_to(epoch + 1, 0)

        self._running += 1
        return _Epoch(self, self._running, *self._position[:2])

    def _deliver(self, running: "_Epoch") -> Batch | None:
        """The next batch of an epoch; None when the epoch has ended."""
        self._refuse_closed()
        if running.number != self._running:
            raise RuntimeError(
                "this epoch was abandoned when another one was begun; a loader delivers one "
                "epoch at a time"
            )

        epoch, step, was_abandoned = running.epoch, running.step, self._position.is_abandoned
        if step == len(self.plan):
            # the last global batch was too small for all ranks, and this one has no part of it
            if self._position.epoch == epoch:
                self._move_to(epoch + 1, 0)
            return None

        handled = sys.exception()  # what the caller is handling did not cause what fails below
        try:
            batch = self._next_batch(epoch, step)
            if step + 1 == self.plan.steps:
                self._move_to(epoch + 1, 0)
            else:
                self._position = Position(epoch, step + 1, True)
            running.step = step + 1

        except BaseException as error:
            # the backend may have stopped half-way: the next batch is made by a new one
            self._work.end_backend()
            interrupt = interrupt_behind(error, handled)
            # an error ends the epoch, also in its first batch, which would fail again forever; an
            # interrupt leaves the position, and the same batch comes next
            is_error = isinstance(error, Exception) and not interrupt
            self._position = Position(epoch, step, is_error or was_abandoned)
            if interrupt:
                raise interrupt from error
            raise
        return batch

    @in_own_modes
    def _next_batch(self, epoch: int, step: int) -> Batch:
        with self._recorder.waiting(), span("wait"):
            decoded, pending = self._decode(epoch, step)

        with span("targets"):
            batch = self._work.targets.join(decoded, pending)
        if self._batch_transform is None:
            return batch

        draws = BatchDraws(self.plan.seed, epoch, self.plan.batch_offset(step))
        with span("mixing"):
            return transform_batch(self._batch_transform, batch, draws)

    def _decode(self, epoch: int, step: int) -> tuple[Decoded, PendingTargets]:
        """The decoded batch and its targets; bad samples are found and substituted until one
        succeeds.
        """
        handled = sys.exception()
        while True:
            try:
                if not self._work.is_streaming:
                    self._start_stream(epoch, step)
                return self._work.next(epoch, step)
            except Exception as error:
                self._work.end_backend()
                # neither says anything about a file
                if isinstance(error, ConfigError) or interrupt_behind(error, handled):
                    raise
                self._bad.handle_failure(error, epoch, step, self._work.backend_at(epoch))

    def _start_stream(self, epoch: int, step: int) -> None:
        """Sends the plan through the backend, from this step on. The backend takes planned batches
        ahead of those that it delivers; as it takes one, its targets are started.
        """
        # first, since to build a new backend drops the targets that were started
        backend = self._work.backend_at(epoch)
        planned = self._bad.planned_from(epoch, step)
        planned = with_order_ahead(planned, self.plan)
        planned = self._work.start_targets(planned)
        self._work.start(backend, planned, epoch, step)

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to, from 0."""
        return self._position.epoch

    @check_arguments(epoch=(0, LARGEST_EPOCH))
    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next `iter()`. It begins at its start; after a resume into this
        very epoch it begins where the resume goes on.
        """
        self._work.use("set_epoch()", self._choose_epoch, epoch)

    def _choose_epoch(self, epoch: int) -> None:
        if self._position.is_abandoned or epoch != self._position.epoch:
            self._go_to(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch is: its epoch, the samples delivered in it by all ranks, and what
        must not change before a resume.

        All ranks have the same state after the same step. A resume goes on in the middle of an
        epoch, also of one that was left with `break`; the loader that was left with `break` goes on
        with the next epoch.
        """
        epoch, step, _ = self._position
        mix = self._work.description.pixels
        state = make_state(self.plan, self._transform, self._batch_transform, epoch, step, mix)
        return state | {"loader": learned} if (learned := self._work.learned) else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state_dict` was called, with any backend, and any number of ranks that
        have the same global batch size.

        Raises:
            ConfigError: what decides the order or the pixels has changed since, and the text names
                it; or `state` is not a loader's.
        """
        epoch, step = read_state(state, self.plan, self._transform, self._batch_transform)
        self._work.use("load_state_dict()", self._resume, epoch, step, str(state.get("loader", "")))
        warn_of_other_pixels(state, self._work.description.pixels)

    def _resume(self, epoch: int, step: int, learned: str) -> None:
        self._go_to(epoch, step)
        self._work.go_on_with(learned, epoch)

    def _go_to(self, epoch: int, step: int) -> None:
        """Lets the next `iter()` begin here; iterators from before may deliver no more."""
        self._work.stop()
        self._running += 1
        self._move_to(epoch, step)

    def _move_to(self, epoch: int, step: int) -> None:
        # a stream has images of one size only, and ends where the plan changes it
        if self._transform.size_at(epoch) != self._transform.size_at(self._position.epoch):
            self._work.stop()
        self._position = Position(epoch, step, False)

    @property
    def batches_left(self) -> int:
        """Batches of this epoch that are still to come on this rank."""
        return len(self.plan) - self._position.step

    def __len__(self) -> int:
        """Batches of one epoch on this rank."""
        return len(self.plan)

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

    @property
    def bad_samples(self) -> list[tuple[int, str, str]]:
        """(id, path, reason) of each image that has failed so far. In a shard the path is
        SHARD/MEMBER.
        """
        return self._bad.failures

    def stats(self) -> LoaderStats:
        """What the loader has waited for and fetched since it was built."""
        return self._recorder.stats()

    @property
    def decodes(self) -> str:
        """How images will be decoded and why, in one line."""
        return self._work.description.text

    def explain(self) -> str:
        """The text of `decodes`, and what the machine decides of the order; with DALI on a GPU also
        who holds the GPU's memory now.
        """
        backend, order = self._work.description, self.plan.sampling.explain()
        memory = f"in GiB, {gpu_memory(backend.gpu)}" if backend.gpu else ""
        return "; ".join(filter(None, (backend.text, order, memory)))

    @check_arguments()
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

    def _refuse_closed(self) -> None:
        if self._work.closed:
            raise RuntimeError("the loader is closed; build a new one")

    def __reduce__(self) -> Any:
        raise TypeError(
            "a loader cannot be pickled or copied, because it has threads; build one in the "
            "process that uses it"
        )

    def __repr__(self) -> str:
        manifest, plan = self.plan.manifest, self.plan
        who = f" of rank {plan.rank.index} of {plan.rank.count}" if plan.rank.count > 1 else ""
        batches = f"{len(self)} batches of {plan.batch_size} an epoch{who}"
        epoch, step, _ = self._position
        where = "closed" if self._work.closed else f"next is step {step} of epoch {epoch}"

        return (
            f"Loader({str(manifest.root)!r}: {len(manifest):,} images, {batches}, "
            f"{self._work.backend_name}; {where})"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
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
