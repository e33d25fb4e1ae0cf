"""What in a set of images most likely means something else than it is read as: `find_doubts`.

It looks at the images that a reader has read, whatever their source is, so that a table, a folder
and a file of COCO's form are doubted alike. What only a reader knows, such as how masks were drawn,
the reader adds itself (`add_doubt`).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.labels.reader import number_names
from dali_pipes.data.object_doubts import find_object_doubts
from dali_pipes.data.omissions import Omission
from dali_pipes.data.sets.same_images import (
    number_contents,
    number_files,
    sign_mask_bytes,
    sign_masks,
    sign_objects,
)

_NAMED = 3  # names that a doubt has
_BY_TEXT, _FROM_1 = "classes are numbers in the order of text", "no label is 0"
_GAPS, _JOINED = "class numbers without an image", "class names are several names joined"
_ALIKE = "class names that differ in case, blanks or signs alone"
_SAME_BYTES, _SAME_FILE = "images of the same bytes", "files in several rows"
UNNAMED_SETS = "sets with class numbers beside others with class names"
_OF_NAMES = (_BY_TEXT, _FROM_1, _GAPS, _JOINED, _ALIKE, UNNAMED_SETS)
_NUMBER = re.compile(r"(?:tensor\()?([0-9]+)(?:\.0+)?\)?")  # also as programs print one
_SIGNS, _FEWEST_JOINED = ",;|/+& ", 2  # between names
_BLANKS = re.compile(r"[\s_-]+")
_ENOUGH = 10  # images a class, of which a class would have one if there were any


def find_doubts(
    images: ImageTable, are_named: bool = False, whole: ImageTable | None = None
) -> list[Omission]:
    """What is used and most likely means something else than it is read as.

    Args:
        are_named: whether somebody has said which name has which number.
        whole: those by which the classes were numbered; None: these.
    """
    of_names = () if are_named else _LOOKS_AT_NAMES
    numbered = images if whole is None else whole
    found = [each for look in of_names for each in look(numbered)]
    return [*found, *(each for look in _LOOKS for each in look(images))]


def find_doubts_of_names(images: ImageTable) -> list[Omission]:
    """Those that end where somebody says which name has which number."""
    return [found for look in _LOOKS_AT_NAMES for found in look(images)]


def is_of_names(omission: Omission) -> bool:
    """Whether it ends where somebody says which name has which number."""
    return omission.kind.startswith(_OF_NAMES)


def is_of_repeated(omission: Omission) -> bool:
    """Whether `find_repeated` found it, which looks at all images together."""
    return omission.kind.startswith((_SAME_BYTES, _SAME_FILE))


def add_doubt(images: ImageTable, what: str, names: Iterable[str], number: int) -> ImageTable:
    """The same images, with a doubt that only their reader knows of."""
    return images.with_facts(omissions=[*images.facts.omissions, doubt(what, names, number)])


def doubt(what: str, names: Iterable[str], number: int, unit: str = "doubt") -> Omission:
    """A doubt, or a note.

    Args:
        names: of what is in doubt; the first ones are kept.
        number: how many there are.
    """
    return Omission(what, number, list(islice(names, _NAMED)), unit)


def _numbers(images: ImageTable) -> Iterator[Omission]:
    """Class numbers that no image has, and numbers that are sorted as text."""
    classes = images.classes
    if images.task == "regression" or not classes:
        return

    values = {name: int(found[1]) for name in classes if (found := _NUMBER.fullmatch(name))}
    by_value = sorted(values, key=lambda name: values[name])
    # a few of them may be names, such as "unknown"
    if len(values) >= len(classes) / 2 and classes == sorted(classes) and [*values] != by_value:
        name = next(name for name, other in zip(values, by_value, strict=True) if name != other)
        yield doubt(
            f"{_BY_TEXT}, so class {classes.index(name)} is {name!r}; "
            f"classes=[{','.join(by_value[:3])},…] has them by their value",
            values,
            len(values),
        )

    if classes != number_names(len(classes)):
        return
    counts = np.zeros(len(classes), np.int64)
    for ids in images.rows.blocks():
        labels = images.take_labels(ids)
        counts += np.bincount(labels[labels >= 0], minlength=len(classes))
    dead = np.flatnonzero(counts == 0)
    if not dead.size or dead.size == len(classes):
        return

    used = len(classes) - len(dead)
    if dead[0] == 0 and _ENOUGH * (len(dead) - 1) <= used:
        yield doubt(
            f"{_FROM_1}, so class 0 has no image, and weights that were trained on classes from 0 "
            "do not fit; number the classes from 0, or give classes=[…] with the names of all",
            ["0"],
            1,
        )
        dead = dead[1:]
        if not dead.size:
            return
    # of few images not every class need have one
    is_odd = len(images) >= _ENOUGH * used
    advice = (
        "; number the classes without gaps, give classes=[…] with the names of all, or "
        "task='regression' if they are to be predicted"
    )
    yield doubt(
        _GAPS + advice * is_odd,
        map(str, dead.tolist()),
        len(dead),
        "doubt" if is_odd else "note",
    )


def _joined_names(images: ImageTable) -> Iterator[Omission]:
    """Names of classes that are several names, one after the other, as labels of several classes
    are that nobody has split.
    """
    for sign in _SIGNS:
        parts = {name: [part.strip() for part in name.split(sign)] for name in images.classes}
        joined = [name for name, of_name in parts.items() if len(of_name) > 1]
        if len(joined) >= _FEWEST_JOINED and _are_joined(parts, joined, sign):
            # a folder is one class, whatever it is called
            advice = (
                "a table can give an image several classes"
                if images.facts.folders
                else f"label_separator={sign!r} splits them"
            )
            yield doubt(f"{_JOINED} by {sign!r}; {advice}", joined, len(joined))


def _are_joined(parts: Mapping[str, list[str]], joined: list[str], sign: str) -> bool:
    """Whether these names of classes are several names.

    Args:
        parts: those of all names, as a sign splits them.
        joined: the names that have the sign.
    """
    counts = Counter(part for of_name in parts.values() for part in set(of_name))
    if all(part.isdecimal() for name in joined for part in parts[name]):
        return True
    of_known = [name for name in joined if all(part in parts for part in parts[name])]
    if sign == " ":  # which names have too, as "sea lion" has
        return len(of_known) > _FEWEST_JOINED and len(of_known) > len(joined) / 2
    shared = sum(count > 1 for count in counts.values())
    is_usual = len(joined) > len(parts) / 2 and shared > len(counts) / 2
    return is_usual or len(of_known) >= _FEWEST_JOINED


def find_alike_names(images: ImageTable) -> Iterator[Omission]:
    """Names that most likely were meant as one; letters in both cases are characters to read."""
    groups: dict[str, list[str]] = {}
    for name in images.classes:
        # of sets that were joined with their classes apart a name may be there twice
        group = groups.setdefault(_BLANKS.sub(" ", name.casefold()).strip(), [])
        if len(name) > 1 and name not in group:
            group.append(name)
    alike = [" and ".join(map(repr, names)) for names in groups.values() if len(names) > 1]
    if alike:
        yield doubt(f"{_ALIKE}; write each of them in one way", alike, len(alike))


def find_repeated(images: ImageTable) -> Iterator[Omission]:
    """Images that are several samples: by their bytes where these were read (verify="full"), and
    else files that are in several rows.
    """
    numbers, what = number_contents(images), _SAME_BYTES
    if numbers is None:
        # in a folder each file is once, and so is each member of a shard
        if images.facts.folders or not images.whole_files:
            return
        numbers, what = number_files(images), _SAME_FILE
    ids = np.flatnonzero(np.bincount(numbers)[numbers] > 1)
    if not ids.size:
        return

    ids = ids[np.argsort(numbers[ids], kind="stable")]
    is_first = np.diff(numbers[ids], prepend=-1) != 0
    first = np.maximum.accumulate(np.where(is_first, np.arange(len(ids)), 0))

    files, torn = ids[is_first], ids[:0]
    for unlike, signs in _sign(images, ids, what):
        differ = (signs != signs[first]).any(axis=1)
        some = np.setdiff1d(ids[np.unique(first[differ])], torn)
        torn = np.union1d(torn, some)
        if some.size:
            names = map(images.relative_name, some.tolist())
            yield doubt(f"{what} with {unlike}", names, len(some))
    if (alike := np.setdiff1d(files, torn)).size:
        what = f"{what} with the same label, each of which is a sample"
        yield doubt(what, map(images.relative_name, alike.tolist()), len(alike), "note")


def _sign(
    images: ImageTable, ids: NDArray[np.int64], what: str
) -> Iterator[tuple[str, NDArray[Any]]]:
    """What may be different of samples that are the same image, and numbers, (N, K), that then
    differ. A sample is told of the first only.
    """
    if images.has_target("boxes"):
        unlike = (
            "different objects, so that a sample has some of them only; write one row with all "
            "boxes of an image, as pandas' groupby('path').agg(list) does, or correct them"
        )
        yield unlike, sign_objects(images, ids, with_labels=False)[:, None]
    unlike = (
        "different labels, so that a network learns each of them; correct them, or write one row "
        "with all classes of an image (label_separator)"
    )
    if images.has_target("boxes"):
        yield unlike, sign_objects(images, ids, with_labels=True)[:, None]
    else:
        yield unlike, images.take_labels(ids).reshape(len(ids), -1)
    if images.has_target("mask") or images.has_target("mask_bytes"):
        unlike = (
            "different masks, so that a network learns each of them; write one row with one mask "
            "of all objects of an image, or correct them"
        )
        sign = sign_mask_bytes if what == _SAME_BYTES else sign_masks
        yield unlike, sign(images, ids)[:, None]


_LOOKS_AT_NAMES: tuple[Callable[[ImageTable], Iterator[Omission]], ...] = (
    _numbers,
    _joined_names,
    find_alike_names,
)
_LOOKS: tuple[Callable[[ImageTable], Iterator[Omission]], ...] = (find_repeated, find_object_doubts)
