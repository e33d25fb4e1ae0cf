"""The planned geometry against torchvision's own."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from later import later

from dali_pipes.backends.common.pixels import cut
from dali_pipes.plan.geometry import padded_crop, random_resized_crop, resize_center_crop
from dali_pipes.plan.philox import Draws
from dali_pipes.plan.transforms import EvalTransform, TrainTransform

stats, v2 = later("scipy.stats"), later("torchvision.transforms.v2")

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
sides = st.integers(1, 4000)


def planned(height: int, width: int, count: int, scale=SCALE, ratio=RATIO, flip=0.5, seed=0):
    return random_resized_crop(np.array([[height, width]] * count), 224, scale, ratio, flip, Draws(seed, 0, np.arange(count)))


def torchvision_windows(height: int, width: int, count: int) -> np.ndarray:
    transform = v2.RandomResizedCrop(224, scale=SCALE, ratio=RATIO, antialias=True)
    image = torch.empty(3, height, width)
    torch.manual_seed(0)
    drawn = (transform.make_params([image]) for _ in range(count))
    return np.array([(each["top"], each["left"], each["height"], each["width"]) for each in drawn])


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 333), (120, 400)])
def test_random_resized_crop_is_distributed_as_torchvisions(height, width):
    """Two-sample Kolmogorov-Smirnov tests over 60,000 planned and 20,000 torchvision draws; 12 of them in all."""
    top, left, h, w = planned(height, width, 60_000).window.T
    top2, left2, h2, w2 = torchvision_windows(height, width, 20_000).T
    pairs = {
        "area": (h * w, h2 * w2),
        "aspect": (w / h, w2 / h2),
        "vertical position": (top / np.maximum(height - h, 1), top2 / np.maximum(height - h2, 1)),
        "horizontal position": (left / np.maximum(width - w, 1), left2 / np.maximum(width - w2, 1)),
    }
    for name, (ours, theirs) in pairs.items():
        assert stats.ks_2samp(ours, theirs).pvalue > 1e-3, name


def test_flips_are_as_frequent_as_asked_for():
    for probability in (0.0, 0.25, 0.5, 1.0):
        flips = int(planned(375, 500, 60_000, flip=probability).flip.sum())
        assert stats.binomtest(flips, 60_000, probability).pvalue > 1e-3


def test_flip_and_crop_are_independent():
    geometry = planned(375, 500, 60_000)
    area = geometry.window[:, 2] * geometry.window[:, 3]
    assert stats.ks_2samp(area[geometry.flip], area[~geometry.flip]).pvalue > 1e-3


@given(sides, sides, st.integers(0, 2**32))
def test_windows_lie_inside_the_image(height, width, seed):
    top, left, h, w = planned(height, width, 50, seed=seed).window.T
    assert (top >= 0).all() and (left >= 0).all() and (h > 0).all() and (w > 0).all()
    assert (top + h <= height).all() and (left + w <= width).all()


@pytest.mark.parametrize(("height", "width"), [(10, 1000), (1000, 10), (1, 5000)])
def test_fallback_is_torchvisions(height, width):
    """No window of the whole area and aspect 1 fits, so all tries fail on both sides."""
    transform = v2.RandomResizedCrop(224, scale=(1.0, 1.0), ratio=RATIO, antialias=True)
    theirs = transform.make_params([torch.empty(3, height, width)])
    window = planned(height, width, 1, scale=(1.0, 1.0)).window[0]
    assert window.tolist() == [theirs["top"], theirs["left"], theirs["height"], theirs["width"]]


@given(sides, sides, st.integers(1, 600), st.integers(0, 200))
def test_evaluation_rounds_as_torchvision_does(height, width, size, margin):
    geometry = resize_center_crop(np.array([[height, width]]), size + margin, size)
    from torchvision.transforms.v2.functional import _geometry

    resized = _geometry._compute_resized_output_size((height, width), size=[size + margin])
    assert geometry.resize[0].tolist() == resized
    assert tuple(geometry.crop[0]) == _geometry._center_crop_compute_crop_anchor(size, size, *resized)
    assert geometry.window[0].tolist() == [0, 0, height, width]


def test_transforms_pass_their_options_on():
    source, draws = np.array([[400, 600]] * 200), Draws(0, 0, np.arange(200))
    area = TrainTransform(size=96, scale=(0.5, 0.6), flip=0).geometry(source, draws)
    share = area.window[:, 2] * area.window[:, 3] / 240_000
    assert (share > 0.49).all() and (share < 0.61).all()
    assert (area.resize == 96).all() and not area.flip.any()
    assert EvalTransform(size=96, resize=100).geometry(source, draws).resize[0].tolist() == [100, 150]


def test_padded_crops_are_torchvisions_random_crop():
    """On an image that numbers its pixels: the same shifts, equally often, and black where nothing was."""
    count, size, padding = 20_000, 8, 3
    geometry = padded_crop(np.array([[size, size]] * count), size, padding, 0.5, Draws(0, 0, np.arange(count)))
    assert (geometry.window == [0, 0, size, size]).all() and (geometry.resize == size).all()
    places, counts = np.unique(geometry.crop, axis=0, return_counts=True)
    assert len(places) == (2 * padding + 1) ** 2 and stats.chisquare(counts).pvalue > 1e-3
    assert stats.binomtest(int(geometry.flip.sum()), count, 0.5).pvalue > 1e-3
    image = torch.arange(1, size * size + 1, dtype=torch.uint8).reshape(1, size, size).expand(3, -1, -1)
    crop, seen = v2.RandomCrop(size, padding=padding), set()
    for _ in range(500):
        params = crop.make_params([image])
        expected = v2.functional.crop(v2.functional.pad(image, [padding] * 4), params["top"], params["left"], size, size)
        place = np.array([params["top"] - padding, params["left"] - padding])
        seen.add(tuple(place.tolist()))
        assert (places == place).all(axis=1).any()
        np.testing.assert_array_equal(cut(image.permute(1, 2, 0).numpy(), place, size), expected.permute(1, 2, 0).numpy())
    assert len(seen) > 40
