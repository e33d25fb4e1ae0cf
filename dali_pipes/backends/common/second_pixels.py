"""Moves the pixels of the second picture of a sample as those of its image.

It is the same with every backend: what the torch backend makes of an image before it changes
colors.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from dali_pipes.backends.common.plain_resize import resize_plain
from dali_pipes.plan.coordinates import mask_indices
from dali_pipes.plan.geometry import Geometry, Pair

Values = NDArray[Any]


def move_second(
    values: Values, interpolation: str, antialias: bool, geometry: Geometry, shape: Pair
) -> Values:
    """(*shape, C) of the stored values, (H, W, C) uint8, cropped, resized and flipped as an image
    is.

    Args:
        interpolation, antialias: of the resize of its image.
        geometry, shape: of the one image; its output has this shape.
    """
    if interpolation == "nearest-exact":
        # what this is of images, with Pillow
        lines, columns = mask_indices(geometry, shape, "pillow")
        made = values[lines[:, None], columns]
        made[lines < 0], made[:, columns < 0] = 0, 0
        return made

    top, left, height, width = map(int, geometry.region)
    region = values[top : top + height, left : left + width]
    to = int(geometry.resize[0]), int(geometry.resize[1])
    return _crop_and_flip(resize_values(region, to, interpolation, antialias), geometry, shape)


def resize_values(values: Values, to: Pair, interpolation: str, antialias: bool) -> Values:
    """(*to, C) of values, (H, W, C), in whole numbers of 8 bits, or in float32."""
    if not antialias:
        return _resize_plain(values, to, interpolation)
    if values.dtype == np.float32 and values.shape[2] > 1:
        # Pillow has no colors in float32
        planes = [_resize(values[..., [at]], to, interpolation) for at in range(values.shape[2])]
        return np.concatenate(planes, axis=2)
    return _resize(values, to, interpolation)


def _resize(values: Values, to: Pair, interpolation: str) -> Values:
    """The antialiased resize: Pillow's."""
    # as Pillow wants them: (H, W) with one channel
    image = Image.fromarray(
        np.ascontiguousarray(values[..., 0] if values.shape[2] == 1 else values)
    )
    method = Image.Resampling[interpolation.upper()]
    return np.asarray(image.resize((to[1], to[0]), method)).reshape(*to, values.shape[2])


def _resize_plain(values: Values, to: Pair, interpolation: str) -> Values:
    """The resize of the nearest values, four of them if it is bilinear and sixteen if bicubic."""
    if values.dtype == np.uint8:
        return resize_plain(values, to, interpolation == "bicubic")  # OpenCV's
    # PyTorch's cubic filter is OpenCV's too
    planes = torch.from_numpy(np.ascontiguousarray(values)).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(planes, to, mode=interpolation, align_corners=False)
    return resized[0].permute(1, 2, 0).numpy()


def _crop_and_flip(values: Values, place: Geometry, shape: Pair) -> Values:
    top, left = map(int, place.crop)
    made = np.zeros((*shape, values.shape[2]), values.dtype)
    # what of the output shows the image, and what of the image that is
    down, right = max(0, -top), max(0, -left)
    bottom, end = max(0, top + shape[0]), max(0, left + shape[1])  # 0: wholly outside
    seen = values[max(0, top) : bottom, max(0, left) : end]
    made[down : down + seen.shape[0], right : right + seen.shape[1]] = seen
    return made[:: -1 if place.vertical_flip else 1, :: -1 if place.flip else 1]
