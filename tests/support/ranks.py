"""Programs of several ranks that a test starts by torchrun, kills and starts again."""

import os
import signal
import subprocess
import sys
import time


def torchrun(ranks):
    """The words that start a program or a module on so many ranks of this machine."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*command, f"--nproc-per-node={ranks}"]


def start_ranks(program, *arguments, ranks=None, **environment):
    """Starts a program by torchrun, or without it if there are no `ranks`, in a session of its own:
    its processes can be killed together.
    """
    command = torchrun(ranks) if ranks else [sys.executable]
    return subprocess.Popen(
        [*command, str(program), *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
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
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()
