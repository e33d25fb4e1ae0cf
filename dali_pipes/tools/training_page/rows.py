"""Reads the tables that a run has left in its folder."""

import csv
from pathlib import Path

Rows = list[dict[str, str]]


def read_rows(file: Path) -> Rows:
    """Returns the rows of a CSV file; none if there is no such file."""
    if not file.exists():
        return []
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def to_numbers(row: dict[str, str]) -> dict[str, float]:
    """Returns what a row of numbers has; a field that is empty was not measured."""
    return {name: float(value) for name, value in row.items() if value}
