"""Recipes as planned batches of dali_pipes, which its backends carry out: `PlannedLoader(loader, DaliConfig(device="cpu"))`.

A recipe is read from front to back (`read`) and becomes a `Row`, if the plan has a place for all of its steps: steps on the whole image,
then a region that is resized and cropped, flips, color operations in slots, a normalization. Rows of one kind (`Kind`) go to one backend,
all others are carried out as they were noted.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torchvision.transforms._functional_tensor as F_t
import torchvision.transforms.v2.functional._augment as v2_augment
import torchvision.transforms.v2.functional._color as v2_color
import torchvision.transforms.v2.functional._geometry as v2_geometry
import torchvision.transforms.v2.functional._misc as v2_misc

import dali_pipes as dp
from dali_pipes.adapters.lazy.cells import Cell
from dali_pipes.adapters.lazy.found import Found
from dali_pipes.adapters.lazy.loader import LazyLoader
from dali_pipes.adapters.lazy.program import Parcel
from dali_pipes.adapters.lazy.recipes import Recipe
from dali_pipes.backends.backend import Job
from dali_pipes.backends.registry import load_backend
from dali_pipes.data.loose_images import LooseImages
from dali_pipes.plan.augment.operations import CODE, OPS, Augmentation, Slot
from dali_pipes.plan.augment.policies import Policy
from dali_pipes.plan.geometry import Geometry
from dali_pipes.plan.plan import PlannedBatch, PlannedView
from dali_pipes.plan.transforms import INTERPOLATIONS
from dali_pipes.plan.whole.base import DrawnStep

PILLOW = {0: "nearest", 2: "bilinear", 3: "bicubic"}
EXACT = {"nearest": "nearest-exact", "bilinear": "bilinear", "bicubic": "bicubic"}
MOST_SLOTS, MOST_BEFORE = 16, 8


class NoPlace(Exception):
    """The plan has no place for a step; which one."""


# What a recipe becomes


@dataclass(frozen=True)
class Whole:
    """A step on the whole image, as of `DrawnStep`."""

    kind: str
    interpolation: str
    source: tuple[int, int]
    size: tuple[int, int]
    numbers: tuple[float, ...] = (0.0,) * 8
    fill: tuple[int, int, int] = (0, 0, 0)
    mode: str = "constant"

    @property
    def key(self) -> Any:
        return self.kind, self.interpolation, self.fill, self.mode


@dataclass(frozen=True)
class Kind:
    """What the rows of one backend have in common."""

    shape: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    is_plain: bool  # resized without antialiasing
    channels: int
    has_before: bool  # steps on the whole image


@dataclass
class Row:
    """One picture of a planned batch. Sizes are height and width."""

    source: tuple[int, int]
    size: tuple[int, int]  # so far
    before: list[Whole] = field(default_factory=list)
    region: tuple[int, ...] = ()  # top, left, height, width
    resize: tuple[int, int] | None = None
    crop: tuple[int, int] | None = None  # top, left in what was resized
    flips: list[bool] = field(
        default_factory=lambda: [False, False]
    )  # left to right, top to bottom
    interpolation: str = ""
    is_plain: bool = False
    slots: list[tuple[str, float, Slot]] = field(default_factory=list)
    # a value is scale × (pixel / 255) + offset, for each channel; None: pixels are still bytes
    scale: tuple[float, ...] | None = None
    offset: tuple[float, ...] = (0.0,) * 3
    is_bgr: bool = False
    layout: tuple[int, int, int] = (
        1,
        2,
        0,
    )  # the places of channel, height and width in what there is now, were it CHW: (0, 1, 2)
    erased: list[tuple[Any, ...]] = field(default_factory=list)
    dtype: torch.dtype = torch.uint8
    channels: int = 3
    has_colors: bool = True  # in the file
    was_gray: bool = False  # before it had three channels again
    is_array: bool = False
    is_placed: bool = False  # whether no crop or resize is to come

    @property
    def kind(self) -> Kind:
        scale = (self.scale or (255.0,) * 3)[: self.channels]
        mean, std = (
            (round(-plus / by, 7) for by, plus in zip(scale, self.offset, strict=False)),
            (round(1 / by, 9) for by in scale),
        )
        return Kind(
            self.size, tuple(mean), tuple(std), self.is_plain, self.channels, bool(self.before)
        )

    def finish(self) -> "Row":
        """What may happen before or after a resize happens after it: gray is a sum of colors."""
        if self.was_gray:
            self.slots.insert(0, ("Color", -1.0, _slot()))
        return self

    # geometry

    def cropped(self, top: int, left: int, height: int, width: int) -> None:
        self._only_before_slots("a crop after colors")
        if self.flips[0]:
            left = self.size[1] - left - width
        if self.flips[1]:
            top = self.size[0] - top - height
        inside = (
            top >= 0 and left >= 0 and top + height <= self.size[0] and left + width <= self.size[1]
        )
        if self.resize is None and self.crop is None and inside:
            self.region = (self.region[0] + top, self.region[1] + left, height, width)
        elif self.crop is None or inside:
            self.resize = self.resize or self.size
            before = self.crop or (0, 0)
            self.crop = before[0] + top, before[1] + left
        else:
            self._put_before()
            self.resize, self.crop = self.size, (top, left)
        self.size = height, width

    def resized(self, height: int, width: int, interpolation: str, is_plain: bool = False) -> None:
        if (height, width) == self.size:
            return
        self._only_before_slots("a resize after colors")
        if self.resize is not None or self.crop is not None:
            self._put_before()
        self.resize, self.interpolation, self.is_plain, self.size = (
            (height, width),
            interpolation,
            is_plain,
            (height, width),
        )

    def flipped(self, axis: int) -> None:
        """It does not matter whether colors change before or after it."""
        if any(
            slot.fill is not None and op in ("Rotate", "ShearX", "ShearY", "ShiftX", "ShiftY")
            for op, _, slot in self.slots
        ):
            raise NoPlace("a flip after a warp")
        self.flips[axis] ^= True

    def whole(
        self,
        kind: str,
        interpolation: str,
        size: tuple[int, int],
        numbers: Any,
        fill: Any = 0,
        mode: str = "constant",
    ) -> None:
        self._only_before_slots(f"{kind} after colors")
        self._put_before()
        self._append(kind, interpolation, size, numbers, fill, mode)

    def _append(
        self,
        kind: str,
        interpolation: str,
        size: tuple[int, int],
        numbers: Any,
        fill: Any = 0,
        mode: str = "constant",
    ) -> None:
        fill = (
            (int(fill),) * 3
            if isinstance(fill, (int, float))
            else tuple(map(int, fill or (0, 0, 0)))
        )
        numbers = (*map(float, numbers), *(0.0,) * (8 - len(numbers)))
        self.before.append(Whole(kind, interpolation, self.size, size, numbers, fill, mode))
        self.size, self.region = size, (0, 0, *size)

    def _put_before(self) -> None:
        """Turns the geometry so far into steps on the whole image."""
        region, resize, crop, flips, size = (
            self.region,
            self.resize,
            self.crop,
            self.flips,
            self.size,
        )
        interpolation, is_plain = self.interpolation, self.is_plain
        self.size = self.before[-1].size if self.before else self.source
        self.resize = self.crop = None
        self.flips, self.interpolation, self.is_plain = [False, False], "", False
        if region != (0, 0, *self.size):
            self._append("affine", "nearest", region[2:], (1, 0, region[1], 0, 1, region[0]))
        if resize and resize != self.size:
            if interpolation not in PILLOW.values() or (is_plain and interpolation == "nearest"):
                raise NoPlace(f"a {interpolation} resize before another")
            self._append("plain_resize" if is_plain else "resize", interpolation, resize, ())
        if crop:
            self._append("affine", "nearest", size, (1, 0, crop[1], 0, 1, crop[0]))
        if any(flips):
            across, down = (-1 if each else 1 for each in flips)
            shift = size[1] if flips[0] else 0, size[0] if flips[1] else 0
            self._append("affine", "nearest", size, (across, 0, shift[0], 0, down, shift[1]))
        self.region = (0, 0, *self.size)

    def _only_before_slots(self, what: str) -> None:
        if self.slots or self.scale is not None:
            raise NoPlace(what)

    # colors and numbers

    def colored(self, op: str, magnitude: float, slot: Slot | None = None) -> None:
        if self.scale is not None or self.is_bgr:
            raise NoPlace(f"{op} of normalized values or of BGR")
        self.slots.append((op, float(magnitude), slot or _slot()))

    def scaled(self, by: Any, plus: Any = 0.0) -> None:
        """value × by + plus"""
        by, plus = _three(by), _three(plus)
        self.offset = tuple(
            mine * each + more for mine, each, more in zip(self.offset, by, plus, strict=True)
        )
        self.scale = tuple(
            mine * each for mine, each in zip(self.scale or (255.0,) * 3, by, strict=True)
        )


def _three(value: Any) -> tuple[float, ...]:
    """A number for each channel."""
    if isinstance(value, (int, float, np.generic)):
        return (float(value),) * 3
    numbers = value.flatten().tolist() if isinstance(value, (np.ndarray, torch.Tensor)) else value
    return tuple(numbers) if len(numbers) == 3 else tuple(numbers) * 3


def _slot(
    interpolation: str = "nearest", kernel: int = 0, fill: tuple[int, int, int] = (0, 0, 0)
) -> Slot:
    return Slot(OPS[1:], interpolation, kernel, fill)


# How steps are read: by their names

READ: dict[str, Callable[..., None]] = {}
PLACES = {
    "crop",
    "resize",
    "slice",
    "cv2.resize",
    f"{F_t.__name__}.resize",
    f"{v2_geometry.__name__}.resize_image",
}


def reads(*names: str) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        READ.update(dict.fromkeys(names, function))
        return function

    return register


def read(recipe: Recipe) -> Row:
    """
    Raises:
        NoPlace: the plan has no place for it.
    """
    size = recipe.size[::-1]
    row = Row(size, size, region=(0, 0, *size))
    opener, options = recipe.source.opener, recipe.source.options
    if recipe.mode not in ("RGB", "L"):
        raise NoPlace(f"pictures of mode {recipe.mode}")
    if opener == "cv2":
        if options != (1,):
            raise NoPlace(f"cv2.imread with {options}")
        row.is_bgr = True
    row.layout, row.is_array = (0, 1, 2) if opener == "torchvision" else (2, 0, 1), opener == "cv2"
    row.has_colors = recipe.mode == "RGB"
    row.channels = 1 if recipe.mode == "L" and opener == "pillow" else 3
    for at, (name, args, options) in enumerate(recipe.notes):
        if name not in READ:
            raise NoPlace(name.removeprefix("torchvision.transforms."))
        row.is_placed = not any(later[0] in PLACES for later in recipe.notes[at + 1 :])
        READ[name](row, *args, **options)
    if row.is_bgr:
        raise NoPlace("BGR")
    return row.finish()


def _module(module: Any, *names: str) -> list[str]:
    return [f"{module.__name__}.{name}" for name in names]


@reads("convert")
def _(row: Row, mode: str) -> None:
    if mode == "L":
        if row.slots or row.resize or row.before:
            raise NoPlace("gray after other steps")
        row.channels = 1
    elif row.channels == 1:
        row.channels, row.was_gray = 3, row.has_colors


@reads("gray")
def _(row: Row, channels: int) -> None:
    row.colored("Color", -1)


@reads("crop")
def _(row: Row, box: Any) -> None:
    left, top, right, bottom = box
    row.cropped(top, left, bottom - top, right - left)


@reads("resize")
def _(row: Row, size: Any, resample: int, box: Any = None, gap: Any = None) -> None:
    if box is not None or gap is not None or resample not in PILLOW:
        raise NoPlace("a resize with a box, a gap or another filter")
    row.resized(size[1], size[0], PILLOW[resample])


@reads("transpose")
def _(row: Row, method: int) -> None:
    if method in (0, 1):
        row.flipped(method)
        return
    if method == 3:
        row.flipped(0), row.flipped(1)
        return
    height, width = row.size
    turned = {
        2: (0, -1, width, 1, 0, 0),
        4: (0, 1, 0, -1, 0, height),
        5: (0, 1, 0, 1, 0, 0),
        6: (0, -1, width, -1, 0, height),
    }[method]
    row.whole("affine", "nearest", (width, height), turned)


@reads("transform")
def _(row: Row, size: Any, method: int, numbers: Any, resample: int, fill: int, color: Any) -> None:
    if row.slots or (
        row.is_placed and method == 0 and tuple(size) == row.size[::-1] and row.resize
    ):
        if method != 0 or tuple(size) != row.size[::-1]:
            raise NoPlace("a warp after colors")
        op, magnitude = _move_of(numbers, row.size)
        color = (int(color),) * 3 if isinstance(color, (int, float)) else tuple(color or (0, 0, 0))
        row.colored(op, magnitude, _slot(PILLOW[resample], 0, color))
        return
    row.whole(
        "affine" if method == 0 else "perspective",
        PILLOW[resample],
        tuple(size)[::-1],
        numbers,
        color,
    )


def _move_of(numbers: Any, size: tuple[int, int]) -> tuple[str, float]:
    """The operation that moves pixels as this matrix does."""
    a, b, c, d, e, f = numbers
    y, x = size[0] / 2, size[1] / 2
    for op, magnitude, matrix in [
        ("ShearX", b, (1, b, 0, 0, 1, 0)),
        ("ShearY", d, (1, 0, 0, d, 1, 0)),
        ("ShiftX", -c, (1, 0, c, 0, 1, 0)),
        ("ShiftY", -f, (1, 0, 0, 0, 1, f)),
        (
            "Rotate",
            math.degrees(math.atan2(d, a)),
            (a, -d, x - a * x + d * y, d, a, y - d * x - a * y),
        ),
    ]:
        if np.allclose(numbers, matrix, atol=1e-6):
            return op, magnitude
    raise NoPlace("a warp after colors")


@reads("turned")
def _(row: Row, orientation: int) -> None:
    READ["transpose"](row, {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}[orientation])


@reads("pad")
def _(row: Row, padding: Any, fill: Any = 0, padding_mode: str = "constant") -> None:
    sides = [padding] if isinstance(padding, int) else list(padding)
    left, top, right, bottom = sides if len(sides) == 4 else sides * (4 // len(sides))
    height, width = row.size
    row.whole(
        "pad",
        "nearest",
        (height + top + bottom, width + left + right),
        (left, top, right, bottom),
        fill,
        padding_mode,
    )


@reads("enhance")
def _(row: Row, kind: str, factor: float) -> None:
    row.colored(kind, factor - 1)


@reads("hue", *_module(F_t, "adjust_hue"), *_module(v2_color, "adjust_hue_image"))
def _(row: Row, hue_factor: float) -> None:
    row.colored("Hue", hue_factor)


for _name, _op in {
    "brightness": "Brightness",
    "contrast": "Contrast",
    "saturation": "Color",
    "sharpness": "Sharpness",
}.items():

    @reads(*_module(F_t, f"adjust_{_name}"), *_module(v2_color, f"adjust_{_name}_image"))
    def _(row: Row, factor: float | None = None, *, op: str = _op, **named: float) -> None:
        row.colored(op, (next(iter(named.values())) if factor is None else factor) - 1)


@reads("point")
def _(row: Row, table: bytes) -> None:
    values = np.frombuffer(table, np.uint8).reshape(-1, 256)
    one, at = values[0], np.arange(256)
    if (values != one).any():
        raise NoPlace("a table for each channel")
    for bits in range(9):
        if (one == (at & ~((1 << (8 - bits)) - 1) & 255)).all():
            return row.colored("Posterize", bits)
    for threshold in range(257):
        if (one == np.where(at < threshold, at, 255 - at)).all():
            return row.colored("Solarize", (threshold - 0.5) / 255)
    added = int(one[0])
    if (one == np.where(at < 128, np.minimum(at + added, 255), at)).all():
        return row.colored("SolarizeAdd", added)
    raise NoPlace("a table of values")


@reads("autocontrast")
def _(row: Row, cutoff: Any = 0, **options: Any) -> None:
    if cutoff or options:
        raise NoPlace("autocontrast with options")
    row.colored("AutoContrast", 0)


@reads("equalize")
def _(row: Row, mask: Any = None) -> None:
    row.colored("EqualizeInSteps", 0)


@reads(*_module(F_t, "gaussian_blur"), *_module(v2_misc, "gaussian_blur_image"))
def _(row: Row, kernel_size: Any, sigma: Any = None) -> None:
    kernel, sigmas = set(kernel_size), set(sigma if isinstance(sigma, (list, tuple)) else [sigma])
    if len(kernel) != 1 or len(sigmas) != 1 or None in sigmas:
        raise NoPlace("a blur that is not the same in both directions")
    row.colored("GaussianBlur", sigmas.pop(), _slot("nearest", kernel.pop()))


# between pictures, arrays and tensors


@reads("copy", "contiguous", "contiguous_array")
def _(row: Row) -> None:
    pass


for _name, _is_array, _layout in [
    ("array", True, (2, 0, 1)),
    ("asarray", True, (2, 0, 1)),
    ("from_numpy", False, None),
    ("pil_to_tensor", False, (0, 1, 2)),
    ("to_pil_image", False, (2, 0, 1)),
    ("fromarray", False, (2, 0, 1)),
]:

    @reads(_name)
    def _(row: Row, *, is_array: bool = _is_array, layout: Any = _layout) -> None:
        if is_array and row.channels == 1:
            raise NoPlace("an array of one channel")
        row.is_array, row.layout = is_array, layout or row.layout


@reads("to_tensor")
def _(row: Row, dtype: torch.dtype) -> None:
    row.layout, row.dtype = (0, 1, 2), dtype
    row.scaled(1 / 255)


@reads(*_module(F_t, "convert_image_dtype"), *_module(v2_misc, "to_dtype_image"))
def _(row: Row, dtype: torch.dtype = torch.float32, scale: bool = True) -> None:
    row.dtype = dtype
    row.scaled(1 / 255 if scale else 1)


@reads("to", "astype", "tensor")
def _(row: Row, dtype: Any) -> None:
    row.is_array = row.is_array and not isinstance(dtype, torch.dtype)
    row.dtype = (
        dtype if isinstance(dtype, torch.dtype) else torch.from_numpy(np.empty(0, dtype)).dtype
    )
    if row.scale is not None or row.dtype != torch.uint8:
        row.scaled(1)


@reads(*_module(F_t, "normalize"), *_module(v2_misc, "normalize_image"))
def _(row: Row, mean: Any, std: Any) -> None:
    mean, std = _three(mean), _three(std)
    row.scaled(
        tuple(1 / each for each in std),
        tuple(-each / by for each, by in zip(mean, std, strict=True)),
    )


@reads("albucore.normalize")
def _(row: Row, mean: Any, denominator: Any) -> None:
    row.dtype = torch.float32
    mean, by = _three(mean), _three(denominator)
    row.scaled(by, tuple(-each * factor for each, factor in zip(mean, by, strict=True)))


@reads("mul", "np.multiply")
def _(row: Row, other: Any, dtype: torch.dtype | None) -> None:
    _becomes(row, dtype)
    row.scaled(_three(other))


@reads("div", "np.divide")
def _(row: Row, other: Any, dtype: torch.dtype | None) -> None:
    _becomes(row, dtype)
    row.scaled(tuple(1 / each for each in _three(other)))


@reads("add", "np.add")
def _(row: Row, other: Any, dtype: torch.dtype | None) -> None:
    _becomes(row, dtype)
    row.scaled(1, _three(other))


@reads("sub", "np.subtract")
def _(row: Row, other: Any, dtype: torch.dtype | None) -> None:
    _becomes(row, dtype)
    row.scaled(1, tuple(-each for each in _three(other)))


def _becomes(row: Row, dtype: torch.dtype | None) -> None:
    if dtype is None or not dtype.is_floating_point:
        raise NoPlace("arithmetic of whole numbers")
    row.dtype = dtype


@reads("permute", "transposed")
def _(row: Row, *dims: Any) -> None:
    dims = dims[0] if dims and isinstance(dims[0], tuple) else dims
    dims = dims or (2, 1, 0)
    row.layout = tuple(dims.index(each) for each in row.layout)
    if row.layout[1] > row.layout[2]:  # rows became columns
        row.layout = row.layout[0], row.layout[2], row.layout[1]
        READ["transpose"](row, 5)


def _spatial(row: Row, at: dict[int, tuple[int, int]]) -> None:
    """A crop: from where to where, by dimension."""
    (top, bottom), (left, right) = (
        at.get(row.layout[1 + which], (0, row.size[which])) for which in (0, 1)
    )
    row.cropped(top, left, bottom - top, right - left)


@reads("slice")
def _(row: Row, dim: int, first: int, last: int) -> None:
    if dim == row.layout[0]:
        raise NoPlace("a part of the channels")
    _spatial(row, {dim: (first, last)})


@reads("index")
def _(row: Row, at: Any) -> None:
    parts = at if isinstance(at, tuple) else (at,)
    if Ellipsis in parts:
        place = parts.index(Ellipsis)
        parts = parts[:place] + (slice(None),) * (4 - len(parts)) + parts[place + 1 :]
    shape = [0, 0, 0]
    for place, size in zip(row.layout, (3, *row.size), strict=True):
        shape[place] = size
    found: dict[int, tuple[int, int]] = {}
    for dim, part in enumerate(parts):
        if part == slice(None, None, -1):
            if dim == row.layout[0]:
                row.is_bgr ^= True
            else:
                row.flipped(0 if dim == row.layout[2] else 1)
        elif isinstance(part, slice) and (dim != row.layout[0] or part == slice(None)):
            first, last, step = part.indices(shape[dim])
            if step != 1:
                raise NoPlace("an index with a step")
            found[dim] = first, last
        else:
            raise NoPlace("an index")
    if any(each != (0, shape[dim]) for dim, each in found.items()):
        _spatial(row, {dim: each for dim, each in found.items() if dim != row.layout[0]})


@reads("flip")
def _(row: Row, dims: Any) -> None:
    for dim in dims:
        if dim == row.layout[0]:
            row.is_bgr ^= True
        else:
            row.flipped(0 if dim == row.layout[2] else 1)


@reads(*_module(v2_geometry, "resize_image"), *_module(F_t, "resize"))
def _(
    row: Row,
    size: Any,
    interpolation: Any = "bilinear",
    max_size: Any = None,
    antialias: Any = True,
) -> None:
    kind = getattr(interpolation, "value", interpolation)
    if kind not in ("bilinear", "bicubic") or not antialias or row.scale is not None:
        raise NoPlace("a resize of a tensor")
    size = [size] if isinstance(size, int) else list(size)
    row.resized(
        *v2_geometry._compute_resized_output_size(row.size, size=size, max_size=max_size), kind
    )


@reads("cv2.cvtColor")
def _(row: Row, code: int) -> None:
    if code != 4:
        raise NoPlace("another color space")
    row.is_bgr ^= True


@reads("cv2.resize")
def _(
    row: Row, dsize: Any, dst: Any = None, fx: Any = 0, fy: Any = 0, interpolation: int = 1
) -> None:
    if interpolation != 1:
        raise NoPlace("OpenCV's other filters")
    row.resized(dsize[1], dsize[0], "bilinear", is_plain=True)


@reads("cv2.flip")
def _(row: Row, code: int) -> None:
    for axis in (0,) if code > 0 else (1,) if code == 0 else (0, 1):
        row.flipped(axis)


@reads("np.rot90")
def _(row: Row, quarters: int = 1) -> None:
    method = {1: 2, 2: 3, 3: 4}.get(quarters % 4)
    if method is not None:
        READ["transpose"](row, method)


@reads("erase_", *_module(F_t, "erase"), *_module(v2_augment, "erase_image"))
def _(row: Row, i: int, j: int, h: int, w: int, v: Any) -> None:
    row.erased.append((i, j, h, w, v))


@reads("albucore.cutout")
def _(row: Row, holes: Any, fill: Any, generator: Any = None) -> None:
    if row.scale is None:
        raise NoPlace("a cutout of bytes")
    for left, top, right, bottom in np.asarray(holes).tolist():
        row.erased.append((top, left, bottom - top, right - left, float(np.max(fill))))


# Rows as a planned batch


@dataclass(kw_only=True, slots=True)
class Noted(Policy):
    """Slots for operations that were noted; nothing is drawn."""

    name: str = "Noted"
    noted: tuple[Slot, ...] = ()

    @property
    def slots(self) -> tuple[Slot, ...]:
        return self.noted

    def draw(self, draws: Any, first: int, shape: Any) -> Any:
        raise RuntimeError("nothing is drawn: the program has drawn")


def placed(wanted: list[Any], there: list[Any], keys: Callable[[Any], Any]) -> list[int]:
    """The place of each of `wanted` in `there`, in order; what is not there is added at the end."""
    places, at = [], 0
    for each in wanted:
        key = keys(each)
        while at < len(there) and there[at] != key:
            at += 1
        if at == len(there):
            there.append(key)
        places.append(at)
        at += 1
    return places


@dataclass
class Part:
    """The rows of one kind, and who makes them."""

    kind: Kind
    config: Any
    batch_size: int
    slots: list[Slot] = field(default_factory=list)
    backend: Any = None

    def fits(self, row: Row) -> bool:
        there = list(self.slots)
        placed(row.slots, there, lambda each: each[2])
        return len(there) == len(self.slots)

    def learn(self, rows: list[Row]) -> None:
        """Slots for these rows, and some more."""
        for row in rows:
            placed(row.slots, self.slots, lambda each: each[2])
        self.slots = (self.slots + self.slots)[:MOST_SLOTS]

    def start(self) -> None:
        kind, augment = self.kind, [Noted(noted=tuple(self.slots))] if self.slots else []
        options = {
            "size": kind.shape,
            "mean": kind.mean,
            "std": kind.std,
            "channels": kind.channels,
            "augment": augment,
        }
        before = (
            [{"name": "RandomRotation"}] * MOST_BEFORE if kind.has_before else []
        )  # what they are is in the planned batches
        transform = dp.TrainTransform(antialias=not kind.is_plain, before=before, **options)
        images = LooseImages(
            ["?"], [None], np.ones((1, 2), np.int64), np.ones(1, np.int8), np.array([b""])
        )
        job = Job(transform, images, self.batch_size, torch.device("cpu"))
        self.backend = load_backend(self.config)(job, self.config)

    def planned(self, step: int, recipes: list[Recipe], rows: list[Row]) -> PlannedBatch:
        count = len(rows)
        images = LooseImages(
            [recipe.source.path or "bytes" for recipe in recipes],
            [recipe.source.data for recipe in recipes],
            np.array([row.source for row in rows], np.int64),
            np.ones(count, np.int8),
            np.full(count, b""),
        )
        before, sizes = self._before(rows)
        ops, magnitudes = (
            np.zeros((count, len(self.slots)), np.int8),
            np.zeros((count, len(self.slots)), np.float32),
        )
        for at, row in enumerate(rows):
            for place, (op, magnitude, _) in zip(
                placed(row.slots, list(self.slots), lambda each: each[2]), row.slots, strict=True
            ):
                ops[at, place], magnitudes[at, place] = CODE[op], magnitude
        geometry = Geometry(
            sizes,
            np.array([row.region for row in rows], np.int64),
            np.array([row.resize or row.region[2:] for row in rows], np.int64),
            np.array([row.crop or (0, 0) for row in rows], np.int64),
            np.array([row.flips[0] for row in rows]),
            np.array([row.flips[1] for row in rows]),
        )
        nothing = np.zeros((count, 4), np.int64), np.zeros((count, 0)), np.zeros((count, 0, 2, 3))
        kinds = np.array(
            [INTERPOLATIONS.index(EXACT[row.interpolation or "bilinear"]) for row in rows], np.int8
        )
        interpolations = None if self.kind.is_plain or not kinds.any() else kinds
        view = PlannedView(
            geometry,
            Augmentation(ops, magnitudes, *nothing),
            self.kind.shape,
            tuple(before),
            interpolations,
        )
        return PlannedBatch(0, step, np.arange(count), ((view,),), images)

    def _before(self, rows: list[Row]) -> tuple[list[DrawnStep], np.ndarray]:
        """The steps on whole images, those of one key in one column; and the sizes after them."""
        sizes = np.array([row.source for row in rows], np.int64)
        if not self.kind.has_before:
            return [], sizes
        keys: list[Any] = []
        columns = [
            dict(zip(placed(row.before, keys, lambda each: each.key), row.before, strict=True))
            for row in rows
        ]
        if len(keys) > MOST_BEFORE:
            raise NoPlace(f"{len(keys)} kinds of steps before")
        drawn: list[DrawnStep] = []
        for at in range(MOST_BEFORE):
            key = keys[at] if at < len(keys) else ("affine", "nearest", (0, 0, 0), "constant")
            drawn.append(_drawn(key, [column.get(at) for column in columns], sizes))
            sizes = drawn[-1].size
        return drawn, sizes


def _drawn(key: Any, steps: list[Whole | None], sizes: np.ndarray) -> DrawnStep:
    kind, interpolation, fill, mode = key
    happens = np.array([step is not None for step in steps])
    after = np.array(
        [step.size if step else size for step, size in zip(steps, sizes.tolist(), strict=True)],
        np.int64,
    )
    numbers = np.array([step.numbers if step else (0.0,) * 8 for step in steps])
    return DrawnStep(kind, interpolation, sizes, after, happens, numbers, fill, mode)


# The loader


@dataclass
class Work:
    """A parcel, and which of its rows a backend makes.

    Attributes:
        parts: for each part (cell, place in it, row) of each row of the planned batch.
        error: of a file that has changed.
    """

    parcel: Parcel
    found: Found
    planned: dict[int, PlannedBatch]
    parts: dict[int, list[tuple[Cell, int, Row]]]
    error: OSError | None = None


class PlannedLoader(LazyLoader):
    """A `LazyLoader` whose pictures a backend of dali_pipes makes, a few batches ahead.

    Attributes:
        compiled: how many pictures a backend made.
        left: how many it did not, by reason.
    """

    def __init__(self, loader: Any, config: Any, seed: int | None = None, checks: bool = True):
        super().__init__(loader, seed, checks=checks)
        self.config, self.parts = config.on_cores(), list[Part]()
        self.compiled, self.left, self._learned = 0, Counter(), False

    def _batches(self) -> Iterator[Any]:
        works, first = map(self._plan, itertools.count(), self._parcels()), list[Work]()
        while not self._learned and (
            work := next(works, None)
        ):  # which backends there are is known from the first pictures that wait
            first.append(work)
        *each_part, delivered = itertools.tee(itertools.chain(first, works), len(self.parts) + 1)
        streams = [
            self.parts[number].backend.stream(_planned_of(number, own))
            for number, own in enumerate(each_part)
        ]
        for work in delivered:
            try:
                if work.error:
                    raise work.error
                for number, stream in enumerate(streams):
                    if number in work.planned:
                        _fill(next(stream)[1].images, work.parts[number])
                self.execute(work.found.cells)
                batch = self.deliver(work.parcel, work.found)
            except Exception as error:
                streams = (
                    streams if error is work.error else []
                )  # DALI ends with its first error; the rest is carried out as noted
                batch = self.ask_again(work.parcel, error)
            yield batch

    def _plan(self, step: int, parcel: Parcel) -> Work:
        work = Work(parcel, Found(parcel.batch), {}, {})
        try:
            rows = self._rows(work.found.cells)
        except OSError as error:
            work.error = error
            return work
        if not self._learned and rows:
            self._learn(rows)
        for number, part in enumerate(self.parts):
            wanted = rows.pop(part.kind, [])
            mine = [each for each in wanted if part.fits(each[3])][: part.batch_size]
            self.left["too many operations, or of a larger batch"] += len(wanted) - len(mine)
            if mine:
                recipes, cells, places, own = zip(*mine, strict=True)
                work.planned[number] = part.planned(step, list(recipes), list(own))
                work.parts[number] = list(zip(cells, places, own, strict=True))
                self.compiled += len(mine)
        self.left["kinds that came later"] += sum(map(len, rows.values()))
        return work

    def _rows(self, cells: list[Cell]) -> dict[Kind, list[tuple[Recipe, Cell, int, Row]]]:
        rows: dict[Kind, list[tuple[Recipe, Cell, int, Row]]] = {}
        for cell in cells:
            for place, recipe in enumerate(cell.rows):
                if isinstance(recipe, Recipe):
                    recipe.source.check()
                    try:
                        row = read(recipe)
                        rows.setdefault(row.kind, []).append((recipe, cell, place, row))
                    except NoPlace as why:
                        self.left[str(why)] += 1
        return rows

    def _learn(self, rows: dict[Kind, Any]) -> None:
        self._learned = True
        count = sum(map(len, rows.values()))
        for kind, mine in rows.items():
            part = Part(kind, self.config, count)
            part.learn([each[3] for each in mine])
            part.start()
            self.parts.append(part)


def _planned_of(part: int, works: Iterator[Work]) -> Iterator[PlannedBatch]:
    return (work.planned[part] for work in works if part in work.planned)


def _fill(images: torch.Tensor, rows: list[tuple[Cell, int, Row]]) -> None:
    """Puts what was made into cells."""
    for image, (_, _, row) in zip(images, rows, strict=True):
        for top, left, height, width, value in row.erased:
            image[:, top : top + height, left : left + width] = value
    first = 0
    for _, group in itertools.groupby(rows, lambda each: id(each[0])):
        mine = list(group)
        cell, _, row = mine[0]
        made, first = _as_noted(images[first : first + len(mine)], row), first + len(mine)
        if cell.lead and len(mine) == len(cell.rows):  # all of its rows
            cell.fill(made.reshape(*cell.lead, *made.shape[1:]))
            continue
        for (_, place, own), value in zip(mine, made, strict=True):
            cell.rows[place] = value.numpy() if own.is_array else value


def _as_noted(made: torch.Tensor, row: Row) -> torch.Tensor:
    """With the type and the order of dimensions that the program gave it."""
    if row.dtype != torch.float32:
        made = (made if row.dtype.is_floating_point else made.round()).to(row.dtype)
    if row.layout != (0, 1, 2):
        made = made.permute(0, *(1 + np.argsort(row.layout)).tolist()).contiguous()
    return made
