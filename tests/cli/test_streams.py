"""Standard streams that are closed, full, or read by nobody."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dali_pipes.cli.streams import Printed, prints_its_result

CLOSED, FULL = "error: the result could not be written to stdout: it is closed", "no space left"


@pytest.fixture
def shell(tmp_path):
    def run(words, streams):
        program = f"set -o pipefail; {sys.executable} -m dali_pipes.cli {words} {streams}"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        how = {"capture_output": True, "text": True, "cwd": tmp_path, "env": environment}
        return subprocess.run(["bash", "-c", program], **how)

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("streams", "status", "said"),
    [
        (">&-", 2, CLOSED),
        (">/dev/full", 2, FULL),
        ("2>&-", 0, ""),
        ("<&-", 0, ""),
        ("<&- >&- 2>&-", 2, ""),
        ("| true", 141, ""),
    ],
)
@pytest.mark.parametrize("words", ["--version", "scan --help"])
def test_a_result_that_is_printed_must_be_written(shell, words, streams, status, said):
    done = shell(words, streams)
    assert done.returncode == status and said in done.stderr
    assert done.stderr.count("\n") == bool(said)
    assert bool(done.stdout) == (status == 0)


@pytest.mark.slow
@pytest.mark.parametrize("streams", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_scan_and_the_doctor_without_streams(shell, image_folder, streams):
    scan = shell(f"scan data.train={image_folder}", streams)
    doctor = shell("doctor", streams)
    for done, well in ((scan, (0,)), (doctor, (0, 1))):
        assert done.returncode in (well if streams == "2>&-" else (2,))
        assert "Traceback" not in done.stderr and "executing job" not in done.stderr
        assert bool(done.stdout) == (streams == "2>&-")


@pytest.mark.slow
@pytest.mark.parametrize(
    "streams",
    [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-", ">/dev/full", ">/dev/full 2>&1", "| true"],
)
def test_a_job_that_writes_files_ends_well(shell, image_folder, tmp_path, streams):
    images = f"data.train={image_folder} data.val={image_folder}"
    small = "transform.size=32 eval_transform.resize=36 batch_size=8 warmup_epochs=0"
    run = f"model.name=squeezenet1_1 epochs=1 loader=torch loader.num_workers=1 out={tmp_path}/run"
    done = shell(f"train {images} {small} {run}", streams)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "run/summary.json").read_text())["epochs"] == 1
    assert (tmp_path / "run/report.html").exists()


@pytest.mark.slow
def test_an_evaluation_is_a_result(shell):
    assert shell("train eval_only=true checkpoint=none.pt", ">&-").returncode == 2


@pytest.mark.parametrize("must", [True, False])
def test_a_stream_goes_nowhere_once_its_file_takes_nothing(must):
    stream = Printed(Path("/dev/full").open("w"), must)  # noqa: SIM115
    for _ in range(3):
        print("x" * 100_000, file=stream)
    stream.close()
    assert bool(stream.lost) == must and (not must or FULL in stream.lost)


@pytest.mark.parametrize("must", [True, False])
def test_a_reader_that_leaves(must):
    reader, writer = os.pipe()
    os.close(reader)
    stream = Printed(os.fdopen(writer, "w"), must)
    if must:
        with pytest.raises(BrokenPipeError):
            print("x" * 100_000, file=stream)
    print("x" * 100_000, file=stream)
    stream.close()
    assert stream.lost is None


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("", True),
        ("--help", True),
        ("help", True),
        ("doctor", True),
        ("scan data.train=a", True),
        ("compare a b", True),
        ("train --help", True),
        ("train epochs=1 --cfg job", True),
        ("train eval_only=true checkpoint=a", True),
        ("train epochs=1", False),
        ("train -m lr=1,2", False),
        ("migrate -- train.py --help", False),
        ("diagnose -- train.py eval_only=true", False),
        ("prepare data.train=a", False),
    ],
)
def test_which_results_are_printed(words, printed):
    assert prints_its_result(words.split()) == printed
