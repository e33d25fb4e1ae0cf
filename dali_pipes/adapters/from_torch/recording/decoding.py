"""What a file of a picture or a mask decodes to, by Pillow."""

import io
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from dali_pipes.adapters.from_torch.recording.marks import (
    Pixels,
)
from dali_pipes.adapters.from_torch.recording.masks import MASK_MODES


def decode(source: Any) -> tuple[str, Pixels, Pixels | None]:
    """Returns the mode of a picture, its pixels (H, W, 3) uint8 in RGB, and the same pixels turned
    as its EXIF tag says (None: there is no tag).
    """
    with Image.open(source) as image:
        pixels = np.asarray(image.convert("RGB"))
        # EXIF's tag Orientation: 2 to 8 turn or mirror
        if image.getexif().get(0x0112, 1) not in range(2, 9):
            return image.mode, pixels, None
        return image.mode, pixels, np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def decode_mask(source: Any) -> tuple[str, Pixels] | None:
    """Returns the mode of a mask and its values (H, W), those of a palette are its indices; None:
    it is in colour, or has 16 bits.
    """
    with Image.open(source) as image:
        if image.mode not in MASK_MODES:
            return None
        return image.mode, np.asarray(image).astype(np.uint8)


# made-up pictures are the same bytes in all visits
@lru_cache(maxsize=64)
def decode_once(encoded: bytes) -> tuple[str, Pixels, Pixels | None]:
    return decode(io.BytesIO(encoded))
