"""What the texts of labels in a CSV mean: class numbers, numbers to predict, or names.

A text is a cell, or one of the parts into which a separator splits the cells.
"""

import contextlib
import re
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.data.arrow_types import is_text
from dali_pipes.data.labels.cells import LabelCells
from dali_pipes.data.spelling import argument

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

# what programs write for a missing value, and nobody calls a class
NO_NAMES = ("nan", "NaN", "-nan", "-NaN", "<NA>", "#N/A", "#NA", "NaT")
_FEW = 10  # times as many numbers as names: the names are mistakes


def read_text(
    file: Path | str,
    cells: pa.Array,
    task: str | None = None,
    rows: NDArray[np.int64] | None = None,
) -> pa.Array:
    """Reads the text in a CSV's cells as one type: int64, float64 or names; null: missing.

    Whole numbers are class numbers only if each is written as Python writes it: "001" is a name,
    since it differs from "1". Among numbers, the spellings in `_NULLS` mean a missing value; among
    names only the empty cell and `NO_NAMES` do, since "NA" is Namibia.

    Args:
        task: as in `TableOptions`; for "regression" "001" is a number.
        rows: the row of each cell, from 0, for error messages; None: its position.

    Raises:
        ManifestError: numbers with a decimal comma, or whole numbers beyond 64 bits.
    """
    cells = pc.utf8_trim_whitespace(cells)
    located = LabelCells(file, cells, np.arange(len(cells)) if rows is None else rows)
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
        # not all are written as Python writes them, such as 001: these are names
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
            "write fractions with a point, or split several classes with ",
            argument("label_separator", ","),
        )

    if task is None:
        _refuse_odd_ones(located, known)

    if all_match("true|True|TRUE|false|False|FALSE"):
        cells = pc.utf8_lower(cells)  # as Arrow writes booleans, which Parquet may hold
    return _nullify(cells, distinct, ())


def clear_others(cells: pa.Array, kind: pa.DataType, task: str | None) -> pa.Array:
    """Makes the cells null that are no numbers, or no whole ones, if that is the type of others."""
    if is_text(kind):
        return cells
    whole = _ANY_WHOLE if task == "regression" else _WHOLE
    pattern = whole if pa.types.is_integer(kind) else _NUMBER
    is_number = pc.match_substring_regex(pc.utf8_trim_whitespace(cells), f"^(?:{pattern})$")
    return pc.if_else(is_number, cells, pa.scalar(None, cells.type))


def _nullify(cells: pa.Array, distinct: pa.Array, spellings: Collection[str]) -> pa.Array:
    """Makes the cells null that are empty or have one of these spellings.

    Args:
        distinct: the distinct values of the cells.
    """
    empty = pa.array(["", *spellings], cells.type)
    if not pc.any(pc.is_in(distinct, empty)).as_py():
        return cells
    return pc.replace_with_mask(cells, pc.is_in(cells, empty), pa.scalar(None, cells.type))


def _refuse_odd_ones(cells: "LabelCells", known: pa.Array) -> None:
    """Raises ManifestError for "?" among numbers, for text among fractions, and for a name or two
    among many numbers.
    """
    is_number = pc.match_substring_regex(known, f"^(?:{_NUMBER})$").to_numpy(zero_copy_only=False)
    if not is_number.any() or is_number.all():
        return

    numbers, others = (known.filter(pa.array(rows)).to_pylist() for rows in (is_number, ~is_number))
    fractions = sum(not re.fullmatch(_ANY_WHOLE, number) for number in numbers)

    # Names may look like numbers. But where most are fractions, or the others are signs such as
    # "?", or few, all were meant as numbers.
    if (
        fractions > len(known) / 2
        or all(re.fullmatch(_MARK, other) for other in others)
        or len(others) * _FEW <= len(numbers)
    ):
        odd = pc.is_in(cells.values, pa.array(others, cells.values.type))
        cells.refuse(
            odd.to_numpy(zero_copy_only=False),
            "the label {value!r} is no number, and others are",
            "correct it or leave it empty, or give ",
            argument("task", "classification"),
            " if all are names",
        )


def _as_int64(numbers: LabelCells) -> pa.Array:
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
