"""The augmentation operations: each against torchvision's, OpenCV's or timm's own function, and a
batch at once, as on a GPU, against one image at a time.
"""

from zlib import crc32

import cv2
import numpy as np
import pytest
import torch
from later import later
from reference import operate

from dali_pipes.backends.pixels import operations
from dali_pipes.backends.pixels import tables as pixels_tables
from dali_pipes.backends.pixels.operations import augment
from dali_pipes.backends.pixels.warps import _warp_as_pillow, augment_mask
from dali_pipes.plan.steps.operations import (
    AFFINE,
    BLENDS,
    CODE,
    MOVES,
    OPS,
    TABLES,
    Slot,
    affine_matrices,
)

v2 = later("torchvision.transforms.v2")

OF_MAGNITUDES = [op for op in OPS if op not in TABLES]
SIZES = [(64, 72), (1, 1), (7, 300)]
FILL = (124, 3, 250)
STRENGTHS = {
    **dict.fromkeys(("ShearX", "ShearY", *BLENDS), (-0.99, 0.99)),
    **dict.fromkeys(("PillowColor", "PillowContrast"), (-0.99, 0.99)),
    **dict.fromkeys(("OpenCvColor", "OpenCvContrast"), (-0.99, 0.99)),
    **dict.fromkeys(("TranslateX", "TranslateY", "ShiftX", "ShiftY"), (-60, 60)),
    "Rotate": (-179, 179),  # at 180 each place lies between two steps of Pillow's sums
    "Posterize": (0, 8),
    "Solarize": (0, 1),
    **dict.fromkeys(("Hue", "PillowHue"), (-0.5, 0.5)),
    "GaussianBlur": (0.1, 2.0),
    "SolarizeAdd": (0, 250),
}
# of all values: how many may differ by one step, and how many by more
EXACT = (0.0, 0.0)
ALLOWED = {
    **dict.fromkeys(OPS, EXACT),
    **dict.fromkeys((*BLENDS, "Hue", "GaussianBlur"), (0.003, 0.0)),
    # OpenCV's own way to round
    "Equalize": (0.5, 0.0),
    "OpenCvColor": (0.04, 0.0),
    # a neighbouring pixel where the place lies half-way between two
    **dict.fromkeys(("ShearX", "ShearY", "Rotate"), (0.001, 0.001)),
}


def draw(op, shape, channels, count=4):
    """Images of noise, of few values, in one color, smooth; and a magnitude for each,
    the first two the weakest and the strongest.
    """
    rng = np.random.default_rng(crc32(f"{op} {shape} {channels}".encode()))
    images = rng.integers(0, 256, (count, channels, *shape))
    images[1] = 250 + images[1] // 52
    images[2] = 77
    images[3] = (images[3] + np.arange(shape[1]) * 9) // 8 % 256
    ends = STRENGTHS.get(op, (0, 0))
    magnitudes = np.append(ends, rng.uniform(*ends, count - 2))
    magnitudes = np.rint(magnitudes) if op == "Posterize" else magnitudes
    return torch.from_numpy(images.astype(np.uint8)), magnitudes.astype(np.float32)[:, None]


def slots(op):
    """With each interpolation, and each kind of edge, that the operation has."""
    if op in MOVES and not op.startswith("Shift"):
        yield from (Slot((op,), "nearest"), Slot((op,), "bilinear"))
    if op in MOVES and not op.startswith("Translate"):
        yield from (Slot((op,), "bilinear", fill=FILL), Slot((op,), "bicubic", fill=FILL))
    if op not in MOVES:
        yield Slot((op,), kernel_size=9 if op == "GaussianBlur" else 0)


def cases(op):
    for shape in SIZES:
        for channels in (1, 3):
            # of gray there is no hue, and a blur takes more pixels than its margin
            if (op, channels) != ("Hue", 1) and (op != "GaussianBlur" or min(shape) > 4):
                for slot in slots(op):
                    yield *draw(op, shape, channels), slot


def codes(op, images):
    return np.full((len(images), 1), CODE[op], np.int8)


def assert_alike(made, expected, allowed, about):
    difference = (made.int() - expected.int()).abs()
    one, more = allowed
    assert (difference == 1).float().mean() <= one, about
    assert (difference > 1).float().mean() <= more, about


@pytest.mark.parametrize("op", OF_MAGNITUDES)
def test_an_operation_is_that_of_its_library(op):
    for images, magnitudes, slot in cases(op):
        before = images.clone()
        made = augment(images, (slot,), codes(op, images), magnitudes)
        assert torch.equal(images, before) and made.data_ptr() != images.data_ptr()
        # torchvision has no SolarizeAdd
        told = Slot((op,), fill=FILL) if op == "SolarizeAdd" else slot
        each = zip(images, magnitudes[:, 0].tolist(), strict=True)
        expected = torch.stack([operate(image, op, number, told) for image, number in each])
        assert_alike(made, expected, ALLOWED[op], (images.shape, slot))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.needs_cuda)])
@pytest.mark.parametrize("op", OF_MAGNITUDES)
def test_a_batch_at_once_is_its_images_one_by_one(monkeypatch, op, device):
    monkeypatch.setattr(operations, "_TOGETHER", 2)
    for images, magnitudes, slot in cases(op):
        if slot.fill and device == "cpu":
            continue  # by Pillow, one by one
        ops = codes(op, images)
        ops[1] = CODE["Identity"]
        together = images.clone().to(device)
        strengths = magnitudes[:, 0].astype(np.float64)
        operations._change_together(together, ops[:, 0], strengths, slot)
        expected = augment(images, (slot,), ops, magnitudes)
        allowed = (0.01, 0.001) if slot.fill else (ALLOWED | {"Equalize": EXACT})[op]
        assert_alike(together.cpu(), expected, allowed, (images.shape, slot))


def tables_of_noise(count):
    return np.random.default_rng(0).integers(0, 256, (count, 3, 256), np.uint8)


@pytest.mark.parametrize("op", TABLES)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shape", SIZES)
def test_tables_are_those_of_opencv(shape, channels, op):
    images, _ = draw(op, shape, channels)
    tables = tables_of_noise(5)
    if op == "HsvTable":
        tables[:, 0] %= 180  # a hue is none of the numbers above
    ops, chosen = codes(op, images), np.array([4, 0, 2, 1])
    ops[1] = CODE["Identity"]
    numbers = chosen[:, None].astype(np.float32)
    made = augment(images, (Slot(TABLES),), ops, numbers, tables)

    for at, (image, table) in enumerate(zip(images, tables[chosen], strict=True)):
        pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
        if at == 1 or (op, channels) == ("HsvTable", 1):
            expected = pixels
        elif op == "Table":
            expected = np.stack([table[c][pixels[..., c]] for c in range(channels)], 2)
        else:
            hsv = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV)
            hsv = np.stack([table[c][hsv[..., c]] for c in range(3)], 2)
            expected = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)
        np.testing.assert_array_equal(made[at].permute(1, 2, 0).numpy(), expected)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.needs_cuda)])
@pytest.mark.parametrize("op", TABLES)
def test_tables_of_a_batch_at_once_are_those_of_its_images(monkeypatch, op, device):
    monkeypatch.setattr(operations, "_TOGETHER", 2)
    monkeypatch.setattr(pixels_tables, "_find_opencv", lambda: None)
    images, _ = draw(op, (60, 72), 3)
    tables, chosen = tables_of_noise(4), np.array([3.0, 0, 1, 1])
    expected = augment(
        images, (Slot(TABLES),), codes(op, images), chosen[:, None].astype(np.float32), tables
    )
    together = images.clone().to(device)
    operations._change_together(together, codes(op, images)[:, 0], chosen, Slot(TABLES), tables)
    assert torch.equal(together.cpu(), expected)


def test_hue_saturation_and_value_without_opencv_are_opencvs():
    values = np.random.default_rng(0).integers(0, 256, (600, 600, 3), np.uint8)
    images = torch.from_numpy(values).permute(2, 0, 1)[None].contiguous()
    hsv = pixels_tables._to_hsv(images)
    there = cv2.cvtColor(values, cv2.COLOR_RGB2HSV)
    np.testing.assert_array_equal(hsv[0].permute(1, 2, 0).numpy(), there)

    # any hue, also beyond the circle
    back = pixels_tables._to_rgb(images)[0].permute(1, 2, 0).numpy().astype(int)
    difference = np.abs(back - cv2.cvtColor(values, cv2.COLOR_HSV2RGB))
    assert difference.max() <= 1 and (difference > 0).mean() < 0.02


@pytest.mark.parametrize("share", [0.137, -0.5, 0.5, 0.0])
def test_the_hue_of_every_color_is_turned_as_pillow_turns_it(share):
    each = np.arange(0, 256, 5, np.uint8)
    some = np.unique([*each, 1, 2, 127, 128, 254, 255]).astype(np.uint8)
    colors = np.stack(np.meshgrid(some, some, np.arange(256, dtype=np.uint8)), 0).reshape(
        3, -1, 256
    )
    image = torch.from_numpy(colors)
    (made,) = augment(
        image[None], (Slot(("PillowHue",)),), codes("PillowHue", [0]), np.array([[share]])
    )
    assert torch.equal(made, operate(image, "PillowHue", share, Slot(("PillowHue",))))


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
def test_the_arithmetic_for_a_gpu_is_pillows(interpolation):
    for op in ("ShearX", "ShearY", "Rotate", "ShiftX", "ShiftY"):
        for shape in SIZES:
            images, magnitudes = draw(op, shape, 3)
            ops, slot = codes(op, images), Slot((op,), interpolation, fill=FILL)
            matrices = affine_matrices(ops[:, 0], magnitudes[:, 0], shape)
            made = _warp_as_pillow(images, matrices, interpolation, FILL)
            # a neighbouring pixel where the place lies half-way between two
            allowed = (0.01, 0.001 if interpolation == "nearest" else 0.0)
            assert_alike(made, augment(images, (slot,), ops, magnitudes), allowed, (op, shape))


def test_several_operations_follow_each_other():
    several = "Contrast", "Rotate", "EqualizeInSteps"
    images, _ = draw("several", (48, 40), 3)
    each = tuple(Slot((op,), "bilinear") for op in several)
    ops = np.tile(np.array([CODE[op] for op in several], np.int8), (len(images), 1))
    ops[::2, 1] = CODE["Identity"]
    magnitudes = np.tile(np.array([0.4, 20, 0], np.float32), (len(images), 1))
    expected = images
    for at, slot in enumerate(each):
        expected = augment(expected, (slot,), ops[:, at : at + 1], magnitudes[:, at : at + 1])
    assert torch.equal(augment(images, each, ops, magnitudes), expected)


def odd_images():
    """(3, H, W): of few values, dark, bright, in one color, small, and of fewer than 255 pixels."""
    rng = np.random.default_rng(0)
    for low, high, shape in [
        *((0, 256, (3, 40, 48)), (0, 256, (1, 40, 48)), (0, 256, (3, 5, 7)), (0, 256, (3, 1, 1))),
        *((0, 2, (3, 40, 48)), (250, 256, (3, 40, 48)), (0, 9, (3, 16, 16)), (7, 8, (3, 40, 48))),
        (255, 256, (3, 40, 48)),
    ]:
        yield torch.from_numpy(rng.integers(low, high, shape, np.uint8))
    yield torch.from_numpy(rng.normal(120, 9, (3, 40, 48)).clip(0, 255).astype(np.uint8))


def test_torchvisions_equalize_and_autocontrast_of_odd_images():
    functions = {
        "EqualizeInSteps": v2.functional.equalize,
        "AutoContrast": v2.functional.autocontrast,
    }
    for image in odd_images():
        for op, function in functions.items():
            (made,) = augment(image[None], (Slot((op,)),), codes(op, [0]), np.zeros((1, 1)))
            assert torch.equal(made, function(image)), (op, image.shape)


@pytest.mark.parametrize("op", AFFINE)
@pytest.mark.parametrize(("dtype", "outside"), [(np.uint8, 255), (np.int32, 65535), (np.int16, -1)])
def test_a_mask_moves_as_its_image(op, dtype, outside):
    for shape in SIZES:
        images, magnitudes = draw(op, shape, 1)
        for image, (number,) in zip(images, magnitudes.tolist(), strict=True):
            slot = Slot((op,), "bilinear")  # a mask takes the nearest pixel
            mask, numbers = torch.from_numpy(image[0].numpy().astype(dtype)), np.array([number])
            made = augment_mask(
                mask, (slot,), np.array([CODE[op]]), numbers, np.zeros((0, 2, 3)), outside
            )
            nearest = Slot((op,), "nearest")
            inside = operate(torch.ones_like(image), op, number, nearest) > 0
            expected = torch.where(inside, operate(image, op, number, nearest).int(), outside)[0]
            assert made.dtype == mask.dtype
            assert (made != expected).float().mean() <= 0.001, (shape, number)
