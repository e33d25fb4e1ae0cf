"""The examples of training with boxes, masks, pairs of images, views and captions learn, those that
are tasks of `dali-pipes train` end alike if they are killed, that of predictions predicts, and that
of a backend makes what ours make; examples with other libraries are in tests/adapters.
"""

import csv
import importlib
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
import torchvision
from PIL import Image
from training.conftest import same, weights

import dali_pipes as dp
from dali_pipes.training import checkpoint

EXAMPLES = Path(__file__).parents[1] / "examples"
SHAPES = runpy.run_path(str(EXAMPLES / "shapes.py"))


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    return SHAPES["make"](tmp_path_factory.mktemp("shapes"), train=24, val=8)


def example(name):
    return runpy.run_path(str(EXAMPLES / name / "train.py"))


def learns(capsys, name, *given, share, **options):
    losses = example(name)["main"](*map(str, given), **options)
    assert capsys.readouterr().out.count("loss") == len(losses) == options["epochs"]
    assert losses[-1] < share * losses[0]


def sides(demo, **names):
    """Options that name the images and their files, {side} being train or val."""
    return [
        f"data.{side}{key}={demo / name.format(side=side)}"
        for side in ("train", "val")
        for key, name in names.items()
    ]


# the options of a small run of each example, as its page has them for a large one
def options_of(name, demo):
    coco = {"": "{side}.json", "_images": "images/{side}"}
    return {
        "detection": [
            *sides(demo, **coco),
            *("transform=letterbox", "transform.size=96", "transform@eval_transform=letterbox"),
            *("eval_transform.flip=0", "batch_size=8", "monitor=map", "monitor_mode=max"),
        ],
        "segmentation": [
            *sides(demo, **{"": "images/{side}", "_masks": "masks/{side}"}),
            f"data.classes=[{','.join(['ground', *SHAPES['CLASSES']])}]",
            *("transform.size=48", "transform.scale=[0.5,1]", "batch_size=8"),
            *("monitor=miou", "monitor_mode=max"),
        ],
        "clip": [
            *sides(demo, **coco | {"": "captions_{side}.json"}),
            *("transform.size=48", "transform.scale=[0.8,1]", "transform.flip=0", "batch_size=12"),
        ],
        "simclr": [
            f"data.train={demo / 'images/train'}",
            *("data.labels=false", "validation=split:0.25", "transform=two_views"),
            "transform.views=[{name: global, count: 2, size: 32, scale: [0.2, 1.0]}]",
            *("eval_with=transform", "batch_size=8"),
        ],
    }[name] + [
        f"function={EXAMPLES / name / name}.py:make",
        *("loader=dali_cpu", "optimizer=adamw", "optimizer.lr=1e-3", "warmup_epochs=0"),
    ]


def example_task(name):
    return runpy.run_path(str(EXAMPLES / name / f"{name}.py"))


def rows(folder):
    with (folder / "steps.csv").open(newline="") as text:
        return list(csv.DictReader(text))


@pytest.mark.parametrize(
    ("name", "epochs", "share"),
    [
        pytest.param("detection", 3, 0.9, marks=pytest.mark.slow),
        pytest.param("segmentation", 2, 0.9, marks=pytest.mark.slow),
        pytest.param("clip", 3, 0.8, marks=pytest.mark.slow),
    ],
)
def test_a_task_of_an_example_learns(command, demo, tmp_path, name, epochs, share):
    out = tmp_path / "run"
    ran = command("train", *options_of(name, demo), f"epochs={epochs}", f"out={out}")
    assert ran.returncode == 0, ran.stderr
    history = weights(out)["history"]
    assert history[-1]["loss"] < share * history[0]["loss"]
    summary = json.loads((out / "summary.json").read_text())
    measured = {"detection": "map_50", "segmentation": "miou", "clip": "found"}[name]
    assert 0 <= summary[measured] <= 1
    if name == "segmentation":
        assert (out / "classes.csv").read_text().splitlines()[1].startswith("ground,0.")


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        "segmentation",
        # the same mechanism, for a minute each
        *(
            pytest.param(name, marks=pytest.mark.release)
            for name in ("detection", "clip", "simclr")
        ),
    ],
)
def test_a_task_killed_in_mid_epoch_ends_as_if_never_killed(demo, tmp_path, name):
    """With -9: bit for bit, in the same number of threads."""
    command = [sys.executable, "-m", "dali_pipes.cli", "train", *options_of(name, demo)]
    command += ["epochs=2", "checkpoint_every_s=0", "batch_size=4"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    never, killed = tmp_path / "never", tmp_path / "killed"

    def start(out, *options):
        options = [*command, f"out={out}", *options]
        output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "cwd": tmp_path}
        return subprocess.Popen(options, env=environment, start_new_session=True, **output)

    process = start(killed)
    while not (killed / "last.pt").exists() and process.poll() is None:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    at = weights(killed)["loader"]
    assert at["epoch"] == 0 and at["samples"] > 0

    for out in (killed, never):
        process = start(out, "resume=auto")
        message = process.communicate()[1].decode()
        assert process.returncode == 0, message
    one, other = weights(never), weights(killed)
    assert all(same(one[part], other[part]) for part in ("model", "optimizer", "loader", "random"))
    assert rows(never) == rows(killed)


def test_the_detector_leaves_crowds_out_of_its_loss_and_ends_in_cocos_evaluation(demo):
    """A model that knows the truth has an average precision of 1, and is never given a crowd."""
    given = []

    class Model(torch.nn.Module):
        def forward(self, images, targets=None):
            if targets is not None:
                given.extend(targets)
                return {"loss": torch.zeros(())}
            pairs = zip(batch["boxes"], batch["box_labels"], strict=True)
            return [
                {"boxes": boxes, "labels": labels + 1, "scores": torch.ones(len(boxes))}
                for boxes, labels in pairs
            ]

    content = json.loads((demo / "val.json").read_text())
    content["annotations"][0]["iscrowd"] = 1
    (demo / "crowd.json").write_text(json.dumps(content))
    for file in ("crowd.json", "val.json"):
        task = example_task("detection")["Detector"](Model())
        manifest = dp.Manifest.from_coco(demo / file, root=demo / "images/val", progress=False)
        transform, config = dp.LetterboxTransform(size=96, flip=0), dp.DaliConfig(device="cpu")
        with dp.build_loader(
            manifest, config, transform=transform, batch_size=8, device="cpu"
        ) as loader:
            for batch in loader:
                if file == "crowd.json":
                    task.step(batch)
                else:
                    measured = task.evaluate(batch)
    assert len(given) > 0
    assert sum(len(each["boxes"]) for each in given) == len(content["annotations"]) - 1
    assert measured["precision"].compute()["map"] > 0.999


@pytest.mark.release
@pytest.mark.slow
def test_simclr_learns(command, tmp_path):
    """160 small images of four colors each, which two views of it have in common."""
    (tmp_path / "colors/all").mkdir(parents=True)
    for number, colors in enumerate(
        np.random.default_rng(0).integers(0, 256, (160, 2, 2, 3), np.uint8)
    ):
        Image.fromarray(colors).resize((40, 40)).save(tmp_path / f"colors/all/{number}.jpg")
    out = tmp_path / "run"
    options = [f"data.train={tmp_path / 'colors'}", "validation=none", "transform=two_views"]
    options += ["transform.views=[{name: global, count: 2, size: 16, scale: [0.2, 1.0]}]"]
    options += [f"function={EXAMPLES / 'simclr/simclr.py'}:make", "eval_with=transform"]
    options += ["loader=dali_cpu", "optimizer=adamw", "optimizer.lr=1e-3", "warmup_epochs=0"]
    ran = command("train", *options, "batch_size=32", "epochs=8", f"out={out}")
    assert ran.returncode == 0, ran.stderr
    losses = [row["loss"] for row in weights(out)["history"]]
    assert len(losses) == 8 and losses[-1] < 0.98 * losses[0]


@pytest.mark.parametrize(("ending", "is_averaged"), [("parquet", False), ("csv", True)])
def test_predictions_are_those_of_the_network(thumbnails, tmp_path, capsys, ending, is_averaged):
    """Whose weights are averaged if the run averaged them; images that cannot be read are named."""
    folder, out = tmp_path / "images", str(tmp_path / f"classes.{ending}")
    shutil.copytree(thumbnails.root, folder)
    names = [thumbnails.path(sample).relative_to(thumbnails.root) for sample in range(37)]
    (folder / names[3]).write_bytes(b"no image")  # the scan finds it
    manifest = dp.Manifest.open(folder, with_labels=False, progress=False)
    manifest.save(tmp_path / "set.arrow")
    (folder / names[8]).unlink()  # only the loader does
    network = torchvision.models.shufflenet_v2_x0_5(num_classes=4).eval()
    weights = network.state_dict()
    average = {f"module.{name}": value for name, value in weights.items()} | {"n_averaged": 1}
    other = {name: value * 2 for name, value in weights.items()}
    state = {
        "name": "shufflenet_v2_x0_5",
        "model_options": {},
        "task": "classification",
        "channels": 3,
    }
    state |= {"model": other, "ema": average} if is_averaged else {"model": weights, "ema": None}
    options = {"transform.mean": [0.5] * 3, "transform.std": [0.25] * 3}
    checkpoint.save(state | {"classes": list("abcd"), "options": options}, tmp_path / "best.pt")

    config = dp.DaliConfig(device="cpu", num_threads=1)
    small = {"size": 32, "resize": 36, "batch_size": 4, "config": config}
    predict = runpy.run_path(str(EXAMPLES / "predict.py"))["main"]
    predict(str(tmp_path / "best.pt"), str(tmp_path / "set.arrow"), out, **small)
    assert capsys.readouterr().out == f"{out}: 37 images, of which 2 cannot be read\n"
    read = pa.parquet.read_table if ending == "parquet" else pa.csv.read_csv
    found = {row["path"]: row for row in read(out).to_pylist()}
    bad = {path for path, row in found.items() if row["problem"]}
    assert bad == {str(folder / names[sample]) for sample in (3, 8)}

    transform = dp.EvalTransform(size=32, resize=36, mean=[0.5] * 3, std=[0.25] * 3)
    good = manifest.subset([at for at in range(36) if manifest.path(at).exists()])
    with (
        torch.no_grad(),
        dp.build_loader(good, config, transform=transform, batch_size=64) as loader,
    ):
        (batch,) = loader
        shares, best = network(batch.images).softmax(1).max(1)
    rows = [found[good.name(sample)] for sample in batch.ids.tolist()]
    assert [row["class"] for row in rows] == ["abcd"[each] for each in best.tolist()]
    assert [row["probability"] for row in rows] == pytest.approx(shares.tolist(), rel=1e-4)


def test_mean_iou_is_that_of_the_classes_that_occur():
    """Found: 0 0 1 1; true: 0 1 1 and one pixel that is ignored. 1/2 of the first class, 1/2 of the
    second.
    """

    class Model(torch.nn.Module):
        def forward(self, images):
            return {"out": torch.nn.functional.one_hot(images[:, 0].long(), 3).permute(0, 3, 1, 2)}

    class Batch(dict):
        images = torch.tensor([0, 0, 1, 1]).reshape(1, 1, 1, 4)

    batch = Batch(mask=torch.tensor([0, 1, 1, 255], dtype=torch.uint8).reshape(1, 1, 4))
    measured = example_task("segmentation")["Segmenter"](Model(), 3).evaluate(batch)
    assert measured["miou"].compute().item() == pytest.approx(0.5)


def test_nt_xent_is_small_where_views_are_alike_and_images_are_not():
    nt_xent = example_task("simclr")["nt_xent"]
    alike = torch.eye(8).repeat(2, 1)
    assert (
        nt_xent(alike, 0.05) < 1e-6 < 10 < nt_xent(torch.eye(8).repeat_interleave(2, dim=0), 0.05)
    )
    assert nt_xent(torch.ones(16, 8)) == pytest.approx(torch.log(torch.tensor(15.0)).item())


def test_the_network_of_ffcv_blurs_where_it_strides_and_adds_mirrored_logits():
    made = runpy.run_path(str(EXAMPLES / "ffcv/resnet.py"))
    network = made["make"](4, arch="resnet18")
    blurred = [name for name, each in network.named_modules() if isinstance(each, made["BlurPool"])]
    places = [f"layer{at}.0.{name}" for at in (2, 3, 4) for name in ("conv1", "downsample.0")]
    assert blurred == [f"network.{place}" for place in places]

    # the blur leaves a constant as it is, but for the border, and a dot becomes the filter
    conv = torch.nn.Conv2d(16, 16, 1, stride=2, groups=16, bias=False)
    torch.nn.init.ones_(conv.weight)
    dot = torch.zeros(1, 16, 9, 9)
    dot[:, :, 4, 4] = 16
    assert made["BlurPool"](conv)(dot)[0, 5, 1:4, 1:4].tolist() == [[0, 0, 0], [0, 4, 0], [0, 0, 0]]
    dot = dot.roll((1, 1), (2, 3))
    assert made["BlurPool"](conv)(dot)[0, 5, 2:4, 2:4].tolist() == [[1, 1], [1, 1]]

    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        network.eval()
        assert torch.allclose(network(images), network(images.flip(3)), atol=1e-5)
        one = network.network(images)
        assert not torch.allclose(network(images), 2 * one, atol=1e-5)


@pytest.mark.slow
def test_the_network_of_ffcv_trains_in_its_recipe(command, photographs, tmp_path):
    ran = command(
        *("train", "experiment=progressive", f"data.train={photographs.root}"),
        *(f"model.function={EXAMPLES / 'ffcv/resnet.py'}:make", "model.options={arch: resnet18}"),
        *(
            "validation=split:0.3",
            "loader=dali_cpu",
            "transform.size=64",
            "transform.sizes={1: 96}",
        ),
        *("eval_transform.size=64", "eval_transform.resize=73", "precision=fp32", "epochs=2"),
        *("batch_size=8", "warmup_epochs=1", f"out={tmp_path / 'run'}"),
    )
    assert ran.returncode == 0, ran.stderr
    assert len(weights(tmp_path / "run")["history"]) == 2


@pytest.fixture
def tfdata(monkeypatch):
    pytest.importorskip("tensorflow")
    monkeypatch.syspath_prepend(EXAMPLES / "backend")
    return importlib.import_module("tfdata")


def build_small(manifest, config, transform=None, **options):
    transform = transform or dp.TrainTransform(size=64)
    options = {"batch_size": 8, "last_batch": "partial", "device": "cpu", **options}
    return dp.build_loader(manifest, config, transform=transform, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "transform", [dp.TrainTransform(size=96), dp.EvalTransform(size=96, resize=112)], ids=type
)
def test_a_backend_of_tf_data_makes_the_same_bits(tfdata, photographs, tmp_path, transform):
    """Also of a file that is no JPEG."""
    folder = tmp_path / "images"
    shutil.copytree(photographs.root, folder)
    first = next(folder.rglob("*.jpg"))
    Image.open(first).save(first.with_suffix(".png"))
    manifest = dp.Manifest.open(folder, progress=False)
    expected = dp.TorchConfig(decoder="torchvision", num_workers=0)
    with (
        build_small(manifest, tfdata.TfDataConfig(num_threads=2), transform) as ours,
        build_small(manifest, expected, transform) as theirs,
    ):
        for one, other in zip(ours, theirs, strict=True):
            assert one.ids.tolist() == other.ids.tolist()
            assert torch.equal(one.labels, other.labels) and torch.equal(one.images, other.images)


@pytest.mark.slow
def test_a_backend_of_tf_data_goes_on_where_another_stopped(tfdata, thumbnails, capsys):
    with build_small(thumbnails, dp.DaliConfig(device="cpu", num_threads=1)) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = [batch.ids.tolist() for batch in batches]
    with build_small(thumbnails, tfdata.TfDataConfig()) as loader:
        loader.load_state_dict(state)
        assert [batch.ids.tolist() for batch in loader] == rest

    tfdata.main(thumbnails.root, num_threads=1)
    assert capsys.readouterr().out.startswith("37 images, ")


@pytest.mark.slow
def test_a_backend_of_tf_data_stops_at_a_broken_file_or_leaves_it_out(tfdata, scanned):
    config, broken = tfdata.TfDataConfig(num_threads=1), scanned.path(20)
    broken.write_bytes(broken.read_bytes()[:500])
    with build_small(scanned, config) as loader, pytest.raises(dp.BadSampleError) as caught:
        list(loader)
    assert [path for _, path, _ in caught.value.bad_samples] == [str(broken)]

    options = {"on_bad_sample": "substitute", "max_bad_fraction": 0.1}
    with build_small(scanned, config, **options) as loader:
        found = [sample for batch in loader for sample in batch.ids.tolist()]
        assert [path for _, path, _ in loader.bad_samples] == [str(broken)]
    assert len(found) == 37 and set(found) == {*range(37)} - {20}
