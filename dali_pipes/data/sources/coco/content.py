"""The content of a JSON file of COCO's form: images, categories and annotations.

A file is refused if an image or a category has no valid id or name. Each annotation is assigned to
its image.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dali_pipes.data.arrow_types import is_unicode
from dali_pipes.data.composed import composed
from dali_pipes.data.sources.coco.numbers import is_id, to_number
from dali_pipes.data.sources.rows.listed_files import (
    normalize_path,
)
from dali_pipes.errors import ManifestError

Entry = dict[str, Any]


class Ids:
    """Looks up the position of each id, however the id is written: "1" and 1.0 are 1, unless
    another entry has exactly that id.
    """

    def __init__(self, ids: Iterable[Any]):
        self._places = {entry_id: place for place, entry_id in enumerate(ids)}

        # Entries with the same number, such as 1 and "01", are not found by the number.
        numbers = [(to_number(entry_id), place) for entry_id, place in self._places.items()]
        counts = Counter(number for number, _ in numbers)
        self._by_number = {
            number: place for number, place in numbers if number is not None and counts[number] == 1
        }

    def get(self, value: Any) -> int | None:
        if not is_id(value):
            return None
        place = self._places.get(value)
        if place is not None or (number := to_number(value)) is None:
            return place
        return self._by_number.get(number)


@dataclass(slots=True)
class CocoContent:
    """A file whose images and categories are valid.

    Attributes:
        places: positions of the images by their ids.
        categories: sorted by their ids.
        classes: class numbers by the ids of the categories.
        objects: annotations of each image, with their positions in the file.
        captions: texts of each image.
        strays: what is wrong with annotations that belong to no image.
        named_by_url: the file names that are taken from addresses.
        detects: whether the file has categories or objects, and not only captions.
    """

    name: Path
    images: list[Entry]
    places: Ids
    categories: list[Entry]
    classes: Ids
    objects: list[list[tuple[int, Entry]]]
    captions: list[list[str]]
    strays: list[str] = field(default_factory=list)
    detects: bool = False
    named_by_url: list[str] = field(default_factory=list)


def read_content(file: Path) -> CocoContent:
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ManifestError(f"{file}: no such file; give a JSON file of COCO's form") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ManifestError(f"{file}: not a JSON file of COCO's form ({error})") from None

    # files of captions have no categories
    lists: list[Any] = []
    if isinstance(content, dict):
        lists = [content.get("images"), content.get("annotations"), content.get("categories") or []]
    if not lists or not all(isinstance(entries, list) for entries in lists) or not lists[0]:
        raise ManifestError(
            f"{file}: not COCO's form; it needs the lists images, which must not be empty, and "
            "annotations"
        )

    images, annotations, categories = lists
    if any(isinstance(entry, dict) and "segments_info" in entry for entry in annotations):
        raise ManifestError(
            f"{file}: a panoptic file, whose annotations are segments of a mask; give the file of "
            "instances, such as instances_train2017.json"
        )
    images, named_by_url = _name_by_url(images)
    _check_entries(file, "images", images, "file_name")
    _check_entries(file, "categories", categories, "name")
    categories = sorted(categories, key=_category_key)

    places, classes = (Ids(entry["id"] for entry in entries) for entries in (images, categories))
    read = CocoContent(
        file, images, places, categories, classes, [[] for _ in images], [[] for _ in images]
    )

    # in the order of the file, which is that of the objects of an image
    for number, entry in enumerate(annotations):
        _assign_annotation(read, number, entry)
    read.detects = bool(categories) or any(read.objects)
    read.named_by_url = named_by_url
    return read


def _name_by_url(images: list[Any]) -> tuple[list[Any], list[str]]:
    """The images with the last folder and the file of their coco_url as the name of those that have
    none, as in LVIS; and these names.
    """
    named, names = [], []
    for entry in images:
        url = entry.get("coco_url") if isinstance(entry, dict) else None
        if isinstance(url, str) and "file_name" not in entry:
            names.append("/".join(url.split("/")[-2:]))
            entry = entry | {"file_name": names[-1]}
        named.append(entry)
    return named, names


def _category_key(category: Entry) -> tuple[bool, float, str]:
    """Returns the sort key of a category: numbers, also those written as text, before other ids."""
    number = to_number(category["id"])
    return number is None, number or 0, str(category["id"])


def _check_entries(file: Path, kind: str, entries: list[Any], name: str) -> None:
    # an id or a file that two entries share would make annotations ambiguous
    seen: set[tuple[str, Any]] = set()
    for number, entry in enumerate(entries):
        good = (
            isinstance(entry, dict)
            and is_id(entry.get("id"))
            and isinstance(entry.get(name), str)
            and entry[name]
        )

        if not good or not is_unicode(entry[name]) or (name == "file_name" and "\0" in entry[name]):
            raise ManifestError(
                f"{file}: {kind}[{number}] needs an id and a {name}; correct or remove it"
            )

        # a/./b.jpg and a\b.jpg are a/b.jpg: two entries for one file would give it two rows
        meant = _normalize_name(entry[name]) if name == "file_name" else composed(entry[name])
        if name == "file_name" and meant.startswith("../"):
            outside = (
                f"{file}: {kind}[{number}] has the file_name {entry[name]!r:.80}, outside the "
                "folder of the images"
            )
            raise ManifestError(
                f"{outside}; give a root that holds all of them, and names relative to the folder"
            )

        for key, value in (("id", entry["id"]), (name, meant)):
            if (key, value) in seen:
                other = f"{file}: {kind}[{number}] has the {key} {entry[key]!r:.80} of another one"
                raise ManifestError(f"{other}; make them one, or give each its own")
            seen.add((key, value))


def _normalize_name(name: str) -> str:
    """Returns the normalized path that a file name means: a/./b.jpg and, as Windows writes it,
    a\\b.jpg are a/b.jpg.
    """
    return os.path.normpath(os.fsdecode(normalize_path(os.fsencode(name))))


def _assign_annotation(read: CocoContent, number: int, entry: Any) -> None:
    """Adds an annotation to its image, or to the strays."""
    image = entry.get("image_id") if isinstance(entry, dict) else None
    place = read.places.get(image)

    if place is None:
        stray = (
            f"its image_id {image!r:.40} is none of the file's images"
            if isinstance(entry, dict)
            else "it is no JSON object"
        )
        read.strays.append(f"{name_annotation(number, entry)}: {stray}; correct it or remove it")
    elif isinstance(entry.get("caption"), str):
        # JSON's escapes may give half a character, which Arrow cannot hold
        read.captions[place].append(entry["caption"].encode(errors="replace").decode())
    # a caption that is no text; with a box the annotation is an object all the same
    elif "caption" in entry and entry.get("bbox") is None:
        read.strays.append(
            f"{name_annotation(number, entry)}: its caption is {entry['caption']!r:.40}, no text; "
            "correct it or remove it"
        )
    else:
        read.objects[place].append((number, entry))


def name_annotation(number: int, entry: Any) -> str:
    return (
        f"annotation {entry['id']!r:.40}"
        if isinstance(entry, dict) and "id" in entry
        else f"annotations[{number}]"
    )
