"""Data sets of other programs: each is named, with what to do; what is ours is read, however it is
called.
"""

import gzip
import io
import json
import os
import pickle
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dali_pipes import Manifest, ManifestError
from dali_pipes.data.sources.layouts import addresses
from dali_pipes.data.sources.layouts.refusals import refuse_other_objects


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
    assert "\n" not in message and message.isprintable() and len(short) < 700
    return message


ROOTS = {
    "yolo": ({"images/1.jpg": JPEG, "labels/1.txt": BOX}, "YOLO's layout.*COCO JSON"),
    "yolo by split": (
        {"images/train/1.jpg": JPEG, "labels/train/1.txt": BOX, "data.yaml": "nc: 1"},
        "YOLO's layout",
    ),
    "roboflow": (
        {"train/images/1.jpg": JPEG, "train/labels/1.txt": BOX, "valid/images/1.jpg": JPEG},
        "YOLO's layout",
    ),
    "darknet": (
        {"obj_train_data/1.jpg": JPEG, "obj_train_data/1.txt": BOX, "obj.names": "a"},
        "Darknet",
    ),
    "voc": (
        {"Annotations/1.xml": "<a/>", "JPEGImages/1.jpg": JPEG, "ImageSets/Main/train.txt": "1"},
        "Pascal VOC",
    ),
    "voc with masks": (
        {
            "VOC2012/Annotations/1.xml": "<a/>",
            "VOC2012/JPEGImages/1.jpg": JPEG,
            "VOC2012/SegmentationClass/1.png": PNG,
        },
        "Pascal VOC.*from_masks.*SegmentationClass', missing='skip'",
    ),
    "voc of kaggle": ({"images/1.jpg": JPEG, "annotations/1.xml": "<a/>"}, "Pascal VOC"),
    "coco": (
        {
            "annotations/captions_val2017.json": COCO,
            "annotations/instances_train2017.json": COCO,
            "train2017/1.jpg": JPEG,
            "val2017/1.jpg": JPEG,
        },
        "instances_train2017.json', images='.*/train2017'.$",
    ),
    "coco below images": (
        {"annotations/a.json": COCO, "images/train2017/1.jpg": JPEG},
        "COCO's layout.*images='.*/images",
    ),
    "masks": (
        {"images/1.jpg": JPEG, "masks/1.png": PNG},
        "from_masks.'.*/images', '.*/masks'.$",
    ),
    "pets": (
        {"images/a_1.jpg": JPEG, "annotations/trimaps/a_1.png": PNG},
        "from_masks.*/annotations/trimaps",
    ),
    "ade20k": ({"images/training/1.jpg": JPEG, "annotations/training/1.png": PNG}, "from_masks"),
    "camvid": (
        {"train/1.png": PNG, "trainannot/1.png": PNG},
        "from_masks.*/train', '.*/trainannot",
    ),
    "cityscapes": ({"leftImg8bit/train/a/1.png": PNG, "gtFine/train/a/2.png": PNG}, "from_masks"),
    "lmdb": ({"data.mdb": bytes(64), "lock.mdb": b""}, "LMDB"),
    "lmdb by split": (
        {"train_lmdb/data.mdb": bytes(64), "val_lmdb/data.mdb": bytes(64)},
        "train_lmdb: is an LMDB",
    ),
    "mds": ({"index.json": '{"shards": []}', "shard.00000.mds.zstd": b"x"}, "Mosaic"),
    "mds by split": (
        {"train/index.json": '{"shards": []}', "train/shard.00000.mds": b"x"},
        "/train: is Mosaic",
    ),
    "litdata": ({"index.json": '{"chunks": []}', "chunk-0-0.bin": b"x"}, "litData"),
    "save_to_disk": (
        {"dataset_info.json": "{}", "state.json": "{}", "data-00000-of-00001.arrow": b"x"},
        "from_hf.*load_from_disk",
    ),
    "save_to_disk of splits": (
        {"dataset_dict.json": "{}", "train/state.json": "{}"},
        "from_hf.*load_from_disk",
    ),
    "cifar": (
        {"data_batch_1": b"\x80", "test_batch": b"\x80"},
        "torchvision's CIFAR10",
    ),
    "cifar below": (
        {"cifar-10-batches-py/data_batch_1": b"\x80"},
        "torchvision's CIFAR10",
    ),
    "mnist": ({"raw/train-images-idx3-ubyte": bytes(16)}, "MNIST"),
    "ffcv": ({"train.beton": bytes(9), "val.beton": bytes(9)}, "FFCV"),
    "archives": (
        {"train.zip": b"PK", "val.zip": b"PK"},
        "train.zip: is a compressed archive; unpack it",
    ),
    "hdf5": ({"train.h5": b"\x89HDF"}, "HDF5"),
    "videos": ({"a.mp4": b"x"}, "a video"),
    "flat": (
        {"1.jpg": JPEG, "2.jpg": JPEG},
        "no class folders in it, only images side by side.*path,label",
    ),
    "flat with a table": (
        {"1.jpg": JPEG, "train.csv": "path,label\n1.jpg,0"},
        "Manifest.open.'.*/train.csv', images=",
    ),
    "flat with coco": (
        {"1.jpg": JPEG, "_annotations.coco.json": COCO},
        "Manifest.open.'.*/_annotations.coco.json'",
    ),
    "flat with yolo": ({"1.jpg": JPEG, "1.txt": BOX}, "no class folders in it: YOLO"),
    "a table alone": ({"train.csv": "path,label\n1.jpg,0"}, "did you mean the table .*train.csv"),
    "empty": ({".DS_Store": b"x"}, "no class folders in it, it is empty"),
}


@pytest.mark.parametrize("kind", ROOTS)
@pytest.mark.parametrize("read", [Manifest.open, Manifest.scan], ids=["open", "scan"])
def test_a_folder_of_another_program_is_named(kind, read, tmp_path):
    files, message = ROOTS[kind]
    assert re.search(message, refusal(put(tmp_path / "set", files), read))


@pytest.mark.parametrize(
    "kind",
    [kind for kind in ROOTS if not kind.startswith(("flat", "a table", "empty", "coco below"))],
)
def test_and_so_it_is_in_an_object_store(kind, tmp_path):
    files, message = ROOTS[kind]
    put(tmp_path / "set", files)
    with pytest.raises(ManifestError, match=message):
        refuse_other_objects("s3://b/set", files)


@pytest.mark.parametrize("given", ["images", "images/train"])
def test_the_images_of_yolo_are_named(given, tmp_path):
    put(tmp_path, ROOTS["yolo by split"][0])
    assert "YOLO's layout" in refusal(tmp_path / given)


def zipped():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/1.jpg", JPEG)
    return file.getvalue()


NOISE = np.random.default_rng(0).bytes(3000)
FILES = {
    "x.beton": (NOISE, "FFCV"),
    "x.h5": (b"\x89HDF\r\n\x1a\n" + bytes(50), "HDF5"),
    "x.zip": (zipped(), "archive; unpack"),
    "x.rar": (b"Rar!", "archive; unpack"),
    "x.tar.gz": (gzip.compress(b"x"), "compressed.*unpack it to a .tar"),
    "x.tgz": (gzip.compress(b"x"), "compressed.*unpack it to a .tar"),
    "x.npz": (b"PK" + b"\1" * 50, "array"),
    "x.pkl": (pickle.dumps({"a": 1}), "pickled"),
    "x.mat": (b"MATLAB 5.0", "array"),
    "data.mdb": (bytes(50), "LMDB"),
    "shard.00000.mds": (NOISE, "Mosaic"),
    "chunk-0-0.bin": (NOISE, "litData"),
    "data_batch_1.bin": (NOISE, "torchvision's CIFAR10"),
    "test_batch": (pickle.dumps({}), "torchvision's CIFAR10"),
    "cifar-10-binary.tar.gz": (NOISE, "torchvision's CIFAR10"),
    "train-images-idx3-ubyte.gz": (gzip.compress(b"x"), "MNIST"),
    "1.jpg": (JPEG, "one image"),
    "photo.heic": (NOISE, "one image"),
    "no_suffix": (JPEG, "one image"),
    "1.xml": ("<annotation/>", "Pascal VOC"),
    "data.yaml": ("train: a", "YOLO"),
    "a.mp4": (NOISE, "video"),
    "x.jsonl": ('{"file_name": "a.jpg"}', "JSON lines"),
    "list.txt": ("a b.jpg 0\nb.jpg 1\n", "without a header.*path,label"),
    "names.lst": ("a.jpg\nb.jpg\n", "without a header"),
    "1.txt": (BOX * 2, "labels of one image, as YOLO"),
    "x.csv": (zipped(), "archive"),
    "y.csv": (NOISE, "is not text in UTF-8"),
    "z.csv": (
        "path,label\n1.jpg,a".encode("utf-16"),
        "its only row names a file that is not there",
    ),
    "x.unknown": (NOISE, "binary file of a kind that is not known"),
    "table": (b"PAR1" + NOISE, "name it NAME.parquet"),
    "index.json": ('{"shards": [], "version": 2}', "Mosaic"),
    "labelme.json": ('{"shapes": [], "imagePath": "a.jpg"}', "labelme"),
    "list.json": ('[{"image": "a.jpg"}]', "not COCO's form.*a list of 1"),
    "map.json": ('{"a.jpg": 0}', "not COCO's form.*an object with a.jpg"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_kind_is_named(name, tmp_path):
    content, message = FILES[name]
    found = refusal(put(tmp_path, {name: content}) / name)
    assert found.startswith(f"{tmp_path}/{name}: ") and re.search(message, found)


def test_the_files_of_save_to_disk(tmp_path):
    put(tmp_path, ROOTS["save_to_disk"][0])
    for file in tmp_path.iterdir():
        assert "load_from_disk" in refusal(file), file


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("pipe:curl -s http://x/y.tar", "pipe:"),
        ("s3:/bucket/train", "write s3://bucket/train"),
        ("S3://bucket/train", "write s3://bucket/train"),
        ("gs://a/{0..1}.tar::gs://b/{0..1}.tar", "several URLs.*Manifest.concat"),
        (r"C:\data\train", "path of Windows"),
        ("/no/such/dir", "no such folder or file; / is there, and has "),
    ],
)
def test_what_is_no_path_says_what_it_is(source, message):
    assert re.search(message, refusal(source))


def test_hugging_faces_hub_needs_its_package(monkeypatch):
    monkeypatch.setattr(addresses, "find_spec", lambda name: None)
    assert "hf download" in refusal("hf://datasets/a/b/data")


def test_what_is_missing_is_named_with_the_nearest_folder(tmp_path):
    put(tmp_path, {"data/train/a/1.jpg": JPEG})
    assert f"{tmp_path}/data is there, and has train" in refusal(tmp_path / "data" / "trian" / "a")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    assert "a link to" in refusal(tmp_path / "link")


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
    "classes of trains": {"train/1.jpg": JPEG, "truck/1.jpg": JPEG, "truck/index.json": "{}"},
    "a class with boxes": {"a/images/1.jpg": JPEG, "b/1.jpg": JPEG, "b/1.xml": "x"},
}


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


def test_the_converter_of_yolo_in_the_documentation_works(tmp_path):
    text = (Path(__file__).parents[4] / "docs" / "inputs.md").read_text()
    program = re.search(r"```python\n(# yolo_to_coco.py.*?)```", text, re.DOTALL)[1]
    put(
        tmp_path,
        {
            "yolo.py": program,
            "images/1.jpg": JPEG,
            "images/2.jpg": JPEG,
            "labels/1.txt": BOX + "1 .5 .5 1 1\n",
        },
    )
    given = [
        str(tmp_path / "images"),
        str(tmp_path / "labels"),
        str(tmp_path / "train.json"),
        "cat",
        "dog",
    ]
    subprocess.run([sys.executable, tmp_path / "yolo.py", *given], check=True)
    made = Manifest.open(tmp_path / "train.json", images=tmp_path / "images", progress=False)
    assert made.classes == ["cat", "dog"] and len(made) == 2 and not made.problems
    boxes = made.take_objects(np.arange(2)).boxes
    np.testing.assert_allclose(boxes, [[3, 2.25, 5, 3.75], [0, 0, 8, 6]])
    assert os.listdir(tmp_path / "images")
