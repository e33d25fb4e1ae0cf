"""What is below a folder of this machine: `walk` lists what is read, folder by folder, and an
error ends it; `files_below` lists what is only counted, as far as it can be listed.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dali_pipes.data.image_files.headers import describe_os_error
from dali_pipes.data.sources.names import is_housekeeping, list_entries
from dali_pipes.errors import ManifestError


@dataclass(slots=True)
class Listed:
    """What is directly in one folder, sorted by name.

    Attributes:
        path: relative to the root; "" is the root.
        stat: of the folder, from before it was listed.
        time_ns: when that was.
        files: names; None: the folder was not listed, since it is known.
        folders: names of the folders that are walked next, which a caller may change.
        housekeeping: names of the folders that are left out.
        is_loop: the folder is a link to one that it lies in, and is not listed.
    """

    path: str
    stat: os.stat_result
    time_ns: int
    files: list[str] | None
    folders: list[str]
    housekeeping: list[str]
    is_loop: bool = False

    def join(self, name: str) -> str:
        """The path of a file or folder in it, relative to the root."""
        return os.path.join(self.path, name)

    @property
    def paths(self) -> list[str]:
        """The paths of the files, relative to the root."""
        prefix = self.join("")
        return [prefix + name for name in self.files or ()]


def walk(
    root: str | Path,
    start: str = "",
    *,
    entries: Sequence[tuple[str, bool]] | None = None,
    known: Callable[[str, os.stat_result], list[str] | None] | None = None,
) -> Iterator[Listed]:
    """Yields a folder and all folders below it, each before those in it, in sorted order.

    Links are followed, except one to a folder that contains it, which would never end.

    Args:
        start: the folder, relative to the root.
        entries: those of this folder, as from `list_entries`; None: it is listed here.
        known: returns the folders in a folder that need not be listed, by its path and state.

    Raises:
        ManifestError: a folder cannot be listed.
    """
    # each folder with the device and inode of all folders above it
    waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [(start, frozenset())]
    while waiting:
        path, above = waiting.pop()
        full = os.path.join(root, path)
        try:
            now, stat = time.time_ns(), os.stat(full)
            identity = stat.st_dev, stat.st_ino
            if identity in above:
                yield Listed(path, stat, now, [], [], [], is_loop=True)
                continue

            inner = known(path, stat) if known else None
            listed = Listed(path, stat, now, None, inner or [], [])
            if inner is None:
                known_entries = entries if path == start else None
                _sort(listed, known_entries or list_entries(full))
        except OSError as error:
            raise ManifestError(
                f"{full}: {describe_os_error(error)}; make it readable, or move it away"
            ) from None

        yield listed
        above |= {identity}
        waiting += [(listed.join(name), above) for name in reversed(listed.folders)]


def _sort(listed: Listed, entries: Iterable[tuple[str, bool]]) -> None:
    listed.files = []
    for name, is_folder in entries:
        if not is_folder:
            listed.files.append(name)
        elif not is_housekeeping(name):
            listed.folders.append(name)
        else:
            listed.housekeeping.append(name)


def files_below(
    root: str | Path,
    start: str = "",
    *,
    hidden: bool = False,
    links: bool = True,
    unreadable: list[str] | None = None,
) -> Iterator[str]:
    """Yields the files below a folder, by their paths relative to the root, each folder once.

    A folder that cannot be listed is passed over.

    Args:
        start: the folder, relative to the root.
        hidden: go through housekeeping too.
        links: go through links to folders.
        unreadable: gets the folders that cannot be listed.
    """

    def pass_over(error: OSError) -> None:
        if unreadable is not None:
            unreadable.append(os.path.relpath(error.filename, root) + "/")

    listed: set[str] = set()
    for where, folders, files in os.walk(os.path.join(root, start), True, pass_over, links):
        # links to one another would be followed along each way through them
        place = os.path.realpath(where)
        if place in listed:
            folders.clear()
            continue
        listed.add(place)

        folders[:] = sorted(name for name in folders if hidden or not is_housekeeping(name))
        inside = os.path.relpath(where, root)
        for name in sorted(files):
            yield os.path.normpath(os.path.join(inside, name))
