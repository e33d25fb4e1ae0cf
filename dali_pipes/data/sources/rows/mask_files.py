"""Reads the headers of the masks of many images, in several processes."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from stat import S_ISREG as is_regular

from dali_pipes.data.image_files.headers import (
    NOT_REGULAR,
    Header,
    ScanOptions,
    describe_os_error,
)
from dali_pipes.data.image_files.masks import mask_problem, mask_size
from dali_pipes.data.sources.rows.files import map_items


def check_mask_files(
    root: Path, masks: Sequence[bytes], headers: list[Header], check: ScanOptions
) -> list[Header]:
    """Returns the headers, with what is wrong with a mask as the problem of its image.

    `masks` are paths relative to the root; b"": the mask is missing.
    """
    sized = [
        (mask, mask_size(header, check))
        for mask, header in zip(masks, headers, strict=True)
        if not header.problem
    ]

    problems = map_items(
        partial(_find_problem, os.fsencode(root), check.verify),
        sized,
        len(sized),
        "reading masks",
        check,
        many=False,
    )

    return [
        # only the masks of images without a problem were looked at
        header if header.problem else header._replace(problem=next(problems))
        for header in headers
    ]


def _find_problem(root: bytes, verify: str, item: tuple[bytes, tuple[int, int]]) -> str | None:
    """Returns what is wrong with the mask of one image.

    Args:
        item: its path, and the size that it must have.
    """
    path, size = item
    if not path:
        return "no mask of its name"

    # a problem is text of a table, which must be UTF-8
    name = path.decode(errors="backslashreplace")
    try:
        if not is_regular(os.stat(os.path.join(root, path)).st_mode):
            return f"its mask {name}: {NOT_REGULAR}"
        with open(os.path.join(root, path), "rb") as file:
            why = mask_problem(file, *size, verify)
    except OSError as error:
        why = describe_os_error(error)
    return why and f"its mask {name}: {why}"
