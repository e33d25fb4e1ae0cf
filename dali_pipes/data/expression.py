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
from functools import reduce
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dali_pipes.data.composed import composed, composed_column
from dali_pipes.data.own_columns import COLUMN
from dali_pipes.data.table.samples import Samples
from dali_pipes.data.table.schema import own_columns
from dali_pipes.errors import ConfigError
from dali_pipes.options import propose_name

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


class Rows:
    """The columns of a manifest's samples, and their classes, which filters compare."""

    def __init__(self, samples: Samples, classes: list[str]):
        self._samples, self._classes = samples, classes
        self._columns = {
            name.removeprefix(COLUMN): name for name in (*_OF_AN_IMAGE, *own_columns(samples.whole))
        }
        # `in` compares a column with each value of a list, and to compose it takes most of the time
        self._composed: dict[str, pa.ChunkedArray] = {}

    def column(self, name: str) -> pa.ChunkedArray:
        """The column of this name; the table's own comes before that of an image."""
        if not isinstance(name, str) or name not in self._columns:
            raise _missing(str(name), self._columns)
        if name not in self._composed:
            self._composed[name] = composed_column(self._samples.column(self._columns[name]))
        return self._composed[name]

    def class_numbers(self, name: str) -> list[int]:
        """The numbers of the classes with this name.

        There may be several in a manifest whose parts were joined with their classes apart.
        """
        names = list(map(composed, self._classes))
        numbers = [number for number, each in enumerate(names) if each == composed(str(name))]
        if not numbers:
            near = propose_name(str(name), self._classes)
            raise ConfigError(f"there is no class {name!r} among {len(names)}{near}")
        return numbers

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
            return self._match(_parse(text.strip()))
        except ConfigError as error:
            raise ConfigError(f"filter {text!r}: {error}") from None

    def _match(self, node: ast.expr) -> pa.Array:
        match node:
            case ast.BoolOp(op=op, values=values):
                join = pc.and_ if isinstance(op, ast.And) else pc.or_
                return reduce(join, map(self._match, values))

            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return pc.invert(self._match(operand))

            case ast.Compare(left=left, ops=ops, comparators=others):
                # a chain such as 200 < width < 300 is two comparisons
                return reduce(pc.and_, map(self._compare, [left, *others], ops, others))

            case ast.Name() if pa.types.is_boolean((column := self._find_column(node)).type):
                return column

            case ast.Name():
                raise ConfigError(
                    f"{node.id} alone is neither true nor false; compare it with a value"
                )

        raise ConfigError(f"{ast.unparse(node)} is not a comparison of a column with a value")

    def _compare(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> pa.Array:
        if isinstance(op, ast.NotIn):
            return pc.invert(self._compare(left, ast.In(), right))
        if isinstance(op, ast.In):
            return self._match_any(left, right)
        if type(op) not in _COMPARE:
            raise ConfigError(f"{ast.unparse(left)} is compared by `is`; use == or !=")

        function, sides = _COMPARE[type(op)], (left, right)
        names = [side.id for side in sides if isinstance(side, ast.Name)]
        if not names:
            told = ", ".join(map(ast.unparse, sides))
            raise ConfigError(f"{told}: one side of a comparison must be a column")
        if names == [CLASS]:
            return self._match_classes(function, [right if isinstance(left, ast.Name) else left])

        values = [
            self._find_column(side) if isinstance(side, ast.Name) else _literal(side)
            for side in sides
        ]
        try:
            # Kernels, not a `pc.Expression`: that rounds 0.1 to float32 before it compares a column
            # of these. A comparison with None is null, and None equals no value.
            return pc.call_function(function, values).fill_null(function == "not_equal")
        except (pa.ArrowException, TypeError, OverflowError):
            told = " and ".join(map(_describe, sides, values))
            raise ConfigError(f"{told} cannot be compared") from None

    def _match_any(self, left: ast.expr, right: ast.expr) -> pa.Array:
        """Which rows have one of the values in a list."""
        if not isinstance(left, ast.Name) or not isinstance(right, (ast.Tuple, ast.List, ast.Set)):
            raise ConfigError(
                f"{ast.unparse(left)}: `in` takes a column and a list of values, such as class in "
                "('cat', 'dog')"
            )
        if left.id == CLASS:
            return self._match_classes("equal", right.elts)
        none = pa.array(np.zeros(len(self._find_column(left)), bool))
        return reduce(pc.or_, (self._compare(left, ast.Eq(), value) for value in right.elts), none)

    def _match_classes(self, function: str, nodes: list[ast.expr]) -> pa.Array:
        """Which samples have one of these classes, or have none of them."""
        names = list(map(_literal, nodes))
        is_usable = function in ("equal", "not_equal")
        if not is_usable or not all(isinstance(name, str) for name in names):
            raise ConfigError(
                "class takes ==, !=, in and not in, and names of classes in quotes; label has the "
                "number of the class"
            )
        numbers = pa.array(chain.from_iterable(map(self.class_numbers, names)), pa.int32())
        labels = self._samples.column("label")
        if pa.types.is_list(labels.type):
            # several classes each: an image matches if one of them does
            labels = labels.combine_chunks()
            hits = pc.is_in(pc.list_flatten(labels), value_set=numbers)
            numbers = pc.list_parent_indices(labels).filter(hits)
            labels = pa.array(np.arange(len(labels)))
        matches = pc.is_in(labels, value_set=numbers)
        return matches if function == "equal" else pc.invert(matches)

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
            raise _missing(node.id, list(map(_spell, self._columns)))
        return self.column(name)


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


def _missing(name: str, columns: Collection[str]) -> ConfigError:
    near = propose_name(name, columns)
    return ConfigError(f"there is no column {name} among {', '.join(columns)}{near}")


def _spell(name: str) -> str:
    """The name of a column as an expression has it."""
    return name if name.isidentifier() and not keyword.iskeyword(name) else f"`{name}`"


def _literal(node: ast.expr) -> Any:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        raise ConfigError(f"{ast.unparse(node)} is not a literal; text needs quotes") from None
    return composed(value) if isinstance(value, str) else value


def _describe(node: ast.expr, value: Any) -> str:
    kind = f" ({value.type})" if isinstance(node, ast.Name) else ""
    return f"{ast.unparse(node)}{kind}"
