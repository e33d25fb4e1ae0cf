from types import SimpleNamespace

import pytest
from test_verdict import window

from dali_pipes.tools.diagnosis import examine
from dali_pipes.tools.diagnosis.examine import pace, predicted_gain
from dali_pipes.tools.diagnosis.probes import Fix


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(examine, "available_cpus", lambda: 2)


def test_the_slower_part_sets_the_pace_until_the_cores_do():
    assert pace(window(1000, cpu_s=0.1), window(100, cpu_s=0.5)) == 100
    assert pace(window(100, cpu_s=1.0), window(150, cpu_s=1.5)) == pytest.approx(100)  # 10 ms and 10 ms of two cores
    assert pace(window(100, cpu_s=2.0), window(150, cpu_s=1.5)) == pytest.approx(200 / 3)


def test_without_workers_they_take_turns():
    assert pace(window(100), window(100), serial=True) == pytest.approx(50)
    serial, prefetching = SimpleNamespace(in_flight=0), SimpleNamespace(in_flight=2)
    fix = Fix("num_workers=1", "", prefetching, "loader")
    gain = predicted_gain(fix, serial, window(100, cpu_s=0.1), window(100, cpu_s=0.1), lambda program, part: window(100, cpu_s=0.1))
    assert gain == pytest.approx(2)


def test_only_the_part_that_changes_is_run():
    model, loader, asked = window(1000, cpu_s=0.1), window(100, cpu_s=0.5), []

    def probe(program, part):
        asked.append((program, part))
        return window(300, cpu_s=0.5)

    now, changed = SimpleNamespace(in_flight=2), SimpleNamespace(in_flight=2)
    assert predicted_gain(Fix("", "", changed, "loader"), now, model, loader, probe) == pytest.approx(3)
    assert predicted_gain(Fix("", "", changed, "model"), now, model, loader, probe) == pytest.approx(1)
    twice = Fix("advice", "", speeds_up={"loader": 2.0})
    assert predicted_gain(twice, now, model, loader, probe) == pytest.approx(200 / 100)
    assert predicted_gain(Fix("advice", ""), now, model, loader, probe) is None
    assert asked == [(changed, "loader"), (changed, "model")]
