import hashlib
import json

import numpy as np
import pytest
from PIL import Image

import dali_pipes as dp
from dali_pipes.tools.demo.objects import COLORS, SHAPES, draw_objects, make_demo_objects

RNG = np.random.default_rng


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    return make_demo_objects(tmp_path_factory.mktemp("demo_objects"), train=30, val=3)


def annotated(demo, split="train"):
    """The file of each image, and its annotations."""
    content = json.loads((demo / f"{split}.json").read_text())
    for image in content["images"]:
        yield image, [each for each in content["annotations"] if each["image_id"] == image["id"]]


def painted(annotation):
    (height, width), counts = (
        annotation["segmentation"]["size"],
        annotation["segmentation"]["counts"],
    )
    return np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(width, height).T


def digest(folder):
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file()
    }


@pytest.mark.slow
def test_boxes_areas_and_keypoints_are_those_of_the_painted_pixels(demo):
    count = set()
    for image, annotations in annotated(demo):
        count.add(len(annotations))
        for each in annotations:
            shape = painted(each)
            assert (
                shape.shape == (image["height"], image["width"])
                and each["area"] == shape.sum() > 20
            )
            left, top, width, height = each["bbox"]
            rows, columns = np.flatnonzero(shape.any(axis=1)), np.flatnonzero(shape.any(axis=0))
            assert (left, top, left + width - 1, top + height - 1) == (
                columns[0],
                rows[0],
                columns[-1],
                rows[-1],
            )
            assert (
                min(left, top) > 0
                and left + width < image["width"]
                and top + height < image["height"]
            )
            points = np.array(each["keypoints"]).reshape(4, 3)
            assert [points[0, 0], points[1, 1], points[2, 0], points[3, 1]] == [
                columns[0],
                rows[0],
                columns[-1],
                rows[-1],
            ]
            assert all(shape[y, x] for x, y, _ in points) and set(points[:, 2].tolist()) <= {1, 2}
    assert {1, 2, 3, 4} <= count <= {1, 2, 3, 4, 5}


def test_masks_have_what_lies_on_top(demo):
    hidden = 0
    for image, annotations in annotated(demo):
        expected = np.zeros((image["height"], image["width"]), np.uint8)
        for each in annotations:
            expected[painted(each)] = each["category_id"]
        with Image.open(demo / "masks/train" / image["file_name"].replace(".jpg", ".png")) as mask:
            assert mask.mode == "L" and np.array_equal(np.asarray(mask), expected)
        for place, each in enumerate(annotations):
            over = [painted(later) for later in annotations[place + 1 :]]
            for x, y, visibility in np.array(each["keypoints"]).reshape(4, 3):
                assert visibility == (1 if any(shape[y, x] for shape in over) else 2)
                hidden += visibility == 1
    assert hidden


def test_captions_are_true_of_the_pixels(demo):
    captions = json.loads((demo / "captions_train.json").read_text())["annotations"]
    names = ["background", *sorted(SHAPES)]
    for (image, annotations), said in zip(annotated(demo), captions, strict=True):
        assert said["image_id"] == image["id"]
        with Image.open(demo / "images/train" / image["file_name"]) as opened:
            pixels = np.asarray(opened, np.float32)
        for place, each in enumerate(annotations):
            seen = painted(each)
            for later in annotations[place + 1 :]:
                seen = seen & ~painted(later)
            middle = np.median(pixels[seen], axis=0)
            color = min(COLORS, key=lambda name, middle=middle: np.abs(middle - COLORS[name]).sum())
            assert f"{color} {names[each['category_id']]}" in said["caption"]
        if len(annotations) > 1:
            (top, left), (other_top, other_left) = (
                np.argwhere(painted(each)).mean(axis=0) for each in annotations[:2]
            )
            true = {
                "left of": left < other_left,
                "right of": left > other_left,
                "above": top < other_top,
                "below": top > other_top,
            }
            assert [true[place] for place in true if f" {place} a" in said["caption"]] == [True]


@pytest.mark.few
@pytest.mark.parametrize("seed", range(20))
def test_every_shape_is_seen(seed):
    picture = draw_objects(RNG(seed))
    assert len(picture.shapes) == len(picture.names) == len(set(picture.colors))
    assert set(np.unique(picture.visible)) >= set(range(1, len(picture.shapes) + 1))


@pytest.mark.slow
def test_two_calls_write_the_same_bytes_and_a_third_one_nothing(demo, tmp_path):
    again = make_demo_objects(tmp_path / "again", train=30, val=3)
    assert digest(again) == digest(demo) and len(digest(again)) == 2 * 33 + 5
    stamps = {file: file.stat().st_mtime_ns for file in again.rglob("*")}
    assert make_demo_objects(again, train=30, val=3) == again
    assert {file: file.stat().st_mtime_ns for file in again.rglob("*")} == stamps
    smaller = digest(make_demo_objects(again, train=2, val=1))
    assert len(smaller) == 2 * 3 + 5 and all(
        digest(demo)[name] == smaller[name] for name in smaller if name.startswith("images/")
    )
    assert set(smaller.values()).isdisjoint(
        digest(make_demo_objects(tmp_path / "other", train=2, val=1, seed=1)).values()
    )


@pytest.mark.parametrize("name", ["images/1.jpg", "train.json"])
def test_files_of_somebody_elses_are_left_alone(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"precious")
    with pytest.raises(dp.ManifestError, match="is not a demo set"):
        make_demo_objects(tmp_path, train=1, val=1)
    assert digest(tmp_path) == {name: hashlib.sha256(b"precious").hexdigest()}
