"""How a table is read: the columns of the paths and the labels, and the form of a CSV."""

import codecs
from dataclasses import dataclass

from dali_pipes.checks import check_choice
from dali_pipes.errors import ConfigError

TASKS = ("classification", "regression")


def check_delimiter(option: str, value: str | None) -> None:
    """Checks for one ASCII character that is no quote and no line end.

    "\\t", a backslash and a t, stands for a tab.
    """
    if value is None or value == "\\t":
        return
    if len(value) != 1 or not value.isascii() or value in '"\r\n\0':
        raise ConfigError(f"{option} is {value!r}; it takes one ASCII character, such as ';'")


def check_encoding(option: str, value: str | None) -> None:
    """Checks for the name of a text encoding that Python knows."""
    try:
        # Python also has codecs such as base64, which turn bytes into bytes
        is_text = value is None or codecs.lookup(value)._is_text_encoding
    except (LookupError, ValueError):
        is_text = False
    if not is_text:
        wanted = "the name of an encoding of text, such as 'latin-1'"
        raise ConfigError(f"{option} is {value!r}; it takes {wanted}")


def check_column(option: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{option} is {value!r}; it takes the name of a column")


def check_task(option: str, value: str | None) -> None:
    check_choice(option, value, (None, *TASKS))


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How a table is read.

    Attributes:
        path_column, label_column: columns of the paths and of the labels.
        label_separator: splits a label that is text into several; None: it is one class name.
        delimiter: the character between the cells of a CSV; None: the first of , ; tab and | by
            which the header has the column of paths.
        encoding: encoding of a CSV; None: UTF-8, or UTF-16 if the file begins with its byte-order
            mark.
        task: what numbers are, "classification" for class numbers or "regression" for numbers to
            predict; None: integers are class numbers, and fractions are numbers to predict.
    """

    path_column: str = "path"
    label_column: str = "label"
    label_separator: str | None = None
    delimiter: str | None = None
    encoding: str | None = None
    task: str | None = None

    def __post_init__(self) -> None:
        check_column("path_column", self.path_column)
        check_column("label_column", self.label_column)
        if self.path_column == self.label_column:
            both = f"path_column and label_column are both {self.path_column!r}"
            raise ConfigError(f"{both}; name two columns")

        check_delimiter("delimiter", self.delimiter)
        check_encoding("encoding", self.encoding)
        check_task("task", self.task)

    @property
    def delimiters(self) -> tuple[str, ...]:
        """The delimiters that a CSV may have, in the order in which they are tried."""
        if self.delimiter is None:
            return (",", ";", "\t", "|")
        return ("\t",) if self.delimiter == "\\t" else (self.delimiter,)


PLAIN = TableOptions()
