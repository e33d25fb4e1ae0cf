"""Boxes, keypoints, masks and texts go where every backend puts the pixels."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from later import later
from PIL import Image

import dali_pipes as dp
from dali_pipes.backends.pixels.tensors import to_steps
from dali_pipes.loader.batch import Ragged
from dali_pipes.measure.arms import DaliNativeConfig
from dali_pipes.measure.arms.native_loader import NativeLoader
from dali_pipes.plan.steps.operations import AFFINE, OPS

v2 = later("torchvision.transforms.v2")

BACKENDS = {
    "torch": dp.TorchConfig(num_workers=0),
    "torch_torchvision": dp.TorchConfig(num_workers=0, decoder="torchvision"),
    "dali_cpu": dp.DaliConfig(device="cpu", num_threads=2),
    "dali_cpu_graph": dp.DaliConfig(device="cpu", resize="dali", num_threads=2),
}
TRANSFORMS = {
    "train": dp.TrainTransform(size=(120, 90), vertical_flip=0.5, scale=(0.5, 1)),
    "eval": dp.EvalTransform(resize=110, size=100),
    "padded crop": dp.RandomCropTransform(
        size=(100, 120), resize=90, padding=20, pad_if_needed=True
    ),
    "letterbox": dp.LetterboxTransform(size=128),
    "shortest size": dp.ShortestSizeTransform(min_size=[70, 100], max_size=150),
    "scale jitter": dp.ScaleJitterTransform(size=(100, 120), scale=(0.7, 1.6)),
    "IoU crop": dp.IoUCropTransform(size=110),
    "upright": dp.TrainTransform(size=(120, 90), vertical_flip=0.5, scale=(0.5, 1), exif="apply"),
}


@pytest.fixture(scope="module")
def painted(tmp_path_factory):
    """Images of several sizes and EXIF orientations: a bright rectangle, its box, a mask, 1 there
    and 2 elsewhere, a text.
    """
    folder, rng = tmp_path_factory.mktemp("painted"), np.random.default_rng(3)
    (folder / "masks").mkdir()
    rows = {"path": [], "boxes": [], "classes": [], "mask": [], "text": []}
    for number in range(16):
        height, width = rng.integers(110, 200, 2).tolist()
        top, left = rng.integers(10, 50, 2).tolist()
        bottom, right = (
            int(rng.integers(top + 40, height - 5)),
            int(rng.integers(left + 40, width - 5)),
        )
        pixels, mask = (
            np.full((height, width, 3), 30, np.uint8),
            np.full((height, width), 2, np.uint8),
        )
        pixels[top:bottom, left:right], mask[top:bottom, left:right] = 230, 1
        image, exif = Image.fromarray(pixels), Image.Exif()
        exif[0x0112] = 1 + number % 8
        image.save(folder / f"{number:02d}.jpg", quality=95, subsampling=0, exif=exif)
        palette = Image.fromarray(mask, "P")
        palette.putpalette([value for color in range(3) for value in (80 * color, 10, 10)])
        palette.save(folder / f"masks/{number:02d}.png")
        boxes = [[left, top, right, bottom]] if number % 5 else []
        made = (
            f"{number:02d}.jpg",
            boxes,
            ["thing"] * len(boxes),
            f"masks/{number:02d}.png",
            f"no. {number}",
        )
        for values, value in zip(rows.values(), made, strict=True):
            values.append(value)
    types = {"boxes": pa.list_(pa.list_(pa.float32())), "classes": pa.list_(pa.string())}
    pq.write_table(
        pa.table({name: pa.array(values, types.get(name)) for name, values in rows.items()}),
        folder / "table.parquet",
    )
    targets = dp.Targets(boxes="boxes", box_labels="classes", mask="mask", text="text")
    return dp.Manifest.from_table(folder / "table.parquet", targets=targets, progress=False)


def loader(manifest, name, transform, **options):
    options = {"batch_size": 8, "last_batch": "partial", "device": "cpu", "seed": 5} | options
    return dp.build_loader(manifest, BACKENDS[name], transform=transform, **options)


@pytest.mark.few
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("form", TRANSFORMS)
def test_a_painted_rectangle_is_where_its_box_is(painted, name, form):
    transform = TRANSFORMS[form]
    seen = 0
    with loader(painted, name, transform) as made:
        for batch in made:
            bright = (to_steps(batch.images, transform) > 130).all(dim=1).numpy()
            for image, boxes, mask in zip(
                bright, batch["boxes"], batch["mask"].numpy(), strict=True
            ):
                assert len(boxes) <= 1 and set(np.unique(mask)) <= {1, 2, 255}
                for box in boxes.numpy():
                    y, x = np.nonzero(image)
                    if np.min(box[2:] - box[:2]) < 4:
                        continue
                    found = np.array([x.min(), y.min(), x.max() + 1, y.max() + 1])
                    assert np.abs(found - box).max() <= 1, (found, box)
                    y, x = np.nonzero(mask == 1)
                    of_mask = np.array([x.min(), y.min(), x.max() + 1, y.max() + 1])
                    assert np.abs(of_mask - box).max() <= 1, (of_mask, box)
                    seen += 1
    assert seen >= 9


def targets_of(batch):
    """As bytes."""
    found = {
        name: each.values if isinstance(each, Ragged) else each
        for name, each in batch.targets.items()
    }
    lengths = {
        name: each.lengths for name, each in batch.targets.items() if isinstance(each, Ragged)
    }
    return (
        {
            name: each.numpy().tobytes()
            for name, each in found.items()
            if isinstance(each, torch.Tensor)
        },
        lengths,
        batch.text,
    )


@pytest.mark.parametrize("form", ["train", "IoU crop"])
def test_targets_do_not_depend_on_the_backend(painted, form):
    found = {}
    for name in BACKENDS:
        with loader(painted, name, TRANSFORMS[form]) as made:
            batches = list(made)
        found[name] = [targets_of(batch) for batch in batches]
    assert all(each == found["torch"] for each in found.values())
    assert batches[0].text == [f"no. {sample_id}" for sample_id in batches[0].ids.tolist()]
    assert {"boxes", "box_labels", "mask", "text"} <= batches[0].targets.keys() and set(
        batches[0]["boxes"].lengths
    ) == {0, 1}


def test_nobody_follows_crops_that_dali_draws_itself(painted):
    with pytest.raises(
        dp.ConfigError,
        match="DaliNativeConfig draws its crops itself, so boxes and masks cannot",
    ):
        NativeLoader(painted, DaliNativeConfig(device="cpu"), dp.TrainTransform(), 4)


def by_torchvision(mask, planned, shape, ignored):
    """Crop, resize with NEAREST_EXACT, crop with padding, flips, of a mask as (1, H, W) uint8."""
    top, left, height, width = planned.region.tolist()
    window = v2.functional.crop(mask, top, left, height, width)
    resized = v2.functional.resize(
        window, planned.resize.tolist(), v2.InterpolationMode.NEAREST_EXACT
    )
    top, left = planned.crop.tolist()
    after = left + shape[1] - resized.shape[2], top + shape[0] - resized.shape[1]
    moved = v2.functional.pad(resized, [-left, -top, *after], fill=ignored)
    moved = moved.flip(2) if planned.flip else moved
    return (moved.flip(1) if planned.vertical_flip else moved)[0]


@pytest.mark.parametrize("form", ["train", "padded crop", "scale jitter"])
def test_masks_are_torchvisions_over_epochs_and_after_a_resume(painted, form):
    transform, masks = TRANSFORMS[form], {}
    for sample_id in range(len(painted)):
        with Image.open(painted.mask_extent(sample_id).file) as file:
            masks[sample_id] = torch.from_numpy(np.asarray(file).copy())[None]
    seen, after = [], []
    with loader(painted, "dali_cpu", transform, batch_size=5) as made:
        for epoch in range(3):
            for step, batch in enumerate(made):
                rows = made.plan.batch(epoch, step)
                for place, sample_id in enumerate(batch.ids.tolist()):
                    expected = by_torchvision(
                        masks[sample_id],
                        rows.geometry.take(place),
                        rows.shape,
                        transform.ignore_index,
                    )
                    assert torch.equal(batch["mask"][place], expected.long())
                seen.append(batch["mask"])
                if (epoch, step) == (1, 1):
                    state = json.loads(json.dumps(made.state_dict()))
    with loader(painted, "torch", transform, batch_size=5) as resumed:
        resumed.load_state_dict(state)
        for _ in range(2):
            after += [batch["mask"] for batch in resumed]
    assert len(seen) == 12 and all(torch.equal(*each) for each in zip(seen[6:], after, strict=True))


@pytest.mark.parametrize(
    "policy",
    ["TrivialAugmentWide", {"name": "RandomRotation", "degrees": 90}],
    ids=["TrivialAugment", "rotation"],
)
def test_masks_follow_rotations_shears_and_translations(painted, policy):
    """As torchvision's nearest neighbours, with `ignore_index` where no pixel of the image is."""
    same = {"size": 120, "scale": (0.6, 1), "ignore_index": 300}
    transform, plain = dp.TrainTransform(**same, augment=[policy]), dp.TrainTransform(**same)
    moved, values = 0, set()
    with loader(painted, "torch", transform) as made, loader(painted, "torch", plain) as before:
        for step, (batch, still) in enumerate(zip(made, before, strict=True)):
            drawn = made.plan.batch(0, step).augmentation
            each = drawn.ops[:, 0], drawn.magnitudes[:, 0], batch["mask"], still["mask"]
            for op, magnitude, mask, unmoved in zip(*each, strict=True):
                expected = unmoved
                if OPS[op] in AFFINE:
                    options = {
                        "interpolation": v2.InterpolationMode.NEAREST,
                        "fill": {torch.Tensor: [300.0]},
                    }
                    made_by = v2.AutoAugment()._apply_image_or_video_transform
                    expected = made_by(
                        unmoved[None].to(torch.int32), OPS[op], float(magnitude), **options
                    )[0].long()
                    moved, values = moved + 1, values | set(mask.unique().tolist())
                assert torch.equal(mask, expected)
    assert moved >= 3 and 300 in values
