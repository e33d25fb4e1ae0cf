"""Three ranks killed by SIGKILL at random, three times: then every image is there once, as if
nothing had happened.
"""

import os
import random
import subprocess
import sys

import pytest
from tools.predict.conftest import contents

pytestmark = pytest.mark.slow

# Ranks are forked: what takes seconds to import is imported once, and a rank is in the middle of
# its work when it is killed.
DRIVER = """
import os, random, signal, sys, time, traceback
from pathlib import Path
import torch, torchvision, pyarrow.parquet
import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.tools.predict.config import PredictConfig
from dali_pipes.tools.predict.run import predict
from dali_pipes.training.config import ModelConfig

manifest, seed = sys.argv[1], int(sys.argv[2])
draw = random.Random(seed)

def rank(index, count, out):
    pid = os.fork()
    if pid:
        return pid
    os.environ.update(RANK=str(index), WORLD_SIZE=str(count))
    try:
        predict(PredictConfig(
            data=DataConfig(val=manifest), transform=dp.EvalTransform(size=32, resize=36),
            loader=dp.DaliConfig(device="cpu", num_threads=1), function="slow_model:make",
            model=ModelConfig(name=None), out=out, batch_size=1, part_batches=1, threads=1,
        ))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)

def files():
    return len(list(Path("killed").glob("part-*")))

def status(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

assert status(rank(0, 1, "whole")) == 0
for _ in range(3):
    before, pids = files(), [rank(index, 3, "killed") for index in range(3)]
    while files() == before < 37:
        time.sleep(0.005)
    draw.shuffle(pids)
    for pid in pids:
        time.sleep(draw.random() * 0.06)
        os.kill(pid, signal.SIGKILL)
    print(*map(status, pids), files())
print(*map(status, [rank(index, 3, "killed") for index in range(3)]), files())
"""
MODEL = """
import time
import torch
from torchvision.models import get_model

def make():
    torch.manual_seed(0)
    network = get_model("shufflenet_v2_x0_5", num_classes=7).eval()
    def forward(images):
        time.sleep(0.15)
        return network(images)
    return forward
"""


def test_three_ranks_killed_three_times_equal_an_uninterrupted_run(thumbnails, tmp_path):
    seed = random.SystemRandom().randrange(10**9)
    thumbnails.save(tmp_path / "set.arrow")
    (tmp_path / "slow_model.py").write_text(MODEL)
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "set.arrow"), str(seed)]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    *killed, last = [line.split() for line in done.stdout.splitlines() if not line.startswith("{")]
    shown = f"seed {seed}\n{done.stdout}\n{done.stderr[-2000:]}"
    assert done.returncode == 0 and len(killed) == 3, shown
    assert (
        all("-9" in statuses for *statuses, _ in killed)
        and sum(line.count("-9") for line in killed) >= 6
    ), shown
    assert 0 < int(killed[0][-1]) < 37 and last == ["0", "0", "0", "37"], shown
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole"), shown
