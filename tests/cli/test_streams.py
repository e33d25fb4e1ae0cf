"""Standard streams that are closed, full, or read by nobody."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dali_pipes.cli.streams import LastingStream

FULL = "error: what was printed could not be written to stdout: no space left on device\n"


@pytest.fixture
def shell(tmp_path):
    def run(words, streams):
        program = f"set -o pipefail; {sys.executable} -m dali_pipes.cli {words} {streams}"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        how = {"capture_output": True, "text": True, "cwd": tmp_path, "env": environment}
        return subprocess.run(["bash", "-c", program], **how)

    return run


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize(("streams", "status"), [("<&- >&- 2>&-", 0), ("2>&1 | true", 141)])
def test_a_job_goes_on_when_nobody_takes_what_it_prints(
    shell, image_folder, tmp_path, streams, status
):
    images = f"data.train={image_folder} data.val={image_folder}"
    small = "transform.size=32 eval_transform.resize=36 batch_size=8 warmup_epochs=0"
    run = f"model.name=squeezenet1_1 epochs=1 loader=torch loader.num_workers=1 out={tmp_path}/run"
    done = shell(f"train {images} {small} {run}", streams)
    assert done.returncode == status, done.stderr
    assert json.loads((tmp_path / "run/summary.json").read_text())["epochs"] == 1


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("streams", "status", "said"),
    [("<&- 2>&-", 0, ""), (">&-", 0, ""), ("| true", 141, ""), (">/dev/full", 2, FULL)],
)
def test_what_a_scan_says_of_what_it_prints(shell, image_folder, streams, status, said):
    done = shell(f"scan data.train={image_folder}", streams)
    assert done.returncode == status
    assert done.stderr == said
    assert ("images" in done.stdout) == (streams == "<&- 2>&-")


@pytest.mark.slow
def test_a_mistake_keeps_its_status(shell):
    done = shell("train eval_only=true checkpoint=none.pt", ">&- 2>&-")
    assert done.returncode == 2


@pytest.mark.parametrize("stream", ["full", "left"])
def test_a_stream_goes_nowhere_once_its_file_takes_nothing(stream):
    if stream == "full":
        file = Path("/dev/full").open("w")  # noqa: SIM115
    else:
        reader, writer = os.pipe()
        os.close(reader)
        file = os.fdopen(writer, "w")
    lasting = LastingStream(file)
    for _ in range(3):
        print("x" * 100_000, file=lasting)
    lasting.flush()
    assert isinstance(lasting.lost, OSError if stream == "full" else BrokenPipeError)
    file.close()
