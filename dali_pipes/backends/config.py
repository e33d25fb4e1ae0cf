"""What the options of every loader have in common.

A backend's options are a subclass of `LoaderConfig`, in the `config.py` beside the backend. It also
says what follows from them: whether they need a GPU, and how many batches are made at once.
`on_cores`, `on_packages` and `on_device` fill in what is left to the machine.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import torch

from dali_pipes.options import Options, check_options
from dali_pipes.system.cpus import available_cpus

MAX_COUNT = 2**12  # threads, processes, and batches ahead


class Concurrency(NamedTuple):
    """How many batches are made at the same time, and how far ahead."""

    makers: int = 1  # processes or threads; the training process itself counts as 1
    burst: int = 1  # batches that come at once
    ahead: int = 0  # batches that are made ahead


@dataclass(kw_only=True, slots=True)
class LoaderConfig(Options):
    """The options of one backend; the base of all of them."""

    # the name in results and in the group loader, where the schema of these options is NAME_schema
    name: ClassVar[str] = ""
    backend: ClassVar[str] = ""  # "module:Class", imported when a loader is built
    extra: ClassVar[str | None] = None  # the extra of this package that installs what it needs

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def needs_gpu(self) -> bool:
        """Whether this loader runs on a GPU only."""
        return False

    @property
    def decodes_on(self) -> str:
        """Where images are decoded here: "cpu" or "gpu"."""
        return "cpu"

    @property
    def fancy_upsampling(self) -> bool:
        """Whether chroma is upsampled as libjpeg does it by default."""
        return True

    @property
    def cores_option(self) -> str | None:
        """The option that says how many cores are used."""
        return next((name for name in ("num_workers", "num_threads") if hasattr(self, name)), None)

    def on_cores(self, cores: int | None = None) -> Self:
        """The same options with the number of cores set, if it is None.

        By default these are all cores that this process may use.
        """
        name = self.cores_option
        return (
            replace(self, **{name: cores or available_cpus()})
            if name and getattr(self, name) is None
            else self
        )

    def on_packages(self) -> Self:
        """The same options with what is left to the installed packages decided."""
        return self

    def on_device(self, device: torch.device) -> Self:
        """The same options with each "auto" decided for batches that arrive on this device."""
        return self

    @property
    def concurrency(self) -> Concurrency:
        """How batches are made; the number of cores must be set."""
        return Concurrency(getattr(self, self.cores_option or "", None) or 1)
