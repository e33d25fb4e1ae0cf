"""What a job found: lines for people, and one of JSON for other programs."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console


def say(console: Console, *lines: str) -> None:
    """Prints lines as they are: not broken, without colors, and with brackets that are no
    markup.
    """
    for line in lines:
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def print_json(result: Mapping[str, Any]) -> None:
    """Prints it as one line on stdout, unless that is a terminal: a person has read it already."""
    if not sys.stdout.isatty():
        print(json.dumps(result, ensure_ascii=False), flush=True)


def save_result(folder: Path, result: Mapping[str, Any]) -> Path:
    """Writes result.json of a run."""
    file = folder / "result.json"
    file.write_text(json.dumps(result, indent=1))
    return file
