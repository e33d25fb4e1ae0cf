"""Image loading for GPU training: one plan, carried out by NVIDIA DALI or by a CPU DataLoader.

The public names are those in `__all__`; a module is imported when one of its names is first used.
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dali_pipes.adapters.from_torch.convert import from_torch, transform_from_torch
    from dali_pipes.adapters.from_torch.reading import NotConvertibleError
    from dali_pipes.backends.base import Batch, BatchTransform
    from dali_pipes.backends.dali.config import DaliConfig
    from dali_pipes.backends.tfdata.config import TfDataConfig
    from dali_pipes.backends.torch.config import TorchConfig
    from dali_pipes.backends.torchvision_gpu.config import TorchvisionGpuConfig
    from dali_pipes.data.manifest import Manifest
    from dali_pipes.data.objects import Targets
    from dali_pipes.errors import (
        BadSampleError,
        ConfigError,
        DaliPipesError,
        ManifestError,
        OmissionError,
    )
    from dali_pipes.loader.boxes import boxes_to_image
    from dali_pipes.loader.build import build_loader
    from dali_pipes.loader.loader import Loader
    from dali_pipes.loader.mixing import CutMix, MixUp, RandomChoice, cupy_stream
    from dali_pipes.plan.philox import BatchDraws
    from dali_pipes.plan.plan import Plan, Rank
    from dali_pipes.plan.sampling import (
        Balanced,
        Mixture,
        PerClass,
        Repeated,
        Schedule,
        Sequential,
        Uniform,
        Weighted,
        Windows,
    )
    from dali_pipes.plan.transforms import (
        CenterCropTransform,
        EvalTransform,
        IoUCropTransform,
        LetterboxTransform,
        RandomCropTransform,
        ScaleJitterTransform,
        ShortestSizeTransform,
        TrainTransform,
        ViewsTransform,
    )
    from dali_pipes.system.traces import trace
    from dali_pipes.tools.diagnosis.function import diagnose
    from dali_pipes.tools.migration.function import explain

__all__ = [
    "BadSampleError",
    "Balanced",
    "Batch",
    "BatchDraws",
    "BatchTransform",
    "CenterCropTransform",
    "ConfigError",
    "CutMix",
    "DaliConfig",
    "DaliPipesError",
    "EvalTransform",
    "IoUCropTransform",
    "LetterboxTransform",
    "Loader",
    "Manifest",
    "ManifestError",
    "MixUp",
    "Mixture",
    "NotConvertibleError",
    "OmissionError",
    "PerClass",
    "Plan",
    "RandomChoice",
    "RandomCropTransform",
    "Rank",
    "Repeated",
    "ScaleJitterTransform",
    "Schedule",
    "Sequential",
    "ShortestSizeTransform",
    "Targets",
    "TfDataConfig",
    "TorchConfig",
    "TorchvisionGpuConfig",
    "TrainTransform",
    "Uniform",
    "ViewsTransform",
    "Weighted",
    "Windows",
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
    *("errors", "plan.philox", "plan.plan", "plan.sampling", "plan.transforms"),
    *("data.manifest", "data.objects", "system.traces"),
    "backends.base",
    *(f"backends.{name}.config" for name in ("dali", "torch", "tfdata", "torchvision_gpu")),
    *("loader.boxes", "loader.build", "loader.loader", "loader.mixing"),
    *("adapters.from_torch.convert", "adapters.from_torch.reading"),
    "tools.diagnosis.function",
    "tools.migration.function",
)
_ARMS = "measure.arms"  # what version 0.2 had among the loaders, and what is an arm now
_NAMES_OF_ARMS = (
    *("CachedConfig", "DaliNativeConfig", "DataLoaderConfig"),
    *("DecodingConfig", "SyntheticConfig"),
)


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used.

    So a program that needs little starts at once, and a library that it does not use cannot break
    it.
    """
    if name in __all__:
        for home in _HOMES:
            if hasattr(module := import_module(f"{__name__}.{home}"), name):
                return globals().setdefault(name, getattr(module, name))

    if name in _NAMES_OF_ARMS:
        new = f"{__name__}.{_ARMS}.{name}"
        text = f"{__name__}.{name} is an arm of comparisons now: write {new}"
        warnings.warn(text, FutureWarning, stacklevel=2)
        return getattr(import_module(f"{__name__}.{_ARMS}"), name)

    if name == "Shard":
        text = f"{__name__}.Shard is called Rank now: write {__name__}.Rank"
        warnings.warn(text, FutureWarning, stacklevel=2)
        return import_module(f"{__name__}.plan.plan").Rank

    text = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(
        text
        if name.startswith("_")
        else text + import_module(f"{__name__}.options").propose_name(name, __all__)
    )


def __dir__() -> list[str]:
    """Lists the public names too, for completion in a shell or a notebook."""
    return sorted({*globals(), *__all__})
