"""Numbers the classes of labels, and refuses names that look the same (`number_classes`).

`LabelCells` are the labels as a table has them, with the row of each for errors. A manifest has
them as Arrow's int32 for one class, lists of int32 for any number of classes, and float32 or lists
of a fixed length of float32 for numbers to predict (`task_of`).
"""

import unicodedata
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.data.arrow_types import is_text
from dali_pipes.errors import ManifestError, Spelling

# each number up to the highest label becomes a class; a label beyond this is taken for a mistake
MAX_CLASSES = 1_000_000


def task_of(label: pa.DataType) -> str:
    """The task of labels of this type: "classification", "multilabel" or "regression"."""
    if pa.types.is_list(label):
        return "multilabel"
    return "classification" if pa.types.is_integer(label) else "regression"


def distinct_labels(
    counts: NDArray[np.int64], numbers: NDArray[np.int64], classes: int
) -> pa.Array:
    """Labels of several classes each: the distinct ones among an image's numbers, ascending.

    Args:
        counts: (N,) how many numbers each image has.
        numbers: (M,) class numbers, those of each image one after the other.
        classes: how many classes there are.
    """
    # one number for image and class, so that one sort does for all
    pairs = np.unique(np.repeat(np.arange(len(counts)), counts) * max(classes, 1) + numbers)
    image, number = np.divmod(pairs, max(classes, 1))
    ends = np.append(0, np.bincount(image, minlength=len(counts)).cumsum())
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(number, pa.int32()))


def no_labels(images: int) -> pa.Array:
    """An empty list for each image."""
    return pa.array([[]] * images, pa.list_(pa.int32()))


class LabelCells(NamedTuple):
    """Labels of a table, none of them missing, with the row of each, from 0."""

    file: Path | str
    values: pa.Array
    rows: NDArray[np.int64]

    def refuse(self, bad: NDArray[np.bool_], why: str, *instead: str | Spelling) -> None:
        """Raises ManifestError for the first bad cell, if there is one.

        Args:
            why: the message; {value} in it is replaced by the cell.
            instead: what to do about it.
        """
        if bad.any():
            first = int(bad.argmax())
            what = why.format(value=self.values[first].as_py())
            raise ManifestError(f"{self.file}: {what} (row {self.rows[first] + 1}); ", *instead)


def simplify(values: pa.Array) -> pa.Array:
    """Converts dictionaries and decimals to plain types, and strips blanks from text."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return simplify(values.dictionary_decode())
    if pa.types.is_decimal(kind) or pa.types.is_float16(kind):
        return values.cast(pa.float64())
    if is_text(kind) or pa.types.is_string_view(kind):
        return pc.utf8_trim_whitespace(values.cast(pa.large_string()))
    return values


def number_names(count: int) -> list[str]:
    """The names of classes that have none: their numbers."""
    return [str(number) for number in range(count)]


def number_classes(cells: LabelCells) -> tuple[list[str], pa.Array]:
    """Numbers the classes of labels: class names, and int32 class numbers.

    Names are sorted; integers are class numbers themselves.
    """
    file, labels = cells.file, cells.values
    if not len(labels):
        raise ManifestError(f"{file}: no row has a label; fill the column of labels")

    if pa.types.is_integer(labels.type):
        low, high = pc.min_max(labels).as_py().values()
        # by NumPy, which compares unsigned numbers of 64 bits too
        numbers = labels.to_numpy()
        instead = "number the classes from 0, without large gaps"
        cells.refuse(
            (numbers < 0) | (numbers >= MAX_CLASSES),
            f"labels run from {low} to {high}, as {{value}}",
            instead,
        )
        return number_names(high + 1), labels.cast(pa.int32())

    try:
        names = labels.cast(pa.string())
    except pa.ArrowException:
        why = f"labels of type {labels.type} make no sense"
        raise ManifestError(f"{file}: {why}; give class numbers, names, or fractions") from None

    # a name may be there in two forms
    names = pc.utf8_normalize(names, form="NFC")
    # sorted as ImageFolder sorts folders, so that a table and folders number alike
    classes = sorted(pc.unique(names).to_pylist())
    _refuse_lookalikes(cells._replace(values=names), classes)
    return classes, pc.index_in(names, value_set=pa.array(classes, pa.string()))


def _refuse_lookalikes(cells: LabelCells, classes: list[str]) -> None:
    """Raises ManifestError if two names look the same, such as é and e with a combining accent."""
    if all(map(str.isascii, classes)):
        return

    seen: dict[str, str] = {}
    for name in classes:
        first = seen.setdefault(_appearance(name), name)
        if first != name:
            row, other = (
                cells.rows[pc.index(cells.values, class_name).as_py()] + 1
                for class_name in (first, name)
            )
            raise ManifestError(
                f"{cells.file}: the classes {first!a} (row {row}) and {name!a} (row "
                f"{other}) look the "
                "same; write one of them in all rows"
            )


def _appearance(name: str) -> str:
    """A name as one sees it: composed characters, all blanks alike, and nothing of no width."""
    composed = unicodedata.normalize("NFC", name)
    shown = (
        " " if character.isspace() else character
        for character in composed
        if unicodedata.category(character) != "Cf"
    )
    return "".join(shown)
