"""OpenCV: what it reads, and what it does to arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dali_pipes.adapters.lazy.arrays import LazyArray, new_array
from dali_pipes.adapters.lazy.recipes import OPENERS
from dali_pipes.adapters.lazy.state import waits
from dali_pipes.adapters.lazy.steps.step import NoPlace, Original, Step, add, by_name, replace
from dali_pipes.adapters.lazy.steps.torchvision_decoders import read_header

# OpenCV's numbers, which are part of its interface
_NEAREST, _LINEAR, _CUBIC, _INVERSE_MAP, _CONSTANT = 0, 1, 2, 16, 0
_BORDERS = {0: "constant", 1: "edge", 2: "symmetric", 4: "reflect"}
_IGNORE_ORIENTATION, _RGB = 128, 256
_FLAGS = (-1, 0, 1, 128, 129, 256, 384)
_TO_GRAY, _FROM_GRAY = (6, 7), (8,)
_COLORS = (4, 32, 33, 36, 37, 38, 39, 40, 41, 44, 45, 50, 51, 52, 53, 54, 55, 56, 57, 60, 61)


# Reading


def _read(original: Any, value: Any, *args: Any, **options: Any) -> Any:
    """`cv2.imread` and `cv2.imdecode`: they turn a picture as EXIF says, unless told not to."""
    # a third argument is memory of the program's
    (flags,) = (*args, *options.values()) or (1,) if len(args) + len(options) < 2 else (None,)
    plain = type(flags) is int and not {*options} - {"flags"} and waits("array")
    plain = plain and flags in _FLAGS
    found = read_header("cv2", value, flags) if plain else None
    if found is None:
        return original(value, *args, **options)
    recipe, turn = found
    shape = recipe.size[::-1]
    if turn > 1 and flags >= 0 and not flags & _IGNORE_ORIENTATION:
        recipe = recipe.then("turned", turn)
        shape = shape[::-1] if turn >= 5 else shape
    gray = recipe.mode == "L" if flags < 0 else not flags & (1 | _RGB)
    return new_array(recipe, shape if gray else (*shape, 3))


_IMREAD, _IMDECODE = Original("cv2", "imread"), Original("cv2", "imdecode")


def _open(path_or_bytes: Any, flags: int) -> np.ndarray:
    if isinstance(path_or_bytes, str):
        made = _IMREAD(path_or_bytes, flags)
    else:
        made = _IMDECODE(np.frombuffer(path_or_bytes.getvalue(), np.uint8), flags)
    if made is None:
        raise OSError("OpenCV cannot decode it")
    return made


OPENERS["cv2"] = _open
replace("cv2", "imread", _read)
replace("cv2", "imdecode", _read)


# Forms and plans get arguments by OpenCV's names. None where it may complain, or writes into memory
# of the program's. Bytes stay bytes, and floats floats.


def _row(name: str, shape: Callable[..., Any], plan: Any) -> Step:
    """A row of arrays in whose results only the shape may be another one."""

    def form(array: LazyArray, dst: Any = None, **named: Any) -> Any:
        if dst is not None or array.dtype.name not in ("uint8", "float32"):
            return None
        found = shape(array, **named)
        return None if found is None else (found, array.dtype)

    def plan_without(row: Any, dst: Any = None, **named: Any) -> None:
        plan(row, **named)

    by = by_name("cv2", name)
    return Step(f"cv2.{name}", None, by(form), by(plan_without), "cv2", name, "array")


def shape_same(array: LazyArray, **_: Any) -> Any:
    return array.shape


def _in_size(array: LazyArray, dsize: Any) -> Any:
    """The shape of a size, (width, height)."""
    if dsize is None or len(dsize) != 2 or min(dsize) <= 0:
        return None
    return (int(dsize[1]), int(dsize[0]), *array.shape[2:])


def _size_of(size: Any, dsize: Any, fx: float, fy: float) -> Any:
    # it rounds half to even (modules/imgproc/src/resize.cpp: saturate_cast)
    return dsize or (round(size[1] * fx), round(size[0] * fy))


def shape_resized(
    array: LazyArray, dsize: Any, fx: float = 0, fy: float = 0, interpolation: int = 1
) -> Any:
    known = interpolation in range(7) and (dsize or (fx > 0 and fy > 0))
    return _in_size(array, _size_of(array.shape, dsize, fx, fy)) if known else None


def plan_resize(row: Any, dsize: Any, fx: float = 0, fy: float = 0, interpolation: int = 1) -> None:
    width, height = _size_of(row.size, dsize, fx, fy)
    if not dsize and (width, height) != (row.size[1] * fx, row.size[0] * fy):
        # OpenCV then takes pixels by the factors, not by the sizes
        raise NoPlace("a resize by a factor to no whole number of pixels")
    if interpolation == _NEAREST:
        row.take_nearest(int(height), int(width), "opencv")
        return
    if interpolation not in (_LINEAR, _CUBIC):
        raise NoPlace("OpenCV's other filters")
    kind = "bilinear" if interpolation == _LINEAR else "bicubic"
    row.resize(int(height), int(width), kind, antialias=False)


def shape_colors(array: LazyArray, code: int, **options: Any) -> Any:
    if any(options.values()):
        return None
    if array.ndim == 2:
        return (*array.shape, 3) if code in _FROM_GRAY else None
    return array.shape[:2] if code in _TO_GRAY else array.shape if code in _COLORS else None


def plan_colors(row: Any, code: int, **_: Any) -> None:
    if code == 4:
        row.swap_colors()
    elif code in _TO_GRAY and row.channels == 3:
        if row.is_bgr is (code == 7):
            raise NoPlace("gray of red for blue")
        row.is_bgr = False
        row.convert("L")
    elif code in _FROM_GRAY:
        row.convert("RGB")
    else:
        raise NoPlace("another color space")


def shape_turned(array: LazyArray, rotateCode: int = 0) -> Any:
    if rotateCode not in (0, 1, 2):
        return None
    height, width, *channels = array.shape
    return array.shape if rotateCode == 1 else (width, height, *channels)


def plan_flip(row: Any, flipCode: int) -> None:
    for axis in (0,) if flipCode > 0 else (1,) if flipCode == 0 else (0, 1):
        row.flip(axis)


def shape_warped(array: LazyArray, dsize: Any, **_: Any) -> Any:
    return _in_size(array, dsize)


def plan_warp(
    row: Any, M: Any, dsize: Any, flags: int = 1, borderMode: int = 0, borderValue: Any = 0
) -> None:
    # the plan's keep the edges of an image sharp, which OpenCV blends; OpenCV takes a tenth of a
    # millisecond, less than the plan's do on a CPU
    if flags & ~_INVERSE_MAP or borderMode != _CONSTANT:
        raise NoPlace("an interpolated warp of OpenCV's")
    matrix = np.vstack([np.asarray(M, np.float64), (0, 0, 1)])[:3]
    if not flags & _INVERSE_MAP:
        matrix = np.linalg.inv(matrix)
    # OpenCV counts from the middle of the first pixel, the plan from its corner
    middle = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
    numbers = (middle @ matrix @ np.linalg.inv(middle)).ravel()
    is_affine = len(M) == 2
    numbers = (numbers / numbers[8]).tolist()[: 6 if is_affine else 8]
    size = int(dsize[1]), int(dsize[0])
    row.warp(size, numbers, "nearest", _color(row, borderValue), perspective=not is_affine)


def _color(row: Any, value: Any) -> Any:
    """Of OpenCV's scalar, whose missing numbers are 0."""
    numbers = [value] if np.ndim(value) == 0 else list(np.ravel(value))
    numbers = [round(float(each)) for each in (*numbers, 0, 0)[:3]]
    return numbers[::-1] if row.is_bgr else numbers


def shape_bordered(
    array: LazyArray, top: int, bottom: int, left: int, right: int, borderType: int, **_: Any
) -> Any:
    if borderType not in range(5) or min(top, bottom, left, right) < 0:
        return None
    return (array.shape[0] + top + bottom, array.shape[1] + left + right, *array.shape[2:])


def plan_border(
    row: Any, top: int, bottom: int, left: int, right: int, borderType: int, value: Any = 0
) -> None:
    if borderType not in _BORDERS:
        raise NoPlace("a border that repeats the image")
    row.pad(left, top, right, bottom, _color(row, value), _BORDERS[borderType])


def shape_blurred(
    array: LazyArray, ksize: Any, sigmaX: float, borderType: int = 4, **_: Any
) -> Any:
    odd = all(each % 2 == 1 or (each == 0 and sigmaX > 0) for each in ksize)
    return array.shape if odd and borderType in _BORDERS else None


def plan_blur(
    row: Any, ksize: Any, sigmaX: float, sigmaY: float = 0, borderType: int = 4, **_: Any
) -> None:
    if ksize[0] != ksize[1] or sigmaY not in (0, sigmaX) or borderType != 4:
        raise NoPlace("a blur that is not the same in both directions, or with other edges")
    # modules/imgproc/src/smooth.dispatch.cpp, `createGaussianKernels`
    kernel = ksize[0] or round(sigmaX * 6 + 1) | 1
    row.operate("GaussianBlur", sigmaX or 0.3 * ((kernel - 1) * 0.5 - 1) + 0.8, kernel)


add(
    _row("resize", shape_resized, plan_resize),
    _row("cvtColor", shape_colors, plan_colors),
    _row("flip", shape_same, plan_flip),
    _row("rotate", shape_turned, lambda row, rotateCode: row.transpose(4 - rotateCode)),
    _row("transpose", shape_turned, lambda row: row.transpose(5)),
    _row("warpAffine", shape_warped, plan_warp),
    _row("warpPerspective", shape_warped, plan_warp),
    _row("copyMakeBorder", shape_bordered, plan_border),
    _row("GaussianBlur", shape_blurred, plan_blur),
)
