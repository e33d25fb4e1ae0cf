"""Moves the pixels of a further image of a sample, such as a depth map, as those of its image.

It is the same with every backend. A picture of 8 bits a channel becomes what the torch backend
makes of an image before it changes colors.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from dali_pipes.backends.common.pixels import TORCH_DTYPES
from dali_pipes.backends.common.plain_resize import resize_plain
from dali_pipes.plan.augment.operations import Augmentation, Slot
from dali_pipes.plan.coordinates import MASK_INTERPOLATIONS, mask_indices
from dali_pipes.plan.geometry import Geometry, Pair
from dali_pipes.plan.transforms import TargetImage

Values = NDArray[Any]
_LARGEST_FP16 = 65504.0


def move_target(
    values: Values,
    options: TargetImage,
    interpolation: str,
    antialias: bool,
    geometry: Geometry,
    shape: Pair,
) -> Values:
    """(*shape × size_factor, C) of the stored values, (H, W, C), cropped, resized and flipped as
    an image is.

    Args:
        interpolation: of the resize; that of the options, or the image's.
        geometry, shape: of the one image; its output has this shape.
    """
    place = options.place(geometry, (values.shape[0], values.shape[1]))
    shape = shape[0] * options.size_factor, shape[1] * options.size_factor

    if interpolation in MASK_INTERPOLATIONS:
        lines, columns = mask_indices(place, shape, interpolation)
        made = _with_room(values[lines[:, None], columns], options.fill)
        made[lines < 0], made[:, columns < 0] = options.fill, options.fill
        return made

    top, left, height, width = map(int, place.region)
    region = values[top : top + height, left : left + width]
    to = int(place.resize[0]), int(place.resize[1])
    resized = resize_values(region, to, interpolation, antialias)
    return _crop_and_flip(_with_room(resized, options.fill), place, shape, options.fill)


def _with_room(values: Values, fill: float) -> Values:
    """The values in a dtype that holds `fill` too: float32, if that is no byte."""
    is_byte = 0 <= fill <= 255 and fill == int(fill)
    return values if is_byte else values.astype(np.float32)


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


def _crop_and_flip(values: Values, place: Geometry, shape: Pair, fill: float) -> Values:
    top, left = map(int, place.crop)
    made = np.full((*shape, values.shape[2]), fill, values.dtype)
    # what of the output shows the image, and what of the image that is
    down, right = max(0, -top), max(0, -left)
    bottom, end = max(0, top + shape[0]), max(0, left + shape[1])  # 0: wholly outside
    seen = values[max(0, top) : bottom, max(0, left) : end]
    made[down : down + seen.shape[0], right : right + seen.shape[1]] = seen
    return made[:: -1 if place.vertical_flip else 1, :: -1 if place.flip else 1]


def augment_moved(
    values: Values,
    options: TargetImage,
    interpolation: str,
    slots: tuple[Slot, ...],
    drawn: Augmentation,
    at: int,
) -> torch.Tensor:
    """(C, H, W) of what `move_target` returns, moved by the operations on image `at`."""
    image = torch.from_numpy(np.ascontiguousarray(values)).permute(2, 0, 1)
    if not drawn.ops[at].any() and not drawn.moves[at].size:
        return image
    # torchvision takes longer to import than PyTorch
    from dali_pipes.backends.common.torchvision_augment import augment_target

    return augment_target(
        image,
        slots,
        drawn.ops[at],
        drawn.magnitudes[at],
        drawn.moves[at],
        interpolation in MASK_INTERPOLATIONS,
        options.fill,
        options.size_factor,
    )


def range_problem(values: Values, white: float, options: TargetImage) -> str | None:
    """Returns why stored values do not fit into the dtype of the options; None: they do.

    Infinite values stay infinite.

    Args:
        values, white: as `decode_target_image` returns them.
    """
    if options.dtype != "fp16":
        return None
    stored = np.append(values[np.isfinite(values)].astype(np.float64), options.fill)
    scale = 1 / white if options.scale is None else options.scale
    scaled = np.array([[stored.min()], [stored.max()]]) * scale
    largest = np.abs((scaled - np.array(options.mean)) / np.array(options.std)).max()
    if largest <= _LARGEST_FP16:
        return None
    return (
        f"a value becomes {largest:,.0f}, and fp16 ends at {_LARGEST_FP16:,.0f}; set dtype to fp32 "
        "or bf16, or a smaller scale"
    )


def scale_target(image: torch.Tensor, options: TargetImage, white: float) -> torch.Tensor:
    """(C, H, W) scaled and normalized, in its dtype.

    Args:
        white: the stored value that becomes 1 without a `scale`.
    """
    dtype = TORCH_DTYPES[options.dtype]
    if dtype == torch.uint8:
        return image
    # divided, as torchvision does it: the product with 1 / 255 has other last bits
    scaled = image.to(torch.float32)
    scaled = scaled / white if options.scale is None else scaled * options.scale

    if options.mean != 0 or options.std != 1:
        mean, std = (
            torch.tensor(each, dtype=torch.float32, device="cpu").reshape(-1, 1, 1)
            for each in (options.mean, options.std)
        )
        scaled = scaled.sub_(mean).div_(std)
    if dtype == torch.float16:
        # a bicubic filter goes beyond the largest value, which `range_problem` finds to fit
        most = _LARGEST_FP16
        scaled = torch.where(scaled.isinf(), scaled, scaled.clamp(-most, most))
    return scaled.to(dtype)
