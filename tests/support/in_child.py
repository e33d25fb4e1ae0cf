"""A process for what may end the process that does it."""

import faulthandler
import multiprocessing

SECONDS = 250  # for one call, a fresh process's imports among them


class Child:
    """Calls functions in one process of its own, and in another after a call that ended it: only
    that call fails.
    """

    def __init__(self):
        self._process = None

    def __call__(self, function, *arguments):
        if self._process is None:
            self._start()
        self._pipe.send((function, arguments))
        try:
            if self._pipe.poll(SECONDS):
                return self._pipe.recv()
            how = f"gave no answer within {SECONDS} s"
        except EOFError:
            self._process.join()
            how = f"ended with status {self._process.exitcode}"
        self.close()
        raise AssertionError(f"the process that did {function.__name__}{arguments} {how}")

    def _start(self):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_answer, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def close(self):
        if self._process:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None


def _answer(pipe):
    faulthandler.enable()  # a crash says on stderr where all threads were
    while True:
        function, arguments = pipe.recv()
        pipe.send(function(*arguments))
