"""Wide images: PNG and TIFF of 16 bits a channel, which a scan takes with `bits=16`.

`is_wide` says of an opened image whether it is one, `wide_problem` what keeps it from being used,
and `decode_wide` returns its values. No decoder but Pillow is asked for them.
"""

import sys
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dali_pipes.data.image_files.stored import open_stored

# what a manifest has as the format of a wide image, by Pillow's name of the format
WIDE_FORMATS = {"PNG": "PNG16", "TIFF": "TIFF16"}
_GRAY = ("I;16", "I;16B", "I;16L")  # Pillow's modes of gray with 16 bits
_COMPRESSIONS = ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "zstd")
# tags of a TIFF
BITS_PER_SAMPLE, MEANING, FILL_ORDER, PLANAR, SAMPLE_FORMAT = 258, 262, 266, 284, 339
_MEANINGS = (1, 2)  # of a TIFF's values: gray whose 0 is black, and RGB
_AS_PNG = "save it as gray or RGB, such as PNG"


def is_wide(image: Any) -> bool:
    """Whether an image of `open_stored`, not yet loaded, has 16 bits in each channel."""
    if image.format == "TIFF":
        return set(numbers_of(image.tag_v2.get(BITS_PER_SAMPLE, (1,)))) == {16}
    return image.format in WIDE_FORMATS and _raw_mode(image)[-4:-1] == ";16"


def wide_problem(image: Any) -> str | None:
    """Returns why a wide image cannot be used; None: it can."""
    if image.format == "TIFF" and (why := _tiff_problem(image)):
        return why
    if image.mode in _GRAY or _raw_mode(image).startswith("RGB;16"):
        return None
    return f"16 bits a channel that are neither gray nor RGB ({_raw_mode(image)}); {_AS_PNG}"


def more_bits_problem(image: Any) -> str:
    """The problem of an image of more than 8 bits a channel, where these are not taken."""
    takes = is_wide(image) and not wide_problem(image)
    instead = ", or open the manifest with bits=16 (docs/inputs.md)" if takes else ""
    return f"more than 8 bits a channel; convert it to 8 bits{instead}"


def _tiff_problem(image: Any) -> str | None:
    tags, compression = image.tag_v2, str(image.info.get("compression"))
    if compression not in _COMPRESSIONS:
        return f"TIFF of 16 bits compressed by {compression}; save it with LZW, or as PNG"
    if tags.get(PLANAR, 1) != 1:
        return "TIFF with its channels one after the other (planar); save it as PNG"
    if set(numbers_of(tags.get(SAMPLE_FORMAT, (1,)))) != {1}:
        return "TIFF with signed numbers; save it as PNG"
    if tags.get(MEANING) not in _MEANINGS or tags.get(FILL_ORDER, 1) != 1:
        return f"TIFF of 16 bits whose 0 is not black, or in another order of bits; {_AS_PNG}"
    return None


def decode_wide(encoded: BinaryIO) -> NDArray[np.uint16]:
    """(H, W, C) uint16 of a wide image as it is stored; C is 1 or 3.

    Raises:
        ValueError: it is another image. A broken one raises an error of almost any type.
    """
    with open_stored(encoded) as image:
        if not is_wide(image):
            raise ValueError("it does not have 16 bits a channel; scan again")
        if why := wide_problem(image):
            raise ValueError(why)
        if image.mode in _GRAY:
            image.load()
            return np.asarray(image).astype(np.uint16)[..., None]
        raw_mode = _raw_mode(image)
        upper = np.asarray(image)

    # Pillow has no colors of 16 bits. Its readers of them keep the first or the second byte of each
    # number (src/libImaging/Unpack.c, `unpackRGB16L` and `unpackRGB16B`); by itself it takes the
    # upper one, so the same file is decoded once more for the lower one.
    is_big = raw_mode.endswith("B") or (raw_mode.endswith("N") and sys.byteorder == "big")
    with open_stored(encoded) as image:
        _set_raw_mode(image, "RGB;16L" if is_big else "RGB;16B")
        lower = np.asarray(image)
    return upper.astype(np.uint16) << 8 | lower


def wide_refusal(encoded: BinaryIO, height: int, width: int) -> str | None:
    """Decodes a wide image; returns why that fails, or None."""
    try:
        shape = decode_wide(encoded).shape[:2]
    except Exception as error:  # any error of a decoder means that it refuses the file
        return f"cannot be decoded by Pillow ({error})"
    if shape != (height, width):
        return f"cannot be decoded by Pillow (it finds {shape[1]} × {shape[0]} pixels)"
    return None


def numbers_of(value: Any) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,)


def _raw_mode(image: Any) -> str:
    """How the pixels are packed in the file, in Pillow's words; "" if its plugin does not say."""
    if not getattr(image, "tile", None):
        return ""
    packed = image.tile[0][3]
    return str(packed[0] if isinstance(packed, tuple) else packed)


def _set_raw_mode(image: Any, raw_mode: str) -> None:
    image.tile = [
        tile._replace(args=(raw_mode, *tile[3][1:]) if isinstance(tile[3], tuple) else raw_mode)
        for tile in image.tile
    ]
