"""Shards, files that hold many images: finds them and reads their manifest rows.

`list_shards` returns the shards of a folder, a pattern or a URL with their versions (size and
time). `scan_shards` reads those that no earlier scan knows, several at a time (`read_shard`), and
joins their rows, in the order of the names. `classes.json` beside the shards names the classes.
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.data.composed import composed
from dali_pipes.data.image_files.headers import (
    Header,
    ScanOptions,
    describe_os_error,
    examine,
    fetch_error,
)
from dali_pipes.data.image_files.masks import mask_problem, mask_size
from dali_pipes.data.labels.reader import MAX_CLASSES, no_labels, number_names
from dali_pipes.data.objects import BOX_LABELS, TARGET, TYPES, Targets
from dali_pipes.data.omissions import NO_LABEL, unusable_label
from dali_pipes.data.range_file import open_part
from dali_pipes.data.reader import ShardMember
from dali_pipes.data.shards import tar, tfrecord
from dali_pipes.data.shards.addresses import is_remote, is_web
from dali_pipes.data.shards.copies import holding_copy, is_gone
from dali_pipes.data.shards.listing import FileVersion, Listing, is_object, list_objects, version_of
from dali_pipes.data.shards.remote import read_object
from dali_pipes.data.shards.store_requests import RefusedError
from dali_pipes.data.sources.names import (
    is_housekeeping,
    pattern_of_files,
    refuse_several_splits,
)
from dali_pipes.data.sources.rows.earlier import pixels, usable_rows
from dali_pipes.data.sources.rows.files import file_rows, map_items
from dali_pipes.data.sources.rows.objects import number_labels, object_columns
from dali_pipes.data.table.schema import replace_column
from dali_pipes.errors import ManifestError

CLASSES_FILE = "classes.json"
# the last alternative is how TensorFlow's scripts name files
_SHARD = re.compile(r"\.tar\Z|\.tfrec(ords?)?$|\.record$|-\d{5}-of-\d{5}$")
_NUMBERED = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\D*)")
MISSING_SHARDS = "shards that are missing by their numbers"
_NO_LABEL = f"{NO_LABEL}, which others have; give it one, or remove those of all"


def scan_shards(
    root: Path | str,
    shards: dict[bytes, FileVersion],
    check: ScanOptions,
    known: pa.Table | None = None,
) -> tuple[list[str], pa.Table, bool]:
    """Returns class names, rows, and whether classes.json has the names.

    A shard that has not changed since an earlier scan, and was checked as thoroughly, is not read
    again.

    Args:
        known: rows of an earlier scan of the same root, without targets.

    Raises:
        ManifestError: there is no image, or targets are asked of TFRecords.
    """
    records = [name for name in shards if not name.endswith(b".tar")]
    if check.targets.named and records:
        raise ManifestError(
            f"{os.path.join(os.fsencode(root), records[0]).decode(errors='backslashreplace')}: "
            "targets are read from tars and tables, not from TFRecords; write such, or leave out "
            "targets"
        )
    # the rows of shards that are as they were come from the earlier scan
    tables = [] if known is None else [_unchanged_rows(known, shards, check)]
    kept = {name for rows in tables for name in pc.unique(rows["path"]).to_pylist()}
    missing = [name for name in shards if name not in kept]
    files = [(os.path.join(os.fsencode(root), name), shards[name]) for name in missing]
    tables += map_items(
        partial(read_shard, check=check), files, len(files), "reading shards", check, many=True
    )
    if kept and missing:
        table = pa.concat_tables(tables)
        tables = [table.take(np.argsort(_number_shards(table, shards), kind="stable"))]
    if not sum(map(len, tables)):
        raise ManifestError(
            f"{root}: its {len(shards)} shards hold no image; each needs images with a label "
            "of the same key"
        )

    classes = read_class_names(root)
    if check.targets.boxes:
        return *_with_objects(root, tables, classes, check.targets), classes is not None

    table = pa.concat_tables(tables)
    if not check.with_labels:
        return [], replace_column(table, "label", no_labels(len(table))), False

    # With targets, labels may be missing in all samples, but not in some of them.
    lacking = pc.less(table["label"], 0)
    if check.targets.named and pc.all(lacking).as_py():
        table = replace_column(table, "label", no_labels(len(table)))
    elif check.targets.named:
        table = replace_column(
            table, "problem", pc.coalesce(table["problem"], pc.if_else(lacking, _NO_LABEL, None))
        )

    if pa.types.is_list(table["label"].type):
        return classes or [], table, classes is not None

    # Without classes.json the numbers are the names, up to the highest that occurs.
    are_named = classes is not None
    if classes is None:
        classes = number_names(1 + max(pc.max(table["label"]).as_py(), -1))

    unknown = pc.and_(pc.is_null(table["problem"]), pc.greater_equal(table["label"], len(classes)))
    problem = pc.if_else(
        unknown,
        f"its label is none of the {len(classes)} classes of classes.json",
        table["problem"],
    )
    return classes, replace_column(table, "problem", problem), are_named


def _number_shards(rows: pa.Table, shards: Iterable[bytes]) -> NDArray[np.int64]:
    """Returns the place of each row's shard among these; -1: it is none of them."""
    numbers = pc.index_in(rows["path"], pa.array(list(shards), pa.large_binary()))
    return np.asarray(numbers.fill_null(-1), np.int64)


def _unchanged_rows(
    known: pa.Table, shards: dict[bytes, FileVersion], check: ScanOptions
) -> pa.Table:
    """Returns the known rows of the shards that are as they were.

    A shard is left out if it could not be read to its end, or if a problem of it is not in its
    bytes alone.
    """
    numbers = _number_shards(known, shards)
    # the last one is that of shards that are gone
    versions = np.array([*shards.values(), (-1, -1)], np.int64)[numbers]
    there = np.stack([known[name].to_numpy() for name in ("file_bytes", "mtime_ns")], axis=1)
    same = (versions == there).all(axis=1)
    # a problem of the shard itself has no member; such a shard may be readable by now
    same &= pc.greater(pc.binary_length(known["member"]), 0).to_numpy()
    # an image with a size and a problem may be usable under other options, such as max_pixels
    good = usable_rows(known, check)
    same &= good == known["problem"].is_null().to_numpy()
    same &= good | (pixels(known) == 0)

    return known.filter(~np.isin(numbers, numbers[~same]))


def is_shard(path: str | Path) -> bool:
    """Whether a file of this name holds many images."""
    return _SHARD.search(Path(path).name) is not None


def list_missing_shards(names: Iterable[str]) -> list[str]:
    """Returns the names of missing shards, for names such as NAME-00003-of-00010."""
    there: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            start, number, count, end = match.groups()
            there[start, count, end].add(number)

    return [
        f"{start}-{number:0{len(count)}d}-of-{count}{end}"
        for (start, count, end), numbers in there.items()
        for number in range(int(count))
        if f"{number:0{len(count)}d}" not in numbers
    ]


def list_shards(source: Path | str) -> tuple[Path | str, dict[bytes, FileVersion]]:
    """Returns the folder and the shards of `source`, in order, with their versions.

    `source` is a shard, a pattern of some shards, or a folder or URL of shards.

    A folder of another kind has none. A folder with subfolders is a folder of classes, whatever
    else is in it.

    Raises:
        ManifestError: nothing matches the pattern, or the shards are of several splits.
    """
    folder, shards = list_all_shards(source)
    refuse_several_splits(source, map(os.fsdecode, shards))
    return folder, shards


def list_all_shards(source: Path | str) -> tuple[Path | str, dict[bytes, FileVersion]]:
    """Returns the same as `list_shards`, whatever splits the shards are of."""
    folder, names, listing = list_files(source, is_shard)
    names = list(filter(is_shard, names))
    if listing is not None:
        versions = listing.versions(names)
    elif names and folder == source and _has_folders(folder):
        versions = {}
    else:
        versions = {name: _version(os.path.join(folder, name)) for name in names}
    return folder, {os.fsencode(name): version for name, version in versions.items()}


def list_files(
    source: Path | str, is_file: Callable[[str], bool]
) -> tuple[Path | str, list[str], Listing | None]:
    """Returns the folder of the files that a source is, their names, sorted, and what an object
    store says of them.

    They are the source itself, those of a pattern, or those directly in a folder or under a URL,
    without housekeeping.

    Args:
        is_file: whether a URL may be one file, by its name.

    Raises:
        ManifestError: nothing matches the pattern, or a web server has no such file.
    """
    pattern = pattern_of_files(source)
    if isinstance(source, Path):
        if pattern:
            return pattern.folder, pattern.select(os.listdir(pattern.folder)), None
        if source.is_file():
            return source.parent, [source.name], None
        inside = os.listdir(source) if source.is_dir() else []
        return source, sorted(name for name in inside if not is_housekeeping(name)), None

    if pattern:
        return str(pattern.folder), *pattern.find()
    if is_file(source) and is_object(source):
        folder, _, name = source.rpartition("/")
        return folder, [name], Listing(folder, {name: None})
    if is_file(source) and is_web(source):
        raise ManifestError(f"{source}: its server has no such file")
    listing = list_objects(source)
    names = sorted(name for name in listing if not is_housekeeping(name))
    return source.rstrip("/"), names, listing


def _has_folders(folder: Path | str) -> bool:
    return any(entry.is_dir() and not is_housekeeping(entry.name) for entry in os.scandir(folder))


def read_shard(shard: tuple[bytes, FileVersion], check: ScanOptions) -> pa.Table:
    """Returns one row for each image of a shard, usable or not.

    What is wrong with an image, or with a local shard, is in `problem`.

    Raises:
        ManifestError: a shard in an object store cannot be fetched, which says nothing about its
            images.
    """
    file, version = os.fsdecode(shard[0]), shard[1]
    size, mtime_ns = 0, 0
    try:
        with _open(file, version) as number:
            stat = os.fstat(number)
            # a copy has the time of its version, which some file systems round to seconds
            size, mtime_ns = version if is_remote(file) else (stat.st_size, stat.st_mtime_ns)
            parts = (
                tar.list_images(number, size, check.targets, check.with_labels)
                if file.endswith(".tar")
                else tfrecord.list_images(number, size, check.with_labels)
            )
            members = list(parts) if size else [ShardMember(problem="empty file")]
            headers = [_header(number, member, mtime_ns, check) for member in members]
            # a copy in the cache that is removed is cut off too, maybe while it was read here
            if is_remote(file) and is_gone(number):
                return read_shard(shard, check)
    except OSError as error:
        if is_remote(file):
            raise fetch_error(file, error) from None
        members = [ShardMember(problem=describe_os_error(error))]
        headers = [Header(0, mtime_ns, problem=members[0].problem)]

    return _rows(os.path.split(shard[0])[1], size, members, headers, check.targets)


@contextmanager
def _open(file: str, version: FileVersion) -> Iterator[int]:
    if is_remote(file):
        with holding_copy(file, version) as number:
            yield number
    else:
        with open(file, "rb", buffering=0) as opened:
            yield opened.fileno()


def _mask_place(member: ShardMember) -> tuple[int, int]:
    """Offset and length of an image's mask in its shard; zeros: it has none."""
    offset, length = (member.targets or {}).get("mask", (0, 0))
    return offset, length


def _rows(
    shard: bytes, size: int, members: list[ShardMember], headers: list[Header], targets: Targets
) -> pa.Table:
    """Returns one row for each image. Labels of objects are class numbers or names, as the shard
    has them: `_with_objects` numbers those of all shards.
    """
    columns = {
        "member": pa.array([member.member for member in members], pa.large_binary()),
        "offset": pa.array([member.offset for member in members], pa.int64()),
        "file_bytes": pa.array([size] * len(members), pa.int64()),
    }
    values = [member.targets or {} for member in members]

    further: dict[str, list[Any]] = {}
    if targets.text:
        further["text"] = [of_image.get("text", "") for of_image in values]
    if targets.mask:
        places = [_mask_place(member) for member in members]
        further["mask"] = [b""] * len(members)  # no path: the masks are in the shard
        further["mask_offset"] = [offset for offset, _ in places]
        further["mask_bytes"] = [length for _, length in places]
    columns |= {TARGET + name: pa.array(cells, TYPES[name]) for name, cells in further.items()}

    of_objects = None
    if targets.boxes:
        headers, objects = object_columns(values, headers, targets)
        of_objects = objects[BOX_LABELS]
        # names have no place in the table yet, and a fingerprint depends on the columns' order
        objects[BOX_LABELS] = pa.array([[]] * len(members), TYPES["box_labels"])
        columns |= objects

    both = zip(members, headers, strict=True)
    labels = [-1 if header.problem else member.label for member, header in both]
    rows = file_rows([shard] * len(members), pa.array(labels, pa.int32()), headers, columns)
    return rows if of_objects is None else replace_column(rows, BOX_LABELS, of_objects)


def _with_objects(
    source: Path | str, tables: list[pa.Table], classes: list[str] | None, targets: Targets
) -> tuple[list[str], pa.Table]:
    """Returns the classes of the objects and one table of all shards.

    The classes are those that are given, or else those that occur.
    """
    # a shard without objects has no kind of its own
    kinds = {
        shard_rows[BOX_LABELS].type
        for shard_rows in tables
        if pc.sum(pc.list_value_length(shard_rows[BOX_LABELS])).as_py()
    }
    if len(kinds) > 1:
        mixed = f"some shards have class numbers in {targets.box_labels}, others names"
        raise ManifestError(f"{source}: {mixed}; write one of them in all")

    kind = next(iter(kinds), TYPES["box_labels"])
    table = pa.concat_tables(
        replace_column(shard_rows, BOX_LABELS, shard_rows[BOX_LABELS].cast(kind))
        for shard_rows in tables
    )

    classes, numbers, labels = number_labels(source, table[BOX_LABELS].combine_chunks(), classes)
    return classes, replace_column(replace_column(table, BOX_LABELS, numbers), "label", labels)


def read_class_names(root: Path | str) -> list[str] | None:
    """Returns the names in `classes.json` beside the shards; None: there is no such file."""
    file = os.path.join(root, CLASSES_FILE)
    try:
        if is_web(file):
            version_of(file)  # a server may answer with a web page
        names = json.loads(read_object(file) if is_remote(file) else Path(file).read_bytes())
    except FileNotFoundError:
        return None
    except RefusedError:
        if is_web(file):  # many servers answer so for what is not there
            return None
        raise ManifestError(
            f"{file}: cannot be read; let this user read it, or remove it"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ManifestError(
            f"{file}: cannot be read ({error}); make it a list of class names, or remove it"
        ) from None

    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ManifestError(f"{file}: not a list of class names; fix it or remove it")
    # one name may be there twice, of sets that were joined with their classes apart
    forms = {name: composed(name) for name in names}
    if len(set(forms.values())) < len(forms):
        raise ManifestError(
            f"{file}: has a class in two forms of its accents; write each name in one way"
        )
    return [forms[name] for name in names]


def _version(file: str | Path) -> FileVersion:
    try:
        return version_of(os.fspath(file))
    except OSError:
        return 0, 0  # the error is reported when it is read


def _header(number: int, member: ShardMember, mtime_ns: int, check: ScanOptions) -> Header:
    problem = member.problem
    if not problem and member.label >= MAX_CLASSES:
        problem = unusable_label(
            f"its number is too large ({member.label}); number the classes from 0, without large "
            "gaps"
        )
    if problem:
        return Header(member.length, mtime_ns, problem=problem)
    part = open_part(number, member.offset, member.length)
    header = examine(part, member.length, mtime_ns, check)
    if not check.targets.mask or header.problem:
        return header
    # in the same open shard
    mask = open_part(number, *_mask_place(member))
    why = mask_problem(mask, *mask_size(header, check), check.verify)
    return header._replace(problem=why and f"its mask: {why}")
