"""The words train, val and test in names: files or folders of different splits are never read as
one data set.
"""

import glob
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from dali_pipes.errors import ManifestError

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


def refuse_several_splits(
    place: str | os.PathLike[str],
    names: Iterable[str],
    spelled: Callable[[str, Sequence[str]], str],
) -> None:
    """Raises ManifestError if names under `place` are of two or more splits. Names without a split
    may be used with any.

    Args:
        spelled: returns what to give instead of `place`, for a split and its names.
    """
    by_split: dict[str, list[str]] = defaultdict(list)
    for name in names:
        if split := split_of(name):
            by_split[split].append(name)

    if len(by_split) > 1:
        choices = [
            f"{spelled(split, by_split[split])} ({len(by_split[split]):,} of {split})"
            for split in _SPLITS
            if split in by_split
        ]
        why = f"holds {len(by_split)} splits, which must not be mixed"
        raise ManifestError(f"{os.fspath(place)}: {why}; give one: {', '.join(choices)}")


def refuse_mixed_files(
    source: str | os.PathLike[str], folder: str | os.PathLike[str], names: Iterable[str]
) -> None:
    """Raises ManifestError if files of a source, all in one folder, are of two or more splits."""
    files = list(names)

    def spelled(split: str, of_split: Sequence[str]) -> str:
        pattern = pattern_of(of_split, files)
        return (
            f"{os.fspath(folder)}/{pattern}"
            if pattern
            else f"those of {split} in a folder of their own"
        )

    refuse_several_splits(source, files, spelled)


def pattern_of(names: Sequence[str], others: Iterable[str]) -> str | None:
    """Returns a pattern such as train* that all the names match and none of the others; None: there
    is no simple one.
    """
    rest = set(others) - set(names)
    # the common end is the common start of the reversed names
    start, end = _common_start(names), _common_start([name[::-1] for name in names])[::-1]
    words = [match for match in _WORD.finditer(start) if match[0].lower() in _WORDS]
    anywhere = {word for name in names for word in _WORD.findall(name) if word.lower() in _WORDS}

    # shortest first: to the end of the word, with the sign after it, all that the names share
    starts = [start[: words[-1].end()], start[: words[-1].end() + 1]] if words else []
    candidates = [f"{glob.escape(part)}*" for part in [*starts, start] if part]
    candidates += [f"*{glob.escape(end)}"] if end else []
    candidates += [f"*{word}*" for word in sorted(anywhere)]

    def fits(pattern: str) -> bool:
        takes_all = all(fnmatchcase(name, pattern) for name in names)
        return takes_all and not any(fnmatchcase(name, pattern) for name in rest)

    return next(filter(fits, candidates), None)


def _common_start(names: Sequence[str]) -> str:
    # what the first and the last in sorted order share, all between them share
    first, last = min(names), max(names)
    pairs = enumerate(zip(first, last, strict=False))
    return first[: next((place for place, (one, other) in pairs if one != other), len(first))]
