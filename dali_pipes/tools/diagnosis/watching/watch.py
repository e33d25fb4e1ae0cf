"""Watches the loops of a user's program until one of them trains, which is then examined.

The hooks call `Watch`: `begin` at iter(loader), `next_batch` at next(), `leave` when an iterator is
dropped, `count_step` when an optimizer has stepped.
"""

import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from dali_pipes.backends.torch.workers import end_workers
from dali_pipes.tools.diagnosis.frames import breaking_frame, enclosing_loop
from dali_pipes.tools.diagnosis.watching.answers import Answers
from dali_pipes.tools.diagnosis.watching.examined import ExaminedLoop, refuse_compiled_loops
from dali_pipes.tools.diagnosis.watching.frames import place_of
from dali_pipes.tools.diagnosis.watching.kept_files import KeptFiles
from dali_pipes.tools.diagnosis.watching.loops import Loop
from dali_pipes.tools.diagnosis.watching.own_work import OwnWork


class WatchedIterator:
    """What iter(DataLoader) returns to the program.

    Attributes:
        iterator: the loader's own; None: the loop is examined, and the examination gives the
            batches.
        loop: the loop that takes its batches; None before the first one.
        taken, steps: its batches, and the optimizer's steps on them.
        taken_at: number of its last batch, counted over all loaders.
    """

    def __init__(self, watch: "Watch", loader: Any, iterator: Any):
        self._watch, self.loader, self.iterator = watch, loader, iterator
        self.loop: Loop | None = None
        self.taken, self.steps, self.is_exhausted = 0, 0, False
        self.taken_at = 0

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
    """The loops of the program, and the one of them that is examined.

    Args:
        job: see `watched.main`.

    Attributes:
        examined: the loop that trains; None: it has not been found yet.
        files: keeps those of the program.
    """

    def __init__(self, job: dict[str, Any], answers: Answers):
        self._job, self.answers, self.own_work = job, answers, OwnWork()
        self.examined: ExaminedLoop | None = None
        self.files = KeptFiles(
            Path(job["aside"]), lambda: self.examined is not None and not self.own_work.is_mine
        )

        self._start = job["start"]
        self._loops: dict[tuple[int, str], Loop] = {}
        self._last_loop: Loop | None = None
        self._built_at: dict[int, tuple[Path, int]] = {}  # key: id of a loader

        # weak, since `WatchedIterator.__del__` tells that the program has let go of one
        self._alive: weakref.WeakSet[WatchedIterator] = weakref.WeakSet()
        # those of which a batch was taken since an optimizer stepped
        self._since_step: weakref.WeakSet[WatchedIterator] = weakref.WeakSet()

        self._batches = 0
        self._steps_outside = 0
        self._tracing: tuple[FrameType, Any] | None = None

    # What the hooks call

    def note_built(self, loader: Any, file: Path, line: int) -> None:
        self._built_at[id(loader)] = (file, line)

    def begin(self, loader: Any, original: Callable[[Any], Any]) -> Any:
        """Returns what iter(loader) gives the program."""
        # what the examination does itself, and what forked worker processes do, is left alone
        if not self.own_work.is_programs:
            return original(loader)

        if self.examined and loader is self.examined.loader:
            self._trace_no_more()
            self.examined.begin_anew()
            return WatchedIterator(self, loader, None)

        # __iter__ of a subclass may call that of DataLoader, which is watched as well: one of them
        # is enough
        with self.own_work:
            return WatchedIterator(self, loader, original(loader))

    def next_batch(self, iterator: WatchedIterator) -> Any:
        """Returns the next batch of an iterator over a loader: its own, or the examination's."""
        if not self.own_work.is_programs:
            return next(iterator.iterator)
        if self.examined and iterator.loader is self.examined.loader:
            return self.examined.next_batch()

        loop = iterator.loop or self._loop_of(iterator)
        refuse_compiled_loops(self.answers)
        # a loop is taken over once an optimizer has stepped on a batch of this iterator, or on the
        # single batch of each of some iterators before it
        if (
            self.examined is None
            and (loop.single >= 2 or iterator.steps)
            and self._is_dearest(iterator)
        ):
            return self._take_over(iterator, loop).next_batch()

        begin = time.monotonic()
        try:
            with self.own_work:
                batch = self._next_of(iterator)
        except StopIteration:
            iterator.is_exhausted = True
            raise
        finally:
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

    def leave(self, iterator: WatchedIterator) -> None:
        """Called when the program has let go of an iterator: ends the examination, or lets the next
        epoch go on.
        """
        examined = self.examined
        if not self.own_work.is_programs or not examined or iterator.loader is not examined.loader:
            return

        # a loop that makes an iterator for each step lets go of one in each step
        frame = None if iterator.iterator is None and examined.every_step else breaking_frame()
        if frame is None:
            return

        around = enclosing_loop(frame, examined.asked_at)
        if examined.has_rounds or around is None:
            examined.end_early("the loop was left by the program itself")
        else:
            self._trace_until_left(examined, *around)

    def count_step(self) -> None:
        if not self.own_work.is_programs:
            return
        if self.examined:
            self.examined.untrained = 0
        # a step belongs to all loaders that gave a batch since the one before, as those of a zip
        for iterator in self._since_step:
            iterator.steps += not iterator.is_exhausted
        self._since_step.clear()

        if self._last_loop is None:
            self._steps_outside += 1
        else:
            self._last_loop.optimizer_steps += 1
            self._last_loop.stepped = True

    # Batches of the program's own loops

    def _next_of(self, iterator: WatchedIterator) -> Any:
        """Returns the next batch of the program's own iterator.

        A partner of the loader that is examined begins again, or it would end the loop of both.
        """
        try:
            return next(iterator.iterator)
        except StopIteration:
            if not self.examined or id(iterator) not in self.examined.partners:
                raise
        iterator.iterator = iter(iterator.loader)
        return next(iterator.iterator)

    def _loop_of(self, iterator: WatchedIterator) -> Loop:
        place = place_of(sys._getframe(2))
        key = (id(iterator.loader), place)
        loop = self._loops.get(key)
        if loop is None:
            loop = self._loops[key] = Loop(place)

        loop.single = loop.single + 1 if loop.taken == 1 and loop.stepped else 0
        loop.taken = 0
        iterator.loop = loop
        self._alive.add(iterator)
        return loop

    def _is_dearest(self, iterator: WatchedIterator) -> bool:
        """Whether training waits for none of the loaders that the same line iterates longer than
        for this one.
        """
        loops = [other.loop for other in (iterator, *self._partners(iterator)) if other.loop]
        return max(loops, key=lambda loop: loop.waited_s) is iterator.loop

    def _partners(self, iterator: WatchedIterator) -> list[WatchedIterator]:
        """Returns the iterators of which the same line has taken a batch since it took the last one
        of this.
        """
        return [
            other
            for other in self._alive
            if other.loop
            and iterator.loop
            and other.loop is not iterator.loop
            and other.loop.place == iterator.loop.place
            and not other.is_exhausted
            and other.taken_at > iterator.taken_at
        ]

    # The loop that is examined

    def take_over_fit(self, place: str, dataset: Any, step: Callable[[Any], Any]) -> ExaminedLoop:
        """Examines a training loop that cannot be watched, with a step that stands for its own."""
        loop = Loop(place)
        return self._take_over(WatchedIterator(self, dataset, None), loop, step)

    def _take_over(
        self, iterator: WatchedIterator, loop: Loop, step: Callable[[Any], Any] | None = None
    ) -> ExaminedLoop:
        """Takes over the program's loop: from here on it trains on what the examination asks for.

        Args:
            step: what the loop does with a batch, if that is known.
        """
        with self.own_work:
            self.examined = ExaminedLoop(
                self._job,
                self.answers,
                self.own_work,
                self.files,
                loader=iterator.loader,
                loop=loop,
                every_step=iterator.taken == 0,
                partners=frozenset(map(id, self._partners(iterator))),
            )
            self.answers.send(
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

            self.examined.start(self._built_at.get(id(iterator.loader)), step)
        return self.examined

    def _trace_until_left(
        self, examined: ExaminedLoop, frame: FrameType, first: int, last: int
    ) -> None:
        """Stops the program when it leaves an outer loop, such as that over epochs: nothing of what
        follows may run.
        """

        def trace(traced: FrameType, event: str, argument: Any) -> Any:
            if event == "return" or not first <= traced.f_lasti <= last:
                self._trace_no_more()
                examined.end_early(
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

    # What is reported

    def at_limit(self, frame: FrameType | None) -> None:
        """Reports what has been measured, since the time is over; or else where the program is."""
        if self.examined is None:
            self.answers.fail(
                f"its training loop had not begun; it was at {place_of(frame)}; "
                f"{self.describe_loops()}"
            )
        self.examined.at_limit(frame)

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

    def _describe_other_loops(self, loop: Loop | None = None) -> list[str]:
        return [str(other) for other in self._loops.values() if other is not loop and other.batches]
