"""What an examination does that depends on its verdict."""

from dataclasses import replace

import pytest
import torch
from spans import span
from torch.utils.data import DataLoader, TensorDataset

from dali_pipes.tools.diagnosis.examination import examination, measurements
from dali_pipes.tools.diagnosis.examination.budget import ProbeBudget
from dali_pipes.tools.diagnosis.examination.state import ExaminationState
from dali_pipes.tools.diagnosis.fixes import prediction
from dali_pipes.tools.diagnosis.measuring.span import Round
from dali_pipes.tools.diagnosis.measuring.training import LoopEnded
from dali_pipes.tools.diagnosis.programs.dataloader import DataLoaderProgram
from dali_pipes.tools.diagnosis.verdict import figures, rules
from dali_pipes.tools.diagnosis.verdict.figures import OneOffFigures
from dali_pipes.tools.diagnosis.verdict.judge import Verdict

BUDGET = ProbeBudget(rounds=1, seconds=0.01)


class Loop:
    """The loop of a program, which ends when it is given a batch that it refuses."""

    def __init__(self, program, refuses=lambda batch: False):
        self._program, self._refuses, self.sizes = program, refuses, list[int]()

    def run(self):
        work = examination.examination(self._program, BUDGET)
        batch = next(work)
        while True:
            self.sizes.append(len(batch[0]))
            try:
                if self._refuses(batch):
                    assert self._program.step_may_fail
                    batch = work.throw(LoopEnded(is_late=False))
                else:
                    batch = next(work)
            except StopIteration as end:
                return end.value


@pytest.fixture
def judged(monkeypatch):
    """Every verdict is this one, and other programs are not looked for, or always."""

    def judge_as(name, beside_others=False):
        for module in (examination, measurements):
            monkeypatch.setattr(module, "MIN_OTHERS", -1.0 if beside_others else 99.0)
        monkeypatch.setattr(
            examination,
            "judge",
            lambda rounds, one_off, workers, burst: Verdict(name, "medium", [name]),
        )

    return judge_as


@pytest.fixture
def program():
    return DataLoaderProgram(DataLoader(TensorDataset(torch.zeros(64, 4)), 8))


def test_a_loop_that_nothing_else_slows_down_is_given_larger_batches(program, judged):
    judged("model-bound")
    loop = Loop(program)
    found = loop.run()
    assert (
        set(loop.sizes) == {8, 32}
        and found.one_off.larger_gain > 0
        and not found.left_out
        and not program.step_may_fail
    )


@pytest.mark.slow
def test_beside_other_programs_they_are_tried_on_one_thread(program, judged, monkeypatch):
    judged("other programs", beside_others=True)
    # nothing is hidden
    monkeypatch.setattr(examination, "find_causes", lambda figures, one_off, workers: [])
    with measurements.threads_of_torch(2):
        loop = Loop(program)
        found = loop.run()
        assert (
            set(loop.sizes) == {8, 32}
            and found.one_off.larger_gain is None
            and found.one_off.one_thread_larger_gain > 0
        )
        assert found.one_off.one_thread_gain > 0 and torch.get_num_threads() == 2

        found = Loop(program, refuses=lambda batch: len(batch[0]) > 8).run()
        assert (
            found.one_off.one_thread_larger_gain is None and found.left_out[0] == "larger batches"
        )
        assert torch.get_num_threads() == 2


@pytest.mark.slow
def test_a_loop_that_waits_for_data_is_not(program, judged):
    judged("prep-bound (item by item)")
    loop = Loop(program)
    assert loop.run().one_off.larger_gain is None and set(loop.sizes) == {8}


def test_a_loop_may_refuse_a_larger_batch(program, judged):
    judged("model-bound")
    loop = Loop(program, refuses=lambda batch: len(batch[0]) > 8)
    found = loop.run()
    assert (
        loop.sizes.count(32) == 1
        and found.one_off.larger_gain is None
        and found.left_out[0] == "larger batches"
    )
    assert found.verdict.name == "model-bound" and not program.step_may_fail


def test_there_is_no_larger_batch_where_memory_is_short(program, judged, monkeypatch):
    judged("model-bound")
    monkeypatch.setattr(examination, "memory_left", lambda: 1_000_000)
    loop = Loop(program)
    assert loop.run().one_off.larger_gain is None and set(loop.sizes) == {8}


def test_what_other_programs_hide_is_named_with_what_it_would_cost(program, monkeypatch):
    """Beside others a step of two threads takes nearly all of the time; on one it is 40 times as
    fast, and the loader is slower.
    """
    for module in (prediction, figures, rules):
        monkeypatch.setattr(module, "affinity_cores", lambda: 2)
    beside = {"busy": 1.0, "queued_s": 0.5, "cpu_s": 0.5}
    rounds = [
        Round(span(100, **beside), span(1000, **beside), span(95, waits=(0.02,), **beside))
    ] * 2
    state = ExaminationState(program, BUDGET, lambda text: None, None, rounds)
    state.one_off = OneOffFigures(
        one_thread_gain=40.0, one_thread_freed=2.0, larger_gain=4.0, more_gain=1.0, is_serial=True
    )
    state.undisturbed = examination.without_others(state, state.figures())

    verdict = examination.judge_with_hidden(state)
    assert (verdict.name, verdict.confidence) == ("other programs", "high")
    (hidden,) = verdict.also
    assert (
        hidden.name == "prep-bound (item by item)"
        and hidden.is_hidden
        and hidden.loss == pytest.approx(0.8, abs=0.1)
    )

    state.rounds = [replace(one, together=replace(one.together, busy=0.25)) for one in rounds]
    assert not examination.without_others(state, state.figures())
