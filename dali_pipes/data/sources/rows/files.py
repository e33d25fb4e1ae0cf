"""Reads the headers of many files, in several processes, and turns them into rows of a manifest:
`read_headers` and `file_rows`.

`read_listed` and `read_named` read those of files that a table or a file of COCO's form names, and
say what is wrong with paths that lead to no file; `check_mask_files` reads those of their masks.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from stat import S_ISREG as is_regular
from typing import Any, TypeVar

import pyarrow as pa

from dali_pipes.data.arrow_types import is_text
from dali_pipes.data.composed import composed, decomposed
from dali_pipes.data.image_files import decoders
from dali_pipes.data.image_files.headers import (
    NOT_REGULAR,
    Header,
    ScanOptions,
    describe_os_error,
    read_header,
)
from dali_pipes.data.image_files.masks import mask_problem, mask_size
from dali_pipes.data.omissions import add_detail, kind_of
from dali_pipes.data.spelling import Text
from dali_pipes.data.table.schema import SCHEMA, cast_columns
from dali_pipes.errors import ManifestError, Spelling
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.progress import track
from dali_pipes.system.workers import map_in_order

# the path relative to the root, and the header if an earlier scan knows it
File = tuple[bytes, Header | None]
T = TypeVar("T")

CHUNK = {"header": 256, "full": 8}  # files that a process takes at once
# up to this many files, one process takes less time than several
_ONE_PROCESS_MAX = {"header": 1024, "full": 16}


def map_items(
    work: Callable[[Any], T],
    items: Iterable[Any],
    total: int,
    what: str,
    check: ScanOptions,
    many: bool,
) -> Iterator[T]:
    """Yields `work` of each item, in order, with a progress bar.

    Several processes do it, unless a few files would take longer that way. `many`: each item, such
    as a shard, has many images.
    """
    if check.verify == "full":
        # imported before the processes are forked, which share them then
        decoders.import_decoders()

    few = not many and total <= _ONE_PROCESS_MAX[check.verify]
    # twice the cores, so that a slow disk is kept busy
    processes = 1 if few else min(check.workers or 2 * available_cpus(), total)

    return track(
        map_in_order(work, items, processes, 1 if many else CHUNK[check.verify]),
        what,
        total,
        check.progress,
    )


def read_headers(
    root: Path, files: Iterable[File], total: int, check: ScanOptions
) -> Iterator[Header]:
    """Yields the header of each file, in order. A file with a known header that has not changed
    since is not read.
    """
    return map_items(
        partial(_read, os.fsencode(root), check), files, total, "reading images", check, many=False
    )


def _read(base: bytes, check: ScanOptions, file: File) -> Header:
    path, known = os.path.join(base, file[0]), file[1]
    if known:
        with contextlib.suppress(OSError):
            stat = os.stat(path)
            if (stat.st_size, stat.st_mtime_ns) == (known.bytes, known.mtime_ns):
                return known
    return read_header(path, check)


def file_rows(
    paths: list[bytes],
    labels: pa.Array,
    headers: list[Header],
    columns: dict[str, pa.Array] | None = None,
) -> pa.Table:
    """Returns one row for each file of one image.

    `columns` has further columns: "column:NAME", "target:NAME", and the place of images in files of
    many ("member", "offset", "file_bytes").
    """
    # a shard may hold no image
    of_headers = map(list, zip(*headers, strict=True)) if headers else [[]] * len(Header._fields)
    cells = [pa.array(paths, pa.large_binary()), labels, *of_headers]
    return cast_columns(pa.table(dict(zip(SCHEMA.names, cells, strict=False)) | (columns or {})))


def unused_rows(like: pa.Table, problems: list[tuple[bytes, str]]) -> pa.Table:
    """Returns rows that only state a problem of something that is no image, by its path.

    They have the columns of the table `like`.
    """
    cells: dict[str, list[Any]] = {
        "path": [path for path, _ in problems],
        "problem": [why for _, why in problems],
    }
    rows = [
        cells.get(field.name, [_empty_value(field.type)] * len(problems)) for field in like.schema
    ]
    return pa.table(list(map(list, rows)), schema=like.schema)


def _empty_value(kind: pa.DataType) -> Any:
    if pa.types.is_nested(kind):
        return []
    return (
        b""
        if pa.types.is_large_binary(kind) or pa.types.is_binary(kind)
        else ""
        if is_text(kind)
        else pa.scalar(0).cast(kind).as_py()
    )


# the problems of headers of files that are not there
MISSING_FILE_PROBLEMS = {os.strerror(number).lower() for number in (errno.ENOENT, errno.ENOTDIR)}
_FOLDER_OPTIONS = Spelling(
    "root= of from_table, images= of open", "data.train_images= or data.val_images="
)


def read_listed(
    file: Path, folder: Path, root: Path, cells: Sequence[bytes], check: ScanOptions
) -> tuple[list[bytes], list[Header]]:
    """Returns the path of each row, relative to `root`, and its header.

    A path that leads to no file is tried without blanks around it and with slashes for backslashes.

    Args:
        file: the table, for errors.
        folder: the folder that relative paths start from.
        root: `folder`, or "/".
        cells: the paths as the table has them; empty: the row has none.

    Raises:
        ManifestError: no row has a path, or none leads to a file.
    """
    paths = (
        [_relative_to_root(cell, folder, root) for cell in cells] if root != folder else list(cells)
    )
    unnamed = _rows_without_path(cells)
    if len(unnamed) == len(cells):
        raise ManifestError(f"{file}: no row has a path; fill the column of paths")

    named = [path for row, path in enumerate(paths) if row not in unnamed] if unnamed else paths
    headers = list(_headers(root, named, check))
    # in ascending order, so that each one is inserted at its own row
    for row, why in sorted(unnamed.items()):
        headers.insert(row, Header(0, 0, problem=why))

    # Paths that lead to no file may be written in another way.
    lost = [row for row, header in enumerate(headers) if header.problem in MISSING_FILE_PROBLEMS]
    others = {
        row: [_relative_to_root(other, folder, root) for other in other_spellings(cells[row])]
        for row in lost
    }
    _retry_paths(root, paths, headers, others, check)
    paths = list(map(_without_dots, paths))

    if len(lost) == len(named) and all(
        headers[row].problem in MISSING_FILE_PROBLEMS for row in lost
    ):
        raise _no_file(file, folder, os.fsdecode(normalize_path(cells[lost[0]])), len(named))
    return paths, headers


def read_named(
    root: Path, names: Sequence[bytes], check: ScanOptions
) -> tuple[list[bytes], list[Header]]:
    """Returns the path of each name below `root`, and its header. A name that leads to no file is
    tried in `other_spellings`.
    """
    paths, headers = list(names), list(_headers(root, names, check))
    lost = [
        place for place, header in enumerate(headers) if header.problem in MISSING_FILE_PROBLEMS
    ]
    others = {place: other_spellings(paths[place]) for place in lost}
    _retry_paths(root, paths, headers, others, check)
    return list(map(_without_dots, paths)), headers


def _retry_paths(
    root: Path,
    paths: list[bytes],
    headers: list[Header],
    others: dict[int, list[bytes]],
    check: ScanOptions,
) -> None:
    """Tries other paths, by their positions; the first one that leads to a file replaces the path
    and its header.
    """
    while others := {place: tries for place, tries in others.items() if tries}:
        first = [tries[0] for tries in others.values()]
        found = dict(
            zip(others, zip(first, _headers(root, first, check), strict=True), strict=True)
        )
        for place, (path, header) in found.items():
            if header.problem not in MISSING_FILE_PROBLEMS:
                paths[place], headers[place] = path, header
                others[place] = []
        others = {place: tries[1:] for place, tries in others.items()}


def _headers(root: Path, paths: Sequence[bytes], check: ScanOptions) -> Iterable[Header]:
    return read_headers(root, ((path, None) for path in paths), len(paths), check) if paths else ()


def _relative_to_root(cell: bytes, folder: Path, root: Path) -> bytes:
    """Returns the path relative to the root."""
    if not cell:
        return cell
    if root != folder:
        # `join` takes an absolute path as it is
        return os.path.join(os.fsencode(folder), cell).lstrip(b"/")
    if not cell.startswith(b"/"):
        return cell
    # a path that was corrected may turn out to be absolute, such as one after a blank
    relative = os.path.relpath(cell, os.fsencode(root))
    # ".." of a link leads to the folder above what it links to
    is_below = not relative.startswith(b"..")
    return relative if is_below else os.path.relpath(cell, os.fsencode(root.resolve()))


def _rows_without_path(cells: Sequence[bytes]) -> dict[int, str]:
    """Returns why a cell is no path, by its row."""
    # one look at all of them, since nearly always all are good
    if all(map(bytes.strip, cells)) and b"\0" not in b"".join(cells):
        return {}

    rows = {}
    for row, cell in enumerate(cells):
        if not cell.strip():
            rows[row] = "no path; name the image, or remove the row"
        elif b"\0" in cell:
            rows[row] = "its path has a NUL character; write it anew"
    return rows


def other_spellings(cell: bytes) -> list[bytes]:
    """How the path of a file may be written besides: without blanks around it, with slashes for
    backslashes, and with accents as programs write them or as a Mac stores them.
    """
    plain = os.fsdecode(normalize_path(cell))
    tries = [os.fsencode(each) for each in (plain, composed(plain), decomposed(plain))]
    return [each for each in dict.fromkeys(tries) if each != cell]


def _without_dots(path: bytes) -> bytes:
    """The path without parts that lead nowhere, so that a file has one path: a/./b and a//b."""
    if b"//" not in path and not path.startswith(b"./") and b"/./" not in path:
        return path
    return b"/".join(part for part in path.split(b"/") if part not in (b"", b"."))


def normalize_path(cell: bytes) -> bytes:
    return os.fsencode(os.fsdecode(cell).strip().replace("\\", "/"))


def _no_file(file: Path, folder: Path, first: str, count: int) -> ManifestError:
    """Returns the error for a table whose paths all lead to no file; it names the first path."""
    rows = "its only row" if count == 1 else f"none of its {count:,} rows"
    has = "names a file that is not there" if count == 1 else "names a file that is there"

    instead: Text
    if "://" in first:
        instead = ("paths are of this machine; copy the images to it, or read shards",)
    elif first.startswith("~"):
        instead = ("write the whole path: nothing replaces ~",)
    elif not folder.is_dir():
        instead = "there is no such folder; give that of the images: ", _FOLDER_OPTIONS
    else:
        instead = "give the folder of the images: ", _FOLDER_OPTIONS

    where = f"the first is {first!r}, looked for in {folder}"
    return ManifestError(f"{file}: {rows} {has}; {where}; ", *instead)


def check_listed_masks(
    folder: Path, root: Path, cells: Sequence[bytes], headers: list[Header], check: ScanOptions
) -> tuple[list[bytes], list[Header]]:
    """Returns the path of each mask that a table names, relative to the root, and the headers, with
    what is wrong with a mask as the problem of its image.

    A mask that is not there is tried in `other_spellings`. The arguments are those of
    `read_listed`.
    """
    masks = [_relative_to_root(cell, folder, root) for cell in cells]
    checked = check_mask_files(root, masks, headers, check)
    lost = [
        row
        for row, (header, found) in enumerate(zip(headers, checked, strict=True))
        if not header.problem and found.problem and _is_lost(found.problem)
    ]
    for row in lost:
        for spelling in other_spellings(cells[row]):
            mask = _relative_to_root(spelling, folder, root)
            (found,) = check_mask_files(root, [mask], [headers[row]], check)
            if not (found.problem and _is_lost(found.problem)):
                masks[row], checked[row] = mask, found
                break
    return masks, checked


def _is_lost(problem: str) -> bool:
    return kind_of(problem).removeprefix("its mask: ") in MISSING_FILE_PROBLEMS


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
            return add_detail(f"its mask: {NOT_REGULAR}", name)
        with open(os.path.join(root, path), "rb") as file:
            why = mask_problem(file, *size, verify)
    except OSError as error:
        why = describe_os_error(error)
    return why and add_detail(f"its mask: {why}", name)
