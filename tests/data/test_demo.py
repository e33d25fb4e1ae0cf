import hashlib
from functools import partial
from threading import Thread

import numpy as np
import pytest
import torch
from PIL import Image

import dali_pipes as dp
from dali_pipes.data import demo as demo_set
from dali_pipes.data.config import DataConfig
from dali_pipes.data.demo import PATTERNS, _write, make_demo_set


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    return make_demo_set(tmp_path_factory.mktemp("demo"), train=100, val=10)


def digest(folder):
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*.jpg")
    }


@pytest.mark.slow
def test_statistics_are_those_of_imagenet(demo):
    """About 500 × 375 pixels and 110 KB an image, 4.5 bits a pixel, with a spread of sizes."""
    train, val = (
        dp.Manifest.scan(demo / "train", progress=False),
        dp.Manifest.scan(demo / "val", progress=False),
    )
    assert (len(train), len(val)) == (100, 10)
    assert train.classes == val.classes == sorted(PATTERNS)
    assert np.bincount(train.labels).tolist() == [10] * 10
    pixels, size = train.sizes.prod(axis=1), train.table["bytes"].to_numpy()
    assert 4 < (8 * size / pixels).mean() < 5
    assert np.median(train.sizes.max(axis=1)) == 500
    assert train.sizes.max() > 700 and train.sizes.min() < 250
    assert 0 < (train.table["orientation"].to_numpy() > 1).sum() < 15


def test_progressive_noise_is_saved_too(tmp_path):
    """That of image 387 takes more than a byte a pixel."""
    (tmp_path / "val/rows").mkdir(parents=True)
    _write(tmp_path, 0, ("val", 387))
    (file,) = tmp_path.rglob("*.jpg")
    with Image.open(file) as image:
        assert image.info["progressive"] and file.stat().st_size > image.width * image.height


@pytest.mark.slow
def test_it_is_seeded_and_made_once(tmp_path):
    demo = make_demo_set(tmp_path / "demo", train=6, val=3)
    before = digest(demo)
    stamps = {file: file.stat().st_mtime_ns for file in demo.rglob("*.jpg")}
    assert make_demo_set(demo, train=6, val=3) == demo
    assert all(file.stat().st_mtime_ns == stamp for file, stamp in stamps.items())
    again = digest(make_demo_set(tmp_path / "again", train=3, val=3))
    assert all(before[name] == value for name, value in again.items() if name.startswith("train"))
    other = digest(make_demo_set(tmp_path / "other", train=3, val=3, seed=1))
    assert not set(other.values()) & set(again.values())


def test_a_folder_of_somebody_elses_is_left_alone(tmp_path):
    (tmp_path / "train/cats").mkdir(parents=True)
    (tmp_path / "train/cats/1.jpg").write_bytes(b"precious")
    with pytest.raises(dp.ManifestError, match="is not a demo set"):
        make_demo_set(tmp_path, train=10, val=10)
    assert (tmp_path / "train/cats/1.jpg").read_bytes() == b"precious"


def test_a_set_that_a_configuration_names_is_made_where_none_is(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(demo_set, "make_demo_set", made.append)
    root = str(tmp_path / "demo")

    # images of one's own are left alone
    for data in (DataConfig(root=root), DataConfig(root=root, train="/mine", demo=True)):
        demo_set.make_named_set(data, "train")
    assert not made
    demo_set.make_named_set(DataConfig(root=root, train="/mine", demo=True), "val")
    assert made == [root]

    # one of other numbers stays
    make_demo_set(root, train=3, val=3)
    demo_set.make_named_set(DataConfig(root=root, demo=True), "train")
    assert made == [root]
    (tmp_path / "demo/.demo-set").write_text("unfinished")
    demo_set.make_named_set(DataConfig(root=root, demo=True), "train")
    assert made == [root, root]


@pytest.mark.slow
def test_a_job_that_reads_the_set_makes_it_first(command, tmp_path, monkeypatch):
    monkeypatch.setattr(demo_set, "make_demo_set", partial(make_demo_set, train=10, val=10))
    words = ("scan", "data=demo", f"data.root={tmp_path / 'demo'}", "split=val")
    done = command(*words)
    assert done.returncode == 0 and "making a demo set in" in done.stderr
    assert "making a demo set" not in command(*words).stderr


def test_ranks_that_start_together_make_one_set(tmp_path):
    """A rank that did not wait would delete what another is writing."""
    missing = []

    def prepare():
        with demo_set.prepare_set(tmp_path, "all") as is_missing:
            missing.append(is_missing)

    with demo_set.prepare_set(tmp_path, "all"):
        (tmp_path / "train").mkdir()
        other = Thread(target=prepare)
        other.start()
        other.join(0.3)
        assert other.is_alive() and (tmp_path / "train").exists()
    other.join()
    assert missing == [False] and (tmp_path / "train").exists()


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_small_network_learns_it(tmp_path):
    """Well above the 10 % of chance on images it has never seen, after a minute of one core at
    most.
    """
    torch.manual_seed(0)
    demo = make_demo_set(tmp_path, train=200, val=40)
    train, val = (
        dp.Manifest.scan(demo / "train", progress=False),
        dp.Manifest.scan(demo / "val", progress=False),
    )
    layers = []
    for inner, outer in ((3, 24), (24, 48), (48, 96)):
        layers += [
            torch.nn.Conv2d(inner, outer, 5, stride=2, padding=2),
            torch.nn.BatchNorm2d(outer),
            torch.nn.ReLU(),
        ]
    model = torch.nn.Sequential(
        *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(96, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    with dp.build_loader(
        train,
        dp.DaliConfig(device="cpu"),
        transform=dp.TrainTransform(size=96, scale=(0.5, 1)),
        batch_size=25,
    ) as loader:
        for _ in range(20):
            for batch in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(batch.images), batch.labels).backward()
                optimizer.step()
    model.eval()
    with dp.build_loader(
        val,
        dp.DaliConfig(device="cpu"),
        transform=dp.EvalTransform(size=96, resize=96),
        batch_size=20,
    ) as loader:
        right = sum(
            (model(batch.images).argmax(1) == batch.labels).sum().item() for batch in loader
        )
    assert right / 40 >= 0.4
