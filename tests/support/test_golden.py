import json
import math

import pytest
from golden import differences, hold_to


def test_a_difference_is_named_by_its_place(tmp_path):
    file = tmp_path / "kept.json"
    file.write_text(json.dumps({"folder": {"labels": [0, 1], "gone": 1}}))

    with pytest.raises(AssertionError) as caught:
        hold_to(file, {"folder": {"labels": (0, 2)}, "new": "text"})

    assert str(caught.value).splitlines()[1:] == [
        "folder / gone: was 1, is nothing",
        "folder / labels [1]: was 1, is 2",
        'new: was nothing, is "text"',
    ]


def test_equal_values_pass_and_a_missing_file_does_not(tmp_path, monkeypatch):
    monkeypatch.delenv("UPDATE_GOLDEN", raising=False)
    with pytest.raises(AssertionError, match="was nothing"):
        hold_to(tmp_path / "kept.json", {"a": 1})

    monkeypatch.setenv("UPDATE_GOLDEN", "1")
    hold_to(tmp_path / "kept.json", {"a": (1, 2)})
    monkeypatch.delenv("UPDATE_GOLDEN")
    hold_to(tmp_path / "kept.json", {"a": [1, 2]})


def test_tests_that_share_a_file_leave_the_parts_of_others_alone(tmp_path, monkeypatch):
    file = tmp_path / "kept.json"
    monkeypatch.setenv("UPDATE_GOLDEN", "1")
    hold_to(file, {"a": 1}, part="one")
    hold_to(file, {"a": 2}, part="two")
    hold_to(file, {"a": 3}, part="one")
    assert json.loads(file.read_text()) == {"one": {"a": 3}, "two": {"a": 2}}

    monkeypatch.delenv("UPDATE_GOLDEN")
    hold_to(file, {"a": 2}, part="two")
    with pytest.raises(AssertionError, match="two / a: was 2, is 3"):
        hold_to(file, {"a": 3}, part="two")


@pytest.mark.parametrize(("was", "now"), [(1, True), (0, 0.0), ("1", 1), ([1], [1, 1]), ({}, [])])
def test_values_of_other_kinds_differ(was, now):
    assert list(differences(was, now))


def test_no_number_differs_from_a_number():
    assert list(differences([1.0], [math.nan]))
