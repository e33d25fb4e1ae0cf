"""Decodes one image with the JPEG decoder of torchvision or TorchCodec; torchvision resizes it.

Pillow decodes the other formats.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2.functional import resize

from dali_pipes.backends.common import pillow as read_pil
from dali_pipes.backends.common.gray import gray_of
from dali_pipes.backends.common.pixels import crop_and_flip
from dali_pipes.backends.common.plain_resize import resize_plain
from dali_pipes.backends.common.whole_image import change_array
from dali_pipes.data.image_files.jpeg import decoder_of
from dali_pipes.plan.coordinates import FLIPS, TRANSPOSED, VERTICAL_FLIPS


def read(
    decoder: str,
    encoded: np.ndarray,
    name: str,
    views: Sequence[read_pil.View],
    orientation: int = 1,
) -> Iterator[np.ndarray]:
    """(height, width, channels) uint8 for each view, as Pillow's `read` with the same arguments.

    Args:
        decoder: "torchvision" or "torchcodec".
    """
    # the first bytes of every JPEG
    if encoded[:3].tobytes() != b"\xff\xd8\xff":
        yield from read_pil.read(encoded, name, views, orientation)
        return

    image = _upright(decoder_of(decoder)(torch.from_numpy(encoded)), orientation)
    for at, view in enumerate(views):
        if not at or not view.transform.shares_resize:
            resized = resize_region(image, name, view)
        yield crop_and_flip(resized.permute(1, 2, 0).numpy(), view.geometry, view.shape)


def _upright(image: torch.Tensor, orientation: int) -> torch.Tensor:
    """(3, height, width) turned as EXIF's orientation, 1 to 8, says."""
    if orientation == 1:
        return image
    image = image.transpose(1, 2) if orientation in TRANSPOSED else image
    axes = [axis for axis, flips in ((1, VERTICAL_FLIPS), (2, FLIPS)) if orientation in flips]
    return image.flip(axes) if axes else image.contiguous()


def resize_region(image: torch.Tensor, name: str, view: read_pil.View) -> torch.Tensor:
    """(channels, height, width) of the planned region of a decoded image, (3, H, W), resized."""
    read_pil.check_size(name, view.source, image.shape[1], image.shape[2])
    planned, transform = view.geometry, view.transform
    if view.before:
        image = gray_of(image) if transform.channels == 1 else image
        pixels = image.permute(1, 2, 0).contiguous()
        image = change_array(pixels, view.before, view.steps_before).permute(2, 0, 1)

    top, left, height, width = map(int, planned.region)
    region, size = image[:, top : top + height, left : left + width], planned.resize.tolist()
    if transform.channels < len(region):
        region = gray_of(region)
    if transform.is_plain:
        resized = resize_plain(region.permute(1, 2, 0).numpy(), (size[0], size[1]))
        return torch.from_numpy(resized).permute(2, 0, 1)
    mode = InterpolationMode(view.interpolation)
    return resize(region, size, mode, antialias=transform.antialias)
