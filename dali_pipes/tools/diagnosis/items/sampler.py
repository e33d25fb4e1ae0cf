"""Samples the stack of the thread that makes items, and adds up its time.

`make_sampler` returns the sampler that this thread can have: by a signal, or from another thread.
"""

import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from dali_pipes.tools.diagnosis.items.maker import ROOTS, ItemMaker

TICK_S = 0.001
# code, offset of the instruction, id of the object whose step it is (0: none)
Entry = tuple[CodeType, int, int]


class StackSampler(ABC):
    """Adds up wall, CPU (of all threads) and run-queue time by stack. Each sample is weighted with
    the time since the last one.

    A signal handler runs between two bytecodes of the main thread. A C call that holds the
    interpreter lock delays the handler until the call has ended; the frame is then still at the
    line that calls, so the whole call is counted there. A sampling thread has to take that lock,
    and gets it where a C call releases it. The Python code before that call is then counted for the
    call: on items of 130 µs a Python loop of 15 % got 0 %, and a PIL call of 15 % got 20 to 40 %.
    The signal was at most 3 points off, also beside two busy processes. So the thread is only for
    callers outside the main thread.

    The signal has a fault of its own: an operator in C (a @ b) is no call, so its time goes to the
    next call, loop or function entry, which may be a line, or a function's return, later.
    """

    def __init__(self) -> None:
        # key: whether a batch is collated, and the stack below; value: wall, CPU and queued seconds
        self.stacks: dict[tuple[bool, tuple[Entry, ...]], list[float]] = defaultdict(
            lambda: [0.0, 0.0, 0.0]
        )
        self.globals: dict[CodeType, dict[str, Any]] = {}
        self.objects: dict[int, Any] = {}
        self._is_adding = False
        self._thread = threading.get_native_id()
        self._last = self._clocks()

    def _clocks(self) -> tuple[float, float, float]:
        # schedstat: nanoseconds on a core, nanoseconds in the run queue, time slices
        try:
            queued = (
                int(Path(f"/proc/self/task/{self._thread}/schedstat").read_text().split()[1]) / 1e9
            )
        except (OSError, ValueError, IndexError):
            queued = 0.0
        return time.perf_counter(), time.process_time(), queued

    def add(self, frame: FrameType | None) -> None:
        # On a busy machine a sample takes longer than a tick, and the next signal interrupts it,
        # again and again. The next sample then has that time.
        if self._is_adding:
            return
        self._is_adding = True
        try:
            self._add(frame)
        finally:
            self._is_adding = False

    def _add(self, frame: FrameType | None) -> None:
        now, stack = self._clocks(), list[Entry]()
        while frame is not None and frame.f_code not in ROOTS:
            code, owner = frame.f_code, 0
            if code.co_filename == __file__:
                # this handler was itself interrupted: its time counts for what it interrupted
                stack.clear()
                frame = frame.f_back
                continue

            # which transform it is, can only be read off the object
            if code.co_name in ("__call__", "forward") and code.co_argcount:
                object_ = frame.f_locals.get(code.co_varnames[0])
                owner = id(object_)
                self.objects[owner] = object_
            self.globals[code] = frame.f_globals
            stack.append((code, frame.f_lasti, owner))
            frame = frame.f_back

        if frame is not None:
            sums = self.stacks[
                frame.f_code is ItemMaker._collate_items.__code__, tuple(reversed(stack))
            ]
            for place in range(3):
                sums[place] += now[place] - self._last[place]
        self._last = now

    @abstractmethod
    def __enter__(self) -> "StackSampler":
        """Begins to sample."""

    @abstractmethod
    def __exit__(self, *error: object) -> None:
        """Ends it, and puts back what it changed."""


class SignalSampler(StackSampler):
    def __enter__(self) -> "StackSampler":
        self._before = signal.signal(signal.SIGALRM, lambda number, frame: self.add(frame))
        # reads go on in C libraries that do not expect EINTR
        signal.siginterrupt(signal.SIGALRM, False)
        self._timer, self._began = (
            signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S),
            time.monotonic(),
        )
        return self

    def __exit__(self, *error: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

        # a timer of the program's own goes on where it would be now; 0 would switch it off
        left, interval = self._timer
        if left:
            signal.setitimer(
                signal.ITIMER_REAL, max(left - (time.monotonic() - self._began), 1e-6), interval
            )


class ThreadSampler(StackSampler):
    def __enter__(self) -> "StackSampler":
        self._interval, watched = sys.getswitchinterval(), threading.get_ident()
        # Python's own 5 ms would be longer than the time between two samples
        sys.setswitchinterval(5e-5)
        self._over = threading.Event()

        def sample() -> None:
            while not self._over.wait(TICK_S):
                self.add(sys._current_frames().get(watched))

        self._sampling = threading.Thread(target=sample, daemon=True)
        self._sampling.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._sampling.join()
        sys.setswitchinterval(self._interval)


def make_sampler() -> StackSampler:
    # Python runs signal handlers in the main thread alone
    main = threading.current_thread() is threading.main_thread()
    # a handler that was not installed from Python (None) could not be put back
    return (
        SignalSampler()
        if main and signal.getsignal(signal.SIGALRM) is not None
        else ThreadSampler()
    )
