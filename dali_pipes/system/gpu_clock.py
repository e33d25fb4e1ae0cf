"""Moments on the GPU's clock, which are read later, so that nothing waits for the GPU."""

import torch


def mark() -> torch.cuda.Event:
    """Returns an event on the current stream: the moment at which the GPU gets to it."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()  # type: ignore[no-untyped-call]
    return event


def seconds_between(first: torch.cuda.Event, second: torch.cuda.Event) -> float:
    """Returns the seconds from one event to the other, both of which must have happened."""
    return float(first.elapsed_time(second)) / 1e3  # type: ignore[no-untyped-call]
