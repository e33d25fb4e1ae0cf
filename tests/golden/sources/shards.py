"""Files that hold many images: tars, TFRecords and Parquet."""

import gzip
import json
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from make_shards import add

import dali_pipes as dp

from .pictures import (
    IMAGE,
    Cases,
    encoded,
    mask,
    opened,
    picture,
    put,
    put_parquet,
    put_records,
    put_tar,
    samples,
)

NAMES = ["cat", "dog", "eel"]


def write() -> Cases:
    return _cases_of_tars() | _cases_of_records() | _cases_of_parquet()


def _write_tars() -> None:
    for shard in range(2):
        put_tar(f"good/train-{shard:02d}.tar", samples([2 * shard, 2 * shard + 1]))
        put_tar(f"named/{shard}.tar", samples([2 * shard, 2 * shard + 1]))
    put(
        {
            "named/classes.json": json.dumps(NAMES[:2]),
            "good/beside.jpg": picture(9),
            "good/readme.md": "x",
            "broken names/classes.json": '["cat", 1]',
        }
    )
    put_tar("broken names/0.tar", samples([0]))
    for split in ("train", "val"):
        put_tar(f"mixed/{split}-0.tar", samples([0]))
    put_tar("counted/x-00001-of-00003.tar", samples([1]))
    put_tar(
        "odd/a.tar",
        [
            ("in/1.jpg", picture(1)),
            ("in/1.cls", b" 1\n"),
            ("2.JSON", b'{"label": 2}'),
            ("2.PNG", picture(2, "PNG")),
            ("3.jpg", picture(3)),
            ("4.txt", b"a text alone"),
            ("../5.jpg", picture(5)),
            ("/6.jpg", picture(6)),
            ("7.jpg", picture(7)),
            ("7.jpeg", picture(8)),
            ("7.seg.png", picture(9, "PNG")),
            ("7.mask.png", mask(1)),
            ("7.cls", b"0"),
            ("7.cls", b"1"),
            ("8.jpg", "no image"),
            ("8.cls", b"0"),
            ("9.jpg", picture(10)),
            ("9.cls", b"zero"),
            ("10.jpg", picture(11)),
            ("10.json", b'{"cls": 1, "label": "dog"}'),
            ("11.gif", picture(12, "GIF")),
            ("11.cls", b"0"),
            ("._12.jpg", b"x"),
            ("__MACOSX/13.jpg", picture(13)),
            ("README", b"x"),
            ("14.a.jpg", picture(14)),
            ("ü/15.jpg", picture(15, turned=6)),
            ("ü/15.cls", b"2"),
        ],
    )
    with tarfile.open("links.tar", "w") as archive:
        add(archive, "1.jpg", picture(1))
        add(archive, "1.cls", b"0")
        add(archive, "2.jpg", b"", type=tarfile.SYMTYPE, linkname="1.jpg")
        add(archive, "folder", b"", type=tarfile.DIRTYPE)
        add(archive, "3.jpg", b"", type=tarfile.CHRTYPE)
    put_tar("negative/a.tar", [("1.jpg", picture(1)), ("1.cls", b"-1"), *samples([0])])
    put_tar("minus one/a.tar", [("1.jpg", picture(1)), ("1.json", b'{"label": -1}'), *samples([0])])
    put_tar("bare/a.tar", [(f"{n}.jpg", picture(n)) for n in range(2)])
    put_tar("texts/a.tar", [("1.txt", b"x")])

    whole = Path("good/train-00.tar").read_bytes()
    header = bytearray(whole)
    # the third member's header, after a picture of eight blocks and a label of one
    header[11 * 512] ^= 1
    put(
        {
            "damage/0 cut in an image.tar": whole[:3000],
            "damage/1 cut in a header.tar": whole[: 11 * 512 + 100],
            "damage/2 cut between members.tar": whole[: 11 * 512],
            "damage/3 damaged header.tar": bytes(header),
            "damage/4 empty.tar": b"",
            "damage/5 none.tar": "no tar" * 200,
            "damage/6 compressed.tar": gzip.compress(whole, mtime=0),
            "damage/7 whole.tar": whole,
            "squeezed/a.tar.gz": gzip.compress(whole, mtime=0),
        }
    )
    objects = {
        "boxes": [[1, 2, 5, 6], [1, 2, 1, 2]],
        "labels": ["dog", "cat"],
        "kp": [[1, 2, 2]] * 2,
    }
    put_tar(
        "targets/a.tar",
        [
            ("1.jpg", picture(1)),
            ("1.json", json.dumps(objects)),
            ("1.txt", "ein ü\r\n"),
            ("1.png", mask(1)),
            ("2.jpg", picture(2)),
            ("2.json", b'{"boxes": [], "labels": [], "kp": []}'),
            ("2.txt", ""),
            ("2.png", mask(1, size=(32, 40))),
            ("3.jpg", picture(3)),
            ("3.json", b'{"boxes": [[1, 2, 5, 6]], "labels": [], "kp": []}'),
            ("3.txt", b"\xff"),
            ("3.png", mask(2)),
            ("4.jpg", picture(4)),
            ("6.jpg", picture(6)),
            ("6.json", b'{"boxes": [[1, 2, 5, 6]], "labels": [], "kp": []}'),
            ("6.txt", "six"),
            ("6.png", mask(2)),
            ("5.jpg", picture(5)),
            ("5.json", b'{"boxes": [[1, 2, 5, 6]], "labels": ["eel"], "kp": [[1, 2, 2]]}'),
            ("5.txt", "five"),
            ("5.png", mask(2)),
        ],
    )


def _cases_of_tars() -> Cases:
    _write_tars()
    boxes = {"boxes": "boxes", "box_labels": "labels"}
    every = {**boxes, "keypoints": "kp", "keypoint_names": ["tip"], "text": ".txt", "mask": ".png"}

    def targets(**names: Any):
        return lambda: opened("targets", targets=dp.Targets(**names))

    return {
        "tars": lambda: opened("good"),
        "tars, one of them": lambda: opened("good/train-01.tar"),
        "tars without labels": scan("good", with_labels=False),
        "tars as classes= names them": scan("good", classes=NAMES),
        "tars as classes= does not name them": scan("good", classes=NAMES[:1]),
        "tars, strict": scan("good", strict=True),
        "tars, cached": lambda: [scan("good", cache="good.arrow")() for _ in range(2)][1],
        "tars, few pixels allowed": scan("good", max_pixels=32 * 41),
        "tars of a pattern": scan("good/*-01.tar"),
        "tars of a pattern in braces": scan("good/train-{00..01}.tar"),
        "tars of a pattern in braces, some missing": scan("good/train-{00..07}.tar"),
        "tars of a pattern that matches nothing": scan("good/val-*.tar"),
        "tars of two splits": lambda: opened("mixed"),
        "tars of one of two splits": lambda: opened("mixed/val*"),
        "tars, some missing by their numbers": scan("counted"),
        "tars with names of classes": scan("named"),
        "tars with bad names of classes": scan("broken names"),
        "tars with odd members": lambda: opened("odd"),
        "tars with odd members, without labels": lambda: opened("odd", with_labels=False),
        "tars with links": lambda: opened("links.tar"),
        "tars that are damaged": scan("damage"),
        "tars that are compressed": lambda: opened("squeezed"),
        "tars without any label": lambda: opened("bare"),
        "tars without any image": lambda: opened("texts"),
        "tars, -1 in a .cls": lambda: opened("negative"),
        "tars, -1 in a .json": lambda: opened("minus one"),
        "tars with boxes": targets(**boxes),
        "tars with boxes, keypoints, texts and masks": targets(**every),
        "tars with texts": targets(text=".txt"),
        "tars with a target that none has": targets(text=".caption"),
        "tars with targets, cached": scan("targets", targets=dp.Targets(text=".txt"), cache="t"),
        "tars with an index": lambda: dp.Manifest.load(scan("named")().save_index()),
        "tar that is not there": lambda: opened("nowhere.tar"),
    }


def scan(source: str, **options: Any):
    """A scan in this process: one process for each shard costs more than all else."""
    return partial(dp.Manifest.scan, source, workers=1, progress=False, **options)


def _cases_of_records() -> Cases:
    put_records(
        "records/train-00000-of-00002",
        [
            {"image/encoded": picture(n), "image/class/label": n, "image/height": 32, "x": 0.5}
            for n in range(2)
        ],
    )
    put_records(
        "records/train-00001-of-00002",
        [
            {"image/encoded": picture(2), "image/class/label": 1},
            {"image/encoded": b"no image", "image/class/label": 1},
            {"image/encoded": picture(3)},
            {"image/class/label": 1},
            {"image/encoded": picture(4), "image/class/label": -1},
            {"image/encoded": picture(5), "image/class/label": b"cat"},
        ],
    )
    put_records("short.tfrecord", [{"image": picture(n), "label": n} for n in range(2)])
    whole = Path("short.tfrecord").read_bytes()
    put(
        {
            "cut/a.tfrecord": whole[:-9],
            "cut/b.tfrecord": whole[:100] + b"!" + whole[101:],
            "cut/c.tfrecord": b"junk" * 10,
            "cut/d.tfrecord": b"",
        }
    )
    return {
        "TFRecords": scan("records"),
        "TFRecords without labels": scan("records", with_labels=False),
        "TFRecords of a pattern": scan("records/train-*1-of-*"),
        "TFRecords with short names": lambda: opened("short.tfrecord"),
        "TFRecords that are damaged": scan("cut"),
    }


def _write_parquet() -> None:
    features = {"image": {"_type": "Image"}, "animal": {"_type": "ClassLabel", "names": NAMES}}
    for shard in range(2):
        put_parquet(
            f"hf/train-{shard:05d}-of-00002.parquet",
            encoded(range(3 * shard, 3 * shard + 3)),
            features,
            animal=[2, 0, 1],
            age=[1, 2, 3],
            note=["x", None, "ü"],
        )
    put({"hf/9.jpg": picture(9), "hf/readme.md": "x", "hf/aside/8.jpg": picture(8)})
    for split in ("train", "test"):
        put_parquet(f"splits/{split}-00000-of-00001.parquet", encoded([1]), label=[0])
    put_parquet("minus one.parquet", encoded([0, 1]), features, animal=[-1, -1])
    put_parquet("numbers.parquet", encoded([0, 1]), label=[0, 2])
    put_parquet("names.parquet", encoded([0, 1]), label=["dog", "cat"])
    put_parquet("no labels.parquet", encoded([0, 1]))
    cells = [
        {"bytes": b"no image", "path": "a.jpg"},
        {"bytes": None, "path": "b.jpg"},
        {"bytes": picture(2, turned=6), "path": None},
        None,
        {"bytes": b"", "path": ""},
    ]
    put_parquet("odd.parquet", pa.array(cells, IMAGE), label=[0, 1, 1, 0, None], groups=3)
    put_parquet("two images.parquet", encoded([0, 1]), other=encoded([2, 3]), label=[0, 1])
    sound = pa.array([{"bytes": b"RIFF", "path": "a.wav"}] * 2, IMAGE)
    table = pa.table({"audio": sound, "image": encoded([0, 1]), "label": [0, 1]})
    pq.write_table(table, "audio first.parquet")
    boxes = [[[1, 2, 3, 4], [1.0, 2, -1, 4]], []]
    put_parquet("boxes.parquet", encoded([0, 1]), bbox=boxes, kind=[[1, 0], []], text=["a", "b"])
    pq.write_table(pa.table({"x": [1, 2]}), "nothing of ours.parquet")


def _cases_of_parquet() -> Cases:
    _write_parquet()
    names = (
        *("minus one", "numbers", "names", "no labels", "odd", "two images", "audio first"),
        "nothing of ours",
    )

    def table(source: str, **options: Any):
        return partial(dp.Manifest.from_table, source, workers=1, progress=False, **options)

    return {
        "Parquet with images": lambda: opened("hf"),
        "Parquet with images, of a pattern": table("hf/train-00001-*.parquet"),
        "Parquet with images, as classes= orders them": table("hf", classes=NAMES[::-1]),
        "Parquet with images, labels named": table("hf", label_column="age"),
        "Parquet with images, without labels": table("hf", with_labels=False),
        "Parquet with images, by scan": lambda: dp.Manifest.scan("hf", progress=False),
        "Parquet with images, of two splits": lambda: opened("splits"),
        **{f"Parquet with images, {name}": table(f"{name}.parquet") for name in names},
        "Parquet with images and boxes": lambda: opened(
            "boxes.parquet",
            targets=dp.Targets(boxes="bbox", box_labels="kind", box_format="xywh", text="text"),
        ),
    }
