"""Cheap pictures, of which nothing is decoded or computed: `noise_of` in place of a file, and
`SmallPictures` in place of what a transform returns.

They are made once, and copied for each sample (`Copies`).
"""

import sys
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from dali_pipes.adapters.from_torch.recording.marks import (
    Pixels,
    Snapshot,
    _like,
    extent,
    pixels_of,
    to_array,
)

_MOST = 256  # examples that are remembered
_SIDES = 6, 9  # height and width of small pictures
_AT_ONCE = 32  # copies
_SMALL = 4096  # bytes of a picture of which so many are made

# `id` for every sample: that one raises an audit event, which calls Python code each time
identity = object.__hash__


class Copies:
    """Copies of a small picture, into which the user's code may write.

    Many are made at once: one alone, between two samples of a Hugging Face data set, took PyTorch
    20 to 40 µs, since its code and data have left the processor's caches by then.
    """

    def __init__(self, picture: Any):
        self._picture = picture
        # NumPy copies in a third of PyTorch's time; it has no bfloat16
        has_array = isinstance(picture, torch.Tensor) and picture.dtype is not torch.bfloat16
        self._array = to_array(picture) if has_array else None
        size = 0 if isinstance(picture, Image.Image) else picture.nbytes
        self._at_once = _AT_ONCE if size <= _SMALL else 1
        self._copies: list[tuple[Any, Snapshot | None]] = []
        self._latest: tuple[Any, Snapshot | None] = None, None

    def take(self) -> tuple[Any, Snapshot | None]:
        """A copy that nobody else has, and of a tensor what it is now."""
        if self._is_free():
            return self._latest
        if not self._copies:
            # those made in a program's inference mode would be of no use out of it
            with torch.inference_mode(False):
                self._copies = [self._copy() for _ in range(self._at_once)]
        self._latest = self._copies.pop()
        return self._latest

    def _is_free(self) -> bool:
        """Whether nobody has the latest tensor any more, and nobody has changed it. A new one takes
        several times as long, with what is freed.

        A view that the program keeps is not seen here, and has the same values as that of a new
        one; if it is written into, the tensor shows its mark no more.
        """
        value, snapshot = self._latest
        # three references: the tuple's, the variable's, and the argument's
        return (
            snapshot is not None
            and sys.getrefcount(value) == 3
            and snapshot.holds(value)
            and not (value.requires_grad or value.__dict__ or weakref.getweakrefcount(value))
        )

    def _copy(self) -> tuple[Any, Snapshot | None]:
        if self._array is not None:
            array = self._array.copy()
            copy = _like(torch.from_numpy(array), self._picture)
            return copy, Snapshot(copy, array)
        if isinstance(self._picture, torch.Tensor):
            return _like(self._picture.clone(), self._picture), None
        return self._picture.copy(), None


@dataclass(frozen=True, slots=True, eq=False)
class CheapNoise:
    """Cheap noise: its pixels, and Pillow's core of the image that has them."""

    pixels: Pixels
    twin: Any

    @property
    def is_small(self) -> bool:
        """Whether it is worth keeping."""
        return self.pixels.nbytes <= _SMALL

    def image(self) -> Any:
        """A copy of the picture, which takes half as long as `Image.copy`."""
        image: Any = Image.Image()
        twin = self.twin
        image.im = twin.copy()
        image._mode, image._size = twin.mode, twin.size
        return image


def noise_of(seed: int, number: int, size: tuple[int, int], mode: str) -> CheapNoise:
    """Cheap noise, which is the same for the same arguments."""
    key = (seed, number, size, mode)
    if (known := _NOISE.get(key)) is None:
        shape = size if mode in ("L", "P", "1") else (*size, 3)
        pixels = np.random.default_rng([seed, number]).integers(0, 256, shape, np.uint8)
        # Pillow dithers what is neither black nor white
        pixels = (pixels >> 7) * np.uint8(255) if mode == "1" else pixels
        known = CheapNoise(pixels, Image.fromarray(pixels).im)
        if known.is_small:
            _NOISE[key] = known
    return known


_NOISE: dict[Any, CheapNoise] = {}


class SmallPictures:
    """Small pictures in place of what steps return."""

    def __init__(self) -> None:
        self._small: dict[Any, Any] = {}
        # the lowest and the highest value of what steps returned, for each example and place
        self._extents: dict[Any, tuple[Any, Any]] = {}
        # the same by the identity of an example and a number; the example is kept, so that no
        # other object gets its identity
        self._examples: dict[tuple[int, int], tuple[Any, Copies, Pixels, Any]] = {}

    def note(self, source: Any, value: Any) -> None:
        """Notes how dark and how bright a picture is that a step returned.

        Args:
            source: which one of which step it is.
        """
        if isinstance(value, Image.Image):
            return
        low, high = extent(to_array(value))
        if known := self._extents.get(source):
            low, high = min(low, known[0]), max(high, known[1])
        self._extents[source] = low, high

    def of(self, value: Any, number: int, source: Any) -> tuple[Any, Pixels, Any, Snapshot | None]:
        """Returns small noise in place of a picture: of its type, mode and dtype, as dark and as
        bright as those that the step returned, and other noise for each number; the noise's pixels;
        a twin of it, if it is a PIL image; and what it is now, if it is a tensor.

        Args:
            source: as for `note`.
        """
        if (known := self.known(value, number)) is not None:
            return known
        if len(self._examples) > _MOST:
            self._examples.clear()
        self._examples[identity(value), number] = value, *self._small_of(value, number, source)
        return self.of(value, number, source)

    def known(self, value: Any, number: int) -> tuple[Any, Pixels, Any, Snapshot | None] | None:
        """The same as `of`, which has been asked for this picture before; None: it has not."""
        # the examples of what steps return are the same objects in all visits
        known = self._examples.get((identity(value), number))
        if known is None:
            return None
        _, copies, pixels, twin = known
        fresh, snapshot = copies.take()
        return fresh, pixels, twin, snapshot

    def _small_of(self, value: Any, number: int, source: Any) -> tuple[Copies, Pixels, Any]:
        is_pil = isinstance(value, Image.Image)
        limits = None if is_pil else self._extents.get(source) or extent(to_array(value))
        form = form_of(value), limits
        if (known := self._small.get((form, number))) is None:
            made = _small(value, number, limits)
            is_plain = isinstance(made, Image.Image) and made.mode in ("RGB", "L")
            twin = made.im if is_plain else None
            known = self._small[form, number] = Copies(made), pixels_of(made).copy(), twin
        return known


def form_of(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Image.Image):
        return ("pil", value.mode)
    # axes of up to four are channels; 0 stands for a height or width, whatever it is
    axes = tuple(size if size <= 4 else 0 for size in value.shape)
    return (type(value), value.dtype, axes)


def _small(value: Any, number: int, limits: Any) -> Any:
    noise = np.random.default_rng([7, number])
    if isinstance(value, Image.Image):
        height, width = _SIDES
        image = Image.new(value.mode, (width, height))
        image.frombytes(noise.bytes(len(image.tobytes())))
        if value.mode == "P":
            image.putpalette(value.getpalette() or list(range(256)) * 3)
        return image

    sides = iter(_SIDES * 2)
    shape = tuple(size if size <= 4 else next(sides) for size in value.shape)
    low, high = limits
    # code that clamps what a Normalize returns shows in values such as this one returns
    if value.dtype in (torch.bool, bool):
        drawn = noise.integers(0, 2, shape)
    elif np.issubdtype(to_array(value).dtype, np.floating):
        drawn = low + (high - low) * noise.random(shape)
    else:
        drawn = noise.integers(int(low), int(high), shape, endpoint=True)
    if isinstance(value, torch.Tensor):
        return _like(torch.from_numpy(drawn).to(value.dtype), value)
    return drawn.astype(value.dtype)
