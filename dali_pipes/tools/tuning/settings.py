"""What is searched: options that change a loader's speed, and the values that are worth a try on
this machine.

They change a loader's pixels by no more than the decoders of a GPU differ.
"""

import itertools
import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.backends.torch.config import TorchConfig
from dali_pipes.errors import ConfigError
from dali_pipes.tools.tuning.config import TuneConfig

Choices = dict[str, list[Any]]

_THREADS = ("num_workers", "num_threads")
_DECODER = ("hw_decoder_load", "decode", "hybrid_huffman_threshold")
_PREFETCH = ("prefetch_factor", "prefetch_queue_depth")


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of each option that is searched.

    Attributes:
        options: the options of the loader, as (name, value).
    """

    options: tuple[tuple[str, Any], ...]
    batch_size: int

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.to_dict().items())

    def to_dict(self) -> dict[str, Any]:
        return dict(self.options) | {"batch_size": self.batch_size}

    def applied_to(self, loader: LoaderConfig) -> LoaderConfig:
        return replace(loader, **dict(self.options))

    @property
    def in_flight(self) -> int:
        """Images that are in memory at once: batches of PyTorch's workers times those that each
        fetches ahead, or DALI's queue.
        """
        options = dict(self.options)
        # without workers one batch is in memory as well
        return self.batch_size * math.prod(
            max(1, options.get(name, 1)) for name in (*_PREFETCH, "num_workers")
        )

    @property
    def size(self) -> tuple[int, int]:
        """The sort key for the smallest of several settings: images in flight, then threads."""
        options = dict(self.options)
        return self.in_flight, max(options.get(name, 0) for name in _THREADS)


def settings(config: TuneConfig, cores: int) -> tuple[Setting, list[Setting]]:
    """Returns the default, which is the loader as it was given, and all other settings.

    Raises:
        ConfigError: this loader has nothing to search, no such option, or a value that it cannot
            take.
    """
    values = choices(config, cores)
    options = ((name, getattr(config.loader, name)) for name in values)
    # None stands for as many as cores
    default = Setting(
        tuple((name, cores if value is None else value) for name, value in options),
        config.batch_size,
    )
    # the given value need not be one of those that are searched
    for name, value in default.options:
        if value not in values[name]:
            values[name] = [value, *values[name]]

    sizes = dict.fromkeys([config.batch_size, *config.batch_sizes])
    product = itertools.product(sizes, *values.values())
    grid = dict.fromkeys(
        Setting(tuple(zip(values, combination, strict=True)), size)
        for size, *combination in product
    )

    others = [
        setting for setting in grid if setting != default and _differs_in_one(setting, default)
    ]
    for setting in others:
        # only for the errors of values that the loader cannot take
        setting.applied_to(config.loader)
    others = [setting for setting in others if not _same_as_another(setting, default)]

    if not others:
        raise ConfigError(
            f"there is nothing to search: {default} is the only setting; give more values, "
            f"as in search.{next(iter(values))}=[…]"
        )
    return default, others


def choices(config: TuneConfig, cores: int) -> Choices:
    """Returns the values of each option: those that were asked for, or those that make sense with
    this number of cores.
    """
    choices = search_space(config.loader, cores)
    if not choices:
        raise ConfigError(
            f"loader={config.loader_name} has no settings to search; choose dali, "
            "dali_cpu, torch or torch_torchvision"
        )
    if config.loader.needs_gpu and not torch.cuda.is_available():
        raise ConfigError(
            "loader.device=gpu, but PyTorch sees no GPU here; use loader=dali_cpu or loader=torch"
        )

    asked = {name: values for name, values in asdict(config.search).items() if values is not None}
    for name, values in asked.items():
        if name not in choices:
            searched = f"loader={config.loader_name} here; that is {', '.join(choices)}"
            raise ConfigError(f"search.{name}: nothing that is searched of {searched}")
        if not values:
            raise ConfigError(f"search.{name} is empty; give the values to try, or leave it out")
    return choices | asked


def search_space(loader: LoaderConfig, cores: int) -> Choices:
    """Returns the options that change a loader's speed but not its pixels, with the values that are
    worth trying on this number of cores.
    """
    if type(loader) is TorchConfig:
        return {"num_workers": _shares(cores, 1 / 2, 1, 3 / 2, 2), "prefetch_factor": [1, 2, 4]}
    # those that inherit its options, as the arms of a comparison, are not searched
    if type(loader) is not DaliConfig:
        return {}

    choices: Choices = {
        "num_threads": _shares(cores, 1 / 4, 1 / 2, 1, 3 / 2),
        "prefetch_queue_depth": [1, 2, 4],
    }
    if loader.decodes_on == "cpu":
        return choices

    # with `exact` the engine gets no image, whatever this value is
    if not loader.exact:
        choices["hw_decoder_load"] = [0.0, 0.15, 0.3, 0.5, 0.65, 0.8, 1.0]
    # ImageNet's images have fewer pixels than the default, so only lower values move their Huffman
    # decoding to the GPU
    return choices | {
        "decode": ["auto", "whole"],
        "hybrid_huffman_threshold": [1_000_000, 300_000, 100_000, 1],
    }


def _shares(cores: int, *shares: float) -> list[int]:
    return sorted({max(1, int(share * cores)) for share in shares})


def _differs_in_one(setting: Setting, default: Setting) -> bool:
    """Whether at most one option of the GPU's decoder differs: all combinations would be too many
    to try.
    """
    defaults = dict(default.options)
    return sum(name in _DECODER and value != defaults[name] for name, value in setting.options) <= 1


def _same_as_another(setting: Setting, default: Setting) -> bool:
    """Whether it has no workers and another prefetch_factor: nothing is prefetched then."""
    options = dict(setting.options)
    return options.get("num_workers") == 0 and options.get("prefetch_factor") != dict(
        default.options
    ).get("prefetch_factor")
