"""torchvision's functions of tensors: v1's `_functional_tensor`, and v2's kernels.

Forms and plans get the arguments by the names that the functions have for them. A function that
returns the tensor that it got, or a view of it, is not noted for these arguments: the form is None,
and the function itself leaves what waits as it is.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torchvision.transforms.v2.functional import _geometry as v2

from dali_pipes.adapters.lazy.cells import dense
from dali_pipes.adapters.lazy.steps.common import plan_repeated
from dali_pipes.adapters.lazy.steps.step import NoPlace, Step, add, by_name
from dali_pipes.adapters.lazy.steps.torchvision_pictures import sides_of
from dali_pipes.adapters.lazy.tensors import LazyTensor, lazy_of, waiting_tensor

_V1 = "torchvision.transforms._functional_tensor"
_GEOMETRY, _COLOR, _MISC, _AUGMENT = (
    f"torchvision.transforms.v2.functional.{name}"
    for name in ("_geometry", "_color", "_misc", "_augment")
)
_FILTERS = ("nearest", "nearest-exact", "bilinear", "bicubic")


def _name(owner: str, attribute: str) -> str:
    last = "v1" if owner == _V1 else f"v2.{owner.rpartition('.')[2].lstrip('_')}"
    return f"{last}.{attribute}"


def _row(owner: str, attribute: str, form: Any, plan: Any) -> Step:
    """A row for a function of tensors, which is called after its module."""
    by = by_name(owner, attribute)
    return Step(_name(owner, attribute), None, by(form), by(plan), owner, attribute, "tensor")


# How results lie in memory, where not as what they are made of: strides of (…, C, H, W)


def planes(shape: Any, _: Any = None) -> Any:
    return dense(shape, range(len(shape))[::-1])


def channels_last(shape: Any, _: Any = None) -> Any:
    *lead, height, width, channels = range(len(shape))[::-1]
    return dense(shape, (*lead, channels, height, width))


# Colors. None where torchvision complains, or returns the tensor itself.


def _form(allows: Callable[..., bool], layout: Any = None, channels: Any = (1, 3)) -> Any:
    """The same shape and dtype, if the arguments are such.

    Args:
        allows: (tensor, named arguments).
        layout: as of `Step.form`.
        channels: that the tensor may have.
    """

    def form(tensor: LazyTensor, **named: Any) -> Any:
        if tensor.sides[0] not in channels or not allows(tensor, **named):
            return None
        return (tensor.sides, tensor.dtype, *([layout] if layout else []))

    return form


def _is_factor(value: Any) -> bool:
    return isinstance(value, (int, float)) and value >= 0


def _fits_blur(tensor: LazyTensor, kernel_size: Any, sigma: Any) -> bool:
    """The edges are reflected, so the kernel must not reach beyond the other side."""
    sizes, widths = _kernels(kernel_size, sigma)
    fits = max(sizes) // 2 < min(tensor.sides[1:])
    return fits and all(size > 0 and size % 2 for size in sizes) and all(w > 0 for w in widths)


def _kernels(kernel_size: Any, sigma: Any) -> tuple[Any, Any]:
    sizes = (kernel_size,) * 2 if isinstance(kernel_size, int) else tuple(kernel_size)
    if sigma is None:
        return sizes, [size * 0.15 + 0.35 for size in sizes]
    return sizes, (sigma,) if isinstance(sigma, (int, float)) else sigma


def plan_blur(row: Any, kernel_size: Any, sigma: Any) -> None:
    sizes, widths = (set(each) for each in _kernels(kernel_size, sigma))
    if len(sizes) != 1 or len(widths) != 1:
        raise NoPlace("a blur that is not the same in both directions")
    row.operate("GaussianBlur", widths.pop(), sizes.pop())


def plan_permuted(row: Any, permutation: Any) -> None:
    if list(permutation) != [2, 1, 0]:
        raise NoPlace("another order of the channels")
    row.swap_colors()


def _blend(name: str, op: str, least: int = 1, channels: Any = (1, 3)) -> tuple[Any, ...]:
    """Of pictures of `least` pixels in each direction."""
    factor = f"{name.removeprefix('adjust_')}_factor"
    form = _form(
        lambda tensor, **named: _is_factor(named[factor]) and min(tensor.sides[1:]) >= least,
        channels=channels,
    )
    return name, form, lambda row, **named: row.operate(op, named[factor] - 1)


def _is_hue(tensor: LazyTensor, hue_factor: Any) -> bool:
    return isinstance(hue_factor, (int, float)) and abs(hue_factor) <= 0.5


def _is_threshold(tensor: LazyTensor, threshold: Any) -> bool:
    return threshold <= (1 if tensor.dtype.is_floating_point else 255)


# name in v2, form, plan
_COLORS: list[tuple[str, Any, Any]] = [
    _blend("adjust_brightness", "Brightness"),
    _blend("adjust_contrast", "Contrast"),
    _blend("adjust_saturation", "Color", channels=(3,)),
    _blend("adjust_sharpness", "Sharpness", least=3),
    (
        "posterize",
        _form(lambda tensor, bits: type(bits) is int and 0 <= bits < 8),
        lambda row, bits: row.operate("Posterize", bits),
    ),
    (
        "solarize",
        _form(_is_threshold),
        lambda row, threshold: row.operate("Solarize", (math.ceil(threshold) - 0.5) / 255),
    ),
    ("autocontrast", _form(lambda tensor: True), lambda row: row.operate("AutoContrast")),
    ("equalize", _form(lambda tensor: True, planes), lambda row: row.operate("EqualizeInSteps")),
    ("invert", _form(lambda tensor: True), lambda row: row.operate("Invert")),
]


def plan_hue(row: Any, hue_factor: float) -> None:
    row.operate("Hue", hue_factor)


def form_rgb(tensor: LazyTensor) -> Any:
    return ((3, *tensor.sides[1:]), tensor.dtype, planes) if tensor.sides[0] == 1 else None


def _gray(owner: str, attribute: str) -> Step:
    name = _name(owner, attribute)

    def note(function: Any, image: Any, num_output_channels: int = 1) -> torch.Tensor:
        lazy = waiting_tensor(image)
        known = num_output_channels == 1 or (num_output_channels == 3 and image.ndim == 3)
        if lazy is None or not lazy.is_image or lazy.sides[0] != 3 or not known:
            return function(image, num_output_channels)
        gray = lazy.then((1, *lazy.sides[1:]), lazy.dtype, name)
        # three channels of gray are one in memory
        return gray if num_output_channels == 1 else gray.expand(image.shape)

    return Step(name, None, None, lambda row: row.convert("L"), owner, attribute, note)


add(
    *[_row(_COLOR, f"{name}_image", form, plan) for name, form, plan in _COLORS],
    _row(_COLOR, "adjust_hue_image", _form(_is_hue, planes, (3,)), plan_hue),
    # of v1 those of ColorJitter
    *[_row(_V1, name, form, plan) for name, form, plan in _COLORS[:3]],
    _row(_V1, "adjust_hue", _form(_is_hue, channels_last, (3,)), plan_hue),
    _gray(_V1, "rgb_to_grayscale"),
    _gray(_COLOR, "rgb_to_grayscale_image"),
    _row(_COLOR, "grayscale_to_rgb_image", form_rgb, lambda row: plan_repeated(row, 3, 0)),
    _row(
        _COLOR,
        "permute_channels_image",
        _form(lambda tensor, permutation: len(permutation) == tensor.sides[0], planes),
        plan_permuted,
    ),
    _row(_V1, "gaussian_blur", _form(_fits_blur, planes), plan_blur),
    _row(_MISC, "gaussian_blur_image", _form(_fits_blur, planes), plan_blur),
)


# Sizes and edges


def _kind(interpolation: Any) -> Any:
    return getattr(interpolation, "value", interpolation)


def _size_after(old: tuple[int, ...], size: Any, max_size: Any) -> tuple[int, ...]:
    size = [size] if isinstance(size, int) else None if size is None else list(size)
    return tuple(v2._compute_resized_output_size(old, size=size, max_size=max_size))


def form_resize(
    tensor: LazyTensor, size: Any, interpolation: Any, max_size: Any = None, **_: Any
) -> Any:
    if _kind(interpolation) not in _FILTERS or (size is None and max_size is None):
        return None
    new = _size_after(tensor.sides[1:], size, max_size)
    return None if new == tensor.sides[1:] else ((tensor.sides[0], *new), tensor.dtype, planes)


def form_resize_v2(tensor: LazyTensor, **named: Any) -> Any:
    def layout(shape: Any, strides: Any) -> Any:
        is_last = math.prod(shape[:-3]) == 1 and strides[-3:] == channels_last(tensor.sides)
        return (channels_last if is_last else planes)(shape)  # one image keeps them last

    found = form_resize(tensor, **named)
    return found and (*found[:2], layout)


def plan_resize(
    row: Any, size: Any, interpolation: Any, antialias: Any, max_size: Any = None
) -> None:
    kind = _kind(interpolation)
    height, width = _size_after(row.size, size, max_size)
    if kind in ("nearest", "nearest-exact"):
        row.take_nearest(height, width, kind)
        return
    if not antialias:
        raise NoPlace("a resize of a tensor without antialiasing")
    row.resize(height, width, kind)


def _sides(padding: Any = None, torch_padding: Any = None) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of torchvision's padding, or of PyTorch's."""
    if torch_padding is not None:
        left, right, top, bottom = torch_padding
        return left, top, right, bottom
    return sides_of(padding)


def form_pad(tensor: LazyTensor, fill: Any, padding_mode: str, **padding: Any) -> Any:
    """A mirrored part must not be larger than the image."""
    left, top, right, bottom = sides = _sides(**padding)
    channels, height, width = tensor.sides
    fits = max(left, right) < width and max(top, bottom) < height
    plain = isinstance(fill, (int, float, type(None))) or len(fill) == channels
    if not plain or min(sides) < 0 or not any(sides):
        return None
    if padding_mode not in ("constant", "edge") and not fits:
        return None
    return (channels, height + top + bottom, width + left + right), tensor.dtype, planes


def plan_pad(row: Any, fill: Any, padding_mode: str, **padding: Any) -> None:
    row.pad(*_sides(**padding), fill, padding_mode)


add(
    _row(_V1, "resize", form_resize, plan_resize),
    _row(_GEOMETRY, "resize_image", form_resize_v2, plan_resize),
    _row(_V1, "pad", form_pad, plan_pad),
    _row(_GEOMETRY, "_pad_with_scalar_fill", form_pad, plan_pad),
    _row(_GEOMETRY, "_pad_with_vector_fill", form_pad, plan_pad),
)


# Warps. Their matrices are from the centre of the result to the centre of the image.


def _from_centre(center: Any, size: Any) -> list[float]:
    if center is None:
        return [0.0, 0.0]
    return [at - side * 0.5 for at, side in zip(center, size[::-1], strict=True)]


def _matrix_of_affine(
    size: Any, angle: Any, translate: Any, scale: Any, shear: Any, center: Any
) -> Any:
    """As `affine_image` makes it (torchvision 0.25)."""
    angle, translate, shear, center = v2._affine_parse_args(
        angle, translate, scale, shear, v2.InterpolationMode.NEAREST, center
    )
    shift = [float(each) for each in translate]
    return v2._get_inverse_affine_matrix(_from_centre(center, size), angle, shift, scale, shear)


def _matrix_of_rotation(size: Any, angle: Any, center: Any, expand: bool = False) -> Any:
    """As `rotate_image` makes it; None: it turns by 90 degrees, which another function does."""
    quarters, rest = divmod(angle % 360, 90)
    turns = quarters % 2 == 0 or expand or size[0] == size[1]
    if not rest and center is None and turns:
        return None
    centre = _from_centre(center, size)
    return v2._get_inverse_affine_matrix(centre, -(angle % 360), [0.0, 0.0], 1.0, [0.0, 0.0])


def _warp(attribute: str, matrix_of: Callable[..., Any]) -> Step:
    """A row of a warp.

    Args:
        matrix_of: (size, named arguments) gives six numbers; eight of a perspective one, which are
            Pillow's; or None, if it is not noted.
    """

    def size_after(size: Any, matrix: Any, expand: bool) -> Any:
        return v2._compute_affine_output_size(matrix, *size[::-1])[::-1] if expand else size

    def form(tensor: LazyTensor, interpolation: Any, fill: Any, **named: Any) -> Any:
        channels, *size = tensor.sides
        colors = len(fill) if isinstance(fill, (list, tuple)) else 1
        if _kind(interpolation) not in ("nearest", "bilinear") or colors not in (1, channels):
            return None
        with suppress(ValueError, TypeError):  # which the kernel raises, too
            if (matrix := matrix_of(size, **named)) is not None:
                after = size_after(size, matrix, named.get("expand", False))
                return (channels, *after), tensor.dtype, planes
        return None

    def plan(row: Any, interpolation: Any, fill: Any, **named: Any) -> None:
        # PyTorch blends the edges of an image with what is outside, which the plan's do not
        if _kind(interpolation) != "nearest":
            raise NoPlace("an interpolated warp of a tensor")
        matrix = matrix_of(row.size, **named)
        if len(matrix) == 8:
            row.warp(row.size, matrix, "nearest", fill, perspective=True)
            return
        height, width = size_after(row.size, matrix, named.get("expand", False))
        a, b, c, d, e, f = matrix
        c += row.size[1] / 2 - a * width / 2 - b * height / 2
        f += row.size[0] / 2 - d * width / 2 - e * height / 2
        row.warp((height, width), (a, b, c, d, e, f), "nearest", fill)

    return _row(_GEOMETRY, attribute, form, plan)


add(
    _warp("affine_image", _matrix_of_affine),
    _warp("rotate_image", _matrix_of_rotation),
    _warp("perspective_image", lambda size, **named: v2._perspective_coefficients(**named)),
)


# Numbers, in place or not


def form_dtype(tensor: LazyTensor, dtype: torch.dtype, **_: Any) -> Any:
    plain = dtype.is_floating_point or (dtype == torch.uint8 and tensor.dtype.is_floating_point)
    return (tensor.sides, dtype) if plain and dtype != tensor.dtype else None


def plan_dtype(row: Any, dtype: torch.dtype, scale: bool = True) -> None:
    scales = scale and not row.dtype.is_floating_point
    if scales and row.dtype != torch.uint8:
        raise NoPlace(f"a scale of {row.dtype}")
    row.cast(dtype)
    if scales:
        row.scale_by(1 / 255)


_NUMBERS, _RECTANGLE = ("mean", "std"), ("i", "j", "h", "w", "v")


def _in_place(
    owner: str,
    attribute: str,
    names: tuple[str, ...],
    changes: int,
    allows: Callable[..., bool],
    plan: Any,
) -> Step:
    """A row of a function that changes the tensor itself with `inplace`.

    Args:
        names: of its numbers, in the order in which they are noted.
        changes: how often it does, as PyTorch counts.
        allows: (what waits, arguments).
    """
    name = _name(owner, attribute)

    @by_name(owner, attribute)
    def in_order(_: Any, inplace: bool = False, **named: Any) -> tuple[list[Any], bool]:
        return [named[each] for each in names], inplace

    def note(function: Any, image: Any, *args: Any, **options: Any) -> torch.Tensor:
        lazy = waiting_tensor(image)
        if lazy is None or not lazy.is_image:
            return function(image, *args, **options)
        try:
            numbers, inplace = in_order(image, *args, **options)
        except (KeyError, TypeError):  # of which torchvision will complain
            return function(image, *args, **options)
        if not allows(lazy, *numbers):
            return function(image, *args, **options)
        if not inplace:
            return lazy.then(lazy.sides, lazy.dtype, name, *numbers)
        if not lazy.change(name, *numbers):
            return function(image, *args, **options)
        torch.autograd.graph.increment_version([image] * changes)
        return image

    return Step(name, None, None, plan, owner, attribute, note)


def plan_erase(row: Any, *rectangle: Any) -> None:
    row.erase(*rectangle)


def _allows_numbers(tensor: LazyTensor, mean: Any, std: Any) -> bool:
    """Whether both are one number for all channels, or one for each; else torchvision complains."""
    if not tensor.dtype.is_floating_point:
        return False
    numbers = _plain_numbers(mean), _plain_numbers(std)
    return 0 not in numbers[1] and all(len(each) in (1, tensor.sides[0]) for each in numbers)


def _plain_numbers(value: Any) -> Any:
    """A list or tuple of numbers; empty: it is none."""
    if type(value) is not list and type(value) is not tuple:
        if lazy_of(value) is not None or np.ndim(value) > 1:
            return ()
        value = np.ravel(value).tolist()
    for each in value:
        if type(each) is not float and not isinstance(each, (int, float)):
            return ()
    return value


def plan_normalize(row: Any, mean: Any, std: Any) -> None:
    row.scale_by(1, [-each for each in np.ravel(mean).tolist()])
    row.scale_by([1 / each for each in np.ravel(std).tolist()])


def _allows_rectangle(tensor: LazyTensor, i: int, j: int, h: int, w: int, v: Any) -> bool:
    return lazy_of(v) is None


add(
    _row(_V1, "convert_image_dtype", form_dtype, plan_dtype),
    _row(_MISC, "to_dtype_image", form_dtype, plan_dtype),
    _in_place(_V1, "normalize", _NUMBERS, 2, _allows_numbers, plan_normalize),
    _in_place(_MISC, "normalize_image", _NUMBERS, 2, _allows_numbers, plan_normalize),
    _in_place(_V1, "erase", _RECTANGLE, 1, _allows_rectangle, plan_erase),
    _in_place(_AUGMENT, "erase_image", _RECTANGLE, 1, _allows_rectangle, plan_erase),
)
