"""One picture of a planned batch.

    whole image → steps → region → resize → crop → flips → operations → numbers → rectangles

Each note of a recipe calls a verb of the `Row`, as the `plan` of its step says. The verb puts it
where the plan has a place for it. That may be before what came earlier, if both orders give the
same pixels. Where the plan has no place, it raises `NoPlace`.
"""

import math
from collections.abc import Collection
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dali_pipes.adapters.lazy.steps.step import NoPlace
from dali_pipes.plan.steps.operations import CODE, MOVES, OPS, Slot, affine_matrices

Pair = tuple[int, int]  # height, width
Color = tuple[int, int, int]
Numbers = tuple[float, ...]  # one for each channel

# operations on each pixel by itself: they may be done before or after a crop
_ONE_BY_ONE = frozenset(
    {
        *("Brightness", "Color", "Hue", "PillowColor", "PillowHue", "OpenCvColor"),
        *("Posterize", "Solarize", "SolarizeAdd", "Invert", "Table", "HsvTable"),
    }
)
# operations to which red and blue are not the same; and those of the libraries of pictures and of
# arrays, which take another gray than that of tensors
_OF_COLORS = ("Color", "Contrast", "Hue")
_OF_LIBRARIES = {
    "picture": {"Color": "PillowColor", "Contrast": "PillowContrast", "Hue": "PillowHue"},
    "array": {"Color": "OpenCvColor", "Contrast": "OpenCvContrast"},
    "tensor": {},
}
_FILTERS = ("bilinear", "bicubic")
_NARROW = (torch.bool, torch.int8)
_CLOSE = 1e-6  # by how much a number of a matrix may be off
# Pillow's transpositions, by their numbers: whether they begin with a quarter turn to the left, and
# along which axes they mirror then
_TURNS: dict[int, tuple[bool, tuple[int, ...]]] = {
    0: (False, (0,)),
    1: (False, (1,)),
    2: (True, ()),
    3: (False, (0, 1)),
    4: (True, (0, 1)),
    5: (True, (1,)),
    6: (True, (0,)),
}


class Whole(NamedTuple):
    """A step on the whole image, as of `DrawnStep`."""

    kind: str
    interpolation: str
    source: Pair
    size: Pair
    numbers: Numbers = (0.0,) * 8
    fill: Color = (0, 0, 0)
    mode: str = "constant"

    @property
    def key(self) -> tuple[Any, ...]:
        """What the steps of one `DrawnStep` have in common."""
        return self.kind, self.interpolation, self.fill, self.mode


class Operation(NamedTuple):
    """An operation on the pixels.

    Attributes:
        slot: one that carries it out; others like it do, too.
        table: (3, 256) uint8 of an operation that looks its values up.
    """

    op: str
    magnitude: float
    slot: Slot
    table: NDArray[np.uint8] | None = None


class Row:
    """One picture of a planned batch, as it is after the notes so far. Sizes are height and width.

    Attributes:
        size, channels, dtype: of what there is now.
        axes: its dimensions, as in "CHW", "HWC" or "HW".
        form: "picture", "array" or "tensor".
        steps: on the whole image.
        region: top, left, height and width of what is resized of the image after these.
        resized: to which size; None: it is not.
        corner: top and left of the crop in what was resized; None: all of it.
        mirrored: left to right, top to bottom.
        operations: on pixels of 0 to 255.
        scale, plus: a value is scale × pixel / 255 + plus, for each channel; None: pixels are whole
            numbers still.
        is_bgr: whether channels are blue, green and red.
        has_colors: whether they are not gray in the file.
        takes_first: whether its one channel is the first of three equal ones.
        erased: rectangles that get a value: top, left, height, width, and a number, one for each
            channel, or a tensor.
    """

    __slots__ = (
        "antialias", "axes", "channels", "corner", "dtype", "erased", "form",
        "has_colors", "interpolation", "is_bgr", "mirrored", "operations", "plus", "region",
        "resized", "scale", "size", "source", "steps", "takes_first",
    )  # fmt: skip

    def __init__(self, source: Pair, channels: int, axes: str, form: str):
        self.source = self.size = source
        self.channels, self.axes, self.form = channels, axes, form
        self.steps: list[Whole] = []
        self.region: tuple[int, int, int, int] = (0, 0, *source)
        self.resized: Pair | None = None
        self.corner: Pair | None = None
        self.mirrored = [False, False]
        self.interpolation, self.antialias = "", True
        self.operations: list[Operation] = []
        self.scale: Numbers | None = None
        self.plus: Numbers = (0.0, 0.0, 0.0)
        self.is_bgr, self.has_colors, self.takes_first = False, True, False
        self.erased: list[tuple[Any, ...]] = []
        self.dtype = torch.uint8

    # geometry

    def crop(self, top: int, left: int, height: int, width: int) -> None:
        """Cuts a rectangle out. What it has outside the image is black."""
        inside = (
            top >= 0 and left >= 0 and top + height <= self.size[0] and left + width <= self.size[1]
        )
        self._go_before_operations("a crop", stays_inside=inside)
        if self.mirrored[0]:
            left = self.size[1] - left - width
        if self.mirrored[1]:
            top = self.size[0] - top - height

        if self.resized is None and self.corner is None and inside:
            self.region = (self.region[0] + top, self.region[1] + left, height, width)
        elif self.corner is None or inside:
            self.resized = self.resized or self.size
            before = self.corner or (0, 0)
            self.corner = before[0] + top, before[1] + left
        else:
            # what an earlier crop has cut off must stay black
            flips = self.mirrored
            self.mirrored = [False, False]
            self._put_into_steps()
            self.resized, self.corner, self.mirrored = self.size, (top, left), flips
        self.size = height, width

    def resize(
        self, height: int, width: int, interpolation: str = "bilinear", antialias: bool = True
    ) -> None:
        """Resizes as Pillow does; without `antialias` as OpenCV's INTER_LINEAR and INTER_CUBIC do.

        Args:
            interpolation: "bilinear" or "bicubic"; or "nearest", as Pillow's.
        """
        if interpolation == "nearest" and antialias:
            self.take_nearest(height, width, "pillow")
            return
        if interpolation not in _FILTERS:
            raise NoPlace(f"a resize by {interpolation}")
        if (height, width) == self.size:
            return
        if not antialias and interpolation != "bilinear":
            self.step("plain_resize", interpolation, (height, width))
            return
        self._go_before_operations("a resize")
        if self.resized is not None or self.corner is not None:
            self._put_into_steps()
        self.resized = self.size = (height, width)
        self.interpolation, self.antialias = interpolation, antialias

    def take_nearest(self, height: int, width: int, library: str) -> None:
        """Resizes by the nearest pixels, value for value: these may be the classes of a mask.

        Args:
            library: "pillow", "opencv" (INTER_NEAREST), or PyTorch's "nearest" or "nearest-exact".
                Where two pixels are nearly equally near, each takes another one.
        """
        down = _nearest_places(self.size[0], height, library)
        across = _nearest_places(self.size[1], width, library)
        if (height, width) != self.size:
            numbers = (across[0], 0, across[1], 0, down[0], down[1])
            self.step("affine", "nearest", (height, width), numbers)

    def flip(self, axis: int) -> None:
        """Mirrors, 0: left to right, 1: top to bottom."""
        if self.erased:
            raise NoPlace("a flip after rectangles were erased")
        if any(each.op in MOVES for each in self.operations):
            self._mirror_moves(axis)
        self.mirrored[axis] ^= True

    def transpose(self, method: int) -> None:
        """As Pillow's `transpose`, whose numbers these are."""
        is_turned, axes = _TURNS[method]
        if is_turned:
            turned, numbers = self.size[::-1], (0.0, -1.0, float(self.size[1]), 1.0, 0.0, 0.0)
            if not self._is_late(turned):  # in the same step it is mirrored
                numbers, axes = _mirrored(numbers, turned, axes), ()
            self.warp(turned, numbers)
        for axis in axes:
            self.flip(axis)

    def warp(
        self,
        size: Pair,
        numbers: Any,
        interpolation: str = "nearest",
        fill: Any = 0,
        perspective: bool = False,
    ) -> None:
        """Warps as Pillow's `transform`.

        Args:
            size: of the result.
            numbers: six of an affine warp, or eight of a perspective one, as Pillow takes them.
            interpolation: "nearest", "bilinear" or "bicubic".
            fill: what comes from outside the image: a number, a color, or None for black.
        """
        move = _find_move(numbers, size) if self._is_late(size) and not perspective else None
        if move:
            self._operate(move[0], move[1], slot_of(interpolation, 0, _color(fill)))
            return
        self.step("perspective" if perspective else "affine", interpolation, size, numbers, fill)

    def pad(
        self, left: int, top: int, right: int, bottom: int, fill: Any = 0, mode: str = "constant"
    ) -> None:
        """Pads; `mode` is "constant", "edge", "reflect" or "symmetric"."""
        size = self.size[0] + top + bottom, self.size[1] + left + right
        self.step("pad", "nearest", size, (left, top, right, bottom), fill, mode)

    def step(
        self,
        kind: str,
        interpolation: str,
        size: Pair,
        numbers: Any = (),
        fill: Any = 0,
        mode: str = "constant",
    ) -> None:
        """A step on the whole image, as of `DrawnStep`."""
        self._go_before_operations(kind)
        self._put_into_steps()
        self._append(kind, interpolation, size, numbers, _color(fill), mode)

    # channels and colors

    def operate(self, op: str, magnitude: float = 0.0, kernel: int = 0) -> None:
        """An operation of `OPS`, on pixels of 0 to 255, of this magnitude (`Augmentation`).

        Args:
            kernel: pixels of GaussianBlur's.
        """
        if self.is_bgr and op in _OF_COLORS:
            raise NoPlace(f"{op} of blue, green and red")
        op = _OF_LIBRARIES[self.form].get(op, op)
        self._operate(op, magnitude, slot_of("nearest", kernel))

    def look_up(self, table: Any, hsv: bool = False) -> None:
        """Replaces every value by that of a table.

        Args:
            table: (256,) or (channels, 256) uint8, in the order of the channels.
            hsv: of hue, saturation and value, as OpenCV has them in 8 bits.
        """
        if hsv and self.is_bgr:
            raise NoPlace("the hue of blue, green and red")
        each = np.broadcast_to(np.asarray(table, np.uint8), (3, 256))
        self._operate(
            "HsvTable" if hsv else "Table", 0.0, slot_of(), each[::-1] if self.is_bgr else each
        )

    def _operate(
        self, op: str, magnitude: float, slot: Slot, table: NDArray[np.uint8] | None = None
    ) -> None:
        if self.scale is not None or self.erased or self.dtype != torch.uint8:
            raise NoPlace(f"{op} of numbers that are no pixels from 0 to 255 any more")
        self.operations.append(Operation(op, float(magnitude), slot, table))

    def convert(self, mode: str) -> None:
        """As Pillow's `convert`, from and to RGB and L."""
        is_early = not (self.operations or self.resized or self.steps)
        if mode == "L" and self.channels == 3:
            if self.is_bgr:
                raise NoPlace("gray of blue, green and red")
            if not is_early:
                # it stays three equal channels, of which the first is taken in the end
                self._operate("PillowColor", -1.0, slot_of())
                self.takes_first = True
            self.channels = 1
            if self.form != "tensor":
                self.axes = self.axes.replace("C", "")
        elif mode == "RGB" and self.channels == 1:
            if self.takes_first:
                self.takes_first = False
            elif self.has_colors:
                if not is_early:
                    raise NoPlace("three channels of a picture that was made gray")
                self._operate("PillowColor", -1.0, slot_of())
            self.channels, self.axes = 3, self.axes if "C" in self.axes else "HWC"

    def swap_colors(self) -> None:
        """Red becomes blue, and blue red."""
        if self.erased:
            raise NoPlace("channels in another order after rectangles were erased")
        if self.channels == 3:
            self.is_bgr ^= True
            if self.scale is not None:
                self.scale, self.plus = self.scale[::-1], self.plus[::-1]

    # numbers

    def scale_by(self, by: Any, plus: Any = 0.0) -> None:
        """Each value becomes value × by + plus; both are numbers, or have one for each channel."""
        by, plus = _three(by), _three(plus)
        self.erased = [(*box, _scaled_value(value, by, plus)) for *box, value in self.erased]
        self.scale, self.plus = _scaled(self.scale or (255.0,) * 3, self.plus, by, plus)

    def cast(self, dtype: torch.dtype) -> None:
        """Casts, without scaling."""
        if dtype == self.dtype:
            return
        if self.scale is not None and not dtype.is_floating_point:
            raise NoPlace("whole numbers of numbers that are none")
        if self.dtype in _NARROW:
            raise NoPlace(f"another dtype after {self.dtype}, which does not hold all pixels")
        if dtype.is_floating_point and self.scale is None:
            self.scale = (255.0,) * 3
        self.dtype = dtype

    def erase(self, top: int, left: int, height: int, width: int, value: Any) -> None:
        """A rectangle gets a value: a number, or a tensor that is broadcast to it (C, H, W)."""
        if not self.dtype.is_floating_point:
            if isinstance(value, torch.Tensor):
                raise NoPlace("a rectangle of several whole numbers")
            value = int(value)  # as an array of whole numbers takes it
        self.erased.append((top, left, height, width, value))

    # dimensions

    def become(self, form: str, axes: str = "") -> None:
        """A "picture", an "array" or a "tensor", with these axes, or those that it has."""
        self.form = form
        if axes:
            self.axes = axes.replace("C", "") if self.channels == 1 and form != "tensor" else axes

    def permute(self, *dims: int) -> None:
        """Its dimensions in this order."""
        self.axes = "".join([self.axes[dim] for dim in dims])
        if self.axes.index("H") > self.axes.index("W"):
            # the axes are named after what there is then
            self.axes = self.axes.translate(_SWAPPED)
            self.transpose(5)

    def slice(self, dim: int, first: int, last: int) -> None:
        """The part from `first` to before `last` of a dimension, both in it."""
        axis = self.axes[dim]
        if axis == "C":
            if (first, last) != (0, self.channels):
                raise NoPlace("a part of the channels")
        elif axis == "H":
            self.crop(first, 0, last - first, self.size[1])
        else:
            self.crop(0, first, self.size[0], last - first)

    def reverse(self, dim: int) -> None:
        """A dimension in the other direction."""
        axis = self.axes[dim]
        if axis == "C":
            self.swap_colors()
        else:
            self.flip(0 if axis == "W" else 1)

    def unsqueeze(self, dim: int) -> None:
        """A dimension of one more."""
        if "C" in self.axes or self.channels != 1:
            raise NoPlace("a dimension more")
        self.axes = self.axes[:dim] + "C" + self.axes[dim:]

    def squeeze(self, dim: int) -> None:
        """A dimension of one less."""
        if self.axes[dim] != "C" or self.channels != 1:
            raise NoPlace("a dimension less")
        self.axes = self.axes.replace("C", "")

    # how it fits together

    def _is_late(self, size: Pair) -> bool:
        """Whether a warp to this size may be an operation on the result of a resize, which takes
        less time than a step on the whole image.
        """
        return bool(self.resized or self.operations) and size == self.size

    def _go_before_operations(self, what: str, stays_inside: bool = False) -> None:
        """Makes room for geometry, which comes before operations and numbers."""
        if self.erased:
            raise NoPlace(f"{what} after rectangles were erased")
        if self.scale is not None and not stays_inside:
            raise NoPlace(f"{what} of numbers that are no pixels from 0 to 255 any more")
        if not self.operations:
            return
        ops = {each.op for each in self.operations}
        if stays_inside and ops <= _ONE_BY_ONE:
            return
        if ops <= set(MOVES):
            self._put_moves_into_steps()
            return
        raise NoPlace(f"{what} after {', '.join(sorted(ops))}")

    def _put_moves_into_steps(self) -> None:
        moves, self.operations = self.operations, []
        self._put_into_steps()
        for op, magnitude, slot, _ in moves:
            (matrix,) = affine_matrices(
                np.array([CODE[op]], np.int8), np.array([magnitude]), self.size
            )
            fill = slot.fill or (0, 0, 0)
            self._append("affine", slot.interpolation, self.size, matrix.ravel(), fill, "constant")

    def _mirror_moves(self, axis: int) -> None:
        """Changes moves so that they come after a flip and not before it."""
        mirrored = []
        for each in self.operations:
            op, magnitude, slot, table = each
            if op in MOVES:
                along = "X" if axis == 0 else "Y"
                # a shear keeps the top left corner, which a flip along the other axis moves
                if op.startswith("Shear") and not op.endswith(along):
                    raise NoPlace(f"a flip after {op}")
                if op == "Rotate" or op.endswith(along):
                    magnitude = -magnitude
            mirrored.append(Operation(op, magnitude, slot, table))
        self.operations = mirrored

    def _append(
        self, kind: str, interpolation: str, size: Pair, numbers: Any, fill: Color, mode: str
    ) -> None:
        numbers = (*map(float, numbers), *(0.0,) * (8 - len(numbers)))
        self.steps.append(Whole(kind, interpolation, self.size, size, numbers, fill, mode))
        self.size, self.region = size, (0, 0, *size)

    def _put_into_steps(self) -> None:
        """Turns the geometry so far into steps on the whole image."""
        region, resized, corner, flips = self.region, self.resized, self.corner, self.mirrored
        interpolation, antialias, size = self.interpolation, self.antialias, self.size
        self.size = self.steps[-1].size if self.steps else self.source
        self.resized = self.corner = None
        self.mirrored, self.interpolation, self.antialias = [False, False], "", True

        def moved(size: Pair, *numbers: float) -> None:
            self._append("affine", "nearest", size, numbers, (0, 0, 0), "constant")

        if region != (0, 0, *self.size):
            moved(region[2:], 1, 0, region[1], 0, 1, region[0])
        if resized and resized != self.size:
            kind = "resize" if antialias else "plain_resize"
            self._append(kind, interpolation, resized, (), (0, 0, 0), "constant")
        if corner:
            moved(size, 1, 0, corner[1], 0, 1, corner[0])
        if any(flips):
            across, down = (-1 if each else 1 for each in flips)
            shift = size[1] if flips[0] else 0, size[0] if flips[1] else 0
            moved(size, across, 0, shift[0], 0, down, shift[1])
        self.region = (0, 0, *self.size)


_SWAPPED = str.maketrans("HW", "WH")


@lru_cache(maxsize=256)
def slot_of(interpolation: str = "nearest", kernel: int = 0, fill: Color = (0, 0, 0)) -> Slot:
    """A slot for any operation of these options."""
    # a blur needs a kernel, also where a backend tries all operations of its slots
    ops = OPS[1:] if kernel else tuple(op for op in OPS[1:] if op != "GaussianBlur")
    return Slot(ops, interpolation, kernel, fill)


_NEARLY = 1e-6  # of a pixel: less than what is between two places of a resize


@lru_cache(maxsize=1024)
def _nearest_places(size: int, out: int, library: str) -> tuple[float, float]:
    """The step and the start by which Pillow's affine warp takes the pixels that a library takes.

    Raises:
        NoPlace: it takes others, where a place lies on an edge of a pixel and numbers are rounded.
    """
    places, step = np.arange(out), size / out
    if library == "pillow":
        return step, 0.0  # its resize is that warp (src/_imaging.c, `_resize`)
    if library == "opencv":  # modules/imgproc/src/resize.cpp, `resizeNN`
        wanted = np.floor(places * (1 / (out / size)))
    else:  # aten/src/ATen/native/UpSample.h, `nearest_neighbor_compute_source_index`
        shift = np.float32(0.5 if library == "nearest-exact" else 0)
        wanted = np.floor((places.astype(np.float32) + shift) * np.float32(size / out))

    for nudge in (0.0, _NEARLY, -_NEARLY):
        start = nudge if library == "nearest-exact" else nudge - step / 2
        # as `ImagingScaleAffine` of src/libImaging/Geometry.c adds them up
        each = np.add.accumulate(np.append(start + step * 0.5, np.full(out - 1, step)))
        if np.array_equal(np.floor(each), wanted.clip(0, size - 1)):
            return step, start
    raise NoPlace(f"a resize to the nearest pixels from {size} to {out}, by {library}")


def _color(fill: Any) -> Color:
    if fill is None:
        return (0, 0, 0)
    if isinstance(fill, (int, float)):
        return (int(fill),) * 3
    red, green, blue = (int(each) for each in (fill if len(fill) == 3 else tuple(fill) * 3))
    return red, green, blue


def _three(value: Any) -> Numbers:
    """A number for each channel; three equal ones also of a picture of one."""
    if isinstance(value, (int, float, np.generic)):
        return (float(value),) * 3
    numbers = value.flatten().tolist() if isinstance(value, (np.ndarray, torch.Tensor)) else value
    if len(numbers) not in (1, 3):
        raise NoPlace("arithmetic with other numbers than one for each channel")
    return tuple(numbers) if len(numbers) == 3 else tuple(numbers) * 3


@lru_cache(maxsize=256)
def _scaled(scale: Numbers, plus: Numbers, by: Numbers, more: Numbers) -> tuple[Numbers, Numbers]:
    return (
        tuple(mine * each for mine, each in zip(scale, by, strict=True)),
        tuple(mine * each + add for mine, each, add in zip(plus, by, more, strict=True)),
    )


def _scaled_value(value: Any, by: Numbers, plus: Numbers) -> Any:
    if isinstance(value, torch.Tensor):
        factor, more = (
            torch.tensor(each, dtype=torch.float32, device="cpu").view(-1, 1, 1)
            for each in (by, plus)
        )
        return value * factor + more
    each = (value,) * 3 if isinstance(value, (int, float)) else value
    return tuple(one * factor + more for one, factor, more in zip(each, by, plus, strict=True))


def _mirrored(numbers: Any, size: Pair, axes: Collection[int]) -> Any:
    """The numbers of an affine warp to this size whose result is mirrored along these axes."""
    a, b, c, d, e, f = numbers
    if 0 in axes:
        a, c, d, f = -a, c + a * size[1], -d, f + d * size[1]
    if 1 in axes:
        b, c, e, f = -b, c + b * size[0], -e, f + e * size[0]
    return a, b, c, d, e, f


def _find_move(numbers: Any, size: Pair) -> tuple[str, float] | None:
    """The operation that moves pixels as this matrix of an affine warp does, and its magnitude."""
    a, b, c, d, e, f = numbers[:6]
    if abs(a - 1) < _CLOSE and abs(e - 1) < _CLOSE:
        others = [abs(each) < _CLOSE for each in (b, c, d, f)]
        for op, magnitude, place in (
            ("ShearX", b, 0),
            ("ShiftX", -c, 1),
            ("ShearY", d, 2),
            ("ShiftY", -f, 3),
        ):
            if all(others[:place]) and all(others[place + 1 :]):
                return op, magnitude

    # about the middle
    y, x = size[0] / 2, size[1] / 2
    shift = x - a * x + d * y, y - d * x - a * y
    if max(abs(b + d), abs(e - a), abs(c - shift[0]), abs(f - shift[1])) < _CLOSE:
        return (
            ("Rotate", math.degrees(math.atan2(d, a))) if abs(a * a + d * d - 1) < _CLOSE else None
        )
    return None
