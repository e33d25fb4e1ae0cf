"""OpenCV: what it reads, and what it does to arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dali_pipes.adapters.lazy.arrays import LazyArray, new_array
from dali_pipes.adapters.lazy.recipes import OPENERS
from dali_pipes.adapters.lazy.state import waits
from dali_pipes.adapters.lazy.steps.step import NoPlace, Original, Step, add, replace
from dali_pipes.adapters.lazy.steps.torchvision_decoders import read_header

# OpenCV's numbers, which are part of its interface
_LINEAR, _CUBIC, _INVERSE_MAP, _CONSTANT = 1, 2, 16, 0
_BORDERS = {0: "constant", 1: "edge", 2: "symmetric", 4: "reflect"}
_IGNORE_ORIENTATION, _RGB = 128, 256
_FLAGS = (-1, 0, 1, 128, 129, 256, 384)
_TO_GRAY, _FROM_GRAY = (6, 7), (8,)
_COLORS = (4, 32, 33, 36, 37, 38, 39, 40, 41, 44, 45, 50, 51, 52, 53, 54, 55, 56, 57, 60, 61)


def _row(name: str, form: Any, plan: Any = None) -> Step:
    return Step(f"cv2.{name}", None, form, plan, "cv2", name, "array")


# Reading


def _read(original: Any, value: Any, *args: Any, **options: Any) -> Any:
    """`cv2.imread` and `cv2.imdecode`: they turn a picture as EXIF says, unless told not to."""
    # a third argument is memory of the program's
    (flags,) = (*args, *options.values()) or (1,) if len(args) + len(options) < 2 else (None,)
    plain = flags in _FLAGS and not {*options} - {"flags"} and waits("array")
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


# Forms: shape and dtype; None where OpenCV may complain, or writes into memory of the program's


def _form(
    shape: Callable[..., Any], dtypes: tuple[str, ...] = ("uint8", "float32")
) -> Callable[..., Any]:
    """Of arrays of these dtypes, without `dst`."""

    def form(array: LazyArray, *args: Any, **options: Any) -> Any:
        if array.dtype.name not in dtypes or options.pop("dst", None) is not None:
            return None
        found = shape(array, *args, **options)
        return None if found is None else (found, array.dtype)

    return form


def _size(array: LazyArray, dsize: Any) -> Any:
    if dsize is None or len(dsize) != 2 or min(dsize) <= 0:
        return None
    return (int(dsize[1]), int(dsize[0]), *array.shape[2:])


def shape_resize(
    array: LazyArray,
    dsize: Any = None,
    dst: Any = None,
    fx: float = 0,
    fy: float = 0,
    interpolation: int = 1,
) -> Any:
    if dst is not None or interpolation not in range(7):
        return None
    if not dsize and fx > 0 and fy > 0:
        # it rounds half to even (modules/imgproc/src/resize.cpp: saturate_cast)
        dsize = round(array.shape[1] * fx), round(array.shape[0] * fy)
    return _size(array, dsize)


def plan_resize(
    row: Any,
    dsize: Any = None,
    dst: Any = None,
    fx: float = 0,
    fy: float = 0,
    interpolation: int = 1,
) -> None:
    if not dsize:
        dsize = round(row.size[1] * fx), round(row.size[0] * fy)
    if interpolation not in (_LINEAR, _CUBIC):
        raise NoPlace("OpenCV's other filters")
    kind = "bilinear" if interpolation == _LINEAR else "bicubic"
    row.resize(int(dsize[1]), int(dsize[0]), kind, antialias=False)


def shape_color(array: LazyArray, code: int, dst: Any = None, dstCn: int = 0, *_: Any) -> Any:
    if dst is not None or dstCn:
        return None
    if array.ndim == 2:
        return (*array.shape, 3) if code in _FROM_GRAY else None
    return array.shape[:2] if code in _TO_GRAY else array.shape if code in _COLORS else None


def plan_color(row: Any, code: int, dst: Any = None, dstCn: int = 0, *_: Any) -> None:
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


def shape_same(array: LazyArray, *_: Any, **__: Any) -> Any:
    return array.shape


def shape_turned(array: LazyArray, *rotateCode: int, **named: int) -> Any:
    (code,) = (*rotateCode, *named.values()) or (0,)
    if code not in (0, 1, 2):
        return None
    return array.shape if code == 1 else (array.shape[1], array.shape[0], *array.shape[2:])


def plan_flip(row: Any, flipCode: int) -> None:
    for axis in (0,) if flipCode > 0 else (1,) if flipCode == 0 else (0, 1):
        row.flip(axis)


def shape_warp(array: LazyArray, M: Any, dsize: Any, dst: Any = None, *_: Any, **__: Any) -> Any:
    return None if dst is not None else _size(array, dsize)


def _plan_warp(perspective: bool) -> Callable[..., None]:
    def plan(
        row: Any,
        M: Any,
        dsize: Any,
        dst: Any = None,
        flags: int = 1,
        borderMode: int = 0,
        borderValue: Any = 0,
    ) -> None:
        # the plan's keep the edges of an image sharp, which OpenCV blends; OpenCV takes a tenth of
        # a millisecond, less than the plan's do on a CPU
        if flags & ~_INVERSE_MAP or borderMode != _CONSTANT:
            raise NoPlace("an interpolated warp of OpenCV's")
        matrix = np.vstack([np.asarray(M, np.float64), (0, 0, 1)])[:3]
        if not flags & _INVERSE_MAP:
            matrix = np.linalg.inv(matrix)
        # OpenCV counts from the middle of the first pixel, the plan from its corner
        middle = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
        numbers = (middle @ matrix @ np.linalg.inv(middle)).ravel()
        numbers = (numbers / numbers[8]).tolist()[: 8 if perspective else 6]
        fill = _color(row, borderValue)
        row.warp((int(dsize[1]), int(dsize[0])), numbers, "nearest", fill, perspective)

    return plan


def _color(row: Any, value: Any) -> Any:
    """Of OpenCV's scalar, whose missing numbers are 0."""
    numbers = [value] if np.ndim(value) == 0 else list(np.ravel(value))
    numbers = [round(float(each)) for each in (*numbers, 0, 0)[:3]]
    return numbers[::-1] if row.is_bgr else numbers


def shape_border(
    array: LazyArray,
    top: int,
    bottom: int,
    left: int,
    right: int,
    borderType: int,
    dst: Any = None,
    value: Any = 0,
) -> Any:
    if dst is not None or borderType not in (0, 1, 2, 3, 4) or min(top, bottom, left, right) < 0:
        return None
    return (array.shape[0] + top + bottom, array.shape[1] + left + right, *array.shape[2:])


def plan_border(
    row: Any,
    top: int,
    bottom: int,
    left: int,
    right: int,
    borderType: int,
    dst: Any = None,
    value: Any = 0,
) -> None:
    if borderType not in _BORDERS:
        raise NoPlace("a border that repeats the image")
    row.pad(left, top, right, bottom, _color(row, value), _BORDERS[borderType])


def shape_blur(
    array: LazyArray,
    ksize: Any,
    sigmaX: float,
    dst: Any = None,
    sigmaY: float = 0,
    borderType: int = 4,
    *_: Any,
) -> Any:
    odd = all(each % 2 == 1 or (each == 0 and sigmaX > 0) for each in ksize)
    return array.shape if dst is None and odd and borderType in (0, 1, 2, 4) else None


def plan_blur(
    row: Any,
    ksize: Any,
    sigmaX: float,
    dst: Any = None,
    sigmaY: float = 0,
    borderType: int = 4,
    *_: Any,
) -> None:
    if ksize[0] != ksize[1] or sigmaY not in (0, sigmaX) or borderType != 4:
        raise NoPlace("a blur that is not the same in both directions, or with other edges")
    # modules/imgproc/src/smooth.dispatch.cpp, `createGaussianKernels`
    kernel = ksize[0] or round(sigmaX * 6 + 1) | 1
    row.operate("GaussianBlur", sigmaX or 0.3 * ((kernel - 1) * 0.5 - 1) + 0.8, kernel)


def shape_median(array: LazyArray, ksize: int, dst: Any = None) -> Any:
    return array.shape if dst is None and ksize % 2 == 1 else None


def shape_box(
    array: LazyArray, ksize: Any, dst: Any = None, anchor: Any = (-1, -1), borderType: int = 4
) -> Any:
    plain = min(ksize) > 0 and tuple(anchor) == (-1, -1) and borderType in (0, 1, 2, 4)
    return array.shape if dst is None and plain else None


def shape_table(array: LazyArray, lut: Any, dst: Any = None) -> Any:
    one = np.shape(lut) in ((256,), (256, 1), (1, 256)) and np.asarray(lut).dtype == np.uint8
    return array.shape if dst is None and one else None


def plan_table(row: Any, lut: Any, dst: Any = None) -> None:
    row.look_up(np.ravel(lut))


def shape_scaled(array: LazyArray, dst: Any = None, alpha: float = 1, beta: float = 0) -> Any:
    return array.shape if dst is None else None


def plan_scaled(row: Any, dst: Any = None, alpha: float = 1, beta: float = 0) -> None:
    values = np.arange(256, dtype=np.uint8)
    row.look_up(_SCALED(values, alpha=alpha, beta=beta).ravel())


_SCALED = Original("cv2", "convertScaleAbs")


def shape_gray(array: LazyArray, dst: Any = None) -> Any:
    return array.shape if dst is None and array.ndim == 2 else None


def plan_equalized(row: Any, dst: Any = None) -> None:
    row.operate("Equalize")


add(
    _row("resize", _form(shape_resize), plan_resize),
    _row("cvtColor", _form(shape_color), plan_color),
    _row("flip", _form(shape_same), plan_flip),
    _row("rotate", _form(shape_turned), lambda row, rotateCode: row.transpose(4 - rotateCode)),
    _row("transpose", _form(lambda array: shape_turned(array)), lambda row: row.transpose(5)),
    _row("warpAffine", _form(shape_warp), _plan_warp(False)),
    _row("warpPerspective", _form(shape_warp), _plan_warp(True)),
    _row("copyMakeBorder", _form(shape_border), plan_border),
    _row("GaussianBlur", _form(shape_blur), plan_blur),
    _row("LUT", _form(shape_table, ("uint8",)), plan_table),
    _row("convertScaleAbs", _form(shape_scaled, ("uint8",)), plan_scaled),
    _row("equalizeHist", _form(shape_gray, ("uint8",)), plan_equalized),
    _row("medianBlur", _form(shape_median, ("uint8",))),
    _row("blur", _form(shape_box, ("uint8",))),
)
