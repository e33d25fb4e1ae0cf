"""Every backend, one row each. Other packages add theirs by the entry-point group `dali_pipes.backends`."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

import numpy as np
from numpy.typing import NDArray

from dali_pipes.backends.base import Backend
from dali_pipes.backends.config import (
    CachedConfig,
    DaliConfig,
    DaliNativeConfig,
    DataLoaderConfig,
    DecodingConfig,
    LoaderConfig,
    SyntheticConfig,
    TfDataConfig,
    TorchConfig,
    TorchvisionGpuConfig,
)
from dali_pipes.errors import ConfigError
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.memory import Need

GROUP = "dali_pipes.backends"


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendEntry:
    """One backend. What depends on its options, such as whether it needs a GPU or can be tuned, its config says.

    Attributes:
        name: in results and in conf/loader, where the schema of its options is called NAME_schema.
        config: the class of its options.
        backend: "module:Class", imported when a loader is built.
        extra: the extra of this package that brings what it needs.
        follows_plan: delivers the samples of the plan with pixels that can be compared.
        makes_images: reads and decodes for each batch, and does not repeat what it has.
        trains: may be trained with.
        planned_by: the backend that does the same by the plan, for one that does not follow it.
    """

    name: str
    config: type[LoaderConfig]
    backend: str
    extra: str | None = None
    follows_plan: bool = True
    makes_images: bool = True
    trains: bool = True
    planned_by: str | None = None

    def load(self) -> type[Backend]:
        """
        Raises:
            ConfigError: a package that it needs is missing.
        """
        module, _, name = self.backend.partition(":")
        try:
            return getattr(import_module(module), name)
        except ImportError as error:
            if self.extra is None:
                raise
            why = f"the backend {self.name} needs a package that is missing ({error})"
            raise ConfigError(f"{why}; pip install 'dali_pipes[{self.extra}]', or use another loader") from None


_OURS = (
    BackendEntry(name="dali", config=DaliConfig, backend="dali_pipes.backends.dali.backend:DaliBackend"),
    BackendEntry(name="torch", config=TorchConfig, backend="dali_pipes.backends.torch:TorchBackend"),
    BackendEntry(name="tfdata", config=TfDataConfig, backend="dali_pipes.backends.tfdata:TfDataBackend", extra="tf"),
    BackendEntry(
        name="torchvision_gpu",
        config=TorchvisionGpuConfig,
        backend="dali_pipes.backends.torchvision_gpu:TorchvisionGpuBackend",
    ),
    BackendEntry(
        name="dali_native",
        config=DaliNativeConfig,
        backend="dali_pipes.backends.reference.dali_native:DaliNativeBackend",
        follows_plan=False,
        trains=False,
        planned_by="dali",
    ),
    BackendEntry(
        name="decoding",
        config=DecodingConfig,
        backend="dali_pipes.backends.reference.decoding:DecodingBackend",
        follows_plan=False,
        trains=False,
    ),
    BackendEntry(
        name="dataloader",
        config=DataLoaderConfig,
        backend="dali_pipes.backends.reference.dataloader:DataLoaderBackend",
        follows_plan=False,
        trains=False,
    ),
    BackendEntry(
        name="cached",
        config=CachedConfig,
        backend="dali_pipes.backends.reference.cached:CachedBackend",
        follows_plan=False,
        makes_images=False,
        trains=False,
    ),
    BackendEntry(
        name="synthetic",
        config=SyntheticConfig,
        backend="dali_pipes.backends.reference.synthetic:SyntheticBackend",
        follows_plan=False,
        makes_images=False,
    ),
)


@cache
def backends() -> dict[str, BackendEntry]:
    """By name: those of this package, then those of others.

    Raises:
        ConfigError: an entry point that is no backend, or has the name of another.
    """
    found = {entry.name: entry for entry in _OURS}
    for point in entry_points(group=GROUP):
        where = f"{point.value}, an entry point of {GROUP}"
        try:
            entry = point.load()
        except ImportError as error:
            raise ConfigError(f"{where}, cannot be imported ({error}); fix or uninstall its package") from None
        if not isinstance(entry, BackendEntry) or entry.name in found:
            raise ConfigError(f"{where}, must be a BackendEntry with a name that no other backend has")
        found[entry.name] = entry
    return found


def entry_of(config: LoaderConfig) -> BackendEntry:
    """
    Raises:
        ConfigError: these are not the options of a backend.
    """
    ours = {entry.config: entry for entry in _OURS}
    if found := ours.get(type(config)) or {entry.config: entry for entry in backends().values()}.get(type(config)):
        return found
    known = ", ".join(entry.config.__name__ for entry in backends().values())
    raise ConfigError(f"{type(config).__name__} is no loader config; use one of {known}")


def loader_needs(config: LoaderConfig, transform: Transform, batch_size: int, sizes: NDArray[np.int64]) -> Iterator[Need]:
    """What a loader of these options needs at least; see `Backend.memory_needs`."""
    return entry_of(config).load().memory_needs(config.on_cores(), transform, batch_size, sizes)
