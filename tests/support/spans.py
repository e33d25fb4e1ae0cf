"""Spans and figures of a training program that nobody measured, for the rules of diagnose."""

from dataclasses import replace

from dali_pipes.tools.diagnosis.measuring.span import Span
from dali_pipes.tools.diagnosis.verdict.figures import TrainingFigures

WAITING = TrainingFigures(
    model=1000, loader=100,
    together=98, wait_share=0.9, start_share=0.0, overlap=0.98, contention=0.01,
    loader_cores=2.0, busy=0.6,
    others=0.0, loader_freed=1.0, model_freed=1.0,
    blocked=0.0, straggling=0.0, throttled=0.0, model_throttled=0.0,
    memory_stall=0.0, alloc_retries=0,
)  # fmt: skip
COMPUTING = replace(WAITING, loader=10_000, together=990, wait_share=0.01)


def span(rate=100.0, waits=(0.0,), **figures):
    """A second, half of it on a core."""
    usual = {
        "cpu_s": 0.5,
        "blocked_s": 0.0,
        "busy": 0.5,
        "throttled_s": 0.0,
        "memory_stall": 0.0,
        "alloc_retries": 0,
        "gaps_s": None,
    }
    return Span(images=int(rate), seconds=1.0, waits_s=waits, **usual | figures)
