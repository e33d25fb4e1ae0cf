"""Policies: each draws with the same probabilities as the torchvision transform of the same name.

A policy is a dataclass of options that fills slots with operations. Each policy of a list has
`STEP_DRAWS` draw numbers of each sample for itself.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import check_choice, check_int, check_number, check_ordered_pair
from dali_pipes.errors import ChoiceError, OptionError
from dali_pipes.options import Options, check_options, option
from dali_pipes.plan.draws import STEP_DRAWS, Draws
from dali_pipes.plan.steps import operations
from dali_pipes.plan.steps.operations import (
    CODE,
    FILLS,
    FILTERS,
    RANDOM_CODES,
    RANDOM_OPS,
    Codes,
    Numbers,
    Slot,
)

# whose histograms Equalize makes, and the operation that does it
EQUALIZE = {"opencv": "Equalize", "torchvision": "EqualizeInSteps"}
# of rectangles: attempts at each, as in torchvision; the most of an image; and draws of each
_TRIES, _MOST_RECTANGLES, _RECTANGLE_DRAWS = 10, 16, 16


@dataclass(kw_only=True, slots=True)
class Policy(Options, ABC):
    """One way to draw operations."""

    name: str = ""

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def colors(self) -> str:
        """What of it only colors have, which does nothing to an image of one channel, for messages;
        "": nothing.
        """
        return ""

    @property
    @abstractmethod
    def slots(self) -> tuple[Slot, ...]:
        """The slots that this policy fills."""

    @abstractmethod
    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        """Operations and magnitudes, each (N, slots), for images of this height and width.

        It uses the draws from `first` on.
        """


def choose_op(
    op: str, magnitudes: NDArray[np.float64], happens: NDArray[np.bool_]
) -> tuple[Codes, Numbers]:
    """One slot: `op` with these magnitudes where it happens, and elsewhere nothing."""
    return np.where(happens, CODE[op], 0).astype(np.int8)[:, None], magnitudes.astype(np.float32)[
        :, None
    ]


@dataclass(kw_only=True, slots=True)
class OperationPolicy(Policy):
    """One operation, always as strong, with probability `p`."""

    p: float = option(0.5, check_number, 0, 1)

    @property
    @abstractmethod
    def op(self) -> str:
        """One of `OPS`."""

    @property
    def magnitude(self) -> float:
        """That of the operation, as in `Augmentation.magnitudes`."""
        return 0.0

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot((self.op,)),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        happens, *_ = draws.uniform(first)
        return choose_op(self.op, np.full_like(happens, self.magnitude), happens < self.p)


@dataclass(kw_only=True, slots=True)
class RandomInvert(OperationPolicy):
    """All values inverted, with probability `p`."""

    name: str = "RandomInvert"

    op: ClassVar[str] = "Invert"


@dataclass(kw_only=True, slots=True)
class RandomPosterize(OperationPolicy):
    """Only the highest bits of each value kept, with probability `p`.

    Attributes:
        bits: how many bits stay, of 8.
    """

    name: str = "RandomPosterize"
    bits: int = option(4, check_int, 0, 8)

    op: ClassVar[str] = "Posterize"

    @property
    def magnitude(self) -> float:
        return self.bits


@dataclass(kw_only=True, slots=True)
class RandomSolarize(OperationPolicy):
    """All values from a threshold on inverted, with probability `p`, as in BYOL (Grill et al.,
    NeurIPS 2020, appendix B).

    Attributes:
        threshold: from 0 to 256, of values up to 255.
    """

    name: str = "RandomSolarize"
    threshold: int = option(128, check_int, 0, 256)

    op: ClassVar[str] = "Solarize"

    @property
    def magnitude(self) -> float:
        # halfway between two pixel values, so that no rounding moves the threshold onto another one
        return (self.threshold - 0.5) / 255


@dataclass(kw_only=True, slots=True)
class RandomAutocontrast(OperationPolicy):
    """The darkest value of each channel made 0 and the brightest 255, with probability `p`."""

    name: str = "RandomAutocontrast"

    op: ClassVar[str] = "AutoContrast"


@dataclass(kw_only=True, slots=True)
class RandomEqualize(OperationPolicy):
    """The histogram of each channel flattened, with probability `p`.

    Attributes:
        equalize: how, "opencv" or "torchvision" (docs/augmentation.md).
    """

    name: str = "RandomEqualize"
    equalize: str = option("opencv", check_choice, tuple(EQUALIZE))

    @property
    def op(self) -> str:
        return EQUALIZE[self.equalize]


@dataclass(kw_only=True, slots=True)
class RandomAdjustSharpness(OperationPolicy):
    """Another sharpness, with probability `p`.

    Attributes:
        sharpness_factor: 0 blurs, 1 changes nothing, 2 doubles the sharpness.
    """

    name: str = "RandomAdjustSharpness"
    sharpness_factor: float = option(2.0, check_number, 0, 1000)

    op: ClassVar[str] = "Sharpness"

    @property
    def magnitude(self) -> float:
        return self.sharpness_factor - 1


@dataclass(kw_only=True, slots=True)
class RandomGrayscale(OperationPolicy):
    """Gray in three channels, with probability `p`."""

    name: str = "RandomGrayscale"
    p: float = option(0.1, check_number, 0, 1)

    colors: ClassVar[str] = "RandomGrayscale"
    op: ClassVar[str] = "Color"
    # makes the factor 0: nothing of the color is left
    magnitude: ClassVar[float] = -1.0


@dataclass(kw_only=True, slots=True)
class RandomRotation(Policy):
    """A rotation about the centre by up to `degrees` either way; areas from outside the image are
    black.
    """

    name: str = "RandomRotation"
    degrees: float = option(15.0, check_number, 0, 180)
    interpolation: str = option("nearest", check_choice, FILTERS[:2])

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot(("Rotate",), self.interpolation),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        angle, *_ = draws.uniform(first)
        return choose_op("Rotate", self.degrees * (2 * angle - 1), np.ones(len(angle), bool))


@dataclass(kw_only=True, slots=True)
class GaussianBlur(Policy):
    """A blur of random strength, with probability `p`.

    Attributes:
        kernel_size: in pixels, odd.
        sigma: the standard deviation is drawn between these, in pixels.
    """

    name: str = "GaussianBlur"
    # twice LARGEST_SIDE; RandomTransform compares it with the images
    kernel_size: int = option(23, check_int, 1, 2**17)
    sigma: tuple[float, float] = option((0.1, 2.0), check_ordered_pair)
    p: float = option(1.0, check_number, 0, 1)

    def __post_init__(self) -> None:
        check_options(self)
        if self.kernel_size % 2 == 0:
            raise OptionError(type(self), f"kernel_size is {self.kernel_size}; it must be odd")

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot(("GaussianBlur",), kernel_size=self.kernel_size),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        strength, happens, _, _ = draws.uniform(first)
        low, high = self.sigma
        return choose_op("GaussianBlur", low + (high - low) * strength, happens < self.p)


@dataclass(kw_only=True, slots=True)
class ColorJitter(Policy):
    """Brightness, contrast, saturation and hue in random order, with probability `p`.

    Attributes:
        brightness, contrast, saturation: the factor is drawn from [max(0, 1 - value), 1 + value].
        hue: the shift is drawn from [-hue, hue], at most 0.5, half the circle.
    """

    name: str = "ColorJitter"
    brightness: float = option(0.0, check_number, 0, 1000)
    contrast: float = option(0.0, check_number, 0, 1000)
    saturation: float = option(0.0, check_number, 0, 1000)
    hue: float = option(0.0, check_number, 0, 0.5)
    p: float = option(1.0, check_number, 0, 1)

    def __post_init__(self) -> None:
        check_options(self)
        if not self._parts():
            raise ChoiceError(
                ColorJitter, "changes nothing; set brightness, contrast, saturation or hue"
            )

    @property
    def colors(self) -> str:
        parts = [name for name in ("saturation", "hue") if getattr(self, name)]
        return f"{self.name} with {' and '.join(parts)}" if parts else ""

    def _parts(self) -> dict[str, float]:
        parts = {
            "Brightness": self.brightness,
            "Contrast": self.contrast,
            "Color": self.saturation,
            "Hue": self.hue,
        }
        return {op: value for op, value in parts.items() if value}

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot(tuple(self._parts())),) * len(self._parts())

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        # a draw has four numbers, one for each part; where parts are off, some are not used
        shuffle, strength, (happens, *_) = (
            draws.uniform(first),
            draws.uniform(first + 1),
            draws.uniform(first + 2),
        )

        codes, magnitudes = [], []
        for share, (op, value) in zip(strength, self._parts().items(), strict=False):
            # a magnitude is added to a factor of 1, which must not become negative; hues have both
            # signs
            low = -value if op == "Hue" else max(-1.0, -value)
            codes.append(np.where(happens < self.p, CODE[op], 0))
            magnitudes.append(low + (value - low) * share)

        # the order of the operations: that of four random numbers
        order = shuffle[: len(codes)].argsort(axis=0).T
        return (
            np.take_along_axis(np.stack(codes, axis=1), order, axis=1).astype(np.int8),
            np.take_along_axis(np.stack(magnitudes, axis=1), order, axis=1).astype(np.float32),
        )


@dataclass(kw_only=True, slots=True)
class TablePolicy(Policy):
    """Operations that are drawn from a table.

    Attributes:
        interpolation: of operations that move pixels, "nearest" or "bilinear".
        equalize: how Equalize flattens a histogram, "opencv", as DALI's operator does it, or
            "torchvision" (docs/augmentation.md).
    """

    interpolation: str = option("nearest", check_choice, FILTERS[:2])
    equalize: str = option("opencv", check_choice, tuple(EQUALIZE))

    def slot(self, ops: tuple[str, ...]) -> Slot:
        """One for these operations."""
        chosen = tuple(EQUALIZE[self.equalize] if op == "Equalize" else op for op in ops)
        return Slot(chosen, self.interpolation)

    def choose(
        self, ops: Codes, magnitudes: Numbers, sign: NDArray[np.float64]
    ) -> tuple[Codes, Numbers]:
        """These operations and magnitudes, negated half of the time for operations that have a
        direction.

        `sign` are random numbers in [0, 1).
        """
        is_negative = operations.SIGNED[ops] & (sign <= 0.5)
        equalize = np.int8(CODE[EQUALIZE[self.equalize]])
        chosen = np.where(ops == CODE["Equalize"], equalize, ops)
        return chosen, np.where(is_negative, -magnitudes, magnitudes)


@dataclass(kw_only=True, slots=True)
class TrivialAugmentWide(TablePolicy):
    """One operation at any of the magnitudes: Müller and Hutter, "TrivialAugment" (ICCV 2021), the
    wide space.
    """

    name: str = "TrivialAugmentWide"
    num_magnitude_bins: int = option(31, check_int, 2, 2**16)

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (self.slot(RANDOM_OPS[1:]),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        place, bin, sign, _ = draws.uniform(first)
        # torchvision's constants of the wide space
        magnitudes = operations.space(
            self.num_magnitude_bins,
            shear=0.99,
            shift=(32.0, 32.0),
            degrees=135.0,
            blend=0.99,
            bits=6,
        )

        ops = RANDOM_CODES[(place * len(RANDOM_CODES)).astype(int)]
        magnitudes = magnitudes[ops, (bin * self.num_magnitude_bins).astype(int)]
        return self.choose(ops[:, None], magnitudes[:, None], sign[:, None])


@dataclass(kw_only=True, slots=True)
class RandAugment(TablePolicy):
    """`num_ops` operations, all at one magnitude: Cubuk et al., "RandAugment" (CVPR Workshops
    2020).
    """

    name: str = "RandAugment"
    # each operation takes one of the policy's draws
    num_ops: int = option(2, check_int, 1, STEP_DRAWS)
    magnitude: int = option(9, check_int, 0, 2**16)
    num_magnitude_bins: int = option(31, check_int, 2, 2**16)

    def __post_init__(self) -> None:
        check_options(self)
        if self.magnitude >= self.num_magnitude_bins:
            most = self.num_magnitude_bins - 1
            raise OptionError(
                type(self),
                f"magnitude is {self.magnitude}; it takes whole numbers from 0 to {most}",
            )

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (self.slot(RANDOM_OPS[1:]),) * self.num_ops

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        place, sign, _, _ = draws.uniform(np.arange(first, first + self.num_ops))
        ops = RANDOM_CODES[(place * len(RANDOM_CODES)).astype(int)]
        magnitudes = operations.classic_space(self.num_magnitude_bins, shape)[ops, self.magnitude]
        return self.choose(ops, magnitudes, sign)


@dataclass(kw_only=True, slots=True)
class AutoAugment(TablePolicy):
    """One of 25 learned pairs of operations: Cubuk et al., "AutoAugment" (CVPR 2019), those of
    ImageNet.
    """

    name: str = "AutoAugment"

    @property
    def slots(self) -> tuple[Slot, ...]:
        places = zip(*operations.IMAGENET_PAIRS, strict=True)
        return tuple(self.slot(tuple(sorted({op for op, _, _ in place}))) for place in places)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        place, *_ = draws.uniform(first)
        # a draw for each of the two operations; torchvision compares with <= too
        happens, sign, _, _ = draws.uniform(np.arange(first + 1, first + 3))
        pair = (place * len(operations.IMAGENET_PAIRS)).astype(int)
        ops = np.where(
            happens <= operations.PAIR_PROBABILITIES[pair], operations.PAIR_CODES[pair], 0
        ).astype(np.int8)
        magnitudes = operations.classic_space(10, shape)[ops, operations.PAIR_BINS[pair]]
        return self.choose(ops, magnitudes, sign)


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
    min_count: int = option(1, check_int, 1, _MOST_RECTANGLES)
    max_count: int = option(1, check_int, 1, _MOST_RECTANGLES)

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
            self._region(draws, first + 1 + number * _RECTANGLE_DRAWS, shape, counts)
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
        high, low, _, _ = draws.uniform(first + _RECTANGLE_DRAWS - 1)
        # 62 bits, since a seed is a positive number of 63
        seeds = (high * 2**31).astype(np.int64) << 31 | (low * 2**31).astype(np.int64)
        fills = np.full_like(seeds, FILLS.index(self.mode))
        return np.concatenate([places, seeds[:, None], fills[:, None]], axis=1)
