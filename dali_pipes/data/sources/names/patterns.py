"""Patterns of file names, such as train-*.tar and train-{0000..1023}.tar, which stand for some
files of a folder.

Only the last part of a path or URL may be a pattern. What exists under a name that looks like a
pattern is meant literally.
"""

import itertools
import os
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from dali_pipes.data.shards.addresses import is_remote, is_web
from dali_pipes.data.shards.listing import Listing, is_there, list_objects, look_up
from dali_pipes.data.sources.names.housekeeping import is_housekeeping
from dali_pipes.errors import ManifestError

_GLOB = re.compile(r"[*?]|\[[^\]]+\]")
_BRACES = re.compile(r"(?<!\$)\{([^{}]*(?:,|\.\.)[^{}]*)\}")  # not {train}, not ${a,b}
_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])")
_MOST_NAMES = 1_000_000
_SHOWN = 5


class Pattern(NamedTuple):
    """Some files of a folder.

    Attributes:
        folder: a path, or a URL without a slash at its end.
        name: the pattern of the names.
    """

    folder: Path | str
    name: str

    def __str__(self) -> str:
        return f"{self.folder}/{self.name}"

    def find(self) -> tuple[list[str], Listing]:
        """Returns the names in an object store that match, as `select` does, and what the store
        says of them.

        A web server is asked for names in braces one by one: many servers have no listing.
        """
        folder, names = str(self.folder), expand_braces(self)
        is_listed = not is_web(folder) or any(map(_GLOB.search, names))
        listing = list_objects(folder) if is_listed else look_up(folder, names)
        return self.select(listing), listing

    def select(self, names: Iterable[str]) -> list[str]:
        """Returns the names that match, sorted.

        Raises:
            ManifestError: no name matches, or one of the names in braces is missing.
        """
        files = sorted(name for name in names if not is_housekeeping(name))
        wanted = expand_braces(self)
        globs = [name for name in wanted if _GLOB.search(name)]
        matches = {name for glob in globs for name in files if fnmatchcase(name, glob)}
        matches |= set(wanted).intersection(files)

        unmatched = [glob for glob in globs if not any(fnmatchcase(name, glob) for name in matches)]
        missing = [name for name in wanted if name not in matches and name not in globs] + unmatched
        if missing and (matches or len(wanted) > 1):
            first = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
            why = f"{len(missing):,} of the {len(wanted):,} names in it are missing: {first}"
            raise ManifestError(f"{self}: {why}; {_format_names(files)}")
        if missing:
            raise ManifestError(f"{self}: matches nothing; {_format_names(files)}")
        return sorted(matches)


def is_pattern(source: str | os.PathLike[str]) -> bool:
    """Whether the last part of a path or URL is a pattern, and not the name of what exists."""
    return pattern_of_files(source) is not None


def pattern_of_files(source: str | os.PathLike[str]) -> Pattern | None:
    """Returns the pattern that `source` is; None: it is one file or folder.

    Raises:
        ManifestError: an earlier part of the path is a pattern.
    """
    text = os.fspath(source).rstrip("/")
    folder, _, name = text.rpartition("/")
    # not the host of a URL, which may have brackets (IPv6)
    above = "/".join(folder.split("/")[3:]) if is_remote(text) else folder
    if not (_has_pattern(name, text) or _has_pattern(above, text)) or _exists(text):
        return None

    if _has_pattern(above, text) and not _exists(folder):
        why = "a pattern is only read in the last part, the names of the files"
        do = "name one folder, and join several with Manifest.concat"
        raise ManifestError(f"{text}: {why}; {do}")

    if not _has_pattern(name, text):
        return None
    if is_remote(text):
        return Pattern(folder, name)

    place = Path(os.path.abspath(folder or "."))
    if not place.is_dir():
        raise ManifestError(f"{text}: no such folder or file; its folder {place} is missing")
    return Pattern(place, name)


def expand_braces(pattern: Pattern) -> list[str]:
    """Returns the names that a pattern with braces stands for, in order, without repeats; each may
    be a glob.

    Raises:
        ManifestError: braces within braces, or too many names.
    """
    pieces = _BRACES.split(pattern.name)
    if re.search(r"\{[^}]*\{.*\}", pattern.name) and len(pieces) > 1:
        raise ManifestError(f"{pattern}: braces within braces are not read; write the names out")

    choices = [
        list(_choices(piece)) if place % 2 else [piece] for place, piece in enumerate(pieces)
    ]

    # counted before they are made, since there may be too many
    count = 1
    for piece in choices:
        count *= len(piece)
    if count > _MOST_NAMES:
        raise ManifestError(f"{pattern}: stands for {count:,} names; use * instead of the numbers")
    return list(dict.fromkeys(map("".join, itertools.product(*choices))))


def _choices(inside: str) -> Iterator[str]:
    """Yields what braces stand for: 08, 09 and 10 for 08..10, as in a shell, or the parts of a
    list.
    """
    if match := _NUMBERS.fullmatch(inside):
        # the sign of a step is ignored and 0 is 1, as in a shell
        first, last, step = int(match[1]), int(match[2]), abs(int(match[3] or 1)) or 1
        padded = any(re.match(r"-?0\d", number) for number in match.group(1, 2))
        width = max(map(len, match.group(1, 2))) if padded else 0
        numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
        if len(numbers) > _MOST_NAMES:
            do = "use * instead of the numbers"
            raise ManifestError(f"{{{inside}}}: stands for {len(numbers):,} names; {do}")

        yield from (f"{number:0{width}d}" for number in numbers)
    elif match := _LETTERS.fullmatch(inside):
        first, last = map(ord, match.groups())
        yield from map(chr, range(first, last + 1) if first <= last else range(first, last - 1, -1))
    else:
        yield from inside.split(",")


def _has_pattern(part: str, source: str) -> bool:
    # a question mark in a web address begins its query
    text = part.split("?")[0] if source.startswith(("http://", "https://")) else part
    return bool(_GLOB.search(text) or _BRACES.search(text))


def _exists(place: str) -> bool:
    if is_web(place):
        return False  # many servers answer for what is not there
    return is_there(place) if is_remote(place) else os.path.lexists(place or "/")


def _format_names(files: list[str]) -> str:
    if not files:
        return "its folder is empty"
    more = f", … ({len(files):,} in all)" if len(files) > _SHOWN else ""
    return f"its folder has {', '.join(files[:_SHOWN])}{more}"
