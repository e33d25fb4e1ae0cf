"""Reads the headers of the masks and of the further images of many images, in several processes."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from stat import S_ISREG as is_regular
from typing import Any, BinaryIO

from dali_pipes.data.image_files.headers import (
    NOT_REGULAR,
    Header,
    ScanOptions,
    describe_os_error,
)
from dali_pipes.data.image_files.masks import mask_problem, mask_size
from dali_pipes.data.image_files.target_images import place_of, target_image_problem
from dali_pipes.data.sources.rows.files import map_items

Find = Callable[[BinaryIO, Any, str], str | None]


def check_mask_files(
    root: Path, masks: Sequence[bytes], headers: list[Header], check: ScanOptions
) -> list[Header]:
    """Returns the headers, with what is wrong with a mask as the problem of its image.

    `masks` are paths relative to the root; b"": the mask is missing.
    """
    sizes = [mask_size(header, check) for header in headers]
    find = partial(_find_problem, "mask", "no mask of its name", _problem_of_mask)
    return _check_files(root, masks, sizes, headers, check, find)


def check_target_images(
    root: Path, name: str, files: Sequence[bytes], headers: list[Header], check: ScanOptions
) -> list[Header]:
    """Returns the headers, with what is wrong with a further image as the problem of its image.

    Args:
        name: that batches have for them.
        files: paths relative to the root; b"": the image is missing.
    """
    is_upright = check.targets.annotated == "upright"
    places = [
        place_of(header.height, header.width, header.orientation, is_upright) for header in headers
    ]
    missing = f"no {name}; name its file, or remove the row"
    find = partial(_find_problem, f"target {name},", missing, target_image_problem)
    return _check_files(root, files, places, headers, check, find)


def _check_files(
    root: Path,
    files: Sequence[bytes],
    places: Sequence[Any],
    headers: list[Header],
    check: ScanOptions,
    find: Callable[..., str | None],
) -> list[Header]:
    sized = [
        (file, place)
        for file, place, header in zip(files, places, headers, strict=True)
        if not header.problem
    ]

    problems = map_items(
        partial(find, os.fsencode(root), check.verify),
        sized,
        len(sized),
        "reading masks",
        check,
        many=False,
    )

    return [
        # only the files of images without a problem were looked at
        header if header.problem else header._replace(problem=next(problems))
        for header in headers
    ]


def _problem_of_mask(file: BinaryIO, size: tuple[int, int], verify: str) -> str | None:
    return mask_problem(file, *size, verify)


def _find_problem(
    kind: str, missing: str, find: Find, root: bytes, verify: str, item: tuple[bytes, Any]
) -> str | None:
    """Returns what is wrong with the file of one image.

    Args:
        kind: what it is, in messages.
        missing: what is wrong without a path.
        item: its path, and the size that it must have.
    """
    path, place = item
    if not path:
        return missing

    # a problem is text of a table, which must be UTF-8
    name = path.decode(errors="backslashreplace")
    try:
        if not is_regular(os.stat(os.path.join(root, path)).st_mode):
            return f"its {kind} {name}: {NOT_REGULAR}"
        with open(os.path.join(root, path), "rb") as file:
            why = find(file, place, verify)
    except OSError as error:
        why = describe_os_error(error)
    return why and f"its {kind} {name}: {why}"
