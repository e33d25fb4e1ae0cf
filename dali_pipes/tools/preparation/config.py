"""Options of dali-pipes prepare."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from dali_pipes.checks import check_choice, check_min, check_range
from dali_pipes.data.sources.hugging_face import embedded_files
from dali_pipes.errors import ConfigError
from dali_pipes.measure.config import MeasureConfig
from dali_pipes.options import option

T = TypeVar("T")
MERGE = "merge"


@dataclass(frozen=True, slots=True)
class Part:
    """The part of the work that one of several independent processes does; by default all of it.

    Attributes:
        name: stands in the names of the part's files; empty for all of the work and for merging.
        index, count: which of how many parts it is, from 0.
        merges: whether it is the last step, after all parts.
    """

    name: str = ""
    index: int = 0
    count: int = 1
    merges: bool = False

    @classmethod
    def read(cls, text: str) -> "Part":
        """Reads the value of `part=`.

        Raises:
            ConfigError: it is neither such as 2/8 nor "merge".
        """
        if text == MERGE:
            return cls(merges=True)

        numbers = re.fullmatch(r"(\d+)/(\d+)", text)
        if not numbers or not 1 <= int(numbers[1]) <= int(numbers[2]):
            raise ConfigError(
                f"part is {text}; it takes 1/8 to 8/8 for eight processes, and merge when all "
                "of them have ended"
            )

        index, count = int(numbers[1]), int(numbers[2])
        return cls(f"-{index}-of-{count}", index - 1, count)

    def of(self, items: Sequence[T]) -> Sequence[T]:
        return items[self.index :: self.count]


QUALITY = 90


@dataclass(kw_only=True, slots=True)
class PrepareConfig(MeasureConfig):
    """dali-pipes prepare. docs/prepare.md explains what is done to an image.

    Attributes:
        source: "images", those of `data`; "parquet", the same, whose `data.train` or `data.val`
            names Parquet files; "cifar10" or "cifar100", the binary version in `archive`.
        archive: the .tar.gz as it was downloaded.
        sha256: of the archive; None: that of the official one.
        out: folder for train/ and val/, whichever is given.
        to: "folder", with a subfolder for each class, or "shards", tars of JPEGs and labels.
        drop: what is left out besides images and labels: "text", "mask", names of columns. Shards
            can keep all, folders cannot.
        resize: maximum length of the shorter side, in pixels; None: unchanged.
        quality: of the JPEGs, 1 to 100; None: 90 if `resize` is given, else nothing is encoded and
            the bytes are unchanged.
        exif: "keep" leaves the pixels as stored and keeps the orientation as a tag; "apply" turns
            them upright.
        shard_mib: maximum size of a shard, unless a single image is larger; with `resize` or
            `quality`, of the images before.
        engine: "local", the cores of this machine; "ray", a Ray cluster (RAY_ADDRESS) or Ray on
            this machine, for `to=shards`.
        part: 1/8 to 8/8, one of eight processes that may run at the same time, as an array job's
            do; "merge" afterwards. None: all.
        eval_transform: besides `transform`, for the comparison of `agreement_images` of each split
            before and after.
        measure: also measure the loader's gain, before against after, in rounds; otherwise only
            sizes and pixels are reported.
        report: folder for the measurement; a subfolder is made for each.
    """

    # they are of the measurement
    SELDOM: ClassVar = ("workload", "batch_size", "transform.size", "loader.num_threads", "pairs")

    source: str = option("images", check_choice, ("images", "parquet", "cifar10", "cifar100"))
    archive: str | None = None
    sha256: str | None = None
    out: str | None = None
    to: str = option("folder", check_choice, ("folder", "shards"))
    drop: list[str] = field(default_factory=list)
    resize: int | None = option(None, check_min, 1)
    quality: int | None = option(None, check_range, 1, 100)
    exif: str = option("keep", check_choice, ("keep", "apply"))
    shard_mib: int = option(256, check_min, 1)
    engine: str = option("local", check_choice, ("local", "ray"))
    part: str | None = None
    eval_transform: Any = None
    measure: bool = False
    report: str = "runs/prepare"

    def __post_init__(self) -> None:
        MeasureConfig.__post_init__(self)
        if self.out is None:
            raise ConfigError("no output folder given; set out=DIR")
        _ = self.work  # refuses what is no part

        if self.source == "parquet":
            self._check_parquet()
        if self.source in ("images", "parquet"):
            # from here on Parquet files with images are images like any others
            self.source = "images"
            self._check_images()
        else:
            self._check_archive()

    @property
    def work(self) -> Part:
        """The part of the work that `part` names."""
        return Part() if self.part is None else Part.read(self.part)

    @property
    def encodes(self) -> bool:
        """Whether images are decoded and encoded again as JPEG, or copied unchanged."""
        return self.resize is not None or self.quality is not None

    def _check_parquet(self) -> None:
        for split in ("train", "val"):
            folder = (
                Path(self.data.source(split))
                if self.data.root or getattr(self.data, split)
                else None
            )
            if folder and folder.exists() and not embedded_files(folder):
                raise ConfigError(
                    f"source=parquet: no Parquet file with images in {folder}; for other "
                    "images leave source out"
                )

    def _check_images(self) -> None:
        if self.archive is not None or self.sha256 is not None:
            raise ConfigError(
                "archive and sha256 belong to source=cifar10 and source=cifar100; for images "
                "set data.train=DIR"
            )
        if self.to == "folder" and not self.encodes:
            raise ConfigError(
                "nothing to do: resize=N makes the images smaller, quality=Q makes JPEGs "
                "of them, to=shards packs them"
            )

        if self.exif == "apply" and not self.encodes:
            raise ConfigError(
                "exif=apply turns pixels, and without resize or quality the bytes are not "
                "changed; give quality=Q"
            )

        if self.engine == "ray" and self.to != "shards":
            raise ConfigError("engine=ray writes shards; add to=shards, or leave engine out")
        if self.engine == "ray" and find_spec("ray") is None:
            raise ConfigError("engine=ray needs Ray; pip install 'dali_pipes[ray]'")

        if self.measure and self.part:
            raise ConfigError("measure=true measures all images; leave part out")
        if self.measure and self.to == "shards":
            raise ConfigError(
                "measure=true compares two folders; prepare with to=folder to measure what "
                "smaller images gain"
            )

    def _check_archive(self) -> None:
        if self.archive is None:
            raise ConfigError(
                f"source={self.source} needs the archive: "
                f"archive={self.source.replace('r1', 'r-1')}-binary.tar.gz"
            )
        if self.sha256 is not None and not re.fullmatch("[0-9a-fA-F]{64}", self.sha256):
            raise ConfigError(f"sha256 is {self.sha256!r}; it takes 64 hexadecimal digits")

        if (
            self.to == "shards"
            or self.encodes
            or self.measure
            or self.exif != "keep"
            or self.part
            or self.engine != "local"
        ):
            raise ConfigError(
                f"source={self.source} writes PNGs of the pixels as they are; resize, "
                "quality, exif, to, part, engine and measure are for source=images, so run "
                "dali-pipes prepare once more on the folder that this makes"
            )

        if self.data.root or self.data.train or self.data.val:
            raise ConfigError(
                f"source={self.source} takes its images from the archive; leave data.root, "
                "data.train and data.val out"
            )
