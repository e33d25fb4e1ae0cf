"""Reads a CSV file as a table: its encoding, the separator of its cells, its header and its rows.

`read_csv` decodes the file, finds the separator by which the header has the column of paths, and
gives the rest to Arrow. Only a quote that closes some rows later is no error for Arrow, so cells
with several lines in them are looked at here.
"""

import codecs
import csv
import io
import re
from collections.abc import Collection
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from dali_pipes.data.image_files.headers import IMAGE_EXTENSIONS
from dali_pipes.data.sources.options import SourceOptions
from dali_pipes.data.sources.table_columns import refuse_missing
from dali_pipes.data.spelling import argument
from dali_pipes.errors import ManifestError

_BLOCK = 1 << 22  # bytes that are decoded at once
_QUOTED = r'^\s+"(.*)"\s*$'
_LONGEST = 1 << 17  # characters of a header, and the most of a cell for `csv`
_SHOWN = 80  # characters of a cell in an error
_OTHERS = {  # the first bytes of files that are often taken for CSV
    b"PAR1": "is Parquet; end its name in .parquet",
    b"PK\3\4": "is a ZIP archive, as Excel writes; save the table as CSV",
}


def read_csv(file: Path, options: SourceOptions, text_columns: Collection[str]) -> pa.Table:
    """Returns the rows, under the names of the header without blanks around them.

    Args:
        text_columns: columns that are text whatever is in them: "001" is not 1. Other columns get
            the type that all their cells have.

    Raises:
        ManifestError: the file is not text of its encoding, has no column of paths, or a row has
            too many cells or too few.
        OSError: it cannot be read.
    """
    with pa.input_stream(str(file)) as stream:  # decompresses .csv.gz
        content = _as_utf8(file, stream.read(), options)
    names, delimiter = _read_header(file, content, options)
    stripped = [_bare(name) for name in names]

    pairs = zip(names, stripped, strict=True)
    types = {raw: pa.string() for raw, name in pairs if name in text_columns}
    # only quoted cells can have line ends, and expecting these slows Arrow's threads down
    parse = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=b'"' in content)
    convert = pyarrow.csv.ConvertOptions(column_types=types)
    for use_threads in (True, False):
        read = pyarrow.csv.ReadOptions(use_threads=use_threads)
        try:
            table = pyarrow.csv.read_csv(pa.BufferReader(content), read, parse, convert)
            break
        except pa.ArrowException as error:
            # without threads Arrow says the row
            why = " ".join(str(error).split())
    else:
        raise ManifestError(
            f"{file}: cannot be read as a CSV, of which row 1 is the header ({why})"
        )

    # A quote that is not closed takes the rows after it into its cell, and Arrow says nothing.
    if b'"' in content and max(map(content.count, (b"\n", b"\r"))) > len(table) + 1:
        _refuse_rows_in_cells(file, table, types, delimiter)

    if table.column_names != names:
        what = f"its header cannot be read ({', '.join(names)})"
        raise ManifestError(f"{file}: {what}; write plain names")

    # For Arrow, a quote after a blank quotes nothing.
    if f'{delimiter} "'.encode() in content:
        for name in types:
            bare = pc.replace_substring_regex(table[name], _QUOTED, r"\1")
            table = table.set_column(table.column_names.index(name), name, bare)
    return table.rename_columns(stripped)


def _bare(name: str) -> str:
    """Returns a name without blanks around it, and without quotes within these."""
    return re.sub(_QUOTED, r"\1", name).strip()


def _as_utf8(file: Path, content: bytes, options: SourceOptions) -> bytes:
    """Returns the text in UTF-8, without a byte-order mark."""
    if kind := next((kind for start, kind in _OTHERS.items() if content.startswith(start)), None):
        raise ManifestError(f"{file}: {kind}")

    is_wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    encoding = options.encoding or ("utf-16" if is_wide else "utf-8")
    is_utf8 = codecs.lookup(encoding).name in ("utf-8", "utf-8-sig", "ascii")
    if content.startswith(codecs.BOM_UTF8) and not is_utf8:
        what = f"begins with the mark of UTF-8, and encoding={encoding!r} is given"
        raise ManifestError(f"{file}: {what}; leave out ", argument("encoding"))

    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        # block by block, so that a large table is not in memory a second time as text
        with io.TextIOWrapper(io.BytesIO(content), encoding, newline="") as text:
            content = b"".join(block.encode() for block in iter(partial(text.read, _BLOCK), ""))
        # UTF-16 and UTF-32 without their mark look like this
        if b"\0" in content:
            raise UnicodeError
    except UnicodeError:
        what = f"is not text in {encoding}; give the encoding that it has: "
        raise ManifestError(f"{file}: {what}", argument("encoding")) from None
    return content.removeprefix(codecs.BOM_UTF8)


def _read_header(file: Path, content: bytes, options: SourceOptions) -> tuple[list[str], str]:
    """Returns the names as they are written, and the delimiter by which they have the column of
    paths.
    """
    # the block may end within a character
    start = content[:_BLOCK].decode(errors="ignore").lstrip("\r\n")
    line = re.split(r"[\r\n]", start, maxsplit=1)[0][:_LONGEST]
    if not line:
        needed = f"{options.path_name},{options.label_name}"
        raise ManifestError(f"{file}: is empty; begin it with a line of names, such as {needed}")

    headers = [
        (next(csv.reader([line], delimiter=delimiter)), delimiter)
        for delimiter in options.delimiters
    ]
    names, delimiter = max(
        headers, key=lambda each: (options.path_name in map(_bare, each[0]), len(each[0]))
    )
    refuse_missing(file, list(map(_bare, names)), {options.path_name: "path_column"})
    return names, delimiter


def _refuse_rows_in_cells(
    file: Path,
    table: pa.Table,
    texts: Collection[str],
    delimiter: str,
) -> None:
    """Raises ManifestError for a cell with lines in it that look like rows which name images.

    Args:
        texts: columns of paths and labels; in these a line that ends in an image's name counts too,
            and a line end after all.
    """
    image = rf"\.(?:{'|'.join(extension.removeprefix('.') for extension in IMAGE_EXTENSIONS)})\s*"
    between = rf"(?i)[\r\n][^\r\n]*{image}{re.escape(delimiter)}"

    for name, column in zip(table.column_names, table.columns, strict=True):
        if not pa.types.is_string(column.type):
            continue
        line = (
            rf"{between}|{image}[\r\n]|[\r\n][^\r\n]*{image}$|[\r\n]$" if name in texts else between
        )

        if (row := pc.index(pc.match_substring_regex(column, line), True).as_py()) >= 0:
            cell = column[row].as_py()[:_SHOWN]
            what = f"row {row + 1} has rows of other images within quotes ({cell!r})"
            raise ManifestError(f"{file}: {what}; close its quote where its cell ends")
