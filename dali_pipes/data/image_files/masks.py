"""One mask file: the size that it must have, and what is wrong with it."""

from typing import Any, BinaryIO

from PIL import UnidentifiedImageError

from dali_pipes.data.image_files.headers import (
    Header,
    ScanOptions,
)
from dali_pipes.data.image_files.stored import open_any
from dali_pipes.data.turns import turn_size

# Pillow's names of pixels in a PNG that it reads as they are; it stretches gray of 2 and 4 bits
_EXACT = {"1", "L", "P", "P;1", "P;2", "P;4", "I;16B"}


def mask_size(header: Header, check: ScanOptions) -> tuple[int, int]:
    """Returns height and width that the mask of an image must have."""
    turned = header.orientation if check.targets.annotated == "upright" else 1
    return turn_size(header.height, header.width, turned)


def mask_problem(file: BinaryIO, height: int, width: int, verify: str) -> str | None:
    """Returns what is wrong with the mask of an image of this size; None: nothing."""
    try:
        image: Any = open_any(file)
        if image.format != "PNG":
            return f"{image.format} format; save it as PNG, which keeps its values"

        if image.size != (width, height):
            turned = (
                "; set annotated='upright' if it shows the image as its EXIF tag turns it, or"
                if image.size == (height, width)
                else ";"
            )
            return (
                f"not of the image's size ({image.width} × {image.height}, and the image is "
                f"{width} × {height}){turned} make them equal"
            )

        kind = image.tile[0][3]  # Pillow's raw mode: how the pixels are packed in the file
        if kind not in _EXACT:
            return (
                f"its pixels are {kind}; save it as a PNG of gray with 8 or 16 bits, or with a "
                "palette"
            )

        if verify == "full":
            image.load()
    except UnidentifiedImageError:  # its text has an address in memory
        return "not an image, or broken"
    except Exception as error:  # Pillow's plugins raise almost anything on broken files
        return f"broken ({type(error).__name__}: {error})"
    return None
