"""Decides which folders are the classes of a data set: all of them, or those that the user names. A
folder whose subfolders are its splits has none, and is refused.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

from dali_pipes.data.composed import composed
from dali_pipes.data.sources.names.splits import split_of
from dali_pipes.errors import ManifestError

# folders beside splits that are no classes either: images without labels, and predictions for them
_COMPANIONS = re.compile(
    r"extra|unlabel+ed|pred(ict(ions?|ed)?)?|holdout|images_without_labels", re.IGNORECASE
)
_WORDS = re.compile("[a-z]+")
_COMPARED = 20  # names without a folder that are compared with the folders

BESIDE = "images beside the class folders"
UNNAMED = "images of folders that classes does not name"
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
    folders: Iterable[str],
    user_classes: Sequence[str] | None,
    has_images: Callable[[str], bool],
    subfolders: Callable[[str], set[str]],
) -> list[str]:
    """Returns the names of the classes, in the order of their numbers.

    Args:
        folders: the classes that have a folder, in ImageFolder's order, without housekeeping.
        user_classes: the classes that the user names; None: each folder is a class.
        has_images, subfolders: look at a folder, by its name.

    Raises:
        ManifestError: the folders are splits, or are not those that are named.
    """
    folder_names = list(folders)
    if user_classes is None:
        refuse_split_folders(place, folder_names, has_images, subfolders)
        return folder_names

    known = set(folder_names)
    missing = [name for name in user_classes if name not in known]
    extra_folders = sorted(known - set(user_classes))

    # A class may have no image, so a name without a folder is allowed, unless it looks misspelt or
    # no name has a folder.
    for name in missing[:_COMPARED]:
        near = get_close_matches(name, extra_folders, 1)
        if near or len(missing) == len(user_classes):
            meant = (
                f"did you mean {near[0]}?" if near else f"there are {', '.join(folder_names[:5])}"
            )
            raise ManifestError(
                f"{place}: classes names {name!r}, and there is no such folder; {meant}"
            )
    return list(user_classes)


def refuse_split_folders(
    place: Path | str,
    names: Sequence[str],
    has_images: Callable[[str], bool],
    subfolders: Callable[[str], set[str]],
) -> None:
    """Raises ManifestError if folders of these names are splits.

    They are splits if each name has the word of a split, as train and val do; if two do, and no
    other folder holds an image; or if the class folders in two of them have names in common. A
    class called train beside bus and car stays a class.
    """
    splits = {name: split for name in names if (split := split_of(name))}
    if not splits:
        return

    others = [name for name in names if name not in splits and not _is_companion(name)]
    several = len(set(splits.values())) > 1
    # a folder called train says more than one called train_images
    exact = any(len(_WORDS.findall(name.lower())) == 1 for name in splits)

    if not others:
        are_splits = exact or (several and "train" in splits.values())
    else:
        are_splits = several and (
            _have_classes_in_common(splits, subfolders) or not any(map(has_images, others))
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
        if (split := split_of(folder)) and len(_WORDS.findall(folder.lower())) == 1
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
    return any(map(_COMPANIONS.fullmatch, _WORDS.findall(name.lower())))


def _have_classes_in_common(splits: dict[str, str], subfolders: Callable[[str], set[str]]) -> bool:
    """Whether two folders of different splits have class folders of the same name."""
    seen: dict[str, str] = {}
    for name, split in splits.items():
        for inner in subfolders(name):
            if seen.setdefault(inner, split) != split:
                return True
    return False
