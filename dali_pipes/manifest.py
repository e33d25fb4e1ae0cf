"""Which images there are: one row per file, with what a loader must know before it decodes anything."""

import hashlib
import json
import logging
import os
import uuid
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dali_pipes import targets
from dali_pipes.errors import ManifestError
from dali_pipes.headers import MAX_PIXELS, Check, Header
from dali_pipes.sources import list_image_folder, list_table, read_headers

SCHEMA = pa.schema(
    {
        "path": pa.binary(),  # relative to the root, as the file system has it
        "label": pa.int32(),  # or what else targets.py says
        "bytes": pa.int64(),
        "mtime_ns": pa.int64(),
        "height": pa.int32(),
        "width": pa.int32(),
        "orientation": pa.int8(),
        "format": pa.string(),
        "decoded": pa.bool_(),  # whether the whole image was decoded, or only its header read
        "problem": pa.string(),  # null for a usable file
    }
)
_METADATA_KEY = b"dali_pipes"

log = logging.getLogger(__name__)


class Manifest:
    """The images of one data set, in the order of torchvision's ImageFolder.

    Sample ids number the usable files from 0; a file with a problem has none and is never loaded.

    Attributes:
        root: folder that the paths are relative to.
        classes: class names; a label is a place in this list.
        table: every file, usable or not, with the columns of `SCHEMA`, and further ones of numbers as "column:NAME".
    """

    def __init__(self, root: str | Path, classes: list[str], table: pa.Table):
        self.root, self.classes, self.table = Path(root), classes, table.combine_chunks()
        _check(self)

    @classmethod
    def scan(
        cls,
        root: str | Path,
        *,
        verify: str = "header",
        max_pixels: int = MAX_PIXELS,
        cache: str | Path | None = None,
        workers: int | None = None,
        progress: bool = True,
    ) -> Self:
        """Reads the headers of all images under `root`, one folder a class, subfolders included.

        Args:
            verify: "header" reads headers only; "full" also decodes every image, and so finds truncated ones.
            max_pixels: images with more are a problem; by default Pillow's limit against decompression bombs.
            cache: a Parquet file; files that are unchanged since it was written (size and modification time) are not read
                again, and the result is saved there.
            workers: processes that read; by default twice the cores, so that a slow disk is kept busy.
            progress: show a progress bar on stderr.

        Raises:
            ManifestError: no such folder, no class folders in it, or no image in them.
        """
        root = Path(os.path.abspath(root))
        classes, paths, labels = list_image_folder(root)
        known = _remembered(Path(cache)) if cache else None
        manifest = cls(
            root,
            classes,
            _table(paths, pa.array(labels), read_headers(root, paths, Check(verify, max_pixels), known, workers, progress)),
        )
        if cache:
            try:
                manifest.save(cache)
            except OSError as error:
                log.warning("the scan cannot be remembered in %s (%s); go on without", cache, error.strerror)
        return manifest

    @classmethod
    def from_table(
        cls,
        file: str | Path,
        *,
        root: str | Path | None = None,
        label_separator: str | None = None,
        verify: str = "header",
        max_pixels: int = MAX_PIXELS,
        workers: int | None = None,
        progress: bool = True,
    ) -> Self:
        """Reads the headers of the images that a CSV or Parquet file lists in its columns `path` and `label`.

        Args:
            root: folder that relative paths start from; by default the one the table lies in.
            label_separator: splits a label that is text into several, as ";" does in "cat;dog"; None: it is one class name.
            verify, max_pixels: as for `scan`.

        A label is a class number from 0, a class name, a list of either, a fraction or a list of fractions: docs/targets.md. Names
        are numbered in sorted order. All other columns of numbers are kept.

        Raises:
            ManifestError: no such table, or its labels cannot be meant.
        """
        file = Path(os.path.abspath(file))
        classes, paths, labels, columns = list_table(file, label_separator)
        root = Path(os.path.abspath(root or file.parent))
        if any(path.startswith(b"/") for path in paths):
            paths = [os.path.join(os.fsencode(root), path).lstrip(b"/") for path in paths]
            root = Path("/")
        return cls(
            root,
            classes,
            _table(paths, labels, read_headers(root, paths, Check(verify, max_pixels), None, workers, progress), columns),
        )

    @classmethod
    def load(cls, file: str | Path) -> Self:
        """Reads a manifest that `save` wrote. The file is data: nothing in it is ever executed.

        Raises:
            ManifestError: the file is missing, damaged, or not a manifest.
        """
        try:
            table = pq.read_table(file)
            head = json.loads((table.schema.metadata or {})[_METADATA_KEY])
            root, classes = Path(head["root"]), head["classes"]
            table = _typed(table)
        except FileNotFoundError:
            raise ManifestError(f"{file}: no such manifest; make one with scripts/scan.py") from None
        except (pa.ArrowException, KeyError, TypeError, ValueError, OSError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ManifestError(f"{file}: not a manifest of dali_pipes ({reason}); scan the images again") from None
        return cls(root, classes, table)

    @classmethod
    def open(
        cls,
        source: str | Path,
        *,
        verify: str = "header",
        max_pixels: int = MAX_PIXELS,
        cache_dir: str | Path | None = None,
        label_separator: str | None = None,
        progress: bool = True,
    ) -> Self:
        """A manifest from whatever names images: a folder to scan, a saved manifest, or a table of path and label.

        Args:
            verify, max_pixels: as for `scan`; a saved manifest is taken as it is.
            cache_dir: folder that remembers scans of folders, one file for each root.
            label_separator: as for `from_table`; for tables only.
        """
        source = Path(source)
        if source.is_file() or source.suffix in (".parquet", ".csv"):
            if source.suffix == ".parquet" and _is_saved_manifest(source):
                return cls.load(source)
            return cls.from_table(source, label_separator=label_separator, verify=verify, max_pixels=max_pixels, progress=progress)
        cache = None
        if cache_dir:
            key = hashlib.sha256(os.fsencode(os.path.abspath(source))).hexdigest()[:16]
            cache = Path(cache_dir, f"{source.name or 'root'}-{key}.parquet")
        return cls.scan(source, verify=verify, max_pixels=max_pixels, cache=cache, progress=progress)

    def save(self, file: str | Path) -> None:
        """Writes the manifest as Parquet, whole or not at all.

        Raises:
            ManifestError: there is a file of that name already that is no manifest; it is left alone.
        """
        file = Path(file)
        _refuse_foreign(file)
        file.parent.mkdir(parents=True, exist_ok=True)
        head = json.dumps({"root": str(self.root), "classes": self.classes})
        partial = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
        try:
            pq.write_table(self.table.replace_schema_metadata({_METADATA_KEY: head}), partial, compression="zstd")
            partial.replace(file)
        finally:
            partial.unlink(missing_ok=True)

    def __len__(self) -> int:
        return len(self._usable)

    def __repr__(self) -> str:
        return f"Manifest({str(self.root)!r}: {len(self):,} images, {len(self.classes):,} classes, {len(self.problems):,} problems)"

    @property
    def task(self) -> str:
        """What the labels are: "classification" (one class each), "multilabel" (any number of classes), "regression" (numbers)."""
        return targets.task_of(self.table["label"].type)

    @cached_property
    def labels(self) -> NDArray[Any]:
        """By sample id: (n,) int64 class numbers; (n, L) int64 of several, filled up with -1; (n,) or (n, K) float32 numbers."""
        return self._by_sample("label")

    @cached_property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The table's own columns of numbers, (n,) or (n, K) by sample id: int64, float32 or bool."""
        return {name.removeprefix(targets.COLUMN): self._by_sample(name) for name in _own_columns(self.table)}

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """(n, 2) heights and widths by sample id, in pixels as stored."""
        return np.stack([self._column("height"), self._column("width")], axis=1)

    @cached_property
    def bytes_each(self) -> NDArray[np.int64]:
        """(n,) sizes of the files by sample id."""
        return self._column("bytes")

    @property
    def bytes_in_all(self) -> int:
        """Of the usable files."""
        return int(self.bytes_each.sum())

    @cached_property
    def upright_sizes(self) -> NDArray[np.int64]:
        """(n, 2) heights and widths by sample id, once the image is turned by its EXIF orientation."""
        turned = self._column("orientation") >= 5
        return np.where(turned[:, None], self.sizes[:, ::-1], self.sizes)

    @cached_property
    def problems(self) -> list[tuple[str, str]]:
        """(path, problem) of every file that is not used."""
        bad = self.table.filter(pc.is_valid(self.table["problem"]))
        return [(os.fsdecode(path), why) for path, why in zip(bad["path"].to_pylist(), bad["problem"].to_pylist(), strict=True)]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over path, label, height, width and own columns of the usable files; the same wherever the root lies."""
        digest = hashlib.sha256(json.dumps(self.classes).encode())
        for array in (self._paths.offsets, self._paths.data, self.labels, self.sizes):
            digest.update(array.tobytes())
        told = {} if self.task == "classification" else {"label": self.labels}
        for name, array in (told | {f"{targets.COLUMN}{name}": array for name, array in self.columns.items()}).items():
            digest.update(json.dumps([name, str(array.dtype), array.shape]).encode())
            digest.update(array.tobytes())
        return digest.hexdigest()

    def path(self, sample_id: int) -> Path:
        """The file of one sample."""
        start, end = self._paths.offsets[sample_id : sample_id + 2]
        return self.root / os.fsdecode(self._paths.data[start:end].tobytes())

    def path_matrix(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        """(N, L) absolute paths as bytes, padded with zeros: what DALI's `fn.io.file.read` takes."""
        return self._paths.matrix(ids)

    def subset(self, ids: NDArray[np.int64]) -> Self:
        """A manifest of these samples only, numbered anew in the given order."""
        return type(self)(self.root, self.classes, self.table.take(pa.array(self._usable[ids])))

    @cached_property
    def _usable(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.table["problem"].is_null().to_numpy())

    @cached_property
    def _paths(self) -> "_Paths":
        return _Paths(self.root, self.table["path"].take(pa.array(self._usable)))

    def _headers(self) -> dict[bytes, Header]:
        good = self.table.filter(self.table["problem"].is_null())
        columns = zip(*(good[name].to_pylist() for name in Header._fields), strict=True)
        return dict(zip(good["path"].to_pylist(), map(Header._make, columns), strict=True))

    def _column(self, name: str) -> NDArray[np.int64]:
        return self.table[name].to_numpy()[self._usable].astype(np.int64)

    def _by_sample(self, name: str) -> NDArray[Any]:
        return targets.to_numpy(self.table[name].take(pa.array(self._usable)))


class _Paths:
    """Millions of paths in two arrays, so that forked workers share them and a batch is cut out without a Python loop."""

    def __init__(self, root: Path, paths: pa.ChunkedArray):
        column = pa.concat_arrays(paths.cast(pa.large_binary()).chunks)
        _, offsets, data = column.buffers()
        self.offsets = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        self.data = np.frombuffer(data or b"", np.uint8)
        self._prefix = np.frombuffer(os.path.join(os.fsencode(root), b""), np.uint8)

    def matrix(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        start = self.offsets[ids]
        length = self.offsets[ids + 1] - start
        column = np.arange(length.max())
        rows = self.data.take(start[:, None] + column, mode="clip")
        rows *= column < length[:, None]
        matrix = np.empty((len(ids), len(self._prefix) + rows.shape[1]), np.uint8)
        matrix[:, : len(self._prefix)] = self._prefix
        matrix[:, len(self._prefix) :] = rows
        return matrix


def _remembered(cache: Path) -> dict[bytes, Header] | None:
    """The headers of an earlier scan; a cache that is missing or of another version is as good as none, and is replaced."""
    _refuse_foreign(cache)
    try:
        return Manifest.load(cache)._headers()
    except ManifestError:
        return None


def _table(paths: list[bytes], labels: pa.Array, headers: list[Header], columns: dict[str, pa.Array] | None = None) -> pa.Table:
    numbers = [0] * len(paths)  # in the labels' place, which may be of another type than the schema's
    table = pa.table([paths, numbers, *map(list, zip(*headers, strict=True))], schema=SCHEMA)
    table = table.set_column(SCHEMA.get_field_index("label"), "label", labels)
    for name, values in (columns or {}).items():
        table = table.append_column(targets.COLUMN + name, values)
    return _typed(table)


def _typed(table: pa.Table) -> pa.Table:
    """The columns of a manifest in their types, without any others."""
    own = ["label", *_own_columns(table)]
    types = {name: targets.stored_type(name, table.schema.field(name).type) for name in own}
    fields = [pa.field(field.name, types.pop(field.name, field.type)) for field in SCHEMA]
    schema = pa.schema([*fields, *types.items()])
    return table.select(schema.names).cast(schema)


def _own_columns(table: pa.Table) -> list[str]:
    return [name for name in table.column_names if name.startswith(targets.COLUMN)]


def _refuse_foreign(file: Path) -> None:
    if file.exists() and not _is_saved_manifest(file):
        raise ManifestError(f"{file} exists and is no manifest of dali_pipes; choose another name, nothing was changed")


def _is_saved_manifest(file: Path) -> bool:
    try:
        return _METADATA_KEY in (pq.read_schema(file).metadata or {})
    except (pa.ArrowException, OSError):
        return False


def _check(manifest: Manifest) -> None:
    """What a loader relies on, whoever wrote the table."""
    if not isinstance(manifest.classes, list) or not all(isinstance(name, str) for name in manifest.classes):
        raise ManifestError(f"{manifest.root}: the manifest's class names are not a list of strings; scan the images again")
    table = manifest.table
    nulls = [name for name in table.column_names if name != "problem" and targets.has_nulls(table[name])]
    if nulls:
        raise ManifestError(f"{manifest.root}: the manifest has empty cells in {', '.join(nulls)}; scan the images again")
    labels = manifest.labels
    least = -1 if manifest.task == "multilabel" else 0
    if labels.dtype == np.int64 and labels.size and not (labels.min() >= least and labels.max() < len(manifest.classes)):
        raise ManifestError(f"{manifest.root}: the manifest has labels outside its {len(manifest.classes)} classes; scan again")
    if len(labels) and manifest.sizes.min() < 1:
        raise ManifestError(f"{manifest.root}: the manifest has usable images without a size; scan the images again")
    if len(labels) and pc.any(pc.match_substring_regex(table["path"], rb"^/|\x00")).as_py():
        raise ManifestError(f"{manifest.root}: the manifest has a path that is absolute or has a NUL byte; scan the images again")
