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

def make_dict():
    return {{}}

def needs_more(folder):
    return make_loader()

def seeded_by_the_clock():
    import random, time
    return make_loader(transforms.Lambda(lambda image: image.rotate(time.time_ns() % 90)))
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
def test_their_loader_is_measured_against_what_from_torch_makes_of_it(module, command, tmp_path):
    arms = [
        "arms=[dali_cpu,torch]",
        "loaders.dali_cpu.num_threads=1",
        "loaders.torch.num_workers=1",
    ]
    done = command("benchmark", "their_train:make_loader", *arms, *QUICK, "out=runs")
    result = json.loads(done.stdout)
    assert list(result["arms"]) == ["yours", "dali_cpu", "torch"] and result["baseline"] == "yours"
    assert all(arm["images_per_s"] > 0 for arm in result["arms"].values())
    yours = "the DataLoader of their_train:make_loader, with 1 worker"
    assert result["arms"]["yours"]["decodes"] == yours
    assert result["arms"]["dali_cpu"]["decodes"].startswith(f"{yours}: ")
    assert result["work"]["loaders"]["dali_cpu"]["made_by"]["kind"] == "DaliConfig"
    assert result["work"]["batch_size"] == 8 and result["provenance"]["data"]["images"] == 370

    # equal random numbers, so equal pixels
    agreement = result["agreement"]
    assert agreement["reference"] == "yours" and agreement["images"] >= 120
    assert agreement["mean"] < 0.25 and agreement["p99"] <= 2
    found = done.stderr.index("Quick look, one round: ")
    assert found < done.stderr.index("┏"), "what was found comes before the table"
    (report,) = tmp_path.glob("runs/*/report.html")
    assert "their_train:make_loader" in report.read_text()


@pytest.mark.slow
def test_a_loader_whose_batches_no_seed_repeats_is_not_timed(module, command):
    options = ["loader=dali_cpu", "loader.num_threads=1", "arms=[loader]", *QUICK, "out=runs"]
    done = command("benchmark", "their_train:seeded_by_the_clock", *options)
    assert done.returncode and "nothing was timed, since the work was not the same" in done.stderr


@pytest.mark.few
@pytest.mark.parametrize(
    ("function", "message"),
    [
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
        ("their_train:make_dict", "their_train:make_dict returns a dict, and no DataLoader"),
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


def test_what_exists_only_to_be_compared_makes_no_batches_of_theirs(module, command):
    done = command("benchmark", "their_train:make_loader", "arms=[synthetic]")
    assert (done.returncode, done.stdout) == (2, "")
    assert "arm synthetic exists only to be compared" in done.stderr
