"""Decodes one image on the CPU: with Pillow, or with the JPEG decoder of torchvision or TorchCodec.

Pillow decodes the other formats, and images of 16 bits a channel (wide.py).
"""

from collections.abc import Sequence
from io import BytesIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from dali_pipes.backends.pixels import whole
from dali_pipes.backends.pixels.finish import DecodedTensor, Pixels, as_one
from dali_pipes.backends.pixels.gray import as_array, as_tensor, in_channels
from dali_pipes.backends.pixels.plain_resize import resize_plain
from dali_pipes.data.image_files.jpeg import decoder_of
from dali_pipes.data.image_files.stored import open_stored
from dali_pipes.data.turns import FLIPS, TRANSPOSED, VERTICAL_FLIPS, turn_picture
from dali_pipes.plan.geometry import Pair
from dali_pipes.plan.steps.lists import WholeSteps
from dali_pipes.plan.steps.whole import DrawnStep


def decode(
    decoder: str,
    encoded: NDArray[np.uint8],
    name: str,
    size: NDArray[np.int64],
    orientation: int = 1,
    channels: int = 3,
) -> Pixels:
    """The pixels of an image, upright.

    Args:
        decoder: "pil", "torchvision" or "torchcodec".
        encoded: the bytes of the file.
        name: for messages.
        size: height and width when it was scanned, upright.
        orientation: EXIF's, 1 to 8, as the manifest has it: the image is turned by it. 1: the
            pixels are taken as stored.
        channels: of the result of `Pixels.resize`.

    Raises:
        ValueError: it has another size than when it was scanned. A broken file raises an error of
            almost any type.
    """
    # the first bytes of every JPEG
    if decoder == "pil" or encoded[:3].tobytes() != b"\xff\xd8\xff":
        image = turn_picture(open_stored(BytesIO(encoded.data)), orientation)
        check_size(name, size, image.height, image.width)
        return _PillowImage(image, channels)

    tensor = _turn_upright(decoder_of(decoder)(torch.from_numpy(encoded)), orientation)
    check_size(name, size, tensor.shape[1], tensor.shape[2])
    return DecodedTensor(tensor.permute(1, 2, 0), channels)


class _PillowImage:
    """An image of any mode, which Pillow decodes with its first use, and resizes."""

    def __init__(self, image: Image.Image, channels: int):
        self._image, self._channels = image, channels

    def change(self, drawn: Sequence[DrawnStep], steps: WholeSteps) -> "_PillowImage":
        image = in_channels(self._image, self._channels)
        return _PillowImage(whole.change(image, drawn, steps), self._channels)

    def resize(
        self, part: list[int], size: Pair, interpolation: str, antialias: bool
    ) -> torch.Tensor:
        region = in_channels(_cut_region(self._image, *part), self._channels)
        if not antialias:
            return as_one(torch.from_numpy(resize_plain(as_array(region), size)))
        # Pillow's NEAREST is what PyTorch calls "nearest-exact"
        method = Image.Resampling[interpolation.removesuffix("-exact").upper()]
        return as_one(as_tensor(region.resize(size[::-1], method)))


def _turn_upright(image: torch.Tensor, orientation: int) -> torch.Tensor:
    """(3, height, width) turned as EXIF's orientation, 1 to 8, says."""
    if orientation == 1:
        return image
    image = image.transpose(1, 2) if orientation in TRANSPOSED else image
    axes = [axis for axis, flips in ((1, VERTICAL_FLIPS), (2, FLIPS)) if orientation in flips]
    return image.flip(axes) if axes else image.contiguous()


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


def check_size(name: str, planned: NDArray[np.int64], height: int, width: int) -> None:
    """Raises a ValueError if the image has another size than when it was scanned.

    Otherwise a file that was replaced since would be cropped in the wrong place.
    """
    if (height, width) != tuple(planned):
        raise ValueError(
            f"{name}: {width} × {height} pixels, but {planned[1]} × {planned[0]} when it was "
            "scanned; scan again"
        )
