"""Filters such as "width >= 224 and class in ('cat', 'dog')".

They have Python's syntax, but nothing is executed: the parsed expression is compared by Arrow. A
column whose name Python cannot read as a name stands in backquotes: `my column` > 3.
`Rows(samples, classes).match(text)` returns which samples match.
"""

import ast
import keyword
import re
import unicodedata
from collections.abc import Collection
from difflib import get_close_matches
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dali_pipes.data.arrow_types import is_text
from dali_pipes.data.composed import composed, composed_column
from dali_pipes.data.own_columns import COLUMN
from dali_pipes.data.table.samples import Samples
from dali_pipes.data.table.schema import own_columns
from dali_pipes.errors import ConfigError

_OF_AN_IMAGE = ("label", "height", "width", "bytes", "orientation", "format", "path", "member")
CLASS = "class"
# texts in quotes, which stay as they are; names in backquotes; the keyword `class`
_WORDS = re.compile(
    r"""(?P<quote>'''|\"""|'|")(?:\\.|[^\\])*?(?P=quote)|(?P<name>`[^`]*`|\bclass\b)""",
    re.DOTALL,
)
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
}
_MIRRORED = {
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}


class Rows:
    """The columns of a manifest's samples, and their classes, which filters compare."""

    def __init__(self, samples: Samples, classes: list[str]):
        self._samples, self._classes = samples, classes
        self._composed: dict[str, pa.ChunkedArray] = {}
        self._columns = {
            name.removeprefix(COLUMN): name for name in (*_OF_AN_IMAGE, *own_columns(samples.whole))
        }

    def column(self, name: str) -> pa.ChunkedArray:
        """The column of this name; the table's own comes before that of an image."""
        if name not in self._columns:
            raise self._missing(name, self._columns)
        if name not in self._composed:
            self._composed[name] = composed_column(self._samples.column(self._columns[name]))
        return self._composed[name]

    def _missing(self, name: str, columns: Collection[str]) -> ConfigError:
        near = get_close_matches(name, columns, 1)
        meant = f"did you mean {near[0]}? " if near else ""
        return ConfigError(
            f"there is no column {name}; {meant}The columns are {', '.join(columns)}"
        )

    def class_numbers(self, name: str) -> list[int]:
        """The numbers of the classes with this name.

        There may be several in a manifest whose parts were joined with their classes apart.
        """
        if numbers := [
            number
            for number, class_name in enumerate(self._classes)
            if composed(class_name) == composed(str(name))
        ]:
            return numbers
        near = get_close_matches(str(name), self._classes, 3)
        names = f"; near names: {', '.join(near)}" if near else ""
        raise ConfigError(f"there is no class {name!r} among {len(self._classes)}{names}")

    def match(self, text: str) -> pa.Array:
        """Which rows match, as an Arrow array of booleans.

        A missing number (NaN) matches only `!=` and `not in`.

        Columns are compared with literals or other columns, or are booleans; `in` and `not in` take
        a list of literals. `class` is compared with names of classes, by `==`, `!=`, `in` and `not
        in`. `and`, `or`, `not` and brackets put these together.

        Raises:
            ConfigError: it is not such an expression, or names no column; the text says which part,
                and which column may be meant.
        """
        try:
            return self._mask(_parse(text.strip()))
        except ConfigError as error:
            raise ConfigError(f"filter {text!r}: {error}") from None

    def _mask(self, node: ast.expr) -> pa.Array:
        match node:
            case ast.BoolOp(op=op, values=values):
                return reduce(
                    pc.and_ if isinstance(op, ast.And) else pc.or_, map(self._mask, values)
                )

            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return pc.invert(self._mask(operand))

            case ast.Compare(left=left, ops=ops, comparators=others):
                # a chain such as 200 < width < 300 is two comparisons
                pairs = zip([left, *others], ops, others, strict=False)
                return reduce(pc.and_, (self._compare(one, op, other) for one, op, other in pairs))

            case ast.Name():
                column = self._find_column(node)
                if pa.types.is_boolean(column.type):
                    return column
                raise ConfigError(
                    f"{node.id} alone is neither true nor false; compare it with a value"
                )

            case _:
                raise ConfigError(
                    f"{ast.unparse(node)} is not a comparison of a column with a value"
                )

    def _compare(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> pa.Array:
        if isinstance(op, (ast.In, ast.NotIn)):
            matches = self._compare_in(left, right)
            return pc.invert(matches) if isinstance(op, ast.NotIn) else matches

        if type(op) not in _COMPARE:
            raise ConfigError(f"{ast.unparse(left)} is compared by `is`; use == or !=")

        function = _COMPARE[type(op)]
        # 224 < width is width > 224
        if not isinstance(left, ast.Name):
            left, right, function = right, left, _MIRRORED.get(function, function)
        if not isinstance(left, ast.Name):
            raise ConfigError(
                f"{ast.unparse(left)}, {ast.unparse(right)}: one side of a comparison must be a "
                "column"
            )

        if isinstance(right, ast.Name):
            return self._call(left, function, self._find_column(right))

        value = _literal(right)
        if left.id == CLASS:
            if function not in ("equal", "not_equal"):
                raise ConfigError(
                    "class takes ==, !=, in and not in; label has the number of the class"
                )
            matches = self._match_classes([value])
            return matches if function == "equal" else pc.invert(matches)
        return self._call(left, function, value)

    def _compare_in(self, left: ast.expr, right: ast.expr) -> pa.Array:
        values = _literal(right)
        if not isinstance(left, ast.Name) or not isinstance(values, (tuple, list, set)):
            raise ConfigError(
                f"{ast.unparse(left)}: `in` takes a column and a list of values, such as class in "
                "('cat', 'dog')"
            )

        if left.id == CLASS:
            return self._match_classes(list(values))

        column = self._find_column(left)
        none = pa.array(np.zeros(len(column), bool))
        # each value is compared as by ==, which also refuses a value of another type
        return reduce(pc.or_, (self._call(left, "equal", value) for value in values), none)

    def _call(self, name: ast.Name, function: str, value: Any) -> pa.Array:
        column = self._find_column(name)
        if isinstance(value, str) and is_text(column.type):
            value = composed(value)
        try:
            # a comparison with None is null, and None equals no value
            return pc.call_function(function, [column, value]).fill_null(function == "not_equal")
        except (pa.ArrowException, TypeError):
            kind = value.type if isinstance(value, pa.Array) else repr(value)
            raise ConfigError(
                f"{ast.unparse(name)} is of type {column.type}, and cannot be compared with {kind}"
            ) from None

    def _find_column(self, node: ast.Name) -> pa.ChunkedArray:
        if node.id == CLASS:
            own = "; of the table's own column write `class`" if CLASS in self._columns else ""
            raise ConfigError(
                f"class is compared with a name, or with a list of names by `in`{own}"
            )

        name = node.id.strip("`")
        if name not in self._columns and node.id == name:
            # Python's parser composes the characters of a name anew
            alike = (each for each in self._columns if unicodedata.normalize("NFKC", each) == name)
            name = next(alike, name)
        if name not in self._columns:
            raise self._missing(node.id, [_spell(each) for each in self._columns])
        return self.column(name)

    def _match_classes(self, names: list[Any]) -> pa.Array:
        """Which samples have any of these classes."""
        if not all(isinstance(name, str) for name in names):
            raise ConfigError(
                f"class compares with names of classes, in quotes, not {names}; label has the "
                "number of the class"
            )
        numbers = pa.array(
            [number for name in names for number in self.class_numbers(name)], pa.int32()
        )

        labels = self._samples.column("label")
        if not pa.types.is_list(labels.type):
            return pc.is_in(labels, value_set=numbers)

        labels = labels.combine_chunks()

        # several classes each: an image matches if one of them does
        hits = pc.is_in(pc.list_flatten(labels), value_set=numbers)

        matches = np.zeros(len(labels), bool)
        matches[pc.list_parent_indices(labels).filter(hits).to_numpy()] = True
        return pa.array(matches)


def _parse(text: str) -> ast.expr:
    """The expression; the id of a name in backquotes has these too."""
    # what Python cannot read as a name is given one that occurs nowhere else
    start, names = "name", list[str]()
    while start in text:
        start += "_"

    def rename(match: re.Match[str]) -> str:
        if match["name"] is None:
            return match[0]
        names.append(match[0])
        return f"{start}{len(names) - 1}"

    try:
        tree = ast.parse(_WORDS.sub(rename, text), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConfigError(
            "not an expression; an example is \"width >= 224 and class in ('cat', 'dog')\", and a "
            "name with blanks or signs, or that is a word of Python's, stands in backquotes, as in "
            "`my column` > 3"
        ) from None

    renamed = {f"{start}{number}": name for number, name in enumerate(names)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = renamed.get(node.id, node.id)
    return tree


def _spell(name: str) -> str:
    """The name of a column as an expression has it."""
    return name if name.isidentifier() and not keyword.iskeyword(name) else f"`{name}`"


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ConfigError(f"{ast.unparse(node)} is not a literal; text needs quotes") from None
