"""What an examination measures: the rounds, and what is measured once."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

import torch

from dali_pipes.system.memory import memory_left
from dali_pipes.tools.diagnosis.examination.budget import PARTS, Announce
from dali_pipes.tools.diagnosis.examination.probes import Probes, copy_seconds
from dali_pipes.tools.diagnosis.examination.state import ExaminationState
from dali_pipes.tools.diagnosis.measuring.span import Round, Span
from dali_pipes.tools.diagnosis.measuring.training import Training, drive
from dali_pipes.tools.diagnosis.verdict.figures import (
    MIN_OTHERS,
    freed,
)


def measure_rounds(state: ExaminationState, probes: Probes) -> Training[None]:
    budget = state.budget
    for number in range(budget.rounds):
        before = time.monotonic()
        state.rounds.append(
            (yield from _measure_round(probes, number, budget.rounds, state.announce))
        )
        took, spent = time.monotonic() - before, time.monotonic() - state.begin

        # the limit leaves time for what comes after the rounds
        left = budget.rounds - number - 1
        if left and spent + took > 0.6 * budget.limit_s:
            state.leave_out(f"{left} of {budget.rounds} rounds")
            return


def _measure_round(probes: Probes, number: int, count: int, announce: Announce) -> Training[Round]:
    """Measures each part once.

    The order is reversed in every second round, so that a machine that slows down favours no part.
    """
    spans: dict[str, Span] = {}
    for part in PARTS if number % 2 == 0 else PARTS[::-1]:
        announce(f"round {number + 1} of {count}: {part}")
        spans[part] = yield from getattr(probes, part)()
    return Round(**spans)


def measure_once(state: ExaminationState, probes: Probes) -> Training[None]:
    """Measures what is not part of the rounds: larger batches, cold files, GPU, one thread."""
    program, on_gpu = state.program, torch.cuda.is_available()
    state.one_off = replace(
        state.one_off,
        data_fits=program.data_bytes < memory_left(),
        decodes_on_gpu=program.decodes_on_gpu,
        is_fetched=program.is_fetched,
        starts_anew=program.starts_anew,
    )

    if state.step and not on_gpu:  # on a GPU the profiler shows how busy it is
        # a user's step may raise anything at a batch of another size
        with contextlib.suppress(Exception):
            rate = drive(_rate_with_larger(state, probes), state.step)
            state.one_off = replace(state.one_off, larger_gain=rate and rate / state.model_rate)

    if state.budget.cold and program.paths:
        state.announce("files that are not in memory")
        cold, state.resident = yield from probes.cold()
        state.one_off = replace(state.one_off, cold_rate=cold.rate if cold else None)

    if on_gpu:
        yield from _look_at_gpu(state, probes)
    elif (
        state.figures().others >= MIN_OTHERS
        and program.uses_torch_threads
        and torch.get_num_threads() > 1
    ):
        yield from _measure_one_thread(state, probes)


def _look_at_gpu(state: ExaminationState, probes: Probes) -> Training[None]:
    state.announce("the GPU during a step")
    # a step of training, with the wait for its batch
    seconds = median(one.together.seconds / len(one.together.waits_s) for one in state.rounds)
    copied, pinned = state.program.transfer_size()
    state.one_off = replace(
        state.one_off,
        device_busy=(yield from probes.busy_share()),
        syncs=(yield from probes.count_syncs()),
        transfer_share=copy_seconds(copied, pinned) / seconds if copied else 0.0,
    )


def _measure_one_thread(state: ExaminationState, probes: Probes) -> Training[None]:
    """Measures the step on one thread, beside the other programs.

    Its threads wait for each other there, which takes most of its time; one thread waits for
    none.
    """
    state.announce("the step on one thread, beside the other programs")
    with threads_of_torch(1):
        span = yield from probes.model()
    gain = span.rate / median(one.steps.rate for one in state.rounds)
    state.one_off = replace(state.one_off, one_thread_gain=gain, one_thread_freed=freed(span, 1))


def try_larger(state: ExaminationState, probes: Probes) -> Training[None]:
    """Measures larger batches in a program's own loop.

    Beside other programs it runs on one thread, where no thread waits for another.
    """
    one_thread = state.one_off.one_thread_gain
    # with a step of its own, `measure_once` has tried larger batches already
    if one_thread is None and state.step is None:
        rate = yield from _rate_with_larger(state, probes)
        state.one_off = replace(state.one_off, larger_gain=rate and rate / state.model_rate)
    elif one_thread is not None:
        with threads_of_torch(1):
            rate = yield from _rate_with_larger(state, probes)

        steps_rate = median(one.steps.rate for one in state.rounds)
        state.one_off = replace(
            state.one_off, one_thread_larger_gain=rate and rate / (one_thread * steps_rate)
        )


def _rate_with_larger(state: ExaminationState, probes: Probes) -> Training[float | None]:
    """Returns images/s with batches four times as large; None if batches of this type cannot be
    joined.
    """
    state.announce("larger batches")
    # what the program raises meanwhile is no failure of its own (watched.py)
    state.program.step_may_fail = True
    try:
        larger = yield from probes.larger()
    finally:
        state.program.step_may_fail = False
    return larger.rate if larger else None


@contextlib.contextmanager
def threads_of_torch(count: int) -> Iterator[None]:
    """Runs PyTorch's operators on so many threads within the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
