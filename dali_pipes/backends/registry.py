"""The list of all backends: one entry each, with the class of its options.

`entry_of(config).load()` imports the class that a config belongs to. Other packages add their
backends by the entry-point group `dali_pipes.backends`.
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
from dali_pipes.backends.reference import config as reference
from dali_pipes.backends.tfdata.config import TfDataConfig
from dali_pipes.backends.torch.config import TorchConfig
from dali_pipes.backends.torchvision_gpu.config import TorchvisionGpuConfig
from dali_pipes.errors import ConfigError
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.memory import Need

GROUP = "dali_pipes.backends"


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendEntry:
    """One backend. What depends on its options, such as whether it needs a GPU, its config says.

    Attributes:
        name: in results and in conf/loader, where the schema of its options is called NAME_schema.
        config: the class of its options.
        backend: "module:Class", imported when a loader is built.
        extra: the extra of this package that installs what it needs.
        follows_plan: it delivers the samples of the plan, with pixels that can be compared.
        makes_images: it reads and decodes images for each batch, and does not repeat earlier ones.
        trains: it may be used for training.
        planned_by: for a backend that does not follow the plan, the backend that does the same by
            the plan.
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
        """Imports the backend's class.

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
            raise ConfigError(
                f"{why}; pip install 'dali_pipes[{self.extra}]', or use another loader"
            ) from None


def _ours(name: str, config: type[LoaderConfig], backend: str, **options: Any) -> BackendEntry:
    return BackendEntry(
        name=name, config=config, backend=f"dali_pipes.backends.{backend}", **options
    )


_FOR_COMPARISON: dict[str, Any] = {"follows_plan": False, "trains": False}
_OURS = (
    _ours("dali", DaliConfig, "dali.backend:DaliBackend"),
    _ours("torch", TorchConfig, "torch.backend:TorchBackend"),
    _ours("tfdata", TfDataConfig, "tfdata.backend:TfDataBackend", extra="tf"),
    _ours("torchvision_gpu", TorchvisionGpuConfig, "torchvision_gpu.backend:TorchvisionGpuBackend"),
    _ours(
        "dali_native",
        reference.DaliNativeConfig,
        "reference.dali:DaliNativeBackend",
        **_FOR_COMPARISON,
        planned_by="dali",
    ),
    _ours(
        "decoding", reference.DecodingConfig, "reference.dali:DecodingBackend", **_FOR_COMPARISON
    ),
    _ours(
        "dataloader",
        reference.DataLoaderConfig,
        "reference.plain:DataLoaderBackend",
        **_FOR_COMPARISON,
    ),
    _ours(
        "cached",
        reference.CachedConfig,
        "reference.dali:CachedBackend",
        **_FOR_COMPARISON,
        makes_images=False,
    ),
    _ours(
        "synthetic",
        reference.SyntheticConfig,
        "reference.plain:SyntheticBackend",
        follows_plan=False,
        makes_images=False,
    ),
)


@cache
def backends() -> dict[str, BackendEntry]:
    """All backends by name: those of this package, then those of other packages.

    Raises:
        ConfigError: an entry point is not a `BackendEntry`, or has the name of another backend.
    """
    found = {entry.name: entry for entry in _OURS}

    for point in entry_points(group=GROUP):
        where = f"{point.value}, an entry point of {GROUP}"
        try:
            entry = point.load()
        except ImportError as error:
            raise ConfigError(
                f"{where}, cannot be imported ({error}); fix or uninstall its package"
            ) from None

        if not isinstance(entry, BackendEntry) or entry.name in found:
            raise ConfigError(
                f"{where}, must be a BackendEntry with a name that no other backend has"
            )
        found[entry.name] = entry

    return found


def entry_of(config: LoaderConfig) -> BackendEntry:
    """The entry whose options these are.

    Raises:
        ConfigError: they are the options of no backend.
    """
    # backends of other packages are imported only if it is none of this package's
    for entries in (_OURS, backends().values()):
        if found := next((entry for entry in entries if entry.config is type(config)), None):
            return found

    known = ", ".join(entry.config.__name__ for entry in backends().values())
    raise ConfigError(f"{type(config).__name__} is no loader config; use one of {known}")


def loader_needs(
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
