"""What the names of files and folders say: which are images, which belong to a system or a program
(`is_housekeeping`), which split they are of, and which folders are classes.

Files or folders of different splits are never read as one data set: train, val and test are words
of their names (`split_of`). The classes are all folders, or those that the user names
(`choose_classes`); a folder whose subfolders are its splits has none, and is refused.

A pattern, such as train-*.tar or train-{0000..1023}.tar, stands for some files of a folder. Only
the last part of a path or URL may be one. What exists under a name that looks like a pattern is
meant literally.
"""

import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from dali_pipes.data.composed import composed
from dali_pipes.data.image_files.headers import is_image
from dali_pipes.data.omissions import Omission, count_by_kind, count_other_files
from dali_pipes.data.shards.addresses import is_remote, is_web
from dali_pipes.data.shards.listing import Listing, is_there, list_objects, look_up
from dali_pipes.errors import ManifestError
from dali_pipes.options import propose_name

_MACOS = ("__macosx", "icon\r")  # its other files begin with a dot
_WINDOWS = ("thumbs.db", "ehthumbs.db", "desktop.ini", "$recycle.bin", "system volume information")
_NAS = ("@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "@tmp")
_NAMES = {*_MACOS, *_WINDOWS, *_NAS, "lost+found", "__pycache__"}


def is_housekeeping(name: str) -> bool:
    """Whether a system or a program keeps a file or folder of this name, such as .DS_Store."""
    return (name.startswith(".") and name not in (".", "..")) or name.lower() in _NAMES


def is_housekeeping_member(path: str) -> bool:
    """Whether a member of an archive is such a file. Other names with a dot are its own data."""
    parts = path.split("/")
    return parts[-1].startswith("._") or any(part.lower() in _NAMES for part in parts)


_SPLITS = {
    "train": ("train", "training", "trainings", "trn"),  # not trains, which are a class
    "val": (
        *("val", "vals", "valid", "valids", "validation", "validations", "validate"),
        *("dev", "devs", "eval", "evals", "evaluation", "evaluations"),
    ),
    "test": ("test", "tests", "testing", "testings", "tst", "holdout", "heldout"),
    "trainval": ("trainval", "trainvals"),
}
# A word is letters between digits and signs; a capital after a small letter begins a word too, as
# in imagenetTrain.
_WORD = re.compile(r"[^\W\d_]+?(?=(?<=[a-z])[A-Z]|[\W\d_]|\Z)")
_WORDS = {word: split for split, words in _SPLITS.items() for word in words}
_WORDS |= {word + end: split for word, split in _WORDS.items() for end in ("set", "data", "images")}


def split_of(name: str) -> str | None:
    """Returns the split that a file or folder of this name belongs to: "train", "val", "test" or
    "trainval"; None: its name does not say.

    A split is a word of its own between digits and signs, as in imagenet2012-train.tfrecord or
    train2017. If there are several, the last one counts, since the others belong to the data set's
    name; but train_val is "trainval".
    """
    splits = [_WORDS.get(word.lower()) for word in _WORD.findall(name)]
    last = next(filter(None, reversed(splits)), None)
    if last is None:
        return None

    # the place after the last word of a split; with train just before val, both are one
    end = len(splits) - splits[::-1].index(last)
    return "trainval" if splits[max(end - 2, 0) : end] == ["train", "val"] else last


def word_of_split(name: str) -> str | None:
    """Returns the split of a name that is one word of a split and nothing else; None: it is not."""
    return _WORDS.get(name.lower())


def refuse_several_splits(place: str | os.PathLike[str], names: Iterable[str]) -> None:
    """Raises ManifestError if names under `place` are of two or more splits. Names without a split
    may be used with any.
    """
    splits = Counter(filter(None, map(split_of, names)))
    if len(splits) > 1:
        found = " and ".join(f"{splits[split]:,} of {split}" for split in _SPLITS if splits[split])
        why = f"holds {len(splits)} splits, which must not be mixed: {found}"
        raise ManifestError(f"{os.fspath(place)}: {why}; name those of one by a pattern")


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


HIDDEN = "hidden images"
HOUSEKEEPING = "housekeeping"
HOUSEKEEPING_FOLDERS = "housekeeping folders"


def list_entries(folder: str | Path) -> list[tuple[str, bool]]:
    """Returns the name of each entry of a folder, and whether it is a folder itself, sorted."""
    with os.scandir(folder) as entries:
        return sorted((entry.name, entry.is_dir()) for entry in entries)


def select_images(paths: Iterable[str]) -> tuple[list[str], list[Omission]]:
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


# folders beside splits that are no classes either: images without labels, and predictions for them
_COMPANIONS = re.compile(
    r"extra|unlabel+ed|pred(ict(ions?|ed)?)?|holdout|images_without_labels", re.IGNORECASE
)
_SMALL_LETTERS = re.compile("[a-z]+")
_COMPARED = 20  # names without a folder that are compared with the folders

BESIDE = "images beside the class folders"
UNNAMED = "images of folders that classes does not name"
UNREADABLE = "unreadable folders that classes does not name"
LOOPS = "links to a folder that they lie in"
NUMBERED = "housekeeping folders with images, to which ImageFolder gives class numbers"


def name_folders(place: Path | str, folders: Iterable[str]) -> dict[str, str]:
    """The folder of each class, as the file system names it, by the name of the class, in the order
    in which ImageFolder numbers them.

    Raises:
        ManifestError: two folders have one name, in two forms of its accents.
    """
    by_name: dict[str, str] = {}
    for folder in sorted(folders):
        other = by_name.setdefault(composed(folder), folder)
        if other != folder:
            raise ManifestError(
                f"{place}: the folders {other!a} and {folder!a} have the same name, whose accents "
                "are written in two ways; move the images of one into the other"
            )
    return by_name


def choose_classes(
    place: Path | str,
    images: Mapping[str, int],
    subfolders: Mapping[str, set[str]],
    user_classes: Sequence[str] | None,
) -> list[str]:
    """Returns the names of the classes, in the order of their numbers.

    Args:
        images: how many images each class has that has a folder, in ImageFolder's order.
        subfolders: the names of the folders in each.
        user_classes: the classes that the user names; None: each folder is a class.

    Raises:
        ManifestError: the folders are splits, or are not those that are named.
    """
    if user_classes is None:
        refuse_split_folders(place, images, subfolders)
        return list(images)

    known = images.keys()
    missing = [name for name in user_classes if name not in known]
    extra_folders = sorted(known - set(user_classes))

    # A class may have no image, so a name without a folder is allowed, unless it looks misspelt or
    # no name has a folder.
    for name in missing[:_COMPARED]:
        meant = propose_name(name, extra_folders)
        if meant or len(missing) == len(user_classes):
            meant = meant or f"; there are {', '.join(list(images)[:5])}"
            raise ManifestError(
                f"{place}: classes names {name!r}, and there is no such folder{meant}"
            )
    return list(user_classes)


def refuse_split_folders(
    place: Path | str, images: Mapping[str, int], subfolders: Mapping[str, set[str]]
) -> None:
    """Raises ManifestError if folders of these names are splits.

    They are splits if each name has the word of a split, as train and val do; if two do, and no
    other folder holds an image; or if the class folders in two of them have names in common. A
    class called train beside bus and car stays a class.
    """
    splits = {name: split for name in images if (split := split_of(name))}
    if not splits:
        return

    others = [name for name in images if name not in splits and not _is_companion(name)]
    several = len(set(splits.values())) > 1
    # a folder called train says more than one called train_images
    exact = any(len(_SMALL_LETTERS.findall(name.lower())) == 1 for name in splits)

    if not others:
        are_splits = exact or (several and "train" in splits.values())
    else:
        are_splits = several and (
            _have_classes_in_common(splits, subfolders) or not any(images[name] for name in others)
        )
    if not are_splits:
        return

    first = next((name for name, split in splits.items() if split == "train"), next(iter(splits)))
    raise ManifestError(
        f"{place}: holds {' and '.join(splits)}, not classes; name one of them: {place}/{first} "
        f"(classes=[{','.join(splits)}] takes them as classes)"
    )


def refuse_inner_folders(
    place: Path | str, name: str, inner: Sequence[str], classes: int, images: int
) -> None:
    """Raises ManifestError for a class folder that holds splits, and for a single class folder that
    holds only folders.

    Args:
        inner: names of the folders in it.
        classes: how many class folders there are.
        images: how many images are directly in the folder.
    """
    splits = {
        split
        for folder in inner
        if (split := split_of(folder)) and len(_SMALL_LETTERS.findall(folder.lower())) == 1
    }

    if len(splits) > 1:
        raise ManifestError(
            f"{place}: its folder {name} holds {' and '.join(inner[:4])}, splits of one "
            "class; put the images of each split "
            "below a folder of its own, with the classes in it, or list them in a table"
        )

    # Most likely the classes are one level below.
    if classes == 1 and inner and not images:
        raise ManifestError(
            f"{place}: its only folder, {name}, holds folders and no image; did you mean "
            f"{place}/{name}? (classes=[{name}] "
            "takes it as the only class)"
        )


def _is_companion(name: str) -> bool:
    return any(map(_COMPANIONS.fullmatch, _SMALL_LETTERS.findall(name.lower())))


def _have_classes_in_common(splits: dict[str, str], subfolders: Mapping[str, set[str]]) -> bool:
    """Whether two folders of different splits have class folders of the same name."""
    seen: dict[str, str] = {}
    for name, split in splits.items():
        for inner in subfolders[name]:
            if seen.setdefault(inner, split) != split:
                return True
    return False
