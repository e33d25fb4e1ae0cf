"""The manifest: one row per image, with what a loader must know before it decodes anything."""

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.data import manifest_file
from dali_pipes.data.expression import OF_AN_IMAGE, Rows, matching
from dali_pipes.data.headers import MAX_PIXELS, ScanOptions
from dali_pipes.data.labels import COLUMN, content, has_nulls, is_numeric, task_of, to_numpy
from dali_pipes.data.manifest_table import own_columns
from dali_pipes.data.packed_names import PackedNames
from dali_pipes.data.reader import Extent, Reader
from dali_pipes.data.remote import copy_of, is_remote
from dali_pipes.data.scanning import scan_folder, scan_shards, scan_table
from dali_pipes.data.sets import common_root, group_numbers, joined_classes, moved, parts, renumbered, unified
from dali_pipes.data.shards.scan import is_shard, list_shards
from dali_pipes.errors import ManifestError, check_choice

log = logging.getLogger(__name__)


class Manifest:
    """The images of one data set, in the order of torchvision's ImageFolder, or in the order of the shards.

    Sample ids number the usable images from 0. An image with a problem has no id and is never loaded.

    Attributes:
        root: folder that the paths are relative to, or the URL of one, as text.
        classes: class names; a label is a place in this list.
        table: every image, usable or not, with the columns of `manifest_table.SCHEMA` and further ones of numbers, "column:NAME".
    """

    def __init__(self, root: str | Path, classes: list[str], table: pa.Table):
        self.root, self.classes, self.table = _place(root), classes, table.combine_chunks()
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
        """Reads the headers of all images under `root`: one folder a class, subfolders included, or shards.

        Args:
            root: a folder of class folders, a folder of shards or the URL of one, or one shard (docs/shards.md).
            verify: "header" reads headers only; "full" also decodes every image, and so detects truncated ones.
            max_pixels: images with more are a problem; by default Pillow's limit against decompression bombs.
            cache: a Parquet file; files that are unchanged since it was written (size and modification time) are not read
                again, and the result is saved there.
            workers: processes that read; by default twice the cores, so that a slow disk is kept busy.
            progress: show a progress bar on stderr.

        Raises:
            ManifestError: no such folder, no class folders in it, or no image in them.
        """
        place, check = _place(root), ScanOptions(verify, max_pixels)
        known = _remembered(Path(cache)) if cache else None
        folder, shards = list_shards(place)
        if shards or isinstance(folder, str):
            same = known.table if known and known.root == folder else None
            manifest = cls(folder, *scan_shards(folder, shards, check, same, workers, progress))
        else:
            manifest = cls(folder, *scan_folder(folder, check, known.table if known else None, workers, progress))
        if cache:
            try:
                manifest.save(cache)
            except OSError as error:
                log.warning("the scan cannot be cached in %s (%s); continuing without a cache", cache, error.strerror)
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
            root: folder that relative paths start from; by default the table's folder.
            label_separator: splits a label that is text into several, as ";" does in "cat;dog"; None: it is one class name.
            verify, max_pixels: as for `scan`.

        A label is a class number from 0, a class name, a list of either, a fraction or a list of fractions: docs/targets.md. Names
        are numbered in sorted order. All other columns of numbers are kept.

        Raises:
            ManifestError: no such table, or its labels make no sense.
        """
        file, check = Path(os.path.abspath(file)), ScanOptions(verify, max_pixels)
        return cls(*scan_table(file, Path(os.path.abspath(root or file.parent)), label_separator, check, workers, progress))

    @classmethod
    def load(cls, file: str | Path) -> Self:
        """Reads a manifest that `save` wrote. The file is data: nothing in it is ever executed.

        Raises:
            ManifestError: the file is missing, damaged, or not a manifest.
        """
        return cls(*manifest_file.read(file))

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
        """A manifest from a folder or a shard to scan, a saved manifest, or a table of path and label.

        Args:
            verify, max_pixels: as for `scan`; a saved manifest is taken as it is.
            cache_dir: folder for cached scans, one file for each root.
            label_separator: as for `from_table`; for tables only.
        """
        source = str(source) if is_remote(source) else Path(source)
        if isinstance(source, Path) and ((source.is_file() and not is_shard(source)) or source.suffix in (".parquet", ".csv")):
            if source.suffix == ".parquet" and manifest_file.is_manifest(source):
                return cls.load(source)
            return cls.from_table(source, label_separator=label_separator, verify=verify, max_pixels=max_pixels, progress=progress)
        cache = None
        if cache_dir:
            key = hashlib.sha256(os.fsencode(_place(source))).hexdigest()[:16]
            cache = Path(cache_dir, f"{Path(source).name or 'root'}-{key}.parquet")
        return cls.scan(source, verify=verify, max_pixels=max_pixels, cache=cache, progress=progress)

    def save(self, file: str | Path) -> None:
        """Writes the manifest as Parquet, whole or not at all.

        Raises:
            ManifestError: a file of that name exists and is not a manifest; it is left unchanged.
        """
        manifest_file.write(Path(file), str(self.root), self.classes, self.table)

    def __len__(self) -> int:
        return len(self._usable)

    def __repr__(self) -> str:
        return f"Manifest({str(self.root)!r}: {len(self):,} images, {len(self.classes):,} classes, {len(self.problems):,} problems)"

    @property
    def task(self) -> str:
        """What the labels are: "classification" (one class each), "multilabel" (any number of classes), "regression" (numbers)."""
        return task_of(self.table["label"].type)

    def describe(self) -> dict[str, Any]:
        """What a result records about its images: fingerprint, count, mean KiB of a file, median height and width."""
        return {
            "fingerprint": self.fingerprint,
            "images": len(self),
            "mean_kib": round(float(self.bytes_each.mean()) / 1024, 1),
            "median_size": np.median(self.sizes, axis=0).tolist(),
        }

    @cached_property
    def labels(self) -> NDArray[Any]:
        """By sample id: (n,) int64 class numbers; (n, L) int64 of several, filled up with -1; (n,) or (n, K) float32 numbers."""
        return self._by_sample("label")

    @cached_property
    def columns(self) -> dict[str, NDArray[Any] | pa.Array]:
        """The table's own columns by sample id.

        Numbers as NumPy's (n,) or (n, K) of int64, float32 or bool, which batches have too; text and lists of numbers as Arrow's.
        """
        return {name.removeprefix(COLUMN): self._values(name) for name in own_columns(self.table)}

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
        """Of the usable images, as they are encoded."""
        return int(self.bytes_each.sum())

    @cached_property
    def upright_sizes(self) -> NDArray[np.int64]:
        """(n, 2) heights and widths by sample id, once the image is turned by its EXIF orientation."""
        turned = self._column("orientation") >= 5
        return np.where(turned[:, None], self.sizes[:, ::-1], self.sizes)

    @cached_property
    def problems(self) -> list[tuple[str, str]]:
        """(path, problem) of every image that is not used; one in a shard is called SHARD/MEMBER."""
        bad = self.table.filter(pc.is_valid(self.table["problem"]))
        columns = zip(*(bad[name].to_pylist() for name in ("path", "member", "problem")), strict=True)
        return [(os.fsdecode(path + b"/" + member if member else path), why) for path, member, why in columns]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over name, label, height, width and own columns of the usable images; it does not depend on the root."""
        digest = hashlib.sha256(json.dumps(self.classes).encode())
        members = () if self.whole_files else (self._members.offsets, self._members.data)
        for array in (self._paths.offsets, self._paths.data, *members, self.labels, self.sizes):
            digest.update(array.tobytes())
        labels = {} if self.task == "classification" else {"label": self.labels}
        own = {name: content(self._taken(name)) for name in own_columns(self.table)}
        for name, arrays in ({name: [array] for name, array in labels.items()} | own).items():
            for array in arrays:
                digest.update(json.dumps([name, str(array.dtype), array.shape]).encode())
                digest.update(array.tobytes())
        return digest.hexdigest()

    @cached_property
    def whole_files(self) -> bool:
        """Whether each image is a separate file."""
        return self._members.offsets[0] == self._members.offsets[-1]

    def path(self, sample_id: int) -> Path:
        """The file of one sample, or the shard that holds it; for a remote shard its local copy, which may not exist yet."""
        if isinstance(self.root, str):
            extent = self.extent(sample_id)
            return copy_of(extent.file, extent.stamp)
        return self.root / os.fsdecode(self._paths[sample_id])

    def extent(self, sample_id: int) -> Extent:
        """Where one sample's encoded bytes are."""
        file = os.path.join(self._base, os.fsdecode(self._paths[sample_id]))
        member = self._members[sample_id]
        if not member:
            return Extent(file)
        offset, length, *stamp = self._places[sample_id].tolist()
        return Extent(file, os.fsdecode(member), offset, length, tuple(stamp))

    def name(self, sample_id: int) -> str:
        """The name of one sample in messages: its file, and in a shard its member."""
        return str(self.extent(sample_id))

    def read(self, sample_id: int) -> NDArray[np.uint8]:
        """One sample's encoded bytes. To read many, use a `Reader`, which keeps shards open.

        Raises:
            OSError: they cannot be read, or the shard is not the one that was scanned.
        """
        return Reader(keep=1).read(self.extent(sample_id))

    def path_matrix(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        """(N, L) absolute paths as bytes, padded with zeros: what DALI's `fn.io.file.read` takes, of whole files."""
        return self._paths.matrix(ids, os.path.join(os.fsencode(self.root), b""))

    def subset(self, ids: NDArray[np.int64]) -> Self:
        """A manifest of these samples only, numbered anew in the given order."""
        return type(self)(self.root, self.classes, self.table.take(pa.array(self._usable[ids])))

    def filter(self, expression: str) -> Self:
        """The samples that match, such as "width >= 224 and class in ('cat', 'dog')"; docs/targets.md has the form.

        Columns: the table's own, and of each image its label, height, width, bytes, orientation, format, path and member.

        Raises:
            ConfigError: no such expression, or a column that there is not.
        """
        return self.subset(np.flatnonzero(matching(expression, self._rows).to_numpy(zero_copy_only=False)))

    def split(self, fractions: Mapping[str, float], *, by: str | None = None, seed: int = 0) -> dict[str, Self]:
        """Parts of the samples, chosen at random; each keeps the order of the ids.

        Args:
            fractions: name and share of each part, such as {"train": 0.9, "val": 0.1}.
            by: a column of which equal values stay in one part, such as a patient; the sizes are then as near as they can be.
            seed: the same seed gives the same parts, on any machine.

        Raises:
            ConfigError: the fractions are no shares of 1, or there is no such column.
        """
        groups = np.arange(len(self)) if by is None else group_numbers(self._rows.column(by))
        return {name: self.subset(ids) for name, ids in parts(fractions, groups, seed).items()}

    @classmethod
    def concat(cls, manifests: Sequence[Self], *, classes: str = "join") -> Self:
        """The samples of all of them, one after the other, under the nearest folder that holds them all.

        Args:
            classes: "join" makes classes of the same name one; "apart" keeps the classes of each, in the order of `manifests`.

        Raises:
            ManifestError: remote shards with others, or labels or columns of different types.
        """
        check_choice("classes", classes, ("join", "apart"))
        root = common_root([each.root for each in manifests])
        names, numbers = joined_classes([each.classes for each in manifests], classes == "apart")
        tables = [renumbered(moved(each.table, each.root, root), new) for each, new in zip(manifests, numbers, strict=True)]
        return cls(root, names, unified(tables))

    def map_classes(self, names: Mapping[str, str]) -> Self:
        """With classes renamed; those that get the same name become one. Classes that are not named keep theirs.

        Raises:
            ConfigError: a class that there is not.
        """
        for name in names:
            self._rows.class_numbers(name)
        merged, numbers = joined_classes([[names.get(name, name) for name in self.classes]], False)
        return type(self)(self.root, merged, renumbered(self.table, numbers[0]))

    @cached_property
    def _usable(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.table["problem"].is_null().to_numpy())

    @cached_property
    def _base(self) -> str:
        return str(self.root)

    @cached_property
    def _paths(self) -> PackedNames:
        return PackedNames(self.table["path"].take(pa.array(self._usable)))

    @cached_property
    def _members(self) -> PackedNames:
        return PackedNames(self.table["member"].take(pa.array(self._usable)))

    @cached_property
    def _places(self) -> NDArray[np.int64]:
        """(n, 4): offset and length of each sample, size and modification time of its file."""
        return np.stack([self._column(name) for name in ("offset", "bytes", "file_bytes", "mtime_ns")], axis=1)

    def _column(self, name: str) -> NDArray[np.int64]:
        return self.table[name].to_numpy()[self._usable].astype(np.int64)

    def _by_sample(self, name: str) -> NDArray[Any]:
        return to_numpy(self._taken(name))

    def _values(self, name: str) -> NDArray[Any] | pa.Array:
        column = self._taken(name)
        return to_numpy(column) if is_numeric(column.type) else column.combine_chunks()

    def _taken(self, name: str) -> pa.ChunkedArray:
        return self.table[name].take(pa.array(self._usable))

    @property
    def _rows(self) -> Rows:
        own = {name.removeprefix(COLUMN): name for name in own_columns(self.table)}
        return Rows({name: name for name in OF_AN_IMAGE} | own, self._taken, self.classes)


def _remembered(cache: Path) -> Manifest | None:
    """An earlier scan; None if the cache is missing or of another version, and then it is replaced."""
    manifest_file.refuse_foreign(cache)
    try:
        return Manifest.load(cache)
    except ManifestError:
        return None


def _place(root: str | Path) -> Path | str:
    return str(root) if is_remote(root) else Path(os.path.abspath(root))


def _check(manifest: Manifest) -> None:
    """Checks what a loader relies on, whatever program wrote the table."""
    if not isinstance(manifest.classes, list) or not all(isinstance(name, str) for name in manifest.classes):
        raise ManifestError(f"{manifest.root}: the manifest's class names are not a list of strings; scan the images again")
    table = manifest.table
    nulls = [name for name in table.column_names if name != "problem" and has_nulls(table[name])]
    if nulls:
        raise ManifestError(f"{manifest.root}: the manifest has empty cells in {', '.join(nulls)}; scan the images again")
    labels = manifest.labels
    least = -1 if manifest.task == "multilabel" else 0
    if labels.dtype == np.int64 and labels.size and not (labels.min() >= least and labels.max() < len(manifest.classes)):
        raise ManifestError(f"{manifest.root}: the manifest has labels outside its {len(manifest.classes)} classes; scan again")
    if len(labels) and manifest.sizes.min() < 1:
        raise ManifestError(f"{manifest.root}: the manifest has usable images without a size; scan the images again")
    if len(labels) and not manifest.whole_files:
        offset, length, file_bytes, _ = manifest._places[np.diff(manifest._members.offsets) > 0].T
        if offset.min() < 0 or length.min() < 0 or (offset > file_bytes - length).any():
            raise ManifestError(f"{manifest.root}: the manifest has images that reach beyond their shard; scan the images again")
    if len(labels) and pc.any(pc.match_substring_regex(table["path"], rb"^/|\x00")).as_py():
        raise ManifestError(f"{manifest.root}: the manifest has a path that is absolute or has a NUL byte; scan the images again")
