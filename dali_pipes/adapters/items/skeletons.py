"""The structure of items: nested containers whose leaves are pictures and values.

`rebuild` copies an item with others in place of its leaves. `form_of` says which containers, keys
and kinds of values it has, which must be the same in all items, and `find_difference` where two
items differ. `collate_skeletons` joins items as PyTorch's default_collate does.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from dali_pipes.adapters.from_torch.structure import PictureSlot, leaves
from dali_pipes.errors import ConfigError

# kinds of values that default_collate joins to the same tensors or lists
_KINDS = {
    int: "int",
    np.int64: "int",
    float: "float",
    np.float64: "float",
    bool: "bool",
    np.bool_: "bool",
    str: "str",
    bytes: "bytes",
}


def rebuild(function: Callable[[Any], Any], value: Any) -> Any:
    """A copy of nested containers with `function` of each leaf.

    Containers are copied and filled: what they are made with was written for the values of one
    item, and others than `dict` and `list` may take other arguments, as a defaultdict does.
    """
    kind: Any = type(value)
    if kind is dict:
        return {key: rebuild(function, each) for key, each in value.items()}
    if kind is tuple or kind is list:
        return kind([rebuild(function, each) for each in value])

    if isinstance(value, Mapping):
        filled = {key: rebuild(function, each) for key, each in value.items()}
        if not isinstance(value, MutableMapping):
            return kind(filled)
        made: Any = copy(value)
        made.update(filled)
        return made
    if isinstance(value, tuple):
        inside = [rebuild(function, each) for each in value]
        return kind(*inside) if hasattr(value, "_fields") else kind(inside)
    if isinstance(value, list):
        made = copy(value)
        made[:] = [rebuild(function, each) for each in value]
        return made

    if _has_fields(value):
        made = copy(value)
        for each in fields(value):
            # also where the dataclass is frozen
            object.__setattr__(made, each.name, rebuild(function, getattr(value, each.name)))
        return made
    return function(value)


def _has_fields(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, (type, PictureSlot))


class ContainerForm(NamedTuple):
    """The form of a container.

    Attributes:
        kind: the name of its type.
        place: how Python writes the place of a value in it, to be filled with a key.
        inside: the form of each value, by its key, number or field.
    """

    kind: str
    place: str
    inside: dict[Any, Any]


def form_of(value: Any) -> Any:
    """What must be the same in all items: a `ContainerForm`, or of a leaf the name of its kind, or
    its `PictureSlot`.

    The shapes of arrays, and the order of keys, do not belong to it.
    """
    kind = type(value)
    if (name := _KINDS.get(kind)) or kind is PictureSlot:
        return name or value
    if isinstance(value, Mapping):
        inside = {key: form_of(each) for key, each in value.items()}
        return ContainerForm(kind.__name__, "[{!r}]", inside)
    if isinstance(value, (tuple, list)):
        return ContainerForm(kind.__name__, "[{}]", dict(enumerate(map(form_of, value))))
    if _has_fields(value):
        inside = {each.name: form_of(getattr(value, each.name)) for each in fields(value)}
        return ContainerForm(kind.__name__, ".{}", inside)

    if isinstance(value, (torch.Tensor, np.ndarray)):
        return f"{kind.__name__} of {str(value.dtype).removeprefix('torch.')}"
    return kind.__name__


def find_difference(one: Any, other: Any, place: str = "") -> tuple[str, str, str] | None:
    """The first place where two forms differ, as Python writes it, and what each has there; None:
    they are equal.
    """
    if one == other:
        return None
    if (
        not isinstance(one, ContainerForm)
        or not isinstance(other, ContainerForm)
        or one.kind != other.kind
    ):
        return place, _describe(one), _describe(other)

    for key in {**one.inside, **other.inside}:
        inside = place + one.place.format(key)
        ours, theirs = one.inside.get(key), other.inside.get(key)
        if found := find_difference(ours, theirs, inside):
            return found
    return None


def _describe(form: Any) -> str:
    if isinstance(form, PictureSlot):
        return f"picture {form.number + 1}"
    return "nothing" if form is None else form.kind if isinstance(form, ContainerForm) else form


def collate_skeletons(skeletons: list[Any], ids: NDArray[np.int64]) -> Any:
    """The skeletons of items joined as PyTorch's default_collate does; dataclasses too.

    Raises:
        ConfigError: they do not fit together, or a value is of a kind that it does not join.
    """
    known = dict(default_collate_fn_map)
    known |= dict.fromkeys(_dataclasses_in(skeletons[0]), _collate_fields)
    known[PictureSlot] = _first_slot
    try:
        return collate(skeletons, collate_fn_map=known)
    except (TypeError, ValueError, RuntimeError, KeyError, AttributeError) as error:
        numbers = ids.tolist()
        what = f"item {numbers[0]}" if len(numbers) == 1 else f"items {numbers[0]}, {numbers[1]}, …"
        text = " ".join(str(error).split())
        raise ConfigError(
            f"{what}: PyTorch's default_collate cannot join what they return ({text[:300]}); "
            "return numbers, texts, arrays and tensors of equal shapes in the same structure"
        ) from None


def _first_slot(slots: Any, *, collate_fn_map: Any = None) -> PictureSlot:
    # the same in all items, which have one form
    first: PictureSlot = slots[0]
    return first


def _collate_fields(values: Any, *, collate_fn_map: Any = None) -> Any:
    """One dataclass whose fields are those of all `values`, joined."""
    made = copy(values[0])
    for each in fields(made):
        one = [getattr(value, each.name) for value in values]
        # as in `rebuild`
        object.__setattr__(made, each.name, collate(one, collate_fn_map=collate_fn_map))
    return made


def _dataclasses_in(value: Any) -> Iterator[type]:
    """The types of all dataclasses in nested containers."""
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _dataclasses_in(each)
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _dataclasses_in(each)
    elif _has_fields(value):
        yield type(value)
        for field in fields(value):
            yield from _dataclasses_in(getattr(value, field.name))


def places_of(values: Any) -> list[str]:
    """Where the pictures are, in the order of their slots, as Python writes it."""
    found = [(leaf, place) for place, leaf in leaves(values) if isinstance(leaf, PictureSlot)]
    return [place for _, place in sorted(found, key=lambda each: each[0].number)]
