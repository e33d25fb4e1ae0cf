"""Where the images are: the options, with their checks."""

from dataclasses import dataclass

from dali_pipes.errors import ConfigError

SPLITS = ("train", "val")


@dataclass(kw_only=True, slots=True)
class DataConfig:
    """Where the images are.

    Attributes:
        root: folder that holds train/ and val/.
        train, val: a folder with a subfolder for each class, a folder or URL of shards, a CSV or Parquet table of path and label,
            or a saved manifest; None: the folder of that name in `root`.
        label_separator: splits the labels of a table into several classes each, as ";" does in "cat;dog"; None: one name each.
        cache_dir: folder for cached scans; None: no cache.
        filter: only images that match, such as "width >= 224 and class in ('cat', 'dog')"; None: all.
        demo: `root` is the demo set, and it is made if it is not there.
    """

    root: str | None = None
    train: str | None = None
    val: str | None = None
    label_separator: str | None = None
    cache_dir: str | None = None
    filter: str | None = None
    demo: bool = False

    def source(self, split: str) -> str:
        """The folder, URL or file that names the images of "train" or "val"."""
        source = self.train if split == "train" else self.val
        if source is None and self.root is None:
            raise ConfigError(f"no images given; set data.{split}=DIR, a folder with a subfolder of images for each class")
        return source or f"{self.root}/{split}"
