"""diagnose -- train.py: what is recognized in real programs, and that nothing runs after it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
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

WAITS = """
import multiprocessing, os, pathlib, time

def work():
    pathlib.Path("part").write_text(f"{os.getppid()} {os.getpid()}")
    os.rename("part", "worker")
    time.sleep(600)

if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=work)
    worker.start()
    worker.join()
"""

pytestmark = pytest.mark.timeout(200)


@pytest.fixture
def diagnose(tmp_path):
    def run(loop, *options, program=PROGRAM):
        (tmp_path / "train.py").write_text(program.format(loop=loop))
        words = ["diagnose", "seconds=0.1", "rounds=1", *options, "--", "train.py", "lr=1", "--x"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "dali_pipes.cli", *words]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
        )

    return run


@pytest.mark.slow
def test_the_loop_that_trains_is_measured_and_nothing_runs_after_it(diagnose, tmp_path):
    ended = diagnose(TRAINS, "out=kept")
    result = json.loads(ended.stdout)
    assert (
        ended.returncode == 0
        and result["loop"].endswith("train.py:9")
        and "train.py:8: 8 batches" in result["loops_before"][0]
    )
    assert "words ['lr=1', '--x']" in ended.stderr and "uploaded" not in ended.stderr
    (file,) = tmp_path.glob("kept/*/result.json")
    assert (
        json.loads(file.read_text()) == result
        and result["program"] == ["train.py", "lr=1", "--x"]
        and str(file) in ended.stderr
    )
    assert result["provenance"]["overrides"] == ["seconds=0.1", "rounds=1", "out=kept"]
    # the report, and then what waits
    explained = ended.stderr.index("What from_torch does with its loader:")
    assert ended.stderr.index("Where the time of training goes") < explained
    assert "no picture was opened that waits" in ended.stderr[explained:]


@pytest.mark.slow
def test_checkpoints_of_the_loop_stay_as_they_were_and_the_report_says_so(diagnose, tmp_path):
    saves = (
        "save_file({{'w': model.weight}}, 'w.safetensors')",
        "os.path.exists('w.pt') and os.replace('w.pt', 'w-1.pt')",
        "save(model, 'tmp.pt'); os.replace('tmp.pt', 'w.pt')",
        "open('log', 'a').write('a step\\n')",
        "save(model, 'other.pt')",
    )
    start = "import os\nfrom torch import save\nfrom safetensors.torch import save_file\n"
    loop = f"for (x,) in loader:\n    {STEP}\n    " + "\n    ".join(saves)
    ended = diagnose(loop.replace("{{", "{").replace("}}", "}"), program=start + PROGRAM)
    assert ended.returncode == 0, ended.stderr

    # the first step was the program's own, before its loop was found
    assert (tmp_path / "log").read_text() == "a step\n"
    result = json.loads(ended.stdout)
    assert [Path(each).name for each in result["files_kept"]] == [
        "log",
        "other.pt",
        "tmp.pt",
        "w-1.pt",
        "w.pt",
        "w.safetensors",
    ]
    assert not result["files_made"] and not (tmp_path / "w-1.pt").exists()
    assert "Held back while the loop was measured" in ended.stderr


@pytest.mark.slow
def test_a_program_that_fails_ends_with_its_own_status_and_traceback(diagnose):
    ended = diagnose("print('x', file=sys.stderr)\nraise SystemExit(3)")
    assert (
        ended.returncode == 3
        and "train.py lr=1 --x was not diagnosed (it ended by itself with 3" in ended.stderr
    )
    assert not ended.stdout


@pytest.mark.slow
def test_at_the_limit_the_place_is_named(diagnose, tmp_path):
    ended = diagnose("", "limit=5", program="import time\n\ntime.sleep(100)\n")
    assert (
        ended.returncode == 1
        and "within limit=5 s" in ended.stderr
        and "train.py:3" in ended.stderr
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["torchrun", "--nproc-per-node", "2", "t.py", "--lr", "1"],
            "torchrun .* diagnose -- t.py --lr 1$",
        ),
        (["accelerate", "launch", "t.py"], "accelerate .* diagnose -- t.py$"),
        (
            ["python", "-m", "torch.distributed.run", "t.py"],
            "torch.distributed.run .* diagnose -- t.py$",
        ),
        (["uv", "run", "t.py"], "uv: .* diagnose -- t.py$"),
        (["a.ipynb"], "notebook"),
        (["a.ipy"], "IPython"),
        (["run.sh"], "shell script"),
        (["python", "-c", "print()"], "without a file"),
        (["no.py"], "no such file"),
        (["python"], "no program"),
        ([], "no program"),
    ],
)
def test_what_is_no_program_is_refused_by_name(words, message):
    from dali_pipes.errors import ConfigError
    from dali_pipes.tools.diagnosis.watching.words import read_program

    with pytest.raises(ConfigError, match=message):
        read_program(words)


@pytest.mark.parametrize(
    "start",
    [[], ["python"], ["python3.11", "-u", "-W", "ignore"], ["/usr/bin/python3", "-O"], ["ipython"]],
)
def test_python_may_stand_in_front(tmp_path, start):
    from dali_pipes.tools.diagnosis.watching.words import read_program

    (tmp_path / "t.py").touch()
    words = [*start, str(tmp_path / "t.py"), "--lr", "1"]
    read = read_program(words)
    assert (
        read.words == [str(tmp_path / "t.py"), "--lr", "1"]
        and list(read.flags) == start[1:]
        and not read.is_module
    )


LIGHTNING = """
import sys, torch
import {library} as L
from torch.utils.data import DataLoader, TensorDataset

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, number):
        return self.layer(batch[0]).sum()
    def validation_step(self, batch, number):
        print("validates", self.global_step)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

data = TensorDataset(torch.zeros(64, 4))
options = {{"max_epochs": 1, "accelerator": "cpu", "logger": False, "accumulate_grad_batches": 2}}
L.Trainer(**options, val_check_interval=3).fit(Model(), DataLoader(data, 8), DataLoader(data, 8))
print("uploaded")
"""
HUGGING_FACE = """
import torch
from transformers import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels):
        if not self.training:
            print("validates", 1)
        return {"loss": self.layer(x).sum()}

data = [{"x": torch.zeros(4), "labels": torch.zeros(1)}] * 64
options = {"num_train_epochs": 1, "per_device_train_batch_size": 8, "use_cpu": True}
logs = {"report_to": [], "logging_steps": 1, "gradient_accumulation_steps": 2}
saves = {"save_strategy": "steps", "save_steps": 4, "eval_strategy": "steps", "eval_steps": 4}
arguments = TrainingArguments("out", **options, **logs, **saves)
Trainer(Model(), arguments, train_dataset=data, eval_dataset=data).train()
print("uploaded")
"""


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        LIGHTNING.format(library="lightning"),
        LIGHTNING.format(library="pytorch_lightning"),
        HUGGING_FACE,
    ],
    ids=["lightning", "pytorch_lightning", "transformers"],
)
def test_loops_of_libraries_are_measured_beyond_their_epoch(diagnose, tmp_path, program):
    ended = diagnose("", program=program.replace("{", "{{").replace("}", "}}"))
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert (
        not result["ended_early"] and not result["other_loaders"] and "train.py" in result["loop"]
    )
    assert "validates 1" not in ended.stderr and "uploaded" not in ended.stderr
    assert not list(tmp_path.glob("out/checkpoint*")) and not list(tmp_path.glob("checkpoints/*"))


TENSORFLOW = """
import keras, sys
import tensorflow as tf

data = tf.data.Dataset.from_tensor_slices((tf.zeros([64, 4]), tf.zeros([64, 1])))
data = data.shuffle(64).cache().batch(8)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")

@tf.function
def train(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    weights = model.trainable_variables
    model.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

@tf.function
def train_epoch(batches):
    for _ in tf.range(4):
        train(*next(batches))

{loop}
print("uploaded")
"""


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "loop", ["for step, (x, y) in enumerate(data):\n    train(x, y)", "model.fit(data, epochs=1)"]
)
def test_loops_over_tf_data_are_measured_and_their_pipeline_is_read(diagnose, loop):
    ended = diagnose(
        "", program=TENSORFLOW.replace("{loop}", loop).replace("{", "{{").replace("}", "}}")
    )
    assert ended.returncode == 0, ended.stderr
    assert (
        "wrong: cache() comes after shuffle()" in json.loads(ended.stdout)["remarks"][0]
        and "uploaded" not in ended.stderr
    )


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize(
    ("loop", "message"),
    [
        ("train_epoch(iter(data))", "inside a tf.function"),
        ("import numpy\nmodel.fit(numpy.zeros((8, 4)))", "was given a numpy.ndarray"),
    ],
)
def test_what_is_not_seen_of_tensorflow_is_said(diagnose, loop, message):
    ended = diagnose(
        "", program=TENSORFLOW.replace("{loop}", loop).replace("{", "{{").replace("}", "}}")
    )
    assert ended.returncode == 1 and message in ended.stderr and "uploaded" not in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_diagnosis_that_is_stopped_leaves_no_process(tmp_path, number):
    """Its workers are in a process that is not a child of the command, and get no signal of a
    terminal.
    """
    (tmp_path / "train.py").write_text(WAITS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "dali_pipes.cli", "diagnose", "--", "train.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        while not (tmp_path / "worker").exists():
            time.sleep(0.02)
        pids = [int(each) for each in (tmp_path / "worker").read_text().split()]
        process.send_signal(number)
        told = process.communicate()[1]
    if number == signal.SIGINT:
        assert process.returncode == 130 and "train.py:12" in told and "Traceback" not in told
    deadline = time.time() + 60
    while any(map(psutil.pid_exists, pids)) and time.time() < deadline:
        time.sleep(0.02)
    assert not any(map(psutil.pid_exists, pids))
