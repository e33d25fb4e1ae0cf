"""The report for the terminal."""

import os
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dali_pipes.measure.wording import comparison, control_line
from dali_pipes.tools.preparation.measure import AFTER, BEFORE
from dali_pipes.tools.preparation.outcome import Outcome


def print_outcome(console: Console, split: str, outcome: Outcome) -> None:
    """A table of one split, and every file that was left out."""
    table = Table(title=escape(split), show_header=False)
    made = outcome.images - outcome.kept
    table.add_row("images", f"{outcome.images:,}")
    table.add_row("encoded", f"{made - outcome.same_pixels:,}")
    table.add_row("copied, pixels unchanged", f"{outcome.same_pixels:,}")
    if outcome.kept:
        table.add_row("kept from an earlier run", f"{outcome.kept:,}")
    table.add_row("left out", f"{len(outcome.left_out):,}")
    share = outcome.bytes_after / max(outcome.bytes_before, 1)
    table.add_row("size", f"{_size(outcome.bytes_before)} before, {_size(outcome.bytes_after)} after: {share:.2f} ×")
    if outcome.difference:
        for name in ("evaluation", "training"):
            found = outcome.difference[name]
            figures = f"mean {found['mean']:.2f}, p99 {found['p99']:.0f}, max {found['max']:.0f}"
            table.add_row(f"pixels, {name}", f"{figures} of 255 over {outcome.difference['images']} images")
    console.print(table)
    for path, why in outcome.left_out:
        readable = os.fsencode(path).decode("utf-8", "backslashreplace")
        console.print(f"left out: {readable}: {why}", markup=False, highlight=False)


def print_measured(console: Console, result: dict[str, Any]) -> None:
    pairs = result["protocol"]["pairs"]
    for line in (
        f"{comparison(AFTER, BEFORE, result['arms'][AFTER]['ratio'], pairs)}.",
        control_line(result["control"], result["baseline"]),
        f"Figures: {result['folder']}/result.json",
    ):
        console.print(line, markup=False, highlight=False)


def _size(count: int) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
