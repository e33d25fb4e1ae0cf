"""Every job says what is left out of how many, on stderr in one line; strict ends with status 1."""

import json

import pytest
from PIL import Image

from dali_pipes.data.config import DataConfig
from dali_pipes.training.config import TrainConfig
from dali_pipes.training.data import open_both

LINE = (
    "6 of 10 images are used; left out: not an image, or its header is broken: 2 (a/x.jpg, "
    "b/y.jpg); .gif files: 1 (a/z.gif)"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Six images that are used, two that are broken, a GIF and one beside the class folders."""
    root = tmp_path / "set"
    for name in (*(f"{name}/{number}.jpg" for name in "ab" for number in range(3)), "beside.jpg"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40)).save(root / name)
    for name in ("a/x.jpg", "b/y.jpg", "a/z.gif"):
        (root / name).write_bytes(b"no image")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return root


SMALL = ["loader=torch", "loader.num_workers=0"]
TRAIN = [
    *SMALL,
    "model=resnet18",
    "model.name=shufflenet_v2_x0_5",
    "epochs=1",
    "warmup_epochs=0",
    "batch_size=3",
]
TRAIN += ["transform.size=32", "eval_transform.resize=32", "max_bad_fraction=0.5"]


def jobs(folder, out):
    """Job, its options, and whether it needs labels."""
    train, val = f"data.train={folder}", f"data.val={folder}"
    yield "scan", [train]
    yield "preview", [train, *SMALL, "transform.size=32", f"out={out}"]
    yield "train", [train, val, *TRAIN, f"out={out}"]
    yield "prepare", [train, "to=shards", f"out={out}"]


@pytest.mark.few
@pytest.mark.parametrize("number", range(4), ids=["scan", "preview", "train", "prepare"])
def test_a_job_says_what_is_left_out(command, folder, tmp_path, number):
    job, options = list(jobs(folder, tmp_path / "out"))[number]
    run = command(job, *options)
    assert run.returncode == 0, run.stderr
    said = [line for line in run.stderr.splitlines() if LINE in line]
    assert len(said) == (2 if job == "train" else 1) and all(
        "beside the class folders: 1 (beside.jpg)" in line for line in said
    )
    if job == "train":
        summary = json.loads((tmp_path / "out/summary.json").read_text())
        assert [each["number"] for each in summary["left_out"]["train"]] == [2, 1, 1]
        assert json.loads(run.stdout)


@pytest.mark.few
@pytest.mark.parametrize("job", ["scan", "train"])
def test_strict_ends_with_status_1(command, folder, tmp_path, job):
    options = {
        "scan": [f"data.train={folder}", f"out={tmp_path}/m.arrow"],
        "train": [f"data.train={folder}", f"data.val={folder}", *TRAIN, f"out={tmp_path}/out"],
    }
    run = command(job, *options[job], "strict=true")
    assert (
        run.returncode == 1
        and "strict allows nothing to be left out" in run.stderr.splitlines()[-1]
    )
    assert not (tmp_path / "out").exists() and (tmp_path / "m.arrow").exists() == (job == "scan")
    if job == "scan":
        assert "a/x.jpg: not an image" in run.stdout


def test_training_on_a_part_is_refused_unless_it_is_allowed(command, folder, tmp_path):
    options = [
        f"data.train={folder}",
        f"data.val={folder}",
        *TRAIN,
        f"out={tmp_path}/out",
        "max_bad_fraction=0.001",
    ]
    run = command("train", *options)
    assert run.returncode == 2
    assert (
        "2 of 8 images cannot be used, more than max_bad_fraction=0.001 allows: a/x.jpg (not "
        "an image"
    ) in run.stderr


def test_classes_that_only_one_split_has(command, folder, tmp_path):
    (folder / "c").mkdir()
    Image.new("RGB", (40, 40)).save(folder / "c/0.jpg")
    val = tmp_path / "val"
    for name in ("a", "c"):
        (val / name).mkdir(parents=True)
        Image.new("RGB", (40, 40)).save(val / name / "0.jpg")
    options = [f"data.train={folder}", f"data.val={val}", *TRAIN, f"out={tmp_path}/out"]
    run = command("train", *options)
    assert run.returncode == 2 and "not the same classes: 1 only in the first (b)" in run.stderr
    assert "data.classes=[a,b,c] gives both the same, or add an empty folder" in run.stderr
    data = DataConfig(train=str(folder), val=str(val), classes=["a", "b", "c"])
    both = open_both(TrainConfig(data=data, max_bad_fraction=1.0))
    assert [each.classes for each in both] == [["a", "b", "c"]] * 2 and both[1].labels.tolist() == [
        0,
        2,
    ]
