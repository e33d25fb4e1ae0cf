"""Boxes, keypoints, outlines, masks and texts: of COCO's files, tables and folders of masks."""

import json
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import dali_pipes as dp

from .pictures import Cases, mask, opened, picture, put

CATEGORIES = [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}]
POINTS = ["nose", "left_eye", "right_eye"]
RUNS = {"size": [32, 40], "counts": [100, 20, 32 * 40 - 120]}
from_masks = partial(dp.Manifest.from_masks, progress=False)


def write() -> Cases:
    # the picture 6 is turned, and 1 has another size than the others
    put({f"i/{n}.jpg": picture(n, turned=6 if n == 6 else 1) for n in range(7) if n != 1})
    put({"i/1.jpg": picture(1, size=(50, 30))})
    _write_masks()
    return _cases_of_coco() | _cases_of_tables() | _cases_of_masks()


def _image(number: int, **changed: Any) -> dict[str, Any]:
    width, height = (50, 30) if number == 1 else (40, 32)
    image = {"id": 10 + number, "file_name": f"i/{number}.jpg", "width": width, "height": height}
    return {name: value for name, value in (image | changed).items() if value is not None}


def _object(number: int, image: Any, **changed: Any) -> dict[str, Any]:
    one = {"id": number, "image_id": image, "category_id": 7, "bbox": [1, 2, 10, 20]}
    return one | changed


def _coco(name: str, images: Any, objects: Any, kinds: Any = CATEGORIES) -> None:
    content = {"images": images, "annotations": objects, "categories": kinds}
    put({f"{name}.json": json.dumps({key: x for key, x in content.items() if x is not None})})


def _write_coco() -> None:
    images = [_image(n) for n in (2, 0, 1)]
    triangle = [[1, 1, 9, 1, 9, 9.5]]
    _coco(
        "objects",
        images,
        [
            _object(1, 10),
            _object(2, 11, category_id=3, bbox=[-5.5, 0, 20, 4], area=44.5, iscrowd=0),
            _object(3, 10, category_id=3, iscrowd=1, segmentation=RUNS),
            _object(4, 12, segmentation=triangle, area=36),
        ],
    )
    _coco(
        "bad objects",
        [_image(n) for n in (0, 2, 3, 4)],
        [
            _object(1, 10),
            _object(2, 10, bbox=[1, 2, 0, 4]),
            _object(3, 10, bbox=[1, 2, 3]),
            _object(4, 10, bbox=[99, 2, 3, 4]),
            _object(5, 10, bbox=[0.1, 0.2, 0.5, 0.5]),
            _object(6, 10, category_id=9),
            _object(7, 10, iscrowd=2),
            _object(8, 12, area=-1),
            _object(9, 12, segmentation=[[1, 2, 3, 4]]),
            _object(10, 12, segmentation=RUNS | {"size": [3, 4]}),
            _object(11, 99),
            _object(12, 13, bbox=["1", "2", "10", "20"], category_id="7"),
            _object(13, 13, bbox=None),
            _object(14, 14, area=None, iscrowd=None),
            "no object",
        ],
    )
    people = {"id": 1, "name": "person", "keypoints": POINTS, "skeleton": [[1, 2]]}
    points = [1, 2, 2, 3, 4, 1, 0, 0, 0]
    _coco(
        "keypoints",
        [_image(0), _image(2)],
        [
            _object(1, 10, category_id=1, keypoints=points),
            _object(2, 10, keypoints=points),
            _object(3, 12, category_id=1, keypoints=[1, 2]),
            _object(4, 12, category_id=1),
        ],
        [*CATEGORIES, people],
    )
    _coco(
        "keypoints of two kinds",
        [_image(0)],
        [_object(1, 10)],
        [people, {"id": 7, "name": "dog", "keypoints": ["tail"]}],
    )
    _coco(
        "captions",
        [_image(0), _image(2)],
        [{"id": n, "image_id": 12, "caption": text} for n, text in enumerate(("ein ü", "two"))],
        None,
    )
    _coco("turned, sizes stored", [_image(0), _image(6)], [_object(1, 10), _object(2, 16)])
    upright = _image(6, width=32, height=40)
    _coco("turned, sizes upright", [_image(0), upright], [_object(1, 10), _object(2, 16)])
    unsized = _image(6, width=None, height=None)
    _coco("turned, no sizes", [_image(0), unsized], [_object(1, 10), _object(2, 16)])
    _coco(
        "files",
        [
            _image(0, file_name=" i/0.jpg"),
            _image(2, file_name="i\\2.jpg"),
            _image(3, width=99),
            _image(4, file_name="i/9.jpg"),
            _image(5, width=None),
        ],
        [_object(n, 10 + n) for n in (0, 2, 3, 4, 5)],
    )
    _coco("ids of text", [_image(0, id="a"), _image(2, id="01")], [_object(1, "a")])
    _coco("no file there", [_image(8), _image(9)], [_object(1, 18)])
    _coco("an id twice", [_image(0), _image(2, id=10)], [_object(1, 10)])
    _coco("a name twice", [_image(0)], [_object(1, 10)], [*CATEGORIES, {"id": 8, "name": "dog"}])
    _coco("a file outside", [_image(0, file_name="../i/0.jpg")], [_object(1, 10)])
    _coco("all objects bad", [_image(0)], [_object(1, 10, bbox=[1, 2, -3, 4])])
    _coco("no annotations", [_image(0)], None)
    _coco("no objects", [_image(0)], [])
    _coco("no images", None, [])
    put({"half.json": '{"images": [', "list.json": "[1]", "elsewhere/objects.json": ""})
    _coco("elsewhere/objects", [_image(0, file_name="0.jpg")], [_object(1, 10)])


def _cases_of_coco() -> Cases:
    _write_coco()
    coco = partial(dp.Manifest.from_coco, progress=False)
    names = (
        *("objects", "bad objects", "keypoints", "keypoints of two kinds", "captions"),
        *("turned, sizes stored", "turned, sizes upright", "turned, no sizes", "files"),
        *("ids of text", "no file there", "an id twice", "a name twice", "a file outside"),
        *("all objects bad", "no annotations", "no objects", "no images", "half", "list"),
    )
    upright = {"annotated": "upright"}
    return {
        **{f"COCO, {name}": partial(opened, f"{name}.json") for name in names},
        **{
            f"COCO, {name}, annotated upright": partial(coco, f"{name}.json", **upright)
            for name in names
            if name.startswith("turned")
        },
        "COCO, turned, annotated as stored": lambda: coco(
            "turned, no sizes.json", annotated="stored"
        ),
        "COCO, bad objects are problems": lambda: coco("bad objects.json", bad_objects="problem"),
        "COCO, bad objects, strict": lambda: coco("bad objects.json", strict=True),
        "COCO, keypoints, pairs named": lambda: coco(
            "keypoints.json", flip_pairs=[["nose", "left_eye"]]
        ),
        "COCO, keypoints, pairs of other names": lambda: coco(
            "keypoints.json", flip_pairs=[["nose", "ear"]]
        ),
        "COCO, images elsewhere": lambda: opened("elsewhere/objects.json", images="i"),
        "COCO, images not where they are said to be": lambda: opened("elsewhere/objects.json"),
        "COCO, as classes= orders them": lambda: opened("objects.json", classes=["dog", "cat"]),
        "COCO, classes= lacks one": lambda: opened("objects.json", classes=["dog"]),
        "COCO, an unknown annotation": lambda: coco("objects.json", annotated="sideways"),
        "COCO that is not there": lambda: opened("nowhere.json"),
    }


def _cases_of_tables() -> Cases:
    columns = {
        "path": ["i/0.jpg", "i/1.jpg", "i/6.jpg"],
        "bbox": [[[0.1, 0.25, 0.5, 0.5], [0, 0, 1, 1]], [], [[0.5, 0.5, 0.25, 0.25]]],
        "flat": [[1.0, 2, 11, 22, 1, 2, 1, 2], None, [5.0, 6, 7, 8]],
        "kind": [["dog", "cat"], [], ["dog"]],
        "number": [[1, 0], [], [2]],
        "size": [[5.0, -1], [], [4.0]],
        "points": [[1.0, 2, 2, 3, 4, 0], [], [5.0, 6, 1]],
        "mask": ["m/0.png", "m/1.png", "m/6.png"],
        "text": ["ein ü", None, ""],
        "label": [1, 0, 1],
        "short": [["dog"], [], ["dog"]],
    }
    pq.write_table(pa.table(columns), "objects.parquet")
    put({f"m/{n}.png": mask(1, size=(50, 30) if n == 1 else (40, 32)) for n in (0, 1, 6)})
    put({"masks.csv": "path,mask,text\ni/0.jpg,m/0.png,one\ni/2.jpg,m/9.png,\ni/1.jpg,m/0.png,x\n"})

    def table(**targets: Any):
        return lambda: opened("objects.parquet", targets=dp.Targets(**targets))

    relative = {"boxes": "bbox", "box_labels": "kind", "box_format": "relative_xywh"}
    flat = {"boxes": "flat", "box_labels": "number"}
    points = {"keypoints": "points", "keypoint_names": ["tip"]}
    return {
        "a table of boxes in fractions": table(**relative),
        "a table of boxes in fractions, annotated upright": table(**relative, annotated="upright"),
        "a table of boxes, class numbers": table(**flat),
        "a table of boxes, bad ones are problems": table(**flat, bad_objects="problem"),
        "a table of boxes around centers": table(**flat, box_format="cxcywh"),
        "a table of boxes, areas, keypoints, masks and texts": table(
            **flat, **points, areas="size", mask="mask", text="text"
        ),
        "a table of boxes without labels": table(boxes="flat"),
        "a table of boxes, too few labels": table(boxes="flat", box_labels="short"),
        "a table of boxes, a column that is not there": table(**flat, text="caption"),
        "a table of boxes in an unknown form": table(**flat, box_format="polar"),
        "a table of labels and texts": table(text="text"),
        "a table of masks": lambda: opened(
            "masks.csv", targets=dp.Targets(mask="mask", text="text", mask_values={1: 5})
        ),
    }


def _write_masks() -> None:
    put({f"photos/{n}.jpg": picture(n) for n in range(8)})
    put(
        {
            "labels/0.png": mask(1),
            "labels/1.png": mask(3, mode="P"),
            "labels/2.png": mask(1, size=(32, 40)),
            "labels/3.png": picture(3, "PNG"),
            "labels/4.jpg": mask(1, form="JPEG"),
            "labels/5.png": mask(1, mode="I;16"),
            "labels/6.png": "no image",
            "labels/9.png": mask(1),
            "black/0.png": mask(255),
            "black/1.png": mask(255),
            "few/0.jpg": picture(0),
            "few/1.jpg": picture(1),
            "turned/0.jpg": picture(0, turned=6),
            "stored/0.png": mask(1),
            "upright/0.png": mask(1, size=(32, 40)),
            "city/train/ulm/u_1_leftImg8bit.png": picture(1, "PNG"),
            "fine/train/ulm/u_1_gtFine_labelIds.png": mask(1),
            "fine/train/ulm/u_1_gtFine_color.png": picture(2, "PNG"),
            "both/train/0.jpg": picture(0),
            "both/val/0.jpg": picture(0),
            "both masks/train/0.png": mask(1),
            "both masks/val/0.png": mask(1),
        }
    )


def _cases_of_masks() -> Cases:
    def masks(images: str, labels: str, **options: Any):
        return lambda: from_masks(images, labels, **options)

    pair, names = ("photos", "labels"), ["ground", "tree"]
    return {
        "masks": masks(*pair),
        "masks, those without are skipped": masks(*pair, missing="skip"),
        "masks of classes": masks(*pair, classes=names),
        "masks of more classes": masks(*pair, classes=[*names, "sky", "sea"], missing="skip"),
        "masks, strict": masks(*pair, strict=True),
        "masks, an unknown way": masks(*pair, missing="ignore"),
        "masks of black and white": masks("few", "black", classes=names),
        "masks of black and white, values replaced": masks(
            "few", "black", classes=names, mask_values={255: 1}
        ),
        "masks, bad replacements": masks("few", "black", mask_values={"a": 1}),
        "masks of a turned picture": masks("turned", "stored"),
        "masks of a turned picture, annotated upright": masks(
            "turned", "upright", annotated="upright"
        ),
        "masks of another size": masks("turned", "upright"),
        "masks of Cityscapes": masks("city/train", "fine/train"),
        "masks of several splits": masks("both", "both masks"),
        "masks that are not there": masks("photos", "nowhere"),
        "masks of no image": masks("few", "photos"),
    }
