"""Labels that are lists: texts of lists as lists (`read_text_lists`), and vectors of zeros and ones
as the places of the ones (`find_places`).
"""

import ast
import contextlib
import json
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.data.labels.cells import LabelCells
from dali_pipes.data.spelling import argument

_OPENS, _CLOSES = "[({", "])}"
_PART = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|,|[^\s,'"]+""")
_LONGEST = 100_000  # characters of a text that is tried as a list


def read_text_lists(cells: LabelCells, task: str | None, separator: str | None) -> pa.Array:
    """Reads texts of lists, as pandas writes a column of lists into a CSV, as lists.

    They are those of Python, of JSON and of NumPy: "[0, 1]", "['a', 'b']", "(0, 1)", "[0 1]".

    Args:
        cells: text; an empty one is no label.
        separator: as `TableOptions.label_separator`.

    Returns:
        The lists; the texts as they are if none is one, or if only some are and `task` says that
        they are names.

    Raises:
        ManifestError: only some are lists, or their items are of several kinds.
    """
    distinct = pc.unique(cells.values.drop_null()).to_pylist()
    looks = [text for text in distinct if text and _is_framed(text)]
    if not looks:
        return cells.values

    lists = {text: _parse(text) for text in looks}
    # of each list whether it is one of names
    kinds = {text: {isinstance(item, str) for item in found or ()} for text, found in lists.items()}
    are_alike = len(set().union(*kinds.values())) <= 1 and all(
        lists.get(text) is not None for text in distinct if text
    )
    if task == "classification" and not are_alike:
        return cells.values
    texts = cells.values.to_pylist()
    if all(found is None for found in lists.values()):
        # "[cat, dog]" is a list to those who wrote it; "[unknown]" may be a name
        is_meant = len(looks) == len([text for text in distinct if text]) and any(
            re.search("[, ]", text) for text in looks
        )
        if is_meant:
            cells.refuse(
                np.array([bool(text) for text in texts], bool),
                "the label {value!r} looks like a list, and cannot be read as one",
                'write lists as JSON does, [0, 1] or ["a", "b"], or give ',
                argument("task", "classification"),
                " if all are names",
            )
        return cells.values

    if separator is not None:
        cells.refuse(
            np.array([lists.get(text or "") is not None for text in texts], bool),
            "the label {value!r} is a list already, which nothing has to separate",
            "leave out label_separator",
        )
    cells.refuse(
        np.array([bool(text) and lists.get(text) is None for text in texts], bool),
        "the label {value!r} is no list, and others are lists that are written as text",
        "write all alike, or give ",
        argument("task", "classification"),
        " if all are names",
    )

    first = next((min(kind) for kind in kinds.values() if kind), False)
    cells.refuse(
        np.array([bool(text) and bool(kinds[text] - {first}) for text in texts], bool),
        "the items of the label {value!r} are of another kind than those before",
        "write numbers alone, or names alone",
    )
    return pa.array([lists[text] if text else None for text in texts], _type_of(lists, first))


def _type_of(lists: dict[str, list[Any] | None], are_names: bool) -> pa.DataType:
    if are_names:
        return pa.list_(pa.large_string())
    items = [item for found in lists.values() for item in found or ()]
    if items and all(isinstance(item, bool) for item in items):
        return pa.list_(pa.bool_())
    is_whole = all(isinstance(item, int) for item in items)
    return pa.list_(pa.int64() if is_whole else pa.float64())


def _is_framed(text: str) -> bool:
    place = _OPENS.find(text[0])
    return place >= 0 and text[-1] == _CLOSES[place] and len(text) <= _LONGEST


def _parse(text: str) -> list[Any] | None:
    """The items of a list that is written as text; None: it is none of numbers or of names."""
    # NumPy writes [0 1] and ['a' 'b'], over several lines if they are long; two texts side by side
    # are one to Python
    parts = _PART.findall(text[1:-1])
    if "," not in parts and len(parts) > 1:
        text = f"[{', '.join(parts)}]"
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            found = read(text)
            if isinstance(found, (list, tuple, set)):
                items = sorted(found) if isinstance(found, set) else list(found)
                return items if _are_labels(items) else None
    # an empty set, as Python writes no other
    return [] if text == "{}" else None


def _are_labels(items: list[Any]) -> bool:
    """Whether these are all numbers that Arrow holds, or all names."""
    is_small = all(
        isinstance(item, float) or -(2**63) <= item < 2**63
        for item in items
        if isinstance(item, (int, float))
    )
    return all(isinstance(item, (int, float, str)) for item in items) and is_small


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
