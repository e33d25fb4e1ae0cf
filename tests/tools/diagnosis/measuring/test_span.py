import itertools
import os
import subprocess
import time
from dataclasses import replace

import pytest
from planted import compute

from dali_pipes.tools.diagnosis.examination.probes import union_length
from dali_pipes.tools.diagnosis.measuring.measure_span import gaps, measure_span
from dali_pipes.tools.diagnosis.measuring.span import Round, Span
from dali_pipes.tools.diagnosis.measuring.training import drive


def endless(seconds=0.0):
    while True:
        time.sleep(seconds)
        yield [0, 0]


def test_the_time_of_each_step_is_measured_separately():
    starts = itertools.cycle([True, False, False, False])
    found = drive(
        measure_span(endless(0.02), len, 0.3, 4, lambda: next(starts)),
        lambda batch: time.sleep(0.03),
    )
    steps = len(found.waits_s)
    assert found.images == 2 * steps and found.rate == pytest.approx(found.images / found.seconds)
    assert found.waits_s[0] is None and found.waits_s[4] is None and all(found.waits_s[1:4])
    assert len(found.starts_s) == -(-steps // 4)
    waited = sum(found.starts_s) + sum(wait for wait in found.waits_s if wait is not None)
    assert 0.02 * steps * 0.99 <= waited <= found.seconds - 0.03 * steps + 0.001
    # the first waits count as much as the others do, and what they take longer as the start of an
    # epoch
    assert (found.wait_share + found.start_share) * found.seconds == pytest.approx(waited, rel=0.5)
    # sleeping is neither running nor standing in line
    assert 0.03 * steps * 0.9 <= found.blocked_s <= found.seconds


def test_epochs_of_one_batch_hide_no_waiting():
    found = drive(
        measure_span(endless(0.02), len, 0.1, 3, lambda: True, epoch=1), lambda batch: None
    )
    assert found.wait_share == 0 and found.start_share > 0.8


def test_the_starts_of_epochs_count_as_often_as_they_come():
    """Whatever number of them fell into the span."""
    waits = (None, *[0.01] * 9)
    few = made(waits_s=waits, starts_s=(1.01,), seconds=1.2, epoch=100)
    assert (
        few.start_share == pytest.approx(1 / 3)
        and few.wait_share == pytest.approx(1 / 3)
        and few.rate == pytest.approx(2 / 0.03)
    )
    assert few.step_s == pytest.approx(0.01)
    whole = made(waits_s=waits, starts_s=(1.01,), seconds=1.2, epoch=10)
    assert whole.rate == pytest.approx(20 / 1.2) and whole.start_share == pytest.approx(1 / 1.2)
    # no epoch began
    assert replace(whole, starts_s=(), waits_s=(0.01,) * 10).rate == pytest.approx(20 / 1.2)


def made(**figures):
    usual = {
        "cpu_s": 0.0,
        "gaps_s": None,
        "blocked_s": 0.0,
        "busy": 0.5,
        "throttled_s": None,
        "memory_stall": None,
    }
    return Span(images=2 * len(figures["waits_s"]), alloc_retries=0, **usual | figures)


def test_half_the_time_is_twice_the_pace():
    span = made(waits_s=(None, 0.1), starts_s=(0.2,), seconds=0.4, epoch=2)
    assert span.scaled(0.5).rate == pytest.approx(2 * span.rate)
    assert span.scaled(0.5).start_share == pytest.approx(span.start_share)


def test_the_value_of_what_trains_is_what_it_found():
    def work():
        yield "a"
        yield "b"
        return 3

    trained = []
    assert drive(work(), trained.append) == 3 and trained == ["a", "b"]


def test_time_in_the_run_queue_is_counted():
    """With three threads that compute on one core, two of them stand in line at any time."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        children = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(2)]
        found = drive(
            measure_span(endless(), len, 0.5, 3, lambda: False), lambda batch: compute(0.01)
        )
    finally:
        os.sched_setaffinity(0, before)
        for child in children:
            child.kill()
            child.wait()
    assert found.queued_s > 0.8 * found.seconds


def test_at_most_so_many_images():
    assert (
        drive(measure_span(endless(), len, 10, 5, lambda: False, most=8), lambda batch: None).images
        == 8
    )


@pytest.mark.alone
def test_computing_is_not_waiting():
    found = drive(measure_span(endless(), len, 0.3, 3, lambda: False), lambda batch: compute(0.02))
    assert (
        found.blocked_s < 0.3 * found.seconds
        and found.cpu_s > 0.5 * 0.02 * len(found.waits_s)
        and 0 < found.busy <= 1
    )


def test_at_least_so_many_steps():
    assert (
        len(drive(measure_span(endless(), len, 0, 5, lambda: False), lambda batch: None).waits_s)
        == 5
    )


class Event:
    def __init__(self, at):
        self.at = at

    def elapsed_time(self, later):
        return (later.at - self.at) * 1e3


def test_gaps_lie_between_the_steps():
    marks = [(Event(begin), Event(end)) for begin, end in ((0, 1), (1.5, 2), (2, 3))]
    assert gaps(marks) == (0.5, 0) and gaps(marks[:1]) == ()


def test_on_a_gpu_only_what_it_stood_still_is_waiting():
    found = drive(measure_span(endless(0.02), len, 0.2, 4, lambda: False), lambda batch: None)
    assert found.gaps_s is None and found.wait_share > 0.8
    assert replace(found, gaps_s=(0.0, 0.02 * found.seconds)).wait_share == pytest.approx(0.02)


def test_intervals_that_overlap_count_once():
    assert union_length([(0, 2), (1, 3), (10, 11), (10.5, 10.6)]) == pytest.approx(4)
    assert union_length([]) == 0


def test_a_step_that_is_faster_after_a_wait_is_what_the_model_can_do():
    alone = made(waits_s=(0.0,) * 10, seconds=1.0, cpu_s=0.8)
    waiting = made(waits_s=(0.09,) * 10, seconds=1.0)
    assert Round(alone, waiting, waiting).steps.step_s == pytest.approx(0.01)
    assert Round(alone, waiting, waiting).steps.cpu_s == pytest.approx(0.08)
    assert Round(waiting, waiting, alone).steps is waiting
