"""Pictures that are recognized by their pixels, wherever the user's code has moved them.

What an opener or a transform returns during a visit is a `Mark`: its pixels are noted, and no two
marks of a visit have the same pixels. `find` says which mark a value is a copy of, and how the copy
is laid out. What is no copy has been changed by code that nobody has recorded.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from dali_pipes.adapters.from_torch.recording.tables import Table, find_table

Pixels = NDArray[Any]

_FEWEST = 16  # values of a picture; smaller arrays are data, such as boxes
# relative error of values that were scaled in single precision
_ROUNDING = 2e-5


@dataclass(slots=True, eq=False)
class Mark:
    """A picture that was handed to the user's code.

    Attributes:
        value: the picture itself.
        pixels: (H, W) or (H, W, C); for a file, what it is decoded to, in RGB.
        source: the `Opened` file or the `TransformCall` that it comes from.
        place: its place among the pictures that the call returned.
        upright: the pixels as the EXIF tag of the file turns them; None: there is no tag.
        number: its place among the marks of the visit.
        twin: Pillow's core of an image with the same pixels, which is compared at little cost;
            None: there is none.
        snapshot: what a tensor was when it was handed out; None: it is no tensor, or a large one.
        is_mask: whether it is a mask, (H, W), which is recognized by a table of its values.
    """

    value: Any
    pixels: Pixels
    source: Any
    place: int = 0
    upright: Pixels | None = None
    number: int = 0
    twin: Any = None
    snapshot: "Snapshot | None" = None
    is_mask: bool = False

    def is_shown_by(self, image: Any) -> bool:
        """Whether a PIL image has the pixels of the twin; ten times as fast as `find`."""
        twin = self.twin
        # without the properties `mode` and `size`, which are functions of Python
        return (
            twin is not None
            and image._mode == twin.mode
            and image._size == twin.size
            and image.im.chop_difference(twin).getbbox() is None
        )

    @property
    def is_pil(self) -> bool:
        return isinstance(self.value, Image.Image)


class Snapshot:
    """What a small tensor was at one time, compared without PyTorch's operators: each of them takes
    some 10 µs between two samples, when its code has left the processor's caches.

    PyTorch's count of changes alone would not do: it misses those through `.numpy()` and `.data`.

    Args:
        value: the tensor, on the CPU.
        array: NumPy's view of it.

    Attributes:
        layout: "HW" or "CHW".
        dtype: the dtype as text.
    """

    __slots__ = ("_address", "_array", "_bytes", "_shape", "_stride", "_version", "dtype", "layout")

    def __init__(self, value: torch.Tensor, array: Pixels):
        self._array, self._bytes = array, array.tobytes()
        self._version, self._address = value._version, value.data_ptr()
        self._shape, self._stride = value.shape, value.stride()
        self.dtype, self.layout = dtype_of(value), "HW" if array.ndim == 2 else "CHW"

    def holds(self, value: torch.Tensor) -> bool:
        """Whether the tensor is as it was."""
        return (
            value._version == self._version
            and value.data_ptr() == self._address
            and value.shape == self._shape
            and value.stride() == self._stride
            and self._array.tobytes() == self._bytes
        )


# not frozen, which would make it three times as slow, and there are several for each sample
@dataclass(slots=True, eq=False)
class Match:
    """How a value shows the picture of a mark.

    Attributes:
        kind: "pil", "tensor", "array", or "mask" for a tensor that torchvision moves as a mask.
        layout: "HW", "HWC" or "CHW".
        channels: "same"; "reversed", as BGR is of RGB; "one" if a gray picture has one channel here
            and three equal ones in the mark; "spread" for the opposite; "gray" if a file in colour
            has one channel here, which is Pillow's `convert("L")` of it.
        scale, offset: for each channel, if the values are value × scale + offset; else None.
        is_upright: whether the picture was turned by its EXIF tag.
        table: of a mask: what its values became; None: it is no mask.
    """

    mark: Mark
    kind: str
    layout: str
    channels: str = "same"
    scale: tuple[float, ...] | None = None
    offset: tuple[float, ...] | None = None
    is_upright: bool = False
    table: Table | None = None

    @property
    def line(self) -> tuple[float, ...]:
        """All scales, then all offsets; empty if the values are the mark's own."""
        return (*(self.scale or ()), *(self.offset or ()))


def is_picture(value: Any) -> bool:
    """Whether a value may be a picture: one of PIL's, or an array of two to four axes."""
    # most values of samples
    kind = type(value)
    if kind is torch.Tensor:
        return 2 <= value.ndim <= 4 and value.numel() >= _FEWEST
    if kind is int or kind is str:
        return False
    if kind is Image.Image:
        return True
    if isinstance(value, Image.Image):
        return True
    if not isinstance(value, (torch.Tensor, np.ndarray)) or not 2 <= value.ndim <= 4:
        return False
    return math.prod(value.shape) >= _FEWEST


def is_stack(value: Any) -> bool:
    """Whether a value may be several pictures along its first axis."""
    return isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim == 4 and is_picture(value)


def is_single(value: Any) -> bool:
    """Whether a value may be one picture, and not several."""
    return type(value) is Image.Image or (is_picture(value) and not is_stack(value))


def dtype_of(value: Any) -> str:
    """The dtype of a picture as text, or Pillow's mode."""
    return str(value.mode) if isinstance(value, Image.Image) else _text(value.dtype)


_text = cache(str)


def kind_of(value: Any) -> str:
    if isinstance(value, Image.Image):
        return "pil"
    return "tensor" if isinstance(value, torch.Tensor) else "array"


def is_torchvision_mask(value: Any) -> bool:
    """Whether torchvision's v2 moves this tensor as a mask."""
    kind = type(value)
    return kind.__name__ == "Mask" and kind.__module__.startswith("torchvision.")


def to_array(value: Any) -> Pixels:
    """The values of a picture; those of a palette are its indices."""
    if isinstance(value, torch.Tensor):
        # without the functions of tv_tensors; NumPy has no bfloat16
        plain = value.detach().as_subclass(torch.Tensor)
        return (plain.float() if plain.dtype in (torch.bfloat16,) else plain).cpu().numpy()
    return np.asarray(value)


def pixels_of(value: Any) -> Pixels:
    """(H, W) or (H, W, C) values of a picture that a library made."""
    array = to_array(value)
    if kind_of(value) == "tensor" and array.ndim == 3:
        return array.transpose(1, 2, 0)
    return array


def find(value: Any, marks: Sequence[Mark]) -> Match | None:
    """The latest mark that a picture shows; None: it shows none of them."""
    kind, array = kind_of(value), to_array(value)
    given_as = "mask" if is_torchvision_mask(value) else kind
    # the latest first: what a step returned is nearly always what reaches the next one
    for pixels, layout in _layouts(array, kind):
        for mark in reversed(marks):
            if not mark.is_mask and (found := _compare(pixels, mark, given_as, layout)):
                return found

    for mark in reversed(marks):
        if mark.is_mask and (shown := find_table(mark.pixels, array)):
            table, layout = shown
            return Match(mark, given_as, layout, table=table)

    # gray comes first in our transforms, so only a file may be made gray by code between steps;
    # last, since a mask may look so
    is_gray = isinstance(value, Image.Image) and value.mode == "L"
    files = [mark for mark in marks if is_gray and hasattr(mark.source, "opener")]
    for mark in reversed(files):
        for expected in (mark.pixels, mark.upright):
            if expected is not None and _is_gray_of(array, expected):
                is_upright = expected is not mark.pixels
                return Match(mark, kind, "HW", "gray", is_upright=is_upright)
    return None


def _is_gray_of(gray: Pixels, pixels: Pixels) -> bool:
    """Whether (H, W) is Pillow's `convert("L")` of (H, W, 3) in RGB."""
    if pixels.shape != (*gray.shape, 3) or pixels.dtype != np.uint8:
        return False
    return np.array_equal(gray, np.asarray(Image.fromarray(pixels).convert("L")))


def _layouts(array: Pixels, kind: str) -> Iterator[tuple[Pixels, str]]:
    """Yields an array as (H, W) or (H, W, C) in each way that it may be meant, the likely first."""
    if array.ndim == 2:
        yield array, "HW"
    elif array.ndim == 3:
        forms = [
            (array.transpose(1, 2, 0), "CHW", array.shape[0]),
            (array, "HWC", array.shape[2]),
        ]
        # both are possible if both axes are short; arrays are usually HWC, tensors CHW
        for pixels, layout, channels in forms if kind == "tensor" else forms[::-1]:
            if channels <= 4:
                yield pixels, layout


def _compare(pixels: Pixels, mark: Mark, kind: str, layout: str) -> Match | None:
    known = [(mark.pixels, False)] + ([(mark.upright, True)] if mark.upright is not None else [])
    for expected, is_upright in known:
        if pixels.shape[:2] != expected.shape[:2]:
            continue
        for seen, channels in _channels(pixels, expected):
            if np.array_equal(seen[0], seen[1]):
                return Match(mark, kind, layout, channels, is_upright=is_upright)
            if (line := _fit(*seen)) is not None:
                return Match(mark, kind, layout, channels, *line, is_upright=is_upright)
    return None


def _channels(pixels: Pixels, expected: Pixels) -> Iterator[tuple[tuple[Pixels, Pixels], str]]:
    """Yields pairs to be compared, both (H, W, C), and what it means for the channels if they are
    equal.
    """
    ours = pixels[..., None] if pixels.ndim == 2 else pixels
    theirs = expected[..., None] if expected.ndim == 2 else expected

    if ours.shape[2] == theirs.shape[2]:
        yield (ours, theirs), "same"
        if ours.shape[2] == 3:
            yield (ours[..., ::-1], theirs), "reversed"
    elif ours.shape[2] == 1 and theirs.shape[2] == 3:
        # a file's pixels are noted in RGB, also those of a gray file
        if (theirs == theirs[..., :1]).all():
            yield (ours, theirs[..., :1]), "one"
    elif ours.shape[2] == 3 and theirs.shape[2] == 1:
        yield (ours, np.broadcast_to(theirs, ours.shape)), "spread"


def _fit(seen: Pixels, expected: Pixels) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """The scale and the offset of each channel, if all values seen are expected × scale + offset;
    None: they are not.
    """
    # integers are cut off or wrap around, so code that scales them changes the picture
    if not np.issubdtype(seen.dtype, np.floating) or not np.isfinite(seen).all():
        return None

    scales, offsets = [], []
    for channel in range(seen.shape[2]):
        x, y = (each[..., channel].astype(np.float64).ravel() for each in (expected, seen))
        # the line through the darkest and the brightest pixel, which rounding moves least
        low, high = x.argmin(), x.argmax()
        if x[low] == x[high]:
            return None
        scale = (y[high] - y[low]) / (x[high] - x[low])
        offset = y[low] - scale * x[low]
        extent = max(np.abs(y).max(), np.abs(scale * x).max(), 1e-30)
        if not scale or np.abs(scale * x + offset - y).max() > _ROUNDING * extent:
            return None
        scales.append(float(scale))
        offsets.append(float(offset))
    return tuple(scales), tuple(offsets)


def with_noise(value: Any, noise: np.random.Generator) -> Any:
    """A picture of the same type, mode, size and dtype whose pixels are noise, as dark and as
    bright as its own are: code that clamps, or asks how bright a picture is, then does to the noise
    what it does to the picture.
    """
    if isinstance(value, Image.Image):
        fresh = value.copy()
        if value.mode in ("RGB", "L"):
            low, high = extent(np.asarray(value.getextrema()))
            pixels = noise.integers(low, high, np.asarray(value).shape, np.uint8, endpoint=True)
            fresh.frombytes(pixels.tobytes())
            return fresh
        # pixels of several bytes: bytes of noise would be numbers of any size, or NaN
        if value.mode in ("F", "I", "I;16"):
            fresh.paste(Image.fromarray(noise.integers(0, 255, value.size[::-1]).astype(np.int32)))
            return fresh
        # as long as Pillow's own bytes are, which for "1" are bits
        fresh.frombytes(noise.bytes(len(value.tobytes())))
        return fresh

    array = to_array(value)
    if array.dtype == bool:
        drawn = noise.integers(0, 2, array.shape)
    else:
        low, high = extent(array)
        drawn = (
            low + (high - low) * noise.random(array.shape)
            if np.issubdtype(array.dtype, np.floating)
            else noise.integers(int(low), int(high), array.shape, endpoint=True)
        )
    if isinstance(value, torch.Tensor):
        return _like(torch.from_numpy(drawn).to(value.device, value.dtype), value)
    return drawn.astype(value.dtype)


def stack_like(pictures: list[Any], value: Any) -> Any:
    """Pictures as a stack of the value's class."""
    if isinstance(value, torch.Tensor):
        return _like(torch.stack(pictures), value)
    return np.stack(pictures)


def extent(values: Pixels) -> tuple[Any, Any]:
    """The lowest and the highest value; a little apart, since marks must not look alike."""
    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if finite.size else (0, 0)
    if low == high:
        apart = 1 if np.issubdtype(values.dtype, np.integer) else 1e-3
        return (low - apart, high) if high > 0 else (low, high + apart)
    return low, high


def _like(plain: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The same tensor as one of the value's class, such as tv_tensors.Image."""
    if type(value) is torch.Tensor:
        return plain
    from torchvision import tv_tensors

    wrapped: torch.Tensor = tv_tensors.wrap(plain, like=value)
    return wrapped
