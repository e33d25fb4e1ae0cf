"""timm's policies: distributions are those of timm's own transforms, and pixels too."""

import random
import re

import numpy as np
import pytest
import torch
from later import later
from PIL import Image

from dali_pipes.backends.pixels.operations import augment
from dali_pipes.errors import OptionError
from dali_pipes.plan.draws import Draws
from dali_pipes.plan.steps.lists import Augmenter
from dali_pipes.plan.steps.operations import CODE, MOVES
from dali_pipes.plan.steps.timm import TIMM_OPS, slots_of

stats, timm = later("scipy.stats"), later("timm.data.auto_augment")
erasing = later("timm.data.random_erasing")

N, SHAPE, FILL = 6_000, (96, 64), (124, 116, 104)
# what timm gives to its functions, as our magnitudes; the others have none
ARGUMENTS = {
    "solarize": lambda value: (value - 0.5) / 255,
    **dict.fromkeys(("color", "contrast", "brightness", "sharpness"), lambda value: value - 1),
    "translate_x_rel": lambda value: value * SHAPE[1],
    "translate_y_rel": lambda value: value * SHAPE[0],
}


def draw(seed=0, **policy):
    augmenter = Augmenter([policy])
    return augmenter.draw(Draws(seed, 0, np.arange(N)), N, SHAPE)


def timms_draws(config, count=N):
    """(operation, magnitude) of each call, by the name of ours."""
    transform, calls = timm.rand_augment_transform(config, {"img_mean": FILL}), []
    for op in transform.ops:
        change = ARGUMENTS.get(op.aug_fn.__name__, float)
        name = TIMM_OPS[op.name].op

        def note(image, *values, name=name, change=change, **_):
            calls.append((name, change(float(values[0])) if values else 0.0))
            return image

        op.aug_fn = note
    random.seed(1), np.random.seed(1)
    for _ in range(count):
        transform(None)
    return calls


@pytest.mark.parametrize(
    "config",
    ["rand-m9-mstd0.5-inc1", "rand-m7-n3-p0.8", "rand-m6-mstd101-tweights"],
)
def test_rand_augment_draws_what_timm_draws(config):
    drawn = draw(name="TimmRandAugment", config=config)
    theirs = timms_draws(config)
    layers = drawn.ops.shape[1]

    # how often each happens, and how often nothing does
    names = sorted({name for name, _ in theirs})
    ours = [int((drawn.ops == CODE[name]).sum()) for name in names]
    counts = [sum(each == name for each, _ in theirs) for name in names]
    table = [[*each, N * layers - sum(each)] for each in (ours, counts)]
    assert stats.chi2_contingency(np.array(table)).pvalue > 1e-4
    assert sum(ours) == np.count_nonzero(drawn.ops)

    for name in names:
        magnitudes = drawn.magnitudes[drawn.ops == CODE[name]].astype(np.float64)
        expected = [value for each, value in theirs if each == name]
        # rounded, since ours are float32 and some take few values
        same = stats.ks_2samp(magnitudes.round(4), np.round(expected, 4))
        assert same.pvalue > 1e-5, name


def test_weighted_operations_occur_once():
    ops = draw(name="TimmRandAugment", config="rand-p1-n4-tweights").ops
    assert all(len(set(row)) == 4 for row in ops.tolist())


def test_a_random_interpolation_is_one_of_two():
    drawn = draw(name="TimmRandAugment", interpolation="random")
    first, second = drawn.ops[:, 0] > 0, drawn.ops[:, 1] > 0
    assert not (first & second).any()
    assert abs(first.mean() - second.mean()) < 0.03 and first.mean() > 0.2


# operation of timm, the largest difference, the largest mean
BOUNDS = {
    **dict.fromkeys(TIMM_OPS, (1, 0.6)),
    **dict.fromkeys(("Equalize", "Invert", "SolarizeAdd"), (0, 0)),
    **dict.fromkeys((name for name in TIMM_OPS if "Poster" in name or "Solarize" in name), (0, 0)),
    **dict.fromkeys((name for name in TIMM_OPS if TIMM_OPS[name].op in MOVES), (1, 0.01)),
}


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_pixels_are_those_of_timm(interpolation):
    rng = np.random.default_rng(2)
    smooth = Image.fromarray(rng.integers(0, 256, (12, 8, 3), np.uint8)).resize(SHAPE[::-1])
    pixels = torch.from_numpy(np.array(smooth)).permute(2, 0, 1)
    method = Image.Resampling[interpolation.upper()]

    for name, ours in TIMM_OPS.items():
        (slot,) = slots_of([name], interpolation, FILL)
        for level in (2.6, 7.3, 9.0):
            hparams = {"img_mean": FILL, "interpolation": method}
            op = timm.AugmentOp(name, 1.0, level, hparams)
            random.seed(3)
            expected = np.asarray(op(smooth)).astype(int)
            random.seed(3)
            sign = -1.0 if random.random() > 0.5 else 1.0
            # timm's own sign moves the image the other way in its matrices
            sign = -sign if ours.op in ("ShiftX", "ShiftY") else sign
            number = ours.magnitude(np.array([level]), np.array([sign]), SHAPE).astype(np.float32)
            codes = np.array([[CODE[ours.op]]], np.int8)
            (made,) = augment(pixels[None], (slot,), codes, number[None])
            difference = np.abs(made.permute(1, 2, 0).numpy() - expected)
            largest, mean = BOUNDS[name]
            assert difference.max() <= largest and difference.mean() <= mean, (name, level)


def test_no_bits_make_a_black_image():
    (slot,) = slots_of(["Posterize"], "bilinear", FILL)
    images = torch.full((1, 3, 4, 4), 200, dtype=torch.uint8)
    codes = np.array([[CODE["Posterize"]]], np.int8)
    made = augment(images, (slot,), codes, np.zeros((1, 1), np.float32))
    assert not made.any()


def test_erased_regions_are_those_of_timm():
    policy = {"name": "TimmRandomErasing", "p": 0.6, "mode": "rand", "max_count": 3}
    ours = draw(**policy).erased
    theirs, make = [], erasing.RandomErasing(0.6, mode="const", max_count=3, device="cpu")
    random.seed(5)
    for _ in range(2_000):
        marked = torch.ones(1, *SHAPE)
        make(marked)
        theirs.append(1 - float(marked.mean()))

    marked = np.zeros((2_000, *SHAPE), bool)
    for image, regions in zip(marked, ours, strict=False):
        for top, left, height, width, *_ in regions:
            image[top : top + height, left : left + width] = True
    assert stats.ks_2samp(marked.mean(axis=(1, 2)), theirs).pvalue > 1e-3
    assert len(np.unique(ours[ours[..., 2] > 0][:, 4])) == (ours[..., 2] > 0).sum()


@pytest.mark.parametrize(
    "config", ["rand-m9-n9", "rand-x3", "augmix-m3", "rand-m2.5", 5, "rand-p2"]
)
def test_other_strings_are_refused(config):
    with pytest.raises(OptionError, match="it takes timm's strings such as 'rand-m9"):
        Augmenter([{"name": "TimmRandAugment", "config": config}])


@pytest.mark.parametrize("fill", [[0, 256, 0], [1.0, 2, 3], [True, 0, 0], [1, 2], [], "red", None])
def test_a_wrong_color_is_refused_whole(fill):
    takes = "it takes a whole number from 0 to 255, or three: red, green and blue"
    with pytest.raises(OptionError, match=re.escape(f"fill is {fill!r}; {takes}")):
        Augmenter([{"name": "TimmRandAugment", "fill": fill}])
