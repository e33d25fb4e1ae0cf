"""The bars of a report of a diagnosis."""

import io

import pytest
from rich.console import Console

from dali_pipes.tools.diagnosis.items.profile import ItemPart, ItemProfile
from dali_pipes.tools.diagnosis.report import BAR, _bars, item_parts, step_parts
from dali_pipes.tools.diagnosis.verdict.figures import TrainingFigures


def rows(parts):
    """The name, the share and the bar of each line, in a terminal of 80 columns."""
    out = io.StringIO()
    Console(file=out, width=80).print(_bars("Where the time goes", parts))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80 and lines[0].strip() == "Where the time goes"
    cells = [line.strip("│").split("│") for line in lines if line.startswith("│")]
    return [(name.strip(), share.strip(), bar[1 : 1 + BAR]) for name, share, bar in cells]


def figures(**shares):
    names = TrainingFigures.__dataclass_fields__
    return TrainingFigures(**dict.fromkeys(names, 0.0) | shares)


def test_the_time_of_training_is_one_bar_in_pieces():
    parts = list(step_parts(figures(wait_share=0.3, start_share=0.1, contention=0.5)))
    assert sum(share for _, share in parts) == pytest.approx(1)
    assert rows(parts) == [
        ("the model's step, as alone", "30%", "█" * 9 + " " * 21),
        ("the step, longer than alone", "30%", " " * 9 + "█" * 9 + " " * 12),
        ("waiting for batches", "30%", " " * 18 + "█" * 9 + " " * 3),
        ("starting epochs", "10%", " " * 27 + "█" * 3),
    ]


def test_what_takes_no_time_has_no_line_and_what_takes_little_is_to_be_seen():
    parts = step_parts(figures(start_share=0.006))
    assert [(name, bar.strip()) for name, _, bar in rows(list(parts))] == [
        ("the model's step, as alone", "█" * 30),
        ("starting epochs", "█"),
    ]


def test_the_time_of_an_item_is_one_bar_in_pieces():
    """Names are the user's own, and may be long or look like markup."""
    long = ItemPart(
        "a Python loop in [b]resize_all()", "a_long_name.py:31", "", 0.6, 0.0, False, ""
    )
    small = [ItemPart(f"part {number}", "", "", 0.05, 0.0, False, "") for number in range(7)]
    profile = ItemProfile(1, 0, 0.002, 0.0, 0.0, 0.0, 0.0, [long, *small])
    parts = list(item_parts(profile))
    assert sum(share for _, share in parts) == pytest.approx(1)
    shown = rows(parts)
    assert " ".join(name for name, _, _ in shown[:2]) == f"{long.name} in {long.where}"
    assert [share for _, share, _ in shown] == ["60%", "", "5%", "5%", "5%", "5%", "20%"]
    assert shown[-1] == ("all else", "20%", " " * 24 + "█" * 6)
