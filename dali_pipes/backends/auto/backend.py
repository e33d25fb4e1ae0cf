"""A backend made of others, of which one at a time makes the batches.

    planned batches ──▶ gate ──▶ the backend whose turn it is ──▶ decoded batches

A backend takes planned batches through a gate. When another one is chosen, the gate is closed, the
next backend begins with the batch after, and the first one delivers what it has taken. So a switch
is at the border of a batch, and no sample is lost or comes twice. The loader knows nothing of it.
"""

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dali_pipes.backends.auto.choices import list_choices, refuse
from dali_pipes.backends.auto.chooser import Chooser
from dali_pipes.backends.auto.clock import StepClock
from dali_pipes.backends.auto.config import AutoConfig
from dali_pipes.backends.backend import Backend, Decoded, Description
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.needs import EVERYTHING, LOOSE, WIDE
from dali_pipes.backends.registry import load_backend
from dali_pipes.errors import ConfigError
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import Transform, views_of
from dali_pipes.system.gpu_memory import release_unused_of_dali
from dali_pipes.system.interrupts import delayed_signals
from dali_pipes.system.memory import Need


class AutoBackend(Backend):
    """Carries out a plan with the backend that trains fastest."""

    config: AutoConfig
    makes = EVERYTHING | {WIDE, LOOSE}  # each choice refuses for itself

    def prepare(self) -> None:
        learned = self.job.learned
        shapes = [view.shape for view in views_of(self.job.transform)]
        if not isinstance(learned, Chooser):
            cores = self.config.num_threads or 1
            choices = list_choices(cores, self.job.device)
            self.chooser = Chooser(choices, cores, self.job.epoch, self.config.fixed)
            self.chooser.go_on_with(str(learned or ""))
        else:
            self.chooser = learned
            if shapes != learned.shapes:
                learned.begin_again()
        self.chooser.shapes = shapes
        self._parts: dict[str, Backend] = {}
        self._delivers, self._noted = self._find_part(), ""

    # the parts

    def _find_part(self) -> str:
        """The name of the present choice, whose backend is built; those that cannot be had are left
        out.

        Raises:
            ConfigError: none can be had.
        """
        while (choice := self.chooser.current).name not in self._parts:
            try:
                self._parts[choice.name] = self._build(choice.config)
            except Exception as error:
                if not self._leave_out(choice.name, error):
                    raise
        return choice.name

    def _leave_out(self, name: str, error: Exception) -> bool:
        """Whether another choice takes the place of one that cannot begin."""
        if isinstance(error, ConfigError):
            return self.chooser.fail(name, str(error))
        return self.chooser.broke(name, error)

    def _build(self, config: LoaderConfig | None) -> Backend:
        assert config
        refuse(config, self.job)
        return load_backend(config)(self.job, config)

    def _begin(self, source: "_Source", but: str = "") -> "_Delivery | None":
        """Has the present choice make what comes next; None: that is `but`, which does so already.

        Raises:
            ConfigError: none can.
        """
        while (name := self._find_part()) != but:
            gate = source.open()
            try:
                turn = _Delivery(name, gate, self._parts[name].stream(gate))
                gate.taken = None
                if self._delivers not in self._parts:
                    self._delivers = name
                return turn
            except Exception as error:
                source.take_back(gate)
                self._parts.pop(name).close()
                if not self._leave_out(name, error):
                    raise
        return None

    def _end_losers(self) -> None:
        with delayed_signals():
            for name in [each for each in self._parts if each != self.chooser.current.name]:
                self._parts.pop(name).close()
        release_unused_of_dali()

    # batches

    def stream(self, planned: Iterator[PlannedBatch]) -> Iterator[Decoded]:
        source = _Source(planned)
        turn = self._begin(source)
        assert turn
        return self._deliver(source, turn)

    def _deliver(self, source: "_Source", turn: "_Delivery") -> Iterator[Decoded]:
        clock = StepClock(self.job.device) if self.chooser.measures else None
        following: _Delivery | None = None
        is_first = True
        while True:
            if clock:
                clock.ask()
            try:
                decoded = next(turn.stream, None)
            except Exception as error:
                if self.chooser.broke(turn.name, error):
                    # no error of the user's: the batch is made once more, by the best one so far
                    raise RuntimeError(f"{turn.name}, which was tried, failed: {error}") from error
                raise
            if decoded is None:
                turn.gate.close()
                if following is None and source.is_at_end:
                    return
                with self._lost_by(clock):
                    begun = following or self._begin(source)
                assert begun
                turn, following = begun, None
                continue

            self._note(turn.name)
            # before the first one of an epoch there is a pause
            if clock and decoded.planned.step and not is_first:
                following = self._measure(clock, source, turn, following)
            elif clock:
                clock.begin()
            is_first = False
            yield decoded

    def _measure(
        self, clock: StepClock, source: "_Source", turn: "_Delivery", following: "_Delivery | None"
    ) -> "_Delivery | None":
        """One step more; returns the turn that follows, if there is another one."""
        step = clock.came()
        if turn.name != self.chooser.current.name:
            # it was under way when another one was chosen, which works ahead by now
            self.chooser.pass_over(step)
        elif self.chooser.add(step):
            with self._lost_by(clock), delayed_signals():
                if self._find_part() != turn.name and not source.is_at_end:
                    turn.gate.close()
                    return self._begin(source, turn.name)
        elif self.chooser.choosing.is_decided and len(self._parts) > 1:
            with self._lost_by(clock):
                self._end_losers()
        return following

    @contextmanager
    def _lost_by(self, clock: StepClock | None) -> Iterator[None]:
        """Training waits for what is done in it: that is no part of a step, but of what trials
        cost.
        """
        start = time.perf_counter()
        yield
        if clock:
            took = time.perf_counter() - start
            clock.leave_out(took)
            self.chooser.lose(took)

    def _note(self, name: str) -> None:
        """Notes who has made a batch, and so its pixels."""
        if name == self._noted:
            return
        self._delivers = self._noted = name
        pixels = self._parts[name].describe().pixels
        if pixels and pixels not in self.chooser.pixels:
            self.chooser.pixels.append(pixels)

    @property
    def learned(self) -> Chooser:
        return self.chooser

    def describe(self) -> Description:
        part = self._parts[self._delivers].describe()
        pixels = " + ".join(self.chooser.pixels) or part.pixels
        return Description(f"{self.chooser.describe()}; {part.text}", pixels, part.gpu)

    def close(self) -> None:
        for part in self._parts.values():
            part.close()

    @classmethod
    def memory_needs(
        cls, config: Any, transform: Transform, batch_size: int, sizes: NDArray[np.int64]
    ) -> Iterator[Need]:
        # of the choices, each is looked at before it is built
        return iter(())


class _Source:
    """Planned batches that go through one gate after the other."""

    def __init__(self, planned: Iterator[PlannedBatch]):
        self._planned, self._lock = planned, threading.RLock()
        self._ahead: deque[PlannedBatch] = deque()  # that no gate has let through

    def open(self) -> "_Gate":
        return _Gate(self, self._lock)

    def take(self) -> PlannedBatch:
        """The next one."""
        return self._ahead.popleft() if self._ahead else next(self._planned)

    def take_back(self, gate: "_Gate") -> None:
        """Closes a gate, what has gone through which nobody makes."""
        gate.close()
        self._ahead.extendleft(reversed(gate.taken or []))

    @property
    def is_at_end(self) -> bool:
        """Whether there is none left."""
        with self._lock:
            if not self._ahead:
                self._ahead.extend(itertools.islice(self._planned, 1))
            return not self._ahead


class _Gate(Iterator[PlannedBatch]):
    """Gives planned batches to one backend, whose threads may take them, until it is closed.

    Attributes:
        taken: these, as long as the backend begins; None: nobody asks any more.
    """

    def __init__(self, source: _Source, lock: Any):
        self._source, self._lock, self._is_closed = source, lock, False
        self.taken: list[PlannedBatch] | None = []

    def __next__(self) -> PlannedBatch:
        with self._lock:
            if self._is_closed:
                raise StopIteration
            planned = self._source.take()
            if self.taken is not None:
                self.taken.append(planned)
            return planned

    def close(self) -> None:
        with self._lock:
            self._is_closed = True


class _Delivery(NamedTuple):
    """A backend that makes batches."""

    name: str
    gate: _Gate
    stream: Iterator[Decoded]
