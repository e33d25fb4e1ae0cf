"""Moves values that are no bytes of an image: masks, and pixels in float32."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from dali_pipes.backends.pixels.plain_resize import resize_plain
from dali_pipes.plan.coordinates import mask_indices
from dali_pipes.plan.geometry import Geometry, Pair

Values = NDArray[Any]


def place_nearest(
    values: Values, geometry: Geometry, shape: Pair, interpolation: str, outside: int = 0
) -> Values:
    """(*shape) or (*shape, C) of values, (H, W) or (H, W, C), resized to the nearest one, in one
    step with crop and flips; `outside` fills what is not in the image.

    Args:
        geometry, interpolation: as for `mask_indices`.
    """
    lines, columns = mask_indices(geometry, shape, interpolation)
    made = values[lines[:, None], columns]
    made[lines < 0], made[:, columns < 0] = outside, outside
    return made


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
    # a copy, since PyTorch warns of an array that must not be written
    return np.array(image.resize((to[1], to[0]), method)).reshape(*to, values.shape[2])


def _resize_plain(values: Values, to: Pair, interpolation: str) -> Values:
    """The resize of the nearest values, four of them if it is bilinear and sixteen if bicubic."""
    if values.dtype == np.uint8:
        return resize_plain(values, to, interpolation == "bicubic")  # OpenCV's
    # PyTorch's cubic filter is OpenCV's too
    planes = torch.from_numpy(np.ascontiguousarray(values)).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(planes, to, mode=interpolation, align_corners=False)
    return resized[0].permute(1, 2, 0).numpy()
