"""Refuses manifests of earlier versions where a scan would give another result now: other classes
(version 0.2), or other orientations of TIFFs.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dali_pipes.data.image_files.headers import Header, read_header
from dali_pipes.data.sources.names.housekeeping import is_housekeeping
from dali_pipes.data.sources.names.splits import split_of
from dali_pipes.errors import ManifestError

_SHOWN = 20  # classes that an error lists
_READ_TIFFS = 2  # the first rules by which the orientation of TIFFs is read
_LOOKED_AT = 1000  # TIFFs of a manifest that are read again
_AGAIN = "scan the images again"


def refuse_other_rules(file: str | Path, classes: Any, known: Mapping[str, Any]) -> None:
    """Raises ManifestError for a manifest of version 0.2 whose classes a scan would not find now.

    Manifests of that version have no rules; one that was saved again has the rules 0, and was
    checked when it was first opened.
    """
    if (
        "rules" in known
        or not isinstance(classes, list)
        or not all(isinstance(name, str) for name in classes)
    ):
        return

    # What a scan would find: in folders no housekeeping and no splits, in tables no blank names.
    if known.get("folders"):
        now = [name for name in classes if not is_housekeeping(name)]
        if len(now) > 1 and len({split_of(name) for name in now}) > 1 and all(map(split_of, now)):
            now = []  # a scan asks for one of the splits
    else:
        now = (
            sorted({name.strip() for name in classes if name.strip()})
            if _are_names(classes)
            else classes
        )

    if now == classes:
        return
    raise ManifestError(
        f"{file}: version 0.2 wrote it with the classes {_format_classes(classes)}, and a scan has "
        f"{_format_classes(now)} now; scan the images "
        "again (classes=[…] keeps the order of 0.2)"
    )


def refuse_other_orientations(
    file: str | Path, root: str, table: pa.Table, known: Mapping[str, Any]
) -> None:
    """Raises ManifestError for a manifest of earlier rules with turned TIFFs: these rules did not
    read the orientation of a TIFF.

    In other formats only what is not read any more may differ (XMP beside EXIF), and all loaders
    follow the manifest.
    """
    rules = known.get("rules")
    if isinstance(rules, int) and rules >= _READ_TIFFS:
        return

    tiffs = table.filter(pc.and_(pc.equal(table["format"], "TIFF"), pc.is_null(table["problem"])))
    unread = f"{file}: an earlier version wrote it, which did not read the orientation of TIFFs"
    if len(tiffs) > _LOOKED_AT:
        raise ManifestError(f"{unread}, of which it has {len(tiffs):,}; {_AGAIN}")

    for row in tiffs.select(["path", "height", "width", "orientation", "member"]).to_pylist():
        now = _header(root, row["path"])
        # what is in a shard is not read again here, and what cannot be read cannot be compared
        if row["member"] or not now:
            raise ManifestError(f"{unread}, as of {row['path']!r}; {_AGAIN}")
        was, is_now = (
            _describe_size(row["width"], row["height"], row["orientation"]),
            _describe_size(now.width, now.height, now.orientation),
        )
        if was != is_now:
            path = os.path.join(root, os.fsdecode(row["path"]))
            raise ManifestError(f"{unread}: by it {path} is {was}, by a scan {is_now}; {_AGAIN}")


def _header(root: str, path: bytes | None) -> Header | None:
    """Returns the header of a file; None: it cannot be read or used."""
    try:
        header = read_header(os.path.join(os.fsencode(root), path or b""))
    except ValueError:  # a path with a zero byte
        return None
    return None if header.problem else header


def _describe_size(width: int, height: int, orientation: int) -> str:
    return f"{width} × {height} with orientation {orientation}"


def _are_names(classes: list[str]) -> bool:
    """Whether these are the sorted names of a table, and not names that somebody numbered."""
    return classes == sorted(set(classes))


def _format_classes(classes: Sequence[str]) -> str:
    more = f", … ({len(classes):,})" if len(classes) > _SHOWN else ""
    return (
        f"[{', '.join(map(repr, classes[:_SHOWN]))}{more}]"
        if classes
        else "none of them, since they are splits"
    )
