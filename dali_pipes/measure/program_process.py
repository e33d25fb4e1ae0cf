"""The process of a user's program that is measured: it runs the program once, until its training
begins, and is then an arm.

    with MeasuredProgram(function, job, cpus, flags) as process:
        for answer in process.answers(limit): ...       # what it says until it has reached training
        ...                                              # Trials measures it: `begin_trials`

Nothing of the program runs after that.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from dali_pipes.measure.worker_process import MeasuringProcess
from dali_pipes.system.program.answers import LIMIT_SIGNAL

TRIAL_JOB = "trial.json"  # in the folder that both processes know
_GRACE_S = 5.0  # time to answer for a program that has reached its limit


class MeasuredProgram(MeasuringProcess):
    """The process of the program.

    Args:
        function: "module:function" of dali_pipes that runs the program.
        job: what it is given to do; `folder` is one that both processes use.
        flags: options of python.
    """

    def __init__(self, function: str, job: Mapping[str, Any], cpus: Set[int], flags: Sequence[str]):
        self._folder, self._is_arm = Path(job["folder"]), False
        super().__init__(function, {**job}, "arm yours", cpus, flags=flags, errors=sys.__stderr__)

    def answers(self, limit: float) -> Iterator[dict[str, Any]]:
        """Yields what the program's process says, until it says that it is `complete` or `failed`.

        Args:
            limit: seconds until its training begins, which `seconds` says; after that it is asked
                where it is.

        Raises:
            ArmError: the process has ended without a word.
        """
        deadline = time.monotonic() + limit

        while True:
            answer = self.answer_within(deadline - time.monotonic())
            # at the limit the program says where it is, if it still can
            if answer is None:
                os.kill(self.pid, LIMIT_SIGNAL)
                answer = self.answer_within(_GRACE_S) or {"failed": None}
            yield answer
            if "complete" in answer or "failed" in answer:
                return
            # it has reached its training in time; reading its data set then has no limit (ten days)
            if "seconds" in answer:
                deadline += 10 * 86_400

    def begin_trials(self, job: Mapping[str, Any]) -> None:
        """Lets the process run the trials of an arm, as `run_trial` does."""
        (self._folder / TRIAL_JOB).write_text(json.dumps(job))
        self._is_arm = True
        self.go()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the process with all its descendants, also those in sessions of their own."""
        # listed before its end: orphans have another parent
        descendants = list[psutil.Process]()
        with contextlib.suppress(psutil.NoSuchProcess):
            descendants = psutil.Process(self.pid).children(recursive=True)
        # a program that is still under way does at Ctrl-C what it likes, such as saving
        if not self._is_arm:
            self.kill()
        super().__exit__(kind, error, trace)
        for descendant in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                descendant.kill()
