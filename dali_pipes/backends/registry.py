"""The table of all backends that one trains with: a row for each, with the class of its options.

`entry_of(config).load()` imports the class that a config belongs to. Other packages add their rows
by the entry-point group `dali_pipes.backends`. `add_backend` makes one known to `build_loader`
alone, without a name for `loader=`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_pipes.backends.base import Backend
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.backends.tfdata.config import TfDataConfig
from dali_pipes.backends.torch.config import TorchConfig
from dali_pipes.errors import ConfigError
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.cuda import cuda_extra
from dali_pipes.system.memory import Need

GROUP = "dali_pipes.backends"


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendEntry:
    """One backend. Its config says what depends on its options, such as whether it needs a GPU.

    Attributes:
        name: in results and in the group loader, where the schema of its options is NAME_schema.
        config: the class of its options.
        backend: "module:Class", imported when a loader is built.
        extra: the extra of this package that installs what it needs.
    """

    name: str
    config: type[LoaderConfig]
    backend: str
    extra: str | None = None

    def load(self) -> type[Backend]:
        """Imports the backend's class.

        Raises:
            ConfigError: a package that it needs is missing.
        """
        try:
            return load_class(self.backend)
        except ImportError as error:
            # without an extra there is nothing to install, so this is a fault, with its traceback
            if self.extra is None:
                raise
            why = f"the backend {self.name} needs a package that is missing ({error})"
            raise ConfigError(
                f"{why}; pip install 'dali_pipes[{self.extra}]', or use another loader"
            ) from None


def load_class(path: str) -> Any:
    """Imports the class that "module:Class" names."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


_OWN_ENTRIES = (
    BackendEntry(
        name="dali",
        config=DaliConfig,
        backend="dali_pipes.backends.dali.backend:DaliBackend",
        extra=cuda_extra(),
    ),
    BackendEntry(
        name="torch", config=TorchConfig, backend="dali_pipes.backends.torch.backend:TorchBackend"
    ),
    BackendEntry(
        name="tfdata",
        config=TfDataConfig,
        backend="dali_pipes.backends.tfdata.backend:TfDataBackend",
        extra="tf",
    ),
)
_added_entries: dict[type[LoaderConfig], BackendEntry] = {}


def add_backend(entry: BackendEntry) -> None:
    """Lets `build_loader` build this backend too, from its config.

    It has no name for `loader=`, and one does not train with it: an arm of a comparison.
    """
    _added_entries[entry.config] = entry


@cache
def list_backends() -> dict[str, BackendEntry]:
    """The backends that one trains with, by name: those of this package, then those of others.

    Raises:
        ConfigError: an entry point is not a `BackendEntry`, or has the name of another backend.
    """
    entries = {entry.name: entry for entry in _OWN_ENTRIES}

    for point in entry_points(group=GROUP):
        where = f"{point.value}, an entry point of {GROUP}"
        try:
            entry = point.load()
        # a TypeError: a package was made for a `BackendEntry` with other fields
        except (ImportError, TypeError) as error:
            raise ConfigError(
                f"{where}, cannot be imported ({error}); fix or uninstall its package"
            ) from None

        if not isinstance(entry, BackendEntry) or entry.name in entries:
            raise ConfigError(
                f"{where}, must be a BackendEntry with a name that no other backend has"
            )
        entries[entry.name] = entry

    return entries


def entry_of(config: LoaderConfig) -> BackendEntry:
    """The entry whose options these are.

    Raises:
        ConfigError: they are the options of no backend.
    """
    # backends of other packages are imported only if it is none of this package's
    by_config = {entry.config: entry for entry in _OWN_ENTRIES} | _added_entries
    if type(config) not in by_config:
        by_config |= {entry.config: entry for entry in list_backends().values()}
    if entry := by_config.get(type(config)):
        return entry

    known = ", ".join(entry.config.__name__ for entry in list_backends().values())
    raise ConfigError(f"{type(config).__name__} is no loader config; use one of {known}")


def is_for_training(config: LoaderConfig) -> bool:
    """Whether one trains with this backend, and does not only compare it."""
    return type(config) in [entry.config for entry in list_backends().values()]


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
    return entry_of(config).load().memory_needs(decided, transform, batch_size, sizes)
