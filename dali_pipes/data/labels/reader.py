"""Reads the labels of a table: one class for each image, several, or numbers to predict.

    a cell of the column              is                                 or, if `task` says so
    text                              a class name
    whole number                      a class number                     a number to predict
    list of these, "[0, 1]", or       any number of classes              numbers to predict
      text that a separator splits
    list of zeros and ones            the classes where the ones are     numbers to predict
    fraction, list of fractions       numbers to predict, as float32     class numbers
    empty, NaN, class number -1       no label: a problem of its row

`read_labels` finds the rows without a label, and reads the others (texts.py: what text means);
`number_classes` numbers the names, and refuses those that look the same. Errors name the first row
that is wrong.

A manifest has labels as Arrow's int32 for one class, lists of int32 for any number of classes, and
float32 or lists of a fixed length of float32 for numbers to predict (`task_of`).
"""

import unicodedata
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.data.arrow_types import is_list, is_text
from dali_pipes.data.labels.texts import (
    NO_NAMES,
    LabelCells,
    find_places,
    read_text,
    read_text_lists,
)
from dali_pipes.data.omissions import NO_LABEL, Omission, unusable_label
from dali_pipes.data.sources.options import SourceOptions
from dali_pipes.data.spelling import argument
from dali_pipes.errors import ManifestError

# each number up to the highest label becomes a class; a label beyond this is taken for a mistake
MAX_CLASSES = 1_000_000


class Labels(NamedTuple):
    """The labels of a table.

    Attributes:
        classes: class names; none for numbers to predict.
        values: one for each row, of one of the stored types; without meaning for a row that has no
            label.
        problems: why a row has no label, by its number from 0.
        notes: by which rule they were read, if that is not plain to see.
    """

    classes: list[str]
    values: pa.Array
    problems: dict[int, str]
    notes: list[Omission]


def read_labels(
    file: Path | str,
    column: pa.ChunkedArray,
    options: SourceOptions,
    width: int | None = None,
) -> Labels:
    """Reads the labels in a table's column; its type decides what they mean.

    Integers are class numbers from 0, text is a class name, a list of either is any number of
    classes, and so is a vector of zeros and ones, in which each place is a class; fractions, and
    lists of them that all have the same length, are numbers to predict. Fractions that are all
    whole may be either, and `options.task` has to say which. A text of a list is that list. A row
    whose cell is empty, null, NaN or blank has no label, and neither has one whose class number is
    -1.

    Args:
        file: the table, for error messages, which count rows from 1.
        width: how many classes there are, which is how long vectors of zeros and ones are; None: it
            is not known; 0: lists are known to be of class numbers.

    Raises:
        ManifestError: a label makes no sense, or no row has one, or all are -1 and 1.
    """
    values = simplify(column.combine_chunks())
    if is_text(values.type):
        cells = LabelCells(file, values, np.arange(len(values)))
        values = read_text_lists(cells, options.task, options.label_separator)
    if options.label_separator is not None and not is_list(values.type):
        values = _split(file, values, options)
    problems = _missing_labels(values, options.task)
    if problems:
        _refuse_signs(file, values, options.task)
    if len(problems) == len(values):
        first = f" (row 1: {problems[0]})" if problems.get(0, NO_LABEL) != NO_LABEL else ""
        raise ManifestError(f"{file}: no row has a label{first}; fill the column of labels")

    # read the other rows, and put their labels back in place
    rows = np.arange(len(values))
    if problems:
        rows = np.delete(rows, list(problems))
    known = LabelCells(file, values.take(pa.array(rows)) if problems else values, rows)
    notes: list[Omission] = []
    if is_list(values.type):
        classes, labels, notes = _read_several(known, options.task, width)
    else:
        classes, labels = _read_single(known, options.task)
    return Labels(
        classes, _place_labels(labels, rows, len(values)) if problems else labels, problems, notes
    )


def _missing(values: pa.Array, task: str | None) -> NDArray[np.bool_]:
    """(n,) bool, which values are null, NaN or blank, or the class number of no class."""
    missing = pc.is_null(values, nan_is_null=True)
    if is_text(values.type):
        missing = pc.or_(missing, pc.is_in(values, pa.array(["", *NO_NAMES], values.type)))
    if _are_class_numbers(values, task):
        missing = pc.or_(missing, pc.fill_null(pc.equal(values, -1), True))
    return missing.to_numpy(zero_copy_only=False)


def _are_class_numbers(values: pa.Array, task: str | None) -> bool:
    is_fraction = task == "classification" and pa.types.is_floating(values.type)
    return is_fraction or (task != "regression" and pa.types.is_signed_integer(values.type))


def _missing_labels(values: pa.Array, task: str | None) -> dict[int, str]:
    """Says why rows have no label, by row number."""
    missing = _missing(values, task)
    problems = dict.fromkeys(np.flatnonzero(missing).tolist(), NO_LABEL)
    if not is_list(values.type):
        return problems

    # a list with a hole has no label; an empty list of classes is one, and of fractions is none
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
    items = simplify(pc.list_flatten(values))
    held = np.repeat(np.arange(len(values)), lengths)[_missing(items, task)]
    problems |= dict.fromkeys(held.tolist(), unusable_label("an empty place in its list of labels"))
    if pa.types.is_floating(items.type):
        problems |= dict.fromkeys(np.flatnonzero(~missing & (lengths == 0)).tolist(), NO_LABEL)
    return problems


def _refuse_signs(file: Path | str, values: pa.Array, task: str | None) -> None:
    """Raises ManifestError if all labels are -1 and 1, which are two classes, or the answers of
    vectors.
    """
    if not _are_class_numbers(values.values if is_list(values.type) else values, task):
        return
    items = pc.list_flatten(values) if is_list(values.type) else values
    known = items.filter(pc.invert(pc.is_null(items, nan_is_null=True)))
    if sorted(pc.unique(known).to_pylist()) == [-1, 1]:
        raise ManifestError(
            f"{file}: all labels are -1 and 1, and -1 is no class; write 0 instead of -1"
        )


def _place_labels(labels: pa.Array, rows: NDArray[np.int64], count: int) -> pa.Array:
    """Puts labels into `count` rows: those of `rows` in their places, zero or nothing elsewhere."""
    kind = labels.type
    nothing = (
        [0] * kind.list_size if pa.types.is_fixed_size_list(kind) else [] if is_list(kind) else 0
    )
    # the rows without a label take the one that is appended
    places = np.full(count, len(labels))
    places[rows] = np.arange(len(labels))
    return pa.concat_arrays([labels, pa.array([nothing], kind)]).take(pa.array(places))


def _split(file: Path | str, values: pa.Array, options: SourceOptions) -> pa.Array:
    """Splits text into lists of class numbers, names, or by `options.task` fractions.

    An empty cell becomes an empty list.
    """
    cells = values.cast(pa.string()).to_pylist()
    split = ((cell or "").split(options.label_separator) for cell in cells)
    rows = [[part.strip() for part in parts if part.strip()] for parts in split]
    ends = np.append(0, np.cumsum([len(row) for row in rows]))

    # all parts have one type, so they are read as one column
    parts = pa.array([part for row in rows for part in row], pa.string())
    held = np.repeat(np.arange(len(rows)), np.diff(ends))
    read = read_text(file, parts, options.task, held)
    if options.task is None and not pa.types.is_integer(read.type):
        read = parts  # split labels are classes, so "0.5" is a name unless `task` says otherwise

    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), read)


def _read_single(cells: LabelCells, task: str | None) -> tuple[list[str], pa.Array]:
    """Reads labels that are not lists: class names, and class numbers or numbers to predict."""
    kind = cells.values.type
    if task == "regression":
        return [], _to_predict(cells)
    if not pa.types.is_floating(kind):
        return number_classes(cells)

    if task == "classification":
        return number_classes(_whole_numbers(cells))
    values = cells.values.to_numpy()
    if np.isfinite(values).all() and (values == np.floor(values)).all():
        hint = ", as pandas writes integers if a cell was empty"
        _refuse_fractions(cells, "whole numbers", "they are class numbers", hint)
    return [], _to_predict(cells)


def _refuse_fractions(cells: LabelCells, what: str, if_classes: str, hint: str = "") -> None:
    """Raises ManifestError for fractions that may be classes as well as numbers to predict."""
    raise ManifestError(
        f"{cells.file}: the labels are {what} that are written as fractions, such as "
        f"{cells.values[0].as_py()!s:.60} (row {cells.rows[0] + 1}){hint}; give ",
        argument("task", "classification"),
        f" if {if_classes}, or ",
        argument("task", "regression"),
        " if they are to be predicted",
    )


def _read_several(
    cells: LabelCells, task: str | None, width: int | None
) -> tuple[list[str], pa.Array, list[Omission]]:
    """Reads labels that are lists: any number of classes, or equally many numbers to predict.

    Args:
        width: as for `read_labels`.
    """
    lengths = pc.list_value_length(cells.values).to_numpy()
    flat = LabelCells(
        cells.file, simplify(pc.list_flatten(cells.values)), np.repeat(cells.rows, lengths)
    )
    is_fractions = pa.types.is_floating(flat.values.type)
    if pa.types.is_boolean(flat.values.type):
        other = "the label {value} has another length than the first, and true and false are said "
        cells.refuse(lengths != lengths[0], other + "of each class", "write one for each class")
        width = None
    ones = None
    if not is_text(flat.values.type) and task != "regression":
        ones = find_places(lengths, flat.values, width)
    if is_fractions and task is None and ones is not None:
        a_class = "a 1 says that an image has the class"
        _refuse_fractions(cells, "vectors of zeros and ones", a_class)
    if task == "regression" or (is_fractions and task is None):
        return [], _read_vectors(cells, flat, lengths), []
    if ones is not None:
        return _from_ones(int(lengths[0]), *ones)

    if is_fractions:
        flat = _whole_numbers(flat)

    classes, numbers = number_classes(flat)

    rows = np.repeat(np.arange(len(lengths)), lengths)
    # one number for row and class, so that one sort finds what a row has twice
    pairs, counts = np.unique(rows * len(classes) + numbers.to_numpy(), return_counts=True)
    if (counts > 1).any():
        row, number = divmod(int(pairs[counts > 1][0]), len(classes))
        raise ManifestError(
            f"{cells.file}: the label of row {cells.rows[row] + 1} has the class "
            f"{classes[number]} twice; list the numbers or "
            "names of an image's classes"
        )

    lists = pa.ListArray.from_arrays(pa.array(np.append(0, lengths.cumsum()), pa.int32()), numbers)
    return classes, lists, []


def _from_ones(
    width: int, counts: NDArray[np.int64], places: NDArray[np.int64]
) -> tuple[list[str], pa.Array, list[Omission]]:
    """The classes of vectors of zeros and ones.

    Args:
        width: their length.
        counts, places: as `find_places` returns them.
    """
    ends = pa.array(np.append(0, counts.cumsum()), pa.int32())
    lists = pa.ListArray.from_arrays(ends, pa.array(places, pa.int32()))
    what = f"labels are vectors of {width} zeros and ones, and the places of the ones are classes"
    if (counts == 1).all():
        what += "; write the place itself if an image has one class only"
    return number_names(width), lists, [Omission(what, len(counts), [], "note")]


def _whole_numbers(cells: LabelCells) -> LabelCells:
    """Converts fractions that are all whole to integers; ManifestError for others."""
    values = cells.values.cast(pa.float64()).to_numpy()
    cells.refuse(
        ~np.isfinite(values) | (values != np.floor(values)),
        "the label {value} is not a whole number",
        "give ",
        argument("task", "regression"),
        " if labels are numbers to predict",
    )
    # so that all fit into int64; those beyond are refused later
    values = np.clip(values, -MAX_CLASSES, MAX_CLASSES)
    return cells._replace(values=pa.array(values.astype(np.int64)))


def _read_vectors(cells: LabelCells, flat: LabelCells, lengths: NDArray[np.int64]) -> pa.Array:
    other = (
        "labels that are lists of fractions must all have the same length, not "
        f"{np.unique(lengths).tolist()}"
    )
    cells.refuse(lengths != lengths[0], other, "give each image as many numbers")
    cells.refuse(
        lengths == 0, "a list of numbers to predict is empty", "give each image as many numbers"
    )
    return pa.FixedSizeListArray.from_arrays(_to_predict(flat), int(lengths[0]))


def _to_predict(cells: LabelCells) -> pa.Array:
    """Converts labels to float32 numbers to predict; ManifestError for other labels."""
    kind = cells.values.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        first = f"{cells.values[0].as_py()!r} (row {cells.rows[0] + 1})"
        raise ManifestError(
            f"{cells.file}: task='regression' predicts numbers, and labels are of type "
            f"{kind}, such "
            f"as {first}; give numbers, or leave out task"
        )

    # what is too large for a float32 becomes infinite, and is refused below
    values = cells.values.cast(pa.float32(), safe=False)
    bad = ~np.isfinite(values.to_numpy(zero_copy_only=False))
    cells.refuse(
        bad, "a label is not finite, {value}", "every image needs a number to predict, as a float32"
    )
    return values


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


def simplify(values: pa.Array) -> pa.Array:
    """Converts decimals to fractions, and strips blanks from text."""
    kind = values.type
    if pa.types.is_decimal(kind) or pa.types.is_float16(kind):
        return values.cast(pa.float64())
    if is_text(kind):
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
