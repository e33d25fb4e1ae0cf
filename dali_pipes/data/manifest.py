"""`Manifest`: one row for each image of a data set, from whatever describes the set.

- `open` takes any source and calls `scan` (folders, shards), `from_table`, `from_coco` or `load`.
  `from_masks` takes a folder of images and one of masks. Each reads the headers of the images,
  checks targets and masks, and logs what is left out (`_finished`).
- `save`, `load` and `save_index` keep a manifest in a file or beside the images.
- `subset`, `filter` and `split` choose samples, `concat` and `mix` join manifests, and
  `map_classes` and `with_classes` change classes. Each returns a new manifest, which keeps what is
  known of the whole as far as `_KEPT` says.

image_table.py has the part that loaders use.
"""

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dali_pipes.data import opening, sets
from dali_pipes.data.config import MISSING
from dali_pipes.data.expression import Rows
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.keypoints import Keypoints, check_flip_pairs
from dali_pipes.data.labels import COLUMN
from dali_pipes.data.limits import MAX_PIXELS, MOST_PIXELS
from dali_pipes.data.mask_values import IGNORED, LOOKED_AT, MaskValues, check_mask_values, look_at
from dali_pipes.data.objects import BAD_OBJECTS, NO_TARGETS, TARGET, Targets
from dali_pipes.data.omissions import is_object, merge
from dali_pipes.data.scanning.coco import scan_coco
from dali_pipes.data.scanning.headers import ScanOptions
from dali_pipes.data.scanning.layouts import local_path, refuse_other_layouts
from dali_pipes.data.scanning.masks import scan_pairs
from dali_pipes.data.scanning.patterns import is_pattern
from dali_pipes.data.scanning.rules import refuse_other_orientations, refuse_other_rules
from dali_pipes.data.scanning.shards import is_shard
from dali_pipes.data.scanning.source_objects import refuse_without_objects
from dali_pipes.data.scanning.tables import scan_table
from dali_pipes.data.sets import Mix
from dali_pipes.data.shards.remote import FileVersion, absolute, is_remote
from dali_pipes.data.table import saved
from dali_pipes.data.table.samples import Samples, validate
from dali_pipes.data.table.schema import replace_column, split_usable
from dali_pipes.data.table_options import TableOptions
from dali_pipes.data.upright import ANNOTATED, warn_of_turned
from dali_pipes.errors import (
    LARGEST_SEED,
    ConfigError,
    ManifestError,
    check_choice,
    check_number,
    checks_arguments,
    shown,
)

log = logging.getLogger(__name__)

# the entries of `_known` that a part of a manifest keeps
_KEPT = (
    "mixture",
    "keypoints",
    "flip_pairs",
    "mask_values",
    "masks_upright",
    "boxes_upright",
    "category_ids",
    "rules",
)

# the entries that a manifest with the same samples keeps; `filter` and `split` put into "of_whole"
# what is left out of the manifest that they chose from
_KEPT_OF_ALL = (*_KEPT, "folders", "omissions", "of_whole", "bad_of_whole", opening.READ_AS)


class Manifest(ImageTable):
    """The images of one data set, in the order of torchvision's ImageFolder or of the shards.

    Sample ids number the usable images from 0. An image with a problem has no id and is never
    loaded.

    Attributes:
        root: folder that the paths are relative to, or the URL of one, as text.
        classes: class names; a label is a place in this list.
    """

    @classmethod
    @checks_arguments(workers=(1, 2**12), max_pixels=(1, MOST_PIXELS))
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
        if file and targets.named:
            raise ConfigError(
                "a scan for targets is not cached; leave out cache, and save the manifest"
            )

        made = opening.scan(cls, root, check, file, unchanged)
        # for `save_index`: opening the index compares these with what is asked for
        made._known[opening.READ_AS] = opening.note_reading(targets, with_labels)
        return made._with_targets(root, targets, classes, verify)._finished(None, strict)

    @classmethod
    @checks_arguments(workers=(1, 2**12), max_pixels=(1, MOST_PIXELS))
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

        folder = Path(os.path.abspath(root or Path(file).parent))
        made = cls(
            *scan_table(absolute(file), folder, options, check), keypoints=targets.keypoints_named
        )
        made._known["omissions"] = opening.name_beside_parquet(absolute(file), made)
        made._known[opening.READ_AS] = opening.note_reading(targets, with_labels, options)
        return made._with_targets(file, targets, classes, verify)._finished(classes, strict)

    @classmethod
    @checks_arguments(workers=(1, 2**12), max_pixels=(1, MOST_PIXELS))
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

        check = ScanOptions(
            verify,
            max_pixels,
            workers,
            progress,
            Targets(bad_objects=bad_objects, flip_pairs=flip_pairs, annotated=annotated),
        )

        file = Path(os.path.abspath(annotations))
        folder = Path(os.path.abspath(root or file.parent))
        classes, table, keypoints, ids = scan_coco(file, folder, check)
        made = cls(folder, classes, table, keypoints=keypoints)

        made._known["boxes_upright"] = annotated == "upright"
        made._known |= {"category_ids": ids} | (
            {"flip_pairs": True} if flip_pairs is not None else {}
        )

        return made._finished(None, strict)

    @classmethod
    @checks_arguments(workers=(1, 2**12), max_pixels=(1, MOST_PIXELS))
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
        folders = (
            Path(os.path.abspath(local_path(images))),
            Path(os.path.abspath(local_path(masks))),
        )
        check_choice("annotated", annotated, ANNOTATED)

        check = ScanOptions(verify, max_pixels, workers, progress, Targets(annotated=annotated))
        root, table, omissions = scan_pairs(*folders, missing, check)
        made = cls(root, list(classes), table, omissions=omissions)

        made = made._with_mask_values(
            folders[1], check_mask_values("mask_values", mask_values), classes, verify
        )
        made._known["masks_upright"] = annotated == "upright"
        made._warn_of_turned(root, annotated)
        return made._finished(None, strict)

    @classmethod
    @checks_arguments()
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
        stored = saved.read(file)
        refuse_other_rules(file, stored.classes, stored.known)
        refuse_other_orientations(file, stored.root, stored.table, stored.known)

        # a Parquet file, which is not mapped
        if not stored.file:
            read = cls(
                stored.root,
                stored.classes,
                stored.table,
                keypoints=Keypoints.read(stored.known.get("keypoints")),
            )
            read._known = {
                name: stored.known[name] for name in _KEPT_OF_ALL if name in stored.known
            }
            return read

        usable, others = split_usable(stored.table)
        validate(others)
        return cls._of(
            absolute(stored.root),
            stored.classes,
            Samples(usable, (stored.file,)),
            others,
            stored.known,
        )

    @classmethod
    @checks_arguments(max_pixels=(1, MOST_PIXELS))
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
            asked = opening.note_reading(targets, with_labels, table)
            if indexed := opening.read_index(cls, str(source), asked):
                return indexed._finished(classes, strict)

        kind = opening.kind_of(source)
        if kind == "manifest":
            return cls.load(source)._finished(classes, strict)

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
            return read._finished(classes, strict)

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
            opening.cache_file(cache_dir, source, with_labels)
            if cache_dir and not targets.named
            else None
        )
        return cls.scan(source, cache=cache, unchanged=unchanged, **checks)

    def _refuse_without_objects(self, source: str | Path) -> None:
        """Raises ManifestError if a source has objects and usable images, but no usable object."""
        boxes = self._samples[TARGET + "boxes"] if self.has_target("boxes") else None
        if boxes is None or any(boxes.lengths(ids).any() for ids in self._samples.blocks()):
            return

        lost = [f"{name}: {why}" for name, why in [*self.dropped, *self.problems] if is_object(why)]
        if len(self):
            refuse_without_objects(source, lost)

    @property
    def has_turned_boxes(self) -> bool:
        """Whether an image that has objects is turned by its EXIF tag."""
        if not self.has_target("boxes"):
            return False
        boxes = self._samples[TARGET + "boxes"]
        return any(
            ((boxes.lengths(ids) > 0) & (self.take_orientations(ids) != 1)).any()
            for ids in self._samples.blocks()
        )

    def _warn_of_turned(self, source: str | Path, annotated: str | None) -> None:
        """Warns of turned images with objects or a mask, if no option says how they were annotated.

        A mask whose size fits only one way says so itself.
        """
        boxes = self._samples[TARGET + "boxes"] if self.has_target("boxes") else None
        if annotated is not None or not (boxes is not None or self.has_target("mask")):
            return

        turned: list[int] = []
        for ids in self._samples.blocks():
            orientation = self.take_orientations(ids)
            if boxes is not None:
                unsaid = boxes.lengths(ids) > 0
            else:
                height, width = self.take_sizes(ids).T
                # a mask of another size than the image is refused, so its size says how it was made
                unsaid = (orientation < 5) | (height == width)
            turned += ids[unsaid & (orientation != 1)].tolist()

        if turned:
            warn_of_turned(source, len(turned), self.name(turned[0]))

    def _with_targets(
        self, source: str | Path, targets: Targets, classes: Sequence[str] | None, verify: str
    ) -> Self:
        """Adds what is known of all objects and masks.

        Raises:
            ManifestError: no object is left, or the masks have other values than classes.
        """
        self._refuse_without_objects(source)
        self._warn_of_turned(source, targets.annotated)
        self._known["boxes_upright"] = targets.annotated == "upright" and targets.boxes is not None
        if targets.flip_pairs is not None:
            self._known["flip_pairs"] = True

        if not targets.mask:
            return self
        made = self._with_mask_values(source, targets.mask_values or {}, classes, verify)
        made._known["masks_upright"] = targets.annotated == "upright"
        return made

    def _with_mask_values(
        self,
        source: str | Path,
        becomes: dict[int, int],
        classes: Sequence[str] | None,
        verify: str,
    ) -> Self:
        """Adds the meaning of masks' values; images whose masks have other values become problems.

        Args:
            classes: the class names; they are those of the masks if the images have no labels.
        """
        of_masks = bool(classes) and not self.has_target("boxes") and not self.labels.size
        values = MaskValues(becomes, of_masks)
        self._known["mask_values"] = values.stored()
        if not len(self):
            return self

        # read all masks, or a few that are spread evenly
        every = verify == "full" and not self.is_fetched  # in a store each mask is a request
        ids = np.arange(0, len(self), 1 if every else -(-len(self) // LOOKED_AT))
        count = len(classes or ())
        problems, seen = look_at((self.mask_extent(each) for each in ids.tolist()), values, count)

        if len(problems) == len(ids):
            why = next(iter(problems.values()))
            raise ManifestError(
                f"{source}: {len(ids):,} masks were looked at, and none can be used; {why}"
            )

        if count and seen and min(seen) >= count:
            advice = "mask_values says which values are classes, such as {255: 1}"
            raise ManifestError(
                f"{source}: nothing but ignored values is in the {len(ids):,} masks that were "
                f"looked at; {advice}"
            )

        # masks of 0 and 255 often mean two classes, and 255 would be ignored without a word
        if seen == {0, IGNORED} and IGNORED not in {*becomes, *becomes.values()} and count != 1:
            ignored = (
                f"{source}: the {len(ids):,} masks that were looked at have 0 and {IGNORED} "
                f"alone, and {IGNORED} is ignored"
            )
            advice = (
                "mask_values={255: 1} makes 255 class 1, {255: 255} says that it is to be ignored"
            )
            if count == 2:
                raise ManifestError(f"{ignored}, so only {classes[0]!r} would be learned; {advice}")  # type: ignore[index]
            log.warning("%s by default; %s", ignored, advice)

        return self._with_problems({int(ids[at]): why for at, why in problems.items()})

    def _with_problems(self, problems: dict[int, str]) -> Self:
        """Makes these samples problems, by id."""
        if not problems:
            return self

        bad = replace_column(
            self.samples.take(pa.array(list(problems))),
            "problem",
            pa.array(list(problems.values())),
        )
        others = pa.concat_tables([self._others, bad.cast(self._others.schema)])

        left = np.setdiff1d(np.arange(len(self)), list(problems))
        return self._with(self._samples.select(left), others, keep=_KEPT_OF_ALL)

    def _finished(self, classes: Sequence[str] | None, strict: bool) -> Self:
        """Gives the manifest these classes, if any, and logs or refuses what is left out."""
        made = self if classes is None else self.with_classes(classes)
        made.tell_omissions(strict)
        return made

    def with_classes(self, classes: Sequence[str]) -> Self:
        """The same samples with these classes, such as the training images', and their numbers.

        Raises:
            ManifestError: an image has a class that is none of them.
        """
        given = list(classes)
        if given == self.classes:
            return self

        labels = (
            np.unique(self.labels[self.labels >= 0]) if self.task != "regression" else np.zeros(0)
        )
        # which values masks have is not known, so each class counts as used
        labels = np.arange(len(self.classes)) if self.mask_values.named else labels
        numbers = sets.number_as(given, self.classes, labels.astype(np.int64), self.root)
        return self._renumbered(numbers, given)

    @checks_arguments()
    def save(self, file: str | Path) -> None:
        """Writes the manifest, completely or not at all.

        NAME.arrow is for `load` to map; any other name is written as Parquet, which is smaller.

        Raises:
            ManifestError: a file of that name exists and is not a manifest; it is left unchanged.
        """
        # saved too, since computing them reads all rows
        known = self._known | {"fingerprint": self.fingerprint, "description": self._description}
        saved.write(
            Path(file), str(self.root), self.classes, self._samples.table(), self._others, known
        )

    def save_index(self) -> str:
        """Writes index.arrow beside the images, such as in their bucket; returns its path or URL.

        `open` finds it there, and uses it for those who ask for the same targets, or for none.

        Raises:
            ManifestError: it cannot be written there, or would hold no image.
        """
        return opening.write_index(self)

    def verify(self) -> None:
        """Reads all of a mapped file, and checks what `load` does not check.

        Raises:
            ManifestError: its rows cannot be of images, or do not have its fingerprint.
        """
        self._samples.validate(self._samples.whole.column_names)
        self._check()
        if self._known.get("fingerprint", now := self._digest()) != now:
            raise ManifestError(
                f"{self.root}: the manifest's rows are not those that it was saved with; scan "
                "the images again"
            )

    def __repr__(self) -> str:
        return (
            f"Manifest({str(self.root)!r}: {len(self):,} images, {len(self.classes):,} "
            f"classes, {len(self.problems):,} problems)"
        )

    def moved_to(self, root: str) -> Self:
        """The same samples under another folder or URL."""
        return self._of(root, self.classes, self._samples, self._others, self._known)

    def with_versions(self, versions: Mapping[str, FileVersion]) -> Self:
        """The same samples in shards that were moved or uploaded.

        Args:
            versions: the version of each shard by its name, as in `remote.list_objects`.
        """
        # `mtime_ns` holds the second half of a version, the time or a number made of the ETag
        times = np.array([versions[name][1] for name in self.shards.names], np.int64)[
            self.shards.numbers
        ]
        samples = Samples(
            replace_column(self.samples, "mtime_ns", pa.array(times)), self._samples.files
        )
        return self._with(samples, self._others, keep=_KEPT_OF_ALL)

    def without_columns(self, names: Sequence[str]) -> Self:
        """The same samples without some columns of the table, or some of the targets "text" and
        "mask".
        """
        targets = [
            TARGET + name
            for name in ("text", "mask", "mask_offset", "mask_bytes")
            if name.split("_")[0] in names
        ]
        left_out = {*targets, *(COLUMN + name for name in names)}
        made = self._changed(
            lambda table: table.drop_columns(
                [name for name in table.column_names if name in left_out]
            )
        )

        made._known.pop("mask_values" if "mask" in names else "", None)
        # an index with these rows would not be what its options say
        made._known.pop(opening.READ_AS, None)
        return made

    def subset(self, ids: NDArray[np.int64]) -> Self:
        """A manifest of these samples only, numbered anew in the given order.

        Raises:
            ConfigError: there is no such id, or these are not ids.
        """
        ids = np.asarray(ids)
        if ids.ndim != 1:
            raise ConfigError(
                f"subset takes a list of sample ids, not {ids.ndim} dimensions; of one image "
                "manifest.subset([ID])"
            )

        if ids.dtype.kind not in "iu" and ids.size:
            raise ConfigError(
                f"subset takes sample ids, not {ids.dtype}; of a mask np.flatnonzero makes ids"
            )

        ids = ids.astype(np.int64)
        if ids.size and not (ids.min() >= 0 and ids.max() < len(self)):
            raise ConfigError(
                f"subset: ids run from 0 to {len(self) - 1}, and one is "
                f"{ids.min() if ids.min() < 0 else ids.max()}"
            )

        # images with a problem have no id, so they are in no part
        return self._with(self._samples.select(ids), self._others[:0])

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
                f"filter is {shown(expression)}; it takes an expression as text, such as "
                "'width >= 224'"
            )
        return self._chosen(
            np.flatnonzero(self._rows.matching(expression).to_numpy(zero_copy_only=False))
        )

    @checks_arguments(seed=(0, LARGEST_SEED))
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
        return {
            name: self._chosen(ids) for name, ids in sets.parts(fractions, groups, seed).items()
        }

    def _chosen(self, ids: NDArray[np.int64]) -> Self:
        """Chooses these samples to stand for the whole.

        What is left out of the whole counts as left out of them too, for `strict` and limits.
        """
        made = self.subset(ids)
        of_whole = self.of_whole or self.omissions
        made._known |= {
            "bad_of_whole": list(self.bad_of_whole),
            "of_whole": [list(each) for each in of_whole],
        }
        return made

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
                f"concat is given {shown(other)}; it takes a list of manifests: "
                "Manifest.concat([one, other])"
            )
        if not manifests:
            raise ConfigError("concat joins at least one manifest, and there is none")

        root = sets.common_root([each.root for each in manifests])

        # what is known of all: each entry is joined, or refused if it differs
        known = sets.same_keypoints([each.keypoints for each in manifests])
        known |= {"flip_pairs": True} if all(each.names_flip_pairs for each in manifests) else {}
        known["omissions"] = merge(omission for each in manifests for omission in each.passed_over)
        # 0 if one is from version 0.2, which does not say what it left out
        known["rules"] = min(each.rules for each in manifests)

        # parts stand for the wholes that they were chosen from
        if any(each.of_whole for each in manifests):
            of_whole = merge(
                omission for each in manifests for omission in each.of_whole or each.omissions
            )
            bad, images = zip(*(each.bad_of_whole for each in manifests), strict=True)
            known |= {
                "of_whole": [list(each) for each in of_whole],
                "bad_of_whole": [sum(bad), sum(images)],
            }

        names, numbers = sets.joined_classes(
            [each.classes for each in manifests], classes == "apart"
        )
        # the ids of COCO's categories are kept if all manifests agree in them
        if all(
            each.classes == names and each.category_ids == manifests[0].category_ids
            for each in manifests
        ):
            known |= {"category_ids": manifests[0].category_ids}

        if len({each.masks_upright for each in manifests}) > 1:
            raise ManifestError(
                "manifests with masks of stored and of upright pictures cannot be joined; scan "
                "them alike"
            )
        known["masks_upright"] = manifests[0].masks_upright
        # boxes on images that are not turned fit both
        known["boxes_upright"] = sets.same_boxes(
            [each.boxes_upright for each in manifests if each.has_turned_boxes]
        )
        of_masks = [
            each.mask_values.renumbered(new) for each, new in zip(manifests, numbers, strict=True)
        ]
        known |= (
            sets.same_masks(of_masks) if any(each.has_target("mask") for each in manifests) else {}
        )

        def joined(tables: list[pa.Table]) -> pa.Table:
            each = zip(manifests, tables, numbers, strict=True)
            return sets.unified(
                [
                    sets.renumbered(sets.moved(table, manifest.root, root), new)
                    for manifest, table, new in each
                ]
            )

        files = tuple(file for each in manifests for file in each._samples.files)
        samples = Samples(joined([each.samples for each in manifests]), files)
        made = cls._of(root, names, samples, joined([each._others for each in manifests]), known)
        made._told = all(each._told for each in manifests)
        return made

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
            given = {name: share for name, (_, share) in sources.items()}
        except (AttributeError, TypeError, ValueError):
            raise ConfigError(
                'a mixture is made of names, manifests and shares: {"mine": (manifest, 0.3), …}'
            ) from None
        given = {
            name: float(check_number(f"the share of {name!r}", share, -math.inf, math.inf))
            for name, share in given.items()
        }
        if not given or min(given.values()) <= 0:
            raise ConfigError(f"the shares of the mixture are {given}; each must be positive")

        named = [
            each._changed(partial(sets.with_source, number=number))
            for number, (each, _) in enumerate(sources.values())
        ]
        made = cls.concat(named, classes=classes)

        made._known |= {
            "mixture": [mode, {name: share / sum(given.values()) for name, share in given.items()}]
        }
        return made

    @property
    def mixture(self) -> Mix | None:
        """The arguments of `mix`; parts of a mixture keep it. None: this is no mixture."""
        return Mix(*self._known["mixture"]) if "mixture" in self._known else None

    def map_classes(self, names: Mapping[str, str]) -> Self:
        """Renames classes; classes that get the same name become one, and others keep their names.

        Raises:
            ConfigError: there is no class of a name that is given.
        """
        for name in names:
            self._rows.class_numbers(name)  # raises for a class that there is not
        merged, numbers = sets.joined_classes(
            [[names.get(name, name) for name in self.classes]], False
        )
        return self._renumbered(numbers[0], merged)

    def _renumbered(self, numbers: NDArray[np.int64], classes: list[str]) -> Self:
        made = self._changed(partial(sets.renumbered, numbers=numbers), classes)
        if self.has_target("mask"):
            made._known["mask_values"] = self.mask_values.renumbered(numbers).stored()
        if self.category_ids is not None:
            made._known["category_ids"] = sets.renumbered_ids(
                self.category_ids, numbers, len(classes)
            )
        return made

    def _changed(
        self, change: Callable[[pa.Table], pa.Table], classes: list[str] | None = None
    ) -> Self:
        samples = Samples(change(self.samples), self._samples.files)
        return self._with(samples, change(self._others), classes, _KEPT_OF_ALL)

    def _with(
        self,
        samples: Samples,
        others: pa.Table,
        classes: list[str] | None = None,
        keep: Sequence[str] = _KEPT,
    ) -> Self:
        """A manifest of other samples of the same root.

        Args:
            keep: the entries of `_known` that it keeps.
        """
        kept = {name: self._known[name] for name in keep if name in self._known}
        made = self._of(
            self.root, self.classes if classes is None else classes, samples, others, kept
        )
        made._told = self._told
        return made

    @property
    def _rows(self) -> Rows:
        return Rows(self._samples, self.classes)
