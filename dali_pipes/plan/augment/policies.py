"""Augmentation policies, and lists of them.

Each draws with the same probabilities as the torchvision transform of the same name. A policy takes
a range of draw numbers of each sample; `Augmenter` runs a list of policies, and `POLICIES` has them
by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import (
    check_choice,
    check_int,
    check_number,
    check_ordered_pair,
    describe_value,
)
from dali_pipes.errors import ChoiceError, ConfigError, OptionError
from dali_pipes.options import Options, check_options, option
from dali_pipes.plan.augment import operations
from dali_pipes.plan.augment.operations import (
    CODE,
    RANDOM_CODES,
    RANDOM_OPS,
    Augmentation,
    Codes,
    Numbers,
    Slot,
)
from dali_pipes.plan.philox import Draws

DRAWS = 16  # draw numbers reserved for each policy
_FIRST_DRAW = 32  # geometry.py has the draws below, and those from 2**15 on
INTERPOLATIONS = ("nearest", "bilinear")
_TRIES = 10  # of RandomErasing, as in torchvision


@dataclass(kw_only=True, slots=True)
class Policy(Options, ABC):
    """One way to draw operations."""

    def __post_init__(self) -> None:
        check_options(self)

    @property
    @abstractmethod
    def slots(self) -> tuple[Slot, ...]:
        """The slots that this policy fills."""

    @abstractmethod
    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        """Operations and magnitudes, each (N, slots), for images of this height and width.

        It uses the draws from `first` on.
        """


@dataclass(kw_only=True, slots=True)
class TrivialAugmentWide(Policy):
    """One operation at any of the magnitudes: Müller and Hutter, "TrivialAugment" (ICCV 2021), the
    wide space.
    """

    name: str = "TrivialAugmentWide"
    num_magnitude_bins: int = option(31, check_int, 2, 2**16)
    interpolation: str = option("nearest", check_choice, INTERPOLATIONS)

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot(RANDOM_OPS[1:], self.interpolation),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        chosen, bin, sign, _ = draws.uniform(first)
        magnitudes = operations.space(
            self.num_magnitude_bins,
            shear=0.99,
            shift=(32.0, 32.0),
            degrees=135.0,
            blend=0.99,
            bits=6,
        )

        ops = RANDOM_CODES[(chosen * len(RANDOM_CODES)).astype(int)]
        magnitudes = _signed(
            ops, magnitudes[ops, (bin * self.num_magnitude_bins).astype(int)], sign
        )
        return ops[:, None], magnitudes[:, None]


@dataclass(kw_only=True, slots=True)
class RandAugment(Policy):
    """`num_ops` operations, all at one magnitude: Cubuk et al., "RandAugment" (CVPR Workshops
    2020).
    """

    name: str = "RandAugment"
    num_ops: int = option(2, check_int, 1, DRAWS)
    magnitude: int = option(9, check_int, 0, 2**16)
    num_magnitude_bins: int = option(31, check_int, 2, 2**16)
    interpolation: str = option("nearest", check_choice, INTERPOLATIONS)

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
        return (Slot(RANDOM_OPS[1:], self.interpolation),) * self.num_ops

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        chosen, sign, _, _ = draws.uniform(np.arange(first, first + self.num_ops))
        ops = RANDOM_CODES[(chosen * len(RANDOM_CODES)).astype(int)]
        return ops, _signed(
            ops, operations.classic_space(self.num_magnitude_bins, shape)[ops, self.magnitude], sign
        )


@dataclass(kw_only=True, slots=True)
class AutoAugment(Policy):
    """One of 25 learned pairs of operations: Cubuk et al., "AutoAugment" (CVPR 2019), those of
    ImageNet.
    """

    name: str = "AutoAugment"
    interpolation: str = option("nearest", check_choice, INTERPOLATIONS)

    @property
    def slots(self) -> tuple[Slot, ...]:
        places = zip(*operations.IMAGENET_PAIRS, strict=True)
        return tuple(
            Slot(tuple(sorted({op for op, _, _ in place})), self.interpolation) for place in places
        )

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        chosen, *_ = draws.uniform(first)
        happens, sign, _, _ = draws.uniform(np.arange(first + 1, first + 3))
        pair = (chosen * len(operations.IMAGENET_PAIRS)).astype(int)
        ops = np.where(
            happens <= operations.PAIR_PROBABILITIES[pair], operations.PAIR_CODES[pair], 0
        ).astype(np.int8)
        return ops, _signed(
            ops, operations.classic_space(10, shape)[ops, operations.PAIR_BINS[pair]], sign
        )


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
        shuffle, strength, (happens, *_) = (
            draws.uniform(first),
            draws.uniform(first + 1),
            draws.uniform(first + 2),
        )

        codes, magnitudes = [], []
        for share, (op, value) in zip(strength, self._parts().items(), strict=False):
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
class RandomGrayscale(Policy):
    """Gray in three channels, with probability `p`."""

    name: str = "RandomGrayscale"
    p: float = option(0.1, check_number, 0, 1)

    slots: ClassVar[tuple[Slot, ...]] = (Slot(("Color",)),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        happens, *_ = draws.uniform(first)
        return _single_op("Color", np.full_like(happens, -1), happens < self.p)


@dataclass(kw_only=True, slots=True)
class RandomSolarize(Policy):
    """All values from a threshold on inverted, with probability `p`; BYOL's (Grill et al., NeurIPS
    2020, appendix B).

    Attributes:
        threshold: from 0 to 256, of values up to 255.
    """

    name: str = "RandomSolarize"
    threshold: int = option(128, check_int, 0, 256)
    p: float = option(0.5, check_number, 0, 1)

    slots: ClassVar[tuple[Slot, ...]] = (Slot(("Solarize",)),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        happens, *_ = draws.uniform(first)
        # halfway between two pixel values, so that no rounding moves the threshold onto another one
        between = (self.threshold - 0.5) / 255
        return _single_op("Solarize", np.full_like(happens, between), happens < self.p)


@dataclass(kw_only=True, slots=True)
class GaussianBlur(Policy):
    """A blur of random strength, with probability `p`.

    Attributes:
        kernel_size: in pixels, odd.
        sigma: the standard deviation is drawn between these, in pixels.
    """

    name: str = "GaussianBlur"
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
        return _single_op("GaussianBlur", low + (high - low) * strength, happens < self.p)


@dataclass(kw_only=True, slots=True)
class RandomRotation(Policy):
    """A rotation about the centre by up to `degrees` either way; areas from outside the image are
    black.
    """

    name: str = "RandomRotation"
    degrees: float = option(15.0, check_number, 0, 180)
    interpolation: str = option("nearest", check_choice, INTERPOLATIONS)

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot(("Rotate",), self.interpolation),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        angle, *_ = draws.uniform(first)
        return _single_op("Rotate", self.degrees * (2 * angle - 1), np.ones(len(angle), bool))


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
        area, aspect, top, left = draws.uniform(np.arange(first, first + _TRIES))
        happens = draws.uniform(first + _TRIES)[0] < self.p
        area = (self.scale[0] + (self.scale[1] - self.scale[0]) * area) * shape[0] * shape[1]

        low, high = np.log(self.ratio)
        aspect = np.exp(low + (high - low) * aspect)
        height, width = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))

        fits = (height < shape[0]) & (width < shape[1])

        # argmax of booleans is the first attempt that fits
        at = np.arange(len(fits)), fits.argmax(axis=1)
        height, width = height[at], width[at]
        rectangles = np.stack(
            [top[at] * (shape[0] - height + 1), left[at] * (shape[1] - width + 1), height, width],
            axis=1,
        )
        return np.where((happens & fits[at])[:, None], rectangles, 0).astype(np.int64)


def _signed(ops: Codes, magnitudes: Numbers, sign: NDArray[np.float64]) -> Numbers:
    return np.where(operations.SIGNED[ops] & (sign <= 0.5), -magnitudes, magnitudes)


def _single_op(
    op: str, magnitudes: NDArray[np.float64], happens: NDArray[np.bool_]
) -> tuple[Codes, Numbers]:
    return np.where(happens, CODE[op], 0).astype(np.int8)[:, None], magnitudes.astype(np.float32)[
        :, None
    ]


POLICIES: dict[str, type] = {
    each.__name__: each
    for each in (
        TrivialAugmentWide,
        RandAugment,
        AutoAugment,
        ColorJitter,
        RandomGrayscale,
        RandomSolarize,
        GaussianBlur,
        RandomRotation,
        RandomErasing,
    )
}


class Augmenter:
    """A list of policies, ready to draw.

    Args:
        policies: names, mappings of a name and options, or policies.

    Raises:
        ConfigError: a name or an option does not exist, or RandomErasing is not the last.
    """

    def __init__(self, policies: Sequence[Any]):
        self.policies = check_policies("augment", policies)
        self._op_policies = [policy for policy in self.policies if isinstance(policy, Policy)]
        self._erase_policy = next(
            (policy for policy in self.policies if isinstance(policy, RandomErasing)), None
        )
        self.slots = tuple(slot for policy in self._op_policies for slot in policy.slots)
        self.erases = self._erase_policy is not None

    def draw(self, draws: Draws, count: int, shape: tuple[int, int]) -> Augmentation:
        """Draws the operations for `count` images of this height and width."""
        ops, magnitudes = np.zeros((count, 0), np.int8), np.zeros((count, 0), np.float32)

        for place, policy in enumerate(self._op_policies):
            more_ops, more_magnitudes = policy.draw(draws, _FIRST_DRAW + place * DRAWS, shape)
            ops, magnitudes = np.hstack([ops, more_ops]), np.hstack([magnitudes, more_magnitudes])

        first = _FIRST_DRAW + len(self._op_policies) * DRAWS
        erased = (
            self._erase_policy.rectangles(draws, first, shape)
            if self._erase_policy
            else np.zeros((count, 4), np.int64)
        )

        return Augmentation(ops, magnitudes, erased)


def check_policies(option: str, values: Any) -> list[Any]:
    """Returns the policies of a list of names, mappings of a name and options, or policies."""
    if isinstance(values, (str, Mapping)) or not isinstance(values, Sequence):
        raise ConfigError(
            f"{option} is {values!r}; it takes a list of policies: ['TrivialAugmentWide']"
        )
    policies = [_parse_policy(option, value) for value in values]

    # RandomErasing works on the normalized image, after all other operations
    if any(isinstance(policy, RandomErasing) for policy in policies[:-1]):
        raise ConfigError(
            f"{option}: RandomErasing works on the normalized image; put it last, and only once"
        )
    return policies


def _parse_policy(option: str, value: Any) -> Any:
    if isinstance(value, (Policy, RandomErasing)):
        return value

    options = (
        {"name": value}
        if isinstance(value, str)
        else dict(value)
        if isinstance(value, Mapping)
        else {}
    )

    name = options.get("name")
    if not isinstance(name, str) or name not in POLICIES:
        if type(value).__module__.startswith("torchvision."):
            instead = "transform_from_torch(transform) makes a whole transform of torchvision's"
            raise ConfigError(
                f"{option}: {type(value).__name__} is torchvision's; {instead}, or write its name"
            )
        raise ConfigError(
            f"{option}: {describe_value(value)} is none of {', '.join(POLICIES)}; one with options "
            "is a mapping of its name and of them"
        )

    known = [field.name for field in fields(POLICIES[name])]
    if unknown := set(map(str, options)) - set(known):
        raise ConfigError(
            f"{option}: {name} does not take {', '.join(sorted(unknown))}; it takes "
            f"{', '.join(known[1:])}"
        )

    return POLICIES[name](**options)
