"""In the process of a user's program: runs it as it is until its training loop has gone round once, then examines that loop.

Nothing heavy is imported before the program has done so itself, since a program may set OMP_NUM_THREADS before it imports torch.
"""

import contextlib
import ctypes
import faulthandler
import importlib.abc
import json
import multiprocessing
import os
import runpy
import signal
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from io import StringIO
from pathlib import Path
from types import FrameType, ModuleType
from typing import IO, Any, NoReturn

LIMIT_SIGNAL = signal.SIGRTMIN + 5  # programs use the two of their own, such as SLURM's requeueing
MEASURING_S = 60.0  # from then on nothing further is begun
_PR_SET_PDEATHSIG = 1
_STDLIB = sysconfig.get_path("stdlib")
_OPTIMIZER_STEPS = 1  # as often it has to step in a loop before that counts as training


@dataclass(slots=True)
class Loop:
    """All iterations over one DataLoader from one place of the program.

    Attributes:
        place: the file and line that takes its batches.
        began: seconds from the program's start to its first batch.
        waited_s: inside next().
        single: iterators in a row that were left after one batch on which an optimizer has stepped.
    """

    place: str
    began: float
    batches: int = 0
    waited_s: float = 0.0
    optimizer_steps: int = 0
    single: int = 0

    def __str__(self) -> str:
        return f"{self.place}: {self.batches} batches, {self.waited_s:.1f} s of waiting for them"


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module once it has been imported."""

    def __init__(self, hooks: dict[str, Callable[[ModuleType], None]]):
        self._hooks = hooks

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        hook = self._hooks.pop(name, None)
        if hook is None:
            return None
        others = (each for each in sys.meta_path if each is not self)
        spec = next((found for each in others if (found := each.find_spec(name, path, target))), None)
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
        self.taken, self.is_exhausted = 0, False

    def __iter__(self) -> "WatchedIterator":
        return self

    def __next__(self) -> Any:
        return self._watch.next_batch(self)

    def __len__(self) -> int:
        return len(self.iterator)

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
        self._last: WatchedIterator | None = None
        self._last_loop: Loop | None = None
        self._inside = False
        self._thread = 0
        self._steps_outside = 0
        self._examined: tuple[Any, Loop, bool] | None = None  # loader, loop, whether each step makes an iterator
        self._examination: Any = None
        self._program: Any = None
        self._steps = 0
        self.unwritten = 0

    # What is put in the place of PyTorch's own

    def hooks(self) -> dict[str, Callable[[ModuleType], None]]:
        return {
            "torch.utils.data.dataloader": self._watch_loaders,
            "torch.optim.optimizer": lambda module: module.register_optimizer_step_post_hook(self._count_step),
            "torch.distributed.distributed_c10d": self._refuse_process_groups,
            "torch.multiprocessing.spawn": self._refuse_spawning,
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

        loaders.__iter__ = watched(loaders.__iter__)
        loaders.__init_subclass__ = classmethod(of_subclass)

    def _refuse_process_groups(self, module: ModuleType) -> None:
        original = module.init_process_group

        @wraps(original)
        def init_process_group(*arguments: Any, **options: Any) -> Any:
            world = options.get("world_size", arguments[3] if len(arguments) > 3 else -1)
            if max(int(world), int(os.environ.get("WORLD_SIZE", 1))) > 1:
                self.fail("the program trains in several processes (init_process_group); diagnose runs one: give it one device")
            return original(*arguments, **options)

        module.init_process_group = init_process_group  # type: ignore[attr-defined]

    def _refuse_spawning(self, module: ModuleType) -> None:
        def refuse(*arguments: Any, **options: Any) -> NoReturn:
            self.fail("the program trains in processes of its own (torch.multiprocessing.spawn), where its loop is not seen; give "
                      "diagnose a program that trains in its main process on one device")  # fmt: skip

        module.spawn = module.start_processes = refuse  # type: ignore[attr-defined]

    # What the program does

    def begin(self, loader: Any, original: Callable[[Any], Any]) -> Any:
        """iter(loader)."""
        if self._inside or os.getpid() != self._pid:
            return original(loader)
        if self._examined and loader is self._examined[0]:
            if not self._examined[2]:
                self._stop_unfinished("the loop counts its batches and has begun another epoch")
            return WatchedIterator(self, loader, None)
        self._inside = True
        try:
            return WatchedIterator(self, loader, original(loader))
        finally:
            self._inside = False

    def next_batch(self, iterator: WatchedIterator) -> Any:
        """next() of an iterator over a DataLoader."""
        if self._inside or os.getpid() != self._pid:
            return next(iterator.iterator)
        if self._examined and iterator.loader is self._examined[0]:
            return self._next_examined()
        loop = iterator.loop or self._loop_of(iterator)
        if self._examined is None and (loop.single >= 2 or (loop.optimizer_steps >= _OPTIMIZER_STEPS and iterator.taken)):
            self._take_over(iterator, loop)
            return self._next_examined()

        begin, self._inside = time.monotonic(), True
        try:
            batch = next(iterator.iterator)
        except StopIteration:
            iterator.is_exhausted = True
            raise
        finally:
            self._inside = False
            loop.waited_s += time.monotonic() - begin
        loop.batches += 1
        iterator.taken += 1
        self._last_loop = loop
        return batch

    def leave(self, iterator: WatchedIterator) -> None:
        """The program has let go of an iterator."""
        if self._inside or os.getpid() != self._pid:
            return
        if self._examined and iterator.loader is self._examined[0] and iterator.iterator is not None and _breaks():
            self._stop_unfinished("the loop was left by the program itself")

    def _count_step(self, optimizer: Any, arguments: Any, options: Any) -> None:
        if self._inside or os.getpid() != self._pid:
            return
        if self._last_loop is None:
            self._steps_outside += 1
            return
        self._last_loop.optimizer_steps += 1
        self._last_loop.single += 1

    def _loop_of(self, iterator: WatchedIterator) -> Loop:
        place = _place(sys._getframe(2))
        key = (id(iterator.loader), place)
        loop = self._loops.get(key)
        if loop is None:
            loop = self._loops[key] = Loop(place, time.time() - self._start)
        elif loop.batches and loop.single < loop.batches:
            loop.single = 0  # not each of its iterators was for one batch
        iterator.loop = loop
        return loop

    # The examination

    def _take_over(self, iterator: WatchedIterator, loop: Loop) -> None:
        """From here on the program's loop trains on what the examination asks for."""
        self._inside = True
        try:
            self.send({"loop": loop.place, "seconds": time.time() - self._start, "before": self._others(loop)})
            inner = iterator.iterator
            if hasattr(inner, "_shutdown_workers"):
                inner._shutdown_workers()
                iterator.loader._iterator = None
            from dali_pipes.tools.diagnosis.dataloader_program import DataLoaderProgram
            from dali_pipes.tools.diagnosis.examine import ProbeBudget, examination

            job = self._job
            every_step = iterator.taken == 0
            self._program = DataLoaderProgram(iterator.loader)
            budget = ProbeBudget(job["rounds"], job["seconds"], cold=job["cold"], limit_s=MEASURING_S)
            self._examined = (iterator.loader, loop, every_step)
            self._examination = examination(self._program, budget, lambda text: self.send({"doing": text}))
            self._keep_checkpoints()
        finally:
            self._inside = False

    def _next_examined(self) -> Any:
        self._inside = True
        try:
            batch = self._examination.send(None)
            self._steps += 1
            return batch
        except StopIteration as end:
            self._finish(end.value)
        except Exception:
            self.fail("its loop could not be measured", traceback.format_exc())
        finally:
            self._inside = False

    def _keep_checkpoints(self) -> None:
        """A model that was trained on the same batches again and again must not take the place of the user's own."""
        import torch

        def save(*arguments: Any, **options: Any) -> None:
            self.unwritten += 1

        torch.save = save

    def _finish(self, diagnosis: Any) -> NoReturn:
        from rich.console import Console

        from dali_pipes.tools.diagnosis.report import print_diagnosis, to_dict

        text = StringIO()
        print_diagnosis(diagnosis, self._program.workers, Console(file=text, width=self._job["width"]))
        assert self._examined is not None
        _, loop, every_step = self._examined
        found: dict[str, Any] = {"loop": loop.place, "new_iterator_every_step": every_step, "checkpoints_left_out": self.unwritten}
        self.send({"diagnosis": to_dict(diagnosis, self._program.workers) | found, "text": text.getvalue()})
        self.end(0)

    def _stop_unfinished(self, why: str) -> NoReturn:
        assert self._examined is not None
        self.fail(
            f"{self._examined[1].place}: {why} after {self._steps} measured batches, before the measurement was done; let the "
            "loop go on for longer, or take less with seconds=0.5 rounds=1"
        )

    def _others(self, loop: Loop | None = None) -> list[str]:
        return [str(each) for each in self._loops.values() if each is not loop and each.batches]

    def seen(self) -> str:
        """What has happened, where no loop that trains was found."""
        loops = self._others()
        text = f"the loops over DataLoaders were {'; '.join(loops)}" if loops else "no DataLoader was iterated"
        stepped = sum(loop.optimizer_steps for loop in self._loops.values())
        return f"{text}; optimizers stepped {stepped + self._steps_outside} times"

    def fail(self, message: str, trace: str = "") -> NoReturn:
        self.send({"error": message, "trace": trace})
        self.end(1)

    def send(self, answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=self._answers, flush=True)

    def end(self, status: int) -> NoReturn:
        """At once: nothing that the program would do after its training may happen."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        for process in multiprocessing.active_children():
            process.terminate()
        os._exit(status)


def _place(frame: FrameType | None) -> str:
    """The file and line of the innermost frame that is not of an installed library."""
    innermost = frame
    while frame is not None:
        file = frame.f_code.co_filename
        library = "site-packages" in file or "dist-packages" in file or file.startswith(_STDLIB)
        if not library and file != __file__ and Path(file).is_file():
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return f"{innermost.f_code.co_filename}:{innermost.f_lineno}" if innermost else "?"


def _breaks() -> bool:
    """Whether a frame of the program is just popping an iterator, as `break` and `return` do; an exception has another opcode."""
    import dis

    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code.co_filename == __file__ or "site-packages" in frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return False
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] in ("POP_TOP", "POP_ITER", "END_FOR")


def main() -> None:
    """The first word is the job as JSON: pipe, dump, parent, start, program (its words), module, seconds, rounds, cold, width."""
    job = json.loads(sys.argv[1])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != job["parent"]:
        os._exit(1)
    os.set_inheritable(job["pipe"], False)
    watch = Watch(job, os.fdopen(job["pipe"], "w"))

    def at_limit(number: int, frame: FrameType | None) -> None:
        watch.fail(f"its training loop had not begun; it was at {_place(frame)}; {watch.seen()}")

    signal.signal(LIMIT_SIGNAL, at_limit)
    dump = open(job["dump"], "w")  # noqa: SIM115  for the life of the process: a call into C lets no handler of Python's run
    faulthandler.register(LIMIT_SIGNAL, file=dump, all_threads=False, chain=True)
    sys.meta_path.insert(0, AfterImport(watch.hooks()))
    program, *_ = sys.argv[:] = job["program"]
    try:
        if job["module"]:
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(program).resolve().parent))
            runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            watch.fail(f"it ended by itself with {end.code!r}; {watch.seen()}")
    except BaseException:
        watch.fail("it failed by itself; its traceback is above", traceback.format_exc())
    watch.fail(f"it ended without a loop over a DataLoader in which an optimizer steps; {watch.seen()}")
