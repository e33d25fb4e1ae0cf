"""torchvision's functions of tensors: v1's `_functional_tensor`, v2's kernels, and its decoders.

A function that returns the tensor that it got, or a view of it, is not noted for these arguments:
its `form` says None, and the function itself leaves what waits as it is.
"""

import math
import os
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from typing import Any

import numpy as np
import torch
from torchvision.io import ImageReadMode
from torchvision.transforms import _functional_tensor as v1
from torchvision.transforms.v2.functional import _geometry as v2

from dali_pipes.adapters.lazy.cells import dense
from dali_pipes.adapters.lazy.headers import header_of
from dali_pipes.adapters.lazy.recipes import OPENERS, Recipe, Source
from dali_pipes.adapters.lazy.state import waits
from dali_pipes.adapters.lazy.steps.step import NoPlace, Original, Step, add, replace
from dali_pipes.adapters.lazy.steps.torch_ops import plan_repeated
from dali_pipes.adapters.lazy.tensors import LazyTensor, lazy_of, new_tensor, waiting_tensor

_V1 = "torchvision.transforms._functional_tensor"
_V2 = "torchvision.transforms.v2.functional"
_GEOMETRY, _COLOR, _MISC, _AUGMENT = (
    f"{_V2}.{name}" for name in ("_geometry", "_color", "_misc", "_augment")
)
_FILTERS = ("nearest", "nearest-exact", "bilinear", "bicubic")


def _row(owner: str, attribute: str, form: Any, plan: Any = None, make: Any = None) -> Step:
    """A row for a function of tensors, which is called after its module."""
    last = owner.rpartition(".")[2].lstrip("_")
    name = f"{'v1' if owner == _V1 else f'v2.{last}'}.{attribute}"
    return Step(name, make, form, plan, owner=owner, attribute=attribute, on="tensor")


# How results lie in memory, where not as what they are made of: strides of (…, C, H, W)


def planes(shape: Any, _: Any = None) -> Any:
    return dense(shape, range(len(shape))[::-1])


def channels_last(shape: Any, _: Any = None) -> Any:
    *lead, height, width, channels = range(len(shape))[::-1]
    return dense(shape, (*lead, channels, height, width))


# Colors. None where torchvision complains, or returns the tensor itself.


def _form_same(
    allows: Callable[..., bool], layout: Any = None, channels: tuple[int, ...] = (1, 3)
) -> Callable[..., Any]:
    """Of images with this many channels, where arguments are such.

    Args:
        allows: of the tensor and the arguments.
        layout: as of `Step.form`.
    """

    def form(tensor: LazyTensor, *args: Any, **options: Any) -> Any:
        if tensor.sides[0] not in channels or not allows(tensor, *args, **options):
            return None
        found = tensor.sides, tensor.dtype
        return found if layout is None else (*found, layout)

    return form


def _allows_any(tensor: LazyTensor) -> bool:
    return True


def _allows_bytes(tensor: LazyTensor) -> bool:
    return tensor.dtype == torch.uint8


def _allows_factor(tensor: LazyTensor, *factor: Any, **named: Any) -> bool:
    (value,) = (*factor, *named.values())
    return isinstance(value, (int, float)) and value >= 0


def _allows_sharpness(tensor: LazyTensor, sharpness_factor: Any) -> bool:
    return _allows_factor(tensor, sharpness_factor) and min(tensor.sides[1:]) > 2


def _allows_hue(tensor: LazyTensor, hue_factor: Any) -> bool:
    return isinstance(hue_factor, (int, float)) and -0.5 <= hue_factor <= 0.5


def _allows_gamma(tensor: LazyTensor, gamma: float, gain: float = 1) -> bool:
    return gamma >= 0


def _allows_bits(tensor: LazyTensor, bits: int) -> bool:
    return type(bits) is int and 0 <= bits < 8


def _allows_bits_of_bytes(tensor: LazyTensor, bits: int) -> bool:
    return _allows_bytes(tensor) and 0 <= bits <= 8


def _allows_threshold(tensor: LazyTensor, threshold: float) -> bool:
    return threshold <= (1 if tensor.dtype.is_floating_point else 255)


def _allows_kernel(tensor: LazyTensor, kernel_size: Any, sigma: Any = None) -> bool:
    """The edges are reflected, so the kernel must not reach beyond the other side."""
    sizes, widths = _kernels(kernel_size, sigma)
    fits = max(sizes) // 2 < min(tensor.sides[1:])
    return fits and all(size > 0 and size % 2 for size in sizes) and all(w > 0 for w in widths)


def _kernels(kernel_size: Any, sigma: Any) -> tuple[Any, Any]:
    sizes = (kernel_size,) * 2 if isinstance(kernel_size, int) else tuple(kernel_size)
    if sigma is None:
        return sizes, [size * 0.15 + 0.35 for size in sizes]
    return sizes, (sigma,) if isinstance(sigma, (int, float)) else sigma


def _allows_permutation(tensor: LazyTensor, permutation: Any) -> bool:
    return len(permutation) == tensor.sides[0]


def _allows_quality(tensor: LazyTensor, quality: int) -> bool:
    return tensor.dtype == torch.uint8 and 1 <= quality <= 100


def _gray(name: str) -> Callable[..., Any]:
    """Three channels of gray are one in memory."""

    def note(original: Any, image: Any, num_output_channels: int = 1) -> torch.Tensor:
        lazy = waiting_tensor(image)
        known = num_output_channels == 1 or (num_output_channels == 3 and image.ndim == 3)
        if lazy is None or not lazy.is_image or lazy.sides[0] != 3 or not known:
            return original(image, num_output_channels)
        gray = lazy.then((1, *lazy.sides[1:]), lazy.dtype, name)
        return gray if num_output_channels == 1 else gray.expand(image.shape)

    return note


def form_rgb(tensor: LazyTensor) -> Any:
    return ((3, *tensor.sides[1:]), tensor.dtype, planes) if tensor.sides[0] == 1 else None


def plan_solarize(row: Any, threshold: float) -> None:
    row.operate("Solarize", (math.ceil(threshold) - 0.5) / 255)


def _plan_blend(op: str) -> Callable[..., None]:
    def plan(row: Any, *factor: float, **named: float) -> None:
        (value,) = (*factor, *named.values())
        row.operate(op, value - 1)

    return plan


def plan_blur(row: Any, kernel_size: Any, sigma: Any = None) -> None:
    sizes, widths = (set(each) for each in _kernels(kernel_size, sigma))
    if len(sizes) != 1 or len(widths) != 1:
        raise NoPlace("a blur that is not the same in both directions")
    row.operate("GaussianBlur", widths.pop(), sizes.pop())


def plan_permute(row: Any, permutation: Any) -> None:
    if list(permutation) != [2, 1, 0]:
        raise NoPlace("another order of the channels")
    row.swap_colors()


_FACTOR = _form_same(_allows_factor)
_COLORS: list[tuple[str, Any, Any, Any]] = [
    # name, form in v1, in v2, plan
    ("adjust_brightness", _FACTOR, _FACTOR, _plan_blend("Brightness")),
    ("adjust_contrast", _FACTOR, _FACTOR, _plan_blend("Contrast")),
    ("adjust_saturation", *(_form_same(_allows_factor, None, (3,)),) * 2, _plan_blend("Color")),
    ("adjust_sharpness", *(_form_same(_allows_sharpness),) * 2, _plan_blend("Sharpness")),
    (
        "adjust_hue",
        _form_same(_allows_hue, channels_last, (3,)),
        _form_same(_allows_hue, planes, (3,)),
        lambda row, hue_factor: row.operate("Hue", hue_factor),
    ),
    ("adjust_gamma", *(_form_same(_allows_gamma),) * 2, None),
    (
        "posterize",
        _form_same(_allows_bits_of_bytes),
        _form_same(_allows_bits),
        lambda row, bits: row.operate("Posterize", bits),
    ),
    ("solarize", *(_form_same(_allows_threshold),) * 2, plan_solarize),
    ("autocontrast", *(_form_same(_allows_any),) * 2, lambda row: row.operate("AutoContrast")),
    (
        "equalize",
        _form_same(_allows_bytes, planes),
        _form_same(_allows_any, planes),
        lambda row: row.operate("EqualizeInSteps"),
    ),
    ("invert", *(_form_same(_allows_any),) * 2, lambda row: row.operate("Invert")),
]
add(
    *[_row(_V1, name, form, plan) for name, form, _, plan in _COLORS],
    *[_row(_COLOR, f"{name}_image", form, plan) for name, _, form, plan in _COLORS],
    *[
        Step(name, None, None, lambda row: row.convert("L"), owner, attribute, _gray(name))
        for name, owner, attribute in [
            ("v1.rgb_to_grayscale", _V1, "rgb_to_grayscale"),
            ("v2.color.rgb_to_grayscale_image", _COLOR, "rgb_to_grayscale_image"),
        ]
    ],
    _row(_COLOR, "grayscale_to_rgb_image", form_rgb, lambda row: plan_repeated(row, 3, 0)),
    _row(
        _COLOR,
        "permute_channels_image",
        _form_same(_allows_permutation, planes, (1, 2, 3, 4)),
        plan_permute,
    ),
    _row(_V1, "gaussian_blur", _form_same(_allows_kernel, planes), plan_blur),
    _row(_MISC, "gaussian_blur_image", _form_same(_allows_kernel, planes), plan_blur),
    _row(_AUGMENT, "jpeg_image", _form_same(_allows_quality, planes)),
)


# Geometry


def form_resize(
    tensor: LazyTensor, size: Any, interpolation: Any = "bilinear", antialias: Any = True
) -> Any:
    form = form_resize_v2(tensor, size, interpolation, None, antialias)
    return None if form is None else (*form[:2], planes)


def form_resize_v2(
    tensor: LazyTensor,
    size: Any,
    interpolation: Any = "bilinear",
    max_size: Any = None,
    antialias: Any = True,
) -> Any:
    known = getattr(interpolation, "value", interpolation) in _FILTERS
    if not known or (size is None and max_size is None):
        return None
    new = _size_after(tuple(tensor.sides[1:]), size, max_size)
    if new == tensor.sides[1:]:
        return None
    # one image whose channels are last stays so
    is_last = tensor.like.stride()[-3:] == channels_last(tensor.sides)
    layout = channels_last if is_last and math.prod(tensor.shape[:-3]) == 1 else planes
    return (tensor.sides[0], *new), tensor.dtype, layout


def _size_after(old: tuple[int, ...], size: Any, max_size: Any) -> tuple[int, ...]:
    size = [size] if isinstance(size, int) else None if size is None else list(size)
    return tuple(v2._compute_resized_output_size(old, size=size, max_size=max_size))


def plan_resize(
    row: Any, size: Any, interpolation: Any = "bilinear", antialias: Any = True
) -> None:
    plan_resize_v2(row, size, interpolation, None, antialias)


def plan_resize_v2(
    row: Any,
    size: Any,
    interpolation: Any = "bilinear",
    max_size: Any = None,
    antialias: Any = True,
) -> None:
    kind = getattr(interpolation, "value", interpolation)
    if kind == "nearest" or not (antialias or kind == "nearest-exact"):
        raise NoPlace("a resize of a tensor by its nearest pixels, or without antialiasing")
    height, width = _size_after(row.size, size, max_size)
    row.resize(height, width, "nearest" if kind == "nearest-exact" else kind)


def sides_of(padding: Any) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of torchvision's `padding`."""
    sides = [padding] if isinstance(padding, int) else list(padding)
    left, top, right, bottom = sides if len(sides) == 4 else sides * (4 // len(sides))
    return left, top, right, bottom


def form_pad(
    tensor: LazyTensor, padding: Any, fill: Any = 0, padding_mode: str = "constant"
) -> Any:
    if not isinstance(fill, (int, float, type(None))):
        return None
    return _padded(tensor, sides_of(padding), padding_mode)


def form_pad_v2(tensor: LazyTensor, torch_padding: Any, fill: Any, padding_mode: str) -> Any:
    left, right, top, bottom = torch_padding
    return _padded(tensor, (left, top, right, bottom), padding_mode)


def _padded(tensor: LazyTensor, sides: Any, mode: str) -> Any:
    """None where PyTorch may complain: a mirrored part must not be larger than the image."""
    (left, top, right, bottom), (channels, height, width) = sides, tensor.sides
    fits = max(left, right) < width and max(top, bottom) < height
    if min(sides) < 0 or not any(sides) or not (mode in ("constant", "edge") or fits):
        return None
    return (channels, height + top + bottom, width + left + right), tensor.dtype, planes


def plan_pad(row: Any, padding: Any, fill: Any = 0, padding_mode: str = "constant") -> None:
    row.pad(*sides_of(padding), fill, padding_mode)


def plan_pad_v2(row: Any, torch_padding: Any, fill: Any, padding_mode: str) -> None:
    left, right, top, bottom = torch_padding
    row.pad(left, top, right, bottom, fill, padding_mode)


def form_center_crop(tensor: LazyTensor, output_size: Any) -> Any:
    """One that is not larger than the image is a view of it."""
    size = v2._center_crop_parse_output_size(output_size)
    if all(new <= old for new, old in zip(size, tensor.sides[1:], strict=True)):
        return None
    whole = [max(new, old) for new, old in zip(size, tensor.sides[1:], strict=True)]
    # a view of what was padded
    layout = lambda shape, _: planes((*shape[:-2], *whole))  # noqa: E731
    return (tensor.sides[0], *size), tensor.dtype, layout


def plan_center_crop(row: Any, output_size: Any) -> None:
    height, width = v2._center_crop_parse_output_size(output_size)
    row.pad(*v2._center_crop_compute_padding(height, width, *row.size))
    row.crop(*v2._center_crop_compute_crop_anchor(height, width, *row.size), height, width)


def _form_warp(
    tensor: LazyTensor, interpolation: Any, fill: Any, size: tuple[int, ...] | None = None
) -> Any:
    """None where torchvision complains."""
    channels, *sides = tensor.sides
    kind = getattr(interpolation, "value", interpolation)
    colors = len(fill) if isinstance(fill, (list, tuple)) else 1
    if kind not in ("nearest", "bilinear") or colors not in (1, channels):
        return None
    return (channels, *(size or sides)), tensor.dtype, planes


def _plan_centred(
    row: Any, matrix: Any, interpolation: Any, fill: Any, size: tuple[int, int] | None = None
) -> None:
    """A warp whose matrix is from the centre of the result to the centre of the image.

    PyTorch blends the edges of an image with what is outside where it interpolates; Pillow and the
    plan do not.
    """
    if getattr(interpolation, "value", interpolation) != "nearest":
        raise NoPlace("an interpolated warp of a tensor")
    height, width = size or row.size
    a, b, c, d, e, f = matrix
    c += row.size[1] / 2 - a * width / 2 - b * height / 2
    f += row.size[0] / 2 - d * width / 2 - e * height / 2
    row.warp((height, width), (a, b, c, d, e, f), "nearest", fill)


def _make_with_list(name: str) -> Callable[..., torch.Tensor]:
    """v1 insists on a list, which recipes do not keep."""
    function = Original(_V1, name)

    def make(tensor: torch.Tensor, matrix: Any, *args: Any, **options: Any) -> torch.Tensor:
        return function(tensor, list(matrix), *args, **options)

    return make


def form_affine(
    tensor: LazyTensor, matrix: Any, interpolation: Any = "nearest", fill: Any = None
) -> Any:
    return _form_warp(tensor, interpolation, fill)


def plan_affine(row: Any, matrix: Any, interpolation: Any = "nearest", fill: Any = None) -> None:
    _plan_centred(row, matrix, interpolation, fill)


def form_rotate(
    tensor: LazyTensor,
    matrix: Any,
    interpolation: Any = "nearest",
    expand: bool = False,
    fill: Any = None,
) -> Any:
    return _form_warp(tensor, interpolation, fill, _expanded(v1, tensor.sides, matrix, expand))


def _expanded(module: Any, sides: Any, matrix: Any, expand: bool) -> tuple[int, int] | None:
    if not expand:
        return None
    width, height = module._compute_affine_output_size(matrix, sides[-1], sides[-2])
    return height, width


def plan_rotate(
    row: Any,
    matrix: Any,
    interpolation: Any = "nearest",
    expand: bool = False,
    fill: Any = None,
) -> None:
    _plan_centred(row, matrix, interpolation, fill, _expanded(v1, row.size, matrix, expand))


def _affine_matrix(
    size: Any, angle: float, translate: Any, scale: float, shear: Any, center: Any
) -> Any:
    """As `affine_image` makes it (torchvision 0.25)."""
    angle, translate, shear, center = v2._affine_parse_args(
        angle, translate, scale, shear, v2.InterpolationMode.NEAREST, center
    )
    return v2._get_inverse_affine_matrix(
        _from_centre(center, size), angle, [float(each) for each in translate], scale, shear
    )


def _from_centre(center: Any, size: Any) -> list[float]:
    if center is None:
        return [0.0, 0.0]
    return [at - side * 0.5 for at, side in zip(center, size[::-1], strict=True)]


def form_affine_v2(
    tensor: LazyTensor,
    angle: float,
    translate: Any,
    scale: float,
    shear: Any,
    interpolation: Any = "nearest",
    fill: Any = None,
    center: Any = None,
) -> Any:
    with suppress(ValueError, TypeError):  # which the kernel raises, too
        _affine_matrix(tensor.sides[1:], angle, translate, scale, shear, center)
        return _form_warp(tensor, interpolation, fill)
    return None


def plan_affine_v2(
    row: Any,
    angle: float,
    translate: Any,
    scale: float,
    shear: Any,
    interpolation: Any = "nearest",
    fill: Any = None,
    center: Any = None,
) -> None:
    matrix = _affine_matrix(row.size, angle, translate, scale, shear, center)
    _plan_centred(row, matrix, interpolation, fill)


def _is_turned(size: Any, angle: float, expand: bool, center: Any) -> bool:
    """Whether `rotate_image` turns by multiples of 90 degrees, which PyTorch notes itself."""
    quarters, rest = divmod(angle % 360, 90)
    if rest or center is not None:
        return False
    return quarters % 2 == 0 or expand or size[0] == size[1]


def _rotation(size: Any, angle: float, center: Any) -> Any:
    return v2._get_inverse_affine_matrix(
        _from_centre(center, size), -(angle % 360), [0.0, 0.0], 1.0, [0.0, 0.0]
    )


def form_rotate_v2(
    tensor: LazyTensor,
    angle: float,
    interpolation: Any = "nearest",
    expand: bool = False,
    center: Any = None,
    fill: Any = None,
) -> Any:
    size = tensor.sides[1:]
    if _is_turned(size, angle, expand, center):
        return None
    matrix = _rotation(size, angle, center)
    return _form_warp(tensor, interpolation, fill, _expanded(v2, size, matrix, expand))


def plan_rotate_v2(
    row: Any,
    angle: float,
    interpolation: Any = "nearest",
    expand: bool = False,
    center: Any = None,
    fill: Any = None,
) -> None:
    matrix = _rotation(row.size, angle, center)
    _plan_centred(row, matrix, interpolation, fill, _expanded(v2, row.size, matrix, expand))


def form_perspective(
    tensor: LazyTensor, perspective_coeffs: Any, interpolation: Any = "bilinear", fill: Any = None
) -> Any:
    return _form_warp(tensor, interpolation, fill) if len(perspective_coeffs) == 8 else None


def plan_perspective(
    row: Any, perspective_coeffs: Any, interpolation: Any = "bilinear", fill: Any = None
) -> None:
    if getattr(interpolation, "value", interpolation) != "nearest":
        raise NoPlace("an interpolated warp of a tensor")
    row.warp(row.size, perspective_coeffs, "nearest", fill, perspective=True)


def form_perspective_v2(
    tensor: LazyTensor,
    startpoints: Any,
    endpoints: Any,
    interpolation: Any = "bilinear",
    fill: Any = None,
    coefficients: Any = None,
) -> Any:
    with suppress(ValueError):
        numbers = v2._perspective_coefficients(startpoints, endpoints, coefficients)
        return form_perspective(tensor, numbers, interpolation, fill)
    return None


def plan_perspective_v2(
    row: Any,
    startpoints: Any,
    endpoints: Any,
    interpolation: Any = "bilinear",
    fill: Any = None,
    coefficients: Any = None,
) -> None:
    numbers = v2._perspective_coefficients(startpoints, endpoints, coefficients)
    plan_perspective(row, numbers, interpolation, fill)


add(
    _row(_V1, "resize", form_resize, plan_resize),
    _row(_GEOMETRY, "resize_image", form_resize_v2, plan_resize_v2),
    _row(_V1, "pad", form_pad, plan_pad),
    _row(_GEOMETRY, "_pad_with_scalar_fill", form_pad_v2, plan_pad_v2),
    _row(_GEOMETRY, "_pad_with_vector_fill", form_pad_v2, plan_pad_v2),
    _row(_GEOMETRY, "center_crop_image", form_center_crop, plan_center_crop),
    _row(_V1, "affine", form_affine, plan_affine, _make_with_list("affine")),
    _row(_GEOMETRY, "affine_image", form_affine_v2, plan_affine_v2),
    _row(_V1, "rotate", form_rotate, plan_rotate, _make_with_list("rotate")),
    _row(_GEOMETRY, "rotate_image", form_rotate_v2, plan_rotate_v2),
    _row(_V1, "perspective", form_perspective, plan_perspective),
    _row(_GEOMETRY, "perspective_image", form_perspective_v2, plan_perspective_v2),
)


# Numbers, in place or not


def form_dtype(tensor: LazyTensor, dtype: torch.dtype = torch.float32) -> Any:
    return form_dtype_v2(tensor, dtype, True)


def form_dtype_v2(
    tensor: LazyTensor, dtype: torch.dtype = torch.float32, scale: bool = False
) -> Any:
    plain = dtype.is_floating_point or (dtype == torch.uint8 and tensor.dtype.is_floating_point)
    return (tensor.sides, dtype) if plain and dtype != tensor.dtype else None


def plan_dtype(row: Any, dtype: torch.dtype = torch.float32) -> None:
    plan_dtype_v2(row, dtype, True)


def plan_dtype_v2(row: Any, dtype: torch.dtype = torch.float32, scale: bool = False) -> None:
    scales = scale and not row.dtype.is_floating_point
    row.cast(dtype)
    if scales:
        row.scale_by(1 / 255)


def _normalize(name: str) -> Callable[..., Any]:
    def note(
        original: Any, tensor: Any, mean: Any, std: Any, inplace: bool = False
    ) -> torch.Tensor:
        numbers = std.flatten().tolist() if isinstance(std, (torch.Tensor, np.ndarray)) else std
        numbers = numbers if isinstance(numbers, (list, tuple)) else [numbers]
        plain = all(isinstance(each, (int, float)) and each for each in numbers)
        if plain and _is_image(tensor) and tensor.is_floating_point():
            made = _perhaps_in_place(tensor, inplace, name, mean, std)
            if made is not None:
                return made
        return original(tensor, mean, std, inplace)

    return note


def _erase(name: str) -> Callable[..., Any]:
    def note(
        original: Any, tensor: Any, i: int, j: int, h: int, w: int, v: Any, inplace: bool = False
    ) -> torch.Tensor:
        if _is_image(tensor) and lazy_of(v) is None:
            made = _perhaps_in_place(tensor, inplace, name, i, j, h, w, v)
            if made is not None:
                return made
        return original(tensor, i, j, h, w, v, inplace)

    return note


def _is_image(tensor: Any) -> bool:
    lazy = waiting_tensor(tensor)
    return lazy is not None and lazy.is_image


def _perhaps_in_place(
    tensor: torch.Tensor, inplace: bool, name: str, *args: Any
) -> torch.Tensor | None:
    lazy = lazy_of(tensor)
    assert lazy is not None
    if not inplace:
        return lazy.then(lazy.sides, lazy.dtype, name, *args)
    return tensor if lazy.change(name, *args) else None


def plan_normalize(row: Any, mean: Any, std: Any) -> None:
    by = 1 / np.asarray(std, np.float64).ravel()
    row.scale_by(by.tolist(), (-np.asarray(mean, np.float64).ravel() * by).tolist())


add(
    _row(_V1, "convert_image_dtype", form_dtype, plan_dtype),
    _row(_MISC, "to_dtype_image", form_dtype_v2, plan_dtype_v2),
    *[
        Step(name, None, None, plan_normalize, owner, attribute, _normalize(name))
        for name, owner, attribute in [
            ("v1.normalize", _V1, "normalize"),
            ("v2.normalize_image", _MISC, "normalize_image"),
        ]
    ],
    *[
        Step(name, None, None, lambda row, *args: row.erase(*args), owner, attribute, _erase(name))
        for name, owner, attribute in [
            ("v1.erase", _V1, "erase"),
            ("v2.erase_image", _AUGMENT, "erase_image"),
        ]
    ],
)


# Decoders

_IMAGE = "torchvision.io.image"
_READ_IMAGE, _DECODE_IMAGE = Original(_IMAGE, "read_image"), Original(_IMAGE, "decode_image")


def _decode(
    original: Any,
    value: Any,
    mode: Any = ImageReadMode.UNCHANGED,
    apply_exif_orientation: Any = False,
) -> torch.Tensor:
    """`read_image` and `decode_image`."""
    if not waits("tensor"):
        return original(value, mode, apply_exif_orientation)
    mode = ImageReadMode[mode.upper()] if isinstance(mode, str) else mode
    known = mode in (ImageReadMode.RGB, ImageReadMode.UNCHANGED, ImageReadMode.GRAY)
    options = (mode.value, True) if apply_exif_orientation else (mode.value,)
    found = read_header("torchvision", value, *options) if known else None
    if found is None:
        return original(value, mode, apply_exif_orientation)

    recipe, turn = found
    (width, height), channels = recipe.size, len(recipe.mode)
    if mode != ImageReadMode.UNCHANGED:
        channels = 3 if mode == ImageReadMode.RGB else 1
    if apply_exif_orientation and turn > 1:
        recipe = recipe.then("turned", turn)
    shape, strides = (channels, height, width), (1, width * channels, channels)
    if apply_exif_orientation and turn >= 5:
        # a view with rows for columns
        shape, strides = (channels, width, height), (1, channels, width * channels)
    return new_tensor(recipe, shape, torch.uint8, strides)


def _decode_jpeg(
    original: Any,
    input: Any,
    mode: Any = ImageReadMode.UNCHANGED,
    device: Any = "cpu",
    apply_exif_orientation: bool = False,
) -> Any:
    is_jpeg = isinstance(input, torch.Tensor) and input[:2].tolist() == [0xFF, 0xD8]
    if is_jpeg and torch.device(device).type == "cpu":
        return _decode(
            lambda value, mode, exif: original(value, mode, device, exif),
            input,
            mode,
            apply_exif_orientation,
        )
    return original(input, mode, device, apply_exif_orientation)


def read_header(opener: str, value: Any, *options: Any) -> tuple[Recipe, int] | None:
    """A recipe for a path or for encoded bytes in a tensor or array, and EXIF's orientation.

    None: it is no plain picture, or no file that can be read.
    """
    if isinstance(value, (torch.Tensor, np.ndarray)):
        data = np.asarray(value).tobytes()
        header = header_of(BytesIO(data))
        if header is None:
            return None
        source = Source.of_bytes(opener, data, *options)
        return Recipe(source, header.size, header.mode), header.turn

    if not isinstance(value, (str, os.PathLike)):
        return None
    try:
        with open(value, "rb") as file:
            header = header_of(file)
            if header is None:
                return None
            source = Source.of_file(opener, value, file.fileno(), *options)
    except (OSError, ValueError):
        return None
    return Recipe(source, header.size, header.mode), header.turn


def plan_turned(row: Any, turn: int) -> None:
    row.transpose({2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}[turn])


def _open(path_or_bytes: Any, mode: int, exif: bool = False) -> torch.Tensor:
    if isinstance(path_or_bytes, str):
        return _READ_IMAGE(path_or_bytes, ImageReadMode(mode), exif)
    data = torch.frombuffer(bytearray(path_or_bytes.getvalue()), dtype=torch.uint8)
    return _DECODE_IMAGE(data, ImageReadMode(mode), exif)


OPENERS["torchvision"] = _open
replace(_IMAGE, "read_image", _decode)
replace(_IMAGE, "decode_image", _decode)
replace(_IMAGE, "decode_jpeg", _decode_jpeg)
replace(_IMAGE, "decode_png", _decode)
add(Step("turned", lambda value, turn: value, plan=plan_turned))  # the decoder has done it
