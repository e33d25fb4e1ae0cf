"""Image loading for GPU training: one plan, carried out by NVIDIA DALI or by a CPU DataLoader.

The public names are those in `__all__`; a module is imported when one of its names is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dali_pipes.adapters.lazy.convert import from_torch as from_torch
    from dali_pipes.adapters.transforms.convert import transform_from_torch as transform_from_torch
    from dali_pipes.adapters.transforms.reading import NotConvertibleError as NotConvertibleError
    from dali_pipes.backends.auto.config import AutoConfig as AutoConfig
    from dali_pipes.backends.dali.config import DaliConfig as DaliConfig
    from dali_pipes.backends.torch.config import TorchConfig as TorchConfig
    from dali_pipes.data.manifest import Manifest as Manifest
    from dali_pipes.data.objects import Targets as Targets
    from dali_pipes.data.sources.options import SourceOptions as SourceOptions
    from dali_pipes.errors import BadSampleError as BadSampleError
    from dali_pipes.errors import ConfigError as ConfigError
    from dali_pipes.errors import DaliPipesError as DaliPipesError
    from dali_pipes.errors import ManifestError as ManifestError
    from dali_pipes.errors import OmissionError as OmissionError
    from dali_pipes.loader.batch import Batch as Batch
    from dali_pipes.loader.batch import BatchTransform as BatchTransform
    from dali_pipes.loader.boxes import boxes_to_image as boxes_to_image
    from dali_pipes.loader.build import build_loader as build_loader
    from dali_pipes.loader.loader import Loader as Loader
    from dali_pipes.loader.mixing import CutMix as CutMix
    from dali_pipes.loader.mixing import MixUp as MixUp
    from dali_pipes.loader.mixing import RandomChoice as RandomChoice
    from dali_pipes.loader.mixing_kernels import cupy_stream as cupy_stream
    from dali_pipes.plan.draws import BatchDraws as BatchDraws
    from dali_pipes.plan.plan import Plan as Plan
    from dali_pipes.plan.plan import Rank as Rank
    from dali_pipes.plan.sampling import *  # noqa: F403
    from dali_pipes.plan.steps.functions import Augment as Augment
    from dali_pipes.plan.transforms import *  # noqa: F403
    from dali_pipes.system.traces import trace as trace
    from dali_pipes.tools.diagnosis.function import diagnose as diagnose
    from dali_pipes.tools.explain import explain as explain

# The public names besides those of the tables below. `__all__` has both, see `__getattr__`.
_NAMES = [
    "Augment",
    "AutoConfig",
    "BadSampleError",
    "Batch",
    "BatchDraws",
    "BatchTransform",
    "ConfigError",
    "CutMix",
    "DaliConfig",
    "DaliPipesError",
    "Loader",
    "Manifest",
    "ManifestError",
    "MixUp",
    "NotConvertibleError",
    "OmissionError",
    "Plan",
    "RandomChoice",
    "Rank",
    "SourceOptions",
    "Targets",
    "TorchConfig",
    "boxes_to_image",
    "build_loader",
    "cupy_stream",
    "diagnose",
    "explain",
    "from_torch",
    "trace",
    "transform_from_torch",
]

# the modules that define the names above, in the order in which they are tried; the tools last
_HOMES = (
    *("errors", "plan.draws", "plan.plan", "plan.steps.functions"),
    *("data.manifest", "data.objects", "system.traces"),
    "loader.batch",
    *(f"backends.{name}.config" for name in ("auto", "dali", "torch")),
    *("loader.boxes", "loader.build", "loader.loader", "loader.mixing"),
    "loader.mixing_kernels",
    "adapters.lazy.convert",
    *("adapters.transforms.convert", "adapters.transforms.reading"),
    "tools.diagnosis.function",
    "tools.explain",
)
# The tables of samplings and of transforms, whose rows are public too. Their folders are imported
# as a whole above, so that type checkers know each row.
_TABLES = (("plan.sampling", "SAMPLINGS"), ("plan.transforms", "TRANSFORMS"))


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used.

    So a program that needs little starts at once, and a library that it does not use cannot break
    it.
    """
    if name in _NAMES:
        for home in _HOMES:
            if hasattr(module := import_module(f"{__name__}.{home}"), name):
                return globals().setdefault(name, getattr(module, name))

    # PEP 562 asks for `__all__` here too, as for `from dali_pipes import *`
    if name == "__all__":
        return sorted([*_NAMES, *_list_rows()])
    if not name.startswith("_") and (row := _list_rows().get(name)):
        return globals().setdefault(name, row)

    text = f"module {__name__!r} has no attribute {name!r}"
    if name.startswith("_"):
        raise AttributeError(text)
    propose_name = import_module(f"{__name__}.options").propose_name
    raise AttributeError(text + propose_name(name, [*_NAMES, *_list_rows()]))


def _list_rows() -> dict[str, type]:
    """Returns the samplings and the transforms by the names of their classes."""
    tables = (getattr(import_module(f"{__name__}.{home}"), table) for home, table in _TABLES)
    return {row.__name__: row for table in tables for row in table.values()}


def __dir__() -> list[str]:
    """Lists the public names too, for completion in a shell or a notebook."""
    return sorted({*globals(), *_NAMES, *_list_rows()})
