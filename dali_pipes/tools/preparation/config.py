"""Options of dali-pipes prepare."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, ClassVar, TypeVar

from dali_pipes.checks import check_choice, check_int
from dali_pipes.data.config import DataConfig
from dali_pipes.errors import ConfigError
from dali_pipes.options import check_options, option

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
class PrepareConfig:
    """dali-pipes prepare. docs/prepare.md explains what is done to an image.

    Attributes:
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
        transform, eval_transform: by which `agreement_images` images of each split are compared
            before and after, as a network sees them in training and in evaluation.
        agreement_images: how many; 0: none.
        seed: for the choice of these images, and for the random numbers of `transform`.
        overrides: what was given on the command line.
    """

    SELDOM: ClassVar = ("transform.size",)

    data: DataConfig = field(default_factory=DataConfig)
    out: str | None = None
    to: str = option("folder", check_choice, ("folder", "shards"))
    drop: list[str] = field(default_factory=list)
    resize: int | None = option(None, check_int, 1)
    quality: int | None = option(None, check_int, 1, 100)
    exif: str = option("keep", check_choice, ("keep", "apply"))
    shard_mib: int = option(256, check_int, 1)
    engine: str = option("local", check_choice, ("local", "ray"))
    part: str | None = None
    transform: Any = None
    eval_transform: Any = None
    agreement_images: int = option(128, check_int, 0)
    seed: int = option(0, check_int, 0, 2**63 - 1)
    overrides: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_options(self)
        if self.out is None:
            raise ConfigError("no output folder given; set out=DIR")
        _ = self.work  # refuses what is no part
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

    @property
    def work(self) -> Part:
        """The part of the work that `part` names."""
        return Part() if self.part is None else Part.read(self.part)

    @property
    def encodes(self) -> bool:
        """Whether images are decoded and encoded again as JPEG, or copied unchanged."""
        return self.resize is not None or self.quality is not None
