"""Runs the tests that need a GPU with pytest: those that can share it, then those that must be
alone.

pytest-xdist runs several at once and starts a new process after each test that crashes its own;
pytest-timeout ends a test that hangs.
"""

import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gpu_check.bench import Bench, PartError

PYTEST = [
    "-m",
    "pytest",
    *("-o", "addopts="),
    *("-o", "filterwarnings=default"),
    # names the file of each test
    *("-o", "junit_family=xunit1"),
    *("-p", "no:cacheprovider"),
    "--tb=short",
    "--timeout-method=thread",
    "--max-worker-restart=1000",
]
AT_ONCE = 8
SHARE = 0.65  # the share of the time for the tests that run at once
TEST_S = 300.0  # seconds for one test, but never more than half of the time
END_S = 15.0  # of the time, to end the processes and to write the report
Outcome = dict[str, str]  # test, outcome, reason


def run_tests(bench: Bench, root: Path, limit: float, fail_without_cuda: bool) -> dict[str, Any]:
    """Runs the tests.

    Args:
        root: the checkout.
        limit: seconds for all of it.
        fail_without_cuda: whether tests fail, and are not skipped, if there is no GPU.

    Returns:
        counts: the number of tests by outcome: "passed", "skipped", "failure" or "error". A test
            whose process died has an error, as has a file that cannot be imported.
        failed: the tests with a failure or an error, with the reason.
        skipped: the number of tests by reason.
        no_time: the number of tests that did not end within the time.
    """
    (bench.details / "suite").mkdir(exist_ok=True)
    end, at_once = time.monotonic() + limit, max(1, min(AT_ONCE, bench.cpus // 2))
    environment = {
        "DALI_PIPES_IMAGES": bench.real_images,
        "OUT": str(bench.details / "suite"),
        "OMP_NUM_THREADS": "2",
        "FAIL_WITHOUT_CUDA": str(int(fail_without_cuda)),
        # the caller's own options are not meant for these tests
        "PYTEST_ADDOPTS": "",
    }

    files = [file for file in root.glob("tests/**/test_*.py") if "needs_cuda" in file.read_text()]
    files.sort(key=lambda file: ("/gpu/" not in str(file), file))

    def run(name: str, marks: str, at_once: int, seconds: float) -> tuple[list[Outcome], int]:
        command = [sys.executable, *PYTEST, *map(str, files), "-m", marks, "-n", str(at_once)]
        return _run(bench, name, command, seconds, root, environment)

    shared, late = run("suite/shared", "needs_cuda and not alone", at_once, SHARE * limit)
    alone, too_late = run("suite/alone", "needs_cuda and alone", 1, end - time.monotonic())

    # a file that cannot be imported is an error of both
    done = [*shared, *(each for each in alone if each not in shared)]
    reasons = (each["reason"] for each in done if each["outcome"] == "skipped")
    return {
        "counts": dict(sorted(Counter(each["outcome"] for each in done).items())),
        "failed": [each for each in done if each["outcome"] not in ("passed", "skipped")],
        "skipped": dict(Counter(reasons).most_common()),
        "no_time": late + too_late,
    }


def _run(
    bench: Bench,
    name: str,
    command: list[str],
    limit: float,
    root: Path,
    environment: dict[str, str],
) -> tuple[list[Outcome], int]:
    """Runs pytest within the time.

    Returns:
        the outcomes of the tests that ended, and the number of those that did not.
    """
    report = bench.details / f"{name}.xml"
    seconds = max(1.0, limit - END_S)
    # pytest reports what there is when it is interrupted
    interrupt = ["timeout", "--foreground", "--signal=INT", str(seconds)]
    options = [
        f"--timeout={min(TEST_S, seconds / 2)}",
        f"--junit-xml={report}",
        f"--basetemp={bench.details / name}",
    ]

    status, output = bench.run(name, [*interrupt, *command, *options], limit, root, **environment)
    if not report.exists():
        log = (bench.details / f"{name}.log").read_text()
        raise PartError(f"pytest ended with status {status}: {(output + log)[-1500:]}")

    outcomes = list(_outcomes(report))
    # as pytest-xdist says it: "8 workers [948 items]"
    items = re.search(r"workers? \[(\d+) items?\]", output)
    return outcomes, max(0, int(items[1]) - len(outcomes)) if items else 0


def _outcomes(report: Path) -> Iterator[Outcome]:
    # without a name: it was running when the time was over
    for case in ElementTree.parse(report).iterfind(".//testcase[@name]"):
        test = f"{case.get('file')}::{case.get('name')}"
        found = next((each for each in case if each.tag in ("failure", "error", "skipped")), None)
        if found is None:
            yield {"test": test, "outcome": "passed", "reason": ""}
        else:
            reason = found.get("message") if found.tag == "skipped" else found.text
            yield {"test": test, "outcome": found.tag, "reason": reason or ""}
