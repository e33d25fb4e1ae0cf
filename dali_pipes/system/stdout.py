"""Writes what a job found: lines for people, one line of JSON for other programs, and a file."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console


def say(console: Console, *lines: str) -> None:
    """Prints lines as they are: without line breaks or colors of rich's, and with brackets that are
    no markup.
    """
    for line in lines:
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def print_json(result: Mapping[str, Any]) -> None:
    """Prints a result as one line on stdout, unless that is a terminal, where a person has read it
    already.
    """
    if not sys.stdout.isatty():
        print(json.dumps(result, ensure_ascii=False), flush=True)


def save_result(folder: Path, result: Mapping[str, Any]) -> Path:
    """Writes the result.json of a run, and returns its path."""
    file = folder / "result.json"
    file.write_text(json.dumps(result, indent=1))
    return file
