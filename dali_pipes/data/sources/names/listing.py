"""Sorts files by their names into images and others, and says what the others are."""

import os
from collections.abc import Iterable
from pathlib import Path

from dali_pipes.data.image_files.headers import is_image
from dali_pipes.data.omissions import Omission, count_by_kind, count_other_files
from dali_pipes.data.sources.names.housekeeping import is_housekeeping

HIDDEN = "hidden images"
HOUSEKEEPING = "housekeeping"
HOUSEKEEPING_FOLDERS = "housekeeping folders"


def list_entries(folder: Path) -> list[tuple[str, bool]]:
    """Returns the name of each entry of a folder, and whether it is a folder itself, sorted."""
    with os.scandir(folder) as entries:
        return sorted((entry.name, entry.is_dir()) for entry in entries)


def sort_names(paths: Iterable[str]) -> tuple[list[str], list[Omission]]:
    """Returns the images among these paths, and what is left out by kind; both in the order of the
    paths.

    Only the last part of a path is looked at. An image whose name begins with a dot is left out, as
    in every listing of a folder; macOS keeps attributes in files called "._NAME", which are no
    images.
    """
    images: list[str] = []
    others: list[str] = []
    hidden: list[str] = []
    kept_beside: list[str] = []
    for path in paths:
        name = path.rpartition("/")[2]
        if is_image(name) and not name.startswith("."):  # nearly all names: one look
            images.append(path)
        elif not is_housekeeping(name):
            others.append(path)
        elif is_image(name) and not name.startswith("._"):
            hidden.append(path)
        else:
            kept_beside.append(path)

    omissions = count_other_files(others)
    omissions += count_by_kind((HIDDEN, path) for path in hidden)
    omissions += count_by_kind(((HOUSEKEEPING, path) for path in kept_beside), "file")
    return images, omissions
