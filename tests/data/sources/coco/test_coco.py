"""COCO's files: what is in them, and one line for each thing that is wrong with them."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from dali_pipes import ConfigError, Manifest, ManifestError, OmissionError
from dali_pipes.data.omissions import Omission
from dali_pipes.data.outlines import rasterize
from dali_pipes.data.sources.coco import annotations

CATEGORIES = [
    {"id": 7, "name": "dog"},
    {"id": 2, "name": "person", "keypoints": ["nose", "left_eye", "right_eye"]},
]


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        Image.new("RGB", (40, 30)).save(tmp_path / f"{number}.jpg")
    return tmp_path


def written(folder, objects, kinds=CATEGORIES, **changed):
    images = [
        {"id": 9 - number, "file_name": f"{number}.jpg", "height": 30, "width": 40}
        for number in range(3)
    ]
    content = {"images": images, "annotations": objects, "categories": kinds} | changed
    (folder / "a.json").write_text(json.dumps(content))
    return folder / "a.json"


def one(number=1, **changed):
    return {"id": number, "image_id": 9, "category_id": 7, "bbox": [1, 2, 10, 20]} | changed


def test_objects_are_those_of_the_file(folder):
    full = one(
        2,
        category_id=2,
        area=5.5,
        iscrowd=1,
        keypoints=[1, 2, 2, 3, 4, 1, 0, 0, 0],
        segmentation=[[0, 0, 8, 0, 8, 8]],
    )
    manifest = Manifest.open(
        written(folder, [one(1, image_id=8), full, one(3, bbox=[-5.5, 0, 20, 4])]), progress=False
    )
    assert (
        manifest.classes == ["person", "dog"]
        and manifest.task == "multilabel"
        and not manifest.problems
    )
    assert manifest.labels.tolist() == [[0, 1], [1, -1], [-1, -1]]
    assert manifest.facts.keypoints == (["nose", "left_eye", "right_eye"], [0, 2, 1])
    objects = manifest.take_objects(np.array([1, 0, 2]))
    assert objects.counts.tolist() == [1, 2, 0] and objects.labels.tolist() == [1, 0, 1]
    assert objects.boxes.tolist() == [[1, 2, 11, 22], [1, 2, 11, 22], [-5.5, 0, 14.5, 4]]
    assert objects.areas.tolist() == [200, 5.5, 80] and objects.crowd.tolist() == [
        False,
        True,
        False,
    ]
    assert (
        objects.keypoints[1].tolist() == [[1, 2, 2], [3, 4, 1], [0, 0, 0]]
        and not objects.keypoints[[0, 2]].any()
    )
    first, second = json.loads(manifest.take_texts("outlines", np.array([0]))[0])
    assert rasterize(first, 30, 40).any() and not rasterize(second, 30, 40).any()


def test_the_first_caption_is_the_text(folder):
    captions = [
        {"id": 1, "image_id": 8, "caption": "ein Hund ü"},
        {"id": 2, "image_id": 8, "caption": "a dog"},
    ]
    manifest = Manifest.from_coco(written(folder, captions, []), progress=False)
    assert manifest.take_texts("text", np.arange(3)) == ["", "ein Hund ü", ""]
    assert manifest.take_objects(np.arange(3)) is None and manifest.classes == []


BAD = [
    (one(bbox=[1, 2, float("nan"), 4]), "its box is not finite (annotation 1: 1, 2, nan, 4)"),
    (one(bbox=[1, float("inf"), 3, 4]), "not finite"),
    (one(bbox=[1, 2, 0, 4]), "empty or inverted"),
    (one(bbox=[1, 2, 3, -4]), "empty or inverted"),
    (one(bbox=[40, 2, 3, 4]), "outside the image"),
    (one(bbox=[30, 2, 1e-9, 4]), "empty or inverted"),  # as float32
    (one(bbox=[1, 2, 3]), "no bbox of four numbers"),
    (one(bbox=[1, 2, "3", None]), "no bbox of four numbers"),
    (one(bbox=[1, 2, 10**400, 3]), "no bbox of four numbers"),
    ({"id": 1, "image_id": 9}, "no bbox of four numbers"),
    (one(category_id=3), "its category_id is none of the file's categories (annotation 1: 3)"),
    (one(category_id=[7]), "its category_id is none of the file's categories (annotation 1: [7])"),
    (
        one(category_id=True),
        "its category_id is none of the file's categories (annotation 1: True)",
    ),
    (one(iscrowd="no"), "its iscrowd is neither 0 nor 1 (annotation 1: 'no')"),
    (one(iscrowd=2), "its iscrowd is neither 0 nor 1 (annotation 1: 2)"),
    (
        one(category_id=None),
        "its category_id is none of the file's categories (annotation 1: None)",
    ),
    (
        one(category_id="07.5"),
        "its category_id is none of the file's categories (annotation 1: '07.5')",
    ),
    (one(bbox=None), "no bbox of four numbers"),
    # numbers that are written as text are no numbers
    (
        one(bbox=["1", "2", "10", "20"]),
        "no bbox of four numbers (annotation 1: ['1', '2', '10', '20'])",
    ),
    (one(category_id="7"), "its category_id is none of the file's categories (annotation 1: '7')"),
    (one(iscrowd="0"), "its iscrowd is neither 0 nor 1 (annotation 1: '0')"),
    (one(area="200"), "its area is no number (annotation 1: '200')"),
    (one(area=[]), "its area is no number (annotation 1: [])"),
    (one(area=float("nan")), "its area is negative or not finite (annotation 1: nan)"),
    (one(area=-1.5), "its area is negative or not finite (annotation 1: -1.5)"),
    (one(area=1e39), "its area is negative or not finite (annotation 1: 1e+39)"),  # as float32
    (
        one(area="big", keypoints=[1], segmentation=[[1]]),
        "its area is no number (annotation 1: 'big')",
    ),
]
SHAPE = [0, 0, 8, 0, 8, 8]
BAD_OUTLINES = [
    ([[1, 1, 2, 2]], "a polygon of 4 numbers"),
    ([[], [1, 1, 2, 2]], "a polygon of 0 numbers"),
    ([SHAPE, [0, 0, 8, 0, 8, float("nan")]], "not finite"),
    ([[0, 0, 8, 0, 8, "eight"]], "not finite"),
    ([[0, 0, 8, 0, 8, None]], "not finite"),
    ([[[0, 0], [8, 0], [8, 8], [0, 8], [0, 4], [0, 2]]], "not finite"),
    ("polygon", "neither a list of polygons nor run lengths"),
    (
        {"size": [30, 41], "counts": [30 * 41]},
        "run lengths of a mask of another size (annotation 2: [30, 41], ",
    ),
    ({"size": [30, 40], "counts": None}, "run lengths that cannot be read"),
    ({"size": [30, 40], "counts": [1200.5]}, "run lengths that cannot be read"),
    ({"size": [30, 40], "counts": ["1000", 200]}, "run lengths that cannot be read"),
    (
        {"size": ["30", "40"], "counts": [1200]},
        "run lengths of a mask of another size (annotation 2: ['30', '40'], ",
    ),
    ({"counts": [1200]}, "run lengths of a mask of another size (annotation 2: None, "),
    (SHAPE, "neither a list of polygons nor run lengths"),
    ([[], SHAPE], "a polygon of 0 numbers"),
    ([None, SHAPE], "neither a list of polygons nor run lengths"),
]


@pytest.mark.parametrize(("outline", "line"), BAD_OUTLINES)
def test_an_object_with_a_bad_outline_is_left_out_and_listed(folder, outline, line):
    file = written(
        folder, [one(1, segmentation=[SHAPE]), one(2, segmentation=outline), one(3, image_id=8)]
    )
    manifest = Manifest.from_coco(file, progress=False)
    ((name, why),) = manifest.dropped
    assert (
        name == str(folder / "0.jpg")
        and why.startswith("its outline is wrong: ")
        and "(annotation 2" in why
        and line in why
    )
    assert manifest.take_objects(np.arange(1)).counts.tolist() == [1]
    assert json.loads(manifest.take_texts("outlines", np.arange(1))[0]) == [[SHAPE]]
    with pytest.raises(OmissionError, match="its outline is wrong"):
        Manifest.from_coco(file, strict=True, progress=False)
    assert len(Manifest.from_coco(file, bad_objects="problem", progress=False)) == 2


@pytest.mark.parametrize("outline", [None, [], {}, [[]]])
def test_an_empty_outline_is_none(folder, outline):
    file = written(folder, [one(1, segmentation=[SHAPE]), one(2, segmentation=outline)])
    manifest = Manifest.from_coco(file, strict=True, progress=False)
    assert json.loads(manifest.take_texts("outlines", np.arange(1))[0]) == [[SHAPE], []]


# Each field of an annotation, an image and a category: what stands there, and what is written
# instead and means the same.
SAME = [
    *(
        ("annotations", name, None)
        for name in ("area", "iscrowd", "segmentation", "keypoints", "caption", "id", "extra")
    ),
    *(("images", name, None) for name in ("height", "width", "license", "date_captured")),
    *(("categories", name, None) for name in ("keypoints", "skeleton", "supercategory")),
    *(("annotations", "iscrowd", each) for each in (0.0, False)),
    ("annotations", "area", 200.0),
    ("annotations", "bbox", [1.0, 2, 10.0, 20]),
    ("annotations", "category_id", 7.0),
    ("annotations", "image_id", 9.0),
    ("images", "id", 9.0),
    ("categories", "id", 7.0),
    ("images", "height", 30.0),
    ("images", "width", 40.0),
]


@pytest.mark.parametrize(("kind", "name", "value"), SAME)
def test_null_is_missing_and_7_0_is_7(folder, kind, name, value):
    categories = [{"id": 7, "name": "dog"}, {"id": 10, "name": "cat"}]
    plain = Manifest.from_coco(written(folder, [one()], categories), progress=False)
    content = json.loads((folder / "a.json").read_text())
    content[kind][0][name] = value
    (folder / "a.json").write_text(json.dumps(content))
    found = Manifest.from_coco(folder / "a.json", strict=True, progress=False)
    assert found.take_objects(np.arange(3)).counts.tolist() == [1, 0, 0] and found.table.equals(
        plain.table
    )
    assert found.classes == ["dog", "cat"]


def test_null_keypoints_are_none(folder):
    objects = [
        one(1, category_id=2, keypoints=None),
        one(2, category_id=2, keypoints=[1, 2, 2] * 3),
    ]
    manifest = Manifest.from_coco(written(folder, objects), strict=True, progress=False)
    points = manifest.take_objects(np.arange(1)).keypoints
    assert points[1].tolist() == [[1, 2, 2]] * 3 and not points[0].any()


def test_ids_are_compared_as_they_are_written_and_numbers_come_before_texts(folder):
    kinds = [{"id": each, "name": f"text {each}"} for each in ("9", "10", "x")]
    kinds += [{"id": 10, "name": "10"}, {"id": 9.0, "name": "9"}]
    objects = [
        one(1, category_id="9"),
        one(2, category_id=9),
        one(3, category_id=10),
        one(4, category_id="x"),
    ]
    manifest = Manifest.from_coco(written(folder, objects, kinds), strict=True, progress=False)
    assert manifest.classes == ["9", "10", "text 10", "text 9", "text x"]
    assert manifest.take_objects(np.arange(1)).labels.tolist() == [3, 0, 1, 4]
    other = written(folder, [*objects, one(5, category_id="10.0"), one(6, image_id="9")], kinds)
    manifest = Manifest.from_coco(other, progress=False)
    assert "its category_id is none" in manifest.dropped[0][1]
    assert ["a.json: annotation 6: '9'"] in [each.names for each in manifest.omissions]


@pytest.mark.parametrize("height", ["30", [30], {}])
def test_a_size_that_is_no_number_is_named_as_such(folder, height):
    images = [{"id": 9, "file_name": "0.jpg", "height": height}, {"id": 8, "file_name": "1.jpg"}]
    file = written(folder, [one(1, image_id=8)], images=images)
    ((_, why),) = Manifest.from_coco(file, progress=False).problems
    assert why.startswith(f"its width and height are no numbers (in a.json 40 × {height!r})")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("side", [1e200, float("inf")])
def test_a_huge_box_is_named_without_a_warning(folder, side):
    file = written(folder, [one(1), one(2, bbox=[0, 0, side, side])])
    dropped = dict(Manifest.from_coco(file, progress=False).dropped)
    assert any("not finite" in why for why in dropped.values())


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"bbox": [1, 2, 3]}, r"it has no bbox of four numbers \(annotation 0: "),
        ({"bbox": [1, 2, 0, 0]}, r"its box is empty or inverted \(annotation 0: "),
        ({"category_id": "dog"}, r"its category_id is none of .* \(annotation 0: 'dog'\)"),
        ({"image_id": "0.jpg"}, r"its image_id is none of .* \(annotation 0: '0.jpg'\)"),
    ],
)
@pytest.mark.parametrize("bad_objects", ["drop", "problem"])
def test_a_file_of_which_no_object_is_left_is_refused(folder, change, line, bad_objects):
    file = written(folder, [one(number) | change for number in range(4)])
    with pytest.raises(
        ManifestError,
        match=r"a\.json: none of its objects can be used: 4 left out, the first: .*" + line,
    ):
        Manifest.from_coco(file, bad_objects=bad_objects, progress=False)


def test_images_without_objects_do_not_stand_for_all_others_that_cannot_be_used(folder):
    images = [{"id": 9, "file_name": "0.jpg", "height": 31}, {"id": 8, "file_name": "1.jpg"}]
    with pytest.raises(
        ManifestError,
        match=r"none of its objects .* 2 left out, the first: '0.jpg': by its stated size",
    ):
        Manifest.from_coco(written(folder, [one(1), one(2)], images=images), progress=False)
    # there are none to lose
    assert len(Manifest.from_coco(written(folder, []), progress=False)) == 3


def test_a_caption_that_is_no_text_is_listed(folder):
    captions = [
        {"id": number, "image_id": 8, "caption": text}
        for number, text in enumerate((None, 5, "a dog"))
    ]
    manifest = Manifest.from_coco(written(folder, captions, []), progress=False)
    assert manifest.take_texts("text", np.arange(3)) == [
        "",
        "a dog",
        "",
    ] and not manifest.has_target("boxes")
    assert manifest.omissions == [
        Omission(
            "its caption is no text",
            2,
            ["a.json: annotation 0: None", "a.json: annotation 1: 5"],
            "object",
        )
    ]
    with pytest.raises(ManifestError, match="none of its objects"):
        Manifest.from_coco(written(folder, captions[:2], []), progress=False)


@pytest.mark.parametrize(("bad", "line"), BAD)
def test_a_bad_object_is_left_out_and_listed(folder, bad, line):
    kinds = [*CATEGORIES, {"id": 1, "name": "cat"}]
    file = written(folder, [one(4), bad, one(5, image_id=8)], kinds)
    manifest = Manifest.from_coco(file, progress=False)
    ((name, why),) = manifest.dropped
    assert name == str(folder / "0.jpg") and "(annotation 1" in why and line in why
    assert (
        manifest.take_objects(np.arange(3)).counts.tolist() == [1, 1, 0] and not manifest.problems
    )
    strict = Manifest.from_coco(file, bad_objects="problem", progress=False)
    assert strict.problems == [("0.jpg", f"bad object: {why}")] and not strict.dropped
    assert len(strict) == 2 and strict.bad_images == 1


BAD_POINTS = [
    ([1, 2, 2], "its keypoints are not 3 times x, y and visibility (annotation 2: [1, 2, 2])"),
    ({"nose": [1, 2]}, "its keypoints are not 3 times x, y and visibility"),
    ([None, 2, 2] * 3, "its keypoints are not 3 times x, y and visibility"),
    (["1", 2, 2] * 3, "its keypoints are not 3 times x, y and visibility"),
    ([1, 2, 2, 3, float("nan"), 2, 1, 2, 2], "not finite (annotation 2: keypoint 2)"),
    (
        [1, 2, 2, 3, 4, 3, 1, 2, 2],
        "0, 1 and 2 (annotation 2: keypoint 2 has 3)",
    ),
]


@pytest.mark.parametrize(("points", "line"), BAD_POINTS)
def test_an_object_with_bad_keypoints_is_left_out_and_listed(folder, points, line):
    good = {"category_id": 2, "area": 7.0, "keypoints": [5, 6, 2] * 3}
    bad = one(2, **good | {"keypoints": points})
    file = written(folder, [one(1, **good), bad, one(3, image_id=8)])
    manifest = Manifest.from_coco(file, progress=False)
    ((_, why),) = manifest.dropped
    assert "(annotation 2: " in why and line in why
    objects = manifest.take_objects(np.arange(3))
    assert objects.counts.tolist() == [1, 1, 0] and objects.areas.tolist() == [7, 200]
    assert objects.keypoints.tolist() == [[[5, 6, 2]] * 3, [[0, 0, 0]] * 3]
    with pytest.raises(OmissionError):
        Manifest.from_coco(file, strict=True, progress=False)
    strict = Manifest.from_coco(file, bad_objects="problem", progress=False)
    assert [path for path, _ in strict.problems] == ["0.jpg"]


def test_keypoints_of_which_no_category_has_names_are_in_doubt(folder):
    kinds = [{"id": 7, "name": "dog"}]
    file = written(folder, [one(1, keypoints=[1, 2, 2]), one(2, keypoints=[0, 0, 0])], kinds)
    manifest = Manifest.from_coco(file, progress=False)
    (doubt,) = manifest.omissions
    assert doubt.kind.startswith("objects whose keypoints are not read, since no category says")
    assert (doubt.number, doubt.unit) == (1, "doubt")
    assert manifest.take_objects(np.arange(1)).counts.tolist() == [2] and not manifest.dropped
    with pytest.raises(OmissionError, match="keypoints are not read"):
        Manifest.from_coco(file, strict=True, progress=False)


def test_a_file_name_of_windows_or_with_blanks_is_the_file_that_it_means(folder):
    (folder / "sub").mkdir()
    (folder / "0.jpg").rename(folder / "sub/0.jpg")
    images = [
        {"id": 9, "file_name": "sub\\0.jpg"},
        {"id": 8, "file_name": " 1.jpg"},
        {"id": 7, "file_name": "gone\\2.jpg"},
    ]
    manifest = Manifest.from_coco(written(folder, [one()], images=images), progress=False)
    assert [manifest.name(number) for number in (0, 1)] == [
        str(folder / "sub/0.jpg"),
        str(folder / "1.jpg"),
    ]
    assert manifest.problems == [("gone\\2.jpg", "no such file or directory")]


def test_a_bad_object_changes_no_other(folder, monkeypatch):
    """A file of COCO's size has a million objects, and a look at each part of each takes longer
    than reading all images.
    """
    plain = one(
        2,
        category_id=2,
        area=5.5,
        iscrowd=1,
        keypoints=[1, 2, 2, 3, 4, 1, 0, 0, 0],
        segmentation=[[0, 0, 8, 0, 8, 8]],
    )
    good = [plain, one(3), one(4, image_id=8, segmentation=[])]
    with monkeypatch.context() as patch:
        patch.setattr(annotations, "problem_of", lambda *_: pytest.fail("a look at a good outline"))
        alone = Manifest.from_coco(written(folder, good), progress=False)
    bad = [each for each, _ in BAD] + [one(segmentation=outline) for outline, _ in BAD_OUTLINES]
    bad += [one(category_id=2, keypoints=points) for points, _ in BAD_POINTS]
    among = Manifest.from_coco(written(folder, [good[0], *bad, *good[1:]]), progress=False)
    assert len(among.dropped) == len(bad) and not among.problems
    columns = [name for name in alone.table.column_names if name != "target:dropped"]
    assert among.table.select(columns).equals(alone.table.select(columns))


@pytest.mark.parametrize(
    ("ids", "kept"),
    [
        ([1, 2, 3.0], [1, 2, 3]),
        (["1", "01", "2"], ["1", "01", "2"]),
        ([1, "1", 2], ["1", "1", "2"]),
        (["1e999", "1", "2"], ["1e999", "1", "2"]),
        ([2**63, 1, 2], [str(2**63), "1", "2"]),
    ],
)
def test_ids_of_images_are_numbers_if_these_stay_apart(folder, ids, kept):
    images = [{"id": each, "file_name": f"{number}.jpg"} for number, each in enumerate(ids)]
    objects = [
        one(number, image_id=each, bbox=[number, 0, 9, 9]) for number, each in enumerate(ids)
    ]
    manifest = Manifest.from_coco(
        written(folder, objects, images=images), strict=True, progress=False
    )
    assert list(map(str, manifest.columns["image_id"])) == list(map(str, kept))
    assert ("image_id" in manifest.numeric_columns) == isinstance(kept[0], int)
    assert manifest.take_objects(np.arange(3)).boxes[:, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("stray", "kind", "name"),
    [
        (one(image_id=99), "its image_id is none of the file's images", "annotation 1: 99"),
        ({"id": 1}, "its image_id is none of the file's images", "annotation 1: None"),
        (one(image_id=[9]), "its image_id is none of the file's images", "annotation 1: [9]"),
        (one(image_id=True), "its image_id is none of the file's images", "annotation 1: True"),
        ([9], "it is no JSON object", "annotations[0]"),
        (9, "it is no JSON object", "annotations[0]"),
    ],
)
def test_an_annotation_of_no_image_is_counted(folder, stray, kind, name):
    images = [{"id": number, "file_name": f"{number % 3}.jpg"} for number in (9, 1)]
    manifest = Manifest.from_coco(written(folder, [stray, one(4)], images=images), progress=False)
    assert manifest.omissions == [Omission(kind, 1, [f"a.json: {name}"], "object")]
    assert not manifest.problems and len(manifest) == 2
    assert manifest.take_objects(np.arange(2)).counts.tolist() == [1, 0]


def test_a_stray_annotation_is_named_with_its_file(folder):
    files = []
    for name in ("b (1); x.json", "c.json"):
        written(folder, [one(1, image_id=77), one(4)]).rename(folder / name)
        files.append(folder / name)
    (found,) = [each for each in Manifest.from_coco(files).omissions if "image_id" in each.kind]
    assert found.names == ["b (1); x.json: annotation 1: 77", "c.json: annotation 1: 77"]


def test_an_image_of_another_size_is_a_problem(folder):
    images = [
        {"id": 9, "file_name": "0.jpg", "height": 40, "width": 30},
        {"id": 8, "file_name": "gone.jpg"},
    ]
    images += [{"id": 7, "file_name": "2.jpg"}]
    manifest = Manifest.from_coco(
        written(folder, [one(), one(2, image_id=7)], images=images), progress=False
    )
    problems = dict(manifest.problems)
    assert problems["0.jpg"] == (
        "by its stated size its boxes are of another image (in a.json 30 × 40 pixels, and the "
        "file has 40 × 30); correct one of them"
    )
    assert problems["gone.jpg"] == "no such file or directory" and len(manifest) == 1


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"images": []}, "needs the lists images"),
        ({"annotations": None}, "needs the lists images"),
        ({"images": [{"id": 1}]}, r"images\[0\] needs an id and a file_name"),
        ({"images": [{"id": 1, "file_name": "/etc/x.jpg"}]}, "relative to the folder"),
        (
            {"images": [{"id": 1, "file_name": "0.jpg"}, {"id": 1, "file_name": "1.jpg"}]},
            "has the id 1 of another",
        ),
        ({"images": [{"id": True, "file_name": "0.jpg"}]}, r"images\[0\] needs an id"),
        (
            {"images": [{"id": 1, "file_name": "a/../../x.jpg"}]},
            "'a/../../x.jpg', outside the folder of the images",
        ),
        (
            {"images": [{"id": each, "file_name": "0.jpg"} for each in (1, 2)]},
            r"images\[1\] has the file_name '0.jpg' of another",
        ),
        (
            {"images": [{"id": each, "file_name": "./" * each + "0.jpg"} for each in (0, 1)]},
            r"has the file_name './0.jpg' of another",
        ),
        ({"images": [{"id": 1, "file_name": "..\\..\\x.jpg"}]}, "outside the folder of the images"),
        (
            {"images": [{"id": 1, "file_name": "C:\\a\\x.jpg"}]},
            "the first is 'C:.*x.jpg'; give the folder",
        ),
        (
            {"categories": [{"id": each, "name": "cat"} for each in (1, 2)]},
            r"categories\[1\] has the name 'cat' of another one; make",
        ),
        (
            {"images": [{"id": 1, "file_name": "gone.jpg"}]},
            "give the folder that they are in as root",
        ),
        ({"categories": [{"id": 1}]}, r"categories\[0\] needs an id and a name"),
        (
            {"categories": [*CATEGORIES, {"id": 8, "name": "cat", "keypoints": ["tail"]}]},
            "different keypoints",
        ),
        (
            {"categories": [{"id": 8, "name": "cat", "keypoints": ["tail", "tail"]}]},
            "not all different",
        ),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(folder, changed, line):
    with pytest.raises(ManifestError, match=line):
        Manifest.from_coco(written(folder, [], **changed), progress=False)


def test_what_is_not_json_is_refused(folder):
    (folder / "a.json").write_text("{")
    with pytest.raises(ManifestError, match=r"a\.json: not a JSON file"):
        Manifest.from_coco(folder / "a.json")
    (folder / "a.json").write_text("[1]")
    with pytest.raises(ManifestError, match="needs the lists images"):
        Manifest.from_coco(folder / "a.json")
    with pytest.raises(ManifestError, match="no such file"):
        Manifest.from_coco(folder / "b.json")
    with pytest.raises(ConfigError, match="bad_objects"):
        Manifest.from_coco(folder / "b.json", bad_objects="clip")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["\ud800", "", "/", "\0", "0.jpg", 10**400]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["id", "size", "counts"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_in_the_file_it_is_one_line_or_a_manifest(folder, data):
    full = one(
        category_id=2, area=5.5, iscrowd=1, keypoints=[1] * 9, segmentation=[[0, 0, 8, 0, 8, 8]]
    )
    packed = one(2, segmentation={"size": [30, 40], "counts": [1000, 200]})
    content = json.loads(
        written(folder, [full, packed, {"image_id": 9, "caption": "c"}]).read_text()
    )
    place = content
    while isinstance(place, (list, dict)) and place:
        key = data.draw(
            st.sampled_from(range(len(place)) if isinstance(place, list) else sorted(place))
        )
        if data.draw(st.booleans()) or not isinstance(place[key], (list, dict)) or not place[key]:
            place[key] = data.draw(JSON)
            break
        place = place[key]
    (folder / "a.json").write_text(json.dumps(content))
    try:
        manifest = Manifest.from_coco(folder / "a.json", progress=False)
    except ManifestError as error:
        assert "\n" not in str(error)
        return
    manifest.verify()
    manifest.save(folder / "m.arrow")
    assert Manifest.load(folder / "m.arrow").table.equals(manifest.table)
    texts = (
        manifest.take_texts("outlines", np.arange(len(manifest)))
        if manifest.has_target("outlines")
        else []
    )
    for text, count in zip(
        texts, manifest.take_objects(np.arange(len(manifest))).counts if texts else [], strict=True
    ):
        assert [rasterize(outline, 30, 40).shape for outline in json.loads(text)] == [
            (30, 40)
        ] * count


# names of files, and several files


@pytest.mark.parametrize(
    ("begin", "noted"),
    [
        ("{folder}/", False),
        ("/home/other/data/", True),
        ("C:\\data\\coco\\", True),
        ("D:/x/", True),
    ],
)
def test_absolute_names_are_below_the_root(folder, begin, noted):
    begin = begin.format(folder=folder)
    (folder / "sub").mkdir()
    (folder / "0.jpg").rename(folder / "sub/0.jpg")
    inner = begin + ("sub\\" if "\\" in begin else "sub/")
    images = [
        {"id": number, "file_name": f"{inner if number == 0 else begin}{number}.jpg"}
        for number in range(3)
    ]
    file = written(folder, [one(image_id=1)], images=images)
    manifest = Manifest.open(file, progress=False)
    assert [str(manifest.path(number).relative_to(folder)) for number in range(3)] == [
        "sub/0.jpg",
        "1.jpg",
        "2.jpg",
    ]
    notes = [each.kind for each in manifest.omissions if each.unit == "note"]
    assert len(notes) == noted and all("file names begin with " in note for note in notes)


def test_the_first_file_may_be_missing(folder):
    (folder / "0.jpg").unlink()
    images = [{"id": number, "file_name": f"/data/{number}.jpg"} for number in range(3)]
    manifest = Manifest.open(written(folder, [one(image_id=1)], images=images), progress=False)
    assert len(manifest) == 2 and [path for path, _ in manifest.problems] == ["0.jpg"]


def test_absolute_names_of_elsewhere_are_refused(folder):
    images = [{"id": 0, "file_name": "/elsewhere/x.jpg"}, {"id": 1, "file_name": "0.jpg"}]
    file = written(folder, [one(image_id=1)], images=images)
    with pytest.raises(ManifestError, match=r"images\[0\] has the file_name '/elsewhere/x.jpg'"):
        Manifest.open(file, progress=False)
    images = [{"id": 0, "file_name": "/data/0.jpg"}, {"id": 1, "file_name": "/other/1.jpg"}]
    file = written(folder, [one(image_id=1)], images=images)
    with pytest.raises(ManifestError, match=r"images\[1\] has the file_name '/other/1.jpg'"):
        Manifest.open(file, progress=False)


def two_files(folder, ids=lambda number: number):
    """Files of two sets with the same image ids."""
    files = []
    for place, name in enumerate("ab"):
        (folder / name).mkdir()
        for number in range(2):
            Image.new("RGB", (40, 30)).save(folder / name / f"{name}{number}.jpg")
        images = [
            {"id": ids(number), "file_name": f"{name}/{name}{number}.jpg"} for number in range(2)
        ]
        kinds = [{"id": 1, "name": "dog"}, {"id": 2, "name": "cat"}][:: 1 - 2 * place]
        kinds = [kind | {"id": at} for at, kind in enumerate(kinds, 1)]
        objects = [one(1, image_id=ids(0), category_id=1), one(2, image_id=ids(1), category_id=2)]
        content = {"images": images, "annotations": objects, "categories": kinds}
        files.append(folder / f"{name}.json")
        files[-1].write_text(json.dumps(content))
    return files


def test_several_files_are_joined_by_names_and_get_own_ids(folder):
    files = two_files(folder)
    manifest = Manifest.from_coco(files, progress=False)
    assert [manifest.path(number).name for number in range(4)] == [
        "a0.jpg",
        "a1.jpg",
        "b0.jpg",
        "b1.jpg",
    ]
    assert manifest.classes == ["dog", "cat"]
    assert manifest.take_objects(np.arange(4)).labels.tolist() == [0, 1, 1, 0]
    assert manifest.columns["image_id"].tolist() == [0, 1, 2, 3]
    (note,) = manifest.omissions
    assert note.unit == "note" and note.kind.startswith("image ids that are 2 higher than in")
    joined = Manifest.concat([Manifest.from_coco(file, progress=False) for file in files])
    assert joined.columns["image_id"].tolist() == [0, 1, 2, 3]
    assert joined.fingerprint == manifest.fingerprint


def test_ids_that_differ_stay(folder):
    files = two_files(folder)
    content = json.loads(files[1].read_text())
    for image, new in zip(content["images"], (7, 3), strict=True):
        image["id"] = new
    content["annotations"] = [one(1, image_id=7, category_id=1)]
    files[1].write_text(json.dumps(content))
    manifest = Manifest.from_coco(files, progress=False)
    assert manifest.columns["image_id"].tolist() == [0, 1, 7, 3] and not manifest.omissions


def test_ids_that_are_text_and_repeat_are_refused(folder):
    files = two_files(folder, ids=lambda number: f"x{number}")
    with pytest.raises(ManifestError, match="image ids are text, and another set has some"):
        Manifest.from_coco(files, progress=False)
    with pytest.raises(ConfigError, match="empty list"):
        Manifest.from_coco([])
    with pytest.raises(ConfigError, match="source is"):
        Manifest.from_coco(3)


def test_a_panoptic_file_is_refused_by_name(folder):
    segments = [{"id": 3, "category_id": 1, "bbox": [1, 2, 3, 4], "area": 3, "iscrowd": 0}]
    file = written(folder, [{"image_id": 9, "file_name": "0.png", "segments_info": segments}])
    with pytest.raises(ManifestError, match=r"a panoptic file.*give the file of instances"):
        Manifest.from_coco(file, progress=False)


def test_files_are_named_by_their_addresses_as_in_lvis(folder):
    url = f"http://images.org/{folder.name}/0.jpg"
    file = written(folder, [one()], images=[{"id": 9, "coco_url": url}])
    manifest = Manifest.from_coco(file, root=folder.parent, progress=False, strict=True)
    assert len(manifest) == 1 and manifest.name(0).endswith("/0.jpg")
    (note,) = [each for each in manifest.omissions if "coco_url" in each.kind]
    assert (note.unit, note.number) == ("note", 1)
    file = written(folder, [one()], images=[{"id": 9, "coco_url": 7}])
    with pytest.raises(ManifestError, match="needs an id and a file_name"):
        Manifest.from_coco(file, progress=False)
