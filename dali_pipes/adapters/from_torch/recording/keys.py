"""What a transform is, in a form that can be compared; and small pictures in place of its results.

Programs that make their transforms anew in each call never have the same objects twice, although
these do the same.
"""

import enum
import operator
import random
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from PIL import Image

from dali_pipes.adapters.from_torch.recording.marks import Pixels, _like, pixels_of

# levels of attributes that are compared, and steps that are remembered
_DEEPEST, _MOST = 24, 256
_SIDES = 6, 9  # height and width of small pictures
_SHORT = 16  # values of a list or dict that are looked at each time


class StepKeys:
    """The keys of steps, and the small pictures, of all visits of one data set."""

    def __init__(self) -> None:
        self._keys: dict[int, tuple[Any, list[Any], int]] = {}
        self._numbers: dict[Any, int] = {}
        self._small: dict[Any, Any] = {}

    def of(self, step: Any, is_cheap: bool = False) -> int:
        """A number, equal for steps that do the same, as far as their attributes say.

        Args:
            is_cheap: whether attributes are only compared by identity with those seen before.
        """
        # a lookup by identity costs less than freezing all attributes
        values = _parts(step)
        known = self._keys.get(id(step))
        if is_cheap and known is not None and known[0] is step and _are_same(known[1], values):
            return known[2]

        # a program that makes its steps anew in each call would fill the memory
        if len(self._keys) > _MOST:
            self._keys.clear()
        # albumentations' steps keep what they have drawn in attributes, and do not print it
        is_noted = type(step).__module__.startswith("albumentations.")
        frozen = repr(step) if is_noted else freeze(step)
        number = self._numbers.setdefault(frozen, len(self._numbers))
        # the step and its values are kept, so that no other object gets their ids
        self._keys[id(step)] = (step, values, number)
        return number

    def small(self, value: Any, number: int) -> tuple[Any, Pixels, Any]:
        """Returns small noise in place of a picture: of its type, mode and dtype, and other noise
        for each number; the noise's pixels; and a twin of it, if it is a PIL image.
        """
        if (known := self._small.get((_form(value), number))) is None:
            made = _small(value, number)
            known = self._small[_form(value), number] = made, pixels_of(made).copy()
        made, pixels = known

        # a copy, since the user's code may write into it
        if isinstance(made, torch.Tensor):
            fresh = made.clone()
            return fresh if type(made) is torch.Tensor else _like(fresh, made), pixels, None
        is_plain = isinstance(made, Image.Image) and made.mode in ("RGB", "L")
        return made.copy(), pixels, made if is_plain else None


def _parts(step: Any) -> list[Any]:
    """The values of a step's attributes, and what is in short lists and dicts among them, where
    code may put something else.
    """
    values = list(getattr(step, "__dict__", {}).values())
    for value in values[:]:
        if type(value) is list and len(value) <= _SHORT:
            values += value
        elif type(value) is dict and len(value) <= _SHORT:
            values += value.values()
    return values


def _are_same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(operator.is_, one, other))


def _form(value: Any) -> tuple[Any, ...]:
    """What two pictures must have in common to be replaced by the same small one."""
    if isinstance(value, Image.Image):
        return ("pil", value.mode)
    # axes of up to four are channels; 0 stands for a height or width, whatever it is
    axes = tuple(size if size <= 4 else 0 for size in value.shape)
    return (type(value), value.dtype, axes)


def _small(value: Any, number: int) -> Any:
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
    top = 2 if value.dtype in (torch.bool, bool) else 120
    if isinstance(value, torch.Tensor):
        plain = torch.from_numpy(
            noise.random(shape, np.float32)
            if value.is_floating_point()
            else noise.integers(0, top, shape)
        )
        return _like(plain.to(value.dtype), value)
    whole = noise.integers(0, top, shape)
    return (noise.random(shape) if value.dtype.kind == "f" else whole).astype(value.dtype)


def freeze(value: Any, depth: int = 0) -> Any:
    """A value that can be compared, and is equal for objects with equal attributes."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, enum.Enum)):
        return value
    if isinstance(value, (torch.Tensor, np.ndarray)):
        array = np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
        return (str(array.dtype), array.shape, array.tobytes())
    # their states change with each draw, and the step stays the same
    if isinstance(value, (np.random.Generator, np.random.RandomState, random.Random)):
        return "random numbers"
    if isinstance(value, (torch.dtype, torch.device, type)):
        return repr(value)
    # objects may refer to each other in a circle
    if depth > _DEEPEST:
        return id(value)
    # a lambda that is made in each call has the same code, and the values of its closure
    if isinstance(value, FunctionType):
        values = [
            *map(_contents, value.__closure__ or ()),
            value.__defaults__,
            value.__kwdefaults__,
        ]
        return (value.__code__, freeze(values, depth + 1))
    # neither of these shows in `vars` what it calls; the object of a method is not looked into,
    # since it may be the data set with all of its paths
    if isinstance(value, partial):
        return ("partial", freeze([value.func, value.args, value.keywords], depth + 1))
    if isinstance(value, MethodType):
        return (value.__func__, id(value.__self__))

    if isinstance(value, dict):
        return tuple(
            (freeze(key, depth + 1), freeze(each, depth + 1)) for key, each in value.items()
        )
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *(freeze(each, depth + 1) for each in value))
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(repr(each) for each in value))
    if hasattr(value, "__dict__"):
        return (type(value), freeze(vars(value), depth + 1))
    return repr(value)


def _contents(cell: CellType) -> Any:
    # the cell of a variable that has no value yet raises ValueError
    try:
        return cell.cell_contents
    except ValueError:
        return "no value"
