"""The work that all arms of a benchmark do, in a form that is passed between processes as JSON."""

import contextlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Self

from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.registry import list_backends, load_class
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.loader.build import build_loader
from dali_pipes.loader.loader import Loader
from dali_pipes.measure.arms import ARMS, arm_of
from dali_pipes.measure.arms.unplanned import UnplannedLoader
from dali_pipes.plan.transforms import TRANSFORMS, Transform


@dataclass(frozen=True, slots=True)
class Workload:
    """The plan that all arms carry out, and what is done with the batches.

    Attributes:
        manifest, transform: the path of a saved manifest, and what is made of its images; None: the
            arms are a DataLoader of the user's.
        workload: "loader" or "train".
        model: a name that dali_pipes.training.optimizing.recipe knows, for "train"; else None.
    """

    manifest: str | None
    transform: Transform | None
    batch_size: int
    seed: int
    workload: str = "loader"
    model: str | None = None

    def arm_loader(self, config: LoaderConfig) -> Loader | UnplannedLoader:
        """Builds what is measured of an arm: a loader for this work, or one without a plan."""
        arm = arm_of(type(config))
        if arm is None or arm.follows_plan:
            return self.loader(config)

        make: Callable[..., UnplannedLoader] = load_class(config)
        manifest = Manifest.load(self.manifest) if self.manifest else None
        return make(manifest, config, self.transform, self.batch_size)

    def loader(self, config: LoaderConfig) -> Loader:
        """Builds a loader for this work, which has a manifest."""
        assert self.manifest is not None
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
            "transform": to_dict(self.transform) if self.transform else None
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        transform = from_dict(value["transform"]) if value["transform"] else None
        return cls(**value | {"transform": transform})


def to_dict(config: LoaderConfig | Transform) -> dict[str, Any]:
    """Returns options in a form that JSON can hold, with the name of their class as "kind".

    Raises:
        ConfigError: a function among them has no name by which another process can import it.
    """
    given = [each.name for each in fields(config) if each.init]
    plain = {name: _to_plain(getattr(config, name)) for name in given}
    return {"kind": type(config).__name__, **plain}


def _to_plain(value: Any) -> Any:
    """Options, and options in them, as mappings of what they were given; functions as their
    names.
    """
    if isinstance(value, LoaderConfig):
        return to_dict(value)
    if is_dataclass(value) and not isinstance(value, type):
        given = [each.name for each in fields(value) if each.init]
        return {name: _to_plain(getattr(value, name)) for name in given}
    if isinstance(value, Mapping):
        return {key: _to_plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_to_plain(each) for each in value]
    if isinstance(value, tuple):
        return tuple(_to_plain(each) for each in value)
    return _name_of(value) if callable(value) else value


def _name_of(function: Any) -> str:
    """The name "module:function" of a function, by which it can be imported."""
    module = getattr(function, "__module__", "__main__")
    title = getattr(function, "__qualname__", type(function).__name__)
    name = f"{module}:{title}"
    with contextlib.suppress(ImportError, AttributeError, ValueError):
        if module != "__main__" and pkgutil.resolve_name(name) is function:
            return name
    raise ConfigError(
        f"{title} is a step of your own that lives in your program only, and every loader of a "
        "measurement runs in a process of its own, which cannot import it; give functions of a "
        "module by name, or time your loader and dp.from_torch(loader) in your program"
    )


def from_dict(value: dict[str, Any]) -> Any:
    """Returns the options that `to_dict` was given.

    They may name functions, which are imported: use it for what this program has sent, and not for
    what is in a file.
    """
    # no import strings: only classes of these tables can be named
    kinds: list[type[Any]] = [
        *list_backends().values(),
        *(arm.config for arm in ARMS),
        *TRANSFORMS.values(),
    ]
    options = {
        name: from_dict(each) if isinstance(each, dict) and "kind" in each else each
        for name, each in value.items()
    }
    return {kind.__name__: kind for kind in kinds}[options.pop("kind")](**options)


def lacks_gpu(config: LoaderConfig) -> bool:
    """Whether this loader would use a GPU, and there is none here."""
    return getattr(config, "device", "") == "auto" and config.decodes_on == "cpu"
