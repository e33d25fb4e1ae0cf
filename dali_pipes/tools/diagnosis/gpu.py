"""A training step on a GPU: how busy it keeps the GPU, how often it waits for it, and the time to copy its batch."""

import time
import warnings
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

STEPS = 10


def busy_share(step: Callable[[], object]) -> float:
    """The share of the time in which the GPU ran at least one kernel or copy, over a few steps."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
        begin = time.monotonic()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        seconds = time.monotonic() - begin
    spans = [(event.time_range.start, event.time_range.end) for event in profiled.events() if event.device_time_total > 0]
    return covered(spans) / 1e6 / seconds


def covered(spans: list[tuple[float, float]]) -> float:
    """The length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def count_syncs(step: Callable[[], object]) -> int:
    """How often one step makes the host wait for the GPU, as far as PyTorch knows (torch.cuda.set_sync_debug_mode)."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sum("called a synchronizing" in str(each.message) for each in caught)


def copy_seconds(nbytes: int, pinned: bool, times: int = 5) -> float:
    """The time to copy this many bytes to the current GPU."""
    source = torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned)
    target = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    target.copy_(source)
    torch.cuda.synchronize()
    begin = time.monotonic()
    for _ in range(times):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    return (time.monotonic() - begin) / times
