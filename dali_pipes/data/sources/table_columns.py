"""Refuses tables that lack a needed column, and says which column may be meant."""

import difflib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from dali_pipes.data.spelling import Text, argument
from dali_pipes.errors import ManifestError, Spelling

_SHOWN = 20  # columns in an error
_NEAR = {  # other names that these columns often have
    "path_column": (
        *("image_path", "filepath", "file_path", "filename", "file_name"),
        *("file", "image", "image_id", "img", "id"),
    ),
    "label_column": ("labels", "class", "class_name", "category", "target", "y"),
}


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
    file: Path | str,
    names: Sequence[str],
    needed: Mapping[str, str],
    *hint: str | Spelling,
) -> ManifestError:
    """Returns the error that says which of the needed columns are missing, and which ones there
    are.

    Args:
        needed: as for `refuse_missing`.
        hint: what to do instead, if something is known.
    """
    missing = [name for name in needed if name not in names]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    has = ", ".join(filter(None, names[:_SHOWN])) + more or "none besides the images"

    option = needed[missing[0]]
    others = [name for name in names if name not in needed]
    instead: Text = hint
    if hint:
        pass
    elif near := nearest(missing[0], others, _NEAR.get(option, ())):
        instead = f"did you mean {near!r}? Give ", argument(option, near)
    else:
        instead = "rename one, or name it with ", argument(option)

    columns = " and ".join(needed)
    what = f"{file}: not a table with the columns {columns}; it has {has}; "
    if len(missing) < len(needed):
        what += f"{' and '.join(missing)} is missing: "
    return ManifestError(what, *instead)


def nearest(wanted: str, names: Collection[str], known: Sequence[str]) -> str | None:
    """Returns the name that is spelled much like `wanted` in any case, or else one of those in
    `known`; None: there is none.
    """
    lower = {name.casefold(): name for name in names if name}
    similar = difflib.get_close_matches(wanted.casefold(), lower, n=1, cutoff=0.6)
    return next((lower[name] for name in [*similar, *known] if name in lower), None)
