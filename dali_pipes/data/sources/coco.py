"""COCO's annotations: detection, keypoints, segmentation and captions in one JSON file.
https://cocodataset.org/#format-data

`scan_coco` reads the file, refuses images and categories that make no sense (`_read`), reads the
headers of the images and compares their sizes with the file's (`_check_size`), turns the
annotations into objects (`_build_objects`), and checks these (`check_objects` of
source_objects.py). By default a bad annotation is listed and does not cost its image; a bad area,
outline or keypoint does not cost its object.

Programs write null for what they do not know, and numbers as text: null is missing, and "1" is 1.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dali_pipes.checks import check_choice
from dali_pipes.data.facts import ManifestFacts
from dali_pipes.data.image_files.headers import Header, ScanOptions
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.keypoints import Keypoints, check_flip_pairs
from dali_pipes.data.labels import COLUMN, distinct_labels, is_unicode, no_labels
from dali_pipes.data.limits import MAX_PIXELS
from dali_pipes.data.objects import BAD_OBJECTS, BOX_LABELS, TARGET, Targets
from dali_pipes.data.outlines import are_polygons, problem_of
from dali_pipes.data.sources.reading import finish
from dali_pipes.data.sources.rows.files import file_rows, unused_rows
from dali_pipes.data.sources.rows.listed_files import (
    MISSING_FILE_PROBLEMS,
    normalize_path,
    read_named,
)
from dali_pipes.data.sources.rows.source_objects import (
    SourceObjects,
    check_objects,
    refuse_without_objects,
)
from dali_pipes.data.upright import ANNOTATED, outline_to_stored, upright_size, warn_of_turned
from dali_pipes.errors import ManifestError

Entry = dict[str, Any]

IMAGE_ID = "image_id"

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LARGEST = 2**63  # whole numbers must be smaller, so that they fit into int64
_LONGEST = 300  # characters of a number that is written as text


class _Ids:
    """Looks up the position of each id, however the id is written: "1" and 1.0 are 1, unless
    another entry has exactly that id.
    """

    def __init__(self, ids: Iterable[Any]):
        self._places = {entry_id: place for place, entry_id in enumerate(ids)}

        # Entries with the same number, such as 1 and "01", are not found by the number.
        numbers = [(_number(entry_id), place) for entry_id, place in self._places.items()]
        counts = Counter(number for number, _ in numbers)
        self._by_number = {
            number: place for number, place in numbers if number is not None and counts[number] == 1
        }

    def get(self, value: Any) -> int | None:
        if not _is_id(value):
            return None
        place = self._places.get(value)
        if place is not None or (number := _number(value)) is None:
            return place
        return self._by_number.get(number)


@dataclass(slots=True)
class _File:
    """A file whose images and categories are valid.

    Attributes:
        places: positions of the images by their ids.
        categories: sorted by their ids.
        classes: class numbers by the ids of the categories.
        objects: annotations of each image, with their positions in the file.
        captions: texts of each image.
        strays: what is wrong with annotations that belong to no image.
        detects: whether the file has categories or objects, and not only captions.
    """

    name: Path
    images: list[Entry]
    places: _Ids
    categories: list[Entry]
    classes: _Ids
    objects: list[list[tuple[int, Entry]]]
    captions: list[list[str]]
    strays: list[str] = field(default_factory=list)
    detects: bool = False


def read_coco(
    annotations: str | Path,
    *,
    root: str | Path | None = None,
    bad_objects: str = "drop",
    flip_pairs: Sequence[Sequence[str]] | None = None,
    annotated: str | None = None,
    strict: bool = False,
    verify: str = "header",
    max_pixels: int = MAX_PIXELS,
    workers: int | None = None,
    progress: bool = True,
) -> ImageTable:
    """Reads the headers of the images in a JSON file of COCO's form.

    That is detection, keypoints, segmentation or captions.

    The categories, in the order of their ids, are the classes; `category_ids` has these ids,
    and the column `image_id`, which batches have too, has those of the images. Results in
    COCO's form need both (docs/objects.md). The first caption of an image is its text.

    Args:
        root: folder of the images; by default the file's.
        bad_objects: what becomes of an object that makes no sense, such as one with an empty
            box: "drop" leaves it out and lists it in `dropped`; "problem" leaves out its image.
            If only its outline makes no sense, "drop" keeps the object with its box.
        annotated: whether boxes, keypoints and outlines are in pixels of the images as
            "stored", or of the "upright" pictures, as their EXIF tags turn them and most
            programs show them; None: as stored, with a warning of images that are turned,
            unless their sizes in the file show that they are stored ones.
        flip_pairs: names of keypoints that become one another on a flip, such as [["eye_a",
            "eye_b"]]; []: none do; None: those that differ by the words "left" and "right", or
            "l" and "r".
        strict, verify, max_pixels: as for `scan`.

    Raises:
        ManifestError: no such file, or one that is not of this form (docs/objects.md); or it
            has objects, and none can be used.
    """
    check_choice("bad_objects", bad_objects, BAD_OBJECTS)
    check_choice("annotated", annotated, ANNOTATED)
    pairs = None if flip_pairs is None else check_flip_pairs("flip_pairs", flip_pairs)
    targets = Targets(bad_objects=bad_objects, flip_pairs=pairs, annotated=annotated)
    check = ScanOptions(verify, max_pixels, workers, progress, targets)

    file = Path(os.path.abspath(annotations))
    folder = Path(os.path.abspath(root or file.parent))
    classes, table, keypoints, category_ids = scan_coco(file, folder, check)

    facts = ManifestFacts(
        keypoints=keypoints,
        names_flip_pairs=pairs is not None,
        boxes_upright=annotated == "upright",
        category_ids=category_ids,
    )
    images = ImageTable.from_table(folder, classes, table, facts)
    return finish(images, None, strict)


def scan_coco(
    file: Path, root: Path, check: ScanOptions
) -> tuple[list[str], pa.Table, Keypoints | None, list[Any]]:
    """Returns class names, rows, the keypoints (None: there are none), and the id of each category.

    Raises ManifestError if the file is not of COCO's form, if none of its images is below `root`,
    or if it has objects and none of them can be used.
    """
    read = _read(file)
    paths, headers = read_named(
        root, [os.fsencode(image["file_name"]) for image in read.images], check
    )
    if all(header.problem in MISSING_FILE_PROBLEMS for header in headers):
        none = (
            f"none of its {len(paths):,} images is in {root}, the first is "
            f"{read.images[0]['file_name']!r:.80}"
        )
        raise ManifestError(f"{file}: {none}; give the folder that they are in as root")

    upright = check.targets.annotated == "upright"
    headers = [
        _check_size(file, image, header, upright)
        for image, header in zip(read.images, headers, strict=True)
    ]

    targets: dict[str, pa.Array] = {}
    keypoints = None
    labels = no_labels(len(paths))
    if read.detects:
        keypoints = _keypoints(read, check.targets.flip_pairs)
        usable = headers
        # nothing shows whether these were annotated as stored or upright
        if check.targets.annotated is None and (turned := _list_turned(read, headers)):
            warn_of_turned(file, len(turned), turned[0])
        headers, targets = check_objects(
            _build_objects(read, headers, keypoints, upright),
            headers,
            "xywh",
            check.targets.bad_objects,
        )

        # the label of an image: the classes that occur in it
        counts = targets[BOX_LABELS].value_lengths().to_numpy()
        labels = distinct_labels(
            counts, targets[BOX_LABELS].flatten().to_numpy(), len(read.categories)
        )

        # Such a file would train on images without objects.
        if (
            not counts.any()
            and not any(read.captions)
            and any(not header.problem for header in usable)
        ):
            refuse_without_objects(file, _list_faults(read, headers, targets))
    elif read.strays and not any(read.captions):
        refuse_without_objects(file, read.strays)

    if any(read.captions):
        targets[TARGET + "text"] = pa.array(
            [captions[0] if captions else "" for captions in read.captions], pa.large_string()
        )
    targets[COLUMN + IMAGE_ID] = _image_ids(read)

    table = file_rows(paths, labels, headers, targets)
    ids = [category["id"] for category in read.categories]
    strays = [(os.fsencode(os.path.relpath(file, root)), why) for why in read.strays]
    return (
        [category["name"] for category in read.categories],
        pa.concat_tables([table, unused_rows(table, strays)]),
        keypoints,
        ids,
    )


def _image_ids(read: _File) -> pa.Array:
    """Returns the ids of the images: int64 if all are numbers and stay distinct, else text."""
    numbers = [_number(image["id"]) for image in read.images]
    # the text 1e999 is infinite, which int() refuses
    if all(
        number is not None and abs(number) < _LARGEST and number == int(number)
        for number in numbers
    ):
        whole = [int(number or 0) for number in numbers]
        if len(set(whole)) == len(whole):  # "1" and "01" are two images
            return pa.array(whole, pa.int64())
    return pa.array(
        [str(image["id"]).encode(errors="replace").decode() for image in read.images],
        pa.large_string(),
    )


def _list_faults(read: _File, headers: list[Header], targets: dict[str, pa.Array]) -> list[str]:
    """Returns what is wrong with the annotations, for a file of which none is left."""
    lines = targets[TARGET + "dropped"].to_pylist()
    lost: list[str] = []
    for image, annotations, header, text in zip(
        read.images, read.objects, headers, lines, strict=True
    ):
        here = (
            text.splitlines()
            if not header.problem
            else [f"{image['file_name']!r:.80}: {header.problem}"] * len(annotations)
        )
        lost += here
    return lost + read.strays


def _read(file: Path) -> _File:
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ManifestError(f"{file}: no such file; give a JSON file of COCO's form") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ManifestError(f"{file}: not a JSON file of COCO's form ({error})") from None

    lists: list[Any] = []
    if isinstance(content, dict):
        lists = [content.get("images"), content.get("annotations"), content.get("categories") or []]
    if not lists or not all(isinstance(entries, list) for entries in lists) or not lists[0]:
        raise ManifestError(
            f"{file}: not COCO's form; it needs the lists images, which must not be empty, and "
            "annotations"
        )

    images, annotations, categories = lists
    _check_entries(file, "images", images, "file_name")
    _check_entries(file, "categories", categories, "name")
    categories = sorted(categories, key=_category_key)

    places, classes = (_Ids(entry["id"] for entry in entries) for entries in (images, categories))
    read = _File(
        file, images, places, categories, classes, [[] for _ in images], [[] for _ in images]
    )

    for number, entry in enumerate(annotations):
        _assign_annotation(read, number, entry)
    read.detects = bool(categories) or any(read.objects)
    return read


def _category_key(category: Entry) -> tuple[bool, float, str]:
    """Returns the sort key of a category: numbers, also those written as text, before other ids."""
    number = _number(category["id"])
    return number is None, number or 0, str(category["id"])


def _check_entries(file: Path, kind: str, entries: list[Any], name: str) -> None:
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
        meant = _normalize_name(entry[name]) if name == "file_name" else entry[name]
        if name == "file_name" and meant.startswith(("/", "../")):
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


def _assign_annotation(read: _File, number: int, entry: Any) -> None:
    """Adds an annotation to its image, or to the strays."""
    image = entry.get("image_id") if isinstance(entry, dict) else None
    place = read.places.get(image)

    if place is None:
        stray = (
            f"its image_id {image!r:.40} is none of the file's images"
            if isinstance(entry, dict)
            else "it is no JSON object"
        )
        read.strays.append(f"{_name(number, entry)}: {stray}; correct it or remove it")
    elif isinstance(entry.get("caption"), str):
        read.captions[place].append(entry["caption"].encode(errors="replace").decode())
    # a caption that is no text; with a box the annotation is an object all the same
    elif "caption" in entry and entry.get("bbox") is None:
        read.strays.append(
            f"{_name(number, entry)}: its caption is {entry['caption']!r:.40}, no text; "
            "correct it or remove it"
        )
    else:
        read.objects[place].append((number, entry))


def _name(number: int, entry: Any) -> str:
    return (
        f"annotation {entry['id']!r:.40}"
        if isinstance(entry, dict) and "id" in entry
        else f"annotations[{number}]"
    )


def _check_size(file: Path, image: Entry, header: Header, upright: bool) -> Header:
    given, found = (
        [_as_numbers(image.get(name)) for name in ("height", "width")],
        (header.height, header.width),
    )

    # Boxes of an upright picture need the sizes of the upright picture.
    turned = upright_size(*found, header.orientation)
    found, other = (turned, found) if upright else (found, turned)
    said = tuple(
        side if in_file is None else in_file for in_file, side in zip(given, found, strict=True)
    )
    if header.problem or said == found:
        return header

    sizes = (
        f"{file.name} has it as {said[1]!r:.20} × {said[0]!r:.20} pixels, and the file has "
        f"{found[1]} × {found[0]}"
    )

    # The sizes are those of the other orientation: most likely only `annotated` is wrong.
    if said == other:
        how, other_way = ("as stored", "stored") if upright else ("upright", "upright")
        why = (
            f"{sizes}: it was annotated {how}, and its EXIF tag turns it; set "
            f"annotated='{other_way}'"
        )
        return header._replace(problem=why)
    return header._replace(
        problem=f"{sizes}, so its boxes are of another image; correct one of them"
    )


def _list_turned(read: _File, headers: list[Header]) -> list[str]:
    """Returns the names of images with objects whose EXIF tag turns them, unless their size in the
    file shows that they were annotated as stored.
    """
    found = []
    for image, annotations, header in zip(read.images, read.objects, headers, strict=True):
        if header.orientation != 1 and annotations and not header.problem:
            sized = image.get("height") is not None and image.get("width") is not None
            if not sized or upright_size(header.height, header.width, header.orientation) == (
                header.height,
                header.width,
            ):
                found.append(image["file_name"])
    return found


def _keypoints(read: _File, flip_pairs: list[list[str]] | None) -> Keypoints | None:
    name_lists = [
        category["keypoints"] for category in read.categories if category.get("keypoints")
    ]
    if not all(
        isinstance(names, list) and all(isinstance(name, str) for name in names)
        for names in name_lists
    ):
        raise ManifestError(
            f"{read.name}: the keypoints of its categories are not lists of names; correct them"
        )

    # A manifest has one list of keypoints for all objects.
    if any(names != name_lists[0] for names in name_lists):
        raise ManifestError(
            f"{read.name}: its categories have different keypoints; write a file for each of them"
        )

    return Keypoints.from_names(list(name_lists[0]), flip_pairs) if name_lists else None


def _build_objects(
    read: _File, headers: list[Header], keypoints: Keypoints | None, upright: bool
) -> SourceObjects:
    counts = np.array(list(map(len, read.objects)), np.int64)
    numbers, entries = [], []
    for annotations in read.objects:
        numbers += [number for number, _ in annotations]
        entries += [entry for _, entry in annotations]

    good, faults, lost = _good_entries(read, entries, keypoints)
    image = np.repeat(np.arange(len(headers)), counts).tolist()
    outlines, bad = _outlines(good, [headers[number] for number in image], upright)
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
        lambda place: _name(numbers[place], entries[place]),
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
    read: _File, entries: list[Entry], keypoints: Keypoints | None
) -> tuple[list[Entry], dict[int, str], dict[int, list[str]]]:
    """Returns the annotations as COCO writes them, why some cannot be used, and what parts others
    lose.

    An annotation that cannot be used is an empty dict in the list.
    """
    good, faults, lost = list(entries), {}, {}
    for place, entry in enumerate(entries):
        # Nearly all are as COCO writes them: one look costs less than to clean each and to look at
        # its parts one by one.
        if _is_plain(read, entry, keypoints):
            continue

        entry = _clean_entry(entry)
        if why := _fault(read, entry):
            good[place], faults[place] = {}, why
            continue
        without, good[place] = _good_parts(entry, keypoints)
        if without:
            lost[place] = without
    return good, faults, lost


def _is_plain(read: _File, entry: Entry, keypoints: Keypoints | None) -> bool:
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
        or None in entry.values()
    ):
        return False

    for number in (*box, area):
        if type(number) is not float and (
            type(number) is not int or not -_LARGEST < number < _LARGEST
        ):
            return False

    if points and (keypoints is None or not _are_numbers(points, 3 * len(keypoints.names))):
        return False
    return read.classes.get(entry.get("category_id")) is not None


def _clean_entry(entry: Entry) -> Entry:
    """Returns an annotation without null values, and with numbers for those written as text.

    The outline stays as it is; `_repair_outline` looks at it if it needs to.
    """
    entry = {name: value for name, value in entry.items() if value is not None}
    changed = {
        name: _as_numbers(entry[name])
        for name in ("bbox", "area", "iscrowd", "keypoints")
        if name in entry
    }
    return entry | changed


def _fault(read: _File, entry: Entry) -> str | None:
    """Returns what makes an object unusable, apart from the position of its box; None: nothing."""
    if not _are_numbers(entry.get("bbox"), 4):
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
    lost, points = [], entry.get("keypoints")
    if not _are_numbers([entry.get("area", 0.0)], 1):
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
    elif points and not _are_numbers(points, 3 * len(keypoints.names)):
        lost.append(
            f"its keypoints are left out: they are not {len(keypoints.names)} times x, y and "
            "visibility"
        )
        del entry["keypoints"]
    return lost, entry


def _outlines(
    entries: list[Entry], headers: list[Header], upright: bool
) -> tuple[list[Any], dict[int, str]]:
    """Returns the outlines of objects as stored, and what is wrong with those that are left out, by
    position. An object without an outline has an empty list.
    """
    found = [entry.get("segmentation") or [] for entry in entries]
    sizes = [(header.height, header.width, header.orientation) for header in headers]
    height, width, orientation = np.array(sizes, np.int64).reshape(-1, 3).T

    # Polygons that are good as they are, nearly all, are checked together; the others one by one.
    plain = are_polygons(found, height, width) & ((orientation == 1) | (not upright))
    bad: dict[int, str] = {}
    for place in np.flatnonzero(~plain).tolist():
        found[place], why = _outline(found[place], headers[place], upright)
        if why:
            bad[place] = why
    return found, bad


def _outline(outline: Any, header: Header, upright: bool) -> tuple[Any, str | None]:
    turn = header.orientation if upright else 1
    size = upright_size(header.height, header.width, turn)
    if header.problem:
        return outline, None
    if not (why := problem_of(outline, *size)):
        return outline_to_stored(outline, *size, turn), None

    # Looking at each number takes time, so only outlines that would be left out are repaired.
    outline = _repair_outline(outline, size)
    why = problem_of(outline, *size) if outline else why
    return ([], why) if why else (outline_to_stored(outline, *size, turn), None)


def _repair_outline(outline: Any, image: tuple[int, int]) -> Any:
    """Returns an outline with numbers for those written as text, and without empty polygons.

    A plain list of numbers is one polygon, as it is to pycocotools.
    """
    if isinstance(outline, dict):
        size = _as_numbers(outline.get("size")) or list(image)
        counts = outline.get("counts")
        return outline | {
            "size": size,
            "counts": _whole_numbers(_as_numbers(counts)) if isinstance(counts, list) else counts,
        }

    if not isinstance(outline, list):
        return outline
    outline = [_as_numbers(polygon) for polygon in outline]

    if outline and not any(isinstance(polygon, list) for polygon in outline):
        return [outline]
    return [polygon for polygon in outline if polygon not in ([], None)]


def _whole_numbers(numbers: list[Any]) -> list[Any]:
    return [
        int(number) if isinstance(number, float) and number.is_integer() else number
        for number in numbers
    ]


def _is_id(value: Any) -> bool:
    return type(value) in (int, str) or (type(value) is float and value.is_integer())


def _number(value: Any) -> int | float | None:
    """Returns a number, also one that is written as text; None: it is neither."""
    # `type(…) in`, since a bool is an int to isinstance
    if type(value) in (int, float):
        return value

    if (
        type(value) is not str
        or len(value) > _LONGEST
        or not _NUMBER.fullmatch(text := value.strip())
    ):
        return None
    return int(text) if text.lstrip("+-").isdecimal() else float(text)


def _as_numbers(value: Any) -> Any:
    """Returns a number, or a list of them, for what is written as text, and anything else
    unchanged.
    """
    if isinstance(value, list):
        return (
            [_as_numbers(item) if type(item) is str else item for item in value]
            if any(type(item) is str for item in value)
            else value
        )
    number = _number(value) if type(value) is str else None
    return value if number is None else number


def _are_numbers(values: Any, count: int) -> bool:
    if not isinstance(values, list) or len(values) != count:
        return False
    return all(
        type(value) is float or (type(value) is int and abs(value) < _LARGEST) for value in values
    )
