"""Outlines of COCO's form, polygons or run lengths: checked, repaired, and turned to the image as
stored. `doubt_outlines` compares some with their boxes.
"""

from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.data.doubts import doubt
from dali_pipes.data.image_files.headers import Header
from dali_pipes.data.omissions import Omission
from dali_pipes.data.outlines import are_polygons, problem_of
from dali_pipes.data.sources.coco.content import CocoContent, Entry
from dali_pipes.data.sources.coco.numbers import are_numbers, to_numbers
from dali_pipes.data.upright import outline_to_stored, upright_size

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
