"""One planned image with Pillow."""

from io import BytesIO

import numpy as np
from PIL import Image, ImageOps

from dali_pipes.backends.common.pixels import cut
from dali_pipes.data.scanning.decoders import FORMATS
from dali_pipes.plan.geometry import Int


def read(encoded: np.ndarray, name: str, size: int, upright: bool, source: Int, window: Int, resize: Int, crop: Int) -> np.ndarray:
    """(size, size, 3) uint8 from an image's encoded bytes; `name` is for messages."""
    top, left, height, width = map(int, window)
    with Image.open(BytesIO(encoded.data), formats=FORMATS) as file:
        image = ImageOps.exif_transpose(file) if upright else file
        check_size(name, source, image.height, image.width)
        image = image.crop((left, top, left + width, top + height))
    if image.mode != "RGB":
        image = image.convert("RGB")
    image = image.resize((int(resize[1]), int(resize[0])), Image.Resampling.BILINEAR)
    return cut(np.asarray(image), crop, size)


def check_size(name: str, planned: np.ndarray, height: int, width: int) -> None:
    """A file that was replaced since the scan would be cropped in the wrong place."""
    if (height, width) != tuple(planned):
        raise ValueError(f"{name}: {width} × {height} pixels, but {planned[1]} × {planned[0]} when it was scanned; scan again")
