"""The one form that names of classes and files are compared in."""

import unicodedata

import pyarrow as pa
import pyarrow.compute as pc

from dali_pipes.data.arrow_types import is_text


def composed(name: str) -> str:
    """The name with composed characters, Unicode's NFC: é is one character.

    A Mac stores the names of files with e and a combining accent, and most other programs write é,
    so that one name comes in two forms.
    """
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def composed_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column with composed characters, if it is one of texts."""
    if not is_text(column.type) or pc.all(pc.string_is_ascii(column)).as_py():
        return column
    return pc.utf8_normalize(column, form="NFC")


def decomposed(name: str) -> str:
    """The name with combining accents, Unicode's NFD, as a Mac stores it."""
    return name if name.isascii() else unicodedata.normalize("NFD", name)
