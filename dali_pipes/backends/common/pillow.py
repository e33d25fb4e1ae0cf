"""One planned image with Pillow."""

from collections.abc import Iterable, Iterator
from io import BytesIO

import numpy as np
from PIL import Image

from dali_pipes.backends.common.pixels import crop_and_flip
from dali_pipes.data.scanning.stored import open_stored, upright
from dali_pipes.plan.geometry import Geometry, Pair
from dali_pipes.plan.transforms import Transform

# of one image: its geometry, and height and width of what is made
View = tuple[Transform, Geometry, Pair]


def read(
    encoded: np.ndarray, name: str, views: Iterable[View], orientation: int = 1
) -> Iterator[np.ndarray]:
    """(height, width, 3) uint8 for each view from an image's encoded bytes, decoded once.

    Args:
        name: for messages.
        orientation: EXIF's, by the manifest, which the image is turned by; 1: the pixels as stored.
    """
    with open_stored(BytesIO(encoded.data)) as file:
        image: Image.Image = file
        for at, (transform, planned, shape) in enumerate(views):
            if not at:
                image = upright(file, orientation)
            check_size(name, planned.source, image.height, image.width)
            window = _window(image, *map(int, planned.window))
            if window.mode != "RGB":
                window = window.convert("RGB")
            # Pillow's NEAREST is exact
            method = Image.Resampling[transform.interpolation.removesuffix("-exact").upper()]
            resized = window.resize((int(planned.resize[1]), int(planned.resize[0])), method)
            yield crop_and_flip(np.asarray(resized), planned, shape)


def _window(image: Image.Image, top: int, left: int, height: int, width: int) -> Image.Image:
    """A part of an image; of all of it no copy. Pillow's `crop` refuses one above its limit on
    pixels, which a scan may lift.
    """
    if (height, width) == (image.height, image.width):
        return image
    if height * width > (Image.MAX_IMAGE_PIXELS or height * width):
        return Image.fromarray(
            np.asarray(image.convert("RGB"))[top : top + height, left : left + width]
        )
    return image.crop((left, top, left + width, top + height))


def check_size(name: str, planned: np.ndarray, height: int, width: int) -> None:
    """A file that was replaced since the scan would be cropped in the wrong place."""
    if (height, width) != tuple(planned):
        raise ValueError(
            f"{name}: {width} × {height} pixels, but {planned[1]} × {planned[0]} when it was "
            "scanned; scan again"
        )
