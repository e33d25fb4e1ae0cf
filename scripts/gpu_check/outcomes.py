"""A pytest plugin that writes a line of JSON when a test begins and when it ends.

So a crash loses no result, and the last test that began is the one that crashed.
"""

import json
import os
from typing import Any

FILE = "DALI_PIPES_OUTCOMES"  # the environment variable that names the file
_LONGEST = 6_000  # characters of a failure that are kept, from its end


def pytest_runtest_logstart(nodeid: str) -> None:
    _write({"test": nodeid})


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        reason = (
            report.longrepr[2]
            if report.skipped and isinstance(report.longrepr, tuple)
            else str(report.longrepr or "")
        )
        _write(
            {
                "test": report.nodeid,
                "outcome": report.outcome,
                "seconds": round(report.duration, 2),
                "reason": reason[-_LONGEST:],
            }
        )


def _write(line: dict[str, Any]) -> None:
    with open(os.environ[FILE], "a") as file:
        print(json.dumps(line), file=file)
