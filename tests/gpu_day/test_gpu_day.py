"""scripts/gpu_day as it is started on the day of a GPU: every measurement, in little time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_day.__main__ import PLAN

ROOT = Path(__file__).parents[2]
# what each measures, besides the figures that all of its rounds have
NAMES = {
    "m1": {"native", "one_decoder", "routed", "two_pipelines"},
    "m3": {"synthetic", "native", "routed", "routed_cpu", "cuda"},
    "m4": {"synthetic", "routed"},
    "m5": {"synthetic", "routed"},
    "m6": {"nothing", "routed"},
    "m7": {"444, load 0.65, fancy", "420, routed", "mixed, load 1.0, plain"},
    "m8": {"synthetic", "routed"},
    "m8_sleeping": {"synthetic", "routed"},
}


def start(*arguments):
    environment = os.environ | {"PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{ROOT}/scripts"}
    command = [sys.executable, "-m", "gpu_day", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT
    )


@pytest.mark.needs_cuda
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_measurement_writes_what_it_found(tmp_path):
    done = start(tmp_path, "", "--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in PLAN:
        found = json.loads((tmp_path / f"{name}.json").read_text())
        assert found["lines"] and all(line in done.stdout for line in found["lines"])
        if name in NAMES:
            (figures,) = found["rounds"]
            assert set(figures) >= NAMES[name]
            assert all(each["images_per_s"] > 0 for each in figures.values())

    # where the time of a batch goes, of which the plan's own part is never nothing
    stages = json.loads((tmp_path / "m2.json").read_text())["lines"]
    assert {line.split(":")[0] for line in stages if ":" in line} == {
        f"{name} {where}"
        for name in ("one_decoder", "routed")
        for where in ("alone", "beside training")
    }
    assert sum("the plan" in line for line in stages) == 4


def test_an_unknown_measurement_is_named(tmp_path):
    done = start(tmp_path, "", "--only", "m1,m99")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(
        f"--only m99: no such measurement; there are {', '.join(PLAN)}"
    )
