"""What a job found, for other programs."""

import json
import sys
from collections.abc import Mapping
from typing import Any


def print_json(result: Mapping[str, Any]) -> None:
    """Prints it as one line on stdout, unless that is a terminal: a person has read it already."""
    if not sys.stdout.isatty():
        print(json.dumps(result, ensure_ascii=False), flush=True)
