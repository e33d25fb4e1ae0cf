"""The work that all arms of a benchmark do, in a form that is passed between processes as JSON."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.registry import list_backends
from dali_pipes.data.manifest import Manifest
from dali_pipes.loader.build import build_loader
from dali_pipes.loader.loader import Loader
from dali_pipes.measure.arms import ARMS, arm_of
from dali_pipes.measure.arms.unplanned import UnplannedLoader
from dali_pipes.options import is_left_out
from dali_pipes.plan.transforms import TRANSFORMS, Transform


@dataclass(frozen=True, slots=True)
class Workload:
    """The plan that all arms carry out, and what is done with the batches.

    Attributes:
        manifest: the path of a saved manifest.
        workload: "loader", "train" or "cold".
        model: a name that dali_pipes.training.recipe knows, for "train"; else None.
    """

    manifest: str
    transform: Transform
    batch_size: int
    seed: int
    workload: str = "loader"
    model: str | None = None

    def arm_loader(self, config: LoaderConfig) -> Loader | UnplannedLoader:
        """Builds what is measured of an arm: a loader for this work, or one without a plan."""
        arm = arm_of(config)
        if arm is None or arm.follows_plan:
            return self.loader(config)

        make: Callable[..., UnplannedLoader] = arm.load()
        return make(Manifest.load(self.manifest), config, self.transform, self.batch_size)

    def loader(self, config: LoaderConfig) -> Loader:
        """Builds a loader for this work."""
        how: dict[str, Any] = {
            "transform": self.transform,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "shuffle": True,
        }
        # pad: all batches have one size, whatever the number of images
        return build_loader(Manifest.load(self.manifest), config, **how, last_batch="pad")

    def to_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)} | {
            "transform": to_dict(self.transform)
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        return cls(**value | {"transform": from_dict(value["transform"])})


def to_dict(config: LoaderConfig | Transform) -> dict[str, Any]:
    """Returns options in a form that JSON can hold, with the name of their class as "kind"."""
    values = asdict(config)
    for declared in fields(config):
        if is_left_out(declared, getattr(config, declared.name)):
            values.pop(declared.name)
    return {"kind": type(config).__name__, **values}


def from_dict(value: dict[str, Any]) -> Any:
    """Returns the options that `to_dict` was given."""
    # no import strings: only classes of these tables can be named
    options = dict(value)
    kinds: list[type[Any]] = [
        *(entry.config for entry in list_backends().values()),
        *(arm.config for arm in ARMS),
        *TRANSFORMS.values(),
    ]
    return {kind.__name__: kind for kind in kinds}[options.pop("kind")](**options)


def lacks_gpu(config: LoaderConfig) -> bool:
    """Whether this loader would use a GPU, and there is none here."""
    return getattr(config, "device", "") == "auto" and config.decodes_on == "cpu"
