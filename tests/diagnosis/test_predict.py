import pytest
from diagnosis.test_verdict import window

from dali_pipes.diagnosis import predict
from dali_pipes.diagnosis.predict import pace, predicted_gain
from dali_pipes.diagnosis.subject import Fix


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(predict, "available_cpus", lambda: 2)


def test_the_slower_part_sets_the_pace_until_the_cores_do():
    assert pace(window(1000, cpu_s=0.1), window(100, cpu_s=0.5)) == 100
    assert pace(window(100, cpu_s=1.0), window(150, cpu_s=1.5)) == pytest.approx(100)  # 10 ms and 10 ms of two cores
    assert pace(window(100, cpu_s=2.0), window(150, cpu_s=1.5)) == pytest.approx(200 / 3)


def test_only_the_part_that_changes_is_run():
    model, loader, asked = window(1000, cpu_s=0.1), window(100, cpu_s=0.5), []

    def probe(subject, part):
        asked.append((subject, part))
        return window(300, cpu_s=0.5)

    assert predicted_gain(Fix("", "", "changed", "loader"), model, loader, probe) == pytest.approx(3)
    assert predicted_gain(Fix("", "", "changed", "model"), model, loader, probe) == pytest.approx(1)
    twice = Fix("advice", "", speeds_up={"loader": 2.0})
    assert predicted_gain(twice, model, loader, probe) == pytest.approx(200 / 100)
    assert predicted_gain(Fix("advice", ""), model, loader, probe) is None
    assert asked == [("changed", "loader"), ("changed", "model")]
