"""What exists only to be compared: a file for each arm, and here a row for each.

    native               DALI's own reader and random crop, without the plan
    decoding             decoding alone, on the CPU
    synthetic            constant images, on the device already
    users_dataloader     a DataLoader of the user's own, that a function makes, as it is or as
                         from_torch makes it

The core knows none of them. Those that follow the plan are backends, which `build_loader` builds
from their config; each of the others is an `UnplannedLoader`. `arm_of` returns what a comparison
must know about a loader.
"""

from dataclasses import dataclass

from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.measure.arms.decoding import DecodingConfig
from dali_pipes.measure.arms.native import DaliNativeConfig
from dali_pipes.measure.arms.synthetic import SyntheticConfig
from dali_pipes.measure.arms.users_dataloader import DataLoaderConfig

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
        config: the class of its options. Its `backend` is a `Backend`, or an `UnplannedLoader`; its
            name is the one in the group arm.
        follows_plan: whether it is a backend, which delivers the samples of the plan.
        makes_images: whether it reads and decodes images for each batch, and repeats no earlier
            ones.
        planned_by: the options of the loader that does the same by the plan; None: there is none.
    """

    config: type[LoaderConfig]
    follows_plan: bool = True
    makes_images: bool = True
    planned_by: type[LoaderConfig] | None = None


ARMS = (
    Arm(config=DaliNativeConfig, follows_plan=False, planned_by=DaliConfig),
    Arm(config=DecodingConfig),
    Arm(config=DataLoaderConfig, follows_plan=False),
    Arm(config=SyntheticConfig, makes_images=False),
)


def arm_of(kind: type[LoaderConfig] | str) -> Arm | None:
    """The row with this class of options, or with a class of this name.

    None for a loader that one trains with, also for one that only the writer of a result had.
    """
    return next((arm for arm in ARMS if kind in (arm.config, arm.config.__name__)), None)


def makes_images(kind: type[LoaderConfig] | str) -> bool:
    """Whether each batch is read and decoded."""
    arm = arm_of(kind)
    return arm is None or arm.makes_images
