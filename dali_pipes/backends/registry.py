"""The backends that one trains with, by name, and the class of a config's backend.

A config says itself which backend it belongs to (`LoaderConfig.backend`). Other packages add theirs
by the entry-point group `dali_pipes.backends`, each of which names the class of a config.
"""

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_pipes.backends.auto.config import AutoConfig
from dali_pipes.backends.backend import Backend
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.backends.torch.config import TorchConfig
from dali_pipes.errors import ConfigError
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.memory import Need

GROUP = "dali_pipes.backends"


@cache
def list_backends() -> dict[str, type[LoaderConfig]]:
    """The configs of the backends that one trains with, by name: those of this package, then those
    of others.

    Raises:
        ConfigError: an entry point names no config, or one with the name of another backend.
    """
    configs: dict[str, type[LoaderConfig]] = {
        config.name: config for config in (AutoConfig, DaliConfig, TorchConfig)
    }

    for point in entry_points(group=GROUP):
        where = f"{point.value}, an entry point of {GROUP}"
        try:
            config = point.load()
        # an AttributeError or a TypeError: the package was made for another version of this one
        except (ImportError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"{where}, cannot be imported ({error}); fix or uninstall its package"
            ) from None

        is_config = isinstance(config, type) and issubclass(config, LoaderConfig)
        if not is_config or not config.backend or not config.name or config.name in configs:
            raise ConfigError(
                f"{where}, must be a subclass of LoaderConfig that says its backend, and a name "
                "that no other backend has"
            )
        configs[config.name] = config

    return configs


def load_backend(config: LoaderConfig) -> type[Backend]:
    """Imports the class whose options these are.

    Raises:
        ConfigError: they are the options of no backend, or a package that it needs is missing.
    """
    found = load_class(config) if config.backend else None
    if isinstance(found, type) and issubclass(found, Backend):
        return found
    known = ", ".join(each.__name__ for each in list_backends().values())
    raise ConfigError(f"{type(config).__name__} is no loader config; use one of {known}")


def load_class(config: LoaderConfig | type[LoaderConfig]) -> Any:
    """Imports what `LoaderConfig.backend` names.

    Raises:
        ConfigError: a package that it needs is missing.
    """
    module, _, name = config.backend.partition(":")
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        # without an extra there is nothing to install, so this is a fault, with its traceback
        if config.extra is None:
            raise
        why = f"the backend {config.name} needs a package that is missing ({error})"
        raise ConfigError(
            f"{why}; pip install 'dali_pipes[{config.extra}]', or use another loader"
        ) from None


def is_for_training(config: LoaderConfig) -> bool:
    """Whether one trains with this backend, and does not only compare it."""
    return type(config) in list_backends().values()


def estimate_loader_memory(
    config: LoaderConfig,
    transform: Transform,
    batch_size: int,
    sizes: NDArray[np.int64],
    device: torch.device,
) -> Iterator[Need]:
    """The least memory that a loader with these options needs, for batches that arrive on `device`.

    See `Backend.memory_needs`.
    """
    decided = config.on_cores().on_device(device)
    return load_backend(config).memory_needs(decided, transform, batch_size, sizes)
