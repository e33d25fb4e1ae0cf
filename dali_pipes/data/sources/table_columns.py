"""Refuses tables that lack a needed column, and chooses that of the labels (`choose_label`)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from dali_pipes.data.sources.split_column import is_called_split
from dali_pipes.data.spelling import argument
from dali_pipes.errors import ManifestError

_SHOWN = 20  # columns in an error


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
    return ManifestError(what, "rename one, or name it with ", argument(needed[missing[0]]))


def choose_label(file: Path | str, names: Sequence[str], option: str) -> str:
    """The column of labels where none is called label: the only one of these columns of classes.

    Args:
        option: that names it.

    Raises:
        ManifestError: there are several, of which one has to be named.
    """
    names = [name for name in names if not is_called_split(name)]
    if len(names) > 1:
        what = f"{file}: has several columns of classes, {', '.join(names)}; name one: "
        raise ManifestError(what, argument(option, names[0]))
    return names[0] if names else "label"
