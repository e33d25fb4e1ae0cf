"""Runs the tests that need a GPU: first those that can share it, then those that must be alone.

The first ones run in several processes at once. A `_Lane` is one of these processes; it starts a
new one after each test that crashes it, and reads the outcomes from a file (outcomes.py).
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dali_pipes.errors import DaliPipesError
from gpu_check import outcomes

PYTEST = [
    "-m",
    "pytest",
    "-o",
    "addopts=",
    "-o",
    "filterwarnings=default",
    "-p",
    "no:cacheprovider",
    "--tb=short",
]
AT_ONCE = 8
SHARE = 0.65  # the share of the time for the tests that run at once
LOOK_EVERY_S = 0.2
NO_TIME = ("not ended", "not begun")
Outcome = dict[str, Any]  # test, outcome, seconds, reason


class SuiteError(DaliPipesError):
    """The tests could not be run at all."""


def run(
    root: Path, images: str, folder: Path, seconds: float, cpus: int, fail_without_cuda: bool
) -> dict[str, Any]:
    """Collects and runs the tests.

    Args:
        root: the checkout.
        images: real images, in any form that `Manifest.open` takes.
        folder: receives outcomes.jsonl, and what the tests write.
        seconds: for all of it.
        fail_without_cuda: whether tests fail, and are not skipped, if there is no GPU.

    Returns:
        counts: the number of tests by outcome.
        failed: tests that did not pass, with the reason. Their outcome may be "crashed" (their
            process died) or "not collected" (their file cannot be imported). Skipped tests are not
            among them, nor those of no_time.
        skipped: the number of tests by reason.
        no_time: tests that did not begin or end within the time.

    Raises:
        SuiteError: pytest collects no tests.
    """
    folder.mkdir(exist_ok=True)
    end = time.monotonic() + seconds
    environment = {
        **os.environ,
        "DALI_PIPES_IMAGES": images,
        "OUT": str(folder),
        "OMP_NUM_THREADS": "2",
    }
    environment["FAIL_WITHOUT_CUDA"] = str(int(fail_without_cuda))
    # the caller's own options are not meant for these tests
    environment.pop("PYTEST_ADDOPTS", None)

    with ThreadPoolExecutor(2) as pool:
        marks = ("needs_cuda and not alone", "needs_cuda and alone")
        (shared, done), (alone, broken) = pool.map(
            lambda mark: _collect(root, environment, mark, seconds), marks
        )
    # both collections report the files that cannot be imported
    done += [each for each in broken if each not in done]

    at_once = max(1, min(AT_ONCE, cpus // 2))  # each with two threads
    start = time.monotonic()
    done += _run(
        root,
        environment,
        [shared[place::at_once] for place in range(at_once)],
        start + SHARE * (end - start),
    )
    done += _run(root, environment, [alone], end)

    (folder / "outcomes.jsonl").write_text("".join(json.dumps(each) + "\n" for each in done))
    known = ("passed", "skipped", *NO_TIME)
    return {
        "counts": dict(sorted(Counter(each["outcome"] for each in done).items())),
        "failed": [each for each in done if each["outcome"] not in known],
        "skipped": dict(
            Counter(each["reason"] for each in done if each["outcome"] == "skipped").most_common()
        ),
        "no_time": [each["test"] for each in done if each["outcome"] in NO_TIME],
    }


def _collect(
    root: Path, environment: dict[str, str], marks: str, seconds: float
) -> tuple[list[str], list[Outcome]]:
    """Collects tests, those in a folder `gpu` first, and files that cannot be imported."""
    files = [
        str(file)
        for file in sorted(root.glob("tests/**/test_*.py"))
        if "needs_cuda" in file.read_text()
    ]
    files.sort(key=lambda file: "/gpu/" not in file)

    command = [sys.executable, *PYTEST, "--collect-only", "-q", "-m", marks, *files]

    try:
        done = subprocess.run(
            command,
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=max(seconds, 1),
        )
    except subprocess.TimeoutExpired:
        raise SuiteError(f"pytest did not collect the tests within {seconds:.0f} s") from None

    lines = done.stdout.splitlines()
    broken = [
        line.removeprefix("ERROR ").split(" - ")[0]
        for line in lines
        if line.startswith("ERROR tests/")
    ]
    # 5: pytest collected no test
    if done.returncode not in (0, 5) and not broken:
        raise SuiteError(f"pytest cannot collect the tests: {(done.stdout + done.stderr)[-1500:]}")

    why = "\n".join(line for line in lines if line.startswith("E "))
    tests = [line for line in lines if line.startswith("tests/") and "::" in line]
    return tests, [
        {"test": file, "outcome": "not collected", "seconds": None, "reason": why}
        for file in broken
    ]


def _run(
    root: Path, environment: dict[str, str], chunks: list[list[str]], end: float
) -> list[Outcome]:
    """Runs the chunks at the same time, each in its own processes, until `end`.

    No process is left running, whatever happens.
    """
    with contextlib.ExitStack() as stack:
        lanes = [stack.enter_context(_Lane(root, environment, chunk)) for chunk in chunks]
        while time.monotonic() < end and sum(lane.goes_on() for lane in lanes):
            time.sleep(LOOK_EVERY_S)
    return [outcome for lane in lanes for outcome in lane.outcomes]


class _Lane:
    """Runs tests one after the other, in a new process after each test that crashes its process.

    Attributes:
        outcomes: the outcomes of all tests, after the `with` block.
    """

    def __init__(self, root: Path, environment: dict[str, str], tests: list[str]):
        self.outcomes: list[Outcome] = []
        self._root, self._todo = root, list(tests)
        self._scratch = tempfile.TemporaryDirectory()

        self._output, self._wanted = (
            Path(self._scratch.name, "outcomes.jsonl"),
            Path(self._scratch.name, "tests"),
        )
        self._environment = {**environment, outcomes.FILE: str(self._output)}
        self._process: subprocess.Popen[bytes] | None = None

    def goes_on(self) -> bool:
        """Goes on if the process has ended; returns whether there are tests left."""
        if self._process and self._process.poll() is None:
            return True
        if self._process:
            self._take_in(self._process.returncode)
        if self._todo:
            self._start()
        return bool(self._todo)

    def _start(self) -> None:
        self._output.write_text("")
        self._wanted.write_text("\n".join(self._todo))
        files = f"--basetemp={self._scratch.name}/files"

        command = [sys.executable, *PYTEST, "-p", outcomes.__name__, files, f"@{self._wanted}"]
        nowhere = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command,
            cwd=self._root,
            env=self._environment,
            stdout=nowhere,
            stderr=nowhere,
            # so that `_end` also ends what the tests have started
            start_new_session=True,
        )

    def _take_in(self, status: int | None) -> None:
        """Adds the outcomes that the process reported.

        Args:
            status: its exit status; None: it was ended because the time was over.
        """
        self._end()
        # a crash may cut the last line off
        found = [
            json.loads(line) for line in self._output.read_text().splitlines() if line.endswith("}")
        ]

        begun = dict.fromkeys(line["test"] for line in found)
        ended = {line["test"]: line for line in found if "outcome" in line}
        self.outcomes += ended.values()

        for test in begun:
            if test not in ended:
                outcome = "not ended" if status is None else "crashed"
                self.outcomes.append(
                    {
                        "test": test,
                        "outcome": outcome,
                        "seconds": None,
                        "reason": f"status {status}",
                    }
                )

        if not begun and status is not None:
            raise SuiteError(
                f"pytest ended with status {status} before the first of {len(self._todo)} tests"
            )

        self._todo = [test for test in self._todo if test not in begun]

    def _end(self) -> None:
        """Ends the process and everything that its tests have started."""
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process:
            self._take_in(self._process.poll())
        self.outcomes += [
            {"test": test, "outcome": "not begun", "seconds": None, "reason": "the time was over"}
            for test in self._todo
        ]
        self._scratch.cleanup()
