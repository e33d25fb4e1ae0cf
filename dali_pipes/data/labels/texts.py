"""What the texts of labels mean: class numbers, numbers to predict, or names (`read_text`), or
lists (`read_text_lists`). `find_places` reads vectors of zeros and ones as the places of the ones.

A text is a cell, or one of the parts into which a separator splits the cells. `LabelCells` are the
labels as a table has them, with the row of each for errors.
"""

import ast
import contextlib
import json
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.data.arrow_types import is_text
from dali_pipes.data.spelling import argument
from dali_pipes.errors import ManifestError, Spelling

_OPENS, _CLOSES = "[({", "])}"
_PART = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|,|[^\s,'"]+""")
_LONGEST = 100_000  # characters of a text that is tried as a list


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


def read_text_lists(cells: LabelCells, task: str | None, separator: str | None) -> pa.Array:
    """Reads texts of lists, as pandas writes a column of lists into a CSV, as lists.

    They are those of Python, of JSON and of NumPy: "[0, 1]", "['a', 'b']", "(0, 1)", "[0 1]".

    Args:
        cells: text; an empty one is no label.
        separator: as `SourceOptions.label_separator`.

    Returns:
        The lists; the texts as they are if none is one, or if only some are and `task` says that
        they are names.

    Raises:
        ManifestError: only some are lists, or their items are of several kinds.
    """
    distinct = [text for text in pc.unique(cells.values.drop_null()).to_pylist() if text]
    framed = [text for text in distinct if _is_framed(text)]
    if not framed:
        return cells.values

    lists = {text: items for text in framed if _are_labels(items := read_list(text))}
    # of each list whether it is one of names
    kinds = {text: {isinstance(item, str) for item in items} for text, items in lists.items()}
    are_alike = len(lists) == len(distinct) and len(set().union(*kinds.values())) <= 1
    if task == "classification" and not are_alike:
        return cells.values
    texts = cells.values.fill_null("").to_pylist()

    def refuse(is_bad: Callable[[str], bool], why: str, *instead: str | Spelling) -> None:
        bad = np.array([bool(text) and is_bad(text) for text in texts], bool)
        cells.refuse(bad, f"the label {{value!r}} {why}", *instead)

    if_names = "or give ", argument("task", "classification"), " if all are names"
    if not lists:
        # "[cat, dog]" is a list to those who wrote it; "[unknown]" may be a name
        if len(framed) == len(distinct) and any(re.search("[, ]", text) for text in framed):
            refuse(
                lambda text: True,
                "looks like a list, and cannot be read as one",
                'write lists as JSON does, [0, 1] or ["a", "b"], ',
                *if_names,
            )
        return cells.values

    if separator is not None:
        what = "is a list already, which nothing has to separate"
        refuse(lists.__contains__, what, "leave out label_separator")
    what = "is no list, and others are lists that are written as text"
    refuse(lambda text: text not in lists, what, "write all alike, ", *if_names)
    first = next((min(kind) for kind in kinds.values() if kind), False)
    refuse(
        lambda text: bool(kinds[text] - {first}),
        "has items of another kind than those before",
        "write numbers alone, or names alone",
    )
    items = [item for of_text in lists.values() for item in of_text]
    return pa.array([lists[text] if text else None for text in texts], _type_of(items))


def _type_of(items: list[Any]) -> pa.DataType:
    if any(isinstance(item, str) for item in items):
        return pa.list_(pa.large_string())
    if items and all(isinstance(item, bool) for item in items):
        return pa.list_(pa.bool_())
    is_whole = all(isinstance(item, int) for item in items)
    return pa.list_(pa.int64() if is_whole else pa.float64())


def _is_framed(text: str) -> bool:
    place = _OPENS.find(text[:1])
    return text[-1:] == _CLOSES[place] and place >= 0 and 1 < len(text) <= _LONGEST


def read_list(text: str) -> list[Any] | None:
    """The items of a list that is written as text; None: it is none."""
    if not _is_framed(text):
        return None
    # NumPy writes [0 1] and ['a' 'b'], over several lines if they are long; two texts side by side
    # are one to Python
    parts = _PART.findall(text[1:-1])
    if "," not in parts and len(parts) > 1:
        text = f"[{', '.join(parts)}]"
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            found = read(text)
            if isinstance(found, (list, tuple, set)):
                return sorted(found) if isinstance(found, set) else list(found)
    # an empty set, as Python writes no other
    return [] if text == "{}" else None


def _are_labels(items: list[Any] | None) -> TypeGuard[list[Any]]:
    """Whether this is a list of numbers that Arrow holds, or of names."""
    return items is not None and all(
        isinstance(item, (str, float)) or (isinstance(item, int) and -(2**63) <= item < 2**63)
        for item in items
    )


def find_places(
    lengths: NDArray[np.int64], flat: pa.Array, width: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """The ones of vectors of zeros and ones.

    Args:
        lengths: (N,) of the lists.
        flat: their items, (M,), one after the other.
        width: how many classes there are; None: it is not known; 0: the items are known to be class
            numbers.

    Returns:
        How many ones each vector has, (N,), and their places, one after the other; None: these are
        lists of classes. Vectors of two classes could be such lists too, which would give each
        image both classes.
    """
    if not lengths.size or width == 0:
        return None
    length = int(lengths[0])
    if length < 2 or (lengths != length).any() or width not in (None, length):
        return None
    values = flat.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    if not np.isin(values, (0, 1)).all():
        return None
    rows, places = np.nonzero(values.reshape(-1, length))
    return np.bincount(rows, minlength=len(lengths)), places


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
        task: as in `SourceOptions`; for "regression" "001" is a number.
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


def _refuse_odd_ones(cells: LabelCells, known: pa.Array) -> None:
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
