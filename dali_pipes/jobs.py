"""Every script's options by their name in conf/: `register()` makes the schemas known to Hydra."""

from dataclasses import dataclass, field
from typing import Any

from dali_pipes.backends.config import (
    CachedConfig,
    DaliConfig,
    DaliNativeConfig,
    SyntheticConfig,
    TfDataConfig,
    TorchConfig,
    TorchvisionGpuConfig,
)
from dali_pipes.benchmark.config import BenchmarkConfig
from dali_pipes.data.config import DataConfig
from dali_pipes.data.headers import MAX_PIXELS
from dali_pipes.diagnosis.config import DiagnoseConfig
from dali_pipes.doctor.config import DoctorConfig
from dali_pipes.errors import at_least, one_of
from dali_pipes.gpu_check.config import GpuCheckConfig
from dali_pipes.plan.transforms import EvalTransform, PaddedCropTransform, TrainTransform
from dali_pipes.preparation.config import PrepareConfig
from dali_pipes.training.config import ModelConfig, OptimizerConfig, TrainConfig
from dali_pipes.tuning.config import TuneConfig


@dataclass(kw_only=True, slots=True)
class ScanConfig:
    """scripts/scan.py.

    Attributes:
        split: "train" or "val".
        verify: "header" reads headers only; "full" decodes every image, on all cores.
        max_pixels: images with more are not used.
        out: Parquet file for the manifest; None: only the summary.
    """

    data: DataConfig = field(default_factory=DataConfig)
    split: str = "train"
    verify: str = "header"
    max_pixels: int = MAX_PIXELS
    out: str | None = None

    def __post_init__(self) -> None:
        one_of("split", self.split, ("train", "val"))


@dataclass(kw_only=True, slots=True)
class PreviewConfig:
    """scripts/preview.py: batches of one loader, to see what it yields.

    Attributes:
        split: "train" or "val".
        batch_size: images per batch.
        seed: of the order of the samples and everything drawn.
        batches: how many; None: a whole epoch.
        out: folder for the picture of the first images.
    """

    data: DataConfig = field(default_factory=DataConfig)
    transform: Any = None
    loader: Any = None
    split: str = "train"
    batch_size: int = 64
    seed: int = 0
    batches: int | None = None
    out: str = "runs/preview"

    def __post_init__(self) -> None:
        one_of("split", self.split, ("train", "val"))
        at_least("batch_size", self.batch_size, 1)
        at_least("batches", self.batches, 1)


LOADERS = {  # each schema of conf/loader is called NAME_schema
    "dali": DaliConfig,
    "dali_native": DaliNativeConfig,
    "torch": TorchConfig,
    "synthetic": SyntheticConfig,
    "cached": CachedConfig,
    "tfdata": TfDataConfig,
    "torchvision_gpu": TorchvisionGpuConfig,
}


def to_yaml(config: Any) -> str:
    """Every option of a job, as the composed configuration has it."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.structured(config))


def register() -> None:
    """Puts the schemas into Hydra's ConfigStore, and the resolver `repo:` for paths inside the checkout."""
    from pathlib import Path

    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("repo", lambda path: str(Path(__file__).parents[1] / path), replace=True)
    store = ConfigStore.instance()
    store.store(name="scan_schema", node=ScanConfig)
    store.store(name="preview_schema", node=PreviewConfig)
    store.store(name="benchmark_schema", node=BenchmarkConfig)
    store.store(name="train_schema", node=TrainConfig)
    store.store(name="diagnose_schema", node=DiagnoseConfig)
    store.store(name="doctor_schema", node=DoctorConfig)
    store.store(name="tune_schema", node=TuneConfig)
    store.store(name="prepare_schema", node=PrepareConfig)
    store.store(name="gpu_check_schema", node=GpuCheckConfig)
    store.store(group="data", name="schema", node=DataConfig)
    store.store(group="model", name="schema", node=ModelConfig)
    store.store(group="optimizer", name="schema", node=OptimizerConfig)
    store.store(group="transform", name="train_schema", node=_with_sizes(TrainTransform))
    store.store(group="transform", name="eval_schema", node=EvalTransform)
    store.store(group="transform", name="padded_crop_schema", node=_with_sizes(PaddedCropTransform))
    for name, loader in LOADERS.items():
        store.store(group="loader", name=f"{name}_schema", node=loader)


def _with_sizes(transform: type) -> Any:
    """The schema; `sizes` takes epochs that are not in it yet, which Hydra refuses otherwise."""
    from omegaconf import OmegaConf

    node = OmegaConf.structured(transform)
    OmegaConf.set_struct(node.sizes, False)
    return node
