"""One planned image with Pillow."""

from collections.abc import Iterable, Iterator
from io import BytesIO

import numpy as np
from PIL import Image, ImageOps

from dali_pipes.backends.common.pixels import crop_and_flip
from dali_pipes.data.scanning.decoders import FORMATS
from dali_pipes.plan.geometry import Geometry, Pair
from dali_pipes.plan.transforms import Transform

View = tuple[Transform, Geometry, Pair]  # of one image: its geometry, and height and width of what is made


def read(encoded: np.ndarray, name: str, views: Iterable[View]) -> Iterator[np.ndarray]:
    """(height, width, 3) uint8 for each view from an image's encoded bytes, decoded once; `name` is for messages."""
    with Image.open(BytesIO(encoded.data), formats=FORMATS) as file:
        image: Image.Image = file
        for transform, planned, shape in views:
            if image is file and transform.exif == "apply":
                image = ImageOps.exif_transpose(file)
            check_size(name, planned.source, image.height, image.width)
            top, left, height, width = map(int, planned.window)
            window = image.crop((left, top, left + width, top + height))
            if window.mode != "RGB":
                window = window.convert("RGB")
            method = Image.Resampling[transform.interpolation.removesuffix("-exact").upper()]  # Pillow's NEAREST is exact
            resized = window.resize((int(planned.resize[1]), int(planned.resize[0])), method)
            yield crop_and_flip(np.asarray(resized), planned, shape)


def check_size(name: str, planned: np.ndarray, height: int, width: int) -> None:
    """A file that was replaced since the scan would be cropped in the wrong place."""
    if (height, width) != tuple(planned):
        raise ValueError(f"{name}: {width} × {height} pixels, but {planned[1]} × {planned[0]} when it was scanned; scan again")
