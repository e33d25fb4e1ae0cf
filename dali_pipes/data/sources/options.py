"""`SourceOptions`: how a source of images is read, and which kinds of source take which option."""

import codecs
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from dali_pipes.checks import check_choice
from dali_pipes.data.image_files.headers import ScanOptions
from dali_pipes.data.objects import NO_TARGETS
from dali_pipes.errors import ConfigError
from dali_pipes.options import check_options, default_of, option

# what errors call each kind of source
KINDS = {
    "manifest": "a saved manifest",
    "coco": "a file of COCO's form",
    "csv": "a CSV",
    "parquet": "a Parquet table",
    "dataset": "a data set of Hugging Face",
    "images": "a folder or shards",
    "masks": "a folder of images with a folder of masks",
}
TASKS = ("classification", "regression")
MISSING = ("problem", "skip")
UNCHANGED = ("file", "folder")
ALL_SPLITS = "all"  # as `split`: the rows of every split
CHOSEN_SPLITS = ("train", "val", "test", "trainval", ALL_SPLITS)

TABLES = ("csv", "parquet", "dataset")  # the kinds that have columns
# the kinds that take each field of `Targets`; those that are not here are for tables and images
_OF_TARGETS = {
    "bad_objects": ("coco",),
    "flip_pairs": ("coco",),
    "mask_values": ("masks",),
    "annotated": ("coco", "masks"),
}
# in tables and shards: what is said of targets, by the targets of which one must be named
_DESCRIBES = {
    "targets.box_format": ("targets.boxes",),
    "targets.bad_objects": ("targets.boxes",),
    "targets.flip_pairs": ("targets.keypoints",),
    "targets.mask_values": ("targets.mask",),
    "targets.annotated": ("targets.boxes", "targets.mask"),
}


def check_delimiter(option: str, value: object) -> None:
    """Checks for one ASCII character that is no quote and no line end.

    "\\t", a backslash and a t, stands for a tab.
    """
    if value is None or value == "\\t":
        return
    if not isinstance(value, str) or len(value) != 1 or not value.isascii() or value in '"\r\n\0':
        raise ConfigError(f"{option} is {value!r}; it takes one ASCII character, such as ';'")


def check_encoding(option: str, value: Any) -> None:
    """Checks for the name of a text encoding that Python knows."""
    try:
        # Python also has codecs such as base64, which turn bytes into bytes
        is_text = value is None or codecs.lookup(value)._is_text_encoding
    except (LookupError, TypeError, ValueError):
        is_text = False
    if not is_text:
        wanted = "the name of an encoding of text, such as 'latin-1'"
        raise ConfigError(f"{option} is {value!r}; it takes {wanted}")


def check_separator(option: str, value: object) -> None:
    """Checks for a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ConfigError(
            f"{option} is {value!r}; it takes what is between two labels, such as ';'"
        )


def check_column(option: str, value: object) -> None:
    """Checks for the name of a column."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{option} is {value!r}; it takes the name of a column")


@dataclass(frozen=True, kw_only=True)
class SourceOptions(ScanOptions):
    """How a source is read. All kinds of source take the options that say nothing of kinds.

    Attributes:
        verify: "header" reads headers only; "full" also decodes every image, and so detects
            truncated ones. A saved manifest and an index are taken as they are.
        max_pixels: images with more are a problem; by default Pillow's limit against decompression
            bombs, which may be exceeded.
        bits: 16 takes PNG and TIFF of 16 bits a channel too, gray or RGB. Some loaders decode them,
            and only some transforms take them (docs/inputs.md).
        strict: whether an image or an object that is left out or in doubt is an error.
        classes: class names in the order of their numbers, such as those of the training images:
            the class folders that are read, the names in a table or of the numbers in shards, the
            masks' values from 0. A class without an image is allowed. None: those that are there,
            sorted.
        with_labels: False: no label is read, and none is needed. Of a folder all images are taken,
            and `task` is then "multilabel", with no class for any image.
        targets: what there is besides labels: docs/objects.md. With them labels may be missing;
            with boxes they are not read.
        cache_dir: folder for cached scans of folders and shards, one file for each root.
        cache: the file of one cached scan, such as train.arrow, which all processes of a machine
            then map and share; or .parquet. Images that have not changed since it was written are
            not read again, and the result is saved there.
        unchanged: what shows in a cached scan that an image is the one that was scanned before:
            "folder", the modification time of its folder, so that one look at each folder is
            enough; "file", its own size and modification time, which `scan` looks at by default. A
            file that is overwritten in its place does not change its folder.
        images: of a table or COCO file, the folder of the images that it names; None: the file's.
        split: of a table with a column of splits, the rows of this one: "train", "val", "test" or
            "trainval", whatever word the table has for it; "all": of all splits. Without it such a
            table is refused.
        path_column: of a table, the column of the paths; None: `path`. Of a data set of Hugging
            Face, the column of the images; None: the only one of the type Image.
        label_column: of a table, the column of the labels; None: `label`, or where the rows hold
            the images and have no such column the only one that `datasets` notes as a ClassLabel.
            Its names become the class names, and -1 is no label there.
        label_separator: of a table, splits a label that is text into several, as ";" does in
            "cat;dog"; None: it is one class name.
        delimiter: of a CSV, the character between the cells; None: the first of , ; tab and | by
            which the header has the column of paths.
        encoding: of a CSV, such as "latin-1"; None: UTF-8, or UTF-16 if the file begins with its
            byte-order mark.
        task: of a table, "classification": whole numbers are class numbers, also those written as
            1.0; "regression": all numbers are to be predicted; None: integers are class numbers,
            and fractions are to be predicted.
        masks: of a folder of images, the folder of their masks.
        missing: of a folder of masks, what becomes of an image without a mask, and of a mask
            without an image: "problem" lists it; "skip" passes it over.
        workers: processes that read; by default twice the number of cores, so that a slow disk is
            kept busy.
        progress: whether to show a progress bar on stderr.
    """

    strict: bool = False
    cache_dir: str | Path | None = option(None, kinds=("images",), is_refused=False)
    cache: str | Path | None = option(None, kinds=("images",))
    unchanged: str = option("folder", check_choice, UNCHANGED, kinds=("images",), is_refused=False)
    images: str | Path | None = option(None, kinds=("coco", "csv", "parquet"))
    split: str | None = option(None, check_choice, CHOSEN_SPLITS, kinds=TABLES)
    path_column: str | None = option(None, check_column, kinds=TABLES)
    label_column: str | None = option(None, check_column, kinds=TABLES)
    label_separator: str | None = option(None, check_separator, kinds=TABLES)
    delimiter: str | None = option(None, check_delimiter, kinds=("csv",))
    encoding: str | None = option(None, check_encoding, kinds=("csv",))
    task: str | None = option(None, check_choice, TASKS, kinds=TABLES)
    masks: str | Path | None = option(None, kinds=("masks",))
    missing: str = option("problem", check_choice, MISSING, kinds=("masks",))

    def __post_init__(self) -> None:
        check_options(self)
        if self.path_name == self.label_name:
            both = f"path_column and label_column are both {self.path_name!r}"
            raise ConfigError(f"{both}; name two columns")
        if self.cache and self.cache_dir:
            raise ConfigError("cache and cache_dir are both given; leave out one")

    @property
    def path_name(self) -> str:
        """The name of a table's column of paths."""
        return self.path_column or "path"

    @property
    def label_name(self) -> str:
        """The name of the column of labels."""
        return self.label_column or "label"

    @property
    def delimiters(self) -> tuple[str, ...]:
        """The delimiters that a CSV may have, in the order in which they are tried."""
        if self.delimiter is None:
            return (",", ";", "\t", "|")
        return ("\t",) if self.delimiter == "\\t" else (self.delimiter,)

    def list_given(self) -> dict[str, tuple[str, ...]]:
        """The options that not all kinds take and that differ from their defaults, with the kinds
        that take them; those of `targets` are "targets.NAME".
        """
        given = {
            each.name: each.metadata["kinds"]
            for each in fields(self)
            if "kinds" in each.metadata
            and each.metadata.get("is_refused", True)
            # the empty text of a command line names nothing
            and getattr(self, each.name) not in (default_of(each), "")
        }
        usual = asdict(NO_TARGETS)
        return given | {
            f"targets.{name}": (*TABLES, "images", *_OF_TARGETS.get(name, ()))
            for name, value in asdict(self.targets).items()
            if value != usual[name]
        }

    def list_untaken(self, source: object, kind: str) -> dict[str, str]:
        """The given options that a source of this kind does not take, and why.

        Args:
            source: what errors call it.
            kind: one of `KINDS`.
        """
        given = self.list_given()
        why = f"{source} is {KINDS[kind]}, which does not take it"
        untaken = {name: why for name, kinds in given.items() if kind not in kinds}
        if kind in (*TABLES, "images"):
            untaken |= {
                name: f"it says something of {' or '.join(needed)}, and none is named"
                for name, needed in _DESCRIBES.items()
                if name in given and given.keys().isdisjoint(needed)
            }
        return untaken

    def refuse_untaken(self, source: object, kind: str) -> None:
        """Raises ConfigError for an option that would change nothing of a source of this kind."""
        refuse(self.list_untaken(source, kind))

    def leave_out(self, untaken: Collection[str]) -> Self:
        """These options with the defaults of those that are named as in `list_given`."""
        usual = SourceOptions()
        own = {name: getattr(usual, name) for name in untaken if hasattr(usual, name)}
        named = [each.removeprefix("targets.") for each in untaken if each not in own]
        targets = replace(self.targets, **{name: getattr(NO_TARGETS, name) for name in named})
        return replace(self, **own, targets=targets)


def taken_by(name: str) -> set[str]:
    """The kinds of source that take an option."""
    (declared,) = (each for each in fields(SourceOptions) if each.name == name)
    return set(declared.metadata.get("kinds", KINDS))


def refuse(untaken: dict[str, str], prefix: str = "") -> None:
    """Raises ConfigError for options that would change nothing, if there are any.

    Args:
        untaken: the options, and why.
        prefix: what the user writes before their names.
    """
    for name, why in sorted(untaken.items()):
        raise ConfigError(f"{prefix}{name} would change nothing: {why}; leave it out")
