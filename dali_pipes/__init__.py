"""Image loading for GPU training: one plan, carried out by NVIDIA DALI or by a CPU DataLoader."""

from dali_pipes.batch import Batch
from dali_pipes.config import (
    CachedConfig,
    DaliConfig,
    EvalTransform,
    PaddedCropTransform,
    SyntheticConfig,
    TfDataConfig,
    TorchConfig,
    TorchvisionGpuConfig,
    TrainTransform,
)
from dali_pipes.diagnosis.attached import diagnose
from dali_pipes.errors import BadSampleError, ConfigError, DaliPipesError, ManifestError
from dali_pipes.loader import Loader, build_loader
from dali_pipes.manifest import Manifest
from dali_pipes.plan import Plan, Shard

__all__ = [
    "BadSampleError",
    "Batch",
    "CachedConfig",
    "ConfigError",
    "DaliConfig",
    "DaliPipesError",
    "EvalTransform",
    "Loader",
    "Manifest",
    "ManifestError",
    "PaddedCropTransform",
    "Plan",
    "Shard",
    "SyntheticConfig",
    "TfDataConfig",
    "TorchConfig",
    "TorchvisionGpuConfig",
    "TrainTransform",
    "build_loader",
    "diagnose",
]
