"""What exists only to be compared: a file for each arm, and here a row for each.

    native               DALI's own reader and random crop, without the plan
    decoding             decoding alone, on the CPU
    synthetic            constant images, on the device already
    users_dataloader     a DataLoader of the user's own, that a function makes

The core knows none of them. Those that follow the plan are backends, which are made known to
`build_loader` here; each of the others is an `UnplannedLoader`. `arm_of` returns what a comparison
must know about a loader.
"""

from dataclasses import dataclass
from typing import Any

from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.backends.registry import BackendEntry, add_backend
from dali_pipes.measure.arms.decoding import DecodingConfig
from dali_pipes.measure.arms.native import DaliNativeConfig
from dali_pipes.measure.arms.synthetic import SyntheticConfig
from dali_pipes.measure.arms.users_dataloader import DataLoaderConfig
from dali_pipes.system.cuda import cuda_extra

__all__ = [
    "ARMS",
    "Arm",
    "DaliNativeConfig",
    "DataLoaderConfig",
    "DecodingConfig",
    "SyntheticConfig",
    "arm_of",
    "makes_images",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """What a comparison must know about one of these arms.

    Attributes:
        name: in the group arm, where the schema of its options is called NAME_schema.
        config: the class of its options.
        made_by: "module:Class" of its `Backend`, or of its `UnplannedLoader`.
        extra: the extra of this package that installs what it needs.
        follows_plan: whether it is a backend, which delivers the samples of the plan.
        makes_images: whether it reads and decodes images for each batch, and repeats no earlier
            ones.
        planned_by: the options of the loader that does the same by the plan; None: there is none.
    """

    name: str
    config: type[LoaderConfig]
    made_by: str
    extra: str | None = None
    follows_plan: bool = True
    makes_images: bool = True
    planned_by: type[LoaderConfig] | None = None

    def load(self) -> type[Any]:
        """Imports the class that makes it.

        Raises:
            ConfigError: a package that it needs is missing.
        """
        return self.entry.load()

    @property
    def entry(self) -> BackendEntry:
        return BackendEntry(
            name=self.name, config=self.config, backend=self.made_by, extra=self.extra
        )


ARMS = (
    Arm(
        name="dali_native",
        config=DaliNativeConfig,
        made_by="dali_pipes.measure.arms.native_loader:NativeLoader",
        extra=cuda_extra(),
        follows_plan=False,
        planned_by=DaliConfig,
    ),
    Arm(
        name="decoding",
        config=DecodingConfig,
        made_by="dali_pipes.measure.arms.decoding_backend:DecodingBackend",
        extra=cuda_extra(),
    ),
    Arm(
        name="dataloader",
        config=DataLoaderConfig,
        made_by="dali_pipes.measure.arms.users_dataloader:UsersLoader",
        follows_plan=False,
    ),
    Arm(
        name="synthetic",
        config=SyntheticConfig,
        made_by="dali_pipes.measure.arms.synthetic:SyntheticBackend",
        makes_images=False,
    ),
)

for _arm in ARMS:
    if _arm.follows_plan:
        add_backend(_arm.entry)


def arm_of(kind: type[LoaderConfig]) -> Arm | None:
    """The row with this class of options; None for a loader that one trains with."""
    return next((arm for arm in ARMS if arm.config is kind), None)


def makes_images(kind: type[LoaderConfig]) -> bool:
    """Whether each batch is read and decoded."""
    arm = arm_of(kind)
    return arm is None or arm.makes_images
