"""The manifest: one row per image, with what a loader must know before it decodes anything."""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dali_pipes.data import index, opening
from dali_pipes.data.config import MISSING
from dali_pipes.data.expression import Rows, matching
from dali_pipes.data.labels import COLUMN, is_numeric, null_count, task_of
from dali_pipes.data.objects import BAD_OBJECTS, NO_TARGETS, TARGET, Keypoints, Objects, Targets, keypoints_of
from dali_pipes.data.opening import absolute
from dali_pipes.data.reader import Extent, Reader
from dali_pipes.data.scanning.coco import scan_coco
from dali_pipes.data.scanning.earlier import FolderRecords
from dali_pipes.data.scanning.headers import MAX_PIXELS, ScanOptions
from dali_pipes.data.scanning.listed_files import scan_table
from dali_pipes.data.scanning.masks import scan_pairs
from dali_pipes.data.scanning.shards import is_shard
from dali_pipes.data.sets import (
    Mix,
    common_root,
    group_numbers,
    joined_classes,
    moved,
    parts,
    renumbered,
    same_keypoints,
    unified,
    with_source,
)
from dali_pipes.data.shards.copies import copy_of, is_copied
from dali_pipes.data.shards.remote import FileVersion, is_remote
from dali_pipes.data.table import digest, saved
from dali_pipes.data.table.samples import OwnColumns, Samples, validate
from dali_pipes.data.table.schema import divided, own_columns, replaced
from dali_pipes.errors import ConfigError, ManifestError, check_choice

_LOOKED_AT = 100_000  # samples
_PLACE = ("offset", "bytes", "file_bytes", "mtime_ns")
_KEPT = ("mixture", "keypoints")  # what parts of a manifest keep of what is known of it
_Numbers = NDArray[np.int64] | int


class Shards(NamedTuple):
    """The files that samples lie in, in the order in which the samples come to them.

    Attributes:
        numbers: (n,) which file each sample lies in.
        names: (S,) their paths, relative to the root.
        files: (S,) with it.
        bytes: (S,) int64 sizes; 0: of a file that is one image.
        times: (S,) int64, the rest of their versions.
    """

    numbers: NDArray[np.int32]
    names: list[str]
    files: list[str]
    bytes: NDArray[np.int64]
    times: NDArray[np.int64]


class Manifest:
    """The images of one data set, in the order of torchvision's ImageFolder, or in the order of the shards.

    Sample ids number the usable images from 0. An image with a problem has no id and is never loaded.

    Attributes:
        root: folder that the paths are relative to, or the URL of one, as text.
        classes: class names; a label is a place in this list.
    """

    def __init__(
        self,
        root: str | Path,
        classes: list[str],
        table: pa.Table,
        folders: FolderRecords | None = None,
        keypoints: Keypoints | None = None,
    ):
        """
        Args:
            table: every image, usable or not, with the columns of `table.schema.SCHEMA` and further ones, "column:NAME" and
                "target:NAME" (data/objects.py).
            folders: those that were scanned.
            keypoints: which ones the objects have.

        Raises:
            ManifestError: what it says cannot be of images.
        """
        usable, others = divided(table.combine_chunks())
        self._set(
            absolute(root),
            classes,
            Samples(usable),
            others,
            {"folders": folders or {}} | ({"keypoints": list(keypoints)} if keypoints else {}),
        )
        self._check()

    @classmethod
    def _of(
        cls, root: Path | str, classes: list[str], samples: Samples, others: pa.Table, known: dict[str, Any] | None = None
    ) -> Self:
        made = cls.__new__(cls)
        made._set(root, classes, samples, others, known or {})
        return made

    def _with(self, samples: Samples, others: pa.Table, classes: list[str] | None = None) -> Self:
        """Other samples of the same root, and what is known of them as parts of the same whole."""
        kept = {name: self._known[name] for name in _KEPT if name in self._known}
        return self._of(self.root, self.classes if classes is None else classes, samples, others, kept)

    def _set(self, root: Path | str, classes: list[str], samples: Samples, others: pa.Table, known: dict[str, Any]) -> None:
        """
        Args:
            others: the images that cannot be used.
            known: what a file says of the samples as a whole, so that it need not be computed.

        Raises:
            ManifestError: class names that are none, or empty cells.
        """
        self.root, self.classes, self._samples, self._others, self._known = root, classes, samples, others, known
        if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
            raise ManifestError(f"{root}: the manifest's class names are not a list of strings; scan the images again")
        table = samples.whole
        if nulls := [name for name in table.column_names if name != "problem" and null_count(table[name])]:
            raise ManifestError(f"{root}: the manifest has empty cells in {', '.join(nulls)}; scan the images again")

    @classmethod
    def scan(
        cls,
        root: str | Path,
        *,
        verify: str = "header",
        max_pixels: int = MAX_PIXELS,
        cache: str | Path | None = None,
        unchanged: str = "file",
        targets: Targets = NO_TARGETS,
        workers: int | None = None,
        progress: bool = True,
    ) -> Self:
        """Reads the headers of all images under `root`: one folder a class, subfolders included, or shards.

        Args:
            root: a folder of class folders or of shards, here or by its URL, or one shard (docs/shards.md).
            verify: "header" reads headers only; "full" also decodes every image, and so detects truncated ones.
            max_pixels: images with more are a problem; by default Pillow's limit against decompression bombs.
            cache: a file such as train.arrow, which all processes of a machine then map and share; or .parquet. Images that have
                not changed since it was written are not read again, and the result is saved there. A scan that is killed goes on
                from where it was.
            unchanged: what shows that an image is the one that was scanned before: "file", its own size and modification time;
                "folder", that of its folder, so that one look at each folder is enough. A file that is written over where it lies
                does not change its folder.
            targets: what shards hold besides labels: docs/objects.md. Such a scan is not cached: `save` it.
            workers: processes that read; by default twice the cores, so that a slow disk is kept busy.
            progress: show a progress bar on stderr.

        Raises:
            ManifestError: no such folder, no class folders in it, or no image in them.
        """
        file, check = Path(cache) if cache else None, ScanOptions(verify, max_pixels)
        if file and targets.named:
            raise ConfigError("a scan for targets is not cached; leave out cache, and save the manifest")
        return opening.scan(cls, root, check, file, unchanged, workers, progress, targets)

    @classmethod
    def from_table(
        cls,
        file: str | Path,
        *,
        root: str | Path | None = None,
        label_separator: str | None = None,
        targets: Targets = NO_TARGETS,
        verify: str = "header",
        max_pixels: int = MAX_PIXELS,
        workers: int | None = None,
        progress: bool = True,
    ) -> Self:
        """Reads the headers of the images that a CSV or Parquet file lists in its columns `path` and `label`.

        A Parquet file, a folder of them, or a pattern such as data/train-*.parquet may hold the images themselves, as Hugging
        Face's `datasets` writes them: docs/shards.md.

        Args:
            file: the table.
            root: folder that relative paths start from; by default the table's folder.
            label_separator: splits a label that is text into several, as ";" does in "cat;dog"; None: it is one class name.
            targets: columns with boxes, keypoints, masks or texts: docs/objects.md. With them `label` may be missing; of objects it
                is not read.
            verify, max_pixels: as for `scan`.

        A label is a class number from 0, a class name, a list of either, a fraction or a list of fractions: docs/targets.md. Names
        are numbered in sorted order. All other columns of numbers are kept.

        Raises:
            ManifestError: no such table, or its labels make no sense.
        """
        place, check = absolute(file), ScanOptions(verify, max_pixels)
        folder = Path(os.path.abspath(root or Path(file).parent))
        made = scan_table(place, folder, label_separator, targets, check, workers, progress)
        return cls(*made, keypoints=keypoints_of(targets))

    @classmethod
    def from_coco(
        cls,
        annotations: str | Path,
        *,
        root: str | Path | None = None,
        bad_objects: str = "drop",
        verify: str = "header",
        max_pixels: int = MAX_PIXELS,
        workers: int | None = None,
        progress: bool = True,
    ) -> Self:
        """Reads the headers of the images of a JSON file of COCO's form: detection, keypoints, segmentation or captions.

        The categories, in the order of their ids, are the classes. Of an image's captions the first one is its text.

        Args:
            root: folder of the images; by default the file's.
            bad_objects: what becomes of an object that makes no sense, such as one with an empty box: "drop" leaves it out and
                lists it in `dropped`; "problem" leaves out its image.
            verify, max_pixels: as for `scan`.

        Raises:
            ManifestError: no such file, or one that is not of this form; docs/objects.md.
        """
        check_choice("bad_objects", bad_objects, BAD_OBJECTS)
        file, check = Path(os.path.abspath(annotations)), ScanOptions(verify, max_pixels)
        folder = Path(os.path.abspath(root or file.parent))
        classes, table, keypoints = scan_coco(file, folder, check, bad_objects, workers, progress)
        return cls(folder, classes, table, keypoints=keypoints)

    @classmethod
    def from_masks(
        cls,
        images: str | Path,
        masks: str | Path,
        *,
        classes: Sequence[str] = (),
        missing: str = "problem",
        verify: str = "header",
        max_pixels: int = MAX_PIXELS,
        workers: int | None = None,
        progress: bool = True,
    ) -> Self:
        """Reads the headers of the images below one folder and of their masks below another: docs/objects.md.

        An image's mask has the same path in its folder but for the extension, and for Cityscapes' suffixes.

        Args:
            classes: names of the masks' values from 0.
            missing: what becomes of an image without a mask, and of a mask without an image: "problem" lists it; "skip" passes it
                over.
            verify, max_pixels: as for `scan`.

        Raises:
            ManifestError: a folder without images, or no image has a mask.
        """
        check_choice("missing", missing, MISSING)
        folders = Path(os.path.abspath(images)), Path(os.path.abspath(masks))
        root, table = scan_pairs(*folders, missing, ScanOptions(verify, max_pixels), workers, progress)
        return cls(root, list(classes), table)

    @classmethod
    def load(cls, file: str | Path) -> Self:
        """Opens a manifest that `save` wrote. The file is data: nothing in it is ever executed.

        An Arrow file is mapped, not read: opening takes no longer for many images than for few, and all processes of a machine
        share its pages. What is taken out of it is checked as it is taken, `verify` checks all of it. A Parquet file is read and
        checked at once, by each process.

        Raises:
            ManifestError: the file is missing, damaged, or not a manifest.
        """
        stored = saved.read(file)
        if not stored.file:
            read = cls(stored.root, stored.classes, stored.table, keypoints=Keypoints.read(stored.known.get("keypoints")))
            read._known = {name: stored.known[name] for name in ("folders", *_KEPT) if name in stored.known}
            return read
        usable, others = divided(stored.table)
        validate(others)
        return cls._of(absolute(stored.root), stored.classes, Samples(usable, (stored.file,)), others, stored.known)

    @classmethod
    def open(
        cls,
        source: str | Path,
        *,
        verify: str = "header",
        max_pixels: int = MAX_PIXELS,
        cache_dir: str | Path | None = None,
        unchanged: str = "folder",
        label_separator: str | None = None,
        targets: Targets = NO_TARGETS,
        images: str | Path | None = None,
        progress: bool = True,
    ) -> Self:
        """A manifest from a folder or a shard to scan, a saved manifest, a table of path and label, or a JSON file of COCO's form.

        Args:
            verify, max_pixels: as for `scan`; a saved manifest is taken as it is.
            cache_dir: folder for cached scans, one file for each root.
            unchanged: as for `scan`, but one look at each folder is the default.
            label_separator: as for `from_table`; for tables only.
            targets: as for `from_table` and `scan`; of a COCO file its `bad_objects`.
            images: folder of the images that a table or COCO file names; by default the file's.
        """
        one_file = is_shard(source) or Path(source).suffix == ".parquet"
        if is_remote(source) and not (targets.named or one_file) and (indexed := index.read_index(cls, str(source))):
            return indexed
        kind = opening.kind_of(source)
        if kind == "manifest":
            return cls.load(source)
        if kind == "table":
            listed: dict[str, Any] = {"root": images, "label_separator": label_separator, "targets": targets}
            return cls.from_table(source, **listed, verify=verify, max_pixels=max_pixels, progress=progress)
        if kind == "coco":
            bad = targets.bad_objects
            return cls.from_coco(source, root=images, bad_objects=bad, verify=verify, max_pixels=max_pixels, progress=progress)
        cache = opening.cache_file(cache_dir, source) if cache_dir and not targets.named else None
        scanned: dict[str, Any] = {"cache": cache, "unchanged": unchanged, "targets": targets}
        return cls.scan(source, **scanned, verify=verify, max_pixels=max_pixels, progress=progress)

    def save(self, file: str | Path) -> None:
        """Writes the manifest, whole or not at all: NAME.arrow for `load` to map, any other name as Parquet, which is smaller.

        Raises:
            ManifestError: a file of that name exists and is not a manifest; it is left unchanged.
        """
        known = self._known | {"fingerprint": self.fingerprint, "description": self._description}
        saved.write(Path(file), str(self.root), self.classes, self._samples.table(), self._others, known)

    def save_index(self) -> str:
        """Writes index.arrow beside the images, such as in their bucket, where `open` finds it; returns its path or URL.

        Raises:
            ManifestError: it cannot be written there.
        """
        return index.write_index(self)

    def moved_to(self, root: str) -> Self:
        """The same samples below another folder or URL."""
        return self._of(root, self.classes, self._samples, self._others, self._known)

    def with_versions(self, versions: Mapping[str, FileVersion]) -> Self:
        """The same samples in shards that were moved or uploaded.

        Args:
            versions: of each shard by its name, as `remote.list_objects` has them.
        """
        times = np.array([versions[name][1] for name in self.shards.names], np.int64)[self.shards.numbers]
        return self._with(Samples(replaced(self.samples, "mtime_ns", pa.array(times)), self._samples.files), self._others)

    def verify(self) -> None:
        """Reads all of a mapped file, and checks what `load` does not.

        Raises:
            ManifestError: its rows cannot be of images, or are not those that the fingerprint was made of.
        """
        self._samples.validate(self._samples.whole.column_names)
        self._check()
        if self._known.get("fingerprint", now := digest.digest(self.classes, self._samples)) != now:
            raise ManifestError(f"{self.root}: the manifest's rows are not those that it was saved with; scan the images again")

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def table(self) -> pa.Table:
        """Every image, the usable ones by id, then the others; the columns of `table.schema.SCHEMA`, and "column:NAME"."""
        return pa.concat_tables([self._samples.table(), self._others])

    @property
    def samples(self) -> pa.Table:
        """The usable images by id: `table` without the others."""
        return self._samples.table()

    def __repr__(self) -> str:
        return f"Manifest({str(self.root)!r}: {len(self):,} images, {len(self.classes):,} classes, {len(self.problems):,} problems)"

    @property
    def folders(self) -> FolderRecords:
        """Of the folders that were scanned, by their path, as far as a file that was loaded has them: see `scanning/earlier.py`."""
        return self._known.get("folders", {})

    @property
    def task(self) -> str:
        """What the labels are: "classification" (one class each), "multilabel" (any number of classes), "regression" (numbers)."""
        return task_of(self._samples.whole["label"].type)

    def describe(self) -> dict[str, Any]:
        """What a result records about its images: fingerprint, count, mean KiB of a file, median height and width."""
        return {"fingerprint": self.fingerprint, **self._description}

    @cached_property
    def _description(self) -> dict[str, Any]:
        return self._known.get("description") or {
            "images": len(self),
            "mean_kib": round(self.bytes_in_all / len(self) / 1024, 1) if len(self) else 0.0,
            "median_size": np.median(self.sizes, axis=0).tolist() if len(self) else [0.0, 0.0],
        }

    def take_labels(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        """(N,) int64 class numbers; (N, L) int64 of several, filled up with -1; (N,) or (N, K) float32 numbers.

        Raises:
            ManifestError: a label is no class.
        """
        task = self.task
        if task == "regression":
            return self._samples.numbers("label", ids)
        several = task == "multilabel"
        found = self._samples.matrix("label", ids, fill=-1) if several else self._samples.numbers("label", ids)
        if found.size and not (-several <= found.min() and found.max() < len(self.classes)):
            raise ManifestError(f"{self.root}: the manifest has labels outside its {len(self.classes)} classes; scan again")
        return found.astype(np.int64)

    def take_sizes(self, ids: NDArray[np.int64], *, upright: bool = False) -> NDArray[np.int64]:
        """(N, 2) heights and widths in pixels, as stored, or once the image is turned by its EXIF orientation.

        Raises:
            ManifestError: an image has no size.
        """
        sizes = np.stack([self._samples.numbers("height", ids), self._samples.numbers("width", ids)], axis=1).astype(np.int64)
        if sizes.min(initial=1) < 1:
            raise ManifestError(f"{self.root}: the manifest has usable images without a size; scan the images again")
        if not upright:
            return sizes
        turned = self._samples.numbers("orientation", ids) >= 5
        return np.where(turned[:, None], sizes[:, ::-1], sizes)

    def take_columns(self, ids: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """The table's own columns of numbers, each (N,) or (N, K) of int64, float32 or bool."""
        return {name.removeprefix(COLUMN): self._samples.numbers(name, ids) for name in self._numeric}

    @property
    def numeric_columns(self) -> set[str]:
        """The names of those columns."""
        return {name.removeprefix(COLUMN) for name in self._numeric}

    def has_target(self, name: str) -> bool:
        """Whether there is such a column of targets: "boxes", "mask" … (data/objects.py)."""
        return TARGET + name in self._samples.whole.column_names

    @cached_property
    def keypoints(self) -> Keypoints | None:
        """Which keypoints the objects have, if they have any."""
        return Keypoints.read(self._known.get("keypoints"))

    def take_objects(self, ids: NDArray[np.int64]) -> Objects | None:
        """The objects of these samples, in pixels as stored; None: this manifest has no boxes.

        Raises:
            ManifestError: their columns do not belong together, or a label is no class.
        """
        if not self.has_target("boxes"):
            return None
        counts = self._samples.lengths(TARGET + "boxes", ids) // 4
        names = self.keypoints.names if self.keypoints else []

        def values(name: str, each: int = 1) -> NDArray[Any] | None:
            if not self.has_target(name):
                return None
            if (self._samples.lengths(TARGET + name, ids) != each * counts).any():
                raise ManifestError(f"{self.root}: the manifest has objects of which {name} are too few or too many; scan again")
            return self._samples.joined(TARGET + name, ids)

        boxes, labels, points = values("boxes", 4), values("box_labels"), values("keypoints", 3 * len(names))
        if boxes is None or labels is None:
            raise ManifestError(f"{self.root}: the manifest has objects without labels; scan again")
        if len(labels) and not (labels.min() >= 0 and labels.max() < len(self.classes)):
            raise ManifestError(f"{self.root}: the manifest has objects outside its {len(self.classes)} classes; scan again")
        keypoints = None if points is None else points.reshape(len(labels), len(names), 3)
        return Objects(counts, boxes.reshape(-1, 4), labels, values("areas"), values("crowd"), keypoints)

    def take_texts(self, name: str, ids: NDArray[np.int64]) -> list[str]:
        """A column of targets that is text, of these samples."""
        return [self._samples.text(TARGET + name, sample_id).decode() for sample_id in ids.tolist()]

    def take_orientations(self, ids: NDArray[np.int64]) -> NDArray[np.int8]:
        """(N,) EXIF's orientations, 1 to 8."""
        return self._samples.numbers("orientation", ids)

    def mask_extent(self, sample_id: int) -> Extent | None:
        """Where one sample's encoded mask is; None: it has none."""
        if self.has_target("mask") and (path := self._samples.text(TARGET + "mask", sample_id)):
            return Extent(self._file(path))
        if not self.has_target("mask_bytes") or not (size := self._samples.number(TARGET + "mask_bytes", sample_id)):
            return None
        image = self.extent(sample_id)
        return image._replace(
            member=f"{image.member} (its mask)", offset=self._samples.number(TARGET + "mask_offset", sample_id), length=size
        )

    @cached_property
    def _numeric(self) -> list[str]:
        table = self._samples.whole
        return [name for name in own_columns(table) if is_numeric(table[name].type)]

    @cached_property
    def labels(self) -> NDArray[Any]:
        """By sample id: (n,) int64 class numbers; (n, L) int64 of several, filled up with -1; (n,) or (n, K) float32 numbers.

        A copy; of many images take what is needed by `take_labels`.
        """
        return self.take_labels(np.arange(len(self)))

    @property
    def columns(self) -> Mapping[str, NDArray[Any] | pa.Array]:
        """The table's own columns by sample id, each made when it is asked for.

        Numbers as NumPy's (n,) or (n, K) of int64, float32 or bool, which batches have too; text and lists of numbers as Arrow's.
        """
        return OwnColumns(self._samples)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """(n, 2) heights and widths by sample id, in pixels as stored. A copy, as `labels` is."""
        return self.take_sizes(np.arange(len(self)))

    @cached_property
    def some_sizes(self) -> NDArray[np.int64]:
        """(N, 2) heights and widths in pixels of at most 100,000 samples, evenly spread over all."""
        return self.take_sizes(np.arange(0, len(self), -(-len(self) // _LOOKED_AT) or 1))

    @cached_property
    def bytes_each(self) -> NDArray[np.int64]:
        """(n,) sizes of the files by sample id. A copy, as `labels` is."""
        return self._samples.numbers("bytes", np.arange(len(self)))

    @property
    def bytes_in_all(self) -> int:
        """Of the usable images, as they are encoded."""
        return sum(int(self._samples.numbers("bytes", ids).sum()) for ids in self._samples.blocks())

    @cached_property
    def problems(self) -> list[tuple[str, str]]:
        """(path, problem) of every image that is not used; one in a shard is called SHARD/MEMBER."""
        self._samples.check()
        columns = zip(*(self._others[name].to_pylist() for name in ("path", "member", "problem")), strict=True)
        return [(os.fsdecode(path + b"/" + member if member else path), why) for path, member, why in columns]

    @property
    def dropped(self) -> list[tuple[str, str]]:
        """(path, what was wrong) of every object that was left out of an image that is used."""
        if not self.has_target("dropped"):
            return []
        found = enumerate(self._samples.column(TARGET + "dropped").to_pylist())
        return [(self.name(sample_id), line) for sample_id, lines in found for line in lines.splitlines()]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over name, label, height, width and own columns of the usable images; it does not depend on the root."""
        return self._known.get("fingerprint") or digest.digest(self.classes, self._samples)

    @cached_property
    def whole_files(self) -> bool:
        """Whether each image is a separate file on this machine."""
        return not self.is_fetched and self._samples.all_empty("member")

    @cached_property
    def shards(self) -> Shards:
        """Which samples lie in one file; made when it is first asked for."""
        coded = self._samples.column("path").combine_chunks().dictionary_encode()
        numbers = coded.indices.to_numpy()
        names = [os.fsdecode(path) for path in coded.dictionary.to_pylist()]
        files = [os.path.join(self.root, name) for name in names]
        firsts = np.searchsorted(np.maximum.accumulate(numbers), np.arange(len(files)))
        return Shards(numbers, names, files, *(self._samples.numbers(name, firsts) for name in ("file_bytes", "mtime_ns")))

    @property
    def is_fetched(self) -> bool:
        """Whether images come out of an object store."""
        return isinstance(self.root, str)

    @cached_property
    def copied(self) -> bool:
        """Whether images are read from copies of their files in the local cache."""
        return len(self) > 0 and bool(self.extent(0).member) and is_copied(self.extent(0).file)

    def path(self, sample_id: int) -> Path:
        """The file of one sample, or the shard that holds it; for a remote shard its local copy, which may not exist yet."""
        if isinstance(self.root, str):
            extent = self.extent(sample_id)
            return copy_of(extent.file, extent.stamp)
        return self.root / os.fsdecode(self._samples.text("path", sample_id))

    def extent(self, sample_id: int) -> Extent:
        """Where one sample's encoded bytes are."""
        file = self._file(self._samples.text("path", sample_id))
        if not (member := b"" if self.whole_files else self._samples.text("member", sample_id)):
            return Extent(file)
        offset, length, *stamp = (self._samples.number(name, sample_id) for name in _PLACE)
        self._check_places(offset, length, stamp[0])
        return Extent(file, os.fsdecode(member), offset, length, (stamp[0], stamp[1]))

    def _file(self, path: bytes) -> str:
        if path.startswith(b"/") or b"\0" in path:
            raise self._strange_path()
        return os.path.join(self.root, os.fsdecode(path))

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
        prefix = os.path.join(os.fsencode(self.root), b"")
        matrix = self._samples.matrix("path", ids, prefix)
        if matrix.shape[1] > len(prefix) and (matrix[:, len(prefix)] == ord("/")).any():
            raise self._strange_path()
        return matrix

    def subset(self, ids: NDArray[np.int64]) -> Self:
        """A manifest of these samples only, numbered anew in the given order.

        Raises:
            ConfigError: an id that there is not, or something else than ids.
        """
        ids = np.asarray(ids)
        if ids.dtype.kind not in "iu" and ids.size:
            raise ConfigError(f"subset takes sample ids, not {ids.dtype}; of a mask np.flatnonzero makes ids")
        ids = ids.astype(np.int64)
        if ids.size and not (ids.min() >= 0 and ids.max() < len(self)):
            raise ConfigError(f"subset: ids run from 0 to {len(self) - 1}, and one is {ids.min() if ids.min() < 0 else ids.max()}")
        return self._with(self._samples.select(ids), self._others[:0])

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
        if not manifests:
            raise ConfigError("concat joins at least one manifest, and there is none")
        root = common_root([each.root for each in manifests])
        known = same_keypoints([each.keypoints for each in manifests])
        names, numbers = joined_classes([each.classes for each in manifests], classes == "apart")

        def joined(tables: list[pa.Table]) -> pa.Table:
            each = zip(manifests, tables, numbers, strict=True)
            return unified([renumbered(moved(table, manifest.root, root), new) for manifest, table, new in each])

        files = tuple(file for each in manifests for file in each._samples.files)
        samples = Samples(joined([each.samples for each in manifests]), files)
        return cls._of(root, names, samples, joined([each._others for each in manifests]), known)

    @classmethod
    def mix(cls, sources: Mapping[str, tuple[Self, float]], *, mode: str = "stratified", classes: str = "join") -> Self:
        """The samples of all sources, as `concat` joins them, to be drawn by shares: each source has its own epochs and order.

        A column `source`, the number of each sample's source, is added.

        Args:
            sources: by name the images and their share, such as {"imagenet": (imagenet, 0.7), "mine": (mine, 0.3)}.
            mode: "stratified": every global batch has the shares, rounded up or down, in a random order; "proportional": they vary
                from batch to batch, and are so in 4,096 samples.
            classes: as for `concat`.

        Raises:
            ConfigError: shares that are none.
            ManifestError: as for `concat`; or a column `source` is there already.
        """
        check_choice("mode", mode, ("stratified", "proportional"))
        try:
            given = {name: float(share) for name, (_, share) in sources.items()}
        except (TypeError, ValueError):
            raise ConfigError('a mixture is made of names, manifests and shares: {"mine": (manifest, 0.3), …}') from None
        if not given or not all(0 < share < float("inf") for share in given.values()):
            raise ConfigError(f"the shares of the mixture are {given}; each must be positive")
        named = []
        for number, (each, _) in enumerate(sources.values()):
            samples, others = (with_source(table, number) for table in (each.samples, each._others))
            named.append(each._with(Samples(samples, each._samples.files), others))
        made = cls.concat(named, classes=classes)
        made._known |= {"mixture": [mode, {name: share / sum(given.values()) for name, share in given.items()}]}
        return made

    @property
    def mixture(self) -> Mix | None:
        """What `mix` was given; parts of a mixture keep it."""
        return Mix(*self._known["mixture"]) if "mixture" in self._known else None

    def map_classes(self, names: Mapping[str, str]) -> Self:
        """With classes renamed; those that get the same name become one. Classes that are not named keep theirs.

        Raises:
            ConfigError: a class that there is not.
        """
        for name in names:
            self._rows.class_numbers(name)
        merged, numbers = joined_classes([[names.get(name, name) for name in self.classes]], False)
        samples, others = (renumbered(table, numbers[0]) for table in (self.samples, self._others))
        return self._with(Samples(samples, self._samples.files), others, merged)

    def _check(self) -> None:
        """Checks what a loader relies on, whatever program wrote the table."""
        for ids in self._samples.blocks():
            self.take_labels(ids)
            self.take_sizes(ids)
            self.take_objects(ids)
            paths, lengths = self._samples.joined("path", ids), self._samples.lengths("path", ids)
            if not paths.all() or (paths[(lengths.cumsum() - lengths)[lengths > 0]] == ord("/")).any():
                raise self._strange_path()
            packed = ids[self._samples.lengths("member", ids) > 0]
            offset, length, file_bytes, _ = (self._samples.numbers(name, packed) for name in _PLACE)
            self._check_places(offset, length, file_bytes)

    def _check_places(self, offset: _Numbers, length: _Numbers, file_bytes: _Numbers) -> None:
        if np.any((offset < 0) | (length < 0) | (offset > file_bytes - length)):
            raise ManifestError(f"{self.root}: the manifest has images that reach beyond their shard; scan the images again")

    def _strange_path(self) -> ManifestError:
        return ManifestError(f"{self.root}: the manifest has a path that is absolute or has a NUL byte; scan the images again")

    @property
    def _rows(self) -> Rows:
        return Rows(self._samples, self.classes)
