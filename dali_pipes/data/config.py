"""The options that say where the images are, and their checks.

They are the group `data` of a job's options; `images.open_images` makes the manifest from them.
"""

from dataclasses import dataclass, field

from dali_pipes.checks import check_choice, check_names
from dali_pipes.data.image_files.headers import MAX_PIXELS, check_bits, check_max_pixels
from dali_pipes.data.objects import Targets
from dali_pipes.data.sources.options import (
    MISSING,
    TASKS,
    check_column,
    check_delimiter,
    check_encoding,
)
from dali_pipes.errors import ConfigError
from dali_pipes.options import check_options, option

SPLITS = ("train", "val")


@dataclass(kw_only=True, slots=True)
class DataConfig:
    """Where the images are.

    Attributes:
        root: folder that holds train/ and val/.
        train, val: a folder with a subfolder for each class; a folder, URL or pattern of shards (in
            quotes, 'data.train=DIR/train-*'); a CSV or Parquet table of path and label; a JSON file
            of COCO's form; or a saved manifest; with masks any folder; None: the folder of that
            name in `root`.
        train_images, val_images: folder of the images that a table or COCO file names; None: the
            file's.
        train_masks, val_masks: folder of masks, each of the name of an image in `train` or `val`;
            None: none, or as in `targets`.
        classes: class names in the order of their numbers: the class folders that are read, the
            names of a table or of shards, the masks' values from 0; []: those that are there.
        missing: "problem" lists images and masks without the other, "skip" passes them over.
        targets: what tables and shards hold besides labels.
        path_column, label_column: the columns of a table that have the paths and the labels; None:
            `path` and `label`.
        label_separator: splits the labels of a table into several classes each, as ";" does in
            "cat;dog"; None: one name each.
        delimiter: what separates the cells of a CSV; None: the first of , ; tab and | by which the
            header has the column of paths.
        encoding: encoding of a CSV, such as latin-1; None: UTF-8, or UTF-16 if the file begins with
            its byte-order mark.
        task: what a table's numbers are for, "classification" or "regression"; None: integers are
            class numbers, fractions are predicted.
        max_pixels: images with more are not used; above Pillow's own limit of 89 million, if asked.
        labels: false: images need no label, and none is read.
        bits: 16 takes PNG and TIFF of 16 bits a channel too, which only some loaders decode.
        cache_dir: folder for cached scans; None: no cache.
        filter: only images that match, such as "width >= 224 and class in ('cat', 'dog')"; None:
            all.
        demo: `root` is the demo set; dali-pipes makes it before a job starts, if it is not there.
    """

    root: str | None = None
    train: str | None = None
    val: str | None = None
    train_images: str | None = None
    val_images: str | None = None
    train_masks: str | None = None
    val_masks: str | None = None
    classes: list[str] = option(list, check_names)
    missing: str = option("problem", check_choice, MISSING)
    targets: Targets = field(default_factory=Targets)
    path_column: str | None = option(None, check_column)
    label_column: str | None = option(None, check_column)
    label_separator: str | None = None
    delimiter: str | None = option(None, check_delimiter)
    encoding: str | None = option(None, check_encoding)
    task: str | None = option(None, check_choice, TASKS)
    max_pixels: int = option(MAX_PIXELS, check_max_pixels)
    labels: bool = True
    bits: int = option(8, check_bits)
    cache_dir: str | None = None
    filter: str | None = None
    demo: bool = False

    def __post_init__(self) -> None:
        check_options(self)

    def source(self, split: str) -> str:
        """The folder, URL or file that names the images of "train" or "val"."""
        source = self.train if split == "train" else self.val
        if not source and not self.root:
            raise ConfigError(
                f"no images given; set data.{split}=DIR, a folder with a subfolder of images "
                "for each class"
            )
        return source or f"{self.root}/{split}"
