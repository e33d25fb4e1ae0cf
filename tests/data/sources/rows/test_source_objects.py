"""Targets out of a table's list columns, in every form that boxes have."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from later import later
from PIL import Image

from dali_pipes import ConfigError, Manifest, ManifestError, Targets
from dali_pipes.data.objects import BOX_FORMATS
from dali_pipes.data.sources.rows.objects import as_corners

ops, torch = later("torchvision.ops"), later("torch")
HERE = {"boxes": "b", "box_labels": "l"}


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        Image.new("RGB", (40, 30)).save(tmp_path / f"{number}.png")
        Image.new("L", (40, 30)).save(tmp_path / f"m{number}.png")
    return tmp_path


def scan(folder, targets, **columns):
    table = pa.table({"path": [f"{number}.png" for number in range(3)]} | columns)
    pq.write_table(table, folder / "t.parquet")
    return Manifest.from_table(folder / "t.parquet", targets=targets, progress=False)


@given(arrays(np.float64, (20, 4), elements=st.floats(-1e3, 1e3)), st.sampled_from(BOX_FORMATS))
def test_formats_are_those_of_torchvision(boxes, format):
    scale = [40, 30, 40, 30] if format.startswith("relative_") else [1] * 4
    wanted = ops.box_convert(
        torch.from_numpy(boxes * scale), format.removeprefix("relative_"), "xyxy"
    )
    np.testing.assert_allclose(
        as_corners(boxes, format, np.full(20, 30), np.full(20, 40)), wanted, atol=1e-9
    )


FORMS = {
    "nested": pa.array([[[0.1, 0.1, 0.5, 0.5], [0, 0, 1, 1]], [], [[0.2, 0.2, 0.4, 0.4]]]),
    "flat": pa.array([[0.1, 0.1, 0.5, 0.5, 0, 0, 1, 1], None, [0.2, 0.2, 0.4, 0.4]]),
    "pairs": pa.array(
        [[[[0.1, 0.1], [0.5, 0.5]], [[0, 0], [1, 1]]], [], [[[0.2, 0.2], [0.4, 0.4]]]]
    ),
    "arrays": pa.array(
        [[[0.1, 0.1, 0.5, 0.5], [0, 0, 1, 1]], [], [[0.2, 0.2, 0.4, 0.4]]],
        pa.list_(pa.list_(pa.float32(), 4)),
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("labels", [[[1, 0], [], [1]], [["dog", "cat"], None, ["dog"]]])
def test_lists_of_any_form(folder, form, labels):
    targets = Targets(**HERE, box_format="relative_xyxy", text="caption")
    manifest = scan(
        folder,
        targets,
        b=FORMS[form],
        l=pa.array(labels),
        caption=["ü", None, "c"],
        own=[1, 2, 3],
        label=[5, 5, 5],
    )
    objects = manifest.take_objects(np.arange(3))
    assert (
        objects.counts.tolist() == [2, 0, 1]
        and objects.labels.tolist() == [1, 0, 1]
        and not manifest.problems
    )
    np.testing.assert_allclose(
        objects.boxes, [[4, 3, 20, 15], [0, 0, 40, 30], [8, 6, 16, 12]], rtol=1e-6
    )
    np.testing.assert_allclose(objects.areas, [192, 1200, 48], rtol=1e-5)
    assert manifest.classes == (["cat", "dog"] if labels[0][0] == "dog" else ["0", "1"])
    assert manifest.labels.tolist() == [[0, 1], [-1, -1], [1, -1]] and list(manifest.columns) == [
        "own"
    ]
    assert manifest.take_texts("text", np.arange(3)) == ["ü", "", "c"]


def test_one_box_for_each_image(folder):
    boxes = pa.FixedSizeListArray.from_arrays(pa.array(np.tile([1.0, 2, 3, 4], 3)), 4)
    assert scan(folder, Targets(**HERE), b=boxes, l=[[0]] * 3).take_objects(
        np.arange(3)
    ).counts.tolist() == [1, 1, 1]


def test_keypoints_follow_the_boxes_format(folder):
    points = [[[[0.5, 0.5, 2], [0, 1, 1]]], [], [[[0, 0, 0], [1, 1, 2]]]]
    named = Targets(
        **HERE, box_format="relative_xywh", keypoints="k", keypoint_names=["left", "right"]
    )
    manifest = scan(
        folder, named, b=[[[0, 0, 1, 1]], [], [[0, 0, 1, 1]]], l=[["a"], [], ["a"]], k=points
    )
    assert manifest.take_objects(np.arange(3)).keypoints.tolist() == [
        [[20, 15, 2], [0, 30, 1]],
        [[0, 0, 0], [40, 30, 2]],
    ]
    assert manifest.facts.keypoints.flipped == [1, 0]


def test_rows_and_objects_that_make_no_sense_are_listed(folder):
    boxes = [[[1, 2, 3, 4], [1, 2, float("nan"), 4], [50, 0, 60, 9]], [[1, 2, 3]], [[1, 2, 3, 4]]]
    manifest = scan(folder, Targets(**HERE), b=boxes, l=[["a", "b", "a"], ["a"], ["a", "b"]])
    assert [path for path, _ in manifest.problems] == ["1.png", "2.png"] and len(manifest) == 1
    assert all("each object needs 4 in b, 1 in l" in why for _, why in manifest.problems)
    assert [why.split(": ")[0] for _, why in manifest.dropped] == [
        "its box is not finite (object 2",
        "its box is outside the image (object 3",
    ]


def test_a_negative_label_and_a_negative_area_are_bad_objects(folder):
    good = [0, 0, 9, 9]
    columns = {
        "b": [[good] * 3, [good], [good]],
        "l": [[2, -1, 1], [0], [-7]],
        "a": [[3.5, 1, -2], [8], [1]],
    }
    manifest = scan(folder, Targets(**HERE, areas="a"), **columns)
    objects = manifest.take_objects(np.arange(3))
    assert (
        objects.labels.tolist() == [2, 0]
        and objects.areas.tolist() == [3.5, 8]
        and manifest.classes == ["0", "1", "2"]
    )
    assert [why for _, why in manifest.dropped] == [
        "its label is negative (object 2: -1); correct it or remove it",
        "its area is negative or not finite (object 3: -2); correct it or remove it",
        "its label is negative (object 1: -7); correct it or remove it",
    ]
    strict = scan(folder, Targets(**HERE, areas="a", bad_objects="problem"), **columns)
    assert [path for path, _ in strict.problems] == ["0.png", "2.png"] and len(strict) == 1


def test_an_object_with_a_keypoint_that_is_not_finite_is_left_out(folder):
    points = [[1.0, 2, 2], [3, float("nan"), 2]], [[1, 2, 2], [3, 4, 2]]
    targets = Targets(**HERE, keypoints="k", keypoint_names=["left", "right"])
    manifest = scan(
        folder,
        targets,
        b=[[[0, 0, 9, 9]] * 2, [], []],
        l=[[0, 0], [], []],
        k=[list(points), [], []],
    )
    assert manifest.take_objects(np.arange(1)).keypoints.tolist() == [
        [[1, 2, 2], [3, 4, 2]],
    ]
    why = "a keypoint is not finite (object 1: keypoint 2)"
    lines = [each for _, each in manifest.dropped]
    assert lines == [f"{why}; correct it or remove it"]


@pytest.mark.parametrize("bad_objects", ["drop", "problem"])
def test_a_table_of_which_no_object_is_left_is_refused(folder, bad_objects):
    columns = {"b": [[[0, 0, 0, 0]], [], [[9, 9, 1, 1]]], "l": [[1], [], [1]]}
    with pytest.raises(
        ManifestError,
        match=(
            r"none of its objects can be used: 2 left out, the first: .*0.png: .*its box is "
            r"empty or inverted \((row 1: )?object 1: "
        ),
    ):
        scan(folder, Targets(**HERE, bad_objects=bad_objects), **columns)
    # it has none
    assert (
        len(
            scan(
                folder,
                Targets(**HERE),
                b=[[], [], []],
                l=pa.array([[], [], []], pa.list_(pa.int64())),
            )
        )
        == 3
    )


def test_masks_and_texts_need_no_objects(folder):
    manifest = scan(
        folder, Targets(mask="m", text="t"), m=["m0.png", "", "m2.png"], t=["a", "b", "c"]
    )
    assert (
        manifest.problems == [("1.png", "no mask of its name (row 2)")]
        and manifest.take_objects(np.arange(2)) is None
    )
    assert str(manifest.mask_extent(1)) == str(folder / "m2.png") and manifest.labels.shape == (
        2,
        0,
    )
    labelled = scan(folder, Targets(text="t"), t=["a", "b", "c"], label=["x", "y", "x"])
    assert labelled.task == "classification" and labelled.labels.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ({"b": [[[0, 0, 1, 1]]] * 3}, "columns path and b and l"),
        ({"b": ["x"] * 3, "l": [[0]] * 3}, "the column b is of type string"),
        ({"b": [["x"]] * 3, "l": [[0]] * 3}, "lists of numbers"),
        ({"b": [[[0, 0, 1, 1]]] * 3, "l": [[0.5]] * 3}, "lists of class numbers or names"),
        (
            {"b": [[[0, 0, 1, 1]]] * 3, "l": [[10**6]] * 3},
            "labels of objects go up to 1000000; number",
        ),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(folder, columns, line):
    with pytest.raises(ManifestError, match=line):
        scan(folder, Targets(**HERE), **columns)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"boxes": "b"}, "boxes needs box_labels"),
        ({"keypoints": "k", **HERE}, "keypoint_names"),
        ({"box_format": "yxyx"}, "relative_cxcywh"),
    ],
)
def test_targets_that_make_no_sense_are_refused(given, line):
    with pytest.raises(ConfigError, match=line):
        Targets(**given)


@pytest.mark.parametrize(
    ("format", "box"),
    [
        ("xyxy", [0.1, 0.2, 0.6, 1.0]),
        ("xywh", [0.5, 0.5, 0.5, 0.4]),
        ("cxcywh", [0.5, 0.5, 1, 0.9]),
    ],
)
def test_fractions_that_are_taken_for_pixels_are_named(folder, format, box):
    """They would be boxes of less than a pixel, which no transform keeps."""
    boxes, labels = [[box], [[3, 4, 9, 9]], []], [[0], [1], []]
    manifest = scan(folder, Targets(**HERE, box_format=format), b=boxes, l=labels)
    assert manifest.take_objects(np.arange(3)).counts.tolist() == [0, 1, 0]
    assert manifest.dropped[0][1].startswith("its box is within the first pixel, as if")
    with pytest.raises(
        ManifestError,
        match=(
            r"none of its objects can be used: 1 left out.*as if it were in fractions of the "
            r"image"
        ),
    ):
        scan(folder, Targets(**HERE, box_format=format), b=[[box], [], []], l=[[0], [], []])
    relative = scan(
        folder, Targets(**HERE, box_format=f"relative_{format}"), b=[[box], [], []], l=[[0], [], []]
    )
    assert relative.take_objects(np.arange(3)).counts.tolist() == [1, 0, 0] and not relative.dropped


def test_a_box_of_the_first_pixel_alone_is_a_box(folder):
    manifest = scan(folder, Targets(**HERE), b=[[[0, 0, 1, 1]], [], []], l=[[0], [], []])
    assert (
        manifest.take_objects(np.arange(3)).boxes.tolist() == [[0, 0, 1, 1]]
        and not manifest.dropped
    )
