"""Manifests that are made of manifests, and manifests in files."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dali_pipes as dp

from .pictures import Cases, encoded, mask, opened, picture, put, put_parquet, put_tar, samples


def write() -> Cases:
    put(
        {
            f"photos/{'cat' if n % 2 else 'dog'}/{n}.jpg": picture(n, size=(40 + n, 32))
            for n in range(6)
        }
    )
    put({"photos/cat/broken.jpg": "no image", "photos/cat/note.txt": "x"})
    put({f"more/{kind}/{n}.jpg": picture(20 + n) for kind in ("eel", "cat") for n in range(2)})
    kinds = [(n, "cat" if n % 2 else "dog") for n in range(6)]
    rows = [f"photos/{kind}/{n}.jpg,{kind},{n},p{n // 2},{n}.5" for n, kind in kinds]
    put(
        {"list.csv": "\n".join(["path,label,age,patient,weight", *rows, "gone.jpg,cat,1,p9,2", ""])}
    )
    put({"other.csv": "path,label,age\nmore/eel/0.jpg,eel,7\nmore/cat/1.jpg,cat,\n"})
    put({"short.csv": "path,label\nmore/eel/0.jpg,eel\nmore/cat/1.jpg,cat\n"})
    put({"predict.csv": "path,label\nmore/eel/0.jpg,0.5\n", "one.txt": "x"})
    put_tar("shards/a.tar", samples([0, 1]))
    put_parquet("images.parquet", encoded([0, 1]), label=["eel", "cat"])
    several = {"path": ["photos/dog/0.jpg", "photos/dog/2.jpg"], "label": [["a", "b"], ["c"]]}
    pq.write_table(pa.table(several), "several.parquet")
    _write_boxes()

    listed = opened("list.csv")
    boxes = opened("boxes.parquet", targets=dp.Targets(boxes="box", box_labels="kind"))
    names = ["ground", "tree", "sky"]
    masks = dp.Manifest.from_masks("photos", "masks", classes=names, progress=False)
    return {
        **_cases_of_parts(listed, boxes, masks),
        **_cases_of_classes(listed, boxes, masks),
        **_cases_of_joins(listed, boxes, masks),
        **_cases_of_files(listed, boxes, masks),
    }


def _write_boxes() -> None:
    columns = {
        "path": ["photos/dog/0.jpg", "photos/dog/2.jpg", "photos/dog/4.jpg"],
        "box": [[1.0, 2, 3, 4, 5, 6, 7, 8], [], [1.0, 2, 3, 4]],
        "kind": [["b", "a"], [], ["c"]],
    }
    pq.write_table(pa.table(columns), "boxes.parquet")
    put({f"masks/dog/{n}.png": mask(1, size=(40 + n, 32)) for n in (0, 2, 4)})
    put({f"masks/cat/{n}.png": mask(2, size=(40 + n, 32)) for n in (1, 3, 5)})


def _cases_of_parts(listed: dp.Manifest, boxes: dp.Manifest, masks: dp.Manifest) -> Cases:
    expressions = (
        *("class == 'cat' and age > 1", "class in ('dog', 'eel')", "not (width >= 42 or age == 0)"),
        *("path == 'photos/cat/1.jpg'", "patient != 'p1'", "weight < age", "orientation == 1"),
        *("age > 99", "height == 32 and format == 'JPEG'", "label == 1", "label not in (0, 7)"),
        *("size > 3", "age = 3", "__import__('os')", "age > 'x'", "patient > 3", "class == 3", ""),
    )
    return {
        **{
            f"filter, {expression}": partial(listed.filter, expression)
            for expression in expressions
        },
        "filter, several classes": lambda: opened("several.parquet").filter("class == 'b'"),
        "filter, objects": lambda: boxes.filter("class == 'c'"),
        "filter, no text": lambda: listed.filter(3),
        **{
            f"split, {name}": lambda name=name: listed.split({"a": 0.5, "b": 0.5})[name]
            for name in "ab"
        },
        "split, another seed": lambda: listed.split({"a": 0.5, "b": 0.5}, seed=7)["a"],
        "split by patients": lambda: listed.split({"a": 0.7, "b": 0.3}, by="patient")["a"],
        "split by classes": lambda: listed.split({"a": 0.5, "b": 0.5}, by="class")["b"],
        "split by numbers": lambda: listed.split({"a": 0.5, "b": 0.5}, by="age")["b"],
        "split, shares of more than 1": lambda: listed.split({"a": 0.5, "b": 0.6}),
        "split by a column that is not there": lambda: listed.split({"a": 1.0}, by="name"),
        "subset": lambda: listed.subset(np.array([5, 0, 0, 3])),
        "subset of nothing": lambda: listed.subset(np.array([], np.int64)),
        "subset of too many": lambda: listed.subset(np.array([0, 6])),
        "subset of objects": lambda: boxes.subset(np.array([2, 0])),
        "subset of masks": lambda: masks.subset(np.array([4, 1])),
        "without columns": lambda: listed.without_columns(["age"]),
        "without a column that is not there": lambda: listed.without_columns(["name"]),
    }


def _cases_of_classes(listed: dp.Manifest, boxes: dp.Manifest, masks: dp.Manifest) -> Cases:
    return {
        "classes permuted": lambda: listed.with_classes(["dog", "eel", "cat"]),
        "classes, one lacks": lambda: listed.with_classes(["dog", "eel"]),
        "classes renamed": lambda: listed.map_classes({"cat": "tiger"}),
        "classes merged": lambda: listed.map_classes({"cat": "pet", "dog": "pet"}),
        "classes swapped": lambda: listed.map_classes({"cat": "dog", "dog": "cat"}),
        "classes renamed, one is not there": lambda: listed.map_classes({"eel": "fish"}),
        "classes of objects permuted": lambda: boxes.with_classes(["c", "a", "b"]),
        "classes of objects merged": lambda: boxes.map_classes({"c": "a"}),
        "classes of masks permuted": lambda: masks.with_classes(["sky", "ground", "tree"]),
        "classes of masks merged": lambda: masks.map_classes({"sky": "ground"}),
        "several classes merged": lambda: opened("several.parquet").map_classes({"b": "a"}),
    }


def _cases_of_joins(listed: dp.Manifest, boxes: dp.Manifest, masks: dp.Manifest) -> Cases:
    def join(*sources: str, **options: Any):
        return lambda: dp.Manifest.concat([opened(source) for source in sources], **options)

    def mix(shares: dict[str, Any], **options: Any):
        return lambda: dp.Manifest.mix(
            {name: (opened(name), share) for name, share in shares.items()}, **options
        )

    return {
        "concat": join("list.csv", "short.csv"),
        "concat of columns of other types": join("list.csv", "other.csv"),
        "concat, classes apart": join("list.csv", "more", classes="apart"),
        "concat, files and shards": join("photos", "shards", "images.parquet"),
        "concat of one": join("more"),
        "concat of none": join(),
        "concat of other things": lambda: dp.Manifest.concat(["photos"]),
        "concat, labels of two kinds": join("photos", "predict.csv"),
        "concat, an unknown way": join("photos", "more", classes="both"),
        "concat of objects and classes": lambda: dp.Manifest.concat([boxes, opened("more")]),
        "concat of objects": lambda: dp.Manifest.concat([boxes, boxes.map_classes({"c": "a"})]),
        "concat of masks": lambda: dp.Manifest.concat([masks, masks]),
        "concat of parts": lambda: dp.Manifest.concat(
            [listed.filter("age > 3"), listed.filter("age < 1")]
        ),
        "mix": mix({"list.csv": 0.75, "more": 0.25}),
        "mix in proportion": mix({"photos": 1, "more": 3}, mode="proportional"),
        "mix, filtered": lambda: mix({"photos": 0.5, "more": 0.5})().filter("class == 'cat'"),
        "mix, a share of nothing": mix({"photos": 0, "more": 1}),
        "mix, an unknown mode": mix({"photos": 1, "more": 1}, mode="random"),
    }


def _saved(manifest: dp.Manifest, name: str) -> dp.Manifest:
    manifest.save(name)
    loaded = dp.Manifest.load(name)
    loaded.verify()
    return loaded


def _damaged(manifest: dp.Manifest) -> dp.Manifest:
    manifest.save("damaged.arrow")
    content = bytearray(Path("damaged.arrow").read_bytes())
    place = content.index(b"photos/cat/1.jpg")
    content[place : place + 6] = b"phatos"
    Path("damaged.arrow").write_bytes(content)
    damaged = dp.Manifest.load("damaged.arrow")
    damaged.verify()
    return damaged


def _cases_of_files(listed: dp.Manifest, boxes: dp.Manifest, masks: dp.Manifest) -> Cases:
    mixture = dp.Manifest.mix({"one": (listed, 0.5), "two": (opened("more"), 0.5)})
    kinds = {"a table": listed, "objects": boxes, "masks": masks, "a mixture": mixture}
    return {
        **{
            f"saved, {name}": partial(_saved, manifest, f"{name}.arrow")
            for name, manifest in kinds.items()
        },
        "saved as Parquet": lambda: _saved(listed, "saved.parquet"),
        "saved, a part": lambda: _saved(listed.filter("age > 2"), "part.arrow"),
        "saved, opened": lambda: opened("a table.arrow"),
        "saved, opened as classes= orders it": lambda: opened(
            "a table.arrow", classes=["dog", "cat"]
        ),
        "saved, opened, strict": lambda: opened("a table.arrow", strict=True),
        "saved, damaged": lambda: _damaged(listed),
        "saved over another file": lambda: listed.save("one.txt"),
        "loaded, no manifest": lambda: dp.Manifest.load("one.txt"),
        "loaded, nothing there": lambda: dp.Manifest.load("nowhere.arrow"),
        "moved": lambda: listed.moved_to("/elsewhere"),
        "bad images refused": lambda: listed.refuse_bad_images(0.1),
    }
