"""Outlines drawn by ours are those drawn by pycocotools; what it would read out of bounds is
refused before.
"""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from later import later

from dali_pipes import ConfigError
from dali_pipes.data.outlines import are_polygons, problem_of, rasterize

coco = later("pycocotools.mask")


@given(st.integers(1, 60), st.integers(1, 60), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_run_lengths_are_drawn_as_they_were_packed(height, width, share, seed):
    wanted = np.random.default_rng(seed).random((height, width)) < share
    packed = coco.encode(np.asfortranarray(wanted.astype(np.uint8)))["counts"].decode()
    borders = np.flatnonzero(np.diff(wanted.T.ravel().astype(int), prepend=0))
    plain = np.diff(borders, prepend=0, append=wanted.size).tolist()
    for counts in (packed, plain):
        outline = {"size": [height, width], "counts": counts}
        assert problem_of(outline, height, width) is None
        assert (rasterize(outline, height, width) == wanted).all()


@pytest.mark.filterwarnings("ignore:__array__")  # of pycocotools with NumPy 2
@given(
    st.lists(st.tuples(st.floats(-9, 30), st.floats(-9, 30)), min_size=3, max_size=9),
    st.integers(1, 30),
    st.integers(1, 30),
)
def test_polygons_are_those_of_pycocotools(points, height, width):
    polygon = [number for point in points for number in point]
    wanted = coco.decode(coco.frPyObjects([polygon], height, width))[:, :, 0]
    assert (rasterize([polygon], height, width) == wanted).all()


def test_an_object_of_two_polygons_is_one_mask():
    square, triangle = [2, 1, 8, 1, 8, 5, 2, 5], [10.5, 1, 15, 9.5, 10, 9]
    assert problem_of([square, triangle], 10, 16) is None
    drawn = rasterize([square, triangle], 10, 16)
    assert (
        drawn.dtype == bool
        and drawn[1:5, 2:8].all()
        and drawn.sum() > 24
        and not drawn[:, :2].any()
    )
    assert not rasterize([], 10, 16).any()


@pytest.mark.parametrize(
    ("outline", "problem"),
    [
        ([[1, 1, 5, 5]], "a polygon of 4 numbers"),  # pycocotools would draw it as a box
        ([[1, 1, 5, 5, 3]], "a polygon of 5 numbers"),
        ([[1, 1, 5, 5, float("nan"), 3]], "not finite"),
        ([[1, 1, 5, 5, 1e9, 3]], "farther outside"),  # would take gigabytes
        ([[1, 1, "5", None, 1, 3]], "not finite"),
        ("text", "neither"),
        ([1, 2], "neither"),
        ({"size": [8, 9], "counts": [72]}, "of a mask of another size ([8, 9]"),
        ({"size": [9, 8], "counts": [70]}, "that are not all pixels of the image (9 × 8)"),
        ({"size": [9, 8], "counts": [80, -8]}, "that are not all pixels of the image (9 × 8)"),
        ({"size": [9, 8], "counts": [72.0]}, "cannot be read"),
        ({"size": [9, 8], "counts": "P" * 20}, "cannot be read"),
        ({"size": [9, 8], "counts": "ü"}, "cannot be read"),
        ({"size": [9, 8]}, "cannot be read"),
    ],
)
def test_what_makes_no_sense_is_refused(outline, problem):
    assert problem in problem_of(outline, 9, 8)


def test_without_pycocotools_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    with pytest.raises(ConfigError, match=r"dali_pipes\[coco\]"):
        rasterize([[1, 1, 5, 1, 5, 5]], 9, 8)


SIZE = st.integers(1, 20)
NUMBER = st.one_of(
    st.integers(-20, 40),
    st.floats(-40, 60),
    st.sampled_from([0, 1.5, float("nan"), float("inf"), 10**400, 2**70, True, "1", None]),
)
POLYGON = st.one_of(
    st.lists(st.integers(0, 20) | st.floats(0, 20), min_size=4, max_size=9),
    st.lists(NUMBER, max_size=9),
    NUMBER,
)
OUTLINE = st.lists(POLYGON, max_size=3) | st.just({"size": [9, 8], "counts": [72]}) | NUMBER


@given(st.lists(st.tuples(OUTLINE, SIZE, SIZE), max_size=6), st.booleans())
def test_the_quick_look_at_many_polygons_finds_what_the_look_at_each_does(some, one_by_one):
    outlines, height, width = (
        [each[0] for each in some],
        *(np.array([each[at] for each in some], np.int64) for at in (1, 2)),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dali_pipes.data.outlines._BLOCK", 1 if one_by_one else 4)
        quick = are_polygons(outlines, height, width).tolist()
    good = [
        isinstance(outline, list) and problem_of(outline, tall, wide) is None
        for outline, tall, wide in some
    ]
    assert not any(sure and not each for sure, each in zip(quick, good, strict=True))
    if one_by_one:  # one that is no number makes its companions be looked at one by one
        plain = [
            all(type(number) in (int, float) for polygon in outline for number in polygon)
            if each
            else False
            for outline, each in zip(outlines, good, strict=True)
        ]
        assert quick == plain
