"""The collate function of a live DataLoader: torch's own, or one that also mixes the batch."""

import inspect
from typing import Any

import torch
from torch.utils.data import default_collate

from dali_pipes.adapters.from_torch.refusal import NotConvertibleError, refuse_unless
from dali_pipes.backends.base import BatchTransform
from dali_pipes.loader.mixing import CutMix, MixUp, RandomChoice


def batch_transform_of(collate: Any) -> tuple[BatchTransform | None, str]:
    """What is done to a batch after torch's default_collate, and the same in words.

    A function with a torchvision MixUp or CutMix among the variables that it uses is called on a small batch of its own: it counts
    as `mix(*default_collate(samples))` if it does exactly that to it.

    Raises:
        NotConvertibleError: another function.
    """
    name = f"collate_fn={getattr(collate, '__qualname__', type(collate).__name__)}"
    if collate is default_collate or (name.endswith("fast_collate") and _is_timms(collate)):
        return None, "torch's default_collate"
    mixes = [each for each in _used(collate) if _is_mix(each)]
    mixed = len(mixes) == 1 and _does_only(collate, mixes[0])
    refuse_unless(mixed, name, "it may do anything to a batch", "use torch's default one, and batch_transform= of build_loader")
    ours = _ours(mixes[0])
    return ours, repr(ours)


def _is_timms(collate: Any) -> bool:
    return getattr(collate, "__module__", "") == "timm.data.loader"


def _used(function: Any) -> list[Any]:
    """The objects that a function refers to: its closure, its module's names in it, what it is bound to."""
    if not inspect.isfunction(function):
        return [getattr(function, "__self__", None)]
    found = inspect.getclosurevars(function)
    return [*found.nonlocals.values(), *found.globals.values()]


def _is_mix(value: Any) -> bool:
    return type(value).__name__ in ("MixUp", "CutMix", "RandomChoice") and type(value).__module__.startswith(
        "torchvision.transforms."
    )


def _does_only(collate: Any, mix: Any) -> bool:
    classes = next((each.num_classes for each in getattr(mix, "transforms", [mix]) if each.num_classes), 2)
    samples = [(torch.full((3, 8, 8), float(number)), number % classes) for number in range(4)]
    found = []
    for function in (collate, lambda batch: mix(*default_collate(batch))):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            try:
                found.append(function(list(samples)))
            except Exception:  # any error of a function that we do not know
                return False
    ours, theirs = found
    return len(ours) == 2 and all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def _ours(mix: Any) -> BatchTransform:
    kind = type(mix).__name__
    if kind == "RandomChoice":
        even = len(set(mix.p)) == 1
        refuse_unless(even, "RandomChoice", f"its probabilities are {mix.p}", "ours are equal")
        return RandomChoice([_ours(each) for each in mix.transforms])
    if kind not in ("MixUp", "CutMix"):
        raise NotConvertibleError(kind, "no such batch transform", "use MixUp and CutMix")
    return (MixUp if kind == "MixUp" else CutMix)(alpha=mix.alpha, num_classes=mix.num_classes)
