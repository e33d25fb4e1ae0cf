"""The content of a JSON file of COCO's form: images, categories and annotations.

`read_content` refuses a file if an image or a category has no valid id or name, and assigns each
annotation to its image. `build_objects` makes `SourceObjects` of the annotations. Their numbers and
polygons are read all at once, and looked at one by one only where that fails: a file of COCO's size
has a million. null is missing. Nothing else is repaired: an annotation that is not as COCO writes
it has a fault.
"""

import json
import os
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

Entry = dict[str, Any]


@dataclass(slots=True)
class CocoContent:
    """A file whose images and categories are valid.

    Attributes:
        categories: sorted by their ids, whole numbers before texts.
        objects: annotations of each image, with their positions in the file.
        captions: texts of each image.
        strays: what is wrong with annotations that belong to no image, and what each is called.
        doubts: what is read in another way than it may be meant.
    """

    file: Path
    images: list[Entry]
    categories: list[Entry]
    objects: list[list[tuple[int, Entry]]]
    captions: list[list[str]]
    strays: list[tuple[str, str]] = field(default_factory=list)
    doubts: list[Omission] = field(default_factory=list)

    @property
    def detects(self) -> bool:
        """Whether the file has categories or objects, and not only captions."""
        return bool(self.categories) or any(self.objects)


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

    images, doubts = _name_by_url(images)
    _check_entries(file, "images", images, "file_name")
    _check_entries(file, "categories", categories, "name")
    categories = sorted(categories, key=lambda entry: (type(entry["id"]) is str, entry["id"]))
    read = CocoContent(file, images, categories, [[] for _ in images], [[] for _ in images])
    read.doubts += doubts
    _assign(read, annotations)
    return read


def _name_by_url(images: list[Any]) -> tuple[list[Any], list[Omission]]:
    """The images with the last folder and the file of their coco_url as the name of those that have
    none, as in LVIS; and a note of it.
    """
    named, names = [], []
    for entry in images:
        url = entry.get("coco_url") if isinstance(entry, dict) else None
        if isinstance(url, str) and "file_name" not in entry:
            names.append("/".join(url.split("/")[-2:]))
            entry = entry | {"file_name": names[-1]}
        named.append(entry)
    what = "images without a file_name, which is taken from the end of their coco_url"
    return named, [doubt(what, names, len(names), "note")] if names else []


def _check_entries(file: Path, kind: str, entries: list[Any], name: str) -> None:
    # an id or a file that two entries share would make annotations ambiguous
    seen: set[tuple[str, Any]] = set()
    for number, entry in enumerate(entries):
        good = (
            isinstance(entry, dict)
            and _is_id(entry.get("id"))
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
            raise ManifestError(
                f"{file}: {kind}[{number}] has the file_name {entry[name]!r:.80}, outside the "
                "folder of the images; give a root that holds all of them, and names relative to "
                "the folder"
            )

        for key, value in (("id", entry["id"]), (name, meant)):
            if (key, value) in seen:
                other = f"{file}: {kind}[{number}] has the {key} {entry[key]!r:.80} of another one"
                raise ManifestError(f"{other}; make them one, or give each its own")
            seen.add((key, value))


def _is_id(value: Any) -> bool:
    return type(value) in (int, str) or (type(value) is float and value.is_integer())


def _normalize_name(name: str) -> str:
    """Returns the normalized path that a file name means: a/./b.jpg and, as Windows writes it,
    a\\b.jpg are a/b.jpg.
    """
    return os.path.normpath(os.fsdecode(normalize_path(os.fsencode(name))))


def _places(entries: list[Entry], ids: Iterable[Any]) -> list[int | None]:
    """Returns the position of the entry with each id; None: there is none."""
    places = {entry["id"]: place for place, entry in enumerate(entries)}
    # True would be 1 to a dict, and a list is no key
    return [places.get(each) if type(each) in (int, str, float) else None for each in ids]


def _assign(read: CocoContent, annotations: list[Any]) -> None:
    """Adds annotations to their images, in the order of the file, or to the strays."""
    ids = [entry.get("image_id") if isinstance(entry, dict) else None for entry in annotations]
    for number, (place, entry) in enumerate(
        zip(_places(read.images, ids), annotations, strict=True)
    ):
        if place is not None and "caption" not in entry:
            read.objects[place].append((number, entry))
            continue

        stray, name = None, _name_annotation(number, entry)
        if not isinstance(entry, dict):
            stray = "it is no JSON object"
        elif place is None:
            stray = "its image_id is none of the file's images"
            name = f"{name}: {ids[number]!r:.40}"
        elif isinstance(entry["caption"], str):
            # JSON's escapes may give half a character, which Arrow cannot hold
            read.captions[place].append(entry["caption"].encode(errors="replace").decode())
        elif entry.get("bbox") is None:
            stray, name = "its caption is no text", f"{name}: {entry['caption']!r:.40}"
        else:  # a box makes it an object, whatever its caption is
            read.objects[place].append((number, entry))
        if stray:
            read.strays.append((stray, name))


def _name_annotation(number: int, entry: Any) -> str:
    return (
        f"annotation {entry['id']!r:.40}"
        if isinstance(entry, dict) and "id" in entry
        else f"annotations[{number}]"
    )


_NUMBERS = {int, float}
_NO_OUTLINE: tuple[Any, ...] = (None, [], {}, [[]])


def build_objects(
    read: CocoContent, headers: list[Header], keypoints: Keypoints | None, upright: bool
) -> SourceObjects:
    """Returns the annotations of the images that have no problem, and adds doubts to `read`."""
    of_images = [
        [] if header.problem else annotations
        for annotations, header in zip(read.objects, headers, strict=True)
    ]
    counts = np.array(list(map(len, of_images)), np.int64)
    image = np.repeat(np.arange(len(headers)), counts).tolist()
    numbered = list(chain.from_iterable(of_images))
    entries = [entry for _, entry in numbered]

    given = [entry.get("bbox") for entry in entries]
    boxes, bad = _read_numbers(given, 4)
    bad_boxes = {n: f"it has no bbox of four numbers ({given[n]!r:.40})" for n in bad}
    labels, crowd, unknown = _read_kinds(read, entries)
    areas, bad_areas = _read_areas(entries, boxes)
    points, bad_points = _read_keypoints(read, entries, image, keypoints)
    outlines = [
        [] if entry.get("segmentation") in _NO_OUTLINE else entry["segmentation"]
        for entry in entries
    ]
    stored, bad_outlines = _read_outlines(outlines, [headers[place] for place in image], upright)
    # of several faults of an object the last one stays
    faults = bad_outlines | bad_points | bad_areas | unknown | bad_boxes

    polygons = [
        number
        for number, outline in enumerate(outlines)
        if outline and type(outline) is list and number not in faults
    ]
    names = [read.images[place]["file_name"] for place in image]
    read.doubts += _doubt_outlines(polygons, outlines, boxes, names)

    return SourceObjects(
        counts,
        boxes,
        labels,
        areas,
        crowd,
        points,
        [json.dumps(outline) for outline in stored] if any(outlines) else None,
        faults,
        lambda number: _name_annotation(*numbered[number]),
    )


def _read_kinds(
    read: CocoContent, entries: list[Entry]
) -> tuple[pa.Array, NDArray[np.bool_], dict[int, str]]:
    """Returns class numbers, which objects are crowds, and what is wrong with either."""
    ids = [entry.get("category_id") for entry in entries]
    labels = _places(read.categories, ids)
    crowd = [entry.get("iscrowd") for entry in entries]

    faults = {
        number: f"its iscrowd is neither 0 nor 1 ({value!r:.40})"
        for number, value in enumerate(crowd)
        if value not in (None, 0, 1)
    } | {
        number: f"its category_id is none of the file's categories ({ids[number]!r:.40})"
        for number, label in enumerate(labels)
        if label is None
    }
    # an object with a fault is dropped, whatever stands here for what is wrong
    classes = pa.array([label or 0 for label in labels], pa.int64())
    return classes, np.array([value == 1 for value in crowd], bool), faults


def _read_areas(
    entries: list[Entry], boxes: NDArray[np.float64]
) -> tuple[NDArray[np.float64], dict[int, str]]:
    """Returns areas, those of the boxes where there are none, and what is wrong with them."""
    given = [entry.get("area") for entry in entries]
    areas, bad = _read_numbers([[0 if area is None else area] for area in given], 1)
    is_unknown = np.array([area is None for area in given], bool)
    with np.errstate(all="ignore"):  # a box that is not finite is named later
        areas = np.where(is_unknown, boxes[:, 2] * boxes[:, 3], areas[:, 0])
    return (
        areas,
        {number: f"its area is no number ({given[number]!r:.40})" for number in bad},
    )


def _read_numbers(values: list[Any], width: int) -> tuple[NDArray[np.float64], list[int]]:
    """Reads M lists of `width` numbers, (M, width), and which of them are something else: these
    become zeros.
    """
    # NumPy would also take texts and booleans for numbers
    if all(type(value) is list and len(value) == width for value in values) and (
        _NUMBERS.issuperset(map(type, chain.from_iterable(values)))
    ):
        try:
            return np.array(values, np.float64).reshape(-1, width), []
        except OverflowError:  # a whole number of hundreds of digits
            pass
    if len(values) == 1:
        return np.zeros((1, width)), [0]

    # by halves, so that a few bad ones among a million are found soon
    half = len(values) // 2
    (first, bad), (second, others) = (
        _read_numbers(part, width) for part in (values[:half], values[half:])
    )
    return np.concatenate([first, second]), [*bad, *(half + number for number in others)]


def _read_keypoints(
    read: CocoContent, entries: list[Entry], image: list[int], keypoints: Keypoints | None
) -> tuple[NDArray[np.float64] | None, dict[int, str]]:
    """Returns (M, K, 3) x, y, visibility, zeros where there are none, and what is wrong with them;
    None: no category has names of keypoints.
    """
    given = [entry.get("keypoints") for entry in entries]
    if keypoints:
        wide = 3 * len(keypoints.names)
        points, bad = _read_numbers([each or [0] * wide for each in given], wide)
        why = f"its keypoints are not {len(keypoints.names)} times x, y and visibility"
        faults = {number: f"{why} ({given[number]!r:.40})" for number in bad}
        return points.reshape(-1, len(keypoints.names), 3), faults

    # zeros mean that there are none
    nameless = [
        read.images[place]["file_name"]
        for place, each in zip(image, given, strict=True)
        if each and (not isinstance(each, list) or any(each))
    ]
    if nameless:
        what = (
            "objects whose keypoints are not read, since no category says which they are; give "
            "it a list keypoints of names"
        )
        read.doubts.append(doubt(what, dict.fromkeys(nameless), len(nameless)))
    return None, {}


def _read_outlines(
    outlines: list[Any], headers: list[Header], upright: bool
) -> tuple[list[Any], dict[int, str]]:
    """Returns outlines as stored, and what is wrong with those that cannot be used, by number.

    Args:
        headers: of the image of each outline.
    """
    sizes = [(header.height, header.width, header.orientation) for header in headers]
    height, width, orientation = np.array(sizes, np.int64).reshape(-1, 3).T
    is_good = are_polygons(outlines, height, width) & ((orientation == 1) | (not upright))

    stored, faults = list(outlines), {}
    for number in np.flatnonzero(~is_good).tolist():
        tall, wide, turn = sizes[number]
        turn = turn if upright else 1
        if why := problem_of(outlines[number], *turn_size(tall, wide, turn)):
            faults[number] = f"its outline is wrong: {why}"
        else:
            stored[number] = outline_to_stored(outlines[number], tall, wide, turn)
    return stored, faults


_LOOKED = 5000  # polygons that are compared with their boxes, spread evenly over all
_FEWEST, _MANY = 3, 0.1  # of them; fewer are mistakes of single ones
_PIXELS, _SHARE = 2, 0.1  # of its side, by which an outline ends elsewhere than its box


def _doubt_outlines(
    polygons: list[int], outlines: list[Any], boxes: NDArray[np.float64], names: list[str]
) -> list[Omission]:
    """Polygons that are not where their boxes are, as if they were in fractions, or of an image of
    another size.

    Args:
        polygons: numbers of the outlines that are polygons without a fault.
        boxes: (M, 4) left, top, width, height.
        names: of the image of each object.
    """
    looked = polygons[:: -(-len(polygons) // _LOOKED) or 1]
    if not looked:
        return []
    ends = boxes[looked]
    ends[:, 2:] += ends[:, :2]
    is_odd = _are_elsewhere(_extents([outlines[number] for number in looked]), ends)
    odd = np.flatnonzero(is_odd).tolist()
    if len(odd) < max(_FEWEST, _MANY * len(looked)):
        return []

    what = (
        f"of {len(looked):,} polygons that were looked at, those that end elsewhere than the boxes "
        "of their objects; write polygons in pixels of the same image as the boxes"
    )
    return [doubt(what, dict.fromkeys(names[looked[place]] for place in odd), len(odd))]


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
