"""The words train, val and test in names: files or folders of different splits are never read as
one data set.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable

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
