"""Rectangles erased, as torchvision and as timm do it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import check_choice, check_int, check_number, check_ordered_pair
from dali_pipes.errors import OptionError
from dali_pipes.options import Options, check_options, option
from dali_pipes.plan.augment.operations import FILLS
from dali_pipes.plan.philox import Draws

_TRIES = 10  # attempts at a rectangle, as in torchvision


@dataclass(kw_only=True, slots=True)
class RandomErasing(Options):
    """A rectangle of random area and aspect set to zero after normalization, with probability `p`;
    always the last of the policies.

    Zhong et al., "Random erasing data augmentation" (AAAI 2020): the first of ten attempts that
    fits, or nothing.

    Attributes:
        scale: smallest and largest share of the image's area.
        ratio: smallest and largest height / width.
    """

    name: str = "RandomErasing"
    p: float = option(0.5, check_number, 0, 1)
    scale: tuple[float, float] = option((0.02, 0.33), check_ordered_pair)
    ratio: tuple[float, float] = option((0.3, 3.3), check_ordered_pair)

    def __post_init__(self) -> None:
        check_options(self)

    def rectangles(self, draws: Draws, first: int, shape: tuple[int, int]) -> NDArray[np.int64]:
        """(N, 4) top, left, height, width; zeros where nothing is erased."""
        happens = draws.uniform(first + _TRIES)[0] < self.p
        return np.where(happens[:, None], self.first_fit(draws, first, shape), 0)

    def first_fit(
        self,
        draws: Draws,
        first: int,
        shape: tuple[int, int],
        parts: float | NDArray[np.float64] = 1.0,
    ) -> NDArray[np.int64]:
        """(N, 4) the rectangles of the first attempts that fit; zeros where none does.

        Args:
            parts: (N,) how many rectangles share the area.
        """
        area, aspect, top, left = draws.uniform(np.arange(first, first + _TRIES))
        area = (self.scale[0] + (self.scale[1] - self.scale[0]) * area) * shape[0] * shape[1]
        area = area / np.reshape(parts, (-1, 1))

        low, high = np.log(self.ratio)
        aspect = np.exp(low + (high - low) * aspect)
        height, width = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))

        # as in torchvision, a rectangle is lower and narrower than the image, not equal to it
        fits = (height < shape[0]) & (width < shape[1])

        # argmax of booleans is the first attempt that fits
        at = np.arange(len(fits)), fits.argmax(axis=1)
        height, width = height[at], width[at]
        rectangles = np.stack(
            [top[at] * (shape[0] - height + 1), left[at] * (shape[1] - width + 1), height, width],
            axis=1,
        )
        return np.where(fits[at][:, None], rectangles, 0).astype(np.int64)


_MOST = 16  # rectangles of an image
_DRAWS = 16  # numbers of draws of each rectangle


@dataclass(kw_only=True, slots=True)
class TimmRandomErasing(RandomErasing):
    """Rectangles of random area and aspect filled after normalization, with probability `p`, as
    timm's RandomErasing does; always the last of the policies.

    Attributes:
        mode: "const" fills with zeros, "rand" with one normally distributed color, "pixel" with
            such noise.
        scale: smallest and largest share of the image's area, of all rectangles together.
        ratio: smallest and largest height / width.
        min_count, max_count: how many rectangles there are, at least and at most.
    """

    name: str = "TimmRandomErasing"
    p: float = option(0.5, check_number, 0, 1)
    scale: tuple[float, float] = option((0.02, 1 / 3), check_ordered_pair)
    ratio: tuple[float, float] = option((0.3, 1 / 0.3), check_ordered_pair)
    mode: str = option("pixel", check_choice, FILLS)
    min_count: int = option(1, check_int, 1, _MOST)
    max_count: int = option(1, check_int, 1, _MOST)

    def __post_init__(self) -> None:
        check_options(self)
        if self.min_count > self.max_count:
            what = f"min_count is {self.min_count}, more than max_count={self.max_count}"
            raise OptionError(type(self), f"{what}; set max_count to as much")

    def rectangles(self, draws: Draws, first: int, shape: tuple[int, int]) -> NDArray[np.int64]:
        """(N, max_count, 6) as `Augmentation.erased`."""
        happens, count, _, _ = draws.uniform(first)
        counts = self.min_count + np.floor(count * (self.max_count - self.min_count + 1))

        # each rectangle has draws of its own, so a larger max_count changes no other
        regions = [
            self._region(draws, first + 1 + number * _DRAWS, shape, counts)
            for number in range(self.max_count)
        ]
        filled = np.stack(regions, axis=1)

        numbers = np.arange(self.max_count)
        is_there = (happens < self.p)[:, None] & (numbers < counts[:, None])
        return np.where(is_there[..., None], filled, 0)

    def _region(
        self, draws: Draws, first: int, shape: tuple[int, int], counts: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        places = self.first_fit(draws, first, shape, counts)
        high, low, _, _ = draws.uniform(first + _DRAWS - 1)
        # 62 bits, since a seed is a positive number of 63
        seeds = (high * 2**31).astype(np.int64) << 31 | (low * 2**31).astype(np.int64)
        fills = np.full_like(seeds, FILLS.index(self.mode))
        return np.concatenate([places, seeds[:, None], fills[:, None]], axis=1)
