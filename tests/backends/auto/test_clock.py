"""What of a step's time is its own, and what is a pause of the training."""

import pytest
import torch

from dali_pipes.backends.auto import clock
from dali_pipes.backends.auto.clock import StepClock


class Times:
    """A clock that goes on as it is told."""

    def __init__(self, monkeypatch):
        self.now, self.cpu = 0.0, 0.0
        monkeypatch.setattr(clock.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(clock, "cpu_seconds", lambda: self.cpu)

    def step(self, measured, work, wait, cores=1.0):
        self.now, self.cpu = self.now + work, self.cpu + cores * (work + wait)
        measured.ask()
        self.now += wait
        return measured.came()


@pytest.fixture
def times(monkeypatch):
    return Times(monkeypatch)


def test_a_validation_is_no_step(times):
    measured = StepClock(torch.device("cpu"))
    for _ in range(20):
        step = times.step(measured, 0.1, 0.02)
        assert step.period == pytest.approx(0.12) and step.waited == pytest.approx(0.02)
    step = times.step(measured, 60.0, 0.5)
    assert step.period == pytest.approx(0.6) and step.waited == pytest.approx(0.5)
    assert times.step(measured, 0.1, 0.02).period == pytest.approx(0.12)


def test_a_checkpoint_soon_after_a_validation_is_no_step(times):
    measured = StepClock(torch.device("cpu"))
    for work in [0.1] * 20 + [60.0] + [0.1] * 5 + [8.0]:
        step = times.step(measured, work, 0.02)
    assert step.period == pytest.approx(0.12)


def test_steps_that_take_longer_from_now_on_are_steps(times):
    measured = StepClock(torch.device("cpu"))
    for work in [0.1] * 20 + [1.0] * 5:
        step = times.step(measured, work, 0.02)
    assert step.period == pytest.approx(1.02)


def test_what_is_before_the_first_batch_is_no_step(times):
    measured = StepClock(torch.device("cpu"))
    times.now += 30.0  # a model is made meanwhile
    measured.ask()
    measured.begin()
    step = times.step(measured, 0.1, 0.02)
    assert step.period == pytest.approx(0.12)


def test_what_is_left_out_is_no_step(times):
    measured = StepClock(torch.device("cpu"))
    times.step(measured, 0.1, 0.02)
    times.now += 2.0  # a backend is built
    measured.leave_out(2.0)
    assert times.step(measured, 0.1, 0.02).period == pytest.approx(0.12)


def test_a_host_that_waits_for_its_gpu_at_times_makes_no_pause(times):
    measured = StepClock(torch.device("cpu"))
    found = [times.step(measured, 1.0 if each % 10 == 9 else 0.01, 0.0) for each in range(100)]
    assert sum(step.period for step in found[20:]) == pytest.approx(8 * 1.09)


def test_cpu_time_is_that_of_the_present_steps(times):
    measured = StepClock(torch.device("cpu"))
    for cores in (0.5, 3.0):
        found = [times.step(measured, 0.1, 0.0, cores) for _ in range(40)]
        assert sum(step.cpu for step in found[20:]) == pytest.approx(cores * 2.0, rel=0.01)


def test_other_ranks_times_are_not_the_loaders(times, monkeypatch):
    """A step with a slow rank takes long, whatever the own loader does."""
    monkeypatch.setattr(clock, "_are_several", lambda: True)
    measured = StepClock(torch.device("cpu"))
    for _ in range(50):
        times.step(measured, 0.1, 0.0)
    periods = [times.step(measured, 0.1 if each % 2 else 0.3, 0.01).period for each in range(20)]
    assert max(periods) < 0.2


def test_a_pause_of_all_ranks_is_in_no_step(times, monkeypatch):
    monkeypatch.setattr(clock, "_are_several", lambda: True)
    measured = StepClock(torch.device("cpu"))
    works = [5.0, 1.0] + [0.1] * 30 + [60.0] + [0.1] * 40  # libraries try and compile at first
    found = [times.step(measured, work, 0.02).period for work in works]
    assert found[10:] == [pytest.approx(0.12)] * len(found[10:])
