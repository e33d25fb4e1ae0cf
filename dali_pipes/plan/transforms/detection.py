"""The transforms of detectors, which keep the boxes of an image."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import (
    LARGEST_SIDE,
    check_int,
    check_number,
    check_ordered_pair,
    describe_value,
)
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.objects import Objects
from dali_pipes.errors import ChoiceError, ConfigError, Mention, OptionError
from dali_pipes.options import option
from dali_pipes.plan.draws import BOXES_DRAW, FLIP_DRAW, SCALE_DRAW, SHIFT_DRAW, Draws
from dali_pipes.plan.geometry import (
    Geometry,
    Int,
    Pair,
    scale_sizes,
    whole_image_geometry,
)
from dali_pipes.plan.transforms.base import RandomTransform, check_size, shape_of
from dali_pipes.plan.transforms.classification import TrainTransform


@dataclass(kw_only=True, slots=True)
class LetterboxTransform(RandomTransform):
    """The whole image as large as fits into `size` with its aspect ratio, centered, black around
    it; then random flips.

    The other side is rounded to the nearest pixel; an odd rest is one pixel more at the bottom or
    the right.
    """

    size: Any = option(640, check_size)

    @property
    def training(self) -> bool:
        return self.flips_or_augments

    def geometry(self, source: Int, draws: Draws) -> Geometry:
        ratio = (np.array(self.shape) / source).min(axis=1, keepdims=True)
        to = np.rint(source * ratio).astype(np.int64).clip(1, self.shape)
        flips = self.flips(draws.uniform(FLIP_DRAW)[:2])
        return whole_image_geometry(source, to, -((self.shape - to) // 2), flips)


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


@dataclass(kw_only=True, slots=True)
class ScaleJitterTransform(RandomTransform):
    """torchvision's ScaleJitter, then a crop of `size` at a random place or black at the right and
    below, and random flips.

    The crop is FixedSizeCrop of torchvision's references. Large scale jitter: Ghiasi et al.,
    "Simple Copy-Paste" (CVPR 2021).

    Attributes:
        scale: smallest and largest factor; at 1 the image just fits into `size`.
    """

    size: Any = option(1024, check_size)
    scale: tuple[float, float] = option((0.1, 2.0), check_ordered_pair)

    def geometry(self, source: Int, draws: Draws) -> Geometry:
        numbers, (low, high) = draws.uniform([FLIP_DRAW, SHIFT_DRAW, SCALE_DRAW]), self.scale
        to = scale_sizes(
            source,
            (np.array(self.shape) / source).min(axis=1) * (low + (high - low) * numbers[0, :, 2]),
        )
        crop = np.floor(np.maximum(to - self.shape, 0) * numbers[0, :, 1, None]).astype(np.int64)
        return whole_image_geometry(source, to, crop, self.flips(numbers[:2, :, 0]))


# how often a smallest overlap is drawn, and the most trials for each; their 50 · 501 draws fit into
# the draw numbers from `BOXES_DRAW` on
_PICKS, _MOST_TRIALS = 50, 500


def _check_overlaps(option: str, value: Any) -> None:
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"{option} is {describe_value(value)}; it takes a list of overlaps")
    if not value:
        raise ConfigError(f"{option} is empty; it takes overlaps from 0 on")
    for overlap in value:
        check_number(option, overlap, 0, 10)


@dataclass(kw_only=True, slots=True)
class IoUCropTransform(RandomTransform):
    """torchvision's RandomIoUCrop, resized to `size`, and random flips: Liu et al., "SSD" (ECCV
    2016).

    The region holds the centre of some box whose overlap with it (intersection over union) is at
    least a number drawn from `sampler_options`; boxes whose centre it does not hold are removed. An
    image without boxes is taken as a whole. So is an image for which fifty such numbers give no
    region; torchvision goes on until there is one, or until the whole image is drawn.

    Attributes:
        scale: smallest and largest share of the image's height, and of its width.
        ratio: smallest and largest width / height of the region.
        sampler_options: the smallest overlaps to choose from; 1 or more means the whole image.
        trials: regions that are tried for each number drawn.
    """

    size: Any = option(300, check_size)
    scale: tuple[float, float] = option((0.3, 1.0), check_ordered_pair)
    ratio: tuple[float, float] = option((0.5, 2.0), check_ordered_pair)
    sampler_options: list[float] = field(
        default_factory=lambda: [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0],
        metadata={"check": (_check_overlaps, ())},
    )
    trials: int = option(40, check_int, 1, _MOST_TRIALS)

    crops: ClassVar[bool] = False
    crops_around_boxes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        RandomTransform.__post_init__(self)
        if self.scale[1] > 1:
            raise OptionError(
                type(self),
                f"scale is {list(self.scale)}; a region is not larger than its image, so 1 is the "
                "most",
            )

    def check(self, manifest: Manifest) -> None:
        if not manifest.has_target("boxes"):
            raise ChoiceError(
                IoUCropTransform,
                f"crops around boxes, and {manifest.root} has none; use ",
                Mention(TrainTransform),
                ", or data with boxes",
            )
        RandomTransform.check(self, manifest)

    def geometry(self, source: Int, draws: Draws) -> Geometry:
        """The geometry of images without boxes: the whole image."""
        to = np.tile(self.shape, (len(source), 1))
        flips = self.flips(draws.uniform(FLIP_DRAW)[:2])
        return whole_image_geometry(source, to, np.zeros_like(source), flips)

    def geometry_around(self, source: Int, objects: Objects, draws: Draws) -> Geometry:
        planned, waiting = self.geometry(source, draws), objects.counts > 0

        # torchvision's order: draw a smallest overlap, then try regions, until one fits
        options, first = np.array(self.sampler_options), BOXES_DRAW
        for _ in range(_PICKS):
            if not waiting.any():
                break

            # the first of these draws chooses the overlap, each of the others makes a region
            numbers = draws.uniform(first + np.arange(1 + self.trials), waiting)
            min_overlap = options[(numbers[0, :, 0] * len(options)).astype(np.int64)]
            regions = self._draw_regions(source[waiting], numbers[:, :, 1:])
            boxes, counts = objects.boxes[waiting[objects.images]], objects.counts[waiting]
            fits = _overlap(regions, boxes, counts) >= min_overlap[:, None]
            # 1 and more stand for the whole image, which is planned already
            is_found, places = fits.any(axis=1) & (min_overlap < 1), np.flatnonzero(waiting)
            planned.region[places[is_found]] = regions[is_found, fits.argmax(axis=1)[is_found]]
            waiting[places[is_found | (min_overlap >= 1)]] = False

            first += 1 + self.trials

        return planned

    def _draw_regions(self, source: Int, numbers: NDArray[np.float64]) -> Int:
        """(N, trials, 4) regions: top, left, height, width.

        A height of 0 means that the aspect ratio is not allowed. `numbers` are (4, N, trials)
        random numbers.
        """
        width, height, left, top = numbers
        room = source[:, None]

        size = (
            room
            * (self.scale[0] + (self.scale[1] - self.scale[0]) * np.stack([height, width], axis=2))
        ).astype(np.int64)
        start = ((room - size) * np.stack([top, left], axis=2)).astype(np.int64)

        aspect = size[..., 1] / np.maximum(size[..., 0], 1)
        allowed = (aspect >= self.ratio[0]) & (aspect <= self.ratio[1])
        return np.concatenate([start, np.where(allowed[..., None], size, 0)], axis=2)


def _overlap(regions: Int, boxes: NDArray[np.float32], counts: Int) -> NDArray[np.float64]:
    """(N, trials) the largest intersection over union of a region and a box whose centre it holds.

    -1 means that a region holds no centre.

    Args:
        regions: (N, trials, 4) top, left, height, width.
        boxes: those of each image, one image after the other.
        counts: (N,) how many boxes each image has, at least one.
    """
    corners, regions = (
        boxes.astype(np.float64).reshape(-1, 1, 2, 2)[..., ::-1],
        np.repeat(regions, counts, axis=0),
    )
    low, high, start, stop = (
        corners[:, :, 0],
        corners[:, :, 1],
        regions[..., :2],
        regions[..., :2] + regions[..., 2:],
    )

    center = (low + high) / 2
    held = ((start < center) & (center < stop)).all(axis=2)

    common = np.maximum(np.minimum(high, stop) - np.maximum(low, start), 0).prod(axis=2)
    either = (high - low).prod(axis=2) + regions[..., 2:].prod(axis=2) - common
    overlap = np.divide(common, either, out=np.full(held.shape, -1.0), where=held)

    # the largest of each image's boxes
    return np.maximum.reduceat(overlap, counts.cumsum() - counts)
