"""Refuses tables that lack a needed column (`refuse_missing`)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from dali_pipes.errors import ManifestError

_SHOWN = 20  # columns in an error
_OF_LABELS = ("label", "label_column")


def refuse_missing(file: Path | str, names: Sequence[str], needed: Mapping[str, str]) -> None:
    """Raises ManifestError if one of the needed columns is missing, or is there twice.

    Args:
        needed: the option that names a column, by the column's name.
    """
    if any(name not in names for name in needed):
        raise missing_error(file, names, needed)
    counts = Counter(names)
    if twice := [name for name in needed if counts[name] > 1]:
        what = f"has the column {twice[0]} {counts[twice[0]]} times"
        raise ManifestError(f"{file}: {what}; rename the others")


def missing_error(
    file: Path | str, names: Sequence[str], needed: Mapping[str, str]
) -> ManifestError:
    """Returns the error that says which of the needed columns are missing, and which ones there
    are.

    Args:
        needed: as for `refuse_missing`.
    """
    missing = [name for name in needed if name not in names]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    has = ", ".join(filter(None, names[:_SHOWN])) + more or "none besides the images"

    columns = " and ".join(needed)
    what = f"{file}: not a table with the columns {columns}; it has {has}; "
    if len(missing) < len(needed):
        what += f"{' and '.join(missing)} is missing: "
    option = needed[missing[0]]
    without = ", or read none: with_labels=False" if option in _OF_LABELS else ""
    return ManifestError(f"{what}rename one, or name it with {option}={without}")
