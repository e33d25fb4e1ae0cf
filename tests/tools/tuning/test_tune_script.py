"""The job tune as a user runs it."""

import json
import signal
import subprocess
import sys
import time

import pytest

QUICK = [
    "experiment=quick",
    "pairs=1",
    "min_seconds=0.3",
    "min_batches=2",
    "max_warmup_seconds=1",
    "host=x",
]


def folders(tmp_path):
    (tmp_path / "conf/loader").mkdir(parents=True, exist_ok=True)
    return [
        f"into={tmp_path / 'conf/loader'}",
        f"out={tmp_path / 'runs'}",
        f"data.cache_dir={tmp_path / 'cache'}",
    ]


SEARCHES = {
    "torch": ["loader.num_workers=1", "search.num_workers=[1]", "search.prefetch_factor=[2]"],
    "dali_cpu": [
        "loader.num_threads=1",
        "search.num_threads=[1]",
        "search.prefetch_queue_depth=[2]",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("loader", SEARCHES)
def test_tune_then_use(command, image_folder, tmp_path, loader):
    """The default with batches of 16, and one other setting, batches of 8."""
    use = [f"data.train={image_folder}", f"data.cache_dir={tmp_path / 'cache'}"]
    done = command(
        "tune",
        *QUICK,
        *folders(tmp_path),
        *use,
        f"loader={loader}",
        "minutes=6",
        "batch_sizes=[8]",
        *SEARCHES[loader],
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (
        result["conclusion"] in " ".join(done.stderr.split())
        and "Settings that were tried" in done.stderr
    )
    (folder,) = (tmp_path / "runs").iterdir()
    assert {"result.json", "manifest.parquet", "trials"} <= {file.name for file in folder.iterdir()}
    for one in result["tries"]:
        assert (
            one["rounds"] >= 2
            and one["images_per_s"] > 0
            and one["peak_pss_mib"] > 50
            and one["cpus"] > 0
        )
    trials = [json.loads(file.read_text()) for file in sorted((folder / "trials").iterdir())]
    assert {trial["jobs"][0]["images"] // len(trial["jobs"][0]["waits_s"]) for trial in trials} == {
        8,
        16,
    }
    used = command("preview", *use, "loader=tuned_x", "experiment=quick", f"out={tmp_path / 'p'}")
    assert used.returncode == 0 and "37 of 37 images" in used.stdout, used.stderr


MISTAKES = {
    "nothing to search": (["loader=tfdata"], "loader=tfdata has no settings to search"),
    "unknown option": (["search.threads=[1]"], "threads"),
    "an option of another loader": (
        ["loader=torch", "search.num_threads=[1]"],
        "search.num_threads",
    ),
    "a batch size that cannot be": (["loader=torch", "batch_sizes=[0]"], "batch_sizes is 0"),
    "unknown workload": (
        ["loader=torch", "workload=cold"],
        "workload is 'cold'; choose one of loader, train",
    ),
    "no folder": (["loader=torch", "into=/dev/null/x"], "into=/dev/null/x: /dev/null is no folder"),
    "no images": (["loader=torch", "data.train=/no/such"], "/no/such: no such folder"),
    "no such model": (
        ["loader=torch", "workload=train", "model.name=resnet"],
        "model.name is 'resnet'",
    ),
}


@pytest.mark.few
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_in_one_clear_line(command, image_folder, tmp_path, name):
    arguments, message = MISTAKES[name]
    done = command("tune", *QUICK, *folders(tmp_path), f"data.train={image_folder}", *arguments)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Traceback" not in done.stderr and len(errors) == 1 and message in errors[0]
    assert list((tmp_path / "conf/loader").iterdir()) == []


@pytest.mark.slow
def test_interrupted_by_the_user(image_folder, tmp_path):
    (tmp_path / "conf/loader").mkdir(parents=True)
    (tmp_path / "conf/loader/tuned_x.yaml").write_text("before\n")
    asked = [*QUICK, *folders(tmp_path), f"data.train={image_folder}", "loader=torch", "minutes=5"]
    command = [sys.executable, "-m", "dali_pipes.cli", "tune", *asked]
    job = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    until = time.monotonic() + 100
    while not list(tmp_path.glob("runs/*/trials/*.json")) and time.monotonic() < until:
        time.sleep(0.5)
    job.send_signal(signal.SIGINT)
    out, err = job.communicate(timeout=100)
    assert job.returncode == 130 and err.splitlines()[-1] == "error: interrupted" and out == ""
    assert [file.read_text() for file in (tmp_path / "conf/loader").iterdir()] == ["before\n"]
