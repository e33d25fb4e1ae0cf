"""The planned geometry against torchvision's own."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from later import later

from dali_pipes.backends.pixels.finish import crop_and_flip
from dali_pipes.plan.draws import Draws
from dali_pipes.plan.geometry import Geometry, crop_geometry, resize_sizes
from dali_pipes.plan.transforms import (
    CenterCropTransform,
    EvalTransform,
    RandomCropTransform,
    TrainTransform,
)

stats, v2 = later("scipy.stats"), later("torchvision.transforms.v2")

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
sides = st.integers(1, 4000)


def planned(
    height: int, width: int, count: int, scale=SCALE, ratio=RATIO, flips=(0.5, 0.5), seed=0
):
    source, draws = np.array([[height, width]] * count), Draws(seed, 0, np.arange(count))
    flip, vertical = flips
    return TrainTransform(
        size=(224, 192), scale=scale, ratio=ratio, flip=flip, vertical_flip=vertical
    ).geometry(source, draws)


def one(source, region, resize, crop, flips=(False, False)) -> Geometry:
    return Geometry(*(np.array(each) for each in (source, region, resize, crop, *flips)))


def cut(pixels, row, shape):
    """(C, *shape) of pixels, (h, w, C), of a planned row."""
    flips = bool(row.flip), bool(row.vertical_flip)
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    return crop_and_flip(image, row.crop.tolist(), shape, flips)[0]


def torchvision_regions(height: int, width: int, count: int) -> np.ndarray:
    transform = v2.RandomResizedCrop(224, scale=SCALE, ratio=RATIO, antialias=True)
    image = torch.empty(3, height, width)
    torch.manual_seed(0)
    drawn = (transform.make_params([image]) for _ in range(count))
    return np.array([(each["top"], each["left"], each["height"], each["width"]) for each in drawn])


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 333), (120, 400)])
def test_random_resized_crop_is_distributed_as_torchvisions(height, width):
    """Two-sample Kolmogorov-Smirnov tests over 60,000 planned and 20,000 torchvision draws; 12 of
    them in all.
    """
    top, left, h, w = planned(height, width, 60_000).region.T
    top2, left2, h2, w2 = torchvision_regions(height, width, 20_000).T
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
        geometry = planned(375, 500, 60_000, flips=(probability, 1 - probability))
        assert stats.binomtest(int(geometry.flip.sum()), 60_000, probability).pvalue > 1e-3
        assert (
            stats.binomtest(int(geometry.vertical_flip.sum()), 60_000, 1 - probability).pvalue
            > 1e-3
        )


def test_flips_and_crop_are_independent():
    geometry = planned(375, 500, 60_000)
    area = geometry.region[:, 2] * geometry.region[:, 3]
    for flip in (geometry.flip, geometry.vertical_flip):
        assert stats.ks_2samp(area[flip], area[~flip]).pvalue > 1e-3
    assert (
        stats.binomtest(int((geometry.flip & geometry.vertical_flip).sum()), 60_000, 0.25).pvalue
        > 1e-3
    )


@given(sides, sides, st.integers(0, 2**32))
def test_regions_lie_inside_the_image(height, width, seed):
    top, left, h, w = planned(height, width, 50, seed=seed).region.T
    assert (top >= 0).all() and (left >= 0).all() and (h > 0).all() and (w > 0).all()
    assert (top + h <= height).all() and (left + w <= width).all()


@pytest.mark.parametrize(("height", "width"), [(10, 1000), (1000, 10), (1, 5000)])
def test_fallback_is_torchvisions(height, width):
    """No region of the whole area and aspect 1 fits, so all tries fail on both sides."""
    transform = v2.RandomResizedCrop(224, scale=(1.0, 1.0), ratio=RATIO, antialias=True)
    theirs = transform.make_params([torch.empty(3, height, width)])
    region = planned(height, width, 1, scale=(1.0, 1.0)).region[0]
    assert region.tolist() == [theirs["top"], theirs["left"], theirs["height"], theirs["width"]]


resizes = st.one_of(
    st.none(), st.integers(1, 700), st.tuples(st.integers(1, 700), st.integers(1, 700))
)
shapes = st.tuples(st.integers(1, 600), st.integers(1, 600))


@given(sides, sides, shapes, resizes)
def test_evaluation_rounds_as_torchvision_does(height, width, shape, resize):
    """Also where the crop is larger than the image, whose missing rows and columns are black."""
    transform = CenterCropTransform(size=shape, resize=resize, flip=0, pad_if_needed=True)
    geometry = transform.geometry(np.array([[height, width]]), Draws(0, 0, np.arange(1))).take(0)
    from torchvision.transforms.v2.functional import _geometry

    size = [height, width]
    if resize is not None:
        size = _geometry._compute_resized_output_size(
            (height, width), size=[resize] if isinstance(resize, int) else resize
        )
    left, top, right, bottom = _geometry._center_crop_compute_padding(*shape, *size)
    y, x = _geometry._center_crop_compute_crop_anchor(
        *shape, size[0] + top + bottom, size[1] + left + right
    )
    if resize is None:
        assert visible(geometry, shape) == visible(
            one(size, [0, 0, *size], size, [y - top, x - left]), shape
        )
        assert (geometry.region[2:] <= shape).all()
    else:
        assert geometry.resize.tolist() == size and geometry.crop.tolist() == [y - top, x - left]
        assert geometry.region.tolist() == [0, 0, height, width]


def visible(geometry: Geometry, shape: tuple[int, int]) -> list[list[int]]:
    """For rows and for columns: the first that is not black, how many are not, and which of the
    image's that is.
    """
    assert geometry.region[2:].tolist() == geometry.resize.tolist()
    first = np.maximum(-geometry.crop, 0)
    last = np.minimum(geometry.region[2:] - geometry.crop, shape)
    return [
        first.tolist(),
        (last - first).tolist(),
        (geometry.region[:2] + geometry.crop + first).tolist(),
    ]


def test_transforms_pass_their_options_on():
    source, draws = np.array([[400, 600]] * 200), Draws(0, 0, np.arange(200))
    area = TrainTransform(size=(96, 64), scale=(0.5, 0.6), flip=0, vertical_flip=1).geometry(
        source, draws
    )
    share = area.region[:, 2] * area.region[:, 3] / 240_000
    assert (share > 0.49).all() and (share < 0.61).all()
    assert (area.resize == [96, 64]).all() and not area.flip.any() and area.vertical_flip.all()
    assert EvalTransform(size=96, resize=100).geometry(source, draws).resize[0].tolist() == [
        100,
        150,
    ]
    assert EvalTransform(size=96, resize=(100, 110)).geometry(source, draws).resize[0].tolist() == [
        100,
        110,
    ]
    assert EvalTransform(size=(96, 100), resize=None).geometry(source, draws).region[
        0
    ].tolist() == [152, 250, 96, 100]
    crop = RandomCropTransform(size=(96, 100), resize=96, flip=1, vertical_flip=1).geometry(
        source, draws
    )
    assert (crop.resize == [96, 144]).all() and crop.flip.all() and crop.vertical_flip.all()


@pytest.mark.few
@pytest.mark.parametrize("padding", [0, 3, (1, 2), (1, 0, 2, 5)])
@pytest.mark.parametrize("pad_if_needed", [False, True])
@pytest.mark.parametrize(
    ("size", "shape"), [((8, 8), (8, 8)), ((9, 12), (5, 7)), ((6, 14), (9, 4)), ((3, 4), (11, 9))]
)
def test_random_crops_are_torchvisions(padding, pad_if_needed, size, shape):
    """On an image that numbers its pixels: the same crops, each equally often, and black where
    nothing was.
    """
    image = (
        torch.arange(1, size[0] * size[1] + 1, dtype=torch.uint8)
        .reshape(1, *size)
        .expand(3, -1, -1)
    )
    theirs = v2.RandomCrop(shape, padding=padding, pad_if_needed=pad_if_needed)
    try:
        theirs(image)
    except ValueError:
        return  # too small; RandomCropTransform.check refuses it
    torch.manual_seed(0)
    expected = {theirs(image).numpy().tobytes() for _ in range(1500)}
    count = 20_000
    source, draws = np.array([size] * count), Draws(0, 0, np.arange(count))
    geometry = RandomCropTransform(
        size=shape, padding=padding, pad_if_needed=pad_if_needed, flip=0
    ).geometry(source, draws)
    top, left, height, width = geometry.region.T
    assert (
        (top >= 0).all()
        and (left >= 0).all()
        and (top + height <= size[0]).all()
        and (left + width <= size[1]).all()
    )
    assert (geometry.resize == geometry.region[:, 2:]).all() and (geometry.resize >= 1).all()
    places, counts = np.unique(
        np.hstack([geometry.region, geometry.crop]), axis=0, return_counts=True
    )
    assert len(counts) == 1 or stats.chisquare(counts).pvalue > 1e-3
    rows = [one(size, place[:4], place[2:4], place[4:]) for place in places]
    pixels, found = image.permute(1, 2, 0).numpy(), set()
    for row in rows:
        y, x, h, w = row.region
        found.add(cut(pixels[y : y + h, x : x + w], row, shape).numpy().tobytes())
    assert expected <= found
    if len(places) < 150:  # as many as 1,500 draws of theirs must have had
        assert found == expected


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (6, 7)])
def test_a_crop_of_a_stored_image_shows_what_lies_there(shape):
    """Each crop around an image whose pixels are all different, some of which see nothing of it."""
    image, most = np.arange(1, 13).reshape(3, 4), 12
    around = np.pad(image, most)
    crops = np.array(list(np.ndindex(most, most))) - shape - 1
    source, flips = np.tile(image.shape, (len(crops), 1)), np.zeros((2, len(crops)), bool)
    geometry = crop_geometry(source, None, crops, shape, flips)

    top, left, height, width = geometry.region.T
    assert (geometry.region >= [0, 0, 1, 1]).all() and np.array_equal(
        geometry.resize, geometry.region_size
    )
    assert (top + height <= 3).all() and (left + width <= 4).all()
    # no more is decoded than is seen
    assert (geometry.region_size <= shape).all()
    for (y, x), at in zip(crops, range(len(crops)), strict=True):
        part = np.pad(image[top[at] :, left[at] :][: height[at], : width[at]], most)
        row, column = geometry.crop[at].clip(-most, most) + most
        found = part[row : row + shape[0], column : column + shape[1]]
        seen = around[y + most : y + most + shape[0], x + most : x + most + shape[1]]
        assert np.array_equal(found, seen), (y, x)


@given(sides, sides, resizes, st.integers(0, 2**32))
def test_a_random_crop_after_a_resize_lies_in_the_padded_image(height, width, resize, seed):
    source, draws = np.array([[height, width]] * 20), Draws(seed, 0, np.arange(20))
    crop = RandomCropTransform(
        size=(64, 48), resize=resize, padding=(1, 2, 3, 4), pad_if_needed=True, vertical_flip=0.5
    )
    geometry = crop.geometry(source, draws)
    size = resize_sizes(source, resize)
    more = np.maximum([64 - 6, 48 - 4] - size, 0)
    place = geometry.crop + (geometry.region[:, :2] if resize is None else 0)
    assert (place >= -more - [2, 1]).all() and (
        place + np.array([64, 48]) <= size + more + [4, 3]
    ).all()


def test_flips_mirror_rows_and_columns():
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    for flip in (False, True):
        for vertical in (False, True):
            row = one([2, 2], [0, 0, 2, 2], [2, 2], [0, 0], (flip, vertical))
            found = cut(image, row, (2, 2))
            expected = torch.from_numpy(image).permute(2, 0, 1)
            expected = v2.functional.horizontal_flip(expected) if flip else expected
            expected = v2.functional.vertical_flip(expected) if vertical else expected
            assert torch.equal(found, expected)


@given(st.integers(1, 20), st.integers(1, 20), st.tuples(*[st.integers(1, 24)] * 2))
@pytest.mark.parametrize("first", [False, True])
def test_flips_before_the_central_crop_and_after_it(first, height, width, shape):
    """As torchvision's of an image whose pixels are all different, and 0 where there is none."""
    image = torch.arange(1, height * width + 1).reshape(1, height, width)
    options = {"size": shape, "resize": None, "flip": 1.0, "vertical_flip": 1.0}
    transform = CenterCropTransform(**options, flip_before_crop=first)
    geometry = transform.geometry(np.array([[height, width]]), Draws(0, 0, np.arange(1))).take(0)

    steps = [lambda image: image.flip(1, 2), v2.CenterCrop(shape)]
    theirs = v2.Compose(steps if first else steps[::-1])(image)[0]

    top, left, rows, columns = geometry.region
    ours = torch.zeros(shape, dtype=torch.int64)
    for y, x in np.ndindex(shape):
        row, column = y + geometry.crop[0], x + geometry.crop[1]
        if 0 <= row < rows and 0 <= column < columns:
            ours[y, x] = image[0, top + row, left + column]
    assert torch.equal(ours.flip(0, 1), theirs)
