"""Every script's options by their name in conf/: `register()` makes the schemas known to Hydra."""

from typing import Any

from dali_pipes.backends.registry import backends
from dali_pipes.data.config import DataConfig
from dali_pipes.measure.config import BenchmarkConfig
from dali_pipes.plan.transforms import EvalTransform, PaddedCropTransform, TrainTransform
from dali_pipes.tools.diagnosis.config import DiagnoseConfig
from dali_pipes.tools.doctor.config import DoctorConfig
from dali_pipes.tools.preparation.config import PrepareConfig
from dali_pipes.tools.preview import PreviewConfig
from dali_pipes.tools.scan import ScanConfig
from dali_pipes.tools.tuning.config import TuneConfig
from dali_pipes.training.config import ModelConfig, OptimizerConfig, TrainConfig


def register() -> None:
    """Puts the schemas into Hydra's ConfigStore, and the resolver `repo:` for paths inside the checkout."""
    from pathlib import Path

    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("repo", lambda path: str(Path(__file__).parents[2] / path), replace=True)
    store = ConfigStore.instance()
    store.store(name="scan_schema", node=ScanConfig)
    store.store(name="preview_schema", node=PreviewConfig)
    store.store(name="benchmark_schema", node=BenchmarkConfig)
    store.store(name="train_schema", node=TrainConfig)
    store.store(name="diagnose_schema", node=DiagnoseConfig)
    store.store(name="doctor_schema", node=DoctorConfig)
    store.store(name="tune_schema", node=TuneConfig)
    store.store(name="prepare_schema", node=PrepareConfig)
    store.store(group="data", name="schema", node=DataConfig)
    store.store(group="model", name="schema", node=ModelConfig)
    store.store(group="optimizer", name="schema", node=OptimizerConfig)
    store.store(group="transform", name="train_schema", node=_with_sizes(TrainTransform))
    store.store(group="transform", name="eval_schema", node=EvalTransform)
    store.store(group="transform", name="padded_crop_schema", node=_with_sizes(PaddedCropTransform))
    for name, entry in backends().items():
        store.store(group="loader", name=f"{name}_schema", node=entry.config)


def _with_sizes(transform: type) -> Any:
    """The schema; `sizes` takes epochs that are not in it yet, which Hydra refuses otherwise."""
    from omegaconf import OmegaConf

    node = OmegaConf.structured(transform)
    OmegaConf.set_struct(node.sizes, False)
    return node
