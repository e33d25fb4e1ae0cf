"""Boxes, areas, keypoints, outlines and masks that most likely mean something else than they are
read as.
"""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import dali_pipes as dp


def doubts(manifest):
    """Of each doubt what it is, without advice, and how many."""
    return {
        each.kind.partition(";")[0]: each.number
        for each in manifest.omissions
        if each.unit == "doubt"
    }


# boxes and points


def with_boxes(folder, boxes, form="xyxy", points=None, areas=None, side=64):
    """An image of each box."""
    folder.mkdir(exist_ok=True)
    for number in range(len(boxes)):
        Image.new("RGB", (side, side)).save(folder / f"{number}.png")
    rows = {
        "path": [f"{number}.png" for number in range(len(boxes))],
        "b": boxes,
        "l": [[0]] * len(boxes),
    }
    targets = {"boxes": "b", "box_labels": "l", "box_format": form}
    if points is not None:
        rows["k"], targets["keypoints"], targets["keypoint_names"] = points, "k", ["nose"]
    if areas is not None:
        rows["a"], targets["areas"] = areas, "a"
    pq.write_table(pa.table(rows), folder / "t.parquet")
    targets = dp.Targets(**targets)
    return lambda **options: dp.Manifest.open(
        folder / "t.parquet", targets=targets, progress=False, **options
    )


def test_boxes_that_reach_out(tmp_path):
    boxes = [[20, 20, 80, 80]] * 9 + [[2, 2, 12, 12]]
    read = with_boxes(tmp_path, boxes)
    assert doubts(read()) == {
        "of 10 boxes, those that reach out of their images, as x1, y1, x2, y2 do where x, y, "
        "width, height are read, or boxes of an image of another size": 9
    }
    with pytest.raises(dp.OmissionError, match="reach out"):
        read(strict=True)


@pytest.mark.parametrize("form", ["xyxy", "xywh", "cxcywh"])
def test_a_form_that_is_named_may_be_wrong(form, tmp_path):
    """Corners that are read as sizes, or boxes of an image before it was resized."""
    read = with_boxes(tmp_path, [[20, 20, 90, 80]] * 10, form)
    (what,) = doubts(read())
    assert what.startswith("of 10 boxes, those that reach out of their images")


@pytest.mark.parametrize("over", [1.9, 0.02])
def test_boxes_that_touch_the_border_are_no_doubt(over, tmp_path):
    side = 64 if over > 1 else 500
    more = over if over > 1 else over * side
    boxes = [[-more, 0, side + more, side]] * 9 + [[-50, 0, side, side]]
    assert doubts(with_boxes(tmp_path, boxes, side=side)(strict=True)) == {}


def test_sizes_that_are_read_as_corners_do_not_fit_their_areas(tmp_path):
    sizes = [[4, 4, 40, 40]] * 10
    read = with_boxes(tmp_path, sizes, areas=[[1600]] * 10)
    assert list(doubts(read())) == ["of 10 areas, those that are larger than their boxes"]
    # an area of a mask is smaller, and some programs count the last pixel too
    for area in (700, 1369):
        fits = with_boxes(tmp_path, sizes, areas=[[area]] * 10)
        assert doubts(fits(strict=True)) == {}


def test_points_outside_of_their_images(tmp_path):
    boxes = [[20, 20, 60, 60]] * 10
    read = with_boxes(tmp_path, boxes, points=[[90, 10, 2]] * 5 + [[30, 30, 2]] * 5)
    assert list(doubts(read())) == ["of 10 keypoints, those outside of their images"]
    # those that are not labelled are nowhere
    fits = with_boxes(tmp_path, boxes, points=[[900, 10, 0]] * 5 + [[64.5, 30, 2]] * 5)
    assert doubts(fits(strict=True)) == {}


def spread(limit, count=20):
    """Boxes of all places up to this limit."""
    ends = np.linspace(0.3, 1, count) * limit
    return [[0, 0, limit * 0.2, limit * 0.2], *([0.1 * limit] * 2 + [end] * 2 for end in ends)]


@pytest.mark.parametrize(
    ("limit", "side", "form", "is_odd"),
    [
        (100, 200, "xyxy", True),
        (1000, 1100, "xyxy", True),
        (96, 640, "xyxy", True),
        (100, 199, "xyxy", False),  # a box may end there
        (1000, 1099, "xyxy", False),
        (89, 640, "xyxy", False),
        (102, 640, "xyxy", False),
        (0.7, 200, "relative_xyxy", False),
    ],
)
def test_boxes_in_percent_or_thousandths(limit, side, form, is_odd, tmp_path):
    read = with_boxes(tmp_path, spread(limit), form, side=side)
    name = "percent" if limit < 500 else "thousandths"
    what = f"boxes of which none reaches beyond {100 if limit < 500 else 1000}, as {name} of the"
    assert [each.startswith(what) for each in doubts(read())] == [True] * is_odd
    if is_odd:
        with pytest.raises(dp.OmissionError, match="give relative_… as the box_format"):
            read(strict=True)


def test_few_boxes_are_not_called_percent(tmp_path):
    assert doubts(with_boxes(tmp_path, spread(100, 18), side=200)(strict=True)) == {}


@pytest.mark.parametrize(
    ("boxes", "side", "is_odd"),
    [
        ([[0, 0, 1, 1]] * 10, 64, True),
        ([[0.2, 0.3, 1.4, 0.9]] * 9 + [[0, 0, 40, 40]], 64, True),
        ([[0, 0, 1, 1]] * 8 + [[0, 0, 40, 40]] * 2, 64, False),
        ([[0, 0, 1, 1]] * 10, 4, False),
        ([[0, 0, 1.6, 1]] * 10, 64, False),
        ([[0, 0, 1, 1]] * 2, 64, False),
    ],
)
def test_boxes_that_end_within_the_first_pixels(boxes, side, is_odd, tmp_path):
    found = doubts(with_boxes(tmp_path, boxes, side=side)(strict=not is_odd))
    assert ["as if they were in fractions" in each for each in found] == [True] * is_odd


@pytest.mark.parametrize(
    ("areas", "is_odd"),
    [
        ([0] * 10, True),
        ([0.0] * 5 + [800] * 5, True),
        ([15.9] * 10, True),
        ([16.1] * 10, False),
        ([0] * 4 + [800] * 6, False),
    ],
)
def test_areas_that_are_far_too_small(areas, is_odd, tmp_path):
    boxes = [[0, 0, 40, 40]] * 10
    read = with_boxes(tmp_path, boxes, areas=[[float(area)] for area in areas])
    found = doubts(read(strict=not is_odd))
    assert list(found) == ["of 10 areas, those of less than 1 % of their boxes"] * is_odd


FAR, HIDDEN = "those far outside of the boxes of their objects", "those with the visibility 0"
NOWHERE = "those exactly at (0, 0) or (-1, -1)"


@pytest.mark.parametrize(
    ("points", "what"),
    [
        ([[5, 5, 2]] * 3 + [[80, 80, 2]] * 7, FAR),  # as measured from the box
        ([[80, 5, 1]] * 10, FAR),
        ([[45, 80, 2]] * 10, None),  # a little outside
        ([[5, 5, 2]] * 2 + [[80, 80, 2]] * 8, None),
        ([[5, 5, 0]] * 5 + [[80, 80, 2]] * 5, None),
        ([[80, 80, 0]] * 6 + [[80, 80, 2]] * 4, HIDDEN),
        ([[80, 80, 0]] * 5 + [[80, 80, 2]] * 5, None),
        ([[0, 0, 0]] * 9 + [[80, 80, 2]], None),
        ([[0, 0, 0]] * 7 + [[80, 80, 0]] * 2, None),
        ([[0, 0, 2]] * 3 + [[80, 80, 2]] * 17, NOWHERE),
        ([[-1, -1, 1]] * 3 + [[80, 80, 2]] * 17, NOWHERE),
        ([[0, 0, 2]] * 3 + [[80, 80, 2]] * 30, None),
        ([[0, 1, 2]] * 3 + [[80, 80, 2]] * 17, None),
    ],
)
def test_points_that_mean_something_else(points, what, tmp_path):
    read = with_boxes(tmp_path, [[60, 60, 100, 100]] * len(points), points=points, side=128)
    found = list(doubts(read(strict=what is None)))
    assert [what in each for each in found] == [True] * (what is not None)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_points_without_a_place_have_none_in_turned_pictures(orientation, tmp_path):
    exif = Image.Exif()
    exif[0x112] = orientation
    Image.new("RGB", (64, 48)).save(tmp_path / "0.jpg", exif=exif)
    points = [[0, 0, 0] * 4 + [20, 20, 2]]
    names = ["nose", "ear_l", "ear_r", "tail", "chin"]
    rows = {"path": ["0.jpg"], "b": [[4, 4, 40, 40]], "l": [[0]], "k": points}
    pq.write_table(pa.table(rows), tmp_path / "t.parquet")
    targets = dp.Targets(
        boxes="b", box_labels="l", keypoints="k", keypoint_names=names, annotated="upright"
    )
    file = tmp_path / "t.parquet"
    assert doubts(dp.Manifest.open(file, targets=targets, progress=False, strict=True)) == {}


@pytest.mark.parametrize(
    ("points", "why"),
    [
        ([30, 30, 3], "keypoint 1 has 3)"),
        ([30, 30, 0.7], "keypoint 1 has 0.7)"),
        ([30, 30, -1], "keypoint 1 has -1)"),
        ([0.4, 0.6, 2], "as if they were in fractions of the image"),
        ([0, 1, 2], None),
        ([0, 0, 0], None),
    ],
)
def test_a_point_that_makes_no_sense_costs_its_object(points, why, tmp_path):
    boxes = [[20, 20, 60, 60], [20, 20, 40, 40]]
    manifest = with_boxes(tmp_path, boxes, points=[points, [30, 30, 2]])()
    assert manifest.take_objects(np.arange(2)).counts.tolist() == [0 if why else 1, 1]
    assert [why in line for _, line in manifest.dropped] == ([True] if why else [])


def test_faults_of_points_are_one_kind(tmp_path):
    points = [[30, 30, number / 7] for number in range(1, 6)] + [[30, 30, 2]]
    manifest = with_boxes(tmp_path, [[20, 20, 60, 60]] * 6, points=points)()
    (lost,) = [each for each in manifest.omissions if each.unit == "object"]
    assert lost.number == 5


# outlines


SQUARE = [[310, 210, 410, 210, 410, 310, 310, 310]]
FRACTIONS = [[0.48, 0.44, 0.64, 0.44, 0.64, 0.65]]
HALF = [[155, 105, 205, 105, 205, 155]]


def with_outlines(folder, outlines):
    Image.new("RGB", (640, 480)).save(folder / "0.jpg")
    objects = [
        {"id": n, "image_id": 1, "category_id": 1, "bbox": [310, 210, 100, 100], "area": 5000}
        | {"segmentation": outline}
        for n, outline in enumerate(outlines)
    ]
    content = {
        "images": [{"id": 1, "file_name": "0.jpg"}],
        "annotations": objects,
        "categories": [{"id": 1, "name": "cat"}],
    }
    (folder / "c.json").write_text(json.dumps(content))
    return lambda **options: dp.Manifest.from_coco(folder / "c.json", progress=False, **options)


@pytest.mark.parametrize(
    ("outlines", "number"),
    [
        ([FRACTIONS] * 20, 20),
        ([HALF] * 3 + [SQUARE] * 27, 3),
        ([[[310, 210, 397, 210, 397, 310]]] * 9, 9),
    ],
)
def test_outlines_that_are_elsewhere_than_their_boxes(outlines, number, tmp_path):
    read = with_outlines(tmp_path, outlines)
    assert doubts(read()) == {
        f"of {len(outlines)} polygons that were looked at, those that end elsewhere than the boxes "
        "of their objects": number
    }
    with pytest.raises(dp.OmissionError, match="end elsewhere"):
        read(strict=True)


RUNS = {"size": [480, 640], "counts": [0, 480 * 640]}


@pytest.mark.parametrize(
    "outlines",
    [
        [SQUARE] * 9,
        [[[310, 210, 399, 210, 399, 310]]] * 9,  # drawn by hand
        [[[310, 210, 340, 210, 340, 240], [380, 280, 410, 280, 410, 310]]] * 9,  # in two parts
        [HALF] * 2,
        [HALF] * 3 + [SQUARE] * 28,
        [RUNS] * 9,
        [[]] * 9,
        [],
    ],
)
def test_outlines_of_their_boxes_are_no_doubt(outlines, tmp_path):
    read = with_outlines(tmp_path, outlines or [[]])
    assert doubts(read(strict=True)) == {}


def test_outlines_that_make_no_sense_are_left_out_and_no_doubt(tmp_path):
    odd = [[[1, 2]], ["x"], [[1, 2, 3, 4, 5, None]], [[1, 2, 3, 4, 5, 1e400]]]
    manifest = with_outlines(tmp_path, [*odd, *[SQUARE] * 30])()
    assert doubts(manifest) == {} and len(manifest.dropped) == len(odd)


# images in several rows


OTHER = {"b": [1, 1, 3, 3], "l": [1], "m": "m1.png", "t": "y"}


def repeated(folder, form, change, **options):
    """Two rows of one image, of which the second differs in some columns, and one of another."""
    write_images(folder, 3)
    for name, value in (("m0.png", 0), ("m1.png", 1), ("m2.png", 0)):
        Image.new("L", (8, 8), value).save(folder / name)
    one = {"path": "0.png", "b": [0, 0, 2, 2], "l": [0], "m": "m0.png", "t": "x"}
    two = one | {name: OTHER[name] for name in change}
    if form == "bytes":
        (folder / "1.png").write_bytes((folder / "0.png").read_bytes())
        two["path"], options["verify"] = "1.png", "full"
    rows = [one, two, one | {"path": "2.png", "l": [1]}]
    pq.write_table(pa.Table.from_pylist(rows), folder / "t.parquet")
    return dp.Manifest.open(folder / "t.parquet", progress=False, **options)


def write_images(folder, count):
    for number in range(count):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number}.png")


BOXES, MASK = {"boxes": "b", "box_labels": "l"}, {"mask": "m"}
SAME = {"file": "files in several rows", "bytes": "images of the same bytes"}


@pytest.mark.parametrize("form", ["file", "bytes"])
@pytest.mark.parametrize(
    ("targets", "change", "unlike"),
    [
        (BOXES, "b", "different objects, so that a sample has some of them only"),
        (BOXES, "bl", "different objects, so that a sample has some of them only"),
        (BOXES, "l", "different labels, so that a network learns each of them"),
        (MASK, "m", "different masks, so that a network learns each of them"),
        (BOXES | MASK, "bm", "different objects, so that a sample has some of them only"),
        (BOXES | MASK, "m", "different masks, so that a network learns each of them"),
        (BOXES | MASK | {"text": "t"}, "t", None),
        ({"text": "t"}, "tb", None),
        (BOXES, "m", None),
    ],
)
def test_an_image_in_several_rows(form, targets, change, unlike, tmp_path):
    targets = dp.Targets(**targets)
    manifest = repeated(tmp_path, form, change, targets=targets, strict=unlike is None)
    expected = {f"{SAME[form]} with {unlike}": 1} if unlike else {}
    assert doubts(manifest) == expected
    notes = [each for each in manifest.omissions if each.unit == "note" and "same" in each.kind]
    assert len(notes) == (not unlike)


def test_the_same_bytes_with_masks_of_the_same_bytes_are_a_note(tmp_path):
    write_images(tmp_path, 1)
    for number in (1, 2):
        (tmp_path / f"{number}.png").write_bytes((tmp_path / "0.png").read_bytes())
        Image.new("L", (8, 8), 1).save(tmp_path / f"m{number}.png")
    pq.write_table(
        pa.table({"path": ["1.png", "2.png"], "m": ["m1.png", "m2.png"]}), tmp_path / "t.parquet"
    )
    targets, file = dp.Targets(mask="m"), tmp_path / "t.parquet"
    manifest = dp.Manifest.open(file, targets=targets, verify="full", strict=True, progress=False)
    assert doubts(manifest) == {} and manifest.omissions


def test_the_order_of_objects_is_no_difference(tmp_path):
    write_images(tmp_path, 1)
    boxes = [[0, 0, 2, 2], [1, 1, 3, 3]]
    rows = {"path": ["0.png"] * 2, "b": [boxes, boxes[::-1]], "l": [[0, 1], [1, 0]]}
    pq.write_table(pa.table(rows), tmp_path / "t.parquet")
    targets = dp.Targets(**BOXES)
    file = tmp_path / "t.parquet"
    assert doubts(dp.Manifest.open(file, targets=targets, strict=True, progress=False)) == {}


# masks


def masks(folder, *levels, **options):
    for name in "im":
        (folder / name).mkdir(exist_ok=True)
    for number in range(3):
        of_this = levels[number % len(levels)] if isinstance(levels[0], tuple) else levels
        kind = np.uint16 if max(of_this) > 255 else np.uint8
        values = np.resize(np.array(of_this, kind), (24, 24))
        Image.new("RGB", (24, 24)).save(folder / f"i/{number}.png")
        Image.fromarray(values).save(folder / f"m/{number}.png")
    return lambda **more: dp.Manifest.from_masks(
        folder / "i", folder / "m", progress=False, **(options | more)
    )


@pytest.mark.parametrize(
    ("levels", "advice"),
    [
        ((0, 255), "{255: 1}"),
        ((0, 128, 255), "{128: 1, 255: 2}"),
        ((0, 206, 210), "{206: 1, 210: 2}"),
        ((0, 1, 192), "{1: 1, 192: 2}"),
        ((0, 254), "{254: 1}"),
        (tuple(range(0, 240, 20)), "{20: 1, 40: 2, 60: 3"),
        (tuple(range(0, 256, 51)), "{51: 1, 102: 2"),
        (tuple(range(0, 256, 17)), "{17: 1, 34: 2"),
        ((0, 10, 20, 255), "{10: 1, 20: 2"),
        ((0, 29, 76, 105, 150, 179, 226, 255), "{29: 1, 76: 2"),
        ((0, 65535), "{65535: 1}"),
        ((0, 32767, 65534), "{32767: 1, 65534: 2}"),
        ((0, 1, 7, 24001, 26001, 26002), "as class * 1000 + number"),
        ((24001, 26001), "as class * 1000 + number"),
        (((0, 1), (0, 255)), "{255: 1}"),
        (((0, 1, 2), (0, 1), (0, 255)), "1 have 0 and 1 alone and 1 have 0 and 255"),
        (tuple(range(256)), "without smoothing"),
    ],
)
def test_gray_levels_that_are_taken_for_classes(levels, advice, tmp_path):
    read = masks(tmp_path, *levels)
    (doubt,) = [each for each in read().omissions if each.unit == "doubt"]
    assert (
        advice in doubt.kind
        and doubt.number == 3
        and doubt.names == ["i/0.png", "i/1.png", "i/2.png"]
    )
    with pytest.raises(dp.OmissionError):
        read(strict=True)


@pytest.mark.parametrize(
    ("levels", "options"),
    [
        ((0, 1, 2, 255), {}),
        ((0, 15, 255), {}),  # VOC's
        ((1, 2, 3), {}),  # trimaps of Pets
        ((0, 7, 33, 255), {}),  # Cityscapes'
        (tuple(range(0, 151, 7)), {}),  # ADE20K's
        ((0, 255), {"mask_values": {255: 1}}),
        ((0, 255), {"mask_values": {255: 255}}),
        (((0, 1), (0, 255), (0, 1, 255)), {}),
        (((0, 1), (0, 255)), {"mask_values": {255: 1}}),
        (((0, 1), (0, 255)), {"mask_values": {255: 255}}),
        (((0, 1), (0,)), {}),
        ((0, 255), {"classes": ["only"], "mask_values": {255: 255}}),
        (tuple(range(182)), {}),  # COCO-Stuff's
        (tuple(range(0, 458, 3)), {}),  # of 16 bits
        ((0, 15, 20), {}),
        ((0, 2, 4), {}),
        (tuple(range(256)), {"classes": [str(number) for number in range(256)]}),
        ((0, 128, 255), {"mask_values": {128: 1, 255: 2}}),
    ],
)
def test_masks_of_classes_are_no_doubt(levels, options, tmp_path):
    assert doubts(masks(tmp_path, *levels, **options)(strict=True)) == {}


def test_replaced_values_do_not_hide_smoothed_edges(tmp_path):
    read = masks(tmp_path, *range(256), mask_values={255: 1})
    (what,) = doubts(read())
    assert "as if their edges were smoothed" in what
    with pytest.raises(dp.OmissionError):
        read(strict=True)


@pytest.mark.parametrize(
    ("classes", "advice"),
    [
        (["tumor"], r"name the background too, as classes=\['background', 'tumor'\]"),
        (["none", "tumor"], "mask_values={255: 1} makes 255 class 1"),
    ],
)
def test_masks_of_which_only_one_class_would_be_learned(classes, advice, tmp_path):
    with pytest.raises(dp.ManifestError, match=advice):
        masks(tmp_path, 0, 255, classes=classes)()
    read = masks(tmp_path, 0, 255, classes=["none", "tumor"], mask_values={255: 1})
    assert doubts(read(strict=True)) == {}
