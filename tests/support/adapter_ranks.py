"""Examples, and programs of several ranks that a test starts, kills and starts again."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
WORKERS = Path(__file__).parents[1] / "adapters"


def example(library):
    """Its main(), on one thread: those of PyTorch wait for each other where cores are few and
    busy.
    """
    main, threads = (
        runpy.run_path(str(EXAMPLES / library / "train.py"))["main"],
        torch.get_num_threads(),
    )

    def run(*arguments, **options):
        torch.set_num_threads(1)
        try:
            return main(*arguments, **options)
        finally:
            torch.set_num_threads(threads)

    return run


def start(name, *arguments, ranks=None):
    """A worker of tests/adapters/, by torchrun where `ranks` are given."""
    torchrun = (
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        if ranks
        else []
    )
    command = [sys.executable, *torchrun, str(WORKERS / f"{name}.py"), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command,
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    _, message = process.communicate(timeout=200)
    assert process.returncode == 0, message[-3000:]


def kill_after(process, reached):
    """SIGKILL to all ranks as soon as `reached()`."""
    deadline = time.time() + 150
    while not reached():
        assert process.poll() is None, process.stderr.read()[-3000:]
        assert time.time() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()


def rows(folder, rank):
    """What a rank has noted so far, a line a batch."""
    file = folder / f"rank{rank}.jsonl"
    return (
        [json.loads(line) for line in file.read_text().splitlines() if line.endswith("]")]
        if file.exists()
        else []
    )
