"""Bars of progress: when they appear, and what they count."""

import io

import pytest
from rich.console import Console

from dali_pipes.system import progress


class Clock:
    """Time that passes only when the test says so."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def screen(monkeypatch):
    """What a terminal gets, and the clock of the bars."""
    text, clock = io.StringIO(), Clock()
    monkeypatch.setattr(
        progress, "Console", lambda **options: Console(file=text, force_terminal=True, width=80)
    )
    monkeypatch.setattr(progress.time, "monotonic", clock.monotonic)
    return text, clock


def shown(screen, seconds, after_s, count=20):
    text, clock = screen
    for _ in progress.track(range(count), "reading labels", count, after_s=after_s):
        clock.now += seconds
    return text.getvalue()


def test_work_that_is_short_has_no_bar(screen):
    assert shown(screen, 0.05, after_s=2.0) == ""


def test_a_bar_appears_after_a_time_whatever_the_count(screen):
    text = shown(screen, 1.0, after_s=2.0)
    assert "reading labels" in text and "20/20" in text


def test_other_bars_appear_at_once_and_count_each_item(screen):
    assert "reading labels" in shown(screen, 0.0, after_s=0.0)
    assert "20/20" in screen[0].getvalue()


def test_nothing_is_shown_where_there_is_no_terminal(capsys):
    assert list(progress.track(range(3), "reading", 3)) == [0, 1, 2]
    assert capsys.readouterr().err == ""
