"""A backend made of others, of which one at a time makes the batches.

    planned batches ──▶ gate ──▶ the backend whose turn it is ──▶ decoded batches

A backend takes planned batches through a gate. When another one is chosen, the gate is closed, the
next backend begins with the batch after, and works ahead while what the first has taken is used up.
So a switch is at the border of a batch, and no sample is lost or comes twice. The loader knows
nothing of it.
"""

import threading
from collections.abc import Iterator
from typing import Any

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
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.gpu_memory import release_unused_of_dali
from dali_pipes.system.memory import Need


class AutoBackend(Backend):
    """Carries out a plan with the backend that trains fastest."""

    config: AutoConfig
    makes = EVERYTHING | {WIDE, LOOSE}  # each choice refuses for itself

    def prepare(self) -> None:
        cores = self.config.num_threads or 1
        choices = list_choices(cores, self.job.device)
        self.chooser = Chooser(choices, cores, self.job.epoch, self.config.fixed)
        self._parts: dict[str, Backend] = {}
        self._made_pixels: list[str] = []
        self._part()

    def _part(self) -> Backend:
        """The backend of the present choice; those that cannot be had are left out.

        Raises:
            ConfigError: none can.
        """
        while (choice := self.chooser.current).name not in self._parts:
            try:
                self._parts[choice.name] = self._build(choice.config)
            except ConfigError as error:
                if not self.chooser.fail(str(error)):
                    raise
        part = self._parts[choice.name]
        self._of_part = part.describe()
        if (pixels := self._of_part.pixels) and pixels not in self._made_pixels:
            self._made_pixels.append(pixels)
        return part

    def _build(self, config: LoaderConfig | None) -> Backend:
        assert config
        refuse(config, self.job)
        return load_backend(config)(self.job, config)

    def stream(self, planned: Iterator[PlannedBatch]) -> Iterator[Decoded]:
        source = _Source(planned)
        gate = source.open()
        return self._deliver(source, gate, self._part().stream(gate))

    def _deliver(
        self, source: "_Source", gate: "_Gate", stream: Iterator[Decoded]
    ) -> Iterator[Decoded]:
        clock = StepClock(self.job.device)
        following: tuple[_Gate, Iterator[Decoded]] | None = None
        while True:
            clock.ask()
            decoded = next(stream, None)
            if decoded is None:
                if following is None:
                    return
                gate, stream = following
                following = None
                continue

            step = clock.came()
            if following is not None:
                # it was under way when another one was chosen, which works ahead by now
                self.chooser.pass_over(step)
            elif self.chooser.add(step):
                gate.close()
                following_gate = source.open()
                following = following_gate, self._part().stream(following_gate)
            elif self.chooser.choosing.is_decided and len(self._parts) > 1:
                self._end_losers()
            yield decoded

    def _end_losers(self) -> None:
        for name in [each for each in self._parts if each != self.chooser.current.name]:
            self._parts.pop(name).close()
        release_unused_of_dali()

    @property
    def learned(self) -> str:
        return self.chooser.learned

    def go_on_with(self, learned: str) -> None:
        if self.chooser.go_on_with(learned):
            self.close()
            self._part()

    def describe(self) -> Description:
        text = f"{self.chooser.describe()}; {self._of_part.text}"
        return Description(text, " + ".join(self._made_pixels) or None, self._of_part.gpu)

    def close(self) -> None:
        for part in self._parts.values():
            part.close()
        self._parts = {}

    @classmethod
    def memory_needs(
        cls, config: Any, transform: Transform, batch_size: int, sizes: NDArray[np.int64]
    ) -> Iterator[Need]:
        # of the choices, each is looked at before it is built
        return iter(())


class _Source:
    """Planned batches that go through one gate after the other."""

    def __init__(self, planned: Iterator[PlannedBatch]):
        self._planned, self._lock = planned, threading.Lock()

    def open(self) -> "_Gate":
        return _Gate(self._planned, self._lock)


class _Gate(Iterator[PlannedBatch]):
    """Gives planned batches to one backend, whose threads may take them, until it is closed."""

    def __init__(self, planned: Iterator[PlannedBatch], lock: threading.Lock):
        self._planned, self._lock, self._is_closed = planned, lock, False

    def __next__(self) -> PlannedBatch:
        with self._lock:
            if self._is_closed:
                raise StopIteration
            return next(self._planned)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
