"""What is under way for a loader: its backend, and the targets and shards of the batches that are
being made.
"""

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import NamedTuple, ParamSpec, Self, TypeVar

import torch

from dali_pipes.backends.base import Backend, DecodedBatch, Delivery
from dali_pipes.loader.fetching import Fetcher
from dali_pipes.loader.targets import Begun, TargetReader
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.interrupts import delayed_signals
from dali_pipes.system.traces import span

P = ParamSpec("P")
R = TypeVar("R")


class Description(NamedTuple):
    """What a backend says of itself; `gpu` is its `own_gpu`."""

    name: str
    engine_mix: str | None
    explanation: str
    gpu: torch.device | None

    @classmethod
    def of(cls, backend: Backend) -> Self:
        return cls(repr(backend), backend.engine_mix, backend.explain(), backend.own_gpu)


class Work:
    """Makes batches of the plan in order, from a given place on. One thread at a time uses it.

    It does not know its loader, so that one that is dropped ends at once, by its reference count.

    Args:
        build_backend: makes the backend for the images of one epoch's size.

    Attributes:
        closed: whether it is to end.
    """

    def __init__(
        self,
        transform: Transform,
        build_backend: Callable[[Transform], Backend],
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
        self._backend: Backend | None = build_backend(transform.at(0))
        self._descriptions = {self._size: Description.of(self._backend)}
        self._stream: Iterator[Delivery] | None = None
        # by epoch and step the targets of what the backend was given
        self._begun: dict[tuple[int, int], Begun] = {}
        self._plan_errors: list[Exception] = []
        self.closed = False
        self._lock, self._process = threading.RLock(), os.getpid()
        _all.add(self)

    def use(self, what: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls a function as soon as no other thread uses it.

        Args:
            what: the method of the loader that was called.

        Raises:
            RuntimeError: the same thread is in `next()` still, or the process is another one.
        """
        self._refuse_other_process()
        if self._is_in_use_here:
            raise RuntimeError(
                f"{what} was called inside next(), by a batch_transform or a signal's "
                "handler; call it when next() has returned"
            )
        # The lock itself, and no context manager of Python: an interrupt at the beginning of its
        # exit would leave the lock taken.
        with self._lock:
            try:
                return function(*args, **kwargs)
            finally:
                if self.closed:
                    self._end()

    @property
    def _is_in_use_here(self) -> bool:
        """Whether this thread has the lock. The lock alone knows: an interrupt can come between it
        and any note of it.
        """
        owned: bool = self._lock._is_owned()  # type: ignore[attr-defined]  # as threading.Condition asks it
        return owned

    def describe(self, epoch: int) -> "Description":
        """Of the backend for this epoch's size. It is asked for at any time, so the one that is in
        use is left alone.
        """
        size = self._transform.size_at(epoch)
        if size not in self._descriptions:
            backend = self._build_backend(self._transform.at(epoch))
            self._descriptions[size] = Description.of(backend)
            backend.close()
        return self._descriptions[size]

    def backend_at(self, epoch: int) -> Backend:
        """The one that makes images of this epoch's size: another one than before, if that has
        changed or the last has ended.
        """
        size = self._transform.size_at(epoch)
        if self._backend is None or size != self._size:
            self.end_backend()
            self._backend, self._size = self._build_backend(self._transform.at(epoch)), size
        return self._backend

    def next(
        self, planned: Callable[[], Iterator[PlannedBatch]], epoch: int, step: int
    ) -> tuple[DecodedBatch, Begun | None]:
        """The batch of this step, with its targets, unless the backend takes nothing of the plan,
        as DALI's own reader.

        Args:
            planned: gives the planned batches from this step on, if they are not under way.
        """
        if self._stream is None:
            # first: where it makes another one, it drops what was begun
            backend = self.backend_at(epoch)
            self._begun, self._plan_errors = {}, []
            given = _begin(planned(), self.targets, self.fetcher, self._begun, self._plan_errors)
            # a thread or a process that is started while its owner is given up would be nobody's
            with delayed_signals():
                self._stream = backend.stream(given)
            if self.fetcher:  # only now, since workers are forked
                self.fetcher.start(epoch, step)
        elif self.fetcher:
            self.fetcher.deliver(epoch, step)

        try:
            batch, decoded = next(self._stream)
        except StopIteration:
            raise (self._plan_errors or [RuntimeError("the backend ended before the plan did")])[
                0
            ] from None
        if batch is None:
            return decoded, None
        if (batch.epoch, batch.step) != (epoch, step):
            raise RuntimeError(
                f"the backend made epoch {batch.epoch}, step {batch.step} in place of epoch "
                f"{epoch}, step {step}"
            )
        begun = self._begun.pop((epoch, step))
        begun.wait()
        return decoded, begun

    def stop(self) -> None:
        """Leaves what is under way; the next batch may be another one."""
        self._stream = None
        for each in list(self._begun.values()):
            each.cancel()
        self._begun = {}

    def end_backend(self) -> None:
        """Ends the backend with all that it has in hand. The next batch is made by another one,
        which no failure has touched.
        """
        with delayed_signals():  # what is ended only in part cannot be ended again
            self.stop()
            backend, self._backend = self._backend, None
            if backend:
                backend.close()

    def close(self) -> None:
        """Ends everything, after another thread's `next()`; if this thread is inside `next()`, then
        at its end.
        """
        self.closed = True
        if self._process == os.getpid() and not self._is_in_use_here:
            with self._lock:
                self._end()

    def close_unowned(self, wait_s: float) -> None:
        """The same where its loader is gone or the program ends.

        Args:
            wait_s: how long another thread's `next()` is waited for at most.
        """
        self.closed = True
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


def _begin(
    planned: Iterator[PlannedBatch],
    targets: TargetReader,
    fetcher: Fetcher | None,
    begun: dict[tuple[int, int], Begun],
    errors: list[Exception],
) -> Iterator[PlannedBatch]:
    """The same batches; the targets of those that were taken are in `begun`.

    An error of the plan ends them and is in `errors`. Raised here, it would meet libraries half-way
    through their own beginning: a DataLoader's constructor would leave its workers behind, and
    TensorFlow would pass on the text at best.
    """
    try:
        while True:
            with span("plan"):
                each = next(planned, None)
            if each is None:
                return
            if fetcher:
                fetcher.plan(each.epoch, each.step)
            with span("targets"):
                begun[each.epoch, each.step] = targets.begin(each)
            yield each
    except Exception as error:
        errors.append(error)


def _keep_in_child() -> None:
    """Nothing that a forked child has inherited is destroyed there: destructors would wait for
    threads that only the parent has.
    """
    for each in list(_all):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


_all: "weakref.WeakSet[Work]" = weakref.WeakSet()
os.register_at_fork(after_in_child=_keep_in_child)
