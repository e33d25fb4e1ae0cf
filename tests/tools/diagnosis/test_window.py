import itertools
import time
from dataclasses import replace

import pytest
from planted import compute

from dali_pipes.tools.diagnosis.probes import covered
from dali_pipes.tools.diagnosis.window import gaps, watch


def endless(seconds=0.0):
    while True:
        time.sleep(seconds)
        yield [0, 0]


def test_the_time_of_each_step_is_measured_separately():
    starts = itertools.cycle([True, False, False, False])
    found = watch(endless(0.02), lambda batch: time.sleep(0.03), len, 0.3, 4, lambda: next(starts))
    steps = len(found.waits_s)
    assert found.images == 2 * steps and found.rate == found.images / found.seconds
    assert found.waits_s[0] is None and found.waits_s[4] is None and all(found.waits_s[1:4])
    assert 0.02 * (steps - steps // 4 - 1) <= found.wait_share * found.seconds <= found.seconds - 0.03 * steps
    assert 0.03 * steps * 0.9 <= found.blocked_s <= found.seconds  # sleeping is neither running nor standing in line


def test_epochs_of_one_batch_hide_no_waiting():
    found = watch(endless(0.02), lambda batch: None, len, 0.1, 3, lambda: True)
    assert None not in found.waits_s and found.wait_share > 0.8


def test_at_most_so_many_images():
    assert watch(endless(), lambda batch: None, len, 10, 5, lambda: False, most=8).images == 8


def test_computing_is_not_waiting():
    found = watch(endless(), lambda batch: compute(0.02), len, 0.3, 3, lambda: False)
    assert found.blocked_s < 0.3 * found.seconds and found.cpu_s > 0.5 * 0.02 * len(found.waits_s) and 0 < found.busy <= 1


def test_at_least_so_many_steps():
    assert len(watch(endless(), lambda batch: None, len, 0, 5, lambda: False).waits_s) == 5


class Event:
    def __init__(self, at):
        self.at = at

    def elapsed_time(self, later):
        return (later.at - self.at) * 1e3


def test_gaps_lie_between_the_steps():
    marks = [(Event(begin), Event(end)) for begin, end in ((0, 1), (1.5, 2), (2, 3))]
    assert gaps(marks) == (0.5, 0) and gaps(marks[:1]) == ()


def test_on_a_gpu_only_what_it_stood_still_is_waiting():
    found = watch(endless(0.02), lambda batch: None, len, 0.2, 4, lambda: False)
    assert found.gaps_s is None and found.wait_share > 0.8
    assert replace(found, gaps_s=(0.0, 0.02 * found.seconds)).wait_share == pytest.approx(0.02)


def test_intervals_that_overlap_count_once():
    assert covered([(0, 2), (1, 3), (10, 11), (10.5, 10.6)]) == pytest.approx(4)
    assert covered([]) == 0
