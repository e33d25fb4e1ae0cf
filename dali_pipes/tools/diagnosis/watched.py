"""In the process of a user's program: runs it as it is until its training loop has gone round once,
then examines that loop.

main runs the program, with hooks on DataLoader, optimizers and the loops of libraries
-> Watch.next_batch: counts the batches of each loop; takes over the one in which an optimizer steps
-> Watch._next_examined: from here on the loop trains on what the examination yields
-> Watch._finish: the report goes to the parent process as JSON, and the process ends

A program that fails, ends, leaves its loop or runs out of time ends in `fail` or `end_early`.
Nothing heavy is imported before the program has done so itself, since a program may set
OMP_NUM_THREADS before it imports torch.
"""

import contextlib
import faulthandler
import importlib.abc
import json
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from io import StringIO
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import IO, Any, NoReturn

from dali_pipes.backends.common.dataloader import end_workers
from dali_pipes.tools.diagnosis import libraries
from dali_pipes.tools.diagnosis.frames import (
    breaking_frame,
    enclosing_loop,
    own_traceback,
    place_of,
    program_frame,
)

# SIGUSR1 and SIGUSR2 are left to the program, such as for SLURM's requeueing
LIMIT_SIGNAL = signal.SIGRTMIN + 5
MEASURING_S = 60.0  # after these, nothing further is begun
_REFUSES_LARGER = "the loop does not take batches of another size, as was tried"
# batches in a row without an optimizer's step; more of them are no accumulated gradients
_UNTRAINED = 1000


@dataclass(slots=True)
class Loop:
    """All iterations over one loader from one place of the program.

    Attributes:
        place: the file and line that takes its batches.
        began: seconds from the program's start to its first batch.
        waited_s: seconds inside next().
        taken, stepped: batches of its last iterator, and whether an optimizer has stepped since the
            last of them.
        single: iterators in a row that were left after one batch on which an optimizer has stepped.
    """

    place: str
    began: float
    batches: int = 0
    waited_s: float = 0.0
    optimizer_steps: int = 0
    taken: int = 0
    stepped: bool = False
    single: int = 0

    def __str__(self) -> str:
        return f"{self.place}: {self.batches} batches, {self.waited_s:.1f} s of waiting for them"


@dataclass(frozen=True, slots=True)
class ExaminedLoop:
    """The loop that is measured.

    Attributes:
        every_step: whether each of its steps makes an iterator.
        partners: iterators of other DataLoaders that the same line takes a batch of, as `zip` does;
            they begin again when they end.
    """

    loader: Any
    loop: Loop
    every_step: bool
    partners: frozenset[int]


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module once it has been imported."""

    def __init__(self, hooks: dict[str, Callable[[ModuleType], None]]):
        self._hooks = hooks

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        hook = self._hooks.pop(name, None)
        if hook is None:
            return None

        others = (each for each in sys.meta_path if each is not self)
        spec = next(
            (found for other in others if (found := other.find_spec(name, path, target))), None
        )

        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_then_hook(module: ModuleType) -> None:
                execute(module)
                hook(module)

            spec.loader.exec_module = execute_then_hook  # type: ignore[method-assign]
        return spec


class WatchedIterator:
    """What iter(DataLoader) returns to the program."""

    def __init__(self, watch: "Watch", loader: Any, iterator: Any):
        self._watch, self.loader, self.iterator = watch, loader, iterator
        self.loop: Loop | None = None
        self.taken, self.steps, self.is_exhausted = 0, 0, False
        self.taken_at = 0  # number of its last batch, counted over all loaders

    def __iter__(self) -> "WatchedIterator":
        return self

    def __next__(self) -> Any:
        return self._watch.next_batch(self)

    def __len__(self) -> int:
        return len(self.loader if self.iterator is None else self.iterator)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.iterator, name)

    def __del__(self) -> None:
        self._watch.leave(self)


class Watch:
    """The loops of the program, and the examination of the one that trains.

    Args:
        job: see `main`.
        answers: where the parent process reads lines of JSON.
    """

    def __init__(self, job: dict[str, Any], answers: IO[str]):
        self._job, self._answers, self._pid = job, answers, os.getpid()
        self._start = job["start"]
        self._loops: dict[tuple[int, str], Loop] = {}
        self._last_loop: Loop | None = None
        self._built_at: dict[int, tuple[Path, int]] = {}  # key: id of a loader

        self._alive: weakref.WeakSet[WatchedIterator] = weakref.WeakSet()
        # those of which a batch was taken since an optimizer stepped
        self._since_step: weakref.WeakSet[WatchedIterator] = weakref.WeakSet()

        self._batches = 0
        self._inside = False
        self._steps_outside = 0

        self._examined: ExaminedLoop | None = None
        self._examination: Any = None
        self._program: Any = None
        self._step_calls: Any = None
        self._thread = 0

        self._steps = self._untrained = 0
        # whether the loop was left in the last step; None: there was no step yet
        self._began_anew: bool | None = None
        self._rounds = list[Any]()  # complete rounds of the measurement

        self._asked_at: tuple[CodeType, int] | None = None  # where the loop asks for its batches
        self._tracing: tuple[FrameType, Any] | None = None
        self._is_finishing = False
        self._ended = ""  # why the measurement ended early
        self.unwritten = 0

    # What replaces PyTorch's own

    def hooks(self) -> dict[str, Callable[[ModuleType], None]]:
        # each is changed right after its import, before the program can use it
        return libraries.hooks(lambda: self.is_examining) | {
            "torch.utils.data.dataloader": self._watch_loaders,
            "dali_pipes.loader.loader": lambda module: self._watch_iterations(module.Loader),
            "dali_pipes.adapters.from_torch.convert": lambda module: self._watch_iterations(
                module.ConvertedLoader
            ),
            "torch.optim.optimizer": lambda module: module.register_optimizer_step_post_hook(
                self._count_step
            ),
            "torch.distributed.distributed_c10d": self._refuse_process_groups,
            "torch.multiprocessing.spawn": self._refuse_spawning,
            "tensorflow.python.data.ops.dataset_ops": self._watch_datasets,
            "keras.src.optimizers.base_optimizer": self._count_keras_steps,
            "keras.src.backend.tensorflow.trainer": self._examine_keras_fit,
        }

    def _watch_loaders(self, module: ModuleType) -> None:
        watch, loaders = self, module.DataLoader

        def watched(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
            @wraps(original)
            def __iter__(self: Any) -> Any:
                return watch.begin(self, original)

            return __iter__

        def of_subclass(cls: Any, /, **options: Any) -> None:
            super(loaders, cls).__init_subclass__(**options)
            if "__iter__" in vars(cls):  # such as a loader whose workers outlive an epoch
                cls.__iter__ = watched(cls.__iter__)

        initialize = loaders.__init__

        @wraps(initialize)
        def __init__(self: Any, *arguments: Any, **options: Any) -> None:
            initialize(self, *arguments, **options)
            frame = program_frame(sys._getframe(1))
            # what the examination builds is none of the program's
            if frame is not None and not watch._inside:
                watch._built_at[id(self)] = (
                    Path(frame.f_code.co_filename).absolute(),
                    frame.f_lineno,
                )

        loaders.__init__ = __init__
        loaders.__iter__ = watched(loaders.__iter__)
        loaders.__init_subclass__ = classmethod(of_subclass)

    def _watch_iterations(self, loaders: Any) -> None:
        """Watches a class of dali_pipes' loaders."""
        original = loaders.__iter__

        @wraps(original)
        def __iter__(loader: Any) -> Any:
            return self.begin(loader, original)

        loaders.__iter__ = __iter__

    def _watch_datasets(self, module: Any) -> None:
        """Watches the program's own loops over tf.data.

        TensorFlow's and Keras's loops are left alone: they hand their iterators to compiled
        functions.
        """
        original = module.DatasetV2.__iter__

        @wraps(original)
        def __iter__(dataset: Any) -> Any:
            asking = sys._getframe(1).f_code.co_filename
            is_own = "/site-packages/tensorflow/" in asking or "/site-packages/keras/" in asking
            return original(dataset) if is_own else self.begin(dataset, original)

        module.DatasetV2.__iter__ = __iter__

    def _count_keras_steps(self, module: Any) -> None:
        """Counts the steps of Keras's optimizers.

        In a compiled function a step is counted once, when it is traced in its first step; that is
        enough.
        """
        original = module.BaseOptimizer.apply

        @wraps(original)
        def apply(optimizer: Any, *arguments: Any, **options: Any) -> Any:
            applied = original(optimizer, *arguments, **options)
            self._count_step(optimizer, arguments, options)
            return applied

        module.BaseOptimizer.apply = apply

    def _examine_keras_fit(self, module: Any) -> None:
        """Examines model.fit(dataset): its loop is compiled with the iterator, so train_on_batch
        stands for its step.
        """
        original = module.TensorFlowTrainer.fit

        @wraps(original)
        def fit(model: Any, x: Any = None, *arguments: Any, **options: Any) -> Any:
            import tensorflow

            if os.getpid() != self._pid:
                return original(model, x, *arguments, **options)

            place = place_of(sys._getframe(1))
            if not isinstance(x, tensorflow.data.Dataset):
                kind = f"{type(x).__module__.split('.')[0]}.{type(x).__qualname__}"
                self.fail(
                    f"{place}: model.fit was given a {kind}; of fit, only data sets of tf.data "
                    "are watched"
                )
            return self._drive_fit(place, x, lambda batch: model.train_on_batch(*batch))

        module.TensorFlowTrainer.fit = fit

    def _drive_fit(self, place: str, dataset: Any, step: Callable[[Any], Any]) -> NoReturn:
        self._take_over(
            WatchedIterator(self, dataset, None), Loop(place, time.time() - self._start), step
        )
        while True:
            step(self._next_examined())

    def _refuse_process_groups(self, module: ModuleType) -> None:
        original = module.init_process_group

        @wraps(original)
        def init_process_group(*arguments: Any, **options: Any) -> Any:
            # world_size is the fourth argument; torchrun gives it in the environment
            world = options.get("world_size", arguments[3] if len(arguments) > 3 else -1)
            if max(int(world), int(os.environ.get("WORLD_SIZE", 1))) > 1:
                self.fail(
                    "the program trains in several processes (init_process_group); diagnose "
                    "runs one: give it one device"
                )
            return original(*arguments, **options)

        places: list[Any] = [module, sys.modules["torch.distributed"]]
        for place in places:  # the package has its own name for it, if it was imported before
            if hasattr(place, "init_process_group"):
                place.init_process_group = init_process_group

    def _refuse_spawning(self, module: ModuleType) -> None:
        def refuse(*arguments: Any, **options: Any) -> NoReturn:
            self.fail(
                "the program trains in processes of its own (torch.multiprocessing.spawn), where "
                "its loop is not seen; give diagnose a program that trains in its main process on "
                "one device"
            )

        module.spawn = module.start_processes = refuse  # type: ignore[attr-defined]

    # What the program does

    @property
    def is_examining(self) -> bool:
        return self._examined is not None

    @property
    def has_rounds(self) -> bool:
        """Whether enough has been measured for a verdict."""
        return bool(self._rounds)

    @property
    def step_may_fail(self) -> bool:
        """Whether what fails now fails at a batch that is not the program's own."""
        return self._program is not None and self._program.step_may_fail

    def begin(self, loader: Any, original: Callable[[Any], Any]) -> Any:
        """Returns what iter(loader) gives the program."""
        # what the examination does itself, and what forked worker processes do, is left alone
        if self._inside or os.getpid() != self._pid:
            return original(loader)

        if self._examined and loader is self._examined.loader:
            self._trace_no_more()
            if self._began_anew is not None and not self._examined.every_step:
                self._began_anew = True
            return WatchedIterator(self, loader, None)

        self._inside = True
        try:
            return WatchedIterator(self, loader, original(loader))
        finally:
            self._inside = False

    def next_batch(self, iterator: WatchedIterator) -> Any:
        """Returns the next batch of an iterator over a loader: its own, or the examination's."""
        if self._inside or os.getpid() != self._pid:
            return next(iterator.iterator)
        if self._examined and iterator.loader is self._examined.loader:
            return self._next_examined()

        loop = iterator.loop or self._loop_of(iterator)
        self._check_eager()
        # a loop is taken over once an optimizer has stepped on a batch of this iterator, or on the
        # single batch of each of some iterators before it
        if (
            self._examined is None
            and (loop.single >= 2 or iterator.steps)
            and self._is_dearest(iterator)
        ):
            self._take_over(iterator, loop)
            return self._next_examined()

        begin, self._inside = time.monotonic(), True
        try:
            batch = self._next_of(iterator)
        except StopIteration:
            iterator.is_exhausted = True
            raise
        finally:
            self._inside = False
            loop.waited_s += time.monotonic() - begin
        loop.batches += 1
        loop.taken += 1
        loop.stepped = False
        iterator.taken += 1
        self._batches += 1
        iterator.taken_at = self._batches
        self._last_loop = loop
        self._since_step.add(iterator)
        return batch

    def _check_eager(self) -> None:
        tensorflow = sys.modules.get("tensorflow")
        if (
            tensorflow is not None
            and hasattr(tensorflow, "executing_eagerly")
            and not tensorflow.executing_eagerly()
        ):
            self.fail(
                f"{place_of(sys._getframe(2))}: an iterator of tf.data is used inside a "
                "tf.function, where its "
                "batches are not seen; in the program, call dali_pipes.diagnose(dataset, step)"
            )

    def _next_of(self, iterator: WatchedIterator) -> Any:
        """Returns the next batch of the program's own iterator.

        A partner of the loader that is examined begins again, or it would end the loop of both.
        """
        try:
            return next(iterator.iterator)
        except StopIteration:
            if not self._examined or id(iterator) not in self._examined.partners:
                raise
        iterator.iterator = iter(iterator.loader)
        return next(iterator.iterator)

    def _is_dearest(self, iterator: WatchedIterator) -> bool:
        """Whether training waits for none of the loaders that the same line iterates longer than
        for this one.
        """
        loops = [each.loop for each in (iterator, *self._partners(iterator)) if each.loop]
        return max(loops, key=lambda loop: loop.waited_s) is iterator.loop

    def _partners(self, iterator: WatchedIterator) -> list[WatchedIterator]:
        """Returns the iterators of which the same line has taken a batch since it took the last one
        of this.
        """
        return [
            each
            for each in self._alive
            if each.loop
            and iterator.loop
            and each.loop is not iterator.loop
            and each.loop.place == iterator.loop.place
            and not each.is_exhausted
            and each.taken_at > iterator.taken_at
        ]

    def leave(self, iterator: WatchedIterator) -> None:
        """Called when the program has let go of an iterator: ends the examination, or lets the next
        epoch go on.
        """
        if (
            self._inside
            or os.getpid() != self._pid
            or not self._examined
            or iterator.loader is not self._examined.loader
        ):
            return

        # a loop that makes an iterator for each step lets go of one in each step
        frame = (
            None if iterator.iterator is None and self._examined.every_step else breaking_frame()
        )
        if frame is None:
            return

        around = enclosing_loop(frame, self._asked_at)
        if self._rounds or around is None:
            self.end_early("the loop was left by the program itself")
        else:
            self._trace_until_left(*around)

    def _trace_until_left(self, frame: FrameType, first: int, last: int) -> None:
        """Stops the program when it leaves an outer loop, such as that over epochs: nothing of what
        follows may run.
        """

        def trace(traced: FrameType, event: str, argument: Any) -> Any:
            if event == "return" or not first <= traced.f_lasti <= last:
                self._trace_no_more()
                self.end_early(
                    "the loop was left by the program itself, and the one around it is over"
                )
            return trace

        self._tracing = (frame, sys.gettrace())
        frame.f_trace = trace
        # a frame's own f_trace is called only while the thread has some trace function
        sys.settrace(lambda *arguments: None)

    def _trace_no_more(self) -> None:
        if self._tracing:
            (frame, before), self._tracing = self._tracing, None
            frame.f_trace = None
            sys.settrace(before)

    def _count_step(self, optimizer: Any, arguments: Any, options: Any) -> None:
        if self._inside or os.getpid() != self._pid:
            return
        self._untrained = 0
        for iterator in self._since_step:
            iterator.steps += not iterator.is_exhausted
        self._since_step.clear()

        if self._last_loop is None:
            self._steps_outside += 1
        else:
            self._last_loop.optimizer_steps += 1
            self._last_loop.stepped = True

    def _loop_of(self, iterator: WatchedIterator) -> Loop:
        place = place_of(sys._getframe(2))
        key = (id(iterator.loader), place)
        loop = self._loops.get(key)
        if loop is None:
            loop = self._loops[key] = Loop(place, time.time() - self._start)

        loop.single = loop.single + 1 if loop.taken == 1 and loop.stepped else 0
        loop.taken = 0
        iterator.loop = loop
        self._alive.add(iterator)
        return loop

    # The examination

    def _take_over(
        self, iterator: WatchedIterator, loop: Loop, step: Callable[[Any], Any] | None = None
    ) -> None:
        """Takes over the program's loop: from here on it trains on what the examination asks for.

        Args:
            step: what the loop does with a batch, if that is known.
        """
        self._inside = True
        try:
            self._examined = ExaminedLoop(
                iterator.loader,
                loop,
                iterator.taken == 0,
                frozenset(map(id, self._partners(iterator))),
            )
            self.send(
                {
                    "loop": loop.place,
                    "seconds": time.time() - self._start,
                    "before": self._describe_other_loops(loop),
                }
            )
            # its own iterator ends, with its workers: the examination starts others
            inner = iterator.iterator
            if hasattr(inner, "_shutdown_workers"):
                end_workers(inner)
                iterator.loader._iterator = None

            from dali_pipes.tools.diagnosis.examine import ProbeBudget, examination

            job = self._job
            self._program = _program_of(
                iterator.loader, self._built_at.get(id(iterator.loader)), lambda: not self._inside
            )

            budget = ProbeBudget(
                job["rounds"], job["seconds"], cold=job["cold"], limit_s=MEASURING_S
            )
            announce = lambda text: self.send({"doing": text})  # noqa: E731
            self._examination = examination(self._program, budget, announce, step, self._rounds)

            self._thread = threading.get_ident()
            self._step_calls = getattr(self._program, "step_calls", None)
            if self._step_calls:
                self._step_calls.start()
            self._keep_checkpoints()
            self._let_schedules_end()
        finally:
            self._inside = False

    def _next_examined(self) -> Any:
        examined = self._examined
        assert examined is not None
        if self._untrained >= _UNTRAINED and "tensorflow" not in type(examined.loader).__module__:
            why = (
                f"{_UNTRAINED:,} batches were taken in a row without an optimizer's step, as "
                "by list(loader)"
            )
            self.fail(f"{examined.loop.place}: {why}; let the loop train on each batch as it comes")

        self._check_eager()
        asking = program_frame(sys._getframe(2))
        self._asked_at = (asking.f_code, asking.f_lasti) if asking else None

        batch = self._ask(lambda: self._examination.send(self._began_anew))
        self._began_anew = False
        # the step that has just ended is counted, and before the first batch there was none
        if self._step_calls and self._steps:
            self._step_calls.end_step()
        self._steps += 1
        self._untrained += 1
        return batch

    def _ask(self, examination: Callable[[], Any]) -> Any:
        """Returns the batch that the examination yields; if it has come to its end, the program
        ends as well.
        """
        self._inside = True
        try:
            return examination()
        except StopIteration as end:
            self._finish(end.value)
        except Exception:
            self.fail("its loop could not be measured", traceback.format_exc())
        finally:
            self._inside = False

    def end_early(self, why: str, is_late: bool = False) -> NoReturn:
        """Ends the program with what has been measured of its loop.

        Args:
            is_late: whether nothing further is to be tried, not even what needs no training.
        """
        assert self._examined is not None
        from dali_pipes.tools.diagnosis.span import LoopEnded

        place, after = self._examined.loop.place, f"after {self._steps} measured batches"
        if not self._rounds:
            self.fail(
                f"{place}: {why} {after}, before one round of the measurement was done; "
                "let the loop go on for longer, or take "
                "less with seconds=0.2 rounds=1"
            )

        self._ended = f"{why} {after}"
        self._ask(lambda: self._examination.throw(LoopEnded(is_late)))
        self.fail("its loop could not be measured to the end")

    def at_limit(self, frame: FrameType | None) -> None:
        """Reports what has been measured, since the time is over; or else where the program is."""
        if self._is_finishing:
            return

        at = f"it was at {place_of(frame)}"
        if self._examined is None:
            self.fail(f"its training loop had not begun; {at}; {self.describe_loops()}")
        # without a round, or in another thread than the loop's, nothing can be ended from here
        if not self._rounds or threading.get_ident() != self._thread:
            self.fail(
                f"one round of the measurement was not done; {at}, {self._steps} batches after "
                "its loop was found"
            )

        if not self._inside:
            self.end_early("the time was over", is_late=True)
        from dali_pipes.tools.diagnosis.span import LoopEnded

        self._ended = f"the time was over after {self._steps} measured batches"
        raise LoopEnded(is_late=True)  # in the examination, which this has interrupted

    def _keep_checkpoints(self) -> None:
        """Makes torch.save and safetensors write nothing.

        A model that was trained on the same batches again and again must not replace the user's
        own.
        """
        import torch

        def save(*arguments: Any, **options: Any) -> None:
            self.unwritten += 1

        torch.save = save
        if safetensors := sys.modules.get("safetensors.torch"):
            safetensors.save_file = safetensors.save_model = save  # type: ignore[attr-defined]

    def _let_schedules_end(self) -> None:
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

    def _finish(self, diagnosis: Any) -> NoReturn:
        from rich.console import Console

        from dali_pipes.tools.diagnosis.report import print_diagnosis, to_dict

        self._is_finishing = True
        assert self._examined is not None
        examined, text = self._examined, StringIO()

        console = Console(file=text, width=self._job["width"])
        if self._ended:
            print(f"\n{examined.loop.place}: {self._ended}; the report is about these", file=text)
        if examined.partners:
            others = (
                f"{len(examined.partners)} other DataLoader{'s' * (len(examined.partners) > 1)}"
            )
            print(
                (
                    f"\nThe loop also takes batches from {others}: waiting for these counts as "
                    "part of its step."
                ),
                file=text,
            )

        print_diagnosis(diagnosis, self._program.workers, console)

        found: dict[str, Any] = {
            "loop": examined.loop.place,
            "new_iterator_every_step": examined.every_step,
            "other_loaders": len(examined.partners),
            "ended_early": self._ended,
            "checkpoints_left_out": self.unwritten,
        }
        self.send(
            {
                "diagnosis": to_dict(diagnosis, self._program.workers) | found,
                "text": text.getvalue(),
            }
        )
        self.end(0)

    def _describe_other_loops(self, loop: Loop | None = None) -> list[str]:
        return [str(each) for each in self._loops.values() if each is not loop and each.batches]

    def describe_loops(self) -> str:
        """Returns what has happened, for a program in which no loop that trains was found."""
        loops = self._describe_other_loops()
        text = (
            f"the loops over DataLoaders were {'; '.join(loops)}"
            if loops
            else "no DataLoader was iterated"
        )
        stepped = sum(loop.optimizer_steps for loop in self._loops.values())
        return f"{text}; optimizers stepped {stepped + self._steps_outside} times"

    def fail(self, message: str, trace: str = "", status: int = 1) -> NoReturn:
        self.send({"error": message, "trace": trace, "status": status})
        self.end(status)

    def send(self, answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=self._answers, flush=True)

    def end(self, status: int) -> NoReturn:
        """Ends the process at once: nothing that the program would do after its training may
        happen.
        """
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()

        for process in multiprocessing.active_children():
            process.terminate()
        # without the program's atexit functions, finally blocks and threads
        os._exit(status)


def _program_of(loader: Any, built_at: tuple[Path, int] | None, is_step: Callable[[], bool]) -> Any:
    """Returns the parts of a program that has such a loader, which was built at that line.

    The calls that are counted are those made while `is_step()`.
    """
    if "tensorflow" in type(loader).__module__:
        from dali_pipes.tools.diagnosis.tfdata_program import TfDataProgram

        return TfDataProgram(loader)

    from torch.utils.data import DataLoader

    from dali_pipes.tools.diagnosis.dataloader_program import DataLoaderProgram
    from dali_pipes.tools.diagnosis.loader_program import LoaderProgram
    from dali_pipes.tools.diagnosis.step_calls import StepCalls

    is_torch = isinstance(loader, DataLoader)
    program: Any = (
        DataLoaderProgram(loader, built_at=built_at) if is_torch else LoaderProgram(loader)
    )
    program.step_calls = StepCalls(is_step)
    return program


def main() -> None:
    """Runs the program in this process, until its loop has been measured or it has ended.

    The first word is the job as JSON: pipe, dump, start, program (its words), module, seconds,
    rounds, cold, width.
    """
    job = json.loads(sys.argv[1])
    # the program's own children must not hold the pipe open
    os.set_inheritable(job["pipe"], False)
    watch = Watch(job, os.fdopen(job["pipe"], "w"))

    signal.signal(LIMIT_SIGNAL, lambda number, frame: watch.at_limit(frame))
    # open for the life of the process: during a call into C no handler of Python's runs, and then
    # faulthandler writes where the program is
    dump = open(job["dump"], "w")  # noqa: SIM115
    faulthandler.register(LIMIT_SIGNAL, file=dump, all_threads=False, chain=True)
    # modules that have been imported already are changed now
    hooks = watch.hooks()
    for name in [hook for hook in hooks if hook in sys.modules]:
        hooks.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, AfterImport(hooks))

    program, *_ = sys.argv[:] = job["program"]
    try:
        if job["module"]:
            # as `python -m` does
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            # as `python FILE` does; run_path does so itself for a folder
            if not Path(program).is_dir():
                sys.path.insert(0, str(Path(program).resolve().parent))
            runpy.run_path(str(Path(program).absolute()), run_name="__main__")
    except SystemExit as end:
        if watch.step_may_fail:
            watch.end_early(_REFUSES_LARGER)
        if watch.is_examining:
            watch.end_early("the program ended by itself")
        if end.code not in (None, 0):
            watch.fail(
                f"it ended by itself with {end.code!r}; {watch.describe_loops()}",
                status=end.code if isinstance(end.code, int) else 1,
            )
    except BaseException as error:
        if watch.step_may_fail:
            watch.end_early(_REFUSES_LARGER)
        if watch.has_rounds:
            sys.stderr.write(own_traceback(error))
            watch.end_early("the program failed by itself, with the traceback above,")
        watch.fail(
            f"it failed by itself; its traceback is above; {watch.describe_loops()}",
            own_traceback(error),
        )
    if watch.is_examining:
        watch.end_early("the program ended by itself")
    watch.fail(
        "it ended without a loop over a DataLoader in which an optimizer steps; "
        f"{watch.describe_loops()}"
    )
