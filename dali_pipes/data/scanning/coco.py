"""COCO's annotations: detection, keypoints, segmentation and captions in one JSON file. https://cocodataset.org/#format-data"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dali_pipes.data.labels import distinct_labels, is_unicode, no_labels
from dali_pipes.data.objects import BOX_LABELS, TARGET, Keypoints
from dali_pipes.data.outlines import problem_of
from dali_pipes.data.scanning.files import file_rows, read_headers, unused_rows
from dali_pipes.data.scanning.found import Found, checked
from dali_pipes.data.scanning.headers import Header, ScanOptions
from dali_pipes.errors import ManifestError

Entry = dict[str, Any]


@dataclass(slots=True)
class _File:
    """A file whose images and categories make sense.

    Attributes:
        places: of each image by its id.
        classes: number of each category by its id, in the order of their ids.
        objects, captions: annotations of each image, with their number in the file.
        strays: what is wrong with annotations of no image.
    """

    name: Path
    images: list[Entry]
    places: dict[Any, int]
    categories: list[Entry]
    classes: dict[Any, int]
    objects: list[list[tuple[int, Entry]]]
    captions: list[list[str]]
    strays: list[str] = field(default_factory=list)
    detects: bool = False


def scan_coco(file: Path, root: Path, check: ScanOptions) -> tuple[list[str], pa.Table, Keypoints | None]:
    """Class names, rows, and which keypoints there are."""
    read = _read(file)
    paths = [os.fsencode(image["file_name"]) for image in read.images]
    headers = list(read_headers(root, ((path, None) for path in paths), len(paths), check))
    if all(each.problem == "no such file or directory" for each in headers):
        raise ManifestError(f"{file}: none of its {len(paths):,} images is in {root}; give the folder that they are in as root")
    headers = [_same_size(file, image, header) for image, header in zip(read.images, headers, strict=True)]
    targets: dict[str, pa.Array] = {}
    keypoints = None
    labels = no_labels(len(paths))
    if read.detects:
        keypoints = _keypoints(read)
        headers, targets = checked(_found(read, headers, keypoints), headers, "xywh", check.targets.bad_objects)
        counts = targets[BOX_LABELS].value_lengths().to_numpy()
        labels = distinct_labels(counts, targets[BOX_LABELS].flatten().to_numpy(), len(read.classes))
    if any(read.captions):
        targets[TARGET + "text"] = pa.array([each[0] if each else "" for each in read.captions], pa.large_string())
    table = file_rows(paths, labels, headers, targets)
    strays = [(os.fsencode(os.path.relpath(file, root)), why) for why in read.strays]
    return [category["name"] for category in read.categories], pa.concat_tables([table, unused_rows(table, strays)]), keypoints


def _read(file: Path) -> _File:
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ManifestError(f"{file}: no such file; give a JSON file of COCO's form") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ManifestError(f"{file}: not a JSON file of COCO's form ({error})") from None
    lists: list[Any] = []
    if isinstance(content, dict):
        lists = [content.get("images"), content.get("annotations"), content.get("categories", [])]
    if not lists or not all(isinstance(each, list) for each in lists) or not lists[0]:
        raise ManifestError(f"{file}: not COCO's form; it needs the lists images, which must not be empty, and annotations")
    images, annotations, categories = lists
    _check_entries(file, "images", images, "file_name")
    _check_entries(file, "categories", categories, "name")
    categories = sorted(categories, key=lambda each: (str(type(each["id"])), each["id"]))
    places, classes = ({each["id"]: place for place, each in enumerate(entries)} for entries in (images, categories))
    read = _File(file, images, places, categories, classes, [[] for _ in images], [[] for _ in images])
    for number, entry in enumerate(annotations):
        _sort(read, number, entry)
    read.detects = bool(categories) or any(read.objects)
    return read


def _check_entries(file: Path, kind: str, entries: list[Any], name: str) -> None:
    seen: set[tuple[str, Any]] = set()
    for number, each in enumerate(entries):
        good = isinstance(each, dict) and _is_id(each.get("id")) and isinstance(each.get(name), str) and each[name]
        if not good or not is_unicode(each[name]) or (name == "file_name" and "\0" in each[name]):
            raise ManifestError(f"{file}: {kind}[{number}] needs an id and a {name}; correct or remove it")
        if name == "file_name" and os.path.normpath(each[name]).startswith(("/", "../")):
            outside = f"{file}: {kind}[{number}] has the file_name {each[name]!r:.80}, outside the folder of the images"
            raise ManifestError(f"{outside}; give a root that holds all of them, and names relative to the folder")
        for key in ("id", name):
            if (key, each[key]) in seen:
                other = f"{file}: {kind}[{number}] has the {key} {each[key]!r:.80} of another one"
                raise ManifestError(f"{other}; make them one, or give each its own")
            seen.add((key, each[key]))


def _sort(read: _File, number: int, entry: Any) -> None:
    """Puts an annotation to its image."""
    image = entry.get("image_id") if isinstance(entry, dict) else None
    place = read.places.get(image) if _is_id(image) else None
    if place is None:
        stray = f"its image_id {image!r:.40} is none of the file's images" if isinstance(entry, dict) else "it is no JSON object"
        read.strays.append(f"{_name(number, entry)}: {stray}; correct it or remove it")
    elif isinstance(entry.get("caption"), str):
        read.captions[place].append(entry["caption"].encode(errors="replace").decode())
    else:
        read.objects[place].append((number, entry))


def _name(number: int, entry: Any) -> str:
    return f"annotation {entry['id']!r:.40}" if isinstance(entry, dict) and "id" in entry else f"annotations[{number}]"


def _same_size(file: Path, image: Entry, header: Header) -> Header:
    said, found = (image.get("height", header.height), image.get("width", header.width)), (header.height, header.width)
    if header.problem or said == found:
        return header
    sizes = f"{file.name} has it as {said[1]!r:.20} × {said[0]!r:.20} pixels, and the file has {found[1]} × {found[0]}"
    return header._replace(problem=f"{sizes}, so its boxes are of another image; correct one of them")


def _keypoints(read: _File) -> Keypoints | None:
    found = [each["keypoints"] for each in read.categories if each.get("keypoints")]
    if not all(isinstance(each, list) and all(isinstance(name, str) for name in each) for each in found):
        raise ManifestError(f"{read.name}: the keypoints of its categories are not lists of names; correct them")
    if any(each != found[0] for each in found):
        raise ManifestError(f"{read.name}: its categories have different keypoints; write a file for each of them")
    return Keypoints.named(list(found[0])) if found else None


def _found(read: _File, headers: list[Header], keypoints: Keypoints | None) -> Found:
    entries = [(number, each, headers[place]) for place, some in enumerate(read.objects) for number, each in some]
    faults = {place: why for place, (_, each, header) in enumerate(entries) if (why := _fault(read, each, header, keypoints))}
    good = [{} if place in faults else each for place, (_, each, _) in enumerate(entries)]
    none = [0.0] * 3 * len(keypoints.names) if keypoints else []
    return Found(
        np.array(list(map(len, read.objects)), np.int64),
        np.array([each.get("bbox", [0.0] * 4) for each in good], np.float64).reshape(-1, 4),
        pa.array([read.classes[each["category_id"]] if each else 0 for each in good], pa.int64()),
        lambda place: _name(*entries[place][:2]),
        faults,
        np.array([each.get("area", each["bbox"][2] * each["bbox"][3]) if each else 0 for each in good], np.float64),
        np.array([bool(each.get("iscrowd")) for each in good], bool),
        np.array([each.get("keypoints") or none for each in good], np.float64).reshape(len(good), len(none)) if keypoints else None,
        [json.dumps(each.get("segmentation") or []) for each in good] if any(each.get("segmentation") for each in good) else None,
    )


def _fault(read: _File, entry: Entry, header: Header, keypoints: Keypoints | None) -> str | None:
    """What is wrong with an object, besides the place of its box; nothing of an image that cannot be used."""
    if not _are_numbers(entry.get("bbox"), 4):
        return "it has no bbox of four numbers"
    category = entry.get("category_id")
    if not _is_id(category) or category not in read.classes:
        return f"its category_id {category!r:.40} is none of the file's categories"
    if entry.get("iscrowd", 0) not in (0, 1):
        return f"its iscrowd is {entry['iscrowd']!r:.40}, neither 0 nor 1"
    if not _are_numbers([entry.get("area", 0.0)], 1):
        return "its area is not a number"
    if keypoints and entry.get("keypoints") and not _are_numbers(entry["keypoints"], 3 * len(keypoints.names)):
        return f"its keypoints are not {len(keypoints.names)} times x, y and visibility"
    return problem_of(entry.get("segmentation") or [], header.height, header.width) if not header.problem else None


def _is_id(value: Any) -> bool:
    return type(value) in (int, str)


def _are_numbers(values: Any, count: int) -> bool:
    if not isinstance(values, list) or len(values) != count:
        return False
    return all(type(each) is float or (type(each) is int and abs(each) < 2**63) for each in values)
