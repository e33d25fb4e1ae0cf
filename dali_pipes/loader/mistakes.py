"""Errors for arguments of the wrong kind: they say what `build_loader` was given, and what to write
instead.

Many of them answer habits from PyTorch's DataLoader. `RefusesMisuse`, the base of loaders, does the
same for what people do to a loader afterwards.
"""

import inspect
import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, ClassVar, NoReturn

from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler, WeightedRandomSampler

from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.registry import list_backends
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError, shown
from dali_pipes.plan.plan import Rank
from dali_pipes.plan.sampling import Sampling
from dali_pipes.plan.transforms import Transform

# options of a DataLoader and its like, and what is written here instead
ELSEWHERE = {
    "num_workers": "TorchConfig(num_workers=…) or DaliConfig(num_threads=…) as the config",
    "num_threads": "DaliConfig(num_threads=…) as the config",
    "prefetch_factor": "TorchConfig(prefetch_factor=…) as the config",
    "pin_memory": "TorchConfig(pin_memory=…) as the config",
    "persistent_workers": "TorchConfig(persistent_workers=…) as the config",
    "drop_last": "last_batch='drop' or last_batch='partial'",
    "sampler": "sampling=…, and rank=Rank.from_env() where several ranks train",
    "batch_sampler": "sampling=… and batch_size=…",
    "collate_fn": "batch_transform=…, a function of a batch and its draws",
    "generator": "seed=…",
    "world_size": "rank=Rank(rank, world_size), or Rank.from_env() under torchrun",
    "num_shards": "rank=Rank(index, count)",
    "shard": "rank=Rank(index, count), or Rank.from_env() under torchrun",
}
_NO_DATA_SET = (
    "a loader is no data set: it yields whole batches, by `for batch in loader`; pass it "
    "on where a DataLoader is wanted, "
    "and not into one (`loader.dataset` are its images)"
)
_ORDER = "build_loader takes (manifest, config, transform=…, batch_size=…)"


def refuse_other_kinds(
    manifest: Any, config: Any, transform: Any, rank: Any, sampling: Any, batch_transform: Any
) -> None:
    """Checks that the arguments of `build_loader` are of the right kinds.

    Raises:
        ConfigError: one is of another kind; the text names both.
    """
    if not isinstance(manifest, Manifest):
        raise ConfigError(f"manifest is {_named(manifest)}; {_instead_of_manifest(manifest)}")
    if not isinstance(config, LoaderConfig):
        raise ConfigError(f"config is {_named(config)}; {_instead_of_config(config)}")
    if not isinstance(transform, Transform):
        raise ConfigError(f"transform is {_named(transform)}; {_instead_of_transform(transform)}")

    if not isinstance(rank, Rank | None):
        raise ConfigError(
            f"rank is {_named(rank)}; it takes Rank(index, count), or Rank.from_env() under "
            "torchrun"
        )
    # other values of sampling are checked where it is chosen: a name or a mapping is one as well
    if isinstance(sampling, type | Sampler):
        raise ConfigError(f"sampling is {_named(sampling)}; {_instead_of_sampling(sampling)}")

    if batch_transform is not None and (
        isinstance(batch_transform, type) or not callable(batch_transform)
    ):
        instead = "MixUp(…), CutMix(…), RandomChoice([…]) or a function of a batch and its draws"
        raise ConfigError(f"batch_transform is {_named(batch_transform)}; it takes {instead}")

    if type(batch_transform).__module__.startswith("torchvision."):
        name = type(batch_transform).__name__
        instead = "dali_pipes has MixUp, CutMix and RandomChoice of its own"
        raise ConfigError(
            f"batch_transform is torchvision's {name}, whose random numbers no plan holds; "
            f"{instead}"
        )
    if batch_transform is not None and not _takes_two(batch_transform):
        raise ConfigError(
            f"batch_transform is {_named(batch_transform)}; it is called with two arguments, a "
            "batch and its draws"
        )


class RefusesMisuse:
    """The base of loaders. It refuses what Python would let pass silently, or with an error that
    says nothing about loaders.
    """

    _set_once: ClassVar[tuple[str, ...]] = ()  # public attributes that the loader itself sets
    _set_often: ClassVar[tuple[str, ...]] = ()  # public attributes that a program may set

    def __setattr__(self, name: str, value: Any) -> None:
        anew = name in self._set_once and name not in self.__dict__
        if not (name.startswith("_") or anew or name in self._set_often):
            raise AttributeError(
                f"{name} cannot be set on a loader, where it would be of no effect; "
                f"{_instead_of_setting(name)}"
            )
        super().__setattr__(name, value)

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError(_NO_DATA_SET)


def _instead_of_setting(name: str) -> str:
    if name == "epoch":
        return "call set_epoch()"
    if name in ELSEWHERE:
        return f"give build_loader {ELSEWHERE[name]}"
    return "build_loader takes all options; keep what is yours in a variable of your own"


def _instead_of_manifest(given: Any) -> str:
    if isinstance(given, (str, os.PathLike)):
        return f"open it first: Manifest.open({os.fspath(given)!r})"
    if isinstance(given, (DataLoader, Dataset)):
        return (
            "from_torch(dataloader) makes a loader of a DataLoader; Manifest.scan(DIR) reads a "
            "folder"
        )
    return f"it takes a Manifest, such as Manifest.scan(DIR); {_ORDER}"


def _instead_of_config(given: Any) -> str:
    kinds = {name: entry.config for name, entry in list_backends().items()}
    if isinstance(given, type) and issubclass(given, LoaderConfig):
        return f"write {given.__name__}()"
    if isinstance(given, str) and (near := get_close_matches(given.lower(), kinds, 1)):
        return f"it takes a config; write {kinds[near[0]].__name__}()"
    if isinstance(given, Mapping):
        return "it takes a config made of these options, such as DaliConfig(**options)"
    return f"it takes a config, such as DaliConfig() or TorchConfig(num_workers=8); {_ORDER}"


def _instead_of_transform(given: Any) -> str:
    if isinstance(given, type) and issubclass(given, Transform):
        return f"write {given.__name__}(…)"
    if isinstance(given, Manifest | LoaderConfig | type | str | None) or not (
        callable(given) or isinstance(given, (list, tuple))
    ):
        return f"it takes TrainTransform(…), EvalTransform(…) or another of dali_pipes; {_ORDER}"
    return "it takes one of dali_pipes: transform_from_torch(transform) makes it of torchvision's"


def _instead_of_sampling(given: Any) -> str:
    if isinstance(given, type) and issubclass(given, Sampling):
        return f"write {given.__name__}(…)"
    if isinstance(given, DistributedSampler):
        return "a loader divides the samples itself: rank=Rank.from_env()"
    if isinstance(given, WeightedRandomSampler):
        return "it takes Weighted(weights=…)"
    return "it takes a sampling of dali_pipes, such as Uniform() or Weighted(weights=…)"


def _takes_two(function: Any) -> bool:
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # functions in C may have no signature
        pass
    return True


def _named(given: Any) -> str:
    if isinstance(given, type):
        return f"the class {given.__name__}"
    if isinstance(given, os.PathLike):
        return f"the path {os.fspath(given)!r}"
    if given is None or isinstance(given, (str, bytes, int, float, tuple, list, dict)):
        return shown(given)
    if hasattr(given, "__name__"):
        return f"the function {given.__name__}"
    return f"a {type(given).__module__.partition('.')[0]} {type(given).__name__}"
