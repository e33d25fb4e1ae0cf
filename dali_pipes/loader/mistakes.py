"""What the words and objects of other libraries mean here: errors that say what to write instead.

`refuse_other_kinds` looks up the arguments of `build_loader` in one table. `RefusesAttributes`, the
base of loaders, answers who sets an option on a loader.
"""

import inspect
import os
from collections.abc import Callable, Mapping
from types import GenericAlias, UnionType
from typing import Any, ClassVar

from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler, WeightedRandomSampler

from dali_pipes.backends.config import LoaderConfig
from dali_pipes.checks import describe_value
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.plan.plan import RANK_ARGUMENT, Rank
from dali_pipes.plan.sampling import Sampling
from dali_pipes.plan.transforms import Transform

# options of a DataLoader and its like, and what is written here instead
DATALOADER_OPTIONS = {
    "num_workers": "TorchConfig(num_workers=…) or DaliConfig(num_threads=…) as the config",
    "num_threads": "DaliConfig(num_threads=…) as the config",
    "prefetch_factor": "TorchConfig(prefetch_factor=…) as the config",
    "pin_memory": "TorchConfig(pin_memory=…) as the config",
    "persistent_workers": "TorchConfig(persistent_workers=…) as the config",
    "multiprocessing_context": "TorchConfig(multiprocessing_context=…) as the config",
    "drop_last": "last_batch='drop' or last_batch='partial'",
    "sampler": "sampling=…, and rank=Rank.from_env() where several ranks train",
    "batch_sampler": "sampling=… and batch_size=…",
    "collate_fn": "batch_transform=…, a function of a batch and its draws",
    "generator": "seed=…",
    "world_size": "rank=Rank(rank, world_size), or Rank.from_env() under torchrun",
    "num_shards": "rank=Rank(index, count)",
    "shard": RANK_ARGUMENT,
}


def _is_of_torchvision(value: Any) -> bool:
    return type(value).__module__.startswith("torchvision.")


def _takes_no_two(function: Any) -> bool:
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return True
    except ValueError:  # functions in C may have no signature
        pass
    return False


_MANIFEST = "it takes a Manifest, such as Manifest.scan(DIR)"
_TRANSFORM = "it takes TrainTransform(…), EvalTransform(…) or another of dali_pipes"
_SAMPLING = "it takes a sampling of dali_pipes, such as Uniform() or Weighted(weights=…)"
_MIXES = "dali_pipes.MixUp(…), CutMix(…) or RandomChoice([…])"
_FUNCTION = f"it takes {_MIXES}, or a function of two arguments, a batch and its draws"
# Each argument of `build_loader` with a kind of value, and what to write instead; "": it is right.
# The first row that a value is of decides. A kind is a class, type[…] for the class itself in place
# of an instance, or a function of the value.
_KINDS: tuple[tuple[str, Any, str], ...] = (
    ("manifest", Manifest, ""),
    ("manifest", str | os.PathLike, "open it first: Manifest.open('{0}')"),
    ("manifest", DataLoader | Dataset, f"from_torch(dataloader) takes a DataLoader; {_MANIFEST}"),
    ("manifest", LoaderConfig, f"{_MANIFEST}; the order is (manifest, config, transform=…)"),
    ("manifest", object, _MANIFEST),
    ("config", LoaderConfig, ""),
    ("config", type[LoaderConfig], "write {0.__name__}()"),
    ("config", Mapping, "it takes a config of these options, such as DaliConfig(**options)"),
    ("config", object, "it takes a config, such as DaliConfig() or TorchConfig(num_workers=8)"),
    ("transform", Transform, ""),
    ("transform", type[Transform], "write {0.__name__}(…)"),
    ("transform", Manifest | LoaderConfig | type, _TRANSFORM),
    # what can be called, and a list, may be torchvision's
    ("transform", Callable | list | tuple, f"{_TRANSFORM}, or transform_from_torch(transform)"),
    ("transform", object, _TRANSFORM),
    ("rank", Rank | None, ""),
    ("rank", object, "it takes Rank(index, count), or Rank.from_env() under torchrun"),
    ("sampling", type[Sampling], "write {0.__name__}(…)"),
    ("sampling", DistributedSampler, "a loader divides the samples itself: rank=Rank.from_env()"),
    ("sampling", WeightedRandomSampler, "it takes Weighted(weights=…)"),
    ("sampling", Sampler | type, _SAMPLING),
    ("sampling", object, ""),  # other values are checked where the sampling is chosen
    ("batch_transform", type(None), ""),
    ("batch_transform", _is_of_torchvision, f"its draws are in no plan; use {_MIXES}"),
    ("batch_transform", type, _FUNCTION),
    ("batch_transform", _takes_no_two, _FUNCTION),
    ("batch_transform", object, ""),
)


def refuse_other_kinds(**arguments: Any) -> None:
    """Checks that arguments of `build_loader` are of the right kinds.

    Raises:
        ConfigError: one is of another kind; the text names both.
    """
    for argument, value in arguments.items():
        rows = (row for row in _KINDS if row[0] == argument)
        instead = next(text for _, kind, text in rows if _is_of(value, kind))
        if instead:
            text = instead.format(value)
            raise ConfigError(f"{argument} is {_describe_kind(value)}; {text}")


def _is_of(value: Any, kind: Any) -> bool:
    if isinstance(kind, GenericAlias):
        return isinstance(value, type) and issubclass(value, kind.__args__)
    return isinstance(value, kind) if isinstance(kind, type | UnionType) else kind(value)


class RefusesAttributes:
    """The base of loaders. It refuses to set what would be an attribute of no effect."""

    _set_once: ClassVar[tuple[str, ...]] = ()  # public attributes that the loader itself sets
    _set_often: ClassVar[tuple[str, ...]] = ()  # public attributes that a program may set

    def __setattr__(self, name: str, value: Any) -> None:
        is_first = name in self._set_once and name not in self.__dict__
        if not (name.startswith("_") or is_first or name in self._set_often):
            instead = DATALOADER_OPTIONS.get(name, "all options, and set_epoch() the epoch")
            raise AttributeError(
                f"{name} cannot be set on a loader, where it would be of no effect; give "
                f"build_loader {instead}"
            )
        super().__setattr__(name, value)


def _describe_kind(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, os.PathLike):
        return f"the path {os.fspath(value)!r}"
    if value is None or isinstance(value, (str, bytes, int, float, tuple, list, dict)):
        return describe_value(value)
    if hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    return f"a {type(value).__module__.partition('.')[0]} {type(value).__name__}"
