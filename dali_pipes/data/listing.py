"""Where a manifest's rows come from: a tree of class folders or a table, and the headers of the files in it."""

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from dali_pipes.data.config import SPLITS
from dali_pipes.data.headers import Header, ScanOptions, read_header
from dali_pipes.data.labels import read_columns, read_labels
from dali_pipes.errors import ManifestError
from dali_pipes.system.progress import track

# torchvision.datasets.folder.IMG_EXTENSIONS, so that the ids are those of an ImageFolder
IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_CHUNK = 256  # files per task of the pool

Listing = tuple[list[str], list[bytes], list[int]]  # class names; path and label of each file


def list_image_folder(root: Path) -> Listing:
    """Class names, relative paths and labels in the order of torchvision's ImageFolder."""
    if not root.is_dir():
        raise ManifestError(f"{root}: no such folder; give one with a subfolder of images for each class")
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    if not classes:
        _refuse_other_containers(root)
        meant = f"; did you mean {root.parent}, which holds the classes?" if _images_in(root) else ""
        raise ManifestError(f"{root}: no class folders in it; put the images of each class into a separate subfolder{meant}")
    if set(classes) <= set(SPLITS) and not any(_images_in(root / name) for name in classes):
        raise ManifestError(f"{root}: holds {' and '.join(classes)}, not classes; name one of them: {root / classes[0]}")
    paths, labels = [], []
    for label, name in enumerate(classes):
        for folder, _, files in sorted(os.walk(root / name, followlinks=True)):
            relative = os.path.relpath(folder, root)
            chosen = sorted(file for file in files if file.lower().endswith(IMAGE_EXTENSIONS))
            paths += [os.fsencode(os.path.join(relative, file)) for file in chosen]
            labels += [label] * len(chosen)
    if not paths:
        raise ManifestError(f"{root}: its {len(classes)} class folders hold no image ({', '.join(IMAGE_EXTENSIONS)})")
    return classes, paths, labels


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


def read_headers(
    root: Path, paths: list[bytes], check: ScanOptions, known: dict[bytes, Header] | None, workers: int | None, progress: bool
) -> list[Header]:
    """The header of every file. One that is `known`, was checked as thoroughly and has not changed since is not read again."""
    base = os.fsencode(root)
    files = [os.path.join(base, path) for path in paths]
    headers = {
        path: known[path] for path, file in zip(paths, files, strict=True) if known and _unchanged(file, known.get(path), check)
    }
    missing = [(path, file) for path, file in zip(paths, files, strict=True) if path not in headers]
    read = track(_map([file for _, file in missing], check, workers), "reading images", len(missing), progress)
    headers.update(zip((path for path, _ in missing), read, strict=True))
    return [headers[path] for path in paths]


def _unchanged(file: bytes, header: Header | None, check: ScanOptions) -> bool:
    if header is None or not check.satisfied_by(header):
        return False
    try:
        stat = os.stat(file)
    except OSError:
        return False
    return (stat.st_size, stat.st_mtime_ns) == (header.bytes, header.mtime_ns)


def _map(files: list[bytes], check: ScanOptions, workers: int | None) -> Iterator[Header]:
    """Headers in the order of the files. In processes, since threads would wait for the GIL."""
    read = partial(read_header, check=check)
    if len(files) <= (4 * _CHUNK if check.verify == "header" else 16):
        yield from map(read, files)
        return
    workers = workers or 2 * len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        yield from pool.map(read, files, chunksize=_CHUNK if check.verify == "header" else 8)
