"""One planned image with Pillow."""

from io import BytesIO

import numpy as np
from PIL import Image, ImageOps

from dali_pipes.backends.common.pixels import crop_and_flip
from dali_pipes.data.scanning.decoders import FORMATS
from dali_pipes.plan.geometry import Geometry
from dali_pipes.plan.transforms import Transform


def read(encoded: np.ndarray, name: str, transform: Transform, planned: Geometry) -> np.ndarray:
    """(height, width, 3) uint8 from an image's encoded bytes; `name` is for messages."""
    top, left, height, width = map(int, planned.window)
    with Image.open(BytesIO(encoded.data), formats=FORMATS) as file:
        image = ImageOps.exif_transpose(file) if transform.exif == "apply" else file
        check_size(name, planned.source, image.height, image.width)
        image = image.crop((left, top, left + width, top + height))
    if image.mode != "RGB":
        image = image.convert("RGB")
    method = Image.Resampling[transform.interpolation.removesuffix("-exact").upper()]  # Pillow's NEAREST is exact
    image = image.resize((int(planned.resize[1]), int(planned.resize[0])), method)
    return crop_and_flip(np.asarray(image), planned, transform.shape)


def check_size(name: str, planned: np.ndarray, height: int, width: int) -> None:
    """A file that was replaced since the scan would be cropped in the wrong place."""
    if (height, width) != tuple(planned):
        raise ValueError(f"{name}: {width} × {height} pixels, but {planned[1]} × {planned[0]} when it was scanned; scan again")
