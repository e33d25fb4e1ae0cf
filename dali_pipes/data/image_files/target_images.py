"""One further image of a sample, such as a depth map: what is wrong with it, and its values."""

from io import BytesIO
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from dali_pipes.data.image_files.stored import open_any, open_stored, orientation_of
from dali_pipes.data.upright import upright_size

_LARGEST_FACTOR = 16  # of height and width, against those of the image
# Pillow's names of one channel of 8 bits, and of one of more, by the number that is 1 in the image
_GRAY = ("1", "L", "LA")
_WIDE = {"I;16": 65535.0, "I;16B": 65535.0, "I;16L": 65535.0, "I": 1.0, "F": 1.0}
NUMBERS_OF_8_BITS = 255.0
_BITS_PER_SAMPLE, _SAMPLE_FORMAT = 258, 339  # tags of a TIFF; its format 1 is unsigned integers


class TargetPlace(NamedTuple):
    """Where a further image belongs.

    Attributes:
        height, width: of its image; the file has these, or 2, 3 … 16 times as much.
        orientation: EXIF's that the file may have besides 1.
        is_upright: whether it is of the upright picture.
    """

    height: int
    width: int
    orientation: int
    is_upright: bool


def place_of(height: int, width: int, orientation: int, is_upright: bool) -> TargetPlace:
    """Where the further images of an image belong.

    Args:
        height, width, orientation: of the image as stored, and its EXIF orientation.
        is_upright: whether they are of the upright picture.
    """
    if is_upright:
        return TargetPlace(*upright_size(height, width, orientation), 1, is_upright)
    return TargetPlace(height, width, orientation, is_upright)


def target_image_problem(
    file: BinaryIO,
    place: TargetPlace,
    verify: str,
    channels: int | None = None,
    dtype: str = "fp32",
) -> str | None:
    """Returns what is wrong with a further image; None: nothing.

    Args:
        verify: "full" decodes it, anything else reads its header.
        channels, dtype: as of a `TargetImage`; None: any.
    """
    try:
        image: Any = open_stored(file)
        why = (
            _size_problem(image, place)
            or _kind_problem(image)
            or (channels and channel_problem(image.mode, channels, dtype))
        )
        if why:
            return str(why)
        if verify == "full":
            image.load()
            return _values_problem(image)
    except UnidentifiedImageError:
        return _other_format(file)
    except Exception as error:  # Pillow's plugins raise almost anything on broken files
        return f"broken ({type(error).__name__}: {error})"
    return None


def _other_format(file: BinaryIO) -> str:
    try:
        return f"{open_any(file).format} format; save it as PNG, JPEG or TIFF"
    except Exception:  # Pillow's plugins raise almost anything on broken files
        return "not an image, or broken"


def _size_problem(image: Image.Image, place: TargetPlace) -> str | None:
    factor = image.height // place.height
    if not (
        1 <= factor <= _LARGEST_FACTOR
        and image.size == (factor * place.width, factor * place.height)
    ):
        other, how = (
            ("stored", "it is stored") if place.is_upright else ("upright", "its EXIF tag turns it")
        )
        turned = (
            f"; set annotated='{other}' if it shows the image as {how}, or"
            if image.size == (place.height, place.width)
            else ";"
        )
        return (
            f"{image.width} × {image.height}, and the image is {place.width} × {place.height}"
            f"{turned} make them equal, or the former 2 to {_LARGEST_FACTOR} times as large"
        )

    # as stored it would show something else than the image, of the same size
    if (turn := orientation_of(image)) not in (1, place.orientation):
        return f"its EXIF orientation is {turn}, and its image is not turned so; save it turned"
    return None


def _kind_problem(image: Any) -> str | None:
    """Refuses pixels of which Pillow would keep 8 bits only."""
    if image.mode in _WIDE or (bits := _bits_of(image)) <= 8:
        return None
    return f"colors of {bits} bits; save it with 8 bits a channel"


def _bits_of(image: Any) -> int:
    """How many bits a channel has in the file; 8 also stands for fewer."""
    if image.format == "TIFF":
        # with a plane for each channel, what Pillow unpacks does not tell it
        return int(max(image.tag_v2.get(_BITS_PER_SAMPLE, (1,))))
    packed = image.tile[0][3] if getattr(image, "tile", None) else ""
    told = packed if isinstance(packed, tuple) else (packed,)
    if image.format == "PPM":
        # the largest value; in a file with 255 or 65535 Pillow may leave it out
        return 16 if any(isinstance(each, int) and each > 255 for each in told) else 8
    return 16 if ";16" in str(told[:1]) else 8


def _values_problem(image: Any) -> str | None:
    """Refuses values that Pillow does not read as they are; the image is loaded."""
    if (
        image.format == "TIFF"
        and image.mode == "I"
        and image.tag_v2.get(_SAMPLE_FORMAT, (1,))[0] == 1
        and image.getextrema()[0] < 0
    ):
        return "integers from 2,147,483,648 on, which are read as negative; save it as fractions"
    return None


def channel_problem(mode: str, channels: int, dtype: str) -> str | None:
    """Returns why an image of this mode of Pillow's does not have these channels; None: it has."""
    if mode in _WIDE and channels == 3:
        return "gray of more than 8 bits; set channels to 1"
    if mode in _WIDE and dtype == "uint8":
        return "gray of more than 8 bits; set dtype to fp32"
    if mode not in _WIDE and mode not in _GRAY and channels == 1:
        return "colors; set channels to 3, or save it as gray"
    return None


def decode_target_image(encoded: BytesIO, channels: int) -> tuple[NDArray[Any], float]:
    """Decodes a further image that `target_image_problem` finds nothing wrong with.

    Returns:
        (H, W, channels), uint8, or float32 for more than 8 bits; and which value is white: 255,
        4095, 65535, or 1 where nothing says it.

    Raises:
        ValueError: it has values that cannot be read as they are.
    """
    with open_stored(encoded) as image:
        if image.mode not in _WIDE:
            values = np.asarray(image.convert("L" if channels == 1 else "RGB"))
            return values.reshape(*values.shape[:2], channels), NUMBERS_OF_8_BITS
        image.load()
        if why := _values_problem(image):
            raise ValueError(why)

        white = _WIDE[image.mode]
        if image.format == "TIFF" and white != 1:
            white = 2.0 ** _bits_of(image) - 1  # such as of 12 bits
        if image.format == "PPM" and image.mode == "I":
            white = 65535.0  # Pillow's reader stretches all that has more than 8 bits to 16
        return np.asarray(image).astype(np.float32)[..., None], white
