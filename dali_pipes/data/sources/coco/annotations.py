"""The content of a JSON file of COCO's form: images, categories and annotations.

A file is refused if an image or a category has no valid id or name. Each annotation is assigned to
its image.

Annotations become `SourceObjects`: what makes one unusable, and what others lose. Nearly all are as
COCO writes them: one look (`_is_plain_entry`) costs less than to clean each of them and to look at
its parts one by one. Their outlines, polygons or run lengths, are checked, repaired, and turned to
the image as stored; `doubt_outlines` compares some with their boxes. Programs write null for what
they do not know, and numbers as text: null is missing, and "1" is 1.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dali_pipes.data.arrow_types import is_unicode
from dali_pipes.data.composed import composed
from dali_pipes.data.doubts import doubt
from dali_pipes.data.image_files.headers import Header
from dali_pipes.data.objects import Keypoints
from dali_pipes.data.omissions import Omission
from dali_pipes.data.outlines import are_polygons, outline_to_stored, problem_of
from dali_pipes.data.sources.rows.files import normalize_path
from dali_pipes.data.sources.rows.objects import SourceObjects
from dali_pipes.data.turns import turn_size
from dali_pipes.errors import ManifestError

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
LARGEST_INT = 2**63  # whole numbers must be smaller, so that they fit into int64
_LONGEST = 300  # characters of a number that is written as text


def is_id(value: Any) -> bool:
    return type(value) in (int, str) or (type(value) is float and value.is_integer())


def to_number(value: Any) -> int | float | None:
    """Returns a number, also one that is written as text; None: it is neither."""
    # `type(…) in`, since a bool is an int to isinstance
    if type(value) in (int, float):
        return value

    # a longer text is no number that anybody meant, and int() fails from 4,300 digits on
    if (
        type(value) is not str
        or len(value) > _LONGEST
        or not _NUMBER.fullmatch(text := value.strip())
    ):
        return None
    return int(text) if text.lstrip("+-").isdecimal() else float(text)


def to_numbers(value: Any) -> Any:
    """Returns a number, or a list of them, for what is written as text, and anything else
    unchanged.
    """
    if isinstance(value, list):
        return (
            [to_numbers(item) if type(item) is str else item for item in value]
            if any(type(item) is str for item in value)
            else value
        )
    number = to_number(value) if type(value) is str else None
    return value if number is None else number


def are_numbers(values: Any, count: int) -> bool:
    if not isinstance(values, list) or len(values) != count:
        return False
    return all(
        type(value) is float or (type(value) is int and abs(value) < LARGEST_INT)
        for value in values
    )


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


_LOOKED = 5000  # polygons that are compared with their boxes, spread evenly over all
_FEWEST, _MANY = 3, 0.1  # of them; fewer are mistakes of single ones
_PIXELS, _SHARE = 2, 0.1  # of its side, by which an outline ends elsewhere than its box


def doubt_outlines(read: CocoContent) -> list[Omission]:
    """Polygons that are not where their boxes are, as if they were in fractions, or of an image of
    another size.
    """
    entries = [
        (place, entry)
        for place, annotations in enumerate(read.objects)
        for _, entry in annotations
        if type(entry.get("segmentation")) is list and entry["segmentation"]
    ]
    entries = entries[:: -(-len(entries) // _LOOKED) or 1]
    # others are looked at one by one, and left out if they make no sense
    plain = [(place, entry) for place, entry in entries if _is_plain(entry)]
    if not plain:
        return []

    boxes = np.array([entry["bbox"] for _, entry in plain], np.float64)
    boxes[:, 2:] += boxes[:, :2]
    is_odd = _are_elsewhere(_extents([entry["segmentation"] for _, entry in plain]), boxes)
    odd = np.flatnonzero(is_odd).tolist()
    if len(odd) < max(_FEWEST, _MANY * len(plain)):
        return []
    what = (
        f"of {len(plain):,} polygons that were looked at, those that end elsewhere than the boxes "
        "of their objects; write polygons in pixels of the same image as the boxes"
    )
    names = dict.fromkeys(read.images[plain[place][0]]["file_name"] for place in odd)
    return [doubt(what, names, len(odd))]


def _is_plain(entry: Entry) -> bool:
    return are_numbers(entry.get("bbox"), 4) and all(
        type(polygon) is list
        and len(polygon) >= 6
        and len(polygon) % 2 == 0
        and are_numbers(polygon, len(polygon))
        for polygon in entry["segmentation"]
    )


def _extents(outlines: list[list[list[float]]]) -> NDArray[np.float64]:
    """(M, 4) left, top, right, bottom of all polygons of each outline."""
    flat = [list(chain.from_iterable(outline)) for outline in outlines]
    points = np.array(list(chain.from_iterable(flat)), np.float64).reshape(-1, 2)
    first = np.cumsum([0, *(len(numbers) // 2 for numbers in flat[:-1])])
    ends = (np.minimum.reduceat(points, first), np.maximum.reduceat(points, first))
    return np.concatenate(ends, axis=1)


def _are_elsewhere(extents: NDArray[np.float64], boxes: NDArray[np.float64]) -> NDArray[np.bool_]:
    sides = np.tile(boxes[:, 2:] - boxes[:, :2], 2)
    with np.errstate(all="ignore"):  # some numbers are not finite
        return np.asarray((np.abs(extents - boxes) > _PIXELS + _SHARE * sides).any(axis=1))


def read_outlines(
    entries: list[Entry], headers: list[Header], upright: bool
) -> tuple[list[Any], dict[int, str]]:
    """Returns the outlines of objects as stored, and what is wrong with those that are left out, by
    position. An object without an outline has an empty list.
    """
    outlines = [entry.get("segmentation") or [] for entry in entries]
    sizes = [(header.height, header.width, header.orientation) for header in headers]
    height, width, orientation = np.array(sizes, np.int64).reshape(-1, 3).T

    # Polygons that are good as they are, nearly all, are checked together; the others one by one.
    plain = are_polygons(outlines, height, width) & ((orientation == 1) | (not upright))
    bad: dict[int, str] = {}
    for place in np.flatnonzero(~plain).tolist():
        outlines[place], why = _read_outline(outlines[place], headers[place], upright)
        if why:
            bad[place] = why
    return outlines, bad


def _read_outline(outline: Any, header: Header, upright: bool) -> tuple[Any, str | None]:
    turn = header.orientation if upright else 1
    size = turn_size(header.height, header.width, turn)
    if header.problem:
        return outline, None
    if not (why := problem_of(outline, *size)):
        return outline_to_stored(outline, header.height, header.width, turn), None

    # Looking at each number takes time, so only outlines that would be left out are repaired.
    outline = _repair_outline(outline, size)
    why = problem_of(outline, *size) if outline else why
    return (
        ([], why)
        if why
        else (
            outline_to_stored(outline, header.height, header.width, turn),
            None,
        )
    )


def _repair_outline(outline: Any, image: tuple[int, int]) -> Any:
    """Returns an outline with numbers for those written as text, and without empty polygons.

    A plain list of numbers is one polygon, as it is to pycocotools.
    """
    # run lengths, which may be numbers or packed into text
    if isinstance(outline, dict):
        size = to_numbers(outline.get("size")) or list(image)
        counts = outline.get("counts")
        return outline | {
            "size": size,
            "counts": _whole_numbers(to_numbers(counts)) if isinstance(counts, list) else counts,
        }

    if not isinstance(outline, list):
        return outline
    outline = [to_numbers(polygon) for polygon in outline]

    # [x, y, x, y, …] instead of a list of polygons
    if outline and not any(isinstance(polygon, list) for polygon in outline):
        return [outline]
    return [polygon for polygon in outline if polygon not in ([], None)]


def _whole_numbers(numbers: list[Any]) -> list[Any]:
    return [
        int(number) if isinstance(number, float) and number.is_integer() else number
        for number in numbers
    ]


def build_objects(
    read: CocoContent, headers: list[Header], keypoints: Keypoints | None, upright: bool
) -> SourceObjects:
    # the annotations of all images, one after the other
    counts = np.array(list(map(len, read.objects)), np.int64)
    numbers, entries = [], []
    for annotations in read.objects:
        numbers += [number for number, _ in annotations]
        entries += [entry for _, entry in annotations]

    good, faults, lost = _good_entries(read, entries, keypoints)
    # outlines are checked against the size of the image of each annotation
    image = np.repeat(np.arange(len(headers)), counts).tolist()
    outlines, bad = read_outlines(good, [headers[number] for number in image], upright)
    for place, why in bad.items():
        lost.setdefault(place, []).append(f"its outline is left out: {why}")

    # the keypoints of an object that has none
    none = [0.0] * 3 * len(keypoints.names) if keypoints else []
    return SourceObjects(
        counts,
        # an entry that cannot be used is empty: `faults` names it, and its zeros are dropped
        np.array([entry.get("bbox", [0.0] * 4) for entry in good], np.float64).reshape(-1, 4),
        pa.array(
            [read.classes.get(entry["category_id"]) if entry else 0 for entry in good], pa.int64()
        ),
        lambda place: name_annotation(numbers[place], entries[place]),
        faults,
        np.array([_area(entry) if entry else 0 for entry in good], np.float64),
        np.array([bool(entry.get("iscrowd")) for entry in good], bool),
        np.array([entry.get("keypoints") or none for entry in good], np.float64).reshape(
            len(good), len(none)
        )
        if keypoints
        else None,
        [json.dumps(outline) for outline in outlines]
        if any(entry.get("segmentation") for entry in good)
        else None,
        lost,
        "upright" if upright else "stored",
        keypoints.flipped if keypoints else [],
    )


def _area(entry: Entry) -> float:
    return entry["area"] if "area" in entry else entry["bbox"][2] * entry["bbox"][3]


def _good_entries(
    read: CocoContent, entries: list[Entry], keypoints: Keypoints | None
) -> tuple[list[Entry], dict[int, str], dict[int, list[str]]]:
    """Returns the annotations as COCO writes them, why some cannot be used, and what parts others
    lose.

    An annotation that cannot be used is an empty dict in the list.
    """
    good, faults, lost = list(entries), {}, {}
    for place, entry in enumerate(entries):
        # Nearly all are as COCO writes them: one look costs less than to clean each and to look at
        # its parts one by one.
        if _is_plain_entry(read, entry, keypoints):
            continue

        entry = _clean_entry(entry)
        if why := _fault(read, entry):
            good[place], faults[place] = {}, why
            continue
        without, good[place] = _good_parts(entry, keypoints)
        if without:
            lost[place] = without
    return good, faults, lost


def _is_plain_entry(read: CocoContent, entry: Entry, keypoints: Keypoints | None) -> bool:
    """Whether all but the outline is as COCO writes it.

    Other annotations may be good as well; they need `_clean_entry`.
    """
    box, area, crowd, points = (
        entry.get("bbox"),
        entry.get("area", 0),
        entry.get("iscrowd", 0),
        entry.get("keypoints"),
    )

    # `type(…) is`, since True and False are ints to isinstance
    if (
        type(box) is not list
        or len(box) != 4
        or type(crowd) is not int
        or not 0 <= crowd <= 1
        # null stands for what a program does not know, and `_clean_entry` removes it
        or None in entry.values()
    ):
        return False

    for number in (*box, area):
        if type(number) is not float and (
            type(number) is not int or not -LARGEST_INT < number < LARGEST_INT
        ):
            return False

    if points and (keypoints is None or not are_numbers(points, 3 * len(keypoints.names))):
        return False
    return read.classes.get(entry.get("category_id")) is not None


def _clean_entry(entry: Entry) -> Entry:
    """Returns an annotation without null values, and with numbers for those written as text.

    The outline stays as it is; `_repair_outline` looks at it if it needs to.
    """
    entry = {name: value for name, value in entry.items() if value is not None}
    changed = {
        name: to_numbers(entry[name])
        for name in ("bbox", "area", "iscrowd", "keypoints")
        if name in entry
    }
    return entry | changed


def _fault(read: CocoContent, entry: Entry) -> str | None:
    """Returns what makes an object unusable, apart from the position of its box; None: nothing."""
    if not are_numbers(entry.get("bbox"), 4):
        return "it has no bbox of four numbers"
    category = entry.get("category_id")
    if read.classes.get(category) is None:
        return f"its category_id {category!r:.40} is none of the file's categories"
    if entry.get("iscrowd", 0) not in (0, 1):
        return f"its iscrowd is {entry['iscrowd']!r:.40}, neither 0 nor 1"
    return None


def _good_parts(entry: Entry, keypoints: Keypoints | None) -> tuple[list[str], Entry]:
    """Removes an area and keypoints that are no numbers; returns what was removed and why, and the
    object.
    """
    # the annotation is a copy (`_clean_entry`), so that parts can be taken out of it
    lost, points = [], entry.get("keypoints")
    if not are_numbers([entry.get("area", 0.0)], 1):
        lost.append(
            "its area is taken from its box: the one given is no number "
            f"({entry.pop('area')!r:.40})"
        )

    # Keypoints that no category names cannot be told apart. Zeros mean that there are none.
    if keypoints is None:
        if points and any(points if isinstance(points, list) else [points]):
            lost.append(
                "its keypoints are left out: no category says which they are, by a list "
                "keypoints of names"
            )
    elif points and not are_numbers(points, 3 * len(keypoints.names)):
        lost.append(
            f"its keypoints are left out: they are not {len(keypoints.names)} times x, y and "
            "visibility"
        )
        del entry["keypoints"]
    return lost, entry
