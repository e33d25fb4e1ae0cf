"""Policies of one operation, with torchvision's names: each is applied with a probability."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dali_pipes.checks import check_choice, check_int, check_number, check_ordered_pair
from dali_pipes.errors import ChoiceError, OptionError
from dali_pipes.options import check_options, option
from dali_pipes.plan.augment.operations import CODE, Codes, Numbers, Slot
from dali_pipes.plan.augment.policies.base import (
    EQUALIZE,
    INTERPOLATIONS,
    Policy,
    choose_op,
    equalize_option,
)
from dali_pipes.plan.philox import Draws


@dataclass(kw_only=True, slots=True)
class RandomInvert(Policy):
    """All values inverted, with probability `p`."""

    name: str = "RandomInvert"
    p: float = option(0.5, check_number, 0, 1)

    slots: ClassVar[tuple[Slot, ...]] = (Slot(("Invert",)),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        happens, *_ = draws.uniform(first)
        return choose_op("Invert", np.zeros_like(happens), happens < self.p)


@dataclass(kw_only=True, slots=True)
class RandomPosterize(Policy):
    """Only the highest bits of each value kept, with probability `p`.

    Attributes:
        bits: how many bits stay, of 8.
    """

    name: str = "RandomPosterize"
    bits: int = option(4, check_int, 0, 8)
    p: float = option(0.5, check_number, 0, 1)

    slots: ClassVar[tuple[Slot, ...]] = (Slot(("Posterize",)),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        happens, *_ = draws.uniform(first)
        return choose_op("Posterize", np.full_like(happens, self.bits), happens < self.p)


@dataclass(kw_only=True, slots=True)
class RandomSolarize(Policy):
    """All values from a threshold on inverted, with probability `p`, as in BYOL (Grill et al.,
    NeurIPS 2020, appendix B).

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
        return choose_op("Solarize", np.full_like(happens, between), happens < self.p)


@dataclass(kw_only=True, slots=True)
class RandomAutocontrast(Policy):
    """The darkest value of each channel made 0 and the brightest 255, with probability `p`."""

    name: str = "RandomAutocontrast"
    p: float = option(0.5, check_number, 0, 1)

    slots: ClassVar[tuple[Slot, ...]] = (Slot(("AutoContrast",)),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        happens, *_ = draws.uniform(first)
        return choose_op("AutoContrast", np.zeros_like(happens), happens < self.p)


@dataclass(kw_only=True, slots=True)
class RandomEqualize(Policy):
    """The histogram of each channel flattened, with probability `p`.

    Attributes:
        equalize: how, "opencv" or "torchvision" (docs/augmentation.md).
    """

    name: str = "RandomEqualize"
    p: float = option(0.5, check_number, 0, 1)
    equalize: str = equalize_option()

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot((EQUALIZE[self.equalize],)),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        happens, *_ = draws.uniform(first)
        return choose_op(EQUALIZE[self.equalize], np.zeros_like(happens), happens < self.p)


@dataclass(kw_only=True, slots=True)
class RandomAdjustSharpness(Policy):
    """Another sharpness, with probability `p`.

    Attributes:
        sharpness_factor: 0 blurs, 1 changes nothing, 2 doubles the sharpness.
    """

    name: str = "RandomAdjustSharpness"
    sharpness_factor: float = option(2.0, check_number, 0, 1000)
    p: float = option(0.5, check_number, 0, 1)

    slots: ClassVar[tuple[Slot, ...]] = (Slot(("Sharpness",)),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        happens, *_ = draws.uniform(first)
        return choose_op(
            "Sharpness", np.full_like(happens, self.sharpness_factor - 1), happens < self.p
        )


@dataclass(kw_only=True, slots=True)
class RandomGrayscale(Policy):
    """Gray in three channels, with probability `p`."""

    name: str = "RandomGrayscale"
    p: float = option(0.1, check_number, 0, 1)

    colors: ClassVar[str] = "RandomGrayscale"
    slots: ClassVar[tuple[Slot, ...]] = (Slot(("Color",)),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        # -1 makes the factor 0: nothing of the colour is left
        happens, *_ = draws.uniform(first)
        return choose_op("Color", np.full_like(happens, -1), happens < self.p)


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
