"""Which options each kind of source takes. One that a source does not take would change nothing, so
it is refused.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from dali_pipes.data.objects import NO_TARGETS, Targets
from dali_pipes.data.sources.kinds import kind_of
from dali_pipes.data.table_options import TableOptions
from dali_pipes.errors import ConfigError

_EVERY_TARGET = {f"targets.{field.name}" for field in fields(Targets)}
_OF_TABLES = {
    "path_column",
    "label_column",
    "label_separator",
    "task",
    "images",
    "classes",
    "split",
}
# by kind: what errors call it, and its options
_KINDS: dict[str, tuple[str, set[str]]] = {
    "manifest": ("a saved manifest", {"classes"}),
    "coco": (
        "a file of COCO's form",
        {"images", "classes"}
        | {f"targets.{name}" for name in ("bad_objects", "flip_pairs", "annotated")},
    ),
    "csv": ("a CSV", _OF_TABLES | _EVERY_TARGET | {"delimiter", "encoding"}),
    "parquet": ("a Parquet table", _OF_TABLES | _EVERY_TARGET),
    "images": ("a folder or shards", _EVERY_TARGET | {"classes"}),
    "masks": (
        "a folder of images with a folder of masks",
        {"classes", "missing", "targets.mask_values", "targets.annotated"},
    ),
}
# in tables and shards: what is said of targets, by the targets of which one must be named
_DESCRIBES = {
    "targets.box_format": ("targets.boxes",),
    "targets.bad_objects": ("targets.boxes",),
    "targets.flip_pairs": ("targets.keypoints",),
    "targets.mask_values": ("targets.mask",),
    "targets.annotated": ("targets.boxes", "targets.mask"),
}


def list_given(table: TableOptions, targets: Targets, **others: Any) -> dict[str, Any]:
    """Returns the options that differ from their defaults, by name; `others` are those that are
    neither None nor empty.
    """
    given = {name: value for name, value in others.items() if value}
    for prefix, options, usual in (
        ("", table, TableOptions()),
        ("targets.", targets, NO_TARGETS),
    ):
        defaults = asdict(usual)
        given |= {
            f"{prefix}{name}": value
            for name, value in asdict(options).items()
            if value != defaults[name]
        }
    return given


def list_untaken(
    source: str | Path, given: Mapping[str, Any], kind: str | None = None
) -> dict[str, str]:
    """Returns the given options that the source does not take, and why.

    Args:
        given: as from `list_given`.
        kind: as `kind_of` says it, or "masks" where a folder of masks belongs to it; None: it is
            looked at.
    """
    if not given:
        return {}
    kind = kind or kind_of(source)
    if kind == "table":
        is_parquet = Path(source).suffix == ".parquet" or Path(source).is_dir()
        kind = "parquet" if is_parquet else "csv"

    words, takes = _KINDS[kind]
    untaken = dict.fromkeys(given.keys() - takes, f"{source} is {words}, which does not take it")
    if kind in ("csv", "parquet", "images"):
        untaken |= {
            name: f"it says something of {' or '.join(needed)}, and none is named"
            for name, needed in _DESCRIBES.items()
            if name in given and given.keys().isdisjoint(needed)
        }
    return untaken


def refuse_untaken(untaken: Mapping[str, str], prefix: str = "") -> None:
    """Refuses options that would change nothing.

    Args:
        untaken: as from `list_untaken`.
        prefix: what the user writes before their names.

    Raises:
        ConfigError: there are such options.
    """
    for name, why in sorted(untaken.items()):
        raise ConfigError(f"{prefix}{name} would change nothing: {why}; leave it out")
