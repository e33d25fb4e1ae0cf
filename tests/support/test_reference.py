"""The reference of pixels against torchvision's own pipelines, and against numbers by hand."""

import ast
from pathlib import Path

import numpy as np
import pytest
import reference
import torch
from later import later
from PIL import Image
from reference import Reference
from turned_files import png, stored, upright

import dali_pipes as dp
from dali_pipes.data.loose_images import NO_IMAGES
from dali_pipes.plan.geometry import Geometry
from dali_pipes.plan.plan import Plan, PlannedBatch, PlannedView
from dali_pipes.plan.steps.operations import OPS, TABLES, Augmentation, Slot

v2 = later("torchvision.transforms.v2")

MEAN, STD = (0.4, 0.5, 0.3), (0.2, 0.3, 0.25)
NORMALIZED = {"mean": MEAN, "std": STD}
COUNT = 9  # some of the images: gray, progressive, very small, very long


def planned(manifest, transform, **options):
    options = {"batch_size": COUNT, "seed": 3, "sampling": "sequential"} | options
    return Plan(manifest, transform, **options).batch(0, 0)


def pictures(manifest):
    return [reference.read(manifest.path(at)) for at in range(COUNT)]


def composed(*steps, form=None):
    """torchvision's pipeline, up to normalized floats or to `form`."""
    normalized = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    return v2.Compose([*steps, *(normalized if form is None else form)])


EVALUATIONS = {
    "resized and cropped": (
        {"size": 96, "resize": 110},
        lambda: [v2.Resize(110), v2.CenterCrop(96)],
    ),
    "bicubic": (
        {"size": (64, 90), "resize": (80, 100), "interpolation": "bicubic"},
        lambda: [v2.Resize((80, 100), v2.InterpolationMode.BICUBIC), v2.CenterCrop((64, 90))],
    ),
    "nearest neighbours": (
        {"size": 48, "resize": (60, 48), "interpolation": "nearest-exact"},
        lambda: [v2.Resize((60, 48), v2.InterpolationMode.NEAREST), v2.CenterCrop(48)],
    ),
    "padded": (
        {"size": 100, "resize": 50, "pad_if_needed": True},
        lambda: [v2.Resize(50), v2.CenterCrop(100)],
    ),
    "as stored": ({"size": (90, 70), "resize": None}, lambda: [v2.CenterCrop((90, 70))]),
}


@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_evaluation_is_torchvisions_pipeline(manifest, evaluation):
    options, steps = EVALUATIONS[evaluation]
    one, images = Reference.of(dp.EvalTransform, **options, **NORMALIZED), pictures(manifest)
    (made,) = one(planned(manifest, one.transform), images)
    assert torch.equal(made, torch.stack(list(map(composed(*steps()), images))))


@pytest.mark.parametrize("flips", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_a_random_crop_with_flips_is_torchvisions_pipeline(manifest, flips):
    """Its draws replaced by the planned ones."""
    one = Reference.of(
        dp.TrainTransform, size=(40, 56), flip=flips[0], vertical_flip=flips[1], **NORMALIZED
    )
    batch, images = planned(manifest, one.transform), pictures(manifest)
    crop = v2.RandomResizedCrop((40, 56))
    steps = composed(crop, v2.RandomHorizontalFlip(flips[0]), v2.RandomVerticalFlip(flips[1]))
    (made,) = one(batch, images)
    names = ("top", "left", "height", "width")
    for found, image, region in zip(made, images, batch.geometry.region.tolist(), strict=True):
        crop.make_params = lambda _, region=region: dict(zip(names, region, strict=True))
        assert torch.equal(found, steps(image))


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"channels": 1, "mean": [0.5], "std": [0.25]}, lambda: [v2.Grayscale(1)]),
        ({"dtype": "uint8"}, list),
    ],
    ids=["gray", "bytes"],
)
def test_gray_and_bytes_are_torchvisions_pipeline(manifest, options, steps):
    one = Reference.of(dp.EvalTransform, size=64, resize=(70, 80), **options)
    (made,) = one(planned(manifest, one.transform), pictures(manifest))
    form = [v2.PILToTensor()]
    if "mean" in options:
        form += [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.25])]
    plain = composed(*steps(), v2.Resize((70, 80)), v2.CenterCrop(64), form=form)
    assert torch.equal(made, torch.stack(list(map(plain, pictures(manifest)))))


def test_views_follow_one_another_in_their_groups(manifest):
    one = Reference.of(dp.TenCropTransform, size=(40, 32), resize=(50, 60), **NORMALIZED)
    (made,) = one(planned(manifest, one.transform), pictures(manifest))
    crops = composed(v2.Resize((50, 60)), v2.TenCrop((40, 32)), form=[])
    for at, image in enumerate(pictures(manifest)):
        for view, crop in enumerate(crops(image)):
            assert torch.equal(made[view * COUNT + at], composed()(crop))


def test_a_picture_of_four_pixels_by_hand():
    """A crop that begins outside of it, flipped left to right, with a part erased."""
    one = Reference.of(dp.TrainTransform, size=(2, 3), mean=(0.0, 0.5, 1.0), std=(1.0, 0.5, 0.25))
    geometry = Geometry(
        source=np.array([[2, 2]]),
        region=np.array([[0, 0, 2, 2]]),
        resize=np.array([[2, 2]]),
        crop=np.array([[-1, 0]]),
        flip=np.array([True]),
        vertical_flip=np.array([False]),
    )
    augmentation = Augmentation(
        ops=np.zeros((1, 0), np.int8),
        magnitudes=np.zeros((1, 0), np.float32),
        erased=np.array([[1, 0, 1, 1]]),
        numbers=np.zeros((1, 0)),
        moves=np.zeros((1, 0, 2, 3)),
    )
    view = PlannedView(geometry, augmentation, (2, 3))
    batch = PlannedBatch(0, 0, np.array([0]), ((view,),), NO_IMAGES)
    stored_pixels = [[[255, 0, 51], [102, 255, 0]], [[0, 0, 0], [255, 255, 255]]]
    ((made,),) = one(batch, [Image.fromarray(np.array(stored_pixels, np.uint8))])
    # black above, and at the right, which the flip brings to the left, where one pixel is erased
    expected = [
        [[0, 0, 0], [0, 0.4, 1]],
        [[-1, -1, -1], [0, 1, -1]],
        [[-4, -4, -4], [0, -4, -3.2]],
    ]
    assert torch.allclose(made, torch.tensor(expected), atol=1e-6)
    assert one.steps(made + 1, made).mean((1, 2)) == pytest.approx([255, 127.5, 63.75], rel=1e-5)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_as_the_words_of_exif_say(tmp_path, orientation):
    (tmp_path / "1.png").write_bytes(png(orientation))
    turned = upright(stored(), orientation)
    assert np.array_equal(reference.read(tmp_path / "1.png", upright=True), turned)
    assert np.array_equal(reference.read(tmp_path / "1.png"), stored())


OPERATIONS = {
    "Invert": (0.0, lambda: v2.RandomInvert(1)),
    "AutoContrast": (0.0, lambda: v2.RandomAutocontrast(1)),
    "EqualizeInSteps": (0.0, lambda: v2.RandomEqualize(1)),
    "Posterize": (3.0, lambda: v2.RandomPosterize(3, 1)),
    "Solarize": (0.5, lambda: v2.RandomSolarize(127.5, 1)),
    "Sharpness": (0.8, lambda: v2.RandomAdjustSharpness(1.8, 1)),
    "Brightness": (0.25, lambda: v2.ColorJitter(brightness=(1.25, 1.25))),
    "Contrast": (0.25, lambda: v2.ColorJitter(contrast=(1.25, 1.25))),
    "Color": (0.25, lambda: v2.ColorJitter(saturation=(1.25, 1.25))),
    "Hue": (0.25, lambda: v2.ColorJitter(hue=(0.25, 0.25))),
    "Rotate": (30.0, lambda: v2.RandomRotation((30, 30))),
    "GaussianBlur": (1.5, lambda: v2.GaussianBlur(9, (1.5, 1.5))),
}


@pytest.mark.parametrize("op", OPERATIONS)
def test_operations_are_torchvisions_transforms(op):
    strength, transform = OPERATIONS[op]
    image = torch.from_numpy(stored().transpose(2, 0, 1).copy())
    made = reference.operate(image, op, strength, Slot((op,), "nearest", 9))
    assert torch.equal(made, transform()(image)) and not torch.equal(made, image)


def test_there_is_one_of_every_operation():
    image = torch.from_numpy(stored().transpose(2, 0, 1).copy())
    of_timm = ("ShiftX", "ShiftY", "SolarizeAdd")
    # those by tables are held to OpenCV in tests/backends/test_operations.py
    for op in (op for op in OPS if op not in TABLES):
        slot = Slot((op,), "bilinear", 9, (124, 116, 104) if op in of_timm else None)
        strength = 5.0 if op in of_timm or op.startswith("Translate") else 0.4
        made = reference.operate(image, op, strength, slot)
        assert made.shape == image.shape and torch.equal(made, image) == (op == "Identity"), op


def test_it_imports_nothing_that_makes_pixels():
    modules = []
    for each in ast.walk(ast.parse(Path(reference.__file__).read_text())):
        if isinstance(each, ast.ImportFrom):
            modules.append(each.module)
        elif isinstance(each, ast.Import):
            modules += [name.name for name in each.names]
    ours = [module for module in modules if module.startswith("dali_pipes")]
    assert ours == ["dali_pipes.plan.steps.operations"]
