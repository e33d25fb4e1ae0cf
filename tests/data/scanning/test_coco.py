"""COCO's files: what is in them, and one line for each thing that is wrong with them."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from dali_pipes import ConfigError, Manifest, ManifestError
from dali_pipes.data.outlines import rasterize

CATEGORIES = [{"id": 7, "name": "dog"}, {"id": 2, "name": "person", "keypoints": ["nose", "left_eye", "right_eye"]}]


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        Image.new("RGB", (40, 30)).save(tmp_path / f"{number}.jpg")
    return tmp_path


def written(folder, objects, kinds=CATEGORIES, **changed):
    images = [{"id": 9 - number, "file_name": f"{number}.jpg", "height": 30, "width": 40} for number in range(3)]
    content = {"images": images, "annotations": objects, "categories": kinds} | changed
    (folder / "a.json").write_text(json.dumps(content))
    return folder / "a.json"


def one(number=1, **changed):
    return {"id": number, "image_id": 9, "category_id": 7, "bbox": [1, 2, 10, 20]} | changed


def test_objects_are_those_of_the_file(folder):
    full = one(2, category_id=2, area=5.5, iscrowd=1, keypoints=[1, 2, 2, 3, 4, 1, 0, 0, 0], segmentation=[[0, 0, 8, 0, 8, 8]])
    manifest = Manifest.open(written(folder, [one(1, image_id=8), full, one(3, bbox=[-5.5, 0, 20, 4])]), progress=False)
    assert manifest.classes == ["person", "dog"] and manifest.task == "multilabel" and not manifest.problems
    assert manifest.labels.tolist() == [[0, 1], [1, -1], [-1, -1]]
    assert manifest.keypoints == (["nose", "left_eye", "right_eye"], [0, 2, 1])
    objects = manifest.take_objects(np.array([1, 0, 2]))
    assert objects.counts.tolist() == [1, 2, 0] and objects.labels.tolist() == [1, 0, 1]
    assert objects.boxes.tolist() == [[1, 2, 11, 22], [1, 2, 11, 22], [-5.5, 0, 14.5, 4]]
    assert objects.areas.tolist() == [200, 5.5, 80] and objects.crowd.tolist() == [False, True, False]
    assert objects.keypoints[1].tolist() == [[1, 2, 2], [3, 4, 1], [0, 0, 0]] and not objects.keypoints[[0, 2]].any()
    first, second = json.loads(manifest.take_texts("outlines", np.array([0]))[0])
    assert rasterize(first, 30, 40).any() and not rasterize(second, 30, 40).any()


def test_the_first_caption_is_the_text(folder):
    captions = [{"id": 1, "image_id": 8, "caption": "ein Hund ü"}, {"id": 2, "image_id": 8, "caption": "a dog"}]
    manifest = Manifest.from_coco(written(folder, captions, []), progress=False)
    assert manifest.take_texts("text", np.arange(3)) == ["", "ein Hund ü", ""]
    assert manifest.take_objects(np.arange(3)) is None and manifest.classes == []


BAD = [
    (one(bbox=[1, 2, float("nan"), 4]), "annotation 1: its box is not finite (1, 2, nan, 4)"),
    (one(bbox=[1, float("inf"), 3, 4]), "not finite"),
    (one(bbox=[1, 2, 0, 4]), "empty or inverted"),
    (one(bbox=[1, 2, 3, -4]), "empty or inverted"),
    (one(bbox=[40, 2, 3, 4]), "outside the image"),
    (one(bbox=[30, 2, 1e-9, 4]), "empty or inverted"),  # as float32
    (one(bbox=[1, 2, 3]), "no bbox of four numbers"),
    (one(bbox=[1, 2, "3", None]), "no bbox of four numbers"),
    (one(bbox=[1, 2, 10**400, 3]), "no bbox of four numbers"),
    ({"id": 1, "image_id": 9}, "no bbox of four numbers"),
    (one(category_id=3), "its category_id 3 is none"),
    (one(category_id=[7]), "its category_id [7] is none"),
    (one(area="big"), "its area is not a number"),
    (one(category_id=True), "its category_id True is none"),
    (one(area=float("nan")), "its area is negative or not finite (nan)"),
    (one(area=-1.5), "its area is negative or not finite (-1.5)"),
    (one(area=1e39), "its area is negative or not finite (1e+39)"),  # as float32
    (one(iscrowd="0"), "its iscrowd is '0', neither 0 nor 1"),
    (one(iscrowd=2), "its iscrowd is 2, neither 0 nor 1"),
    (one(category_id=2, keypoints=[1, 2, 2]), "not 3 times x, y and visibility"),
    (one(category_id=2, keypoints=[1, 2, 2, 3, float("nan"), 2, 1, 2, 2]), "its keypoint 2 is not finite"),
    (one(segmentation=[[1, 1, 2, 2]]), "a polygon of 4 numbers"),
    (one(segmentation={"size": [30, 41], "counts": [30 * 41]}), "run lengths of a mask of [30, 41]"),
]


@pytest.mark.parametrize(("bad", "line"), BAD)
def test_a_bad_object_is_left_out_and_listed(folder, bad, line):
    kinds = [*CATEGORIES, {"id": 1, "name": "cat"}]
    file = written(folder, [one(4), bad, one(5, image_id=8)], kinds)
    manifest = Manifest.from_coco(file, progress=False)
    ((name, why),) = manifest.dropped
    assert name == str(folder / "0.jpg") and why.startswith("annotation 1: ") and line in why
    assert manifest.take_objects(np.arange(3)).counts.tolist() == [1, 1, 0] and not manifest.problems
    strict = Manifest.from_coco(file, bad_objects="problem", progress=False)
    assert strict.problems == [("0.jpg", why)] and len(strict) == 2 and not strict.dropped


@pytest.mark.parametrize(
    ("stray", "line"),
    [
        (one(image_id=99), "annotation 1: its image_id 99 is none"),
        ({"id": 1}, "annotation 1: its image_id None is none"),
        (one(image_id=[9]), "annotation 1: its image_id [9] is none"),
        (one(image_id=True), "annotation 1: its image_id True is none"),
        ([9], "annotations[0]: it is no JSON object; correct it or remove it"),
        (9, "annotations[0]: it is no JSON object; correct it or remove it"),
    ],
)
def test_an_annotation_of_no_image_is_listed(folder, stray, line):
    images = [{"id": number, "file_name": f"{number % 3}.jpg"} for number in (9, 1)]
    manifest = Manifest.from_coco(written(folder, [stray, one(4)], images=images), progress=False)
    ((name, why),) = manifest.problems
    assert name == "a.json" and why.startswith(line) and len(manifest) == 2
    assert manifest.take_objects(np.arange(2)).counts.tolist() == [1, 0]


def test_an_image_of_another_size_is_a_problem(folder):
    images = [{"id": 9, "file_name": "0.jpg", "height": 40, "width": 30}, {"id": 8, "file_name": "gone.jpg"}]
    images += [{"id": 7, "file_name": "2.jpg"}]
    manifest = Manifest.from_coco(written(folder, [one(), one(2, image_id=7)], images=images), progress=False)
    problems = dict(manifest.problems)
    assert problems["0.jpg"].startswith("a.json has it as 30 × 40 pixels, and the file has 40 × 30")
    assert problems["gone.jpg"] == "no such file or directory" and len(manifest) == 1


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"images": []}, "needs the lists images"),
        ({"annotations": None}, "needs the lists images"),
        ({"images": [{"id": 1}]}, r"images\[0\] needs an id and a file_name"),
        ({"images": [{"id": 1, "file_name": "/etc/x.jpg"}]}, "relative to the folder"),
        ({"images": [{"id": 1, "file_name": "0.jpg"}, {"id": 1, "file_name": "1.jpg"}]}, "has the id 1 of another"),
        ({"images": [{"id": True, "file_name": "0.jpg"}]}, r"images\[0\] needs an id"),
        ({"images": [{"id": 1, "file_name": "a/../../x.jpg"}]}, "'a/../../x.jpg', outside the folder of the images"),
        ({"images": [{"id": each, "file_name": "0.jpg"} for each in (1, 2)]}, r"images\[1\] has the file_name '0.jpg' of another"),
        (
            {"categories": [{"id": each, "name": "cat"} for each in (1, 2)]},
            r"categories\[1\] has the name 'cat' of another one; make",
        ),
        ({"images": [{"id": 1, "file_name": "gone.jpg"}]}, "give the folder that they are in as root"),
        ({"categories": [{"id": 1}]}, r"categories\[0\] needs an id and a name"),
        ({"categories": [*CATEGORIES, {"id": 8, "name": "cat", "keypoints": ["tail"]}]}, "different keypoints"),
        ({"categories": [{"id": 8, "name": "cat", "keypoints": ["tail", "tail"]}]}, "not all different"),
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
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["\ud800", "", "/", "\0", "0.jpg", 10**400]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["id", "size", "counts"]), inner, max_size=3),
    max_leaves=6,
)


@given(st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_in_the_file_it_is_one_line_or_a_manifest(folder, data):
    full = one(category_id=2, area=5.5, iscrowd=1, keypoints=[1] * 9, segmentation=[[0, 0, 8, 0, 8, 8]])
    packed = one(2, segmentation={"size": [30, 40], "counts": [1000, 200]})
    content = json.loads(written(folder, [full, packed, {"image_id": 9, "caption": "c"}]).read_text())
    place = content
    while isinstance(place, (list, dict)) and place:
        key = data.draw(st.sampled_from(range(len(place)) if isinstance(place, list) else sorted(place)))
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
    texts = manifest.take_texts("outlines", np.arange(len(manifest))) if manifest.has_target("outlines") else []
    for text, count in zip(texts, manifest.take_objects(np.arange(len(manifest))).counts if texts else [], strict=True):
        assert [rasterize(outline, 30, 40).shape for outline in json.loads(text)] == [(30, 40)] * count
