"""The resize by the shorter side: torchvision's references train their detectors with it."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from dali_pipes.checks import LARGEST_SIDE, check_int, describe_value
from dali_pipes.errors import ChoiceError, ConfigError, OptionError
from dali_pipes.options import option
from dali_pipes.plan.geometry import (
    FLIP_DRAW,
    SCALE_DRAW,
    Geometry,
    Int,
    Pair,
    scale_sizes,
    whole_image_geometry,
)
from dali_pipes.plan.philox import Draws
from dali_pipes.plan.transforms.base import RandomTransform, shape_of

# operations that change each pixel by itself and leave black black, so that padding stays as it is
_PIXELWISE_OPS = {"Brightness", "Color", "Hue", "Posterize"}


def _check_lengths(option: str, value: Any) -> list[int]:
    """A list of lengths in pixels; a single number becomes a list."""
    lengths = (
        [value]
        if isinstance(value, int)
        else list(value)
        if isinstance(value, (list, tuple))
        else []
    )

    if not lengths:
        raise ConfigError(
            f"{option} is {describe_value(value)}; it takes whole numbers from 1 on, one or several"
        )

    return [check_int(option, length, 1, LARGEST_SIDE) for length in lengths]


@dataclass(kw_only=True, slots=True)
class ShortestSizeTransform(RandomTransform):
    """torchvision's RandomShortestSize and random flips; a batch is as large as its largest image,
    black at the right and below.

    `batch.sizes` has the height and width of each image in it. `size` is not used; `shape` is that
    of the largest batch.

    Attributes:
        min_size: length of the shorter side, in pixels; if there are several, each image takes one
            at random.
        max_size: the longer side is not longer than this; the shorter one is then shorter.
        size_divisor: height and width of a batch are multiples of this.
    """

    min_size: Any = option(800, _check_lengths)
    max_size: int = option(1333, check_int, 1, LARGEST_SIDE)
    size_divisor: int = option(32, check_int, 1, LARGEST_SIDE)

    pads_batches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        RandomTransform.__post_init__(self)
        if max(self.min_size) > self.max_size:
            raise OptionError(
                type(self),
                f"min_size is {self.min_size}, more than max_size={self.max_size}; set max_size "
                "to as much",
            )

        if self.sizes or self.size not in (224, self.size_at(0)):
            raise ChoiceError(
                type(self), "resizes by min_size and max_size; set these instead of size and sizes"
            )

        # always the default: dataclasses.replace passes it on, perhaps with another max_size
        self.size = 224

        erases, ops = (
            self.augmenter.erases,
            {op for slot in self.augmenter.slots for op in slot.ops},
        )

        functions = [each.title for each in self.augmenter.functions]
        if refused := sorted(ops - _PIXELWISE_OPS) + functions + ["RandomErasing"] * erases:
            raise OptionError(
                type(self),
                f"augment: {', '.join(refused)} would take what fills up a batch for a part of the "
                "image; use ColorJitter without contrast, RandomGrayscale, or a transform whose "
                "images have one size",
            )

    @property
    def training(self) -> bool:
        return self.flips_or_augments or len(self.min_size) > 1

    @property
    def shape(self) -> Pair:
        return shape_of(self.size_at(0))

    def size_at(self, epoch: int) -> int:
        return -(-self.max_size // self.size_divisor) * self.size_divisor

    def at(self, epoch: int) -> Self:
        return self

    def geometry(self, source: Int, draws: Draws) -> Geometry:
        numbers = draws.uniform([FLIP_DRAW, SCALE_DRAW])
        shortest = np.array(self.min_size)[(numbers[0, :, 1] * len(self.min_size)).astype(np.int64)]
        # the ratio of the shorter side, unless the longer one would exceed max_size
        ratio = np.minimum(shortest / source.min(axis=1), self.max_size / source.max(axis=1))

        return whole_image_geometry(
            source,
            scale_sizes(source, ratio),
            np.zeros_like(source),
            self.flips(numbers[:2, :, 0]),
        )

    def place_in_batch(self, geometry: Geometry) -> tuple[Geometry, Pair]:
        """The geometry in a batch that is as large as its largest image, and that batch's shape.

        A flip mirrors the whole output, padding included. So an image that is flipped is first
        placed in the opposite corner, and the flip brings it to the top left.
        """
        height, width = (
            -(-geometry.resize.max(axis=0) // self.size_divisor) * self.size_divisor
        ).tolist()

        flips = np.stack([geometry.vertical_flip, geometry.flip], axis=1)
        return replace(geometry, crop=np.where(flips, geometry.resize - (height, width), 0)), (
            height,
            width,
        )
