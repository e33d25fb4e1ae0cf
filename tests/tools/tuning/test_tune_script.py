"""scripts/tune.py as a user runs it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPO = Path(__file__).parents[3]
QUICK = ["experiment=quick", "pairs=1", "min_seconds=0.3", "min_batches=2", "max_warmup_seconds=1", "host=x"]


def tune(tmp_path, *arguments):
    (tmp_path / "conf/loader").mkdir(parents=True, exist_ok=True)
    folders = [f"into={tmp_path / 'conf/loader'}", f"out={tmp_path / 'runs'}", f"data.cache_dir={tmp_path / 'cache'}"]
    command = [sys.executable, str(REPO / "scripts/tune.py"), *QUICK, *folders, *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env={**os.environ, "COLUMNS": "150"}
    )


SEARCHES = {
    "torch": ["loader.num_workers=1", "search.num_workers=[1]", "search.prefetch_factor=[2]"],
    "dali_cpu": ["loader.num_threads=1", "search.num_threads=[1]", "search.prefetch_queue_depth=[2]"],
}


@pytest.mark.parametrize("loader", SEARCHES)
def test_tune_then_use(image_folder, tmp_path, loader):
    """The default with batches of 16, and one other setting, batches of 8."""
    job = tune(tmp_path, f"data.train={image_folder}", f"loader={loader}", "minutes=6", "batch_sizes=[8]", *SEARCHES[loader])
    out, err = job.communicate(timeout=250)
    assert job.returncode == 0, err
    result = json.loads(out)
    assert result["conclusion"] in err and "Settings that were tried" in err
    (folder,) = (tmp_path / "runs").iterdir()
    assert {"result.json", "manifest.parquet", "trials"} <= {file.name for file in folder.iterdir()}
    for one in result["tries"]:
        assert one["rounds"] >= 2 and one["images_per_s"] > 0 and one["peak_pss_mib"] > 50 and one["cpus"] > 0
    trials = [json.loads(file.read_text()) for file in sorted((folder / "trials").iterdir())]
    assert {trial["jobs"][0]["images"] // len(trial["jobs"][0]["waits_s"]) for trial in trials} == {8, 16}
    preview = [sys.executable, str(REPO / "scripts/preview.py"), f"data.train={image_folder}", "loader=tuned_x", "experiment=quick"]
    preview += [f"data.cache_dir={tmp_path / 'cache'}", f"out={tmp_path / 'p'}"]
    done = subprocess.run(preview, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0 and "37 of 37 images" in done.stdout, done.stderr


MISTAKES = {
    "nothing to search": (["loader=synthetic"], "loader=synthetic has no settings to search"),
    "unknown option": (["search.threads=[1]"], "threads"),
    "an option of another loader": (["loader=torch", "search.num_threads=[1]"], "search.num_threads"),
    "a batch size that cannot be": (["loader=torch", "batch_sizes=[0]"], "batch_sizes is 0"),
    "unknown workload": (["loader=torch", "workload=cold"], "workload is 'cold'; choose one of loader, train"),
    "no such folder": (["loader=torch", "into=/no/such"], "into=/no/such: no such folder"),
    "no images": (["loader=torch", "data.train=/no/such"], "/no/such: no such folder"),
    "too little time": (["loader=torch", "minutes=0.001"], "minutes=0.001 is too short"),
    "too little memory": (
        [
            "loader=torch",
            "max_memory_mib=1",
            "minutes=3",
            "search.num_workers=[1]",
            "search.prefetch_factor=[1]",
            "loader.num_workers=1",
        ],
        "no setting that was tried can be kept",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_in_one_clear_line(image_folder, tmp_path, name):
    arguments, told = MISTAKES[name]
    train = [] if any(each.startswith("data.train=") for each in arguments) else [f"data.train={image_folder}"]
    job = tune(tmp_path, *train, *arguments)
    out, err = job.communicate(timeout=200)
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert (job.returncode, out) == (2, ""), err
    assert "Traceback" not in err and len(errors) == 1 and told in errors[0]
    assert list((tmp_path / "conf/loader").iterdir()) == []


def test_interrupted_by_the_user(image_folder, tmp_path):
    (tmp_path / "conf/loader").mkdir(parents=True)
    (tmp_path / "conf/loader/tuned_x.yaml").write_text("before\n")
    job = tune(tmp_path, f"data.train={image_folder}", "loader=torch", "minutes=5")
    until = time.monotonic() + 100
    while not list(tmp_path.glob("runs/*/trials/*.json")) and time.monotonic() < until:
        time.sleep(0.5)
    job.send_signal(signal.SIGINT)
    out, err = job.communicate(timeout=100)
    assert job.returncode == 130 and err.splitlines()[-1] == "error: interrupted" and out == ""
    assert [file.read_text() for file in (tmp_path / "conf/loader").iterdir()] == ["before\n"]
