"""Both ends of the protocol with a module that runs in a separate process: lines of JSON."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Set
from types import TracebackType
from typing import IO, Any, Self

import psutil

from dali_pipes.errors import BadSampleError, DaliPipesError

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")


class ArmError(DaliPipesError):
    """An arm that failed; there is no figure for it. `wrote` is the process's whole stderr, if the process ended."""

    def __init__(self, message: str, wrote: str = ""):
        super().__init__(message)
        self.wrote = wrote


class FreshProcess:
    """Runs `python -m module`: sends it a job, receives its answers, and ends it with the trial.

    Args:
        what: the subject of its errors.
        cpus: the cores it may use; the thread counts of numerical libraries follow.
        gpu: index of the visible GPU that it sees; None: all.
        patience_s: a process that gives no answer for this long is killed.
    """

    def __init__(
        self, module: str, job: dict[str, Any], what: str, cpus: Set[int], gpu: str | None = None, patience_s: float = 600
    ):
        self._what, self._patience_s = what, patience_s
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed in __exit__
        environment = {**os.environ, **dict.fromkeys(THREADS, str(len(cpus))), "OMP_WAIT_POLICY": "PASSIVE"}
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        command = [sys.executable, "-P", "-m", module]  # -P: the working directory does not shadow modules
        with _on(cpus):
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment
            )
        self._say(json.dumps(job))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def go(self) -> None:
        self._say("go")

    def answer(self) -> dict[str, Any]:
        """Waits for the next answer.

        Raises:
            ArmError: the process failed; the text says why, or what it last wrote.
        """
        watchdog = threading.Timer(self._patience_s, self._process.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            line = self._process.stdout.readline()  # type: ignore[union-attr]
            late = watchdog.finished.is_set()
        finally:
            watchdog.cancel()
        if line:
            answer: dict[str, Any] = json.loads(line)
            if "error" in answer:
                raise ArmError(f"{self._what}: {answer['error']}")
            return answer
        if late:
            raise ArmError(f"{self._what}: gave no answer for {self._patience_s:.0f} s and was ended")
        status = self._process.wait()  # its last stderr output comes after the end of its answers
        self._errors.seek(0)
        wrote = self._errors.read().strip()
        last = "\n  ".join(wrote.splitlines()[-5:])
        raise ArmError(f"{self._what}: its process ended with status {status}; the last it wrote:\n  {last}", wrote)

    def sleep(self) -> None:
        """Suspends it and all its descendants, so that they use no CPU."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            process.send_signal(number)
            for each in process.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.send_signal(number)

    def _say(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended; answer() says why
            self._process.stdin.write(line + "\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """The process ends itself and its workers when its stdin ends; one that does not is killed."""
        self.wake()
        try:
            self._process.communicate(timeout=20)  # keeps reading: an unread answer would keep it from ending
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            stream.close()  # type: ignore[union-attr]


class Controller:
    """The process that gave this one its job. A thread reads its commands, so that work continues meanwhile.

    Attributes:
        stop: whether the trial is to end.
    """

    def __init__(self, orders: IO[bytes], answers: IO[str]):
        self.stop = threading.Event()
        self._said: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._orders, self._answers = orders, answers
        self.job = json.loads(orders.readline())
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while self._orders.readline():
            self._said.put(True)
        self.stop.set()
        self._said.put(False)

    @property
    def has_spoken(self) -> bool:
        """Whether `go` would answer at once."""
        return not self._said.empty()

    def go(self) -> bool:
        """Waits for "go"; False if the trial is to end."""
        said = self._said.get()
        if not said:
            self._said.put(False)
        return said

    def send(self, answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=self._answers, flush=True)


def serve(run: Callable[[Controller], None]) -> None:
    """The main function of a module that FreshProcess runs."""
    # unbuffered: a buffer's lock, held by the thread that reads, would keep the process from ending
    with open(os.dup(0), "rb", buffering=0) as orders, open(os.dup(1), "w") as answers, open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # forked workers close their stdin, and would wait for the thread that reads it
        os.dup2(2, 1)  # keeps output of libraries from between the answers
        controller = Controller(orders, answers)
        try:
            run(controller)
        except BadSampleError as error:
            _, path, why = error.bad_samples[0]
            controller.send({"error": f"{path}: {why}; fix or remove it (dali-pipes scan verify=full lists all such files)"})
        except DaliPipesError as error:
            controller.send({"error": str(error)})


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """SIGTERM ends the program as Ctrl-C does, so that suspended processes are resumed and ended, and none is left behind."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _on(cpus: Set[int]) -> Iterator[None]:
    """Processes started within the block inherit these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
