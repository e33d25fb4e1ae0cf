"""Reads numbers that a device computes, when that needs no waiting."""

from collections import deque

import torch

STEPS_AHEAD = 2


class Readback:
    """One number per step. On a GPU it is read two steps later, and the host runs no further ahead than that.

    So the host never waits for the step that it has just launched, and time inside next() is time that training has lost.
    """

    def __init__(self, device: torch.device):
        self._on_gpu = device.type == "cuda"
        self._slots = torch.empty(STEPS_AHEAD + 1, pin_memory=self._on_gpu)
        self._pending: deque[tuple[torch.cuda.Event, torch.Tensor]] = deque()
        self._count = 0

    def push(self, value: torch.Tensor) -> list[float]:
        """Takes this step's number, and returns those that have arrived since: on the CPU the same, on a GPU an earlier one."""
        if not self._on_gpu:
            return [value.item()]
        slot = self._slots[self._count % len(self._slots)]
        slot.copy_(value.detach(), non_blocking=True)
        self._pending.append((torch.cuda.current_stream().record_event(), slot))  # type: ignore[no-untyped-call]
        self._count += 1
        return [self._next()] if len(self._pending) > STEPS_AHEAD else []

    def drain(self) -> list[float]:
        """Waits for the remaining numbers."""
        return [self._next() for _ in range(len(self._pending))]

    def _next(self) -> float:
        event, slot = self._pending.popleft()
        event.synchronize()
        return slot.item()
