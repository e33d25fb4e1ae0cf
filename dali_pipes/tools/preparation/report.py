"""Counts and sizes of the written images, and the report for the terminal."""

import os
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dali_pipes.measure.wording import comparison, control_line
from dali_pipes.tools.preparation.measure import AFTER, BEFORE


@dataclass(slots=True)
class Outcome:
    """Counts and bytes of the written files, including those of an earlier run.

    Attributes:
        images: number of written images.
        same_pixels: those of them that this run did not encode.
        kept: those of them from an earlier run.
        bytes_before, bytes_after: of the written images, as files or shards.
        left_out: path and reason of every file that could not be used.
        difference: of the pixels before and after (difference.py), if they were compared.
    """

    images: int = 0
    same_pixels: int = 0
    kept: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    left_out: list[tuple[str, str]] = field(default_factory=list)
    difference: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


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
