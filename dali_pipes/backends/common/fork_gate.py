"""Keeps a process from being forked in the middle of PyTorch's C++ code.

    with GATE:
        torch.add(...)

C++ code that runs without the interpreter lock takes locks of its own. A process that is forked
while another thread holds one gets a copy that nobody unlocks, and waits for it forever. Such locks
can't be reset from Python. PyTorch takes one in each call of a TorchScript function and of each
function which that one calls (torch/csrc/jit/runtime/profiling_graph_executor_impl.cpp,
getPlanFor), and one in the first call of each operator, which chooses its kernel
(aten/src/ATen/native/DispatchStub.cpp).

So `os.fork` waits until no thread is inside the gate, and threads wait in front of it until the
process is forked. A thread that is inside may go in again, or fork. A program that a process starts
(`subprocess`) has no such locks and doesn't wait.
"""

import os
import threading
from collections import Counter
from types import TracebackType


class ForkGate:
    """A context manager for any number of threads at once, and for none while a fork is made."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # how often each thread is inside, by its identifier
        self._inside: Counter[int] = Counter()
        self._forking: list[int] = []  # the threads that fork, or wait for others to come out

    def __enter__(self) -> None:
        thread = threading.get_ident()
        with self._changed:
            # a fork waits for a thread that is inside already, which so must not wait for the fork
            self._changed.wait_for(lambda: thread in self._inside or not self._forking)
            self._inside[thread] += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        thread = threading.get_ident()
        with self._changed:
            self._inside[thread] -= 1
            if not self._inside[thread]:
                del self._inside[thread]
            self._changed.notify_all()

    def close(self) -> None:
        """Waits until no other thread is inside, and lets none in until `open`."""
        self._changed.acquire()
        self._forking.append(threading.get_ident())
        self._changed.notify_all()
        # Threads that fork themselves are in no C++ code: a function inside or a signal's handler,
        # which may have interrupted this very thread, has called os.fork.
        self._changed.wait_for(lambda: self._inside.keys() <= set(self._forking))

    def open(self) -> None:
        """Lets threads in again."""
        self._forking.remove(threading.get_ident())
        self._changed.notify_all()
        self._changed.release()

    def reset_in_child(self) -> None:
        """Forgets the parent's threads, which a child doesn't have."""
        self._changed = threading.Condition()
        self._forking = []
        thread = threading.get_ident()
        for other in self._inside.keys() - {thread}:
            del self._inside[other]


GATE = ForkGate()
os.register_at_fork(
    before=GATE.close, after_in_parent=GATE.open, after_in_child=GATE.reset_in_child
)
