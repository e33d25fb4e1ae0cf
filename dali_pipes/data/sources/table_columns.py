"""Refuses tables that lack a needed column: `check_columns`, `refuse_missing`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from dali_pipes.data.arrow_types import is_text
from dali_pipes.data.sources.options import SourceOptions
from dali_pipes.data.spelling import argument, no_labels
from dali_pipes.errors import ManifestError

_SHOWN, _LONGEST = 20, 80  # columns in an error, and characters of each


def check_columns(
    place: Path | str,
    table: pa.Table,
    options: SourceOptions,
    *,
    of_paths: bool = False,
    label_option: str = "label_column",
) -> None:
    """Raises ManifestError if a table lacks a column.

    Args:
        of_paths: whether it has a column of paths.
        label_option: what the user calls the option that names the column of labels.
    """
    targets = options.targets
    needed = {options.path_name: "path_column"} if of_paths else {}
    needed |= {name: f"targets.{field}" for field, name in targets.named.items()}

    # Targets need no label; a label column that the user names is needed, unless objects have
    # labels.
    is_labelled = not targets.named or (options.label_column is not None and not targets.boxes)
    if is_labelled and options.with_labels:
        needed[options.label_name] = label_option
    refuse_missing(place, table.column_names, needed)

    for name in filter(None, (targets.mask, targets.text)):
        if not is_text(table[name].type):
            kind = f"the column {name} is of type {table[name].type}"
            raise ManifestError(f"{place}: {kind}; it must be text")


def refuse_missing(place: Path | str, names: Sequence[str], needed: Mapping[str, str]) -> None:
    """Raises ManifestError if one of the needed columns is missing, or is there twice.

    Args:
        needed: the option that names a column, by the column's name.
    """
    counts = Counter(names)
    if twice := [name for name in needed if counts[name] > 1]:
        what = f"has the column {twice[0]} {counts[twice[0]]} times"
        raise ManifestError(f"{place}: {what}; rename the others")
    missing = [name for name in needed if name not in counts]
    if not missing:
        return

    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    has = ", ".join(name[:_LONGEST] for name in names[:_SHOWN] if name) + more
    what = f"{place}: not a table with the columns {' and '.join(needed)}; it has "
    what += f"{has or 'none besides the images'}; "
    if len(missing) < len(needed):
        what += f"{' and '.join(missing)} is missing: "
    option = needed[missing[0]]
    without = (", or read none: ", no_labels()) if option in ("label_column", "label") else ()
    raise ManifestError(what, "rename one, or name it with ", argument(option), *without)
