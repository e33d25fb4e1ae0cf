"""How long each step of training takes, and how much of it training waits for its batch."""

import statistics
import time
from collections import deque
from typing import Any

import torch

from dali_pipes.backends.auto.choosing import StepTime
from dali_pipes.system.telemetry import cpu_seconds

_STEPS, _LEAST = 50, 5  # before this one, whose own work says how long that takes
_WARM_UP = 5  # the first ones, in which libraries try and compile
_PAUSE = 4  # times as long as the longest is a pause: a validation, a checkpoint
_OFTEN = 2  # so many pauses among the last steps are none: they are steps
_CPU_EVERY, _CPU_COSTS = 0.5, 250  # seconds between two looks at CPU time, or times what one takes


class StepClock:
    """Measures steps: `ask` before a batch is waited for, `came` when it is there.

    On a GPU the process does not wait where the GPU does. Events on its stream say how long it had
    nothing to do between the end of a step's work and the batch of the next one. They are read
    some steps later, when they have happened, so that nothing has to wait for them.

    Where several ranks train, a step takes as long as that of the slowest one, whatever the own
    loader does. So there the step's own work is taken to be the same in all steps.
    """

    def __init__(self, device: torch.device):
        self._is_on_gpu, self._device = device.type == "cuda", device
        self._asked = self._came = time.perf_counter()
        # seconds of steps without their waits, and whether that was a pause
        self._works: deque[tuple[float, bool]] = deque(maxlen=_STEPS)
        self._count = 0
        self._cpu, self._looked, self._next_look = cpu_seconds(), self._came, self._came
        self._cores = 0.0  # that were busy between the last two looks
        self._before: Any = None
        self._pairs: deque[tuple[Any, Any]] = deque()

    def ask(self) -> None:
        self._asked = time.perf_counter()
        if self._is_on_gpu:
            self._before = self._event()

    def begin(self) -> None:
        """When the first batch is there: what was before it is no step."""
        self._came = time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """These, since the last batch came, are no part of the training's step."""
        self._came += seconds

    def came(self) -> StepTime:
        now = time.perf_counter()
        waited, work = now - self._asked, self._asked - self._came
        self._came = now
        period = self._without_pause(work) + waited
        if self._is_on_gpu:
            self._pairs.append((self._before, self._event()))
            waited = self._idle_seconds()
        return StepTime(period, waited, self._busy_cores(now) * period)

    def _without_pause(self, work: float) -> float:
        """The seconds of a step's own work. A host that runs ahead of its GPU has many short steps,
        and long ones where it waits for the GPU, so a pause is longer than any of these.
        """
        self._count += 1
        if self._count <= _WARM_UP:
            return work
        steps = [seconds for seconds, was_pause in self._works if not was_pause]
        is_rare = len(self._works) - len(steps) < _OFTEN
        is_pause = is_rare and len(steps) >= _LEAST and work > _PAUSE * max(steps)
        self._works.append((work, is_pause))
        if is_pause or (steps and _are_several()):
            return statistics.mean(steps)
        return work

    def _event(self) -> Any:
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _idle_seconds(self) -> float:
        """Of the GPU, in all pairs of events that have happened by now."""
        idle = 0.0
        while self._pairs and self._pairs[0][1].query():
            before, after = self._pairs.popleft()
            idle += before.elapsed_time(after) / 1e3
        return idle

    def _busy_cores(self, now: float) -> float:
        """By the process and its children. To look takes a while where there are many processes."""
        if now >= self._next_look:
            before, self._cpu = self._cpu, cpu_seconds()
            self._cores = (self._cpu - before) / max(now - self._looked, 1e-3)
            took = time.perf_counter() - now
            self._looked = now
            self._next_look = now + max(_CPU_EVERY, _CPU_COSTS * took)
        return self._cores


def _are_several() -> bool:
    parallel = torch.distributed
    return parallel.is_available() and parallel.is_initialized() and parallel.get_world_size() > 1
