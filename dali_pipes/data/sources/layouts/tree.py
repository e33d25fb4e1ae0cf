"""The folders and files of a place in which layouts are looked for."""

import os
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from dali_pipes.data.image_files.headers import IMAGE_EXTENSIONS
from dali_pipes.data.sources.names.housekeeping import is_housekeeping

LOOKED_AT = 500  # entries of a folder below the root


class Tree:
    """The folders and files below one place, without housekeeping.

    The place is a folder of this machine, or the names of objects are given.
    """

    def __init__(
        self,
        root: Path | str,
        objects: Iterable[str] = (),
        entries: Iterable[tuple[str, bool]] | None = None,
    ):
        self.root = root
        self._listed: dict[str, tuple[set[str], set[str]]] = {}

        if entries is not None:
            self._listed[""] = set(), set()
        for name, is_folder in entries or ():
            self._listed[""][0 if is_folder else 1].add(name)
        # a store lists objects only: their folders are the parts of their names
        for name in objects:
            parts = name.split("/")
            for depth, part in enumerate(parts):
                folders, files = self._listed.setdefault("/".join(parts[:depth]), (set(), set()))
                (files if depth == len(parts) - 1 else folders).add(part)

    def look(self, path: str = "") -> tuple[list[str], list[str]]:
        """Returns the names of folders and of files; none if the path is no folder."""
        if isinstance(self.root, str):
            folders, files = self._listed.get(path, (set(), set()))
            return sorted(filter(_is_data, folders)), sorted(filter(_is_data, files))

        if path not in self._listed:
            names: tuple[set[str], set[str]] = set(), set()
            with suppress(OSError), os.scandir(self.root / path) as entries:
                for entry in islice(entries, LOOKED_AT if path else None):
                    names[0 if entry.is_dir() else 1].add(entry.name)
            self._listed[path] = names
        folders, files = self._listed[path]
        return sorted(filter(_is_data, folders)), sorted(filter(_is_data, files))

    def has(self, path: str) -> bool:
        if isinstance(self.root, str):
            folder, _, name = path.rpartition("/")
            return name in self._listed.get(folder, (set(), set()))[1]
        return (self.root / path).is_file()

    def named(self, names: Iterable[str], path: str = "") -> str | None:
        """Returns the folder that has one of these names, in upper or lower case."""
        folders = {name.lower(): name for name in self.look(path)[0]}
        return next((folders[name] for name in names if name in folders), None)

    def holds(self, path: str, suffix: str) -> bool:
        """Whether a folder, or one of its subfolders, has files of this kind and no image."""
        folders, names = self.look(path)
        for folder in folders[:8]:
            names = [*names, *self.look(f"{path}/{folder}")[1]]

        lower = [name.lower() for name in names]
        return any(name.endswith(suffix) for name in lower) and not any(map(has_image_name, lower))


def join(*parts: str) -> str:
    return "/".join(filter(None, parts))


def place_of(tree: Tree, part: str) -> str:
    return join(os.fspath(tree.root), part)


def has_image_name(name: str) -> bool:
    return name.lower().endswith(IMAGE_EXTENSIONS)


def _is_data(name: str) -> bool:
    return not is_housekeeping(name)
