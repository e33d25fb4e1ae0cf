"""Outlines of COCO's form, polygons or run lengths: checked, repaired, and turned to the image as
stored.
"""

from typing import Any

import numpy as np

from dali_pipes.data.image_files.headers import Header
from dali_pipes.data.outlines import are_polygons, problem_of
from dali_pipes.data.sources.coco.content import Entry
from dali_pipes.data.sources.coco.numbers import to_numbers
from dali_pipes.data.upright import outline_to_stored, upright_size


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
