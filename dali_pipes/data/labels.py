"""Labels and columns of a table: one class for each image, several, or numbers to predict; and
numbers, text and lists beside them.

Labels are stored as Arrow's int32 (one class), list of int32 (any number of classes), float32 or
fixed-size list of float32 (numbers to predict); columns as int64, float32 or bool, fixed-size or
large lists of these, or large strings.

`read_text` finds the type of a CSV's cells, or of the parts into which a separator splits them.
`read_labels` finds the rows without a label, and numbers the classes of the others
(`_number_classes`) or converts their numbers to predict (`_to_predict`). `read_columns` converts
the other columns. Errors name the first row that is wrong; `_Cells` carries the row numbers.
"""

import contextlib
import re
import unicodedata
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.data.problems import HOLE_IN_LABELS, NO_LABEL
from dali_pipes.data.table_options import PLAIN, TableOptions
from dali_pipes.errors import ManifestError

COLUMN = "column:"  # the prefix that a table's own columns have in a manifest
MAX_CLASSES = 1_000_000
# how numbers are written, as regular expressions
_WHOLE = "0|-?[1-9][0-9]*"
_ANY_WHOLE = "[+-]?[0-9]+"
_NUMBER = (
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:inf|Inf|INF|infinity|Infinity)"
)
_DECIMAL_COMMA = "[+-]?[0-9]+(?:,[0-9]+)?"
_MARK = "[-?._…–—]+"  # signs that stand for a missing value
# spellings of a missing number: those of pandas and Arrow
_NULLS = (
    *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)


def task_of(label: pa.DataType) -> str:
    """The task of labels of this type: "classification", "multilabel" or "regression"."""
    if pa.types.is_list(label):
        return "multilabel"
    return "classification" if pa.types.is_integer(label) else "regression"


class Labels(NamedTuple):
    """The labels of a table.

    Attributes:
        classes: class names; none for numbers to predict.
        values: one for each row, of one of the stored types; without meaning for a row that has no
            label.
        problems: why a row has no label, by its number from 0.
    """

    classes: list[str]
    values: pa.Array
    problems: dict[int, str]


def read_labels(file: Path | str, column: pa.ChunkedArray, options: TableOptions = PLAIN) -> Labels:
    """Reads the labels in a table's column; its type decides what they mean.

    Integers are class numbers from 0, text is a class name, a list of either is any number of
    classes; fractions, and lists of them that all have the same length, are numbers to predict.
    Fractions that are all whole may be either, and `options.task` has to say which. A row whose
    cell is empty, null, NaN or blank has no label.

    Args:
        file: the table, for error messages, which count rows from 1.

    Raises:
        ManifestError: a label makes no sense, or no row has one.
    """
    values = _simplify(column.combine_chunks())
    if options.label_separator is not None and not is_list(values.type):
        values = _split(file, values, options)
    problems = _missing_labels(values)
    if len(problems) == len(values):
        first = f" (row 1: {problems[0]})" if problems.get(0, NO_LABEL) != NO_LABEL else ""
        raise ManifestError(f"{file}: no row has a label{first}; fill the column of labels")

    # read the other rows, and put their labels back in place
    rows = np.arange(len(values))
    if problems:
        rows = np.delete(rows, list(problems))
    known = _Cells(file, values.take(pa.array(rows)) if problems else values, rows)
    read = _read_several if is_list(values.type) else _read_single
    classes, labels = read(known, options.task)
    return Labels(
        classes, _place_labels(labels, rows, len(values)) if problems else labels, problems
    )


def read_text(
    file: Path | str,
    cells: pa.Array,
    task: str | None = None,
    rows: NDArray[np.int64] | None = None,
) -> pa.Array:
    """Reads the text in a CSV's cells as one type: int64, float64 or names; null: missing.

    Whole numbers are class numbers only if each is written as Python writes it: "001" is a name,
    since it differs from "1". Among numbers, the spellings in `_NULLS` mean a missing value; among
    names only the empty cell does, since "NA" is Namibia.

    Args:
        task: as in `TableOptions`; for "regression" "001" is a number.
        rows: the row of each cell, from 0, for error messages; None: its position.

    Raises:
        ManifestError: numbers with a decimal comma, or whole numbers beyond 64 bits.
    """
    cells = pc.utf8_trim_whitespace(cells)
    located = _Cells(file, cells, np.arange(len(cells)) if rows is None else rows)
    distinct = pc.unique(cells)
    known = distinct.filter(pc.invert(pc.is_in(distinct, pa.array(["", *_NULLS], distinct.type))))

    def all_match(pattern: str) -> bool:
        # a quick look at the first one, before a pass over all
        if not len(known) or not re.fullmatch(pattern, known[0].as_py()):
            return False
        return bool(pc.all(pc.match_substring_regex(known, f"^(?:{pattern})$")).as_py())

    if all_match(_WHOLE) or (task == "regression" and all_match(_ANY_WHOLE)):
        return _as_int64(located._replace(values=_nullify(cells, distinct, _NULLS)))

    if all_match(_ANY_WHOLE):
        return _nullify(cells, distinct, _NULLS)

    if len(known) and re.fullmatch(_NUMBER, known[0].as_py()):
        numbers = _nullify(cells, distinct, _NULLS)
        if pc.any(pc.starts_with(known, "+")).as_py():  # Arrow does not read a plus sign
            numbers = pc.replace_substring_regex(numbers, "^[+]", "")
        with contextlib.suppress(pa.ArrowInvalid):  # some cell is no number
            return numbers.cast(pa.float64())

    # some have a comma, since whole numbers have been returned above
    if all_match(_DECIMAL_COMMA):
        located.refuse(
            pc.match_substring(cells, ",").to_numpy(zero_copy_only=False),
            "the label {value!r} has a comma, and all labels are numbers",
            "write fractions with a point, or split several classes with label_separator=','",
        )

    if task is None:
        _refuse_odd_ones(located, known)

    if all_match("true|True|TRUE|false|False|FALSE"):
        cells = pc.utf8_lower(cells)  # as Arrow writes booleans, which Parquet may hold
    return _nullify(cells, distinct, ())


def _nullify(cells: pa.Array, distinct: pa.Array, spellings: Collection[str]) -> pa.Array:
    """Makes the cells null that are empty or have one of these spellings.

    Args:
        distinct: the distinct values of the cells.
    """
    empty = pa.array(["", *spellings], cells.type)
    if not pc.any(pc.is_in(distinct, empty)).as_py():
        return cells
    return pc.replace_with_mask(cells, pc.is_in(cells, empty), pa.scalar(None, cells.type))


def _refuse_odd_ones(cells: "_Cells", known: pa.Array) -> None:
    """Raises ManifestError for "?" among numbers, and for text among fractions."""
    is_number = pc.match_substring_regex(known, f"^(?:{_NUMBER})$").to_numpy(zero_copy_only=False)
    if not is_number.any() or is_number.all():
        return

    numbers, others = (known.filter(pa.array(each)).to_pylist() for each in (is_number, ~is_number))
    fractions = sum(not re.fullmatch(_ANY_WHOLE, number) for number in numbers)

    if fractions > len(known) / 2 or all(re.fullmatch(_MARK, other) for other in others):
        odd = pc.is_in(cells.values, pa.array(others, cells.values.type))
        cells.refuse(
            odd.to_numpy(zero_copy_only=False),
            "the label {value!r} is no number, and others are",
            (
                "correct it or leave it empty, or give task='classification' if all are names "
                "(data.task=classification)"
            ),
        )


def read_columns(
    file: Path | str, table: pa.Table, used: Collection[str] = ("path", "label")
) -> dict[str, pa.Array]:
    """Reads the columns of numbers, of text and of lists of numbers, as "column:NAME".

    Columns in `used`, and those of other types, are left out.

    An empty cell becomes NaN in a column of numbers, which then is float32; the empty text; or an
    empty list.
    """
    found = {
        name: column
        for name, column in zip(table.column_names, table.columns, strict=True)
        if _is_kept_type(column.type)
    }

    try:
        return {
            COLUMN + name: _to_stored(column.combine_chunks())
            for name, column in found.items()
            if name not in used
        }
    except pa.ArrowException as error:
        raise ManifestError(
            f"{file}: a column cannot be used ({error}); fix it or leave it out"
        ) from None


def stored_type(name: str, kind: pa.DataType) -> pa.DataType:
    """The type as which a saved manifest's label or column of this type is read.

    Raises:
        TypeError: there is none.
    """
    if name == "label":
        if pa.types.is_list(kind):
            return pa.list_(pa.int32())
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(pa.float32(), kind.list_size)
        return pa.float32() if pa.types.is_floating(kind) else pa.int32()

    if not _is_kept_type(kind):
        raise TypeError(f"{name} is of type {kind}")
    return _column_type(kind)


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


def null_count(column: pa.ChunkedArray) -> int:
    """The number of empty cells, and of empty positions in lists."""
    return int(
        column.null_count + (pc.list_flatten(column).null_count if is_list(column.type) else 0)
    )


def is_numeric(kind: pa.DataType) -> bool:
    """Whether a stored column has one number, or the same count of them, for each image.

    Such columns go on to the batch.
    """
    texts = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    return not (texts or pa.types.is_large_list(kind))


class _Cells(NamedTuple):
    """Labels of a table, none of them missing, with the row of each, from 0."""

    file: Path | str
    values: pa.Array
    rows: NDArray[np.int64]

    def refuse(self, bad: NDArray[np.bool_], why: str, instead: str) -> None:
        """Raises ManifestError for the first bad cell, if there is one.

        Args:
            why: the message; {value} in it is replaced by the cell.
            instead: what to do about it.
        """
        if bad.any():
            first = int(bad.argmax())
            what = why.format(value=self.values[first].as_py())
            raise ManifestError(f"{self.file}: {what} (row {self.rows[first] + 1}); {instead}")


def _simplify(values: pa.Array) -> pa.Array:
    """Converts dictionaries and decimals to plain types, and strips blanks from text."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return _simplify(values.dictionary_decode())
    if pa.types.is_decimal(kind) or pa.types.is_float16(kind):
        return values.cast(pa.float64())
    if is_text(kind) or pa.types.is_string_view(kind):
        return pc.utf8_trim_whitespace(values.cast(pa.large_string()))
    return values


def _missing(values: pa.Array) -> NDArray[np.bool_]:
    """(n,) bool, which values are null, NaN or blank."""
    missing = pc.is_null(values, nan_is_null=True)
    if is_text(values.type):
        missing = pc.or_(missing, pc.fill_null(pc.equal(values, pa.scalar("", values.type)), True))
    return missing.to_numpy(zero_copy_only=False)


def _missing_labels(values: pa.Array) -> dict[int, str]:
    """Says why rows have no label, by row number."""
    missing = _missing(values)
    problems = dict.fromkeys(np.flatnonzero(missing).tolist(), NO_LABEL)
    if not is_list(values.type):
        return problems

    # a list with a hole has no label; an empty list of classes is one, and of fractions is none
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
    holes = _missing(_simplify(pc.list_flatten(values)))
    held = np.repeat(np.arange(len(values)), lengths)[holes]
    problems |= dict.fromkeys(held.tolist(), HOLE_IN_LABELS)
    if pa.types.is_floating(_simplify(pc.list_flatten(values)).type):
        problems |= dict.fromkeys(np.flatnonzero(~missing & (lengths == 0)).tolist(), NO_LABEL)
    return problems


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


def _split(file: Path | str, values: pa.Array, options: TableOptions) -> pa.Array:
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


def _read_single(cells: _Cells, task: str | None) -> tuple[list[str], pa.Array]:
    """Reads labels that are not lists: class names, and class numbers or numbers to predict."""
    kind = cells.values.type
    if task == "regression":
        return [], _to_predict(cells)
    if not pa.types.is_floating(kind):
        return _number_classes(cells)

    if task == "classification":
        return _number_classes(_whole_numbers(cells))
    _refuse_whole_fractions(cells)
    return [], _to_predict(cells)


def _refuse_whole_fractions(cells: _Cells) -> None:
    """Raises ManifestError if all fractions are whole."""
    values = cells.values.cast(pa.float64()).to_numpy()
    if np.isfinite(values).all() and (values == np.floor(values)).all():
        raise ManifestError(
            f"{cells.file}: the labels are whole numbers that are written as fractions, such as "
            f"{values[0]} (row {cells.rows[0] + 1}), as pandas writes integers if a cell "
            "was empty; "
            "give task='classification' if they are class numbers, or task='regression' if "
            "they are "
            "to be predicted (data.task=classification, data.task=regression)"
        )


def _read_several(cells: _Cells, task: str | None) -> tuple[list[str], pa.Array]:
    """Reads labels that are lists: any number of classes, or equally many numbers to predict."""
    lengths = pc.list_value_length(cells.values).to_numpy()
    flat = _Cells(
        cells.file, _simplify(pc.list_flatten(cells.values)), np.repeat(cells.rows, lengths)
    )
    is_fractions = pa.types.is_floating(flat.values.type)
    if task == "regression" or (is_fractions and task is None):
        return [], _read_vectors(cells, flat, lengths)

    if is_fractions:
        flat = _whole_numbers(flat)

    classes, numbers = _number_classes(flat)

    rows = np.repeat(np.arange(len(lengths)), lengths)
    pairs, counts = np.unique(rows * len(classes) + numbers.to_numpy(), return_counts=True)
    if (counts > 1).any():
        row, number = divmod(int(pairs[counts > 1][0]), len(classes))
        raise ManifestError(
            f"{cells.file}: the label of row {cells.rows[row] + 1} has the class "
            f"{classes[number]} twice; list the numbers or "
            "names of an image's classes (of a vector of zeros and ones: the places of its ones)"
        )

    return classes, pa.ListArray.from_arrays(
        pa.array(np.append(0, lengths.cumsum()), pa.int32()), numbers
    )


def _whole_numbers(cells: _Cells) -> _Cells:
    """Converts fractions that are all whole to integers; ManifestError for others."""
    values = cells.values.cast(pa.float64()).to_numpy()
    cells.refuse(
        ~np.isfinite(values) | (values != np.floor(values)),
        "the label {value} is not a whole number",
        "give task='regression' if labels are numbers to predict (data.task=regression)",
    )
    # so that all fit into int64; those beyond are refused later
    values = np.clip(values, -MAX_CLASSES, MAX_CLASSES)
    return cells._replace(values=pa.array(values.astype(np.int64)))


def _number_classes(cells: _Cells) -> tuple[list[str], pa.Array]:
    """Numbers the classes of labels: class names, and int32 class numbers.

    Names are sorted; integers are class numbers themselves.
    """
    file, labels = cells.file, cells.values
    if not len(labels):
        raise ManifestError(f"{file}: no row has a label; fill the column of labels")

    if pa.types.is_integer(labels.type):
        low, high = pc.min_max(labels).as_py().values()
        bad = pc.or_(pc.less(labels, 0), pc.greater_equal(labels, MAX_CLASSES))
        instead = "number the classes from 0, without large gaps"
        cells.refuse(
            bad.to_numpy(zero_copy_only=False),
            f"labels run from {low} to {high}, as {{value}}",
            instead,
        )
        return [str(label) for label in range(high + 1)], labels.cast(pa.int32())

    try:
        names = labels.cast(pa.string())
    except pa.ArrowException:
        why = f"labels of type {labels.type} make no sense"
        raise ManifestError(f"{file}: {why}; give class numbers, names, or fractions") from None

    classes = sorted(pc.unique(names).to_pylist())
    _refuse_lookalikes(cells._replace(values=names), classes)
    return classes, pc.index_in(names, value_set=pa.array(classes, pa.string()))


def _refuse_lookalikes(cells: _Cells, classes: list[str]) -> None:
    """Raises ManifestError if two names look the same, such as é and e with a combining accent."""
    if all(map(str.isascii, classes)):
        return

    seen: dict[str, str] = {}
    for name in classes:
        first = seen.setdefault(_appearance(name), name)
        if first != name:
            row, other = (
                cells.rows[pc.index(cells.values, each).as_py()] + 1 for each in (first, name)
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
        " " if each.isspace() else each for each in composed if unicodedata.category(each) != "Cf"
    )
    return "".join(shown)


def _read_vectors(cells: _Cells, flat: _Cells, lengths: NDArray[np.int64]) -> pa.Array:
    other = (
        "labels that are lists of fractions must all have the same length, not "
        f"{np.unique(lengths).tolist()}"
    )
    cells.refuse(lengths != lengths[0], other, "give each image as many numbers")
    cells.refuse(
        lengths == 0, "a list of numbers to predict is empty", "give each image as many numbers"
    )
    return pa.FixedSizeListArray.from_arrays(_to_predict(flat), int(lengths[0]))


def _to_predict(cells: _Cells) -> pa.Array:
    """Converts labels to float32 numbers to predict; ManifestError for other labels."""
    kind = cells.values.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        first = f"{cells.values[0].as_py()!r} (row {cells.rows[0] + 1})"
        raise ManifestError(
            f"{cells.file}: task='regression' predicts numbers, and labels are of type "
            f"{kind}, such "
            f"as {first}; give numbers, or leave out task"
        )

    values = cells.values.cast(pa.float32(), safe=False)
    bad = ~np.isfinite(values.to_numpy(zero_copy_only=False))
    cells.refuse(
        bad, "a label is not finite, {value}", "every image needs a number to predict, as a float32"
    )
    return values


def _as_int64(numbers: _Cells) -> pa.Array:
    try:
        return numbers.values.cast(pa.int64())
    except pa.ArrowInvalid:
        # up to 18 digits always fit into 64 bits
        long = pc.fill_null(pc.greater(pc.utf8_length(numbers.values), 18), False).to_numpy(
            zero_copy_only=False
        )
        numbers.refuse(
            long, "the label {value} is too large", "number the classes from 0, without large gaps"
        )
        raise


def _to_stored(array: pa.Array) -> pa.Array:
    if is_text(array.type):
        return array.cast(pa.large_string()).fill_null("")

    if pa.types.is_fixed_size_list(array.type):
        if array.null_count:
            raise pa.ArrowInvalid("a list is missing")
        return pa.FixedSizeListArray.from_arrays(_to_stored(array.flatten()), array.type.list_size)

    if is_list(array.type):
        ends = np.append(0, pc.fill_null(pc.list_value_length(array), 0).to_numpy().cumsum())
        return pa.LargeListArray.from_arrays(
            pa.array(ends, pa.int64()), _to_stored(pc.list_flatten(array))
        )

    if array.null_count:
        return array.cast(pa.float32(), safe=False).fill_null(float("nan"))
    return array.cast(_column_type(array.type), safe=not pa.types.is_floating(array.type))


def _column_type(kind: pa.DataType) -> pa.DataType:
    if is_text(kind):
        return pa.large_string()
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_column_type(kind.value_type), kind.list_size)
    if is_list(kind):
        return pa.large_list(_column_type(kind.value_type))

    return (
        pa.float32()
        if pa.types.is_floating(kind)
        else pa.bool_()
        if pa.types.is_boolean(kind)
        else pa.int64()
    )


def _is_kept_type(kind: pa.DataType) -> bool:
    each = kind.value_type if is_list(kind) else kind
    return (
        is_text(kind)
        or pa.types.is_integer(each)
        or pa.types.is_floating(each)
        or pa.types.is_boolean(each)
    )


def is_unicode(text: str) -> bool:
    """Whether Arrow can hold a text.

    JSON's escapes may give half a character, one from D800 to DFFF.
    """
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_list(kind: pa.DataType) -> bool:
    return (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )
