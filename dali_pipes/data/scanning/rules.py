"""What version 0.2 took for a class and this one does not: its manifests are refused where labels would mean something else."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dali_pipes.data.scanning.housekeeping import is_housekeeping
from dali_pipes.data.scanning.splits import split_of
from dali_pipes.errors import ManifestError

_SHOWN = 20  # classes of a list


def refuse_other_rules(file: str | Path, classes: Any, known: Mapping[str, Any]) -> None:
    """Raises ManifestError for a manifest of version 0.2 whose classes a scan would not find now."""
    if known.get("rules") or not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        return
    if known.get("folders"):
        now = [name for name in classes if not is_housekeeping(name)]
        if len(now) > 1 and len({split_of(name) for name in now}) > 1 and all(map(split_of, now)):
            now = []  # a scan asks for one of the splits
    else:
        now = sorted({name.strip() for name in classes if name.strip()}) if _are_names(classes) else classes
    if now == classes:
        return
    raise ManifestError(
        f"{file}: version 0.2 wrote it with the classes {_listed(classes)}, and a scan has {_listed(now)} now; scan the images "
        "again (classes=[…] keeps the order of 0.2)"
    )


def _are_names(classes: list[str]) -> bool:
    """Whether they are the sorted names of a table, and not those that somebody gave numbers."""
    return classes == sorted(set(classes))


def _listed(classes: Sequence[str]) -> str:
    more = f", … ({len(classes):,})" if len(classes) > _SHOWN else ""
    return f"[{', '.join(map(repr, classes[:_SHOWN]))}{more}]" if classes else "none of them, since they are splits"
