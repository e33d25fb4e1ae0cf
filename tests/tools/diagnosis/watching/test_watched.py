"""What diagnose finds in programs as people write them, and that nothing of what follows their loop
runs.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import forked_programs
import pytest

HEAD = """
import itertools, sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def step(x):
    optimizer.zero_grad(); loss = model(x).sum(); loss.backward(); optimizer.step(); return loss
loader = DataLoader(TensorDataset(torch.zeros(64, 4), torch.zeros(64)), 8)
other = DataLoader(TensorDataset(torch.zeros(32, 4)), 8)
"""
LOOPS = {
    "tqdm": """
from tqdm import tqdm
for epoch in range(2):
    for i, (x, y) in enumerate(tqdm(loader)):  # loop
        step(x)
""",
    "next in a while loop": """
batches = iter(loader)
while True:
    try:
        x, y = next(batches)  # loop
    except StopIteration:
        batches = iter(loader)
        x, y = next(batches)
    step(x)
""",
    "zip": """
for epoch in range(2):
    for (x, y), (z,) in zip(loader, other):  # loop
        step(x)
""",
    "zip, the dear one first": """
class Slow(TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.001)
        return super().__getitem__(index)
slow = DataLoader(Slow(*loader.dataset.tensors), 8)
for epoch in range(2):
    for (z,), (x, y) in zip(other, slow):  # loop
        step(x)
""",
    "cycle": """
for x, y in itertools.cycle(loader):  # loop
    step(x)
""",
    "an iterator for each step": """
while True:
    x, y = next(iter(loader))  # loop
    step(x)
""",
    "validation inside": """
for i, (x, y) in enumerate(loader):  # loop
    step(x)
    if i % 4 == 0:
        for (z,) in other:
            model(z)
""",
    "accumulated gradients": """
for i, (x, y) in enumerate(loader):  # loop
    model(x).sum().backward()
    if i % 4 == 3:
        optimizer.step()
""",
    "a schedule of one epoch": """
steps = len(loader)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, epochs=1, steps_per_epoch=steps)
for x, y in loader:  # loop
    step(x)
    schedule.step()
""",
    "another folder": """
import os
os.makedirs("runs", exist_ok=True)
os.chdir("runs")
for x, y in loader:  # loop
    step(x)
""",
    "a thread": """
import threading
def train():
    for x, y in loader:  # loop
        step(x)
thread = threading.Thread(target=train)
thread.start()
thread.join()
""",
    "left after a round": """
for epoch in range(2):
    for i, (x, y) in enumerate(loader):  # loop
        step(x)
        if i == 1000:
            break
""",
    "several short rounds": """
for epoch in range(1000):
    for i, (x, y) in enumerate(loader):  # loop
        step(x)
        if i == 5:
            break
    time.sleep(0.002)
""",
}
ENDS = {
    "list": (
        "for epoch in range(3):\n    for x, y in list(loader):\n        step(x)",
        "in which an optimizer steps",
        1,
    ),
    "an error of its own": (
        "for x, y in loader:\n    raise ValueError('mine')",
        "ValueError: mine",
        1,
    ),
    "sys.exit": ("sys.exit(3)", "ended by itself with 3", 3),
    "left": (
        "for i, (x, y) in enumerate(loader):\n    step(x)\n    if i == 3:\n        break",
        "left by the program itself",
        1,
    ),
    "left in each epoch": (
        (
            "for epoch in range(2):\n    for i, (x, y) in enumerate(loader):\n        "
            "step(x)\n        if i == 3:\n            break"
        ),
        "the one around it is over after 7 measured batches",
        1,
    ),
    "ranks": (
        ("import torch.distributed as dist\ndist.init_process_group('gloo', rank=0, world_size=2)"),
        "several processes",
        1,
    ),
    "spawn": (
        "import torch.multiprocessing as mp\nmp.spawn(step, nprocs=2)",
        "processes of its own",
        1,
    ),
}


@pytest.fixture(scope="module")
def server():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, forked_programs.__file__]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    yield process
    process.stdin.close()
    process.wait(20)
    process.stdout.close()


@pytest.fixture
def watch(server, tmp_path):
    def run(text, **options):
        file = tmp_path / "train.py"
        file.write_text(text)
        job = {
            "program": ["train.py", "--lr"],
            "module": False,
            "seconds": 0.01,
            "rounds": 1,
            "cold": False,
            "width": 120,
        }
        job |= {
            "start": time.time(),
            "dump": str(tmp_path / "dump"),
            "folder": str(tmp_path),
            "aside": tempfile.mkdtemp(dir=tmp_path),
        } | options
        print(json.dumps(job), file=server.stdin, flush=True)
        answer = json.loads(server.stdout.readline())
        return answer["answers"], answer["status"], (tmp_path / "output").read_text()

    return run


@pytest.mark.few
@pytest.mark.parametrize("kind", LOOPS)
def test_the_loop_that_trains_is_found_and_measured(watch, kind):
    text = HEAD + LOOPS[kind] + "print('uploaded')\n"
    answers, status, output = watch(text)
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "# loop" in each)
    assert status == 0, answers
    assert answers["diagnosis"]["loop"] == f"train.py:{line}" and "uploaded" not in output


@pytest.mark.parametrize("kind", ENDS)
def test_what_cannot_be_measured_is_said(watch, kind):
    loop, message, expected = ENDS[kind]
    answers, status, output = watch(HEAD + loop + "\nprint('uploaded')\n")
    assert (
        message in answers["error"] + answers["trace"]
        and status == expected
        and "diagnosis" not in answers
    )
    assert "uploaded" not in output or kind == "list"


@pytest.mark.slow
def test_the_lines_to_change_are_those_that_build_the_loader(watch):
    slow = (
        "class Slow(TensorDataset):\n    def __getitem__(self, index):\n        "
        "time.sleep(0.001)\n        return index\n"
    )
    answers, _, _ = watch(
        HEAD
        + slow
        + (
            "slow = DataLoader(Slow(torch.zeros(64)), 4)\nfor x in slow:\n    "
            "step(torch.zeros(1, 4))\n"
        )
    )
    patch = next(each["patch"] for each in answers["diagnosis"]["fixes"] if each["patch"])
    assert (
        "\n-slow = DataLoader(Slow(torch.zeros(64)), 4)\n+slow = "
        "DataLoader(Slow(torch.zeros(64)), 4, num_workers="
    ) in patch


def test_calls_of_the_step_are_named_and_those_of_the_loader_are_not(watch):
    reads = (
        "class Reads(TensorDataset):\n    def __getitem__(self, index):\n        return "
        "self.tensors[0][index].sum().item()\n"
    )
    loop = (
        "for x in DataLoader(Reads(torch.zeros(64, 4)), 4):\n    repr(step(torch.zeros(1, 4))) "
        " # prints\n"
    )
    answers, _, _ = watch(HEAD + reads + loop)
    line = (HEAD + reads + loop).splitlines().index(
        "    repr(step(torch.zeros(1, 4)))  # prints"
    ) + 1
    remarks = answers["diagnosis"]["remarks"]
    assert (
        remarks[0].startswith(f"possible on a GPU: an f-string in train.py:{line} ")
        or f"print() in train.py:{line} " in remarks[0]
    )
    assert (
        not any(".item()" in each for each in remarks) and "no autocast was seen" in answers["text"]
    )


def test_a_traceback_is_the_programs_own(watch):
    answers, _, _ = watch(HEAD + "for x, y in loader:\n    step(x)\n    loader.missing\n")
    frames = [each for each in answers["trace"].splitlines() if each.strip().startswith("File")]
    assert len(frames) == 1 and "train.py" in frames[0]


@pytest.mark.slow
def test_the_dearer_of_two_loaders_is_examined(watch):
    answers, _, _ = watch(HEAD + LOOPS["zip, the dear one first"], seconds=0.2)
    assert (
        answers["diagnosis"]["figures"]["loader"] < 1000
        and answers["diagnosis"]["items"]["parts"][0]["name"] == "time.sleep"
    )


def test_other_loaders_of_the_loop_are_said(watch):
    answers, _, _ = watch(HEAD + LOOPS["zip"])
    assert (
        answers["diagnosis"]["other_loaders"] == 1 and "from 1 other DataLoader:" in answers["text"]
    )


def test_batches_that_are_taken_without_training_are_no_loop(watch):
    program = "for i, (x, y) in enumerate(loader):\n    if i < 3:\n        step(x)\n"
    answers, status, _ = watch(HEAD + program, seconds=30)
    assert (
        status == 1
        and "1,000 batches were taken in a row without an optimizer's step" in answers["error"]
    )


def test_a_program_that_fails_after_a_round_is_still_diagnosed(watch):
    text = HEAD + (
        "for i, (x, y) in enumerate(loader):\n    step(x)\n    if i == 200:\n        raise "
        "ValueError('mine')\n"
    )
    answers, status, output = watch(text, rounds=10_000)
    assert (
        status == 0
        and "failed by itself" in answers["diagnosis"]["ended_early"]
        and "ValueError: mine" in output
    )
    assert any("rounds" in each for each in answers["diagnosis"]["left_out"])


# A loader of ours, built and from a DataLoader, that is waited for: decoding takes much longer than
# the step.
OURS = {
    "build_loader": "dp.build_loader(dp.Manifest.scan({images!r}), dp.TorchConfig(num_workers=0), "
    "batch_size=4,\n"
    "                         transform=dp.TrainTransform(size=32))",
    "from_torch": "dp.from_torch(DataLoader(ImageFolder({images!r}, v2.Compose([v2.ToImage(), "
    "v2.RandomResizedCrop(32),\n"
    "                       v2.ToDtype(torch.float32, scale=True)])), batch_size=4, shuffle=True))",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", OURS)
def test_a_loop_over_a_loader_of_ours_is_measured(watch, kind, image_folder):
    text = HEAD + (
        "import dali_pipes as dp\nfrom torchvision.datasets import ImageFolder\nfrom "
        "torchvision.transforms import v2\n"
    )
    text += f"ours = {OURS[kind].format(images=str(image_folder))}\n"
    text += (
        "for epoch in range(9):\n    for images, *rest in ours:  # loop\n        "
        "step(images[:, 0, 0, :4])\nprint('uploaded')\n"
    )
    answers, status, output = watch(text)
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "# loop" in each)
    assert status == 0, answers
    diagnosis = answers["diagnosis"]
    assert (
        diagnosis["loop"] == f"train.py:{line}"
        and diagnosis["figures"]["wait_share"] > 0
        and "uploaded" not in output
    )


IMAGES = """
from torchvision import datasets, transforms
steps = [transforms.RandomResizedCrop(32), transforms.ToTensor()]
images = datasets.ImageFolder({folder!r}, transforms.Compose(steps))
for x, y in DataLoader(images, 4, shuffle=True):
    step(x[:, 0, 0, :4])
"""


@pytest.mark.slow
def test_the_report_says_which_pictures_of_the_loader_wait(watch, image_folder):
    answers, status, _ = watch(HEAD + IMAGES.format(folder=str(image_folder)))
    assert status == 0, answers
    assert "What from_torch does with its loader:" in answers["explained"]
    assert "waited" in answers["explained"]


# A step that costs the same for a few samples as for many.
LAUNCHES = (
    HEAD
    + """
for x, y in loader:
    end = time.thread_time() + 0.01
    while time.thread_time() < end:
        pass
    step(x)
"""
)


def watch_undisturbed(watch, text, **options):
    """Watches the program again, twice at most, where something else disturbs it, or the machine
    changes its pace between spans.
    """
    for _ in range(3):
        answers, status, output = watch(text, seconds=0.3, **options)
        verdict = answers["diagnosis"]["verdict"]
        if verdict not in ("inconclusive", "other programs"):
            break
    if verdict == "other programs":
        pytest.skip("other programs use cores here")
    return answers, status, output


@pytest.mark.alone  # beside another program the verdict is another
def test_a_loop_of_small_batches_is_given_a_larger_one(watch):
    answers, status, output = watch_undisturbed(watch, LAUNCHES + "    print('of', len(x))\n")
    diagnosis = answers["diagnosis"]
    assert (
        status == 0
        and diagnosis["verdict"] == "launch-bound"
        and diagnosis["figures"]["larger_gain"] > 2
    )
    assert "of 8\n" in output and "of 32\n" in output and "a larger batch_size" in answers["text"]


@pytest.mark.alone
@pytest.mark.parametrize("end", ["raise ValueError('mine')", "sys.exit(3)"])
def test_a_loop_that_refuses_a_larger_batch_is_diagnosed_without_it(watch, end):
    text = LAUNCHES + f"    if len(x) != 8:\n        {end}\n"
    answers, status, output = watch_undisturbed(watch, text, rounds=2)
    diagnosis = answers["diagnosis"]
    assert status == 0 and (diagnosis["verdict"], diagnosis["confidence"]) == (
        "model-bound",
        "medium",
    )
    assert (
        "does not take batches of another size" in diagnosis["ended_early"]
        and diagnosis["figures"]["larger_gain"] is None
    )
    assert diagnosis["left_out"] == ["larger batches"] and "mine" not in output


@pytest.mark.few
@pytest.mark.parametrize("words", [["pkg"], ["-m", "pkg"], ["-m", "pkg.train"]])
def test_packages(watch, tmp_path, words):
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "data.py").write_text(HEAD)
    for name in ("__main__", "train"):
        imports = "from data import *" if words == ["pkg"] else "from .data import *"
        (package / f"{name}.py").write_text(f"{imports}\nfor x, y in loader:\n    step(x)\n")
    answers, status, _ = watch("", program=[*words[-1:], "--lr"], module=len(words) == 2)
    assert status == 0 and Path(answers["diagnosis"]["loop"]).parent == Path("pkg"), answers
