"""Annotations of COCO's form as `SourceObjects`: what makes one unusable, and what others lose.

Nearly all annotations are as COCO writes them: one look (`_is_plain`) costs less than to clean each
of them and to look at its parts one by one.
"""

import json

import numpy as np
import pyarrow as pa

from dali_pipes.data.image_files.headers import Header
from dali_pipes.data.keypoints import Keypoints
from dali_pipes.data.sources.coco.content import CocoContent, Entry, name_annotation
from dali_pipes.data.sources.coco.numbers import LARGEST_INT, are_numbers, to_numbers
from dali_pipes.data.sources.coco.outlines import read_outlines
from dali_pipes.data.sources.rows.source_objects import (
    SourceObjects,
)


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


def _is_plain(read: CocoContent, entry: Entry, keypoints: Keypoints | None) -> bool:
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
