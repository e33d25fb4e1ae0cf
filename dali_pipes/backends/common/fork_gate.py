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
process is forked. A program that a process starts (`subprocess`) has no such locks and doesn't
wait.
"""

import os
import threading
from collections import Counter
from types import TracebackType


class ForkGate:
    """A context manager for any number of threads at once, and for none while a fork is made.

    A thread that is inside may enter again: the fork waits for it then, so it must not wait for the
    fork.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # how often each thread has entered, by its identifier
        self._inside: Counter[int] = Counter()
        self._forks = 0  # those that wait for the threads inside

    def __enter__(self) -> None:
        thread = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: not self._forks or thread in self._inside)
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
        self._forks += 1
        # a signal's handler that forks may have interrupted this very thread inside
        self._changed.wait_for(lambda: self._inside.keys() <= {threading.get_ident()})

    def open(self) -> None:
        """Lets threads in again."""
        self._forks -= 1
        self._changed.notify_all()
        self._changed.release()

    def reset_in_child(self) -> None:
        """Forgets the parent's threads, which a child doesn't have."""
        self._changed = threading.Condition()
        self._forks = 0


GATE = ForkGate()
os.register_at_fork(
    before=GATE.close, after_in_parent=GATE.open, after_in_child=GATE.reset_in_child
)
