"""Open data sets of Hugging Face's `datasets`."""

from typing import Any

from later import later

import dali_pipes as dp

from .pictures import Cases, opened, picture, put

hf = later("datasets")
NAMES = ["cat", "dog", "eel"]


def _features(**more: Any) -> Any:
    return hf.Features({"image": hf.Image(), **more})


def _on_disk(name: str, columns: dict[str, Any], features: Any, shards: int = 1) -> Any:
    hf.Dataset.from_dict(columns, features).save_to_disk(name, num_shards=shards)
    return hf.load_from_disk(name)


def write() -> Cases:
    hf.disable_progress_bars()
    cells = [{"bytes": picture(n, size=(40 + n, 32)), "path": f"{n}.jpg"} for n in range(6)]
    kind, note = hf.ClassLabel(names=NAMES), hf.Value("string")
    columns = {"image": cells, "kind": [0, 2, 1, -1, 0, 1], "note": list("abcdef")}
    one = _on_disk("set", columns, _features(kind=kind, note=note), 2)
    files = [f"{n}.jpg" for n in range(3)]
    put({name: picture(n) for n, name in enumerate(files)})
    of_files = hf.Dataset.from_dict({"image": files, "label": [0.5, 1.5, 2]})
    several = _on_disk(
        "several",
        {"image": cells[:3], "label": [[0, 2], [], [1]], "box": [[1.0, 2], [], [3.0]]},
        _features(label=hf.Sequence(kind), box=hf.Sequence(hf.Value("float32"))),
    )
    lacking = [cells[0], None, {"bytes": b"no image", "path": "x.jpg"}]
    holes = _on_disk("holes", {"image": lacking, "label": [0, 1, 1]}, _features(label=kind))
    two = _on_disk("two", {"image": cells[:2], "depth": cells[2:4]}, _features(depth=hf.Image()))
    lists = _on_disk(
        "lists", {"pages": [cells[:2]]}, hf.Features({"pages": hf.Sequence(hf.Image())})
    )
    in_memory = hf.Dataset.from_dict(columns, _features(kind=kind, note=note))

    def from_hf(source: Any, **options: Any):
        return lambda: dp.Manifest.from_hf(source, progress=False, **options)

    return {
        "a data set": from_hf(one),
        "a data set, rows chosen": from_hf(one.select([5, 0, 0, 2])),
        "a data set, shuffled": from_hf(one.shuffle(seed=1)),
        "a data set as classes= orders them": from_hf(one, classes=["eel", "cat", "dog"]),
        "a data set, classes= lacks one": from_hf(one, classes=["cat"]),
        "a data set without labels": from_hf(one, with_labels=False),
        "a data set, strict": from_hf(one, strict=True),
        "a data set, labels named": from_hf(one, label="note"),
        "a data set, labels that are not there": from_hf(one, label="age"),
        "a data set, images that are not there": from_hf(one, image="picture"),
        "a data set, a column of text for images": from_hf(one, image="note"),
        "a data set of files": from_hf(of_files.cast_column("image", hf.Image())),
        "a data set of paths": from_hf(of_files, image="image"),
        "a data set of paths, not named": from_hf(of_files),
        "a data set with several labels": from_hf(several),
        "a data set with holes": from_hf(holes),
        "a data set with two images": from_hf(two),
        "a data set with two images, one named": from_hf(two, image="depth", with_labels=False),
        "a data set with lists of images": from_hf(lists),
        "a data set in memory": from_hf(in_memory),
        "a data set of splits": from_hf(hf.DatasetDict({"train": one, "test": one})),
        "a data set that streams": from_hf(one.to_iterable_dataset()),
        "a data set of another kind": from_hf([1, 2]),
        "a folder of save_to_disk": lambda: opened("set"),
    }
