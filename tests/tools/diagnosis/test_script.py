"""diagnose -- train.py: what is recognized in real programs, and that nothing runs after it."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.zeros(64, 4)), 8)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
print("words", sys.argv[1:])
{loop}
print("uploaded")
"""
STEP = "(optimizer.zero_grad(), model(x).sum().backward(), optimizer.step())"
TRAINS = f"mean = [x.mean() for (x,) in loader]\nfor (x,) in loader:\n    {STEP}"


pytestmark = pytest.mark.timeout(200)


@pytest.fixture
def diagnose(tmp_path):
    def run(loop, *options, program=PROGRAM):
        (tmp_path / "train.py").write_text(program.format(loop=loop))
        words = ["diagnose", "seconds=0.1", "rounds=1", *options, "--", "train.py", "lr=1", "--x"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "dali_pipes.cli", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)

    return run


def test_the_loop_that_trains_is_measured_and_nothing_runs_after_it(diagnose):
    ended = diagnose(TRAINS)
    result = json.loads(ended.stdout)
    assert ended.returncode == 0 and result["loop"].endswith("train.py:9") and "train.py:8: 8 batches" in result["loops_before"][0]
    assert "words ['lr=1', '--x']" in ended.stderr and "uploaded" not in ended.stderr


@pytest.mark.parametrize(
    ("loop", "options", "message"),
    [
        ("mean = [x.mean() for (x,) in loader]", [], "without a loop over a DataLoader in which an optimizer steps"),
        ("raise ValueError('mine')", [], "ValueError: mine"),
        (f"for (x,) in loader:\n    {STEP}\n    if optimizer.state_dict() and loader.__dict__.setdefault('n', []).append(1) or "
         "len(loader.n) > 4: break", [], "the loop was left by the program itself"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_said(diagnose, loop, options, message):
    ended = diagnose(loop, *options)
    assert ended.returncode == 1 and message in ended.stderr and "error:" in ended.stderr and not ended.stdout


def test_at_the_limit_the_place_is_named(diagnose, tmp_path):
    ended = diagnose("", "limit=5", program="import time\n\ntime.sleep(100)\n")
    assert ended.returncode == 1 and "within limit=5 s" in ended.stderr and "train.py:3" in ended.stderr


@pytest.mark.parametrize("words", [["torchrun", "t.py"], ["a.ipynb"], ["run.sh"], ["no.py"], []])
def test_what_is_no_program_is_refused_by_name(words):
    from dali_pipes.errors import ConfigError
    from dali_pipes.tools.diagnosis.script import check_program

    with pytest.raises(ConfigError, match=r"dali-pipes diagnose|no such file|notebook"):
        check_program(words)
