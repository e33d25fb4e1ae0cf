"""A benchmark with a DataLoader of the user's, from the module that makes it to the result."""

import json
import sys

import pytest

MODULE = """
from torch.utils.data import ConcatDataset, DataLoader
from torchvision import datasets, transforms

def make_loader(*more):
    crop, flip = transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip()
    steps = [crop, flip, *more, transforms.ToTensor()]
    data = datasets.ImageFolder({folder!r}, transforms.Compose(steps))
    data = ConcatDataset([data] * 10)
    return DataLoader(data, batch_size=8, shuffle=True, num_workers=1, drop_last=True)

def needs_more(folder):
    return make_loader()

def lossy():
    return make_loader(transforms.Pad(3))
"""


@pytest.fixture
def module(tmp_path, image_folder, monkeypatch):
    (tmp_path / "their_train.py").write_text(MODULE.format(folder=str(image_folder)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("their_train", None)


QUICK = [
    "pairs=1",
    "min_seconds=0.2",
    "min_batches=2",
    "max_warmup_seconds=0.1",
    "data.cache_dir=null",
]


@pytest.mark.slow
def test_their_loader_is_measured_against_ours(module, command, tmp_path):
    options = ["loader=dali_cpu", "loader.num_threads=1", "arms=[loader]", *QUICK]
    done = command("benchmark", "their_train:make_loader", *options, "out=runs")
    result = json.loads(done.stdout)
    assert list(result["arms"]) == ["yours", "dali_cpu"] and result["baseline"] == "yours"
    assert (
        result["arms"]["yours"]["decodes"]
        == "the DataLoader of their_train:make_loader, with 1 worker"
    )
    assert result["work"]["batch_size"] == 8 and result["work"]["transform"]["size"] == 32
    found = done.stderr.index("Quick look, one round: dali_cpu made about ")
    assert found < done.stderr.index("┏"), "what was found comes before the table"
    note = "Pixels: not compared, since of these arms only dali_cpu follows the plan."
    assert note in " ".join(done.stderr.split())
    assert all(arm["images_per_s"] > 0 for arm in result["arms"].values())
    assert "RandomHorizontalFlip(p=0.5)" in done.stderr and "flip=0.5" in done.stderr
    assert "Compared with your loader: over 512 draws" in " ".join(done.stderr.split())
    (report,) = tmp_path.glob("runs/*/report.html")
    text = report.read_text()
    assert "<td>RandomHorizontalFlip(p=0.5)<td>flip=0.5" in text
    assert "Compared with your loader: over 512 draws" in text


@pytest.mark.few
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            "their_train:lossy",
            "Pad(padding=3",
        ),
        ("their_train:nothing", "their_train:nothing: "),
        ("no_such_module:make", "no_such_module:make: there is no module no_such_module in "),
        (
            "their_train:needs_more",
            (
                "their_train:needs_more is called without arguments (missing a required argument: "
                "'folder')"
            ),
        ),
        ("./no_such.py:make_loader", "./no_such.py:make_loader: there is no file "),
        ("./their_train.py:nothing", "./their_train.py:nothing: "),
        ("function=their_train", "function is their_train; it takes module:function"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(module, command, function, message):
    done = command("benchmark", function, "out=runs", "data.cache_dir=null")
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: {message}") and (done.returncode, done.stdout) == (2, "")


def test_what_is_the_loaders_own_is_not_an_option(module, command):
    done = command("benchmark", "their_train:make_loader", "batch_size=4")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: batch_size=4: images, transform and batch size are those of your DataLoader; "
        "leave it out\n"
    )


@pytest.mark.slow
def test_several_loaders_are_measured_against_theirs(module, command):
    arms = [
        "arms=[dali_cpu,torch]",
        "loaders.dali_cpu.num_threads=1",
        "loaders.torch.num_workers=1",
    ]
    done = command("benchmark", "their_train:make_loader", *arms, *QUICK, "out=runs")
    result = json.loads(done.stdout)
    assert list(result["arms"]) == ["yours", "dali_cpu", "torch"] and result["baseline"] == "yours"
    assert all(arm["images_per_s"] > 0 for arm in result["arms"].values())
