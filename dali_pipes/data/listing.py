"""Where a manifest's rows come from: a tree of class folders or a table, and the headers of the files in it."""

import os
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from dali_pipes.data import decoders
from dali_pipes.data.config import SPLITS
from dali_pipes.data.earlier import Earlier
from dali_pipes.data.headers import IMAGE_EXTENSIONS, Header, ScanOptions, os_problem, read_header
from dali_pipes.data.labels import read_columns, read_labels
from dali_pipes.errors import ManifestError
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.workers import in_order

_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_CHUNK, _CHUNK_DECODED = 256, 8  # files per task of the pool
_SMALL, _SMALL_DECODED = 1024, 16  # files that processes would take longer for
_SETTLED_NS = 2_000_000_000  # the coarsest clock of a file system: FAT's


class Folder(NamedTuple):
    """A folder that holds images.

    Attributes:
        path: relative to the root.
        label: the class that its images are of.
        mtime_ns: its modification time, or 0 if it was modified so short a time ago that a later change could have the same.
        names: its images, sorted; None: those of an earlier scan.
    """

    path: bytes
    label: int
    mtime_ns: int
    names: list[bytes] | None


def list_classes(root: Path) -> list[str]:
    """The names of the class folders, as torchvision's ImageFolder sorts them.

    Raises:
        ManifestError: there are none.
    """
    if not root.is_dir():
        raise ManifestError(f"{root}: no such folder; give one with a subfolder of images for each class")
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    if not classes:
        _refuse_other_containers(root)
        meant = f"; did you mean {root.parent}, which holds the classes?" if _images_in(root) else ""
        raise ManifestError(f"{root}: no class folders in it; put the images of each class into a separate subfolder{meant}")
    if set(classes) <= set(SPLITS) and not any(_images_in(root / name) for name in classes):
        raise ManifestError(f"{root}: holds {' and '.join(classes)}, not classes; name one of them: {root / classes[0]}")
    return classes


def list_folders(root: Path, classes: list[str], earlier: Earlier, check: ScanOptions) -> list[Folder]:
    """All folders with their images, in the order of ImageFolder. One that has not been touched since is not listed again.

    Raises:
        ManifestError: a folder cannot be read, or there is no image in any.
    """
    base, folders = os.fsencode(root), []
    for label, name in enumerate(classes):
        found, waiting = [], [os.fsencode(name)]
        while waiting:
            path = waiting.pop()
            if path != os.fsencode(name) and not Path(os.fsdecode(os.path.join(base, path))).is_dir():
                continue  # a link of which the target is gone, which changes no folder's time
            folder, subfolders = _list(base, path, label, earlier, check)
            found.append(folder)
            waiting += [os.path.join(folder.path, each) for each in subfolders]
        folders += sorted(found, key=lambda folder: os.fsdecode(folder.path))
    if not any(earlier.usable(folder.path) if folder.names is None else folder.names for folder in folders):
        raise ManifestError(f"{root}: its {len(classes)} class folders hold no image ({', '.join(IMAGE_EXTENSIONS)})")
    return folders


def _list(base: bytes, path: bytes, label: int, earlier: Earlier, check: ScanOptions) -> tuple[Folder, list[bytes]]:
    """A folder, and the names of its subfolders."""
    full = os.path.join(base, path)
    try:
        now, mtime_ns = time.time_ns(), os.stat(full).st_mtime_ns
        if earlier.has_all_of(path, mtime_ns, check):
            return Folder(path, label, mtime_ns, None), earlier.subfolders(path)
        entries = [(entry.name, entry.is_dir()) for entry in os.scandir(full)]
    except OSError as error:
        raise ManifestError(f"{os.fsdecode(full)}: {os_problem(error)}; make it readable, or move it away") from None
    images = sorted((name for name, is_folder in entries if not is_folder and _is_image(name)), key=os.fsdecode)
    settled = mtime_ns if now - mtime_ns > _SETTLED_NS else 0
    return Folder(path, label, settled, images), [name for name, is_folder in entries if is_folder]


def _is_image(name: bytes) -> bool:
    return os.fsdecode(name).lower().endswith(IMAGE_EXTENSIONS)


def _images_in(folder: Path) -> bool:
    return any(name.lower().endswith(IMAGE_EXTENSIONS) for name in os.listdir(folder))


def list_table(file: Path, separator: str | None = None) -> tuple[list[str], list[bytes], pa.Array, dict[str, pa.Array]]:
    """Class names, paths and labels out of the columns `path` and `label` of a CSV or Parquet file, and its columns of numbers.

    Args:
        separator: of the classes of an image, in a column of text.
    """
    if not file.is_file():
        raise ManifestError(f"{file}: no such file; give a CSV or Parquet table with the columns path and label")
    if file.suffix == ".parquet":
        _refuse_embedded_images(file)
    try:
        table = pq.read_table(file) if file.suffix == ".parquet" else _read_csv(file, separator)
        paths, labels = table["path"].to_pylist(), table["label"]
    except (pa.ArrowException, KeyError, OSError) as error:
        raise ManifestError(f"{file}: not a table with the columns path and label ({error})") from None
    if not paths or not all(isinstance(path, (str, bytes)) and path for path in paths):
        raise ManifestError(f"{file}: every row needs a path and a label, and there must be at least one row")
    classes, numbers = read_labels(file, labels, separator)
    return classes, [os.fsencode(path) for path in paths], numbers, read_columns(file, table)


def _read_csv(file: Path, separator: str | None) -> pa.Table:
    """With a separator, labels are text, even if no row has more than one."""
    types = {} if separator is None else {"label": pa.string()}
    return pyarrow.csv.read_csv(file, convert_options=pyarrow.csv.ConvertOptions(column_types=types))


def _refuse_other_containers(root: Path) -> None:
    """Raises for files of many images whose images cannot be read one by one."""
    for file in sorted(root.iterdir()):
        if file.suffix == ".parquet":
            _refuse_embedded_images(file)
        if file.name.endswith(_COMPRESSED):
            raise ManifestError(f"{file}: is compressed, so its images cannot be read one by one; unpack it to a .tar")


def _refuse_embedded_images(file: Path) -> None:
    """Raises for Hugging Face's image column: encoded images in compressed pages, which cannot be read one by one."""
    try:
        types = {field.name: field.type for field in pq.read_schema(file)}
    except (pa.ArrowException, OSError):
        return
    for name, kind in types.items():
        if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 and "path" not in types:
            raise ManifestError(
                f"{file}: holds the images themselves, in its column {name}; Parquet's pages cannot be read image by image, so "
                "write them as tar shards first (docs/shards.md has the lines)"
            )


class Piece(NamedTuple):
    """Some files of one folder.

    Attributes:
        folder: relative to the root; names: of the files; known: their headers, as far as an earlier scan has them.
    """

    folder: bytes
    names: list[bytes]
    known: list[Header | None]


def pieces(folder: bytes, names: list[bytes], known: Mapping[bytes, Header], check: ScanOptions) -> Iterator[Piece]:
    size = _CHUNK if check.verify == "header" else _CHUNK_DECODED
    for start in range(0, len(names), size):
        some = names[start : start + size]
        yield Piece(folder, some, [known.get(name) for name in some])


def read_pieces(root: Path, files: Iterator[Piece], total: int, check: ScanOptions, workers: int | None) -> Iterator[list[Header]]:
    """The headers of each piece, in order. One that is known, was checked as thoroughly and has not changed since is not read.

    In several processes, unless `total` files are so few that these would take longer.
    """
    if check.verify == "full":
        decoders.load()
    few = total <= (_SMALL if check.verify == "header" else _SMALL_DECODED)
    return in_order(partial(_read, os.fsencode(root), check), files, 1 if few else workers or 2 * available_cpus())


def _read(base: bytes, check: ScanOptions, piece: Piece) -> list[Header]:
    files = (os.path.join(base, piece.folder, name) for name in piece.names)
    return [
        header if header and _unchanged(file, header, check) else read_header(file, check)
        for file, header in zip(files, piece.known, strict=True)
    ]


def _unchanged(file: bytes, header: Header, check: ScanOptions) -> bool:
    if not check.satisfied_by(header):
        return False
    try:
        stat = os.stat(file)
    except OSError:
        return False
    return (stat.st_size, stat.st_mtime_ns) == (header.bytes, header.mtime_ns)
