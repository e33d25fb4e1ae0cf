"""A sweep (`-m`) of which runs fail: what has been done stays, and what can be done is done."""

import json
import subprocess
import sys

import pytest

# one process for all sweeps, since each takes seconds to start
PROGRAM = """
import contextlib, io, json, sys
from dali_pipes.cli.hydra import run
from dali_pipes.errors import ConfigError, DaliPipesError

KINDS = {"diverged": DaliPipesError, "option": ConfigError}

def sweep(failures, words):
    def job(options):
        if str(options.seed) in failures:
            raise KINDS[failures[str(options.seed)]](f"seed {options.seed} cannot be")
        done.append(options.seed)

    sys.argv[1:], done, status, errors = words, [], 0, io.StringIO()
    with contextlib.redirect_stderr(errors):
        try:
            run("preview", job, "")
        except SystemExit as error:
            status = error.code
    said = [line for line in errors.getvalue().splitlines() if line.startswith("error: ")]
    return {"done": done, "errors": said, "status": status}

with contextlib.redirect_stdout(sys.stderr):
    found = [sweep(*case) for case in json.loads(sys.argv[1])]
print(json.dumps(found))
"""

SWEEP = ["-m", "seed=1,2,3"]
CASES = {
    "none": ({}, SWEEP),
    "first": ({1: "diverged"}, SWEEP),
    "later": ({2: "option", 3: "diverged"}, SWEEP),
    "an option before any success": ({1: "option"}, SWEEP),
    "an option, with no success": ({1: "diverged", 2: "option"}, SWEEP),
    "no sweep": ({1: "diverged"}, ["seed=1"]),
}


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweeps")
    (folder / "sweep.py").write_text(PROGRAM)
    command = [sys.executable, "sweep.py", json.dumps(list(CASES.values()))]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "done", "failed", "end"),
    [
        ("none", [1, 2, 3], [], None),
        ("first", [2, 3], [1], "1 of 3 runs of the sweep failed: 0"),
        ("later", [1], [2, 3], "2 of 3 runs of the sweep failed: 1, 2"),
        # such an option is most likely wrong in all runs
        ("an option before any success", [], [], "seed 1 cannot be"),
        ("an option, with no success", [], [1], "seed 2 cannot be"),
        ("no sweep", [], [], "seed 1 cannot be"),
    ],
)
def test_a_run_that_fails_does_not_end_the_others(sweeps, case, done, failed, end):
    named = [f"error: run {seed - 1} (seed={seed}): seed {seed} cannot be" for seed in failed]
    assert sweeps[case] == {
        "done": done,
        "errors": named + ([f"error: {end}"] if end else []),
        "status": 2 if end else 0,
    }
