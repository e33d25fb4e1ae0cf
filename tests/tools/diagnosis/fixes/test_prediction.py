from types import SimpleNamespace

import pytest
from spans import span

from dali_pipes.tools.diagnosis.fixes import prediction
from dali_pipes.tools.diagnosis.fixes.prediction import pace, predicted_gain, undisturbed
from dali_pipes.tools.diagnosis.measuring.span import Round
from dali_pipes.tools.diagnosis.programs.base import Fix


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(prediction, "available_cpus", lambda: 2)
    monkeypatch.setattr(prediction, "affinity_cores", lambda: 2)


def test_the_slower_part_sets_the_pace_until_the_cores_do():
    assert pace(span(1000, cpu_s=0.1), span(100, cpu_s=0.5)) == 100
    # 10 ms and 10 ms of two cores
    assert pace(span(100, cpu_s=1.0), span(150, cpu_s=1.5)) == pytest.approx(100)
    assert pace(span(100, cpu_s=2.0), span(150, cpu_s=1.5)) == pytest.approx(200 / 3)


def test_without_workers_they_take_turns():
    assert pace(span(100), span(100), serial=True) == pytest.approx(50)
    serial, prefetching = SimpleNamespace(in_flight=0), SimpleNamespace(in_flight=2)
    fix = Fix("num_workers=1", "", prefetching, "loader")
    rounds = [Round(span(100, cpu_s=0.1), span(100, cpu_s=0.1), span(50))]
    assert predicted_gain(fix, serial, rounds, span(100, cpu_s=0.1)).estimate == pytest.approx(2)


def test_the_part_that_changes_sets_the_gain():
    now = changed = SimpleNamespace(in_flight=2)
    rounds = [Round(span(1000, cpu_s=0.1), span(100, cpu_s=0.5), span(98))]

    def gain(fix, after=None):
        return predicted_gain(fix, now, rounds, after)

    assert gain(Fix("", "", changed, "loader"), span(300, cpu_s=0.5)).estimate == pytest.approx(
        3, rel=0.02
    )
    assert gain(Fix("", "", changed, "model"), span(300, cpu_s=0.5)).estimate == pytest.approx(
        1, rel=0.02
    )
    assert gain(Fix("advice", ""), None) is None
    twice = gain(Fix("advice", "", speeds_up={"loader": (2.0, 2.0)}))
    assert twice.low < 2 < twice.high and twice.estimate == pytest.approx(2, rel=0.02)


def test_what_only_waits_less_still_needs_its_cores():
    now = SimpleNamespace(in_flight=2)
    rounds = [Round(span(1000, cpu_s=0.1), span(100, cpu_s=1.9), span(100))]
    tenfold = {"loader": (10.0, 10.0)}
    assert predicted_gain(Fix("", "", speeds_up=tenfold), now, rounds, None).estimate < 1.1
    assert (
        predicted_gain(
            Fix("", "", speeds_up=tenfold, computes_less=True), now, rounds, None
        ).estimate
        > 5
    )


def test_the_interval_holds_every_round_and_both_ends_of_what_a_change_may_gain():
    now = SimpleNamespace(in_flight=2)
    rounds = [
        Round(span(1000, cpu_s=0.1), span(rate, cpu_s=0.1), span(rate)) for rate in (80, 100, 125)
    ]
    found = predicted_gain(Fix("", "", speeds_up={"loader": (1.5, 3.0)}), now, rounds, None)
    assert found.low < 1.5 and found.high > 3.0 and 1.5 <= found.estimate <= 3.0
    changed = predicted_gain(Fix("", "", now, "loader"), now, rounds, span(200, cpu_s=0.1))
    assert (
        changed.low <= 200 / 125
        and changed.high >= 200 / 80
        and changed.estimate == pytest.approx(2)
    )


def test_rounds_without_other_programs_have_the_paces_of_parts_that_are_freed():
    """Beside others the model takes nearly all of the time; without them it is the faster part, and
    the loader is waited for.
    """
    model, loader = span(100, cpu_s=0.5, queued_s=0.5), span(1000, cpu_s=0.5, waits=(0.1, 0.9))
    now = Round(model, loader, span(95, waits=(0.0,), busy=1.0, queued_s=1.0, blocked_s=0.5))

    (serial,) = undisturbed([now], True, 40.0, 2.0)
    assert serial.together.rate == pytest.approx(1 / (1 / 4000 + 1 / 2000))
    assert serial.together.wait_share == pytest.approx(
        2 / 3
    ) and serial.loader.rate == pytest.approx(2000)
    assert (
        serial.together.blocked_s is None and serial.loader.waits_s[0] == serial.loader.waits_s[1]
    )

    (ahead,) = undisturbed([now], False, 40.0, 2.0)
    rate = 1 / max(1 / 4000, 1 / 2000, (0.5 / 100 + 0.5 / 1000) / 2)  # or what the two cores can do
    assert ahead.together.rate == pytest.approx(rate)
    assert ahead.together.busy * 2 == pytest.approx(ahead.together.cores)  # nothing else is left
