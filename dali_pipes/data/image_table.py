"""`ImageTable`: what is known of each image before it is decoded, and where its bytes are, by
sample id.

It is the part of a manifest that loaders use, and what the readers of sources return. Its rows are
in an Arrow table, which may be mapped from a file that all processes of a machine share, so:

- `take_…(ids)` copy what is asked for of some samples, and check it;
- `extent` and `mask_extent` say where the bytes of one sample are, and
  `shards` which samples are in the same file;
- `labels`, `sizes` and `bytes_each` are copies of whole columns, for small sets;
- `problems`, `dropped` and `omissions` say what is not used;
- `select`, `map_tables`, `mark_problems` and `with_…` return another table.
"""

import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.data import omissions
from dali_pipes.data.arrow_types import null_count
from dali_pipes.data.facts import ManifestFacts
from dali_pipes.data.labels.reader import task_of
from dali_pipes.data.objects import TARGET, Objects
from dali_pipes.data.omissions import Omission
from dali_pipes.data.own_columns import COLUMN, is_numeric
from dali_pipes.data.places import ImagePlaces
from dali_pipes.data.reader import Extent
from dali_pipes.data.shards.addresses import absolute
from dali_pipes.data.shards.listing import FileVersion
from dali_pipes.data.table.digest import digest
from dali_pipes.data.table.samples import OwnColumns, Samples, take_objects
from dali_pipes.data.table.schema import are_wide, own_columns, replace_column, split_usable
from dali_pipes.data.turns import turn_sizes
from dali_pipes.errors import ManifestError
from dali_pipes.options import check_arguments

_MOST_SAMPLED = 100_000  # samples, from which statistics of sizes are taken


@dataclass(frozen=True, eq=False, repr=False)
class ImageTable(ImagePlaces):
    """The images of one data set.

    Sample ids number the usable images from 0; an image with a problem has no id and is never
    loaded.

    Attributes:
        classes: class names; a label is a place in this list.
        others: the rows of the images that cannot be used.
        facts: what is known of the images as a whole.

    Raises:
        ManifestError: the classes are no names, or a cell is empty.
    """

    classes: list[str]
    others: pa.Table
    facts: ManifestFacts

    def __post_init__(self) -> None:
        if not isinstance(self.classes, list) or not all(
            isinstance(name, str) for name in self.classes
        ):
            raise ManifestError(
                f"{self.root}: the manifest's class names are not a list of strings; scan the "
                "images again"
            )

        table = self.rows.whole
        if nulls := [
            name for name in table.column_names if name != "problem" and null_count(table[name])
        ]:
            raise ManifestError(
                f"{self.root}: the manifest has empty cells in {', '.join(nulls)}; scan the images "
                "again"
            )

    @classmethod
    @check_arguments()
    def from_rows(
        cls,
        root: str | Path,
        classes: list[str],
        table: pa.Table,
        facts: ManifestFacts | None = None,
    ) -> Self:
        """Divides rows into usable images and others, and checks them.

        Args:
            table: every image, usable or not, with the columns of `table.schema.SCHEMA` and further
                ones, "column:NAME" and "target:NAME" (data/objects.py).
            facts: None: nothing is known.

        Raises:
            ManifestError: the table cannot be of images.
        """
        # in one chunk, where a row is found without a search for its chunk
        usable, others = split_usable(table.combine_chunks())
        # a fact of its own, so that a loader need not read a mapped file's formats to know it
        facts = replace(facts or ManifestFacts(), has_wide=_any_wide(usable["format"]))
        images = cls(absolute(root), Samples(usable), classes, others, facts)
        images.check()
        return images

    @property
    def table(self) -> pa.Table:
        """Every image, the usable ones by id, then the others.

        The columns are those of `table.schema.SCHEMA`, "column:NAME" and "target:NAME".
        """
        return pa.concat_tables([self.rows.table(), self.others])

    @cached_property
    def task(self) -> str:
        """What the labels are: "classification", "multilabel" or "regression".

        That is one class, any number of classes, or numbers for each image.
        """
        return task_of(self.rows.whole["label"].type)

    def describe(self) -> dict[str, Any]:
        """What a result records about its images.

        That is the fingerprint, the count, the mean KiB of a file, and the median height and width.
        """
        return {"fingerprint": self.fingerprint, **self.description}

    @cached_property
    def description(self) -> dict[str, Any]:
        """`describe` without the fingerprint."""
        # a saved file has it, so that opening does not read all rows
        return self.facts.description or {
            "images": len(self),
            "mean_kib": round(self.bytes_in_all / len(self) / 1024, 1) if len(self) else 0.0,
            "median_size": np.median(self.sizes, axis=0).tolist() if len(self) else [0.0, 0.0],
        }

    def take_labels(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        """The labels of these samples.

        Returns:
            (N,) int64 class numbers; (N, L) int64 for several classes, filled up with -1; (N,) or
            (N, K) float32 numbers to predict.

        Raises:
            ManifestError: a label is no class.
        """
        task = self.task
        if task == "regression":
            return self.rows.numbers("label", ids)

        several = task == "multilabel"
        labels = (
            self.rows.matrix("label", ids, fill=-1) if several else self.rows.numbers("label", ids)
        )

        # -1 is right only as the filling of several
        if labels.size and not (-several <= labels.min() and labels.max() < len(self.classes)):
            raise ManifestError(
                f"{self.root}: the manifest has labels outside its {len(self.classes)} "
                "classes; scan again"
            )

        return labels.astype(np.int64)

    def take_sizes(self, ids: NDArray[np.int64], *, upright: bool = False) -> NDArray[np.int64]:
        """(N, 2) heights and widths in pixels, as stored.

        Args:
            upright: whether they are those of the image once it is turned by its EXIF orientation.

        Raises:
            ManifestError: an image has no size.
        """
        sizes = np.stack(
            [self.rows.numbers("height", ids), self.rows.numbers("width", ids)], axis=1
        ).astype(np.int64)
        if sizes.min(initial=1) < 1:
            raise ManifestError(
                f"{self.root}: the manifest has usable images without a size; scan the images again"
            )

        if not upright:
            return sizes
        return turn_sizes(sizes, self.rows.numbers("orientation", ids))

    def take_columns(self, ids: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """The numbers in the table's own columns, each (N,) or (N, K) of int64, float32 or bool."""
        return {name: self.rows.numbers(COLUMN + name, ids) for name in self.numeric_columns}

    @cached_property
    def numeric_columns(self) -> list[str]:
        """The names of the columns that `take_columns` returns."""
        table = self.rows.whole
        return [
            name.removeprefix(COLUMN) for name in own_columns(table) if is_numeric(table[name].type)
        ]

    def has_target(self, name: str) -> bool:
        """Whether there is this column of targets, such as "boxes" or "mask" (data/objects.py)."""
        return TARGET + name in self.rows.whole.column_names

    def take_objects(self, ids: NDArray[np.int64]) -> Objects | None:
        """The objects of these samples, in pixels as stored; None: this manifest has no boxes.

        Raises:
            ManifestError: their columns do not belong together, or a label is no class.
        """
        if not self.has_target("boxes"):
            return None
        ids = np.asarray(ids, np.int64)
        names = self.facts.keypoints.names if self.facts.keypoints else []
        return take_objects(self.rows, ids, names, len(self.classes), self.root)

    def take_texts(self, name: str, ids: NDArray[np.int64]) -> list[str]:
        """The texts of these samples in a column of targets, such as "text"."""
        texts: list[str] = self.rows.take(TARGET + name, ids).to_pylist()
        return texts

    def take_orientations(self, ids: NDArray[np.int64]) -> NDArray[np.int8]:
        """(N,) int8, the EXIF orientations, 1 to 8."""
        return self.rows.numbers("orientation", ids)

    @cached_property
    def has_wide(self) -> bool:
        """Whether a sample has 16 bits a channel."""
        # a part of such images need not have one
        return self.facts.has_wide and _any_wide(self.rows.column("format"))

    def take_wide(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(N,) which of these samples have 16 bits a channel."""
        wide: NDArray[np.bool_] = are_wide(self.rows.take("format", ids)).to_numpy(False)
        return wide

    @cached_property
    def has_turned_boxes(self) -> bool:
        """Whether an image that has objects is turned by its EXIF tag."""
        if not self.has_target("boxes"):
            return False
        return any(
            (self.take_orientations(ids[self.rows.lengths(TARGET + "boxes", ids) > 0]) != 1).any()
            for ids in self.rows.blocks()
        )

    def mask_size(self, sample_id: int) -> tuple[int, int]:
        """The height and width in pixels that one sample's mask must have."""
        ((height, width),) = self.take_sizes(
            np.array([self._row(sample_id)]), upright=self.facts.masks_upright
        ).tolist()
        return height, width

    def mask_extent(self, sample_id: int) -> Extent | None:
        """Where one sample's encoded mask is; None: it has none."""
        sample_id = self._row(sample_id)
        # a file of its own, or else a part of the image's shard
        if self.has_target("mask") and (path := self.rows.text(TARGET + "mask", sample_id)):
            return Extent(self._file(path))

        if not self.has_target("mask_bytes") or not (
            size := self.rows.number(TARGET + "mask_bytes", sample_id)
        ):
            return None

        image, offset = (
            self.extent(sample_id),
            self.rows.number(TARGET + "mask_offset", sample_id),
        )
        # the name of the member only serves messages
        return image._replace(member=f"{image.member} (its mask)", offset=offset, length=size)

    @cached_property
    def labels(self) -> NDArray[Any]:
        """All labels by sample id, in the forms of `take_labels`.

        It is a copy; for many images, take what is needed with `take_labels`.
        """
        return self.take_labels(np.arange(len(self)))

    @cached_property
    def columns(self) -> Mapping[str, NDArray[Any] | pa.Array]:
        """The table's own columns by sample id, each made when it is asked for.

        Numbers, which batches have too, are NumPy arrays, (n,) or (n, K) of int64, float32 or bool.
        Text and lists of numbers are Arrow arrays.
        """
        return OwnColumns(self.rows)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """(n, 2) heights and widths by sample id, in pixels as stored.

        It is a copy, as `labels` is.
        """
        return self.take_sizes(np.arange(len(self)))

    def take_jpegs(self, ids: NDArray[np.int64]) -> NDArray[np.bytes_]:
        """(N,) how each JPEG is coded, such as b"4:2:0 progressive" (`Header.jpeg`); b"" for other
        formats.
        """
        texts = self.rows.matrix("jpeg", ids)
        width = texts.shape[1]
        return texts.view(f"S{width}")[:, 0] if width else np.zeros(len(ids), np.bytes_)

    @cached_property
    def some_sizes(self) -> NDArray[np.int64]:
        """(N, 2) heights and widths in pixels of the samples of `some_ids`."""
        return self.take_sizes(self.some_ids)

    @property
    def some_ids(self) -> NDArray[np.int64]:
        """(N,) 100,000 samples at most, spread evenly over all, which are enough for statistics."""
        # every k-th sample, with k rounded up; a set without samples needs a k too
        return np.arange(0, len(self), -(-len(self) // _MOST_SAMPLED) or 1)

    def take_bytes(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """(N,) sizes of these encoded images."""
        return self.rows.numbers("bytes", ids)

    @cached_property
    def bytes_each(self) -> NDArray[np.int64]:
        """(n,) sizes of the encoded images by sample id.

        It is a copy, as `labels` is.
        """
        return self.take_bytes(np.arange(len(self)))

    @cached_property
    def bytes_in_all(self) -> int:
        """The size in bytes of all usable images as they are encoded."""
        return sum(int(self.rows.numbers("bytes", ids).sum()) for ids in self.rows.blocks())

    @cached_property
    def problems(self) -> list[tuple[str, str]]:
        """(path, problem) of every image that is not used.

        The path of an image in a shard is SHARD/MEMBER.
        """
        # the other rows may be in the same mapped file
        self.rows.check()
        columns = zip(
            *(self.others[name].to_pylist() for name in ("path", "member", "problem")), strict=True
        )
        return [
            (os.fsdecode(path + b"/" + member if member else path), why)
            for path, member, why in columns
        ]

    @cached_property
    def dropped(self) -> list[tuple[str, str]]:
        """(path, what was wrong) of every object that was left out of an image that is used."""
        if not self.has_target("dropped"):
            return []
        lines = self.rows.column(TARGET + "dropped")
        ids = np.flatnonzero(pc.not_equal(lines, "").to_numpy())
        texts = zip(ids.tolist(), lines.take(pa.array(ids)).to_pylist(), strict=True)
        return [
            (self.name(sample_id), line) for sample_id, text in texts for line in text.splitlines()
        ]

    @cached_property
    def omissions(self) -> list[Omission]:
        """What is left out, by kind, and what is used in doubt.

        That is files that no scan reads, images with a problem, and objects that were dropped;
        doubts are of all images together. A part of a manifest (`subset`, `filter`, `split`) has
        only those of its own images.
        """
        problems = omissions.count_problems(self.problems)
        dropped = omissions.count_problems(self.dropped, "object")
        return omissions.merge([*self.passed_over, *problems, *dropped, *(self.facts.doubts or ())])

    @cached_property
    def passed_over(self) -> list[Omission]:
        """The omissions that have no row: what a scan did not read."""
        return [*omissions.merge_folders(self.facts.folders), *self.facts.omissions]

    @cached_property
    def bad_images(self) -> int:
        """The number of images that cannot be used."""
        return len(self.others)

    @cached_property
    def of_whole(self) -> list[Omission]:
        """What is left out of the images from which `filter` or `split` chose these."""
        return self.facts.parent_omissions

    @property
    def omissions_in_all(self) -> list[Omission]:
        """What `strict` looks at: of a part also what is left out of its whole."""
        if not self.of_whole:
            return self.omissions
        return omissions.merge([*self.of_whole, *(self.facts.doubts or ())])

    @cached_property
    def bad_of_whole(self) -> tuple[int, int]:
        """How many images cannot be used, and how many there are.

        They are counted among the images from which these were chosen, if they were.
        """
        return self.facts.parent_bad_images or (self.bad_images, len(self) + self.bad_images)

    @check_arguments(max_bad_fraction=(0, 1))
    def refuse_bad_images(self, max_bad_fraction: float) -> None:
        """Raises ManifestError if more than this share of all images cannot be used."""
        bad, images = self.bad_of_whole
        if bad > max_bad_fraction * images:
            some = self.problems[:3]
            first = ", ".join(f"{path} ({omissions.kind_of(why)})" for path, why in some)
            # a part has none of its whole's problems, but knows of their kinds
            of_whole = [each for each in self.of_whole if each.unit == "image"]
            first = first or ", ".join(f"{each.number:,} × {each.kind}" for each in of_whole[:3])
            raise ManifestError(
                f"{self.root}: {bad:,} of {images:,} images cannot be used, more than "
                f"max_bad_fraction={max_bad_fraction:g} "
                f"allows: {first}{', …' if bad > 3 else ''}; correct or remove them, or "
                "set a larger max_bad_fraction"
            )

    def refuse_omissions(self) -> None:
        """Raises OmissionError if an image or an object is left out or in doubt."""
        omissions.refuse(self.root, len(self), self.omissions_in_all)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the usable images' names, labels, heights, widths and own columns.

        It does not depend on the root.
        """
        return self.facts.fingerprint or self.compute_fingerprint()

    def compute_fingerprint(self) -> str:
        """The fingerprint as the rows give it, whatever a file says."""
        return digest(self.classes, self.rows, self.take_labels, self.take_sizes)

    @check_arguments(block=(1, 2**48))
    def name_sums(self, block: int) -> list[int]:
        """CRC-32 of the names of every `block` images, one after the other.

        They do not depend on the root. Ranks compare them to notice that one loads other images.
        """
        blocks = (
            np.arange(first, min(first + block, len(self))) for first in range(0, len(self), block)
        )
        return [
            zlib.crc32(
                b"".join(self.rows.values(name, ids)[0].tobytes() for name in ("path", "member"))
            )
            for ids in blocks
        ]

    def check(self) -> None:
        """Checks what a loader relies on, whatever program wrote the table."""
        for ids in self.rows.blocks():
            self.take_labels(ids)
            self.take_sizes(ids)
            self.take_objects(ids)

        self.check_places()

    def with_facts(self, **facts: Any) -> Self:
        """The same images, with further facts."""
        return replace(self, facts=replace(self.facts, **facts))

    @check_arguments()
    def moved_to(self, root: Path | str) -> Self:
        """The same images under another folder or URL."""
        return replace(self, root=root)

    def with_versions(self, versions: Mapping[str, FileVersion]) -> Self:
        """The same images in shards of other versions, by the name of the shard."""
        # `mtime_ns` holds the second half of a version, the time or a number made of the ETag
        times = np.array([versions[name][1] for name in self.shards.names], np.int64)[
            self.shards.numbers
        ]
        table = replace_column(self.rows.table(), "mtime_ns", pa.array(times))
        return replace(
            self,
            rows=Samples(table, self.rows.files),
            facts=self.facts.of_same_samples(),
        )

    def select(self, ids: NDArray[np.int64]) -> Self:
        """These samples only, numbered anew in the given order."""
        # images with a problem have no id, so they are in no part
        return replace(
            self,
            rows=self.rows.select(ids),
            others=self.others[:0],
            facts=self.facts.of_part(),
        )

    def map_tables(
        self, change: Callable[[pa.Table], pa.Table], classes: list[str] | None = None
    ) -> Self:
        """The same images with other columns or cells.

        Args:
            change: makes a table of the same rows; it is called for usable images and for others.
            classes: None: the same.
        """
        return replace(
            self,
            classes=self.classes if classes is None else classes,
            rows=Samples(change(self.rows.table()), self.rows.files),
            others=change(self.others),
            facts=self.facts.of_same_samples(),
        )

    def mark_problems(self, problems: Mapping[int, str]) -> Self:
        """The same images, some of which cannot be used any more.

        Args:
            problems: what is wrong, by id.
        """
        if not problems:
            return self

        bad = replace_column(
            self.rows.table().take(pa.array(list(problems))),
            "problem",
            pa.array(list(problems.values())),
        )
        left = np.setdiff1d(np.arange(len(self)), list(problems))
        return replace(
            self,
            rows=self.rows.select(left),
            others=pa.concat_tables([self.others, bad.cast(self.others.schema)]),
            facts=self.facts.of_same_samples(),
        )


def _any_wide(formats: pa.ChunkedArray) -> bool:
    return bool(pc.any(are_wide(formats)).as_py())
