"""`Manifest`: one row for each image of a data set, from whatever describes the set.

- `open` takes any source and calls `scan` (folders, shards), `from_table`, `from_coco` or `load`.
  `from_masks` takes a folder of images and one of masks. The readers of sources/ do the work.
- `save`, `load` and `save_index` keep a manifest in a file or beside the images.
- `subset`, `filter` and `split` choose samples, `concat` and `mix` join manifests, and
  `map_classes` and `with_classes` change classes. Each returns a new manifest (sets.py).

What is known of each image is in `images` (image_table.py), and what is known of all in its
`facts`; a manifest shows both under their own names.
"""

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dali_pipes.checks import LARGEST_SEED, check_choice, check_number, describe_value
from dali_pipes.data import sets
from dali_pipes.data.config import MISSING
from dali_pipes.data.expression import Rows
from dali_pipes.data.facts import ManifestFacts, Mix
from dali_pipes.data.image_files.headers import ScanOptions
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.keypoints import Keypoints, check_flip_pairs
from dali_pipes.data.limits import MAX_PIXELS, PIXEL_LIMIT
from dali_pipes.data.mask_values import MaskValues
from dali_pipes.data.objects import BAD_OBJECTS, NO_TARGETS, Targets
from dali_pipes.data.omissions import Omission, describe
from dali_pipes.data.shards.remote import FileVersion, is_remote
from dali_pipes.data.sources import saved_manifests
from dali_pipes.data.sources.index import note_reading, read_index, write_index
from dali_pipes.data.sources.kinds import kind_of
from dali_pipes.data.sources.layouts import local_path, refuse_other_layouts
from dali_pipes.data.sources.names.patterns import is_pattern
from dali_pipes.data.sources.readers import read_coco, read_images, read_masks, read_table
from dali_pipes.data.sources.rows.earlier import FolderRecords
from dali_pipes.data.sources.scans import cache_file
from dali_pipes.data.sources.shards import is_shard
from dali_pipes.data.table.changes import add_source
from dali_pipes.data.table_options import TableOptions
from dali_pipes.data.upright import ANNOTATED
from dali_pipes.errors import ConfigError
from dali_pipes.options import check_arguments

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)


class _Value(Generic[T]):
    """An attribute of a manifest that is the one of its images."""

    # the value is a cached_property, which mypy takes for the function in it
    def __init__(self, value: Callable[[ImageTable], T]):
        self._value, self.__doc__ = cast(cached_property[T], value), value.__doc__

    @overload
    def __get__(self, manifest: None, kind: type) -> Self: ...

    @overload
    def __get__(self, manifest: "Manifest", kind: type) -> T: ...

    def __get__(self, manifest: "Manifest | None", kind: type) -> Self | T:
        if manifest is None:
            return self
        value: T = self._value.__get__(manifest.images)
        return value


def _method(
    method: Callable[Concatenate[ImageTable, P], T],
) -> Callable[Concatenate["Manifest", P], T]:
    """A method of a manifest that is the one of its images."""

    @wraps(method)
    def call(self: "Manifest", /, *args: P.args, **options: P.kwargs) -> T:
        return method(self.images, *args, **options)

    return call


@dataclass
class _OmissionLog:
    """Whether the line about a manifest's omissions was logged."""

    is_done: bool = False


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Manifest:
    """The images of one data set, in the order of torchvision's ImageFolder or of the shards.

    Sample ids number the usable images from 0. An image with a problem has no id and is never
    loaded.

    Attributes:
        images: what is known of each image and of all.
    """

    images: ImageTable
    _omission_log: _OmissionLog

    def __init__(
        self,
        root: str | Path,
        classes: list[str],
        table: pa.Table,
        folders: FolderRecords | None = None,
        keypoints: Keypoints | None = None,
        omissions: Iterable[Omission] = (),
    ):
        """
        Args:
            table: every image, usable or not, with the columns of `table.schema.SCHEMA` and further
                ones, "column:NAME" and "target:NAME" (data/objects.py).
            folders: those that were scanned.
            keypoints: those that the objects have.
            omissions: what is left out besides rows with a problem and besides what `folders` leave
                out.

        Raises:
            ManifestError: the table cannot be of images.
        """
        facts = ManifestFacts(folders=folders or {}, keypoints=keypoints, omissions=list(omissions))
        self._set(ImageTable.from_table(root, classes, table, facts))

    def _set(self, images: ImageTable, is_logged: bool = False) -> None:
        # nothing else sets an attribute, since the class is frozen
        vars(self).update(images=images, _omission_log=_OmissionLog(is_logged))

    @classmethod
    def _of(cls, images: ImageTable, is_logged: bool = False) -> Self:
        manifest = cls.__new__(cls)
        manifest._set(images, is_logged)
        return manifest

    def _derive(self, images: ImageTable) -> Self:
        """A manifest of images that are made of these."""
        return self._of(images, self._omission_log.is_done)

    @classmethod
    @check_arguments(workers=(1, 2**12), max_pixels=(1, PIXEL_LIMIT))
    def scan(
        cls,
        root: str | Path,
        *,
        verify: str = "header",
        max_pixels: int = MAX_PIXELS,
        cache: str | Path | None = None,
        unchanged: str = "file",
        targets: Targets = NO_TARGETS,
        classes: Sequence[str] | None = None,
        with_labels: bool = True,
        strict: bool = False,
        workers: int | None = None,
        progress: bool = True,
    ) -> Self:
        """Reads the headers of all images under `root`: a folder for each class, or shards.

        Subfolders of class folders are included.

        One line of the log says what is left out, such as files that no loader decodes or images
        beside the class folders; `omissions` has all of it.

        Args:
            root: a folder of class folders or of shards, here or by its URL, one shard, or a
                pattern of their names such as train-*.tar or train-{0000..0063}.tar
                (docs/shards.md).
            verify: "header" reads headers only; "full" also decodes every image, and so detects
                truncated ones.
            max_pixels: images with more are a problem; by default Pillow's limit against
                decompression bombs, which may be exceeded.
            cache: a file such as train.arrow, which all processes of a machine then map and share;
                or .parquet. Images that have not changed since it was written are not read again,
                and the result is saved there. A scan that was killed continues where it stopped.
            unchanged: what shows that an image is the one that was scanned before: "file", its own
                size and modification time; "folder", that of its folder, so that one look at each
                folder is enough. A file that is written over where it lies does not change its
                folder.
            targets: what shards hold besides labels: docs/objects.md. Such a scan is not cached:
                `save` it.
            classes: names of the class folders, in the order of their numbers, such as those of the
                training images: a class without a folder has no image here, and folders that are
                not named are left out. None: each folder is a class, sorted. Of shards the names of
                the class numbers.
            with_labels: False: no label is read, and none is needed. All images are taken, wherever
                they lie, and shards need no class; `task` is "multilabel" then, with no class for
                any image.
            strict: an image or an object that is left out is an error.
            workers: processes that read; by default twice the number of cores, so that a slow disk
                is kept busy.
            progress: show a progress bar on stderr.

        Raises:
            ManifestError: no such folder, no class folders in it, no image in them, or folders of
                splits such as train and val.
            OmissionError: `strict`, and something is left out.
        """
        file = Path(cache) if cache else None
        check = ScanOptions(verify, max_pixels, workers, progress, targets, with_labels, classes)
        return cls._of(read_images(root, check, file, unchanged))._finish(None, strict)

    @classmethod
    @check_arguments(workers=(1, 2**12), max_pixels=(1, PIXEL_LIMIT))
    def from_table(
        cls,
        file: str | Path,
        *,
        root: str | Path | None = None,
        path_column: str = "path",
        label_column: str = "label",
        label_separator: str | None = None,
        delimiter: str | None = None,
        encoding: str | None = None,
        task: str | None = None,
        targets: Targets = NO_TARGETS,
        classes: Sequence[str] | None = None,
        with_labels: bool = True,
        strict: bool = False,
        verify: str = "header",
        max_pixels: int = MAX_PIXELS,
        workers: int | None = None,
        progress: bool = True,
    ) -> Self:
        """Reads the headers of the images that a CSV or Parquet file lists by path and label.

        A Parquet file, a folder of them, or a pattern such as data/train-*.parquet may hold the
        images themselves, as Hugging Face's `datasets` writes them: docs/shards.md.

        Args:
            file: the table.
            root: folder that relative paths start from; by default the table's folder.
            path_column, label_column: the names of these columns. Of a Parquet file that holds the
                images the labels are by default in `label`, or else in the first column that
                `datasets` notes as a ClassLabel.
            label_separator: splits a label that is text into several, as ";" does in "cat;dog";
                None: it is one class name.
            delimiter: the character between the cells of a CSV; None: the first of , ; tab and |
                by which the header has the column of paths.
            encoding: encoding of a CSV, such as "latin-1"; None: UTF-8, or UTF-16 if the file
                begins with its byte-order mark.
            task: "classification": whole numbers are class numbers, also those written as 1.0;
                "regression": all numbers are to be predicted; None: integers are class numbers, and
                fractions are to be predicted.
            targets: columns with boxes, keypoints, masks or texts: docs/objects.md. With them
                `label` may be missing; with boxes it is not read.
            classes: class names in the order of their numbers, such as those of the training
                images; None: those that occur.
            with_labels: False: no label is read, and none is needed.
            strict, verify, max_pixels: as for `scan`.

        A label is a class number from 0, a class name, a list of either, a fraction or a list of
        fractions: docs/targets.md. Names are numbered in sorted order. All other columns of numbers
        are kept. A row without a label, or whose file is not there, is one of the `problems`.

        Raises:
            ManifestError: no such table, its labels make no sense, no row has a label or a file, or
                no object can be used.
            OmissionError: `strict`, and something is left out.
        """
        options = TableOptions(
            path_column, label_column, label_separator, delimiter, encoding, task
        )
        check = ScanOptions(verify, max_pixels, workers, progress, targets, with_labels, classes)
        return cls._of(read_table(file, root, options, check))._finish(classes, strict)

    @classmethod
    @check_arguments(workers=(1, 2**12), max_pixels=(1, PIXEL_LIMIT))
    def from_coco(
        cls,
        annotations: str | Path,
        *,
        root: str | Path | None = None,
        bad_objects: str = "drop",
        flip_pairs: Sequence[Sequence[str]] | None = None,
        annotated: str | None = None,
        strict: bool = False,
        verify: str = "header",
        max_pixels: int = MAX_PIXELS,
        workers: int | None = None,
        progress: bool = True,
    ) -> Self:
        """Reads the headers of the images in a JSON file of COCO's form.

        That is detection, keypoints, segmentation or captions.

        The categories, in the order of their ids, are the classes; `category_ids` has these ids,
        and the column `image_id`, which batches have too, has those of the images. Results in
        COCO's form need both (docs/objects.md). The first caption of an image is its text.

        Args:
            root: folder of the images; by default the file's.
            bad_objects: what becomes of an object that makes no sense, such as one with an empty
                box: "drop" leaves it out and lists it in `dropped`; "problem" leaves out its image.
                If only its outline makes no sense, "drop" keeps the object with its box.
            annotated: whether boxes, keypoints and outlines are in pixels of the images as
                "stored", or of the "upright" pictures, as their EXIF tags turn them and most
                programs show them; None: as stored, with a warning of images that are turned,
                unless their sizes in the file show that they are stored ones.
            flip_pairs: names of keypoints that become one another on a flip, such as [["eye_a",
                "eye_b"]]; []: none do; None: those that differ by the words "left" and "right", or
                "l" and "r".
            strict, verify, max_pixels: as for `scan`.

        Raises:
            ManifestError: no such file, or one that is not of this form (docs/objects.md); or it
                has objects, and none can be used.
        """
        check_choice("bad_objects", bad_objects, BAD_OBJECTS)
        check_choice("annotated", annotated, ANNOTATED)
        flip_pairs = None if flip_pairs is None else check_flip_pairs("flip_pairs", flip_pairs)

        targets = Targets(bad_objects=bad_objects, flip_pairs=flip_pairs, annotated=annotated)
        check = ScanOptions(verify, max_pixels, workers, progress, targets)
        return cls._of(read_coco(annotations, root, check))._finish(None, strict)

    @classmethod
    @check_arguments(workers=(1, 2**12), max_pixels=(1, PIXEL_LIMIT))
    def from_masks(
        cls,
        images: str | Path,
        masks: str | Path,
        *,
        classes: Sequence[str] = (),
        missing: str = "problem",
        mask_values: Mapping[int, int] | None = None,
        annotated: str | None = None,
        strict: bool = False,
        verify: str = "header",
        max_pixels: int = MAX_PIXELS,
        workers: int | None = None,
        progress: bool = True,
    ) -> Self:
        """Reads the headers of the images in one folder, and of their masks in another one.

        docs/objects.md describes the folders.

        An image's mask has the same path in its own folder, apart from the extension and from
        Cityscapes' suffixes.

        Args:
            classes: names of the masks' values from 0. A value that is none of them, and not 255,
                is a problem of its image: with verify="full" all masks are checked, otherwise 32
                of them, and the others as they are loaded.
            mask_values: what values are replaced by, such as {255: 1} for masks of 0 and 255; a
                value that is replaced by itself, or by one that is no class, is ignored.
            annotated: whether masks are those of the images as "stored", or of the "upright"
                pictures that programs show; None: as stored, with a warning of images that are
                turned.
            missing: what becomes of an image without a mask, and of a mask without an image:
                "problem" lists it; "skip" passes it over.
            strict, verify, max_pixels: as for `scan`.

        Raises:
            ManifestError: a folder without images, no image has a mask, or the masks have other
                values than classes.
        """
        check_choice("missing", missing, MISSING)
        image_folder, mask_folder = (
            Path(os.path.abspath(local_path(folder))) for folder in (images, masks)
        )
        check_choice("annotated", annotated, ANNOTATED)

        targets = Targets(annotated=annotated)
        check = ScanOptions(verify, max_pixels, workers, progress, targets)
        pairs = read_masks(image_folder, mask_folder, classes, missing, mask_values, check)
        return cls._of(pairs)._finish(None, strict)

    @classmethod
    @check_arguments()
    def load(cls, file: str | Path) -> Self:
        """Opens a manifest that `save` wrote.

        The file is data: nothing in it is ever executed.

        An Arrow file is mapped, not read: opening takes no longer for many images than for few, and
        all processes of a machine share its pages. Rows are checked as they are taken out; `verify`
        checks all of them. A Parquet file is read and checked at once, by each process.

        Raises:
            ManifestError: the file is missing, damaged, or not a manifest; or an earlier version
                wrote it, and a scan has other classes now, or turns its TIFFs.
        """
        return cls._of(saved_manifests.load(file))

    @classmethod
    @check_arguments(max_pixels=(1, PIXEL_LIMIT))
    def open(
        cls,
        source: str | Path,
        *,
        verify: str = "header",
        max_pixels: int = MAX_PIXELS,
        cache_dir: str | Path | None = None,
        unchanged: str = "folder",
        path_column: str = "path",
        label_column: str = "label",
        label_separator: str | None = None,
        delimiter: str | None = None,
        encoding: str | None = None,
        task: str | None = None,
        targets: Targets = NO_TARGETS,
        images: str | Path | None = None,
        classes: Sequence[str] | None = None,
        with_labels: bool = True,
        strict: bool = False,
        progress: bool = True,
    ) -> Self:
        """Opens any source of images.

        That is a folder, a shard or a pattern of shards to scan, a saved manifest, a table of path
        and label, or a JSON file of COCO's form.

        Args:
            verify, max_pixels: as for `scan`; a saved manifest and an index are taken as they are.
            cache_dir: folder for cached scans, one file for each root.
            unchanged: as for `scan`, but one look at each folder is the default.
            path_column, label_column, label_separator, delimiter, encoding, task: as for
                `from_table`; for tables only.
            targets: as for `from_table` and `scan`; a COCO file takes its `bad_objects`,
                `flip_pairs` and `annotated`.
            images: folder of the images that a table or COCO file names; by default the file's.
            classes, with_labels: as for `scan`; a table's class names are numbered as `classes` has
                them.
            strict: an image or an object that is left out is an error, of a saved manifest too.

        Raises:
            ManifestError: as `scan`, `from_table`, `from_coco` or `load`.
            OmissionError: `strict`, and something is left out.
        """
        source, images = local_path(source), local_path(images) if images else None
        if not Path(source).is_dir():  # `scan` does the same for a folder
            refuse_other_layouts(source)

        # a folder in a store may have an index of its images
        one_file = is_shard(source) or Path(source).suffix == ".parquet" or is_pattern(source)
        if is_remote(source) and not one_file:
            table = TableOptions(
                path_column, label_column, label_separator, delimiter, encoding, task
            )
            asked = note_reading(targets, with_labels, table)
            if indexed := read_index(str(source), asked):
                return cls._of(indexed)._finish(classes, strict)

        kind = kind_of(source)
        if kind == "manifest":
            return cls.load(source)._finish(classes, strict)

        checks: dict[str, Any] = {
            "verify": verify,
            "max_pixels": max_pixels,
            "strict": strict,
            "progress": progress,
        }
        if kind == "coco":
            checks |= {
                name: getattr(targets, name) for name in ("bad_objects", "flip_pairs", "annotated")
            }
            read = cls.from_coco(source, root=images, **checks)
            return read._finish(classes, strict)

        checks |= {"classes": classes, "with_labels": with_labels, "targets": targets}
        if kind == "table":
            return cls.from_table(
                source,
                root=images,
                path_column=path_column,
                label_column=label_column,
                label_separator=label_separator,
                delimiter=delimiter,
                encoding=encoding,
                task=task,
                **checks,
            )

        # `scan` refuses a cache for targets
        cache = (
            cache_file(cache_dir, source, with_labels) if cache_dir and not targets.named else None
        )
        return cls.scan(source, cache=cache, unchanged=unchanged, **checks)

    def _finish(self, classes: Sequence[str] | None, strict: bool) -> Self:
        """Gives the manifest these classes, if any, and logs or refuses what is left out."""
        manifest = self if classes is None else self.with_classes(classes)
        manifest.tell_omissions(strict)
        return manifest

    def with_classes(self, classes: Sequence[str]) -> Self:
        """The same samples with these classes, such as the training images', and their numbers.

        Raises:
            ManifestError: an image has a class that is none of them.
        """
        images = sets.give_classes(self.images, classes)
        return self if images is self.images else self._derive(images)

    @check_arguments()
    def save(self, file: str | Path) -> None:
        """Writes the manifest, completely or not at all.

        NAME.arrow is for `load` to map; any other name is written as Parquet, which is smaller.

        Raises:
            ManifestError: a file of that name exists and is not a manifest; it is left unchanged.
        """
        saved_manifests.save(self.images, file)

    def save_index(self) -> str:
        """Writes index.arrow beside the images, such as in their bucket; returns its path or URL.

        `open` finds it there, and uses it for those who ask for the same targets, or for none.

        Raises:
            ManifestError: it cannot be written there, or would hold no image.
        """
        return write_index(self.images)

    def verify(self) -> None:
        """Reads all of a mapped file, and checks what `load` does not check.

        Raises:
            ManifestError: its rows cannot be of images, or do not have its fingerprint.
        """
        saved_manifests.verify(self.images)

    @check_arguments()
    def tell_omissions(self, strict: bool = False) -> None:
        """Logs in one line what is left out of how many, once for each manifest.

        Args:
            strict: whether an image or an object that is left out is an error.

        Raises:
            OmissionError: `strict`, and something is left out.
        """
        if strict:
            self.images.refuse_omissions()

        # the first rank of each machine logs it for all
        if self._omission_log.is_done or int(os.environ.get("LOCAL_RANK", 0)):
            return

        self._omission_log.is_done = True
        if self.omissions:
            lost = any(omission.unit != "file" for omission in self.omissions)
            text = describe(self.root, len(self), self.omissions)
            log.log(logging.WARNING if lost else logging.INFO, "%s", text)

    def __repr__(self) -> str:
        return (
            f"Manifest({str(self.root)!r}: {len(self):,} images, {len(self.classes):,} "
            f"classes, {len(self.problems):,} problems)"
        )

    def moved_to(self, root: str) -> Self:
        """The same samples under another folder or URL."""
        return self._of(self.images.moved_to(root))

    def with_versions(self, versions: Mapping[str, FileVersion]) -> Self:
        """The same samples in shards that were moved or uploaded.

        Args:
            versions: the version of each shard by its name, as in `remote.list_objects`.
        """
        return self._derive(self.images.with_versions(versions))

    def without_columns(self, names: Sequence[str]) -> Self:
        """The same samples without some columns of the table, or some of the targets "text" and
        "mask".
        """
        return self._derive(sets.drop_columns(self.images, names))

    def subset(self, ids: NDArray[np.int64]) -> Self:
        """A manifest of these samples only, numbered anew in the given order.

        Raises:
            ConfigError: there is no such id, or these are not ids.
        """
        return self._derive(sets.subset(self.images, ids))

    def filter(self, expression: str) -> Self:
        """The samples that match an expression such as "width >= 224 and class in ('cat', 'dog')".

        docs/targets.md describes the form.

        Columns are the table's own, and each image's label, height, width, bytes, orientation,
        format, path and member.

        Raises:
            ConfigError: it is no such expression, or there is no such column.
        """
        if not isinstance(expression, str):
            raise ConfigError(
                f"filter is {describe_value(expression)}; it takes an expression as text, such as "
                "'width >= 224'"
            )
        matches = self._rows.match(expression).to_numpy(zero_copy_only=False)
        return self._choose(np.flatnonzero(matches))

    @check_arguments(seed=(0, LARGEST_SEED))
    def split(
        self, fractions: Mapping[str, float], *, by: str | None = None, seed: int = 0
    ) -> dict[str, Self]:
        """Divides the samples into parts at random; each part keeps the order of the ids.

        Args:
            fractions: name and share of each part, such as {"train": 0.9, "val": 0.1}.
            by: a column whose equal values stay in one part, such as a patient; the sizes are then
                as near to the shares as they can be.
            seed: the same seed gives the same parts, on any machine.

        Raises:
            ConfigError: the fractions are not shares of 1, or there is no such column.
        """
        groups = np.arange(len(self)) if by is None else sets.group_numbers(self._rows.column(by))
        parts = sets.choose_parts(fractions, groups, seed)
        return {name: self._choose(ids) for name, ids in parts.items()}

    def _choose(self, ids: NDArray[np.int64]) -> Self:
        return self._derive(sets.choose(self.images, ids))

    @classmethod
    def concat(cls, manifests: Sequence[Self], *, classes: str = "join") -> Self:
        """Joins manifests: their samples one after the other, under the nearest common folder.

        Args:
            classes: "join" makes classes of the same name one; "apart" keeps the classes of each,
                in the order of `manifests`.

        Raises:
            ManifestError: some are in another store, or labels, columns or targets mean different
                things.
        """
        check_choice("classes", classes, ("join", "apart"))
        other: Any = manifests
        # texts and mappings can be iterated too, but hold no manifests
        if isinstance(manifests, Iterable) and not isinstance(manifests, (str, Mapping)):
            manifests = list(manifests)
            other = next(
                (each for each in cast(list[Any], manifests) if not isinstance(each, Manifest)),
                None,
            )
        if other is not None:
            raise ConfigError(
                f"concat is given {describe_value(other)}; it takes a list of manifests: "
                "Manifest.concat([one, other])"
            )
        if not manifests:
            raise ConfigError("concat joins at least one manifest, and there is none")

        images = sets.concat([manifest.images for manifest in manifests], classes == "apart")
        return cls._of(images, all(manifest._omission_log.is_done for manifest in manifests))

    @classmethod
    def mix(
        cls,
        sources: Mapping[str, tuple[Self, float]],
        *,
        mode: str = "stratified",
        classes: str = "join",
    ) -> Self:
        """Joins sources as `concat` does, to be drawn by shares.

        Each source has its own epochs and order.

        It adds a column `source`, the number of each sample's source.

        Args:
            sources: the images and their share by name, such as {"imagenet": (imagenet, 0.7),
                "mine": (mine, 0.3)}.
            mode: "stratified": every global batch has the shares, rounded up or down, in a random
                order; "proportional": they vary from batch to batch, and hold over 4,096 samples.
            classes: as for `concat`.

        Raises:
            ConfigError: the shares are not positive numbers.
            ManifestError: as for `concat`; or there is a column `source` already.
        """
        check_choice("mode", mode, ("stratified", "proportional"))

        try:
            shares = {name: share for name, (_, share) in sources.items()}
        except (AttributeError, TypeError, ValueError):
            raise ConfigError(
                'a mixture is made of names, manifests and shares: {"mine": (manifest, 0.3), …}'
            ) from None
        shares = {
            name: float(check_number(f"the share of {name!r}", share, -math.inf, math.inf))
            for name, share in shares.items()
        }
        if not shares or min(shares.values()) <= 0:
            raise ConfigError(f"the shares of the mixture are {shares}; each must be positive")

        numbered = [
            manifest._derive(manifest.images.map_tables(partial(add_source, number=number)))
            for number, (manifest, _) in enumerate(sources.values())
        ]
        joined = cls.concat(numbered, classes=classes)
        total = sum(shares.values())
        mixture = Mix(mode, {name: share / total for name, share in shares.items()})
        return joined._derive(joined.images.with_facts(mixture=mixture))

    def map_classes(self, names: Mapping[str, str]) -> Self:
        """Renames classes; classes that get the same name become one, and others keep their names.

        Raises:
            ConfigError: there is no class of a name that is given.
        """
        for name in names:
            self._rows.class_numbers(name)  # raises for a class that there is not
        merged, numbers = sets.join_classes(
            [[names.get(name, name) for name in self.classes]], False
        )
        return self._derive(sets.renumber(self.images, numbers[0], merged))

    @property
    def _rows(self) -> Rows:
        return Rows(self.images.samples, self.classes)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def root(self) -> Path | str:
        """The folder that the paths are relative to, or the URL of one, as text."""
        return self.images.root

    @property
    def classes(self) -> list[str]:
        """The class names; a label is a place in this list."""
        return self.images.classes

    @property
    def table(self) -> pa.Table:
        """Every image, the usable ones by id, then the others.

        The columns are those of `table.schema.SCHEMA`, "column:NAME" and "target:NAME".
        """
        return self.images.table

    @property
    def samples(self) -> pa.Table:
        """The usable images by id: `table` without the others."""
        return self.images.samples.table()

    # What is known of each image, as image_table.py describes it.
    task = _Value(ImageTable.task)
    labels = _Value(ImageTable.labels)
    take_labels = _method(ImageTable.take_labels)
    sizes = _Value(ImageTable.sizes)
    some_sizes = _Value(ImageTable.some_sizes)
    take_sizes = _method(ImageTable.take_sizes)
    take_orientations = _method(ImageTable.take_orientations)
    columns = _Value(ImageTable.columns)
    numeric_columns = _Value(ImageTable.numeric_columns)
    take_columns = _method(ImageTable.take_columns)

    has_target = _method(ImageTable.has_target)
    take_objects = _method(ImageTable.take_objects)
    take_texts = _method(ImageTable.take_texts)
    has_turned_boxes = _Value(ImageTable.has_turned_boxes)
    mask_size = _method(ImageTable.mask_size)
    mask_extent = _method(ImageTable.mask_extent)

    # Where its bytes are.
    name = _method(ImageTable.name)
    path = _method(ImageTable.path)
    path_matrix = _method(ImageTable.path_matrix)
    extent = _method(ImageTable.extent)
    read = _method(ImageTable.read)
    bytes_each = _Value(ImageTable.bytes_each)
    bytes_in_all = _Value(ImageTable.bytes_in_all)
    shards = _Value(ImageTable.shards)
    whole_files = _Value(ImageTable.whole_files)
    is_fetched = _Value(ImageTable.is_fetched)
    copied = _Value(ImageTable.copied)

    # What the set is, and what is left out of it.
    fingerprint = _Value(ImageTable.fingerprint)
    describe = _method(ImageTable.describe)
    name_sums = _method(ImageTable.name_sums)
    problems = _Value(ImageTable.problems)
    dropped = _Value(ImageTable.dropped)
    omissions = _Value(ImageTable.omissions)
    passed_over = _Value(ImageTable.passed_over)
    of_whole = _Value(ImageTable.of_whole)
    bad_images = _Value(ImageTable.bad_images)
    bad_of_whole = _Value(ImageTable.bad_of_whole)
    refuse_bad_images = _method(ImageTable.refuse_bad_images)

    @property
    def folders(self) -> FolderRecords:
        """The folders that were scanned, by their path; none if a loaded file does not have them.

        The form is that of `sources/rows/earlier.py`.
        """
        return self.images.facts.folders

    @property
    def rules(self) -> int:
        """The version of the rules by which a scan said what is an image and what is a class.

        0 is version 0.2 of the package, whose files do not say it.
        """
        return self.images.facts.rules

    @property
    def mixture(self) -> Mix | None:
        """The arguments of `mix`; parts of a mixture keep it. None: this is no mixture."""
        return self.images.facts.mixture

    @property
    def keypoints(self) -> Keypoints | None:
        """The names of the objects' keypoints; None: there are none."""
        return self.images.facts.keypoints

    @property
    def names_flip_pairs(self) -> bool:
        """Whether the pairs of keypoints that change places were given.

        Otherwise they were taken from the names.
        """
        return self.images.facts.names_flip_pairs

    @property
    def category_ids(self) -> list[Any] | None:
        """The id of each class in its COCO file; None where that is not known.

        In the list, a class that is not in the file has None.
        """
        return self.images.facts.category_ids

    @property
    def mask_values(self) -> MaskValues:
        """The meaning of the values in masks, as far as it is known."""
        return self.images.facts.mask_values

    @property
    def masks_upright(self) -> bool:
        """Whether masks are of the upright pictures.

        They are then turned to the stored form when they are loaded.
        """
        return self.images.facts.masks_upright

    @property
    def boxes_upright(self) -> bool:
        """Whether boxes and keypoints were given for upright pictures, to which results go back.

        The manifest keeps them for the images as stored.
        """
        return self.images.facts.boxes_upright
