"""Transforms: size, dtype, layout, normalization, crop and augmentation, with the checks of their options."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dali_pipes.errors import (
    ConfigError,
    OptionError,
    check_choice,
    check_int,
    check_options,
    check_ordered_pair,
    check_range,
    option,
)
from dali_pipes.plan.augment.augmenter import Augmenter
from dali_pipes.plan.geometry import Geometry, padded_crop, random_resized_crop, resize_center_crop
from dali_pipes.plan.philox import Draws

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "uint8": "uint8"}  # the names in PyTorch and TensorFlow


def _check_colors(option: str, values: Sequence[float]) -> tuple[float, ...]:
    """As a tuple; YAML has lists only."""
    if len(values) != 3:
        raise ConfigError(f"{option} is {list(values)}; it takes three numbers, for red, green and blue")
    return tuple(values)


def _check_positive_colors(option: str, values: Sequence[float]) -> tuple[float, ...]:
    if not all(0 < value < float("inf") for value in values):
        raise ConfigError(f"{option} is {list(values)}; it must be positive")
    return _check_colors(option, values)


@dataclass(kw_only=True, slots=True)
class Transform(ABC):
    """Size, dtype, layout and normalization of the delivered images; the base of all transforms.

    Attributes:
        size: height and width of the images, in pixels.
        mean, std: per channel, of values in [0, 1]; not applied to uint8.
        dtype: "fp32", "fp16", "bf16" (fp32 rounded once, to nearest), or "uint8" (0 … 255, not normalized).
        memory_format: PyTorch's "contiguous" or "channels_last"; the shape is (N, 3, size, size) in both.
        exif: "ignore" takes the pixels as stored, as torchvision's ImageFolder does; "apply" turns them upright.
    """

    size: int = option(224, check_int, 1)
    mean: tuple[float, float, float] = option(IMAGENET_MEAN, _check_colors)
    std: tuple[float, float, float] = option(IMAGENET_STD, _check_positive_colors)
    dtype: str = option("fp32", check_choice, tuple(DTYPES))
    memory_format: str = option("contiguous", check_choice, ("contiguous", "channels_last"))
    exif: str = option("ignore", check_choice, ("ignore", "apply"))

    def __post_init__(self) -> None:
        check_options(self)

    @property
    @abstractmethod
    def training(self) -> bool:
        """Training shuffles and drops the last partial batch by default; evaluation does neither."""

    @property
    @abstractmethod
    def crops(self) -> bool:
        """Whether the output is cropped from the resized image."""

    @property
    def augmenter(self) -> Augmenter:
        """Further operations on the pixels."""
        return Augmenter([])

    def size_at(self, epoch: int) -> int:
        """The size of one epoch's images, in pixels."""
        return self.size

    def at(self, epoch: int) -> Self:
        """The transform of one epoch."""
        size = self.size_at(epoch)
        return self if size == self.size else replace(self, size=size)

    @property
    def every_size(self) -> set[int]:
        """The sizes of all epochs, in pixels."""
        return {self.size}

    @abstractmethod
    def geometry(self, source: NDArray[np.int64], draws: Draws) -> Geometry:
        """The geometry of images whose stored heights and widths are `source`, of shape (N, 2)."""


@dataclass(kw_only=True, slots=True)
class RandomTransform(Transform):
    """A random crop, a random flip, then the policies of `augment`; the base of the training transforms.

    Attributes:
        flip: the probability of a left-right flip.
        augment: policies in the order in which they are applied, such as "TrivialAugmentWide" or {"name": "RandomErasing",
            "p": 0.25}; dali_pipes/plan/augment/policies.py has them all.
        sizes: progressive resizing: maps an epoch to the size from then on, such as {0: 128, 10: 192}; `size` before the first of
            these epochs.
    """

    flip: float = option(0.5, check_range, 0, 1)
    augment: list[Any] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_options(self)
        self.augment = Augmenter(self.augment).policies
        self.sizes = _epochs_and_sizes(self.sizes)
        narrowest = min(self.every_size)
        for slot in self.augmenter.slots:
            if slot.kernel_size // 2 >= narrowest:
                problem = f"a kernel of {slot.kernel_size} pixels is too large for images of {narrowest}"
                raise ConfigError(f"transform.augment: GaussianBlur: {problem}; kernel_size can be {2 * narrowest - 1} at most")

    @property
    def training(self) -> bool:
        return True

    @property
    def augmenter(self) -> Augmenter:
        return Augmenter(self.augment)

    def size_at(self, epoch: int) -> int:
        return max(((since, size) for since, size in self.sizes.items() if since <= epoch), default=(0, self.size))[1]

    @property
    def every_size(self) -> set[int]:
        return {self.size_at(epoch) for epoch in (0, *self.sizes)}


@dataclass(kw_only=True, slots=True)
class TrainTransform(RandomTransform):
    """A random resized crop and a random flip, distributed as torchvision's RandomResizedCrop and RandomHorizontalFlip.

    Attributes:
        scale: smallest and largest share of the image's area.
        ratio: smallest and largest width / height of the crop.
    """

    scale: tuple[float, float] = option((0.08, 1.0), check_ordered_pair)
    ratio: tuple[float, float] = option((3 / 4, 4 / 3), check_ordered_pair)

    @property
    def crops(self) -> bool:
        return False

    def geometry(self, source: NDArray[np.int64], draws: Draws) -> Geometry:
        return random_resized_crop(source, self.size, self.scale, self.ratio, self.flip, draws)


@dataclass(kw_only=True, slots=True)
class PaddedCropTransform(RandomTransform):
    """torchvision's RandomCrop(size, padding) and RandomHorizontalFlip, for small images.

    Images of another size are first resized to `size` × `size`.

    Attributes:
        padding: black pixels added on each side before the crop.
    """

    size: int = option(32, check_int, 1)
    padding: int = option(4, check_int, 0)

    @property
    def crops(self) -> bool:
        return True

    def geometry(self, source: NDArray[np.int64], draws: Draws) -> Geometry:
        return padded_crop(source, self.size, self.padding, self.flip, draws)


@dataclass(kw_only=True, slots=True)
class EvalTransform(Transform):
    """The shorter side resized, then a central crop: torchvision's Resize(resize) and CenterCrop(size).

    Attributes:
        resize: length of the shorter side before the crop, in pixels.
    """

    resize: int = 256

    def __post_init__(self) -> None:
        check_options(self)
        if self.resize < self.size:
            raise OptionError(
                type(self),
                f"resize is {self.resize}, less than the size of {self.size}, so there is nothing to crop; "
                "set resize to the size or more",
            )

    @property
    def training(self) -> bool:
        return False

    @property
    def crops(self) -> bool:
        return True

    def geometry(self, source: NDArray[np.int64], draws: Draws) -> Geometry:
        return resize_center_crop(source, self.resize, self.size)


def _epochs_and_sizes(given: object) -> dict[int, int]:
    """With integer keys; JSON has strings only."""
    pairs = [(str(epoch), size) for epoch, size in given.items()] if isinstance(given, Mapping) else [("", 0)]
    sizes = {int(epoch): size for epoch, size in pairs if epoch.isdecimal() and isinstance(size, int) and size > 0}
    if len(sizes) < len(pairs):
        raise ConfigError(
            f"transform.sizes is {given}; it takes epochs from 0 and sizes in pixels from 1, such as {{0: 128, 10: 192}}"
        )
    return sizes
