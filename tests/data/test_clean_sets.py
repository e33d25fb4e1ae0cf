"""Twelve well-known data sets, as they are published in form and made small: nothing in them is
doubted, and `strict` opens them.
"""

import json
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from every_kind import picture
from later import later
from make_shards import add
from PIL import Image

import dali_pipes as dp

hf = later("datasets")


def images(folder, names, size=(64, 48)):
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size).save(file, "PNG" if file.suffix == ".png" else "JPEG")


def open_any(source, **options):
    return dp.Manifest.open(source, progress=False, strict=True, **options)


def parquet(file, column, names, labels, label="label"):
    """As Hugging Face's hub has a data set of classes."""
    features = hf.Features({column: hf.Image(), label: hf.ClassLabel(names=names)})
    cells = [{"bytes": picture(number), "path": f"{number}.png"} for number in range(len(labels))]
    hf.Dataset.from_dict({column: cells, label: labels}, features).to_parquet(str(file))
    return file


def imagenet_folders(folder):
    wnids = ["n01440764", "n01443537", "n01484850", "n01491361", "n01494475"]
    for split, count in (("train", 4), ("val", 2)):
        images(folder, [f"{split}/{w}/{w}_{n}_{split}.JPEG" for w in wnids for n in range(count)])
    return open_any(folder / "train"), open_any(folder / "val")


def imagenet_of_the_hub(folder):
    names = [f"name {number}, other name" for number in range(1000)]
    train = parquet(folder / "train.parquet", "image", names, [3, 999, 17, 3])
    val = parquet(folder / "validation.parquet", "image", names, [5, 999])
    return open_any(train), open_any(val)


def cifar_10(folder):
    names = [
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ]
    train = parquet(folder / "train.parquet", "img", names, list(range(10)) * 2)
    test = parquet(folder / "test.parquet", "img", names, list(range(10)))
    return open_any(train), open_any(test)


def cifar_100(folder):
    """With two columns of classes."""
    features = hf.Features(
        {
            "img": hf.Image(),
            "fine_label": hf.ClassLabel(names=[f"fine_{n}" for n in range(100)]),
            "coarse_label": hf.ClassLabel(names=[f"coarse_{n}" for n in range(20)]),
        }
    )
    rows = {
        "img": [{"bytes": picture(n), "path": None} for n in range(6)],
        "fine_label": [3, 88, 41, 3, 0, 99],
        "coarse_label": [1, 19, 4, 1, 0, 7],
    }
    hf.Dataset.from_dict(rows, features).to_parquet(str(folder / "train.parquet"))
    return open_any(folder / "train.parquet", label_column="fine_label"), None


def coco(folder, annotations, categories):
    names = [f"val2017/{number:012}.jpg" for number in range(4)]
    images(folder, names)
    content = {
        "info": {},
        "licenses": [],
        "images": [
            {"id": 139 * (number + 1), "file_name": name.split("/")[1], "height": 48, "width": 64}
            for number, name in enumerate(names)
        ],
        "annotations": annotations,
        "categories": categories,
    }
    file = folder / "instances_val2017.json"
    file.write_text(json.dumps(content))
    return dp.Manifest.from_coco(file, root=folder / "val2017", progress=False, strict=True), None


def coco_instances(folder):
    """With gaps in the ids, boxes that touch the border, and a crowd."""
    kinds = [{"id": number, "name": f"kind {number}"} for number in (1, 2, 13, 44, 90)]
    polygon = [[0.0, 1.43, 63.99, 1.43, 30.25, 30.0], [1.5, 40.0, 9.25, 40.0, 9.0, 48.0]]
    objects = [
        {"id": n, "image_id": 139 * (n % 4 + 1), "category_id": kinds[n % 5]["id"], "iscrowd": 0}
        | {"bbox": [0.0, 1.43, 63.999, 46.57], "area": 1200.5, "segmentation": polygon}
        for n in range(12)
    ]
    crowd = {"counts": [0, 48 * 64], "size": [48, 64]}
    objects.append(objects[0] | {"id": 99, "iscrowd": 1, "segmentation": crowd, "area": 3072})
    return coco(folder, objects, kinds)


def coco_keypoints(folder):
    names = ["nose", "left_eye", "right_eye"]
    kinds = [{"id": 1, "name": "person", "keypoints": names, "skeleton": [[1, 2]]}]
    points = [30, 20, 2, 33, 18, 1, 0, 0, 0]
    objects = [
        {"id": n, "image_id": 139 * (n % 4 + 1), "category_id": 1, "iscrowd": 0, "area": 900.0}
        | {"bbox": [10, 5, 50, 40], "keypoints": points if n % 2 else [0] * 9, "num_keypoints": 2}
        | {"segmentation": [[10, 5, 60, 5, 60, 45]]}
        for n in range(8)
    ]
    return coco(folder, objects, kinds)


def voc_detection(folder):
    """Objects that are cut off at the border, with areas that count the last pixel."""
    kinds = [{"id": number, "name": f"kind {number}"} for number in range(1, 21)]
    objects = [
        {"id": n, "image_id": 139 * (n % 4 + 1), "category_id": n + 1, "iscrowd": 0}
        | {"bbox": [0, 0, 63, 47], "area": 64 * 48}
        for n in range(20)
    ]
    return coco(folder, objects, kinds)


def voc_segmentation(folder):
    palette = [value for number in range(256) for value in (number, 255 - number, 7)]
    (folder / "SegmentationClass").mkdir()
    for number, levels in enumerate([(0, 15, 255), (0, 1, 255), (0, 20, 15, 255)]):
        images(folder, [f"JPEGImages/2007_{number:06}.jpg"])
        mask = Image.fromarray(np.resize(np.array(levels, np.uint8), (48, 64)), "P")
        mask.putpalette(palette)
        mask.save(folder / f"SegmentationClass/2007_{number:06}.png")
    return dp.Manifest.from_masks(
        folder / "JPEGImages", folder / "SegmentationClass", progress=False, strict=True
    ), None


def flowers(folder):
    names = ["pink primrose", "hard-leaved pocket orchid", "canterbury bells", "canna lily"]
    names += [f"flower {number}" for number in range(4, 102)]
    train = parquet(
        folder / "train.parquet", "image", names, [number % 102 for number in range(30)]
    )
    paths = [f"jpg/image_{number:05}.jpg" for number in range(1, 205)]
    images(folder, paths, (8, 6))
    rows = [f"{path},{number % 102}" for number, path in enumerate(paths)]
    (folder / "t.csv").write_text("\n".join(["path,label", *rows]))
    return open_any(train), open_any(folder / "t.csv")


def pets(folder):
    breeds = ["Abyssinian", "american_bulldog", "Birman", "yorkshire_terrier"]
    paths = [f"images/{breed}_{number}.jpg" for breed in breeds for number in (1, 10)]
    images(folder, paths)
    rows = [f"{path},{path[7:].rpartition('_')[0]}" for path in paths]
    (folder / "t.csv").write_text("\n".join(["path,label", *rows]))
    (folder / "trimaps").mkdir()
    for path in paths:
        trimap = np.resize(np.array([1, 2, 3], np.uint8), (48, 64))
        Image.fromarray(trimap).save(folder / f"trimaps/{path[7:-4]}.png")
    dp.Manifest.from_masks(folder / "images", folder / "trimaps", progress=False, strict=True)
    return open_any(folder / "t.csv"), None


def webdataset(folder):
    """ImageNet's shards, with the names of the classes beside them."""
    for split, labels in (("train", [3, 999, 0]), ("val", [17, 5])):
        (folder / split).mkdir()
        with tarfile.open(folder / split / "imagenet-000000.tar", "w") as archive:
            for number, label in enumerate(labels):
                add(archive, f"{number:08}.png", picture(number))
                add(archive, f"{number:08}.cls", str(label).encode())
        (folder / split / "classes.json").write_text(json.dumps([f"name {n}" for n in range(1000)]))
    return open_any(folder / "train"), open_any(folder / "val")


def own_table(folder):
    """With a column of sites, boxes at the border, and a row that is there twice on purpose."""
    names = [f"{number}.png" for number in range(40)]
    images(folder, names)
    paths = [*names, names[0]]
    boxes = [[1, 1, 63 + (5 if n == 7 else 0), 40] for n in range(len(paths))]
    table = {"path": paths, "b": boxes, "l": [["cat"]] * len(paths), "site": list("xy" * 20 + "x")}
    pq.write_table(pa.table(table), folder / "t.parquet")
    targets = dp.Targets(boxes="b", box_labels="l")
    return open_any(folder / "t.parquet", targets=targets), None


SETS = [
    *(imagenet_folders, imagenet_of_the_hub, cifar_10, cifar_100, coco_instances, coco_keypoints),
    *(voc_detection, voc_segmentation, flowers, pets, webdataset, own_table),
]


@pytest.mark.parametrize("made", SETS, ids=[made.__name__ for made in SETS])
def test_nothing_is_doubted(made, tmp_path, caplog):
    train, val = made(tmp_path)
    for manifest in filter(None, (train, val)):
        assert [each for each in manifest.omissions if not each.is_allowed] == []
    config = dp.TorchConfig(num_workers=0)
    shared = {"batch_size": 2, "strict": True, "device": "cpu"}
    loaders = [dp.build_loader(train, config, transform=dp.TrainTransform(size=8), **shared)]
    if val:
        transform = dp.EvalTransform(size=8, resize=8)
        loaders.append(dp.build_loader(val, config, transform=transform, **shared))
    for loader in loaders:
        with loader:
            assert len(next(iter(loader))) == 2

    parts = train.split({"a": 0.5, "b": 0.5})
    train.save(tmp_path / "m.arrow")
    for manifest in (*parts.values(), dp.Manifest.load(tmp_path / "m.arrow")):
        manifest.tell_omissions(strict=True)
    assert not [each for each in caplog.records if each.levelname == "WARNING"], caplog.text
