"""The loop of a user's program that is examined: it trains on the batches that the examination asks
for, until the report is sent and the process ends.
"""

import contextlib
import sys
import threading
import traceback
from collections.abc import Callable
from functools import wraps
from io import StringIO
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn

from dali_pipes.tools.diagnosis.watching.answers import Answers
from dali_pipes.tools.diagnosis.watching.frames import place_of, program_frame
from dali_pipes.tools.diagnosis.watching.kept_files import KeptFiles
from dali_pipes.tools.diagnosis.watching.loops import Loop
from dali_pipes.tools.diagnosis.watching.own_work import OwnWork

MEASURING_S = 60.0  # after these, nothing further is begun
# batches in a row without an optimizer's step; more of them are no accumulated gradients
_UNTRAINED = 1000


class ExaminedLoop:
    """The loop that is measured.

    Args:
        job: see `watched.main`.
        every_step: whether each of its steps makes an iterator.
        partners: iterators of other DataLoaders that the same line takes a batch of, as `zip` does;
            they begin again when they end.

    Attributes:
        asked_at: the code and the instruction where the loop asks for its batches.
        untrained: batches in a row without an optimizer's step.
    """

    def __init__(
        self,
        job: dict[str, Any],
        answers: Answers,
        own_work: OwnWork,
        files: KeptFiles,
        *,
        loader: Any,
        loop: Loop,
        every_step: bool,
        partners: frozenset[int],
    ):
        self._job, self._answers, self._own_work = job, answers, own_work
        self._files = files
        self.loader, self._loop = loader, loop
        self.every_step, self.partners = every_step, partners

        self._examination: Any = None
        self._program: Any = None
        self._step_calls: Any = None
        self._thread = 0

        self.asked_at: tuple[CodeType, int] | None = None
        self._steps = self.untrained = 0
        # whether the loop was left in the last step; None: there was no step yet
        self._began_anew: bool | None = None
        self._rounds = list[Any]()  # complete rounds of the measurement

        self._is_finishing = self._is_reported = False
        self._ended = ""  # why the measurement ended early

    def start(self, built_at: tuple[Path, int] | None, step: Callable[[Any], Any] | None) -> None:
        """Starts the examination; `next_batch` goes on with it.

        Args:
            built_at: the file and line that built the loader, if known.
            step: what the loop does with a batch, if that is known.
        """
        from dali_pipes.tools.diagnosis.examination.budget import ProbeBudget
        from dali_pipes.tools.diagnosis.examination.examination import examination

        job = self._job
        self._program = _program_of(self.loader, built_at, lambda: not self._own_work.runs)
        budget = ProbeBudget(job["rounds"], job["seconds"], cold=job["cold"], limit_s=MEASURING_S)
        announce = lambda text: self._answers.send({"doing": text})  # noqa: E731
        self._examination = examination(self._program, budget, announce, step, self._rounds)

        self._thread = threading.get_ident()
        self._step_calls = getattr(self._program, "step_calls", None)
        if self._step_calls:
            self._step_calls.start()
        _let_schedules_end()

    @property
    def has_rounds(self) -> bool:
        """Whether enough has been measured for a verdict."""
        return bool(self._rounds)

    @property
    def step_may_fail(self) -> bool:
        """Whether what fails now fails at a batch that is not the program's own."""
        return self._program is not None and self._program.step_may_fail

    def begin_anew(self) -> None:
        """Called when the program iterates the loader again."""
        if self._began_anew is not None and not self.every_step:
            self._began_anew = True

    def next_batch(self) -> Any:
        # a compiled step of TensorFlow's is counted only once, so its loops seem to train no more
        if self.untrained >= _UNTRAINED and "tensorflow" not in type(self.loader).__module__:
            why = (
                f"{_UNTRAINED:,} batches were taken in a row without an optimizer's step, as "
                "by list(loader)"
            )
            self._answers.fail(
                f"{self._loop.place}: {why}; let the loop train on each batch as it comes"
            )

        refuse_compiled_loops(self._answers)
        # when the program leaves this loop, its frame is past this place already (`enclosing_loop`)
        asking = program_frame(sys._getframe(2))
        self.asked_at = (asking.f_code, asking.f_lasti) if asking else None

        batch = self._ask(lambda: self._examination.send(self._began_anew))
        self._began_anew = False
        # the step that has just ended is counted, and before the first batch there was none
        if self._step_calls and self._steps:
            self._step_calls.end_step()
        self._steps += 1
        self.untrained += 1
        return batch

    def _ask(self, examination: Callable[[], Any]) -> Any:
        """Returns the batch that the examination yields; if it has come to its end, the program
        ends as well.
        """
        with self._own_work:
            try:
                return examination()
            except StopIteration as end:
                self._finish(end.value)
            except Exception:
                self._answers.fail("its loop could not be measured", traceback.format_exc())

    def end_early(self, why: str, is_late: bool = False) -> NoReturn:
        """Ends the program with what has been measured of its loop.

        Args:
            is_late: whether nothing further is to be tried, not even what needs no training.
        """
        from dali_pipes.tools.diagnosis.measuring.training import LoopEnded

        place, after = self._loop.place, f"after {self._steps} measured batches"
        if not self._rounds:
            self._answers.fail(
                f"{place}: {why} {after}, before one round of the measurement was done; "
                "let the loop go on for longer, or take "
                "less with seconds=0.2 rounds=1"
            )

        self._ended = f"{why} {after}"
        self._ask(lambda: self._examination.throw(LoopEnded(is_late)))
        # only if the examination has asked for one more batch
        self._answers.fail("its loop could not be measured to the end")

    def at_limit(self, frame: FrameType | None) -> None:
        """Reports what has been measured, since the time is over; or else where the program is."""
        if self._is_reported:  # only `_explain` runs still
            self._answers.end(0)
        if self._is_finishing:
            return

        # without a round, or in another thread than the loop's, nothing can be ended from here
        if not self._rounds or threading.get_ident() != self._thread:
            self._answers.fail(
                f"one round of the measurement was not done; it was at {place_of(frame)}, "
                f"{self._steps} batches after its loop was found"
            )

        if not self._own_work.runs:
            self.end_early("the time was over", is_late=True)
        from dali_pipes.tools.diagnosis.measuring.training import LoopEnded

        self._ended = f"the time was over after {self._steps} measured batches"
        raise LoopEnded(is_late=True)  # in the examination, which this has interrupted

    def _finish(self, diagnosis: Any) -> NoReturn:
        from rich.console import Console

        from dali_pipes.tools.diagnosis.report import print_diagnosis, to_dict

        # from here on the limit must not end the program before the report is sent
        self._is_finishing = True
        text = StringIO()
        console = Console(file=text, width=self._job["width"])
        if self._ended:
            text.write(f"\n{self._loop.place}: {self._ended}; the report is about these\n")
        if self.partners:
            others = f"{len(self.partners)} other DataLoader{'s' * (len(self.partners) > 1)}"
            text.write(
                f"\nThe loop also takes batches from {others}: waiting for these counts as part of "
                "its step.\n"
            )

        text.write(self._files.describe())
        print_diagnosis(diagnosis, self._program.workers, console)

        about_loop: dict[str, Any] = {
            "loop": self._loop.place,
            "new_iterator_every_step": self.every_step,
            "other_loaders": len(self.partners),
            "ended_early": self._ended,
            "files_kept": [str(path) for path in self._files.kept],
            "files_made": [str(path) for path in self._files.made],
        }
        self._answers.send(
            {
                "diagnosis": to_dict(diagnosis, self._program.workers) | about_loop,
                "text": text.getvalue(),
            }
        )
        self._is_reported = True
        # after the report, since a large data set is read for a while
        if "tensorflow" not in type(self.loader).__module__:
            self._answers.send({"doing": "seeing what from_torch does with its loader"})
            self._answers.send({"explained": self._explain()})
        self._answers.end(0)

    def _explain(self) -> str:
        """Returns what `from_torch` does with the loader, as `explain` prints it."""
        from rich.console import Console

        from dali_pipes.system.child import explain as in_one_line
        from dali_pipes.tools.explain import explain_on

        text = StringIO()
        try:
            explain_on(Console(file=text, width=self._job["width"]), self.loader)
        except Exception as error:
            text.write(f"{in_one_line(error)}: a fault of dali_pipes; please report it\n")
        return f"\nWhat from_torch does with its loader:\n{text.getvalue()}"


def refuse_compiled_loops(answers: Answers) -> None:
    """Ends the program if it takes batches inside a tf.function, which calls Python only once."""
    tensorflow = sys.modules.get("tensorflow")
    if (
        tensorflow is not None
        and hasattr(tensorflow, "executing_eagerly")
        and not tensorflow.executing_eagerly()
    ):
        answers.fail(
            f"{place_of(sys._getframe(2))}: an iterator of tf.data is used inside a "
            "tf.function, where its "
            "batches are not seen; in the program, call dali_pipes.diagnose(dataset, step)"
        )


def _let_schedules_end() -> None:
    """Lets a schedule of so many steps, such as OneCycleLR's, be stepped further: it raises an
    error at the steps that the measurement takes beyond them.
    """
    from torch.optim.lr_scheduler import LRScheduler

    original = LRScheduler.step

    @wraps(original)
    def step(*arguments: Any, **options: Any) -> None:
        with contextlib.suppress(ValueError):
            original(*arguments, **options)

    LRScheduler.step = step  # type: ignore[method-assign]


def _program_of(loader: Any, built_at: tuple[Path, int] | None, is_step: Callable[[], bool]) -> Any:
    """Returns the parts of a program that has such a loader, which was built at that line.

    The calls that are counted are those made while `is_step()`.
    """
    if "tensorflow" in type(loader).__module__:
        from dali_pipes.tools.diagnosis.programs.tfdata import TfDataProgram

        return TfDataProgram(loader)

    from torch.utils.data import DataLoader

    from dali_pipes.tools.diagnosis.programs.dataloader import DataLoaderProgram
    from dali_pipes.tools.diagnosis.programs.loader import LoaderProgram
    from dali_pipes.tools.diagnosis.programs.step_calls import StepCalls

    is_torch = isinstance(loader, DataLoader)
    program: Any = (
        DataLoaderProgram(loader, built_at=built_at) if is_torch else LoaderProgram(loader)
    )
    program.step_calls = StepCalls(is_step)
    return program
