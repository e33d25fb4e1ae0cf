"""Further images, such as depth maps, go where every backend puts the pixels of their image."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from later import later
from PIL import Image
from test_target_contract import BACKENDS, NOT_EVERYWHERE, TRANSFORMS, loader

import dali_pipes as dp
from dali_pipes.backends.common.pixels import to_steps
from dali_pipes.backends.common.target_pixels import augment_moved, move_target
from dali_pipes.plan.augment.augmenter import Augmenter
from dali_pipes.plan.augment.operations import CODE, Augmentation
from dali_pipes.plan.geometry import Geometry

v2 = later("torchvision.transforms.v2")
torchvision_augment = later("dali_pipes.backends.common.torchvision_augment")

NAMES = ("same", "gray", "depth", "fine")
COLORS = [{"name": "ColorJitter", "brightness": 0.8, "hue": 0.4}, {"name": "RandomErasing", "p": 1}]
MOVES = {
    "rotation": [{"name": "RandomRotation", "degrees": 90}],
    "smooth rotation": [{"name": "RandomRotation", "degrees": 45, "interpolation": "bilinear"}],
}
FORMS = {name: form for name, form in TRANSFORMS.items() if name != "IoU crop"}
# all forms on two backends, and two forms on the others
CASES = [
    (name, form)
    for form in FORMS
    for name in BACKENDS
    if name in ("torch", "dali_cpu") or form in ("train", "padded crop")
]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Photographs of several sizes and EXIF orientations. "same" is the picture itself; "gray" its
    green; "depth" has 257 times that in 16 bits; "fine" is twice as high and wide, each pixel four
    times.
    """
    folder, rng = tmp_path_factory.mktemp("pairs"), np.random.default_rng(3)
    rows = ["path," + ",".join(NAMES)]
    for number in range(16):
        height, width = rng.integers(110, 200, 2).tolist()
        coarse = rng.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        pixels, exif = np.asarray(picture), Image.Exif()
        exif[0x0112] = 1 + number % 8
        picture.save(folder / f"{number}.png", exif=exif)
        for name, values in (
            ("same", pixels),
            ("gray", pixels[..., 1]),
            ("depth", pixels[..., 1].astype(np.uint16) * 257),
            ("fine", pixels.repeat(2, 0).repeat(2, 1)),
        ):
            Image.fromarray(values).save(folder / f"{number}_{name}.png")
        rows.append(",".join([f"{number}.png", *(f"{number}_{name}.png" for name in NAMES)]))
    (folder / "pairs.csv").write_text("\n".join(rows))
    targets = dp.Targets(images={name: name for name in NAMES}, annotated="stored")
    return dp.Manifest.from_table(folder / "pairs.csv", targets=targets, progress=False)


def with_targets(transform, **more):
    bytes_of = {
        "same": dp.TargetImage(dtype="uint8"),
        "gray": {"channels": 1, "dtype": "uint8"},
        "depth": {"channels": 1, "scale": 1 / 257},
        "fine": {"dtype": "uint8"},
    }
    return replace(transform, target_images=bytes_of | more)


@pytest.mark.few
@pytest.mark.parametrize(("name", "form"), CASES)
def test_the_same_picture_comes_out_as_the_image(pairs, name, form, torchvision_gpu_anywhere):
    # a photograph whose pixels differ by more than this would be cropped elsewhere; `torch` itself
    # resizes with Pillow, as targets are
    most = 0 if name == "torch" else 1.0
    transform = with_targets(replace(FORMS[form], dtype="uint8"))
    with loader(pairs, name, transform, last_batch="drop") as made:
        for batch in made:
            same, depth = batch["same"], batch["depth"]
            assert same.dtype == torch.uint8 and depth.dtype == torch.float32
            assert same.shape == batch.images.shape and depth.shape[1] == 1
            distance = (same.int() - batch.images.int()).abs().float().mean(dim=(1, 2, 3))
            assert distance.max() <= most
            assert torch.equal(batch["gray"], same[:, 1:2])
            # 16 bits are not rounded between the two passes of the resize, and 8 bits are
            assert (depth - batch["gray"]).abs().max() <= 1.01


@pytest.mark.few
@pytest.mark.parametrize("form", ["train", "padded crop", "upright"])
def test_targets_do_not_depend_on_the_backend(pairs, form, torchvision_gpu_anywhere):
    found = {}
    for name in BACKENDS:
        if name in NOT_EVERYWHERE.get(form, ()):
            continue
        with loader(pairs, name, with_targets(FORMS[form])) as made:
            found[name] = [[batch[each].numpy().tobytes() for each in NAMES] for batch in made]
    assert all(each == found["torch"] for each in found.values()) and len(found) >= 4


def test_colors_and_erasing_leave_targets_as_they_are(pairs):
    plain = with_targets(dp.TrainTransform(size=64))
    with (
        loader(pairs, "dali_cpu", plain) as made,
        loader(pairs, "dali_cpu", replace(plain, augment=COLORS)) as colored,
    ):
        for batch, other in zip(made, colored, strict=True):
            assert not torch.equal(batch.images, other.images)
            assert all(torch.equal(batch[name], other[name]) for name in NAMES)


@pytest.mark.parametrize("name", ["torch", "dali_cpu"])
@pytest.mark.parametrize("policy", MOVES)
def test_rotated_pictures_stay_equal(pairs, name, policy):
    transform = dp.TrainTransform(size=(96, 80), scale=(0.6, 1), augment=MOVES[policy])
    transform = with_targets(replace(transform, dtype="uint8"))
    with loader(pairs, name, transform) as made:
        for batch in made:
            distance = (batch["same"].int() - batch.images.int()).abs().float()
            # a grid's last bit chooses the other of two pixels in a few places
            assert distance.mean() <= (0.01 if name == "torch" else 0.5)
            assert torch.equal(batch["gray"], batch["same"][:, 1:2])


def test_shears_and_translations_move_the_larger_image_alike(pairs):
    """A target twice as large shows, at half its size, what the image shows."""
    transform = dp.TrainTransform(size=64, scale=(0.6, 1), augment=["TrivialAugmentWide"])
    transform = with_targets(transform, fine={"size_factor": 2, "dtype": "uint8"})
    moved = 0
    with loader(pairs, "torch", transform) as made:
        for step, batch in enumerate(made):
            small = batch["fine"].float().view(-1, 3, 64, 2, 64, 2).mean(dim=(3, 5))
            distance = (small - batch["same"].float()).abs().mean(dim=(1, 2, 3))
            codes = made.plan.batch(0, step).augmentation.ops[:, 0]
            # nearest pixels of moved images are up to half a pixel elsewhere
            assert (distance[torch.from_numpy(codes == 0)] < 3).all() and (distance < 14).all()
            moved += int(((codes > 0) & (codes < 6)).sum())
    assert moved >= 3


def test_a_target_twice_as_large_has_every_pixel_four_times(pairs):
    """Super-resolution: without a resize the result has the stored values."""
    transform = dp.RandomCropTransform(
        size=(90, 128), resize=None, padding=20, pad_if_needed=True, vertical_flip=0.5
    )
    fine = {"size_factor": 2, "dtype": "uint8"}
    transform = with_targets(replace(transform, dtype="uint8"), fine=fine)
    with loader(pairs, "torch", transform) as made:
        for batch in made:
            assert batch["fine"].shape == (8, 3, 180, 256)
            large = batch.images.repeat_interleave(2, 2).repeat_interleave(2, 3)
            assert torch.equal(batch["fine"], large)


def test_depth_keeps_stored_values_and_others_are_interpolated(pairs):
    """By torchvision's functions, for the same region."""
    depth = {"channels": 1, "scale": 1.0}
    form = dp.TrainTransform(size=(70, 90))
    for kind in ("nearest-exact", "bilinear", "bicubic"):
        transform = with_targets(form, depth=depth | {"interpolation": kind})
        with loader(pairs, "torch", transform) as made:
            batch, planned = next(iter(made)), made.plan.batch(0, 0)
        mode = v2.InterpolationMode(kind)
        for at, sample_id in enumerate(batch.ids.tolist()):
            with Image.open(pairs.target_image_extent("depth", sample_id).file) as file:
                values = torch.from_numpy(np.asarray(file).astype(np.float32))[None]
            top, left, height, width = planned.geometry.region[at].tolist()
            region = v2.functional.crop(values, top, left, height, width)
            expected = v2.functional.resize(region, [70, 90], mode, antialias=True)
            expected = expected.flip(2) if planned.geometry.flip[at] else expected
            most = 0 if kind == "nearest-exact" else 0.1
            assert (batch["depth"][at] - expected).abs().max() <= most


def test_values_are_scaled_normalized_and_filled(pairs):
    form = dp.RandomCropTransform(size=(220, 220), resize=None, pad_if_needed=True, flip=0)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    transform = with_targets(
        form,
        same={"mean": mean, "std": std, "dtype": "fp16"},
        gray={"channels": 1, "fill": 51},
        depth={"channels": 1, "fill": 65535, "mean": 0.5, "std": 0.25},
    )
    transform = replace(transform, mean=mean, std=std)
    with loader(pairs, "torch", transform) as made:
        batch = next(iter(made))
    assert batch["same"].dtype == torch.float16
    assert (batch["same"].float() - batch.images).abs().max() < 2e-3
    steps = to_steps(batch.images, transform).round()[:, 1:2]
    outside = (to_steps(batch.images, transform) < 0.5).all(dim=1, keepdim=True)
    assert (batch["gray"] * 255 - steps).abs()[~outside].max() < 1e-3
    assert (batch["gray"][:, :, 0] == 0.2).all() and (batch["depth"][:, :, 0] == 2).all()
    assert (batch["depth"] / 4 + 0.5 - steps / 255).abs()[~outside].max() < 1e-5


def test_without_antialiasing_and_with_a_drawn_interpolation(pairs):
    for options in ({"antialias": False}, {"interpolation": "random"}):
        transform = with_targets(dp.TrainTransform(size=60, dtype="uint8", **options))
        with loader(pairs, "torch", transform) as made:
            for batch in made:
                assert torch.equal(batch["same"], batch.images)
                assert torch.equal(batch["gray"], batch["same"][:, 1:2])
                assert (batch["depth"] - batch["gray"]).abs().mean() <= 1


def test_targets_follow_the_first_view(pairs):
    views = {"global": {"count": 2, "size": 64}, "local": {"count": 1, "size": 32}}
    transform = with_targets(dp.ViewsTransform(views=views, dtype="uint8"))
    with loader(pairs, "torch", transform) as made:
        for batch in made:
            assert torch.equal(batch["same"], batch.images)


def place(source, region, resize, crop):
    no = np.False_
    return Geometry(*map(np.array, (source, region, resize, crop)), no, no)


@pytest.mark.parametrize("interpolation", ["bilinear", "nearest-exact"])
@pytest.mark.parametrize("fill", [-1.0, 300.0, 127.5])
def test_a_fill_that_is_no_byte_is_kept_beside_bytes(interpolation, fill):
    values = np.full((10, 12, 3), 200, np.uint8)
    geometry = place((10, 12), (0, 0, 10, 12), (10, 12), (-2, -2))
    options = dp.TargetImage(fill=fill)
    moved = move_target(values, options, interpolation, True, geometry, (14, 16))
    assert (moved[2:12, 2:14] == 200).all() and (moved[0] == fill).all()
    slots, drawn = drawn_of("Rotate", 30.0, "RandAugment")
    turned = augment_moved(moved, options, interpolation, slots, drawn, 0)
    assert (turned[:, 7, 8] == 200).all() and (turned[:, 0, 0] == fill).all()


@pytest.mark.parametrize("crop", [(-40, 0), (0, -40), (50, 0), (0, 50), (-40, 50)])
def test_a_crop_outside_the_image_is_filled(crop):
    values = np.full((32, 32, 1), 7, np.uint8)
    geometry = place((32, 32), (0, 0, 32, 32), (32, 32), crop)
    moved = move_target(values, dp.TargetImage(fill=3), "bilinear", True, geometry, (32, 32))
    assert moved.shape == (32, 32, 1) and (moved == 3).all()


def drawn_of(op, magnitude, policy):
    """One operation on one image, in the first slot of a policy."""
    slots = Augmenter([{"name": policy}]).slots
    ops, magnitudes = np.zeros((1, len(slots)), np.int8), np.zeros((1, len(slots)), np.float32)
    ops[0, 0], magnitudes[0, 0] = CODE[op], magnitude
    nothing = np.zeros((1, 4), np.int64)
    return slots, Augmentation(ops, magnitudes, nothing, np.zeros((1, 0)), np.zeros((1, 0, 2, 3)))


@pytest.mark.parametrize("op", ["Brightness", "Rotate"])
def test_values_keep_their_bits_beside_a_large_fill(op):
    """Less `fill` and plus it again, 0.1 would be another number."""
    values = np.full((20, 20, 1), 0.1, np.float32)
    slots, drawn = drawn_of(op, 20.0, "TrivialAugmentWide")
    options = dp.TargetImage(channels=1, fill=1e6)
    for interpolation in ("nearest-exact", "bilinear"):
        moved = augment_moved(values, options, interpolation, slots, drawn, 0)
        inside = moved[0, 6:14, 6:14]
        assert (inside - 0.1).abs().max() < 1e-7
        if op == "Brightness" or interpolation == "nearest-exact":
            assert (inside == np.float32(0.1)).all()
        assert moved[0, 0, 0] == (values[0, 0, 0] if op == "Brightness" else 1e6)


@pytest.mark.parametrize("dtype", ["uint8", "fp32"])
@pytest.mark.parametrize("op", ["Rotate", "ShearX", "ShiftY"])
def test_timms_operations_move_the_target_as_pillow_moves_the_image(op, dtype):
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    slots, drawn = drawn_of(op, 0.3 if op == "ShearX" else 7.5, "TimmRandAugment")
    options = dp.TargetImage(fill=slots[0].fill[0], dtype=dtype)
    values = pixels if dtype == "uint8" else pixels.astype(np.float32)
    moved = augment_moved(values, options, "bilinear", slots, drawn, 0)
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    expected = torchvision_augment.augment(image, slots, drawn.ops[0], drawn.magnitudes[0])[:1]
    # of bytes Pillow cuts off fractions, and what the bicubic filter has beyond 0 and 255
    most = 0 if dtype == "uint8" else 1
    assert (moved[:1].float().clamp(0, 255) - expected).abs().max() <= most
    assert not torch.equal(expected, image[:1])
    # twice as large, and turned about its own centre
    large = dp.TargetImage(size_factor=2, fill=options.fill)
    double = augment_moved(values.repeat(2, 0).repeat(2, 1), large, "nearest", slots, drawn, 0)
    assert double.shape == (3, 60, 80)
    assert (double[:1, ::2, ::2].float() - moved[:1].float()).abs().median() < 40
