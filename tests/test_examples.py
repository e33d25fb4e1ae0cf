"""The examples of training with boxes, masks, pairs of images, views and captions learn; those with
other libraries are in tests/adapters.
"""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import dali_pipes as dp
from dali_pipes.tools.demo.objects import SHAPES, make_demo_objects

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    return make_demo_objects(tmp_path_factory.mktemp("shapes"), train=24, val=8)


@pytest.fixture
def colors(tmp_path):
    """160 small images of four colors each, which two views of it have in common."""
    (tmp_path / "colors/all").mkdir(parents=True)
    for number, colors in enumerate(
        np.random.default_rng(0).integers(0, 256, (160, 2, 2, 3), np.uint8)
    ):
        Image.fromarray(colors).resize((40, 40)).save(tmp_path / f"colors/all/{number}.jpg")
    return tmp_path / "colors"


def example(name):
    return runpy.run_path(str(EXAMPLES / name / "train.py"))


def learns(capsys, name, *given, share, **options):
    losses = example(name)["main"](*map(str, given), **options)
    assert capsys.readouterr().out.count("loss") == len(losses) == options["epochs"]
    assert losses[-1] < share * losses[0]


@pytest.mark.slow
def test_a_detector_learns(demo, capsys):
    both = (
        [demo / f"{split}.json" for split in ("train", "val")],
        [demo / f"images/{split}" for split in ("train", "val")],
    )
    given = [file for pair in zip(*both, strict=True) for file in pair]
    learns(capsys, "detection", *given, size=96, epochs=2, share=0.9)


def test_the_detector_leaves_crowds_out_of_its_loss_and_ends_in_cocos_evaluation(demo):
    """A model that knows the truth has an average precision of 1, and is never given a crowd."""
    given = []

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, images, targets=None):
            if targets is not None:
                given.extend(targets)
                return {"loss": self.weight.sum()}
            batch = seen.pop(0)
            pairs = zip(batch["boxes"], batch["box_labels"], strict=True)
            return [
                {"boxes": boxes, "labels": labels + 1, "scores": torch.ones(len(boxes))}
                for boxes, labels in pairs
            ]

    names, model = example("detection"), Model()
    content = json.loads((demo / "val.json").read_text())
    content["annotations"][0]["iscrowd"] = 1
    (demo / "crowd.json").write_text(json.dumps(content))
    for file in ("crowd.json", "val.json"):
        manifest = dp.Manifest.from_coco(demo / file, root=demo / "images/val", progress=False)
        transform, config = dp.LetterboxTransform(size=96, flip=0), dp.DaliConfig(device="cpu")
        with dp.build_loader(
            manifest, config, transform=transform, batch_size=8, device="cpu"
        ) as loader:
            seen = list(loader)
        if file == "crowd.json":
            for batch in seen:
                names["step"](model, torch.optim.SGD(model.parameters(), 0.1), batch)
    assert sum(len(each["boxes"]) for each in given) == len(content["annotations"]) - 1
    if not torch.cuda.is_available():
        figures = names["evaluate"](model, demo / "val.json", demo / "images/val", size=96)
        assert figures[0] > 0.999


@pytest.mark.slow
def test_a_segmentation_learns(demo, capsys):
    learns(
        capsys,
        "segmentation",
        demo,
        ",".join(["ground", *sorted(SHAPES)]),
        size=48,
        epochs=2,
        share=0.9,
    )


@pytest.mark.slow
def test_simclr_learns(colors, capsys):
    learns(capsys, "simclr", colors, size=16, batch_size=32, epochs=8, share=0.98)


def test_clip_learns(demo, capsys):
    captions = demo / "captions_train.json"
    learns(
        capsys, "clip", captions, demo / "images/train", size=48, batch_size=12, epochs=3, share=0.8
    )


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
    assert example("segmentation")["mean_iou"](Model(), [batch], 3) == pytest.approx(0.5)


def test_nt_xent_is_small_where_views_are_alike_and_images_are_not():
    nt_xent = example("simclr")["nt_xent"]
    alike = torch.eye(8).repeat(2, 1)
    assert (
        nt_xent(alike, 0.05) < 1e-6 < 10 < nt_xent(torch.eye(8).repeat_interleave(2, dim=0), 0.05)
    )
    assert nt_xent(torch.ones(16, 8)) == pytest.approx(torch.log(torch.tensor(15.0)).item())


def test_a_network_learns_to_remove_noise(tmp_path, capsys):
    rng, rows = np.random.default_rng(0), ["path,clean"]
    for number in range(32):
        colors = rng.integers(0, 256, (3, 4, 3), dtype=np.uint8)
        clean = Image.fromarray(colors).resize((64, 48), Image.Resampling.BICUBIC)
        noise = rng.normal(0, 30, (48, 64, 3))
        noisy = (np.asarray(clean) + noise).clip(0, 255).astype(np.uint8)
        clean.save(tmp_path / f"clean_{number}.png")
        Image.fromarray(noisy).save(tmp_path / f"noisy_{number}.png")
        rows.append(f"noisy_{number}.png,clean_{number}.png")
    (tmp_path / "pairs.csv").write_text("\n".join(rows))
    learns(
        capsys, "restoration", tmp_path / "pairs.csv", size=32, batch_size=8, epochs=4, share=0.9
    )
