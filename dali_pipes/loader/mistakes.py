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
from dali_pipes.checks import describe_value
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.options import propose_name
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
        raise ConfigError(
            f"manifest is {_describe_kind(manifest)}; {_instead_of_manifest(manifest)}"
        )
    if not isinstance(config, LoaderConfig):
        raise ConfigError(f"config is {_describe_kind(config)}; {_instead_of_config(config)}")
    if not isinstance(transform, Transform):
        raise ConfigError(
            f"transform is {_describe_kind(transform)}; {_instead_of_transform(transform)}"
        )

    refuse_other_rank(rank)
    # other values of sampling are checked where it is chosen: a name or a mapping is one as well
    if isinstance(sampling, type | Sampler):
        raise ConfigError(
            f"sampling is {_describe_kind(sampling)}; {_instead_of_sampling(sampling)}"
        )

    if batch_transform is not None and (
        isinstance(batch_transform, type) or not callable(batch_transform)
    ):
        instead = "MixUp(…), CutMix(…), RandomChoice([…]) or a function of a batch and its draws"
        raise ConfigError(
            f"batch_transform is {_describe_kind(batch_transform)}; it takes {instead}"
        )

    if type(batch_transform).__module__.startswith("torchvision."):
        name = type(batch_transform).__name__
        instead = "dali_pipes has MixUp, CutMix and RandomChoice of its own"
        raise ConfigError(
            f"batch_transform is torchvision's {name}, whose random numbers no plan holds; "
            f"{instead}"
        )
    if batch_transform is not None and not _takes_two(batch_transform):
        raise ConfigError(
            f"batch_transform is {_describe_kind(batch_transform)}; it is called with two "
            "arguments, a batch and its draws"
        )


def refuse_other_rank(rank: Any) -> None:
    """Checks that `rank` is a Rank or None, and raises a ConfigError as `refuse_other_kinds`."""
    if not isinstance(rank, Rank | None):
        raise ConfigError(
            f"rank is {_describe_kind(rank)}; it takes Rank(index, count), or Rank.from_env() "
            "under torchrun"
        )


class RefusesMisuse:
    """The base of loaders. It refuses what Python would let pass silently, or with an error that
    says nothing about loaders.
    """

    _set_once: ClassVar[tuple[str, ...]] = ()  # public attributes that the loader itself sets
    _set_often: ClassVar[tuple[str, ...]] = ()  # public attributes that a program may set

    def __setattr__(self, name: str, value: Any) -> None:
        is_first = name in self._set_once and name not in self.__dict__
        if not (name.startswith("_") or is_first or name in self._set_often):
            raise AttributeError(
                f"{name} cannot be set on a loader, where it would be of no effect; "
                f"{_instead_of_setting(name)}"
            )
        super().__setattr__(name, value)

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError(_NO_DATA_SET)


def explain_missing(kind: type, name: str) -> str:
    """Says of a loader of this class that it has no such attribute, such as those of a DataLoader
    that Accelerate's `skip_first_batches` asks for, and what to use instead.
    """
    if name in ("sampler", "batch_sampler", "collate_fn"):
        return (
            f"a loader has no {name}: its plan says which samples come when; to go on "
            "in mid-epoch use load_state_dict(), and "
            "for Accelerate dali_pipes.adapters.accelerate.AccelerateLoader"
        )
    return f"'{kind.__name__}' object has no attribute '{name}'{propose_name(name, dir(kind))}"


def _instead_of_setting(name: str) -> str:
    if name == "epoch":
        return "call set_epoch()"
    if name in DATALOADER_OPTIONS:
        return f"give build_loader {DATALOADER_OPTIONS[name]}"
    return "build_loader takes all options; keep what is yours in a variable of your own"


def _instead_of_manifest(value: Any) -> str:
    if isinstance(value, (str, os.PathLike)):
        return f"open it first: Manifest.open({os.fspath(value)!r})"
    if isinstance(value, (DataLoader, Dataset)):
        return (
            "from_torch(dataloader) makes a loader of a DataLoader; Manifest.scan(DIR) reads a "
            "folder"
        )
    return f"it takes a Manifest, such as Manifest.scan(DIR); {_ORDER}"


def _instead_of_config(value: Any) -> str:
    kinds = {name: entry.config for name, entry in list_backends().items()}
    if isinstance(value, type) and issubclass(value, LoaderConfig):
        return f"write {value.__name__}()"
    if isinstance(value, str) and (near := get_close_matches(value.lower(), kinds, 1)):
        return f"it takes a config; write {kinds[near[0]].__name__}()"
    if isinstance(value, Mapping):
        return "it takes a config made of these options, such as DaliConfig(**options)"
    return f"it takes a config, such as DaliConfig() or TorchConfig(num_workers=8); {_ORDER}"


def _instead_of_transform(value: Any) -> str:
    if isinstance(value, type) and issubclass(value, Transform):
        return f"write {value.__name__}(…)"
    # what can be called, and a list, may be torchvision's; a mere mix-up of arguments is not
    if isinstance(value, Manifest | LoaderConfig | type | str | None) or not (
        callable(value) or isinstance(value, (list, tuple))
    ):
        return f"it takes TrainTransform(…), EvalTransform(…) or another of dali_pipes; {_ORDER}"
    return "it takes one of dali_pipes: transform_from_torch(transform) makes it of torchvision's"


def _instead_of_sampling(value: Any) -> str:
    if isinstance(value, type) and issubclass(value, Sampling):
        return f"write {value.__name__}(…)"
    if isinstance(value, DistributedSampler):
        return "a loader divides the samples itself: rank=Rank.from_env()"
    if isinstance(value, WeightedRandomSampler):
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
