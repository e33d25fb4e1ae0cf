"""What is made of further images that a manifest has beside each image, such as depth maps."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dali_pipes.checks import check_choice, check_if_given, check_int, check_number, describe_value
from dali_pipes.errors import ConfigError, OptionError
from dali_pipes.options import Options, check_options, option
from dali_pipes.plan.coordinates import MASK_INTERPOLATIONS
from dali_pipes.plan.geometry import Geometry

# the names that PyTorch and TensorFlow have for them
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "uint8": "uint8"}
LARGEST_FACTOR = 16  # of heights and widths, against those of the image
_LARGEST = 1e9  # of the numbers that values are scaled by


def _check_channels(option: str, value: int) -> None:
    if value not in (1, 3):
        raise ConfigError(f"{option} is {value}; it takes 1 or 3")


def _check_values(option: str, value: Any, lowest: float = -_LARGEST) -> float | tuple[float, ...]:
    """One number, or one for each of three channels."""
    several = isinstance(value, (list, tuple))
    if several and len(value) != 3:
        raise ConfigError(
            f"{option} is {describe_value(value)}; it takes a number, or three for red, green and "
            "blue"
        )
    values = [
        check_number(option, each, lowest, _LARGEST) for each in (value if several else [value])
    ]
    return tuple(map(float, values)) if several else float(values[0])


@dataclass(kw_only=True, slots=True)
class TargetImage(Options):
    """What is made of a further image: a depth map, the clean image of a noisy one, the large image
    of a small one, or what another camera saw.

    It is cropped, resized, flipped, sheared, translated and rotated as its image is. Colors and
    erasing do not change it. `Targets.images` names the files.

    Attributes:
        interpolation: of the resize: "bilinear" or "bicubic", antialiased as the image is, or one
            of `mask_interpolation`, which takes stored values as they are, as depth maps need;
            None: as the image.
        channels: 1 or 3. With 3, gray becomes three equal channels.
        dtype: "fp32", "fp16", "bf16", or "uint8", which leaves values of 8 bits as they are.
        scale: what stored values are multiplied by, such as 0.001 for millimeters; None: 1/255 for
            files of 8 bits, 1/4095 for those of 12, 1/65535 for those of 16, and 1 for others. A
            file with a value that fp16 does not hold is a bad sample.
        mean, std: the scaled values have the mean subtracted and are divided by std; a number, or
            one for each channel.
        fill: the stored value of pixels outside the image, which are scaled and normalized as
            others are; with dtype "uint8" a byte.
        size_factor: how many times as high and wide the result is as the image, for
            super-resolution.
    """

    interpolation: str | None = option(
        None, check_choice, (None, "bilinear", "bicubic", *MASK_INTERPOLATIONS)
    )
    channels: int = option(3, _check_channels)
    dtype: str = option("fp32", check_choice, tuple(DTYPES))
    scale: float | None = option(None, check_if_given, check_number, 1e-9, _LARGEST)
    mean: Any = option(0.0, _check_values)
    std: Any = option(1.0, _check_values, 1e-9)
    fill: float = option(0.0, check_number, -_LARGEST, _LARGEST)
    size_factor: int = option(1, check_int, 1, LARGEST_FACTOR)

    def __post_init__(self) -> None:
        check_options(self)
        if self.channels == 1 and not (np.ndim(self.mean) == np.ndim(self.std) == 0):
            raise OptionError(type(self), "channels is 1, so mean and std are a number each")

        changed = self.scale is not None or self.mean != 0 or self.std != 1
        if self.dtype == "uint8" and changed:
            raise OptionError(
                type(self),
                "dtype is uint8, which leaves values as they are; leave out scale, mean and std, "
                "or take another dtype",
            )
        if self.dtype == "uint8" and not (0 <= self.fill <= 255 and self.fill == int(self.fill)):
            raise OptionError(
                type(self), f"dtype is uint8, and fill is {self.fill:g}; it takes 0 to 255"
            )

    def place(self, geometry: Geometry, stored: tuple[int, int]) -> Geometry:
        """The geometry of this image, if that of its image is `geometry`.

        Args:
            geometry: of one image.
            stored: height and width of the file, a multiple of those of the image.
        """
        larger, factor = stored[0] // int(geometry.source[0]), self.size_factor
        return replace(
            geometry,
            source=geometry.source * larger,
            region=geometry.region * larger,
            resize=geometry.resize * factor,
            crop=geometry.crop * factor,
        )


def check_target_images(option: str, values: Any) -> dict[str, TargetImage]:
    """The options of each further image by its name; a mapping becomes a `TargetImage`."""
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"{option} is {describe_value(values)}; it takes options by the names of "
            "Targets.images, such as {'depth': {'channels': 1}}"
        )

    made: dict[str, TargetImage] = {}
    for name, value in values.items():
        if not isinstance(value, (TargetImage, Mapping)):
            raise ConfigError(
                f"{option}: {name} is {describe_value(value)}; it takes a TargetImage, or its "
                "options, such as {'channels': 1}"
            )
        try:
            made[str(name)] = (
                # a new one: replace() checks what was set since it was made
                replace(value) if isinstance(value, TargetImage) else TargetImage(**value)
            )
        except OptionError as error:
            # without the class, which a command line has no name for
            raise ConfigError(f"{option}: {name}: {''.join(map(str, error.parts))}") from None
        except TypeError as error:
            raise ConfigError(f"{option}: {name}: {error}") from None
    return made
