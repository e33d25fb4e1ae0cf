"""The rules, on made-up figures; tests/tools/diagnosis/test_planted.py has real programs with real
faults.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from spans import COMPUTING, WAITING, span

from dali_pipes.tools.diagnosis.measuring.span import Round
from dali_pipes.tools.diagnosis.verdict import figures, rules
from dali_pipes.tools.diagnosis.verdict.figures import (
    OneOffFigures,
    freed,
    median_figures,
    straggling,
)
from dali_pipes.tools.diagnosis.verdict.judge import judge
from dali_pipes.tools.diagnosis.verdict.rules import VERDICTS, find_causes


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    for module in (figures, rules):
        monkeypatch.setattr(module, "affinity_cores", lambda: 4)


def said(found, workers=2, **one_off):
    return find_causes(found, OneOffFigures(**one_off), workers)[0].name


def test_what_the_loader_is_short_of():
    assert said(WAITING) == "prep-bound (too few workers)"
    assert said(replace(WAITING, loader_cores=0.2)) == "fetch-bound"
    assert said(replace(WAITING, busy=0.97)) == "prep-bound (CPU saturated)"
    assert said(replace(WAITING, straggling=0.5)) == "straggler"
    assert said(WAITING, transfer_share=0.8) == "transfer-bound"


def test_a_loader_that_decodes_on_the_gpu_needs_little_cpu():
    assert said(replace(WAITING, loader_cores=0.2), decodes_on_gpu=True) == "decode-contention"


def test_a_step_that_is_slower_with_new_batches_is_not_called_model_bound():
    slower = replace(COMPUTING, together=500, contention=0.5)
    assert said(slower) == "decode-contention"
    assert said(slower, transfer_share=0.6) == "transfer-bound"


def test_a_loader_that_does_nothing_beside_the_steps_does_not_slow_them_down():
    """As a DataLoader without workers, on a machine that changes its pace between two spans."""
    slower = replace(COMPUTING, together=500, contention=0.5)
    assert said(slower, works_beside=False) == "inconclusive"
    assert said(slower, works_beside=False, larger_gain=1.9) == "launch-bound"
    waiting = replace(WAITING, wait_share=0.2, contention=0.8)
    (cause,) = find_causes(waiting, OneOffFigures(works_beside=False), 1)
    assert cause.loss == pytest.approx(0.2)


def test_steps_that_are_slower_beside_a_slower_loader_are_its_fault():
    """With all cores busy it is the step that takes longer, rather than next()."""
    beside = replace(WAITING, wait_share=0.1, contention=0.8, together=90, busy=1.0)
    (cause,) = find_causes(beside, OneOffFigures(), 2)
    assert cause.name == "prep-bound (CPU saturated)" and cause.loss == pytest.approx(
        0.1 + 0.8 * 0.9
    )
    assert said(beside, decodes_on_gpu=True) == "decode-contention"
    disturbed = replace(beside, others=2.0, loader_freed=1.6, model_freed=1.8)
    assert [each.name for each in find_causes(disturbed, OneOffFigures(), 2)] == [
        "prep-bound (CPU saturated)",
        "other programs",
    ]


def test_items_that_wait_are_not_short_of_cores():
    """However many cores their workers keep busy, as beside other programs, or with more workers
    than cores.
    """
    assert said(WAITING, item_waits=0.9) == "fetch-bound"
    assert (
        said(replace(WAITING, loader_cores=0.2), item_waits=0.1) == "prep-bound (too few workers)"
    )
    assert said(replace(WAITING, busy=0.97), item_waits=0.9) == "fetch-bound"


def test_what_other_numbers_of_workers_gain_decides():
    assert said(WAITING, fewer_gain=1.5) == "prep-bound (too many workers)"
    assert said(replace(WAITING, busy=0.97), fewer_gain=1.0) == "prep-bound (CPU saturated)"
    assert said(WAITING, more_gain=1.0, is_serial=True) == "prep-bound (item by item)"
    assert said(replace(WAITING, busy=0.97), more_gain=1.0) == "prep-bound (CPU saturated)"
    assert (
        said(replace(WAITING, busy=0.97), more_gain=1.0, is_serial=True)
        == said(WAITING, more_gain=1.0)
        == "prep-bound (item by item)"
    )
    assert said(replace(WAITING, busy=0.97), more_gain=1.6) == "prep-bound (too few workers)"


def test_the_first_batches_of_too_many_workers_belong_to_that_cause():
    found = replace(WAITING, together=400, wait_share=0.2, start_share=0.4)
    names = {
        anew: [
            each.name
            for each in find_causes(found, OneOffFigures(fewer_gain=2.0, starts_anew=anew), 64)
        ]
        for anew in (True, False)
    }
    assert names == {
        True: ["start-bound", "prep-bound (too many workers)"],
        False: ["prep-bound (too many workers)"],
    }


def test_the_dearest_cause_comes_first_and_the_others_are_named():
    both = replace(WAITING, together=200, wait_share=0.3, start_share=0.5)
    assert [each.name for each in find_causes(both, OneOffFigures(), 2)] == [
        "start-bound",
        "prep-bound (too few workers)",
    ]
    both = replace(WAITING, together=700, wait_share=0.3, loader_freed=1.5, blocked=0.8)
    assert [(each.name, each.loss) for each in find_causes(both, OneOffFigures(), 2)] == [
        ("sync-bound", pytest.approx(0.8 * 0.7 * 0.99)),
        ("prep-bound (too few workers)", pytest.approx(0.2 + 0.01 * 0.7)),
        ("other programs", pytest.approx(0.1))
    ]  # fmt: skip


def test_other_programs_take_no_more_than_what_we_stood_in_line_for():
    """Of four cores three are taken: a loader that computes would be twice as fast, one that sleeps
    as fast as before.
    """
    computing = span(cpu_s=1.0, busy=1.0, queued_s=1.0)
    assert freed(computing, 2) == pytest.approx(2)
    assert freed(replace(computing, cpu_s=0.05, queued_s=0.04), 2) == pytest.approx(1 / 0.98)
    assert freed(replace(computing, queued_s=1.9), 2) == pytest.approx(4)  # all cores, and no more
    assert freed(replace(computing, cpu_s=3.9), 2) == 1.0  # nobody else is there


def test_more_workers_than_cores_need_not_all_be_busy():
    assert said(replace(WAITING, loader_cores=3.0), workers=16) == "prep-bound (too few workers)"
    assert (
        said(replace(WAITING, loader_cores=3.0, busy=0.8), workers=16)
        == "prep-bound (CPU saturated)"
    )
    assert said(replace(WAITING, busy=0.8), workers=3) == "prep-bound (too few workers)"


def test_what_keeps_the_model():
    assert said(COMPUTING) == "model-bound"
    assert said(replace(COMPUTING, contention=0.3)) == "decode-contention"
    assert said(replace(COMPUTING, blocked=0.7)) == "sync-bound"
    assert said(COMPUTING, larger_gain=2.5) == "launch-bound"
    assert said(replace(COMPUTING, others=2.0), larger_gain=2.5) == "inconclusive"
    assert said(replace(COMPUTING, contention=0.3, model_freed=1.5)) == "other programs"


def test_on_a_gpu_its_own_figures_decide():
    """The host may wait for the GPU, or be launched far ahead of it; only a GPU that stands still
    is a fault.
    """
    assert (
        said(replace(COMPUTING, blocked=0.9), larger_gain=2.0, device_busy=0.95, syncs=3)
        == "model-bound"
    )
    assert said(COMPUTING, device_busy=0.5, syncs=3) == "sync-bound"
    assert said(COMPUTING, device_busy=0.5, syncs=0) == "launch-bound"


def test_what_starves_everything_comes_first():
    for found in (WAITING, COMPUTING):
        assert said(replace(found, throttled=0.4)) == "cgroup-throttled"
        slowed = replace(found, together=found.model / 2)
        assert said(replace(slowed, memory_stall=0.3)) == "memory-bound"
        assert said(replace(slowed, alloc_retries=2)) == "memory-bound"
    assert said(replace(COMPUTING, alloc_retries=2)) == "model-bound"  # which costs nothing


def test_cold_files_matter_if_they_do_not_fit_in_memory():
    cold = {"cold_rate": 100.0}
    assert said(COMPUTING, **cold) == "model-bound"
    assert said(COMPUTING, **cold, data_fits=False) == "fetch-bound"
    assert said(COMPUTING, cold_rate=980.0, data_fits=False) == "model-bound"


def one_round(wait):
    return Round(span(1000), span(10_000, cpu_s=2.0), span(1000, waits=(wait,)))


def test_a_verdict_that_few_rounds_share_is_none():
    rounds = [one_round(0.0), one_round(0.0), one_round(0.1)]
    looked_inside = OneOffFigures(larger_gain=1.0)
    found = judge(rounds, looked_inside, 2, 1)
    assert (found.name, found.confidence) == ("model-bound", "medium") and len(found.rounds) == 3
    assert judge(rounds[:2], looked_inside, 2, 1).confidence == "high"
    # nothing else was found, no more
    assert judge(rounds[:2], OneOffFigures(), 2, 1).confidence == "medium"
    split = [
        one_round(0.0),
        replace(one_round(0.9), together=span(900, waits=(0.9,), busy=1.0, cpu_s=4.0)),
        one_round(0.9),
    ]
    split[2] = replace(split[2], loader=span(10_000, cpu_s=0.01))
    assert judge(split, OneOffFigures(), 2, 1).name == "inconclusive"


def test_rounds_that_differ_in_why_the_loader_is_too_slow_agree_that_it_is():
    few, waits = one_round(0.9), replace(one_round(0.9), loader=span(10_000, cpu_s=0.01))
    saturated = replace(few, together=span(900, waits=(0.9,), busy=1.0, cpu_s=4.0))
    found = judge([few, saturated, waits], OneOffFigures(), 2, 1)
    assert len(set(found.rounds)) == 3
    assert found.name.startswith("prep-bound") and found.confidence == "medium"


def test_only_a_cause_that_costs_more_than_the_others_is_of_high_confidence():
    alone = [one_round(0.9)] * 3
    assert judge(alone, OneOffFigures(), 2, 1).confidence == "high"
    beside = [
        replace(one, model=replace(one.model, blocked_s=0.9), together=span(1000, waits=(0.55,)))
        for one in alone
    ]
    found = judge(beside, OneOffFigures(), 2, 1)
    assert (found.name, found.confidence) == ("prep-bound (too few workers)", "high")
    assert (
        judge(
            [replace(one, together=span(1000, waits=(0.5,))) for one in beside],
            OneOffFigures(),
            2,
            1,
        ).confidence
        == "medium"
    )


def test_figures_are_medians():
    rounds = [
        Round(span(rate, waits=(0.0,) * 4), span(2 * rate), span(rate / 4, waits=(0.1, 0.1)))
        for rate in (100, 120, 1000)
    ]
    found = median_figures(rounds, 2, 1)
    assert (found.model, found.loader, found.together) == (120, 240, 30) and found.overlap == 0.25
    assert found.wait_share == pytest.approx(0.2) and found.contention == pytest.approx(
        1 - 0.25 / 0.4
    )


def test_stragglers_are_distinguished_from_bursts():
    slow = [0.01] * 10 + [0.5] + [0.01] * 10
    assert straggling(span(waits=slow), 1) == pytest.approx(0.49)
    assert straggling(span(waits=[0.0, 0.0, 0.0, 0.1] * 6), 4) == 0  # four workers deliver at once
    # the start of an epoch is another thing
    assert straggling(span(waits=[None, *[0.01] * 20]), 1) == 0


def test_every_cause_has_its_words():
    source = Path(rules.__file__).read_text()
    assert all(source.count(f'"{name}"') >= 2 for name in VERDICTS)
