"""What a transform is, in a form that can be compared: `StepKeys`.

Programs that make their transforms anew in each call never have the same objects twice, although
these do the same.
"""

import enum
import random
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from dali_pipes.adapters.from_torch.recording.cheap import SmallPictures, identity
from dali_pipes.adapters.from_torch.recording.marks import to_array

# levels of attributes that are compared, and steps that are remembered
_DEEPEST, _MOST = 24, 256
_SHORT = 16  # values of a list or dict that are looked at each time
_SMALL = 4096  # bytes of an array that are looked at each time
_MOST_OBJECTS = 256  # in steps, whose attributes are looked at each time


class StepKeys:
    """The keys of steps of all visits of one data set, and what else these share.

    Attributes:
        pictures: the small pictures in place of what steps return.
        matches: what `Visit.match` found for small pictures, by their contents.
    """

    def __init__(self) -> None:
        self.pictures = SmallPictures()
        self.matches: dict[Any, Any] = {}
        self._keys: dict[Any, tuple[_Values, tuple[int, ...]]] = {}
        # the same by the identity of a list of steps, which is kept, so that no other gets it
        self._lists: dict[int, tuple[Sequence[Any], _Values, tuple[int, ...]]] = {}
        self._numbers: dict[Any, int] = {}

    def of(self, step: Any, is_cheap: bool = False) -> int:
        """A number, equal for steps that do the same, as far as their attributes say.

        Args:
            is_cheap: whether attributes are only compared by identity with those seen before.
        """
        return self._known((step,))[0] if is_cheap else self._freeze(step)

    def of_all(self, steps: Sequence[Any]) -> tuple[int, ...]:
        """The numbers of steps that are called one after the other, whose attributes are compared
        by identity.

        Args:
            steps: a list that nobody changes.
        """
        known = self._lists.get(identity(steps))
        if known is not None and known[1].are_same():
            return known[2]
        numbers = self._known(steps)
        if len(self._lists) > _MOST:
            self._lists.clear()
        values, _ = self._keys[tuple(map(identity, steps))]
        self._lists[identity(steps)] = steps, values, numbers
        return numbers

    def _known(self, steps: Sequence[Any]) -> tuple[int, ...]:
        # a lookup by identity costs less than freezing all attributes
        ids = tuple(map(identity, steps))
        known = self._keys.get(ids)
        if known is not None and known[0].are_same():
            return known[1]

        # a program that makes its steps anew in each call would fill the memory
        if len(self._keys) > _MOST:
            self._keys.clear()
        # the values are noted first: freezing them may fill a cache among them
        values = _Values(steps)
        numbers = tuple(self._freeze(step) for step in steps)
        self._keys[ids] = (values, numbers)
        return numbers

    def _freeze(self, step: Any) -> int:
        # albumentations' steps keep what they have drawn in attributes, and do not print it
        is_noted = type(step).__module__.startswith("albumentations.")
        frozen = _text_of(step) if is_noted else freeze(step)
        try:
            return self._numbers.setdefault(frozen, len(self._numbers))
        except TypeError:  # a number or a text of a class that cannot be hashed
            return self._numbers.setdefault(repr(frozen), len(self._numbers))


class _Values:
    """The values of the attributes of some steps, and of all that is in them, at one time: of
    objects, of short lists and dicts, of small arrays, and of variables of functions. Code may put
    something else into each of them.

    They are compared for every sample, so that is done by functions in C.
    """

    def __init__(self, steps: Sequence[Any]):
        # the steps and their values are kept, so that no other object gets their ids
        self._all = tuple(steps)
        held = list(_walk(steps))
        # a Module's dicts of hooks are OrderedDicts, which have attributes too
        containers = [each for each in held if isinstance(each, (list, dict))]
        functions = [each for each in held if isinstance(each, FunctionType)]
        others = (list, dict, tuple, FunctionType)
        self._steps = [
            each for each in held if not isinstance(each, others) and hasattr(each, "__dict__")
        ]
        self._cells = [cell for each in functions for cell in each.__closure__ or ()]
        self._arrays = [
            to_array(each) for each in held if isinstance(each, (np.ndarray, torch.Tensor))
        ]

        # most of them are empty: a Module has ten dicts for hooks
        self._empty = [each for each in containers if not each]
        full = [each for each in containers if each]
        short = [each for each in full if len(each) <= _SHORT]
        # views, which always show what is in the dicts now
        self._looked_at = [each.values() if isinstance(each, dict) else each for each in short]
        # of a longer one only the length is looked at
        self._long = [each for each in full if len(each) > _SHORT]
        self._values = self._now()

    def are_same(self) -> bool:
        """Whether the steps have the same values now."""
        # lists are equal if they have the same objects, which is looked at first; objects that
        # cannot be compared are others
        try:
            return not any(self._empty) and self._now() == self._values
        except Exception:  # of any class that we do not know
            return False

    def _now(self) -> list[Any]:
        # a program may put another dict in place of an object's, so that is asked for each time
        values: list[Any] = [each.__dict__ for each in self._steps]
        values += [list(each.values()) for each in values]
        # most steps have none of these
        if self._looked_at:
            values += map(list, self._looked_at)
        if self._long:
            values += map(len, self._long)
        if self._cells:
            values += map(contents, self._cells)
        if self._arrays:
            values += [each.tobytes() for each in self._arrays]
        return values


def _walk(steps: Sequence[Any]) -> Iterator[Any]:
    """Yields what is in steps and may be changed in place, those near to the steps first."""
    waiting: deque[Any] = deque(steps)
    seen: set[int] = set()
    objects = 0
    while waiting:
        value = waiting.popleft()
        if identity(value) in seen:
            continue
        seen.add(identity(value))

        if isinstance(value, (np.ndarray, torch.Tensor)):
            if value.nbytes <= _SMALL and not getattr(value.dtype, "hasobject", False):
                yield value
        elif isinstance(value, (list, dict, tuple)):
            yield value
            if len(value) <= _SHORT:
                waiting.extend(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, partial):
            waiting += (value.func, value.args, value.keywords)
        elif isinstance(value, FunctionType):
            yield value
            cells = map(contents, value.__closure__ or ())
            waiting += (*cells, value.__defaults__, value.__kwdefaults__)
        # the attributes of a data set may change with each sample, as a cache's do
        elif (
            objects < _MOST_OBJECTS
            and type(getattr(value, "__dict__", None)) is dict
            and not isinstance(value, (type, ModuleType, enum.Enum, torch.utils.data.Dataset))
        ):
            objects += 1
            yield value
            waiting.extend(vars(value).values())


def compared_in(step: Any) -> set[int]:
    """The identities of the dicts, containers, arrays and variables of functions whose values are
    compared for each sample. Those that a step reaches by a global, or as a method's object,
    aren't.
    """
    places: set[int] = set()
    for each in _walk([step]):
        places |= {id(each), id(getattr(each, "__dict__", None))}
        if isinstance(each, FunctionType):
            places |= set(map(id, each.__closure__ or ()))
        # of a longer one only the length is looked at
        if isinstance(each, (list, dict)) and len(each) > _SHORT:
            places.discard(id(each))
    return places


def freeze(value: Any, depth: int = 0) -> Any:
    """A value that can be compared, and is equal for objects with equal attributes."""
    # by its name: one that is a dataclass too cannot be hashed
    if isinstance(value, enum.Enum):
        return (type(value), value._name_)
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
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
            *map(contents, value.__closure__ or ()),
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
        return tuple(sorted(map(_text_of, value)))
    if hasattr(value, "__dict__"):
        return (type(value), freeze(vars(value), depth + 1))
    return _text_of(value)


def _text_of(value: Any) -> str:
    """What `repr` says, also for an object whose own fails."""
    try:
        return repr(value)
    except Exception:  # of any class that we do not know
        return object.__repr__(value)


def contents(cell: CellType) -> Any:
    """The value of a variable of a closure."""
    # the cell of a variable that has no value yet raises ValueError
    try:
        return cell.cell_contents
    except ValueError:
        return "no value"
