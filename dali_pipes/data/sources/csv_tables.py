"""Reads a CSV file as a table: its encoding, the separator of its cells, its header and its rows.

`read_csv` decodes the file, finds the separator by which the header has the column of paths, and
gives the rest to Arrow. Where Arrow fails, or may have taken many rows for one cell, Python's csv
module goes through the rows again to name the first bad one.
"""

import codecs
import csv
import io
import itertools
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from dali_pipes.data.image_files.headers import IMAGE_EXTENSIONS
from dali_pipes.data.sources.table_columns import missing_error
from dali_pipes.data.spelling import Text, argument
from dali_pipes.data.table_options import TableOptions
from dali_pipes.errors import ManifestError

_BLOCK = 1 << 22  # bytes that are decoded at once
_QUOTED = r'^\s+"(.*)"\s*$'
_LINES = 20  # lines that are searched for a header
_SHOWN = 80  # characters of a line in an error
_OTHERS = {  # the first bytes of files that are often taken for CSV
    b"PAR1": "is Parquet; end its name in .parquet",
    b"PK\3\4": "is a ZIP archive, as Excel writes; save the table as CSV",
}
_MARKS = {  # the UTF-32 marks first: UTF-16's little-endian mark is the start of UTF-32's
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def read_csv(file: Path, options: TableOptions, text_columns: Collection[str]) -> pa.Table:
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
    source = pa.BufferReader(content)
    try:
        table = pyarrow.csv.read_csv(source, parse_options=parse, convert_options=convert)
    except pa.ArrowException as error:
        _refuse_rows(file, content, delimiter)
        raise ManifestError(f"{file}: cannot be read as a CSV ({error}); write it again") from None

    # A quote that is not closed takes the rows after it into its cell, and Arrow says nothing.
    if b'"' in content and max(map(content.count, (b"\n", b"\r"))) > len(table) + 1:
        _refuse_rows(file, content, delimiter)
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


def _as_utf8(file: Path, content: bytes, options: TableOptions) -> bytes:
    """Returns the text in UTF-8, without a byte-order mark."""
    if kind := next((kind for start, kind in _OTHERS.items() if content.startswith(start)), None):
        raise ManifestError(f"{file}: {kind}")

    mark = next((mark for mark in _MARKS if content.startswith(mark)), b"")
    encoding = options.encoding or ("utf-16" if _MARKS.get(mark) == "utf-16" else "utf-8")
    is_utf8 = codecs.lookup(encoding).name in ("utf-8", "utf-8-sig", "ascii")
    if mark == codecs.BOM_UTF8:
        if not is_utf8:
            what = f"begins with the mark of UTF-8, and encoding={encoding!r} is given"
            raise ManifestError(f"{file}: {what}; leave out ", argument("encoding"))
        content = content[len(mark) :]

    # block by block, so that a large table is not in memory a second time as text
    decoder = codecs.getincrementaldecoder(encoding)()
    blocks = []
    try:
        # + 1 gives a last block, maybe an empty one, by which a cut-off character is noticed
        for start in range(0, len(content) + 1, _BLOCK):
            is_last = start + _BLOCK > len(content)
            text = decoder.decode(content[start : start + _BLOCK], is_last)
            if "\0" in text:
                raise ManifestError(f"{file}: ", *_nul_problem(content, mark))
            if not is_utf8:
                blocks.append(text.encode())
    except UnicodeError:
        problem = _encoding_problem(content, encoding, options)
        raise ManifestError(f"{file}: ", *problem) from None
    return content if is_utf8 else b"".join(blocks).removeprefix(codecs.BOM_UTF8)


def _nul_problem(content: bytes, mark: bytes) -> Text:
    if _MARKS.get(mark) == "utf-32":
        return "is text in UTF-32; give ", argument("encoding", "utf-32")
    wide = "utf-16-be" if content[:1] == b"\0" else "utf-16-le"
    return (
        "has characters of the value 0, which no text has; if it is UTF-16 without a byte-order "
        "mark, give ",
        argument("encoding", wide),
        ", or else write it again as text",
    )


def _encoding_problem(content: bytes, encoding: str, options: TableOptions) -> Text:
    """Returns which row is not of this encoding, and what to do."""
    if any(content.startswith(mark) for mark, name in _MARKS.items() if name == "utf-32"):
        return "is text in UTF-32; give ", argument("encoding", "utf-32")
    try:
        content.decode(encoding)
    except UnicodeDecodeError as error:
        # the sign stands for the bad byte, so that a row that begins with it is counted
        before = content[: error.start].decode(encoding, errors="ignore") + "?"
    except UnicodeError:  # some codecs do not say where
        before = ""

    number = _count_rows(before, options) - 1
    row = "some row" if not before else "the header" if number < 1 else f"row {number}"
    if options.encoding:
        return f"{row} is not text in {encoding}; give the file's encoding: ", argument("encoding")
    return (
        f"{row} is not text in {encoding.upper()}; give the encoding that the file has, such as ",
        argument("encoding", "latin-1"),
        ", or write it again in UTF-8",
    )


def _count_rows(text: str, options: TableOptions) -> int:
    """Counts the rows, including the header.

    The delimiter is that of the header; which quotes count depends on it.
    """
    headers = {delimiter: next(_rows(text, delimiter), []) for delimiter in options.delimiters}
    delimiter = max(headers, key=lambda delimiter: len(headers[delimiter]))
    return sum(1 for _ in _rows(text, delimiter))


def _read_header(file: Path, content: bytes, options: TableOptions) -> tuple[list[str], str]:
    """Returns the names as they are written, and the delimiter by which they have the column of
    paths.
    """
    # the block may end within a character
    start = content[:_BLOCK].decode(errors="ignore")
    headers = {delimiter: next(_rows(start, delimiter), []) for delimiter in options.delimiters}
    for delimiter, names in headers.items():
        if options.path_column in map(_bare, names):
            return names, delimiter

    if not any(headers.values()):
        needed = f"{options.path_column},{options.label_column}"
        raise ManifestError(f"{file}: is empty; begin it with a line of names, such as {needed}")
    delimiter = max(headers, key=lambda name: len(headers[name]))
    names = [_bare(name) for name in headers[delimiter]]
    _refuse_no_header(file, start, names, delimiter, options)
    hint = _other_delimiter(start, options)
    raise missing_error(file, names, {options.path_column: "path_column"}, *hint)


def _other_delimiter(start: str, options: TableOptions) -> Text:
    """Returns a hint at the delimiter, or the line below, that has the column of paths."""
    for other in (*TableOptions().delimiters, " ", ":"):
        for place, row in enumerate(itertools.islice(_rows(start, other), _LINES)):
            if options.path_column not in map(_bare, row):
                continue
            if not place:
                return "give ", argument("delimiter", other), ", which parts its names"
            line = other.join(row)[:_SHOWN]
            return (f"the line {line!r} below has it; remove what is above that line",)
    return ()


def _refuse_no_header(
    file: Path,
    start: str,
    names: list[str],
    delimiter: str,
    options: TableOptions,
) -> None:
    """Raises ManifestError if the first line lists an image, as in Caffe's lists."""
    words = [word for name in names for word in name.split()]
    is_image = any(word.strip("\"'").lower().endswith(IMAGE_EXTENSIONS) for word in words)
    has_number = any(name.replace(".", "", 1).lstrip("-").isdigit() for name in names)
    # the names of columns are no image files; a number beside at most one other cell is a label
    if not is_image and not (has_number and len(names) <= 2):
        return

    line = start.lstrip("\r\n").splitlines()[0][:_SHOWN]
    also: Text = ()
    if len(names) == 1 and len(words) == 2:
        delimiter, also = " ", (" and give ", argument("delimiter", " "))
    elif len(names) == 1:
        also = (", and separate the cells as it does",)

    header = delimiter.join((options.path_column, options.label_column))
    raise ManifestError(
        f"{file}: has no header: its first line is {line!r}, which names no column "
        f"{options.path_column!r}; write a first line of names, such as {header!r}",
        *also,
    )


def _refuse_rows(file: Path, content: bytes, delimiter: str) -> None:
    """Raises ManifestError for the first row with more or fewer cells than the header, or a bad
    quote.
    """
    rows, number = _rows(content.decode(), delimiter, strict=True), -1
    try:
        header = next(rows)

        for number, row in enumerate(rows):
            if len(row) != len(header):
                shown = delimiter.join(row)[:_SHOWN]
                cells = "1 cell" if len(row) == 1 else f"{len(row)} cells"
                what = f"row {number + 1} has {cells}, and the header has {len(header)} ({shown})"
                instead = f"separate its cells with {delimiter!r}"
                if len(row) > len(header):
                    instead = f"put a cell with {delimiter!r} in it into quotes"
                raise ManifestError(f"{file}: {what}; {instead}")
    except csv.Error as error:
        what = f"row {number + 2} has a quote that is not closed where its cell ends ({error})"
        instead = 'close it, and write a quote within quotes as ""'
        raise ManifestError(f"{file}: {what}; {instead}") from None


def _refuse_rows_in_cells(
    file: Path,
    table: pa.Table,
    texts: Collection[str],
    delimiter: str,
) -> None:
    """Raises ManifestError for a cell with lines in it that look like rows which name images.

    Args:
        texts: columns of paths and labels; in these a line that ends in an image's name counts too.
    """
    image = rf"\.(?:{'|'.join(extension.removeprefix('.') for extension in IMAGE_EXTENSIONS)})\s*"
    between = rf"(?i)[\r\n][^\r\n]*{image}{re.escape(delimiter)}"

    for name, column in zip(table.column_names, table.columns, strict=True):
        if not pa.types.is_string(column.type):
            continue
        line = rf"{between}|{image}[\r\n]|[\r\n][^\r\n]*{image}$" if name in texts else between

        if (row := pc.index(pc.match_substring_regex(column, line), True).as_py()) >= 0:
            cell = column[row].as_py()[:_SHOWN]
            what = f"row {row + 1} has rows of other images within quotes ({cell!r})"
            raise ManifestError(f"{file}: {what}; close its quote where its cell ends")


def _rows(text: str, delimiter: str, strict: bool = False) -> Iterator[list[str]]:
    """Yields the cells of each row, without empty lines, as Arrow counts rows."""
    # the limit, by default 131,072 characters, is the whole process's, so it is put back
    limit = csv.field_size_limit(max(len(text), 1 << 17))
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=strict)
        yield from (row for row in reader if row)
    finally:
        csv.field_size_limit(limit)
