"""What is under way for a loader: its backend, and the targets and shards of the batches that are
being made.

`Work.use` calls a function of the loader as soon as no other thread is in one. Within it, the
loader starts a stream of batches: `backend_at` gives the backend, `start_targets` starts the
targets and the fetching of each planned batch that the backend takes, and `start` connects them.
`next` returns one batch after the other: the targets are kept by epoch and step until the backend
has made the images. `stop` drops the batches under way, `end_backend` also ends the backend, and
`close` ends everything. A process that was forked must not use what it inherited, and never
destroys it (`_keep_in_child`). `with_order_ahead` has the order of the next epoch made meanwhile.
"""

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from dali_pipes.backends.backend import Backend, Decoded, Description
from dali_pipes.loader.fetching import Fetcher
from dali_pipes.loader.targets import PendingTargets, TargetReader
from dali_pipes.plan.plan import Plan, PlannedBatch
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.interrupts import delayed_signals
from dali_pipes.system.traces import span

P = ParamSpec("P")
R = TypeVar("R")


class Work:
    """Makes batches of the plan in order, from a given place on. One thread at a time uses it.

    It does not know its loader, so that a loader that is dropped ends at once, by its reference
    count.

    Args:
        build_backend: makes the backend for images of the size of one epoch, given what an earlier
            one has learned (`Backend.learned`).

    Attributes:
        closed: whether it is to end.
    """

    def __init__(
        self,
        transform: Transform,
        build_backend: Callable[[Transform, Any], Backend],
        targets: TargetReader,
        fetcher: Fetcher | None,
    ):
        self._transform, self._build_backend, self.targets, self.fetcher = (
            transform,
            build_backend,
            targets,
            fetcher,
        )
        self._size = transform.size_at(0)
        self._backend: Backend | None = build_backend(transform.at(0), None)
        self._description = self._backend.describe()
        self._learned: Any = None
        self.backend_name = repr(self._backend)

        self._stream: Iterator[Decoded] | None = None
        # the targets of the batches that the backend was given, by epoch and step
        self._pending: dict[tuple[int, int], PendingTargets] = {}
        self._plan_errors: list[Exception] = []

        self.closed = False
        # an RLock knows which thread has it: see `_is_in_use_here`
        self._lock, self._process = threading.RLock(), os.getpid()
        _all.add(self)

    def use(self, what: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls a function as soon as no other thread is in one.

        Args:
            what: the method of the loader that was called, for the text of an error.

        Raises:
            RuntimeError: this thread is inside `next()` already, or this is a forked process.
        """
        self._refuse_other_process()
        if self._is_in_use_here:
            raise RuntimeError(
                f"{what} was called inside next(), by a batch_transform or a signal's "
                "handler; call it when next() has returned"
            )

        # The lock itself and not a context manager written in Python, whose exit an interrupt may
        # prevent: the lock would stay taken.
        with self._lock:
            try:
                return function(*args, **kwargs)
            finally:
                # by a close() inside this call, or by another thread, which waits for the lock
                if self.closed:
                    self._end()

    @property
    def _is_in_use_here(self) -> bool:
        """Whether this thread has the lock. Only the lock knows: an interrupt could come between
        taking it and noting that.
        """
        # threading.Condition asks a lock in the same way
        owned: bool = self._lock._is_owned()  # type: ignore[attr-defined]
        return owned

    def backend_at(self, epoch: int) -> Backend:
        """The backend that makes images of this epoch's size; a new one, if the size has changed or
        the last backend was ended.
        """
        size = self._transform.size_at(epoch)
        if self._backend is None or size != self._size:
            self.end_backend()
            transform = self._transform.at(epoch)
            self._backend, self._size = self._build_backend(transform, self._learned), size
        return self._backend

    @property
    def description(self) -> Description:
        """Of the backend, or of the last one; also for another thread, at any time."""
        if backend := self._backend:
            self._description = backend.describe()
        return self._description

    @property
    def learned(self) -> str:
        """The text of what the backend has found out (`Backend.learned`); "": nothing."""
        return str((self._backend.learned if self._backend else self._learned) or "")

    def go_on_with(self, learned: str, epoch: int) -> None:
        """Has a backend made that begins with what an earlier one had learned."""
        if learned and self.learned not in ("", learned):
            self.end_backend()
            self._learned = learned
            self.backend_at(epoch)

    @property
    def is_streaming(self) -> bool:
        """Whether batches are under way, so that `next` has one."""
        return self._stream is not None

    def start_targets(self, planned: Iterator[PlannedBatch]) -> Iterator[PlannedBatch]:
        """Yields the same planned batches. As the backend takes one, its targets are started, and
        the shards of its window are fetched.
        """
        # new ones for each stream: an earlier one that is still being read must not add to them
        self._pending, self._plan_errors = {}, []
        return _start_targets(planned, self.targets, self.fetcher, self._pending, self._plan_errors)

    def start(
        self, backend: Backend, planned: Iterator[PlannedBatch], epoch: int, step: int
    ) -> None:
        """Starts to make these batches.

        Args:
            planned: from this epoch and step on, out of `start_targets`.
        """
        # an interrupt now would leave threads and processes behind that nobody ends
        with delayed_signals():
            self._stream = backend.stream(planned)
        if self.fetcher:  # after the backend has forked its workers: these are threads
            self.fetcher.start(epoch, step)

    def next(self, epoch: int, step: int) -> tuple[Decoded, PendingTargets]:
        """The batch of this step and its targets."""
        assert self._stream is not None
        if self.fetcher:
            self.fetcher.deliver(epoch, step)

        try:
            decoded = next(self._stream)
        except StopIteration:
            # _start_targets ends the stream at an error of the plan, and keeps the error
            raise (self._plan_errors or [RuntimeError("the backend ended before the plan did")])[
                0
            ] from None

        made = decoded.planned
        if (made.epoch, made.step) != (epoch, step):
            raise RuntimeError(
                f"the backend made epoch {made.epoch}, step {made.step} in place of epoch "
                f"{epoch}, step {step}"
            )
        pending = self._pending.pop((epoch, step))
        pending.wait()  # here, so that a mask that cannot be read is a fault of this batch's files
        return decoded, pending

    def stop(self) -> None:
        """Drops the batches that are under way and keeps the backend; any batch may come next."""
        self._stream = None
        for pending in list(self._pending.values()):
            pending.cancel()
        self._pending = {}

    def end_backend(self) -> None:
        """Ends the backend with all batches that are under way. The next batch is made by a new
        backend, which no failure has touched.
        """
        with delayed_signals():  # a backend that was ended in part could not be ended again
            self.stop()
            backend, self._backend = self._backend, None
            if backend:
                self._learned, self._description = backend.learned, backend.describe()
                backend.close()

    def close(self) -> None:
        """Ends everything, after the `next()` of another thread. If this thread is inside `next()`,
        everything ends when that returns.
        """
        self.closed = True
        if self._process == os.getpid() and not self._is_in_use_here:
            with self._lock:
                self._end()

    def close_unowned(self, wait_s: float) -> None:
        """Ends everything when its loader is gone or the program ends.

        Args:
            wait_s: how long to wait for another thread's `next()`, at most.
        """
        self.closed = True
        # that thread ends it itself if `next()` returns later: see `use`
        if (
            self._process != os.getpid()
            or self._is_in_use_here
            or not self._lock.acquire(timeout=wait_s)
        ):
            return

        try:
            self._end()
        finally:
            self._lock.release()

    def _end(self) -> None:
        with delayed_signals():
            self.end_backend()
            self.targets.close()
            if self.fetcher:
                self.fetcher.close()

    def _refuse_other_process(self) -> None:
        if self._process != os.getpid():
            raise RuntimeError(
                f"this loader belongs to process {self._process}, and this is "
                f"{os.getpid()}, forked from it without its threads; "
                "build a loader in the process that uses it"
            )


def _start_targets(
    planned: Iterator[PlannedBatch],
    targets: TargetReader,
    fetcher: Fetcher | None,
    pending: dict[tuple[int, int], PendingTargets],
    errors: list[Exception],
) -> Iterator[PlannedBatch]:
    """Yields the same planned batches, and puts the targets of each into `pending`.

    An error of the plan ends the batches and goes into `errors`. If it were raised here, it would
    meet libraries that are half-way through their own start: a DataLoader's constructor would leave
    its workers behind.
    """
    try:
        while True:
            with span("plan"):
                batch = next(planned, None)
            if batch is None:
                return

            if fetcher:
                fetcher.plan(batch.epoch, batch.step)
            with span("targets"):
                pending[batch.epoch, batch.step] = targets.start(batch)
            yield batch
    except Exception as error:
        errors.append(error)


def with_order_ahead(planned: Iterator[PlannedBatch], plan: Plan) -> Iterator[PlannedBatch]:
    """Yields the same planned batches. At the first one of each epoch, a thread begins to make the
    order of the next epoch, whose first batch then does not wait for it.
    """
    epoch = -1
    for batch in planned:
        if batch.epoch != epoch:
            epoch = batch.epoch
            thread = threading.Thread(target=_make_order, args=(plan, epoch + 1), name="next order")
            # a thread that is interrupted while it starts may wait forever, and the program's end
            # waits for it
            with delayed_signals():
                thread.start()
        yield batch


def _make_order(plan: Plan, epoch: int) -> None:
    # an error comes once more where the order is used, and is raised there
    with suppress(Exception):
        plan.make_order(epoch)


def _keep_in_child() -> None:
    """Keeps a forked child from destroying what it has inherited, since destructors would wait for
    threads that only the parent has.
    """
    # one reference more, which nobody gives back
    for work in list(_all):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(work))


_all: "weakref.WeakSet[Work]" = weakref.WeakSet()
os.register_at_fork(after_in_child=_keep_in_child)
