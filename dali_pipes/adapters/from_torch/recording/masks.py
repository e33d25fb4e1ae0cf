"""The masks that a data set opens beside its images, and what is known of their values.

A visit needs masks of its own making: a mask's values are class numbers, and code that looks them
up fails for others. `MaskNotes` makes masks of the values that a data set's code takes, follows
the values through transforms, and joins the tables (tables.py) of all visits.
"""

import io
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image

from dali_pipes.adapters.from_torch.recording.cheap import CheapNoise
from dali_pipes.adapters.from_torch.recording.marks import Match, Pixels, _like, to_array
from dali_pipes.adapters.from_torch.recording.tables import Table

# Pillow's modes of masks whose values are read: gray, palette, black and white
MASK_MODES = ("L", "P", "1")
# steps that move pixels and keep values; all others must keep pixels where they are
MOVING = (
    "Resize",
    "CenterCrop",
    "RandomResizedCrop",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomVerticalFlip",
    "RandomRotation",
)
# Pixels of a made-up mask for each value in it: with fewer, what is drawn at random would look like
# a function of the values.
_PIXELS_PER_VALUE = 8
_SIDES = 6, 9  # height and width of small masks, as of small pictures (keys.py)


@dataclass(slots=True)
class MaskFile:
    """One of the files that a visit opens, which is a mask.

    Attributes:
        mode: Pillow's mode.
        values: (K,) uint8, those that masks are made up of.
    """

    mode: str
    values: Pixels


@dataclass(slots=True)
class MaskNotes:
    """What all visits of a data set share.

    Attributes:
        files: the masks, by their place among the files that a visit opens; None: all files that
            may be masks by their mode.
        moved: the values that came out of a call, by the call's place in the visit and the mask's
            place among its results.
        steps: the tables of steps that replace values, by their keys; None: there is none.
        shown: the tables of all visits, joined, by slot and by the place in the chain.
    """

    files: dict[int, MaskFile] | None
    moved: dict[tuple[int, int], Pixels] = field(default_factory=dict)
    steps: dict[Any, Table | None] = field(default_factory=dict)
    shown: dict[tuple[int, int], Table] = field(default_factory=dict)
    _noise: dict[Any, Any] = field(default_factory=dict)
    _drawn: dict[tuple[int, int], Pixels] = field(default_factory=dict)

    def has(self, number: int) -> bool:
        """Whether the nth file may be a mask."""
        return self.files is None or number in self.files

    def file(self, number: int) -> MaskFile:
        assert self.files is not None
        return self.files[number]

    @property
    def has_palettes(self) -> bool:
        return any(file.mode == "P" for file in (self.files or {}).values())

    def encode(self, number: int, size: tuple[int, int], seed: int) -> bytes:
        """A made-up mask of a height and width, encoded, for the nth file."""
        key = ("encoded", number, size, seed)
        if key not in self._noise:
            file, noise = self.file(number), np.random.default_rng([seed, number, *size])
            pixels = draw_of(file.values, size, noise)
            if file.mode == "1":
                image = Image.fromarray(pixels * np.uint8(255)).convert("1")
            else:
                image = Image.fromarray(pixels)
            # other colours each time, so that code that reads the colours shows itself
            if file.mode == "P":
                image.putpalette(noise.bytes(768))
            with io.BytesIO() as encoded:
                image.save(encoded, "PNG")
                self._noise[key] = encoded.getvalue()
        return self._noise[key]

    def noise(self, number: int, size: tuple[int, int], seed: int) -> tuple[CheapNoise, Pixels]:
        """A cheap mask: the noise from which an opener makes what it returns, and the values."""
        key = ("noise", number, size, seed)
        if key not in self._noise:
            file = self.file(number)
            values = draw_of(file.values, size, np.random.default_rng([seed, number]))
            pixels = values * np.uint8(255) if file.mode == "1" else values
            made = CheapNoise(pixels, Image.fromarray(pixels).im), values
            if not made[0].is_small:
                return made
            self._noise[key] = made
        return self._noise[key]

    def note(self, number: int, call: Any, given: list[Any], results: list[Any]) -> None:
        """Notes what a call did to the values of masks among its arguments.

        Args:
            number: the call's place in the visit.
            given, results: the pictures among its arguments and its results.
        """
        if len(given) != len(results):
            return

        for place, (match, value, result) in enumerate(
            zip(call.inputs, given, results, strict=True)
        ):
            before, after = plane_of(value), plane_of(result)
            if match is None or match.table is None or before is None or after is None:
                continue

            known = self.moved.get((number, place))
            parts = [np.unique(after)] if known is None else [known, np.unique(after)]
            self.moved[number, place] = np.unique(np.concatenate(parts))
            if type(call.step).__name__ not in MOVING:
                self._note_table(step_key(call, match), before, after)

    def _note_table(self, key: Any, before: Pixels, after: Pixels) -> None:
        table = Table.between(before, after[..., None]) if before.shape == after.shape else None
        if key in self.steps:
            known = self.steps[key]
            table = known.joined(table) if known and table else None
        self.steps[key] = table

    def fresh(self, number: int, place: int, value: Any, noise: Any) -> tuple[Any, Pixels] | None:
        """Another mask of the form of a call's result, of values that came out of it; and these
        values. None: the result is no mask with one value for each pixel.
        """
        plane, values = plane_of(value), self.moved.get((number, place))
        if plane is None or values is None:
            return None

        # values that have not been drawn come first, so that some visits show all of them
        known = self._drawn.get((number, place), values[:0])
        new = np.setdiff1d(values, known)
        drawn = draw_of(new if len(new) > 1 else values, plane.shape, noise)
        self._drawn[number, place] = np.union1d(known, drawn)
        return _formed(drawn, value, tuple(to_array(value).shape)), drawn

    def small(self, number: int, place: int, value: Any, seed: int) -> tuple[Any, Pixels] | None:
        """As `fresh`, but small, and the same each time for a seed."""
        plane, values = plane_of(value), self.moved.get((number, place))
        if plane is None or values is None:
            return None
        key = ("small", number, place, seed, values.tobytes())
        if key not in self._noise:
            self._noise[key] = draw_of(values, _SIDES, np.random.default_rng([9, seed]))

        drawn, shape = self._noise[key], to_array(value).shape
        sides = {2: _SIDES, 3: (1, *_SIDES) if shape[0] == 1 else (*_SIDES, 1)}[len(shape)]
        return _formed(drawn, value, sides), drawn

    def join(self, slot: int, tables: tuple[Table, ...]) -> str:
        """Joins the tables of a visit with those before; returns what is wrong with them."""
        for place, table in enumerate(tables):
            known = self.shown.get((slot, place))
            joined = table if known is None else known.joined(table)
            if joined is None:
                if self.has_palettes:
                    return (
                        "it reads the colours of a mask's palette, or code of its own changes a "
                        "value of the mask by what is around it"
                    )
                return "code of its own changes a value of the mask by what is around it"
            self.shown[slot, place] = joined
        return ""


def step_key(call: Any, match: Match) -> Any:
    """What the table of a step that replaces values depends on."""
    return (call.keys, match.kind)


def draw_of(values: Pixels, size: tuple[int, ...], noise: np.random.Generator) -> Pixels:
    """(H, W) of some of these values at random."""
    most = max(2, int(np.prod(size)) // _PIXELS_PER_VALUE)
    some = noise.choice(values, min(most, len(values)), replace=False)
    return noise.choice(some, size)


def plane_of(value: Any) -> Pixels | None:
    """The values (H, W) of a picture of one channel; None: it has several, or is of a PIL mode that
    masks do not have.
    """
    if isinstance(value, Image.Image) and value.mode not in MASK_MODES:
        return None
    array = to_array(value)
    if array.ndim == 2:
        return array
    if array.ndim == 3 and 1 in (array.shape[0], array.shape[2]):
        return array[0] if array.shape[0] == 1 else array[..., 0]
    return None


def _formed(drawn: Pixels, value: Any, shape: tuple[int, ...]) -> Any:
    """These values in a new picture of the type and mode of another one."""
    if isinstance(value, Image.Image):
        image = Image.fromarray(drawn.astype(np.uint8) * np.uint8(255 if value.mode == "1" else 1))
        if value.mode == "P":
            image.putpalette(value.getpalette() or list(range(256)) * 3)
        return image.convert("1") if value.mode == "1" else image
    if isinstance(value, torch.Tensor):
        plain = torch.from_numpy(drawn.copy()).reshape(shape).to(value.dtype)
        return _like(plain, value)
    return drawn.reshape(shape).copy()
