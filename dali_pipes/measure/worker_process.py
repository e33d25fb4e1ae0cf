"""Processes that measure: each on a given set of cores, and ended with the program."""

import contextlib
import signal
import sys
from collections.abc import Iterator, Set
from typing import Any

from dali_pipes.system.child import Child, ChildError
from dali_pipes.system.cpus import start_on_cpus

# how many threads numerical libraries start, by their environment variables
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")


class ArmError(ChildError):
    """An arm that failed; there is no figure for it."""


class MeasuringProcess(Child):
    """A `Child` that may use a part of the machine.

    Args:
        what: the subject of its errors, such as "arm dali".
        cpus: the cores it may use; numerical libraries start as many threads.
        gpu: the GPU that it sees, as in CUDA_VISIBLE_DEVICES; None: all.
        limit_s: seconds without an answer after which it is treated as hanging.
    """

    def __init__(
        self,
        function: str,
        job: dict[str, Any],
        what: str,
        cpus: Set[int],
        gpu: str | None = None,
        limit_s: float = 600,
    ):
        self._what = what
        # PASSIVE: OpenMP's idle threads sleep; spinning, they would count as CPU time of the arm
        environment = {**dict.fromkeys(THREADS, str(len(cpus))), "OMP_WAIT_POLICY": "PASSIVE"}
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu

        # the process inherits the cores of the thread that starts it
        with start_on_cpus(cpus):
            super().__init__(function, job, limit_s, environment)

    def answer(self) -> Any:
        """Returns the next answer, as `Child.answer`; raises an ArmError that names the arm."""
        try:
            return super().answer()
        except ChildError as error:
            raise ArmError(f"{self._what}: {error}", error.output) from None


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
    """Lets SIGTERM and SIGHUP end the program as Ctrl-C does, inside the `with` block.

    So suspended processes are resumed and ended, and none is left behind. SIGHUP stays ignored if
    it was, as under nohup.
    """
    ending = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    ]
    before = {end: signal.signal(end, lambda number, _: sys.exit(128 + number)) for end in ending}

    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
