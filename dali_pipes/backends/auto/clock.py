"""How long each step of training takes, and how much of it training waits for its batch."""

import time
from typing import Any

import torch

from dali_pipes.backends.auto.choosing import EVERY, Step
from dali_pipes.system.telemetry import cpu_seconds


class StepClock:
    """Measures steps: `ask` before a batch is waited for, `came` when it is there.

    On a GPU the process does not wait where the GPU does. Events on its stream say how long it had
    nothing to do between the end of a step's work and the batch of the next one. They are read
    some steps later, when they have happened, so that nothing has to wait for them.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._asked = self._came = time.perf_counter()
        self._cpu, self._steps = cpu_seconds(), 0
        self._before: Any = None
        self._pairs: list[tuple[Any, Any]] = []

    def ask(self) -> None:
        self._asked = time.perf_counter()
        if self._device.type == "cuda":
            self._before = self._event()

    def came(self) -> Step:
        now = time.perf_counter()
        waited, period = now - self._asked, now - self._came
        self._came = now
        if self._before is not None:
            self._pairs.append((self._before, self._event()))
            waited = self._idle_seconds()
        return Step(period, waited, self._cpu_seconds())

    def _event(self) -> Any:
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _idle_seconds(self) -> float:
        """Of the GPU, in all pairs of events that have happened by now."""
        idle = 0.0
        while self._pairs and self._pairs[0][1].query():
            before, after = self._pairs.pop(0)
            idle += before.elapsed_time(after) / 1e3
        return idle

    def _cpu_seconds(self) -> float:
        """Of this process and its children, since the last look, which is one in some steps."""
        self._steps += 1
        if self._steps % EVERY:
            return 0.0
        before, self._cpu = self._cpu, cpu_seconds()
        return self._cpu - before
