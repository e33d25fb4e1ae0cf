"""Decodes one image with Pillow and cuts the planned views out of it."""

from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import NamedTuple

import numpy as np
from PIL import Image

from dali_pipes.backends.common import whole_image
from dali_pipes.backends.common.gray import as_array, in_channels
from dali_pipes.backends.common.pixels import crop_and_flip
from dali_pipes.backends.common.plain_resize import resize_plain
from dali_pipes.data.image_files.stored import open_stored, upright
from dali_pipes.plan.geometry import Geometry, Pair
from dali_pipes.plan.transforms import INTERPOLATIONS, Transform
from dali_pipes.plan.whole import WholeSteps
from dali_pipes.plan.whole.base import DrawnStep


class View(NamedTuple):
    """What is made of one image."""

    transform: Transform
    geometry: Geometry
    shape: Pair  # height and width of the output
    before: tuple[DrawnStep, ...] = ()  # steps on the whole image
    place: int | None = None  # of its interpolation in `INTERPOLATIONS`; None: the transform's

    @property
    def interpolation(self) -> str:
        return self.transform.interpolation if self.place is None else INTERPOLATIONS[self.place]

    @property
    def source(self) -> np.ndarray:
        """Height and width of the image when it was scanned."""
        return self.before[0].source if self.before else self.geometry.source

    @property
    def steps_before(self) -> WholeSteps:
        """The steps of which `before` is drawn."""
        return getattr(self.transform, "before", [])


def read(
    encoded: np.ndarray, name: str, views: Iterable[View], orientation: int = 1
) -> Iterator[np.ndarray]:
    """(height, width, channels) uint8 for each view of an image, which is decoded once.

    Args:
        encoded: the bytes of the file.
        name: for messages.
        orientation: EXIF's, 1 to 8, as the manifest has it: the image is turned by it. 1: the
            pixels are taken as stored.
    """
    with open_stored(BytesIO(encoded.data)) as file:
        image: Image.Image = file
        for at, view in enumerate(views):
            # decodes the file for the first view; the others use the same image
            if not at:
                image = upright(file, orientation)
            check_size(name, view.source, image.height, image.width)

            if not at or not view.transform.shares_resize:
                resized = _resize_region(image, view)
            yield crop_and_flip(resized, view.geometry, view.shape)


def _resize_region(image: Image.Image, view: View) -> np.ndarray:
    channels = view.transform.channels
    if view.before:
        image = in_channels(image, channels)
        image = whole_image.change(image, view.before, view.steps_before)
    region = in_channels(_cut_region(image, *map(int, view.geometry.region)), channels)

    height, width = map(int, view.geometry.resize)
    if view.transform.is_plain:
        return resize_plain(as_array(region), (height, width))
    # Pillow's NEAREST is what PyTorch calls "nearest-exact"
    method = Image.Resampling[view.interpolation.removesuffix("-exact").upper()]
    return as_array(region.resize((width, height), method))


def _cut_region(image: Image.Image, top: int, left: int, height: int, width: int) -> Image.Image:
    """A part of an image; the image itself, not a copy, if that is all of it.

    Pillow's `crop` refuses a part with more pixels than its limit, which a scan may lift.
    """
    if (height, width) == (image.height, image.width):
        return image

    if height * width > (Image.MAX_IMAGE_PIXELS or height * width):
        return Image.fromarray(
            np.asarray(image.convert("RGB"))[top : top + height, left : left + width]
        )

    return image.crop((left, top, left + width, top + height))


def check_size(name: str, planned: np.ndarray, height: int, width: int) -> None:
    """Raises a ValueError if the image has another size than when it was scanned.

    Otherwise a file that was replaced since would be cropped in the wrong place.
    """
    if (height, width) != tuple(planned):
        raise ValueError(
            f"{name}: {width} × {height} pixels, but {planned[1]} × {planned[0]} when it was "
            "scanned; scan again"
        )
