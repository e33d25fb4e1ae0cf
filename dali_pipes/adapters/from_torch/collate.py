"""The collate function of a live DataLoader: torch's own, or one that also mixes the batch."""

import inspect
from typing import Any

import torch
from torch.utils.data import default_collate

from dali_pipes.adapters.from_torch.reading import is_of, refuse_unless
from dali_pipes.backends.base import BatchTransform
from dali_pipes.loader.mixing import CutMix, MixUp, RandomChoice

_COLLATES = ("torch", "utils", "data", "dataloader", "_utils", "collate", "default_collate")  # names on the way to it


def batch_transform_of(collate: Any, batch_size: int, prefetched: bool) -> tuple[BatchTransform | None, str]:
    """What is done to a batch after torch's default_collate, and the same in words.

    A function counts as `mix(*default_collate(samples))`, mix being one of torchvision's, if it refers to nothing else, and does
    exactly that to a batch of noise. For that it is called.

    Args:
        prefetched: timm's own collate function makes bytes, which its PrefetchLoader takes.
    """
    name = f"collate_fn={getattr(collate, '__qualname__', type(collate).__name__)}"
    if collate is default_collate or (prefetched and name.endswith("=fast_collate") and collate.__module__ == "timm.data.loader"):
        return None, "torch's default_collate"
    mix = _only_mix(collate)
    instead = "use torch's default one, and batch_transform= of build_loader"
    refuse_unless(mix and _does_only(collate, mix, batch_size), name, "it may do anything to a batch", instead)
    ours = _ours(mix)
    return ours, repr(ours)


def _only_mix(function: Any) -> Any:
    """The MixUp, CutMix or RandomChoice that a function refers to, if there is one, and nothing else but default_collate."""
    if not inspect.isfunction(function) or function.__defaults__ or function.__kwdefaults__:
        return None
    used = inspect.getclosurevars(function)
    named = {**used.nonlocals, **used.globals}
    mixes = [each for each in named.values() if is_of(each, "torchvision.transforms", "MixUp", "CutMix", "RandomChoice")]
    others = [each for each in named.values() if not any(each is known for known in (*mixes, default_collate, torch))]
    plain = not (others or used.builtins) and used.unbound <= set(_COLLATES)
    return mixes[0] if len(mixes) == 1 and plain else None


def _does_only(collate: Any, mix: Any, batch_size: int) -> bool:
    classes = next((each.num_classes for each in getattr(mix, "transforms", [mix]) if getattr(each, "num_classes", 0)), 2)
    samples = [(torch.randn(3, 8, 8), number % classes) for number in range(batch_size)]
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
        refuse_unless(len(set(mix.p)) == 1, kind, f"its probabilities are {mix.p}", "ours are equal")
        return RandomChoice([_ours(each) for each in mix.transforms])
    refuse_unless(kind in ("MixUp", "CutMix"), kind, "no such batch transform", "use MixUp and CutMix")
    return (MixUp if kind == "MixUp" else CutMix)(alpha=mix.alpha, num_classes=mix.num_classes)
