"""Data sets of other programs: each is named; what is ours is read, however it is called."""

import gzip
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dali_pipes import Manifest, ManifestError
from dali_pipes.data.sources import layouts
from dali_pipes.data.sources.layouts import refuse_other_objects


def encoded(kind="JPEG"):
    file = io.BytesIO()
    Image.new("RGB", (8, 6)).save(file, kind)
    return file.getvalue()


JPEG, PNG = encoded(), encoded("PNG")
BOX = "0 0.5 0.5 0.25 0.25\n"
COCO = json.dumps(
    {"images": [{"id": 1, "file_name": "1.jpg"}], "annotations": [], "categories": []}
)


def put(root, files):
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def refusal(source, read=Manifest.open):
    with pytest.raises(ManifestError) as caught:
        read(source, progress=False)
    message = str(caught.value)
    # how long a folder's path is does not count
    short = message.replace(str(Path(source).parent), "")
    assert "\n" not in message and message.isprintable() and len(short) < 200
    return message


# the files of a folder, and what it is, which docs/inputs.md has advice for
LAYOUTS = {
    "yolo": ({"images/1.jpg": JPEG, "labels/1.txt": BOX}, "YOLO's layout, with .txt files in lab"),
    "yolo by split": (
        {"train/images/1.jpg": JPEG, "train/labels/1.txt": BOX, "valid/images/1.jpg": JPEG},
        "/train: is YOLO's layout",
    ),
    "yolo by split below": (
        {"images/train/1.jpg": JPEG, "labels/train/1.txt": BOX, "data.yaml": "nc: 1"},
        "YOLO's layout",
    ),
    "darknet": ({"data/1.jpg": JPEG, "data/1.txt": BOX, "obj.names": "a"}, "Darknet"),
    "voc": ({"VOC2012/Annotations/1.xml": "<a/>", "VOC2012/JPEGImages/1.jpg": JPEG}, "Pascal VOC"),
    "voc by year": (
        {"VOCdevkit/VOC2007/Annotations/1.xml": "", "VOCdevkit/VOC2007/JPEGImages/1.jpg": JPEG},
        "/VOCdevkit/VOC2007: is Pascal VOC",
    ),
    "coco": ({"annotations/a.json": COCO, "train2017/1.jpg": JPEG}, "COCO's layout"),
    "masks": ({"images/1.jpg": JPEG, "masks/1.png": PNG}, "images and masks, with .png files in m"),
    "pets": (
        {"images/a.jpg": JPEG, "annotations/trimaps/a.png": PNG, "annotations/xmls/a.xml": ""},
        "images and masks",
    ),
    "cityscapes": (
        {"leftImg8bit/train/a/1.png": PNG, "gtFine/train/a/2.png": PNG},
        "images and masks.* in gtFine",
    ),
    "camvid": ({"train/1.png": PNG, "trainannot/1.png": PNG}, "images and masks.* in trainannot"),
    "lmdb": ({"data.mdb": bytes(64), "lock.mdb": b""}, "LMDB"),
    "lmdb by split": ({"train_lmdb/data.mdb": bytes(64)}, "train_lmdb: is an LMDB"),
    "mds": ({"train/index.json": "{}", "train/shard.00000.mds.zstd": b"x"}, "/train: is Mosaic"),
    "litdata": ({"index.json": "{}", "chunk-0-0.bin": b"x"}, "litData"),
    "save_to_disk": ({"state.json": "{}", "data-00000-of-00001.arrow": b"x"}, "save_to_disk"),
    "save_to_disk of splits": ({"dataset_dict.json": "{}", "train/state.json": "{}"}, "save_to"),
    "cifar": ({"data_batch_1": b"\x80", "test_batch": b"\x80"}, "CIFAR"),
    "cifar below": ({"cifar-100-python/train": b"\x80"}, "CIFAR"),
    "mnist": ({"raw/train-images-idx3-ubyte": bytes(16)}, "MNIST"),
    "archives": ({"train.zip": b"PK", "val.zip": b"PK"}, "train.zip: is a compressed archive"),
}
NONE = "no class folders and no images in it; put"
FLAT = {
    "flat": ({"1.jpg": JPEG}, "no class folders in it, only images side by side.*with_labels=Fals"),
    "a table alone": ({"train.csv": "path,label\n1.jpg,0"}, NONE),
    "empty": ({".DS_Store": b"x"}, NONE),
}
ROOTS = LAYOUTS | FLAT


@pytest.mark.parametrize("kind", ROOTS)
@pytest.mark.parametrize("read", [Manifest.open, Manifest.scan], ids=["open", "scan"])
def test_a_folder_of_another_program_is_named(kind, read, tmp_path):
    files, message = ROOTS[kind]
    assert re.search(message, refusal(put(tmp_path / "set", files), read))


@pytest.mark.parametrize("kind", LAYOUTS)
def test_and_so_it_is_in_an_object_store(kind):
    files, message = LAYOUTS[kind]
    with pytest.raises(ManifestError, match=message):
        refuse_other_objects("s3://b/set", files)


def test_the_images_of_yolo_are_named(tmp_path):
    put(tmp_path, ROOTS["yolo by split below"][0])
    assert "a part of YOLO's layout" in refusal(tmp_path / "images")
    assert "no class folders" in refusal(tmp_path / "images" / "train")


NOISE = np.random.default_rng(0).bytes(3000)
FILES = {
    "x.beton": "FFCV",
    "x.h5": "HDF5",
    "x.zip": "archive",
    "x.tar.gz": "compressed tar",
    "x.tgz": "compressed tar",
    "x.npz": "array",
    "data.mdb": "LMDB",
    "data.sqlite": "database",
    "shard.00000.mds": "Mosaic",
    "chunk-0-0.bin": "litData",
    "data_batch_1.bin": "CIFAR",
    "train-images-idx3-ubyte.gz": "MNIST",
    "x.rec": "RecordIO",
    "x.xlsx": "spreadsheet",
    "1.JPG": "one image",
    "photo.heic": "one image",
    "1.xml": "Pascal VOC",
    "data.yaml": "YOLO",
    "a.mp4": "video",
    "x.jsonl": "JSON lines",
    "state.json": "save_to_disk",
}
# refused by the readers of tables and of COCO's form
CONTENTS = {
    "x.csv": (b"PK\3\4", "archive"),
    "y.csv": (NOISE, "is not text in utf-8"),
    "x.unknown": (NOISE, "is not text in utf-8"),
    "no_suffix": (JPEG, "not text"),
    "table": (b"PAR1" + NOISE, "end its name in .parquet"),
    "list.txt": ("a b.jpg 0\nb.jpg 1\n", "not a table with the columns path"),
    "1.txt": (BOX * 2, "not a table with the columns path"),
    "list.json": ('[{"image": "a.jpg"}]', "not COCO's form"),
    "map.json": ('{"a.jpg": 0}', "not COCO's form"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_kind_is_named(name, tmp_path):
    found = refusal(put(tmp_path, {name: NOISE}) / name)
    assert found.startswith(f"{tmp_path}/{name}: is ") and FILES[name] in found


@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_of_another_content_is_refused(name, tmp_path):
    content, message = CONTENTS[name]
    found = refusal(put(tmp_path, {name: content}) / name)
    assert found.startswith(f"{tmp_path}/{name}: ") and message in found


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("pipe:curl -s http://x/y.tar", "from a command"),
        ("s3:/bucket/train", "write s3://bucket/train"),
        ("S3://bucket/train", "write s3://bucket/train"),
        ("gs://a/{0..1}.tar::gs://b/{0..1}.tar", "several URLs.*Manifest.concat"),
        ("/no/such/dir", "no such folder or file; / is there"),
    ],
)
def test_what_is_no_path_says_what_it_is(source, message):
    assert re.search(message, refusal(source))


def test_hugging_faces_hub_needs_its_package(monkeypatch):
    monkeypatch.setattr(layouts, "find_spec", lambda name: None)
    assert "pip install huggingface_hub" in refusal("hf://datasets/a/b/data")


def test_the_home_folder_and_urls_of_local_files(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    put(tmp_path, {"set/a/1.jpg": JPEG, "my table.csv": "path,label\nset/a/1.jpg,a"})
    assert Manifest.open("~/set", progress=False).root == tmp_path / "set"
    assert Manifest.scan(Path("~/set"), progress=False).root == tmp_path / "set"
    assert len(Manifest.open(f"file://{tmp_path}/my%20table.csv", images="~", progress=False)) == 1
    assert len(Manifest.open(f"file:{tmp_path}/set", progress=False)) == 1
    put(tmp_path, ROOTS["mds"][0])
    assert "Mosaic" in refusal(f"file://{tmp_path}")


OURS = {
    "classes called images and labels": {"images/1.jpg": JPEG, "labels/2.jpg": JPEG},
    "with notes": {"images/1.jpg": JPEG, "labels/2.jpg": JPEG, "labels/notes.txt": "x"},
    "classes called annotations": {"annotations/1.jpg": JPEG, "images/2.jpg": JPEG},
    "masks and faces": {
        "mask/1.jpg": JPEG,
        "no_mask/1.jpg": JPEG,
        "face/1.jpg": JPEG,
        "face_mask/1.png": PNG,
    },
    "images and masks as classes of photos": {"image/1.jpg": JPEG, "mask/1.jpg": JPEG},
    "other files beside": {
        "a/1.jpg": JPEG,
        "a/1.txt": BOX,
        "b/1.jpg": JPEG,
        "data.yaml": "x",
        "train.zip": b"PK",
        "index.json": "{}",
    },
    "classes called like parts": {"annot/1.png": PNG, "gt/2.png": PNG},
    "a photo of that name": {"a/x.mds.jpg": JPEG, "b/1.jpg": JPEG},
    "classes of trains": {"train/1.jpg": JPEG, "truck/1.jpg": JPEG, "truck/index.json": "{}"},
    "a class with boxes": {"a/images/1.jpg": JPEG, "b/1.jpg": JPEG, "b/1.xml": "x"},
}


@pytest.mark.parametrize("notes", ["annotations/trainval.txt", "masks/README.txt", "gt/list.json"])
def test_class_folders_that_are_named_are_read_beside_notes(tmp_path, notes):
    put(tmp_path, {"images/a/1.jpg": JPEG, "images/b/2.jpg": JPEG, notes: "1\n2\n"})
    assert Manifest.open(tmp_path / "images", progress=False).classes == ["a", "b"]


@pytest.mark.parametrize("kind", OURS)
def test_class_folders_are_read_whatever_they_are_called(kind, tmp_path):
    put(tmp_path, OURS[kind])
    images = [name for name in OURS[kind] if name.endswith((".jpg", ".png"))]
    assert len(Manifest.open(tmp_path, progress=False)) == len(images)


@pytest.mark.parametrize("name", ["t.csv", "t.txt", "t.dat", "t", "t.csv.gz"])
def test_text_with_the_columns_is_a_table_whatever_its_name(name, tmp_path):
    text = b"path,label\na/1.jpg,cat\n"
    put(tmp_path, {"a/1.jpg": JPEG, name: gzip.compress(text) if name.endswith(".gz") else text})
    assert Manifest.open(tmp_path / name, progress=False).classes == ["cat"]


@pytest.fixture
def yolo(tmp_path):
    """Runs the program of the documentation on images and the texts of their labels."""
    text = (Path(__file__).parents[3] / "docs" / "inputs.md").read_text()
    program = re.search(r"```python\n(# yolo_to_coco.py.*?)```", text, re.DOTALL)[1]

    def run(images, texts, *options):
        labels = {f"labels/{name}.txt": text for name, text in texts.items()}
        images = {f"images/{name}": content for name, content in images.items()}
        put(tmp_path, {"yolo.py": program} | images | labels)
        given = [tmp_path / "images", tmp_path / "labels", tmp_path / "t.json", "cat", "dog"]
        command = [sys.executable, tmp_path / "yolo.py", *given, *options]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)

    return run


def read_yolo(folder):
    return Manifest.from_coco(
        folder / "t.json", root=folder / "images", annotated="upright", progress=False, strict=True
    )


def test_the_converter_of_yolo_in_the_documentation_works(tmp_path, yolo):
    assert yolo({"1.jpg": JPEG, "2.jpg": JPEG}, {"1": BOX + "1 .5 .5 1 1\r\n"}).returncode == 0
    made = read_yolo(tmp_path)
    assert made.classes == ["cat", "dog"] and len(made) == 2 and not made.problems
    boxes = made.take_objects(np.arange(2)).boxes
    np.testing.assert_allclose(boxes, [[3, 2.25, 5, 3.75], [0, 0, 8, 6]])
    assert os.listdir(tmp_path / "images")


# the left half of the upright picture
LEFT = "0 0.25 0.5 0.5 1"


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_labels_of_yolo_are_of_the_picture_as_it_is_shown(tmp_path, yolo, orientation):
    upright = Image.new("RGB", (40, 20))
    upright.paste((255, 255, 255), (0, 0, 20, 20))
    back = {1: None, 3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90}
    turn = back.get(orientation, Image.Transpose.ROTATE_270)
    stored, tag, file = (
        upright.transpose(turn) if turn is not None else upright,
        Image.Exif(),
        io.BytesIO(),
    )
    tag[0x112] = orientation
    stored.save(file, "PNG", exif=tag)
    assert yolo({"a.png": file.getvalue()}, {"a": LEFT}).returncode == 0
    left, top, right, bottom = read_yolo(tmp_path).take_objects(np.array([0])).boxes[0].tolist()
    inside = np.asarray(stored)[int(top) : int(bottom), int(left) : int(right)]
    assert inside.size == 20 * 20 * 3 and inside.all()


SEEN = "0 .5 .5 .5 .5"
POINTS = "0 0.5 0.5 0.5 0.5 0.4 0.4 2 0.6 0.6 1"


def test_keypoints_of_yolo(tmp_path, yolo):
    flat = "1 0.5 0.5 0.5 0.5 0.4 0.4 0 0"
    run = yolo({"a.jpg": JPEG}, {"a": f"{POINTS}\n{flat}\n"}, "--keypoints=nose,tail")
    assert run.returncode == 0, run.stderr
    made = read_yolo(tmp_path)
    assert made.facts.keypoints.names == ["nose", "tail"]
    np.testing.assert_allclose(
        made.take_objects(np.array([0])).keypoints,
        [[[3.2, 2.4, 2], [4.8, 3.6, 1]], [[3.2, 2.4, 2], [0, 0, 0]]],
        rtol=1e-5,
    )


@pytest.mark.parametrize("options", [(), ("--outlines",)])
def test_outlines_of_yolo(tmp_path, yolo, options):
    assert yolo({"a.jpg": JPEG}, {"a": "0 .25 .5 .75 .5 .75 1 .25 1"}, *options).returncode == 0
    made = read_yolo(tmp_path)
    np.testing.assert_allclose(made.take_objects(np.array([0])).boxes, [[2, 3, 6, 6]])
    assert json.loads(made.table["target:outlines"][0].as_py()) == [[[2, 3, 6, 3, 6, 6, 2, 6]]]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (POINTS, "10 numbers are an outline, or a box with keypoints; give --outlines or --keyp"),
        ("0 0.5 0.5 0.5 0.5 0.4 0.4 0.6 0.6", "8 numbers are an outline, or a box with keypoints"),
        # points that are missing, with and without their visibility
        ("0 0.5 0.5 0.5 0.5 0.4 0.4 0 0 0.6 0.6", "10 numbers are an outline, or a box with key"),
        (f"{SEEN} .4 .4 1 .52 .5 1 0 0 0 .55 .6 1", "16 numbers are an outline, or a box with key"),
        (f"{SEEN} .4 .4 1 .52 .5 1 .5 .5 0 .6 .6 1", "16 numbers are an outline, or a box with"),
        ("0 0.5 0.5 0.5 0.5 0.9", "5 numbers are a box with a confidence"),
        ("2 0.5 0.5 0.5 0.5", "2 is the number of no class"),
        ("0 0.5 0.5", "give"),
        ("cat 0.5 0.5 0.5 0.5", "could not convert"),
    ],
)
def test_a_line_of_yolo_that_is_not_understood_is_named(tmp_path, yolo, line, why):
    run = yolo({"a.jpg": JPEG}, {"a": f"{BOX}{line}\n", "alone": BOX})
    assert run.returncode and why in run.stderr
    assert "a.txt line 2: " in run.stderr and "alone.txt: no image of its name" in run.stderr
    assert not (tmp_path / "t.json").exists()


@pytest.mark.parametrize(
    "corners",
    [".1 .1 .9 .1 .9 .9 0 0", ".3 .3 .6 .3 .6 .6 .3 .6 .1 .5", ".2 .2 .8 .2 1 1 0 .9 .2 .5"],
)
def test_outlines_of_yolo_that_are_no_points(tmp_path, yolo, corners):
    assert yolo({"a.jpg": JPEG}, {"a": f"0 {corners}"}).returncode == 0
    assert "outlines" in str(read_yolo(tmp_path).table.column_names)


def test_yolo_without_objects(tmp_path, yolo):
    assert yolo({"a.jpg": JPEG}, {"a": ""}).returncode
    assert yolo({"b.jpg": JPEG}, {"b": BOX}).returncode == 0
    assert len(read_yolo(tmp_path)) == 2
