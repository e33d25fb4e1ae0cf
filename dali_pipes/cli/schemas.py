"""Every job's options by their name in conf/: `register()` makes the schemas known to Hydra."""

from pathlib import Path
from typing import Any

from dali_pipes.backends.registry import backends
from dali_pipes.cli.conf import demo_images, tuned_loaders
from dali_pipes.data.config import DataConfig
from dali_pipes.plan.detection import IoUCropTransform, LetterboxTransform, ScaleJitterTransform, ShortestSizeTransform
from dali_pipes.plan.sampling import SAMPLINGS
from dali_pipes.plan.transforms import CenterCropTransform, EvalTransform, RandomCropTransform, TrainTransform
from dali_pipes.plan.views import ViewsTransform
from dali_pipes.tools.benchmark.config import BenchmarkConfig, MigrateConfig
from dali_pipes.tools.diagnosis.config import DiagnoseConfig
from dali_pipes.tools.doctor.config import DoctorConfig
from dali_pipes.tools.predict.config import PredictConfig
from dali_pipes.tools.preparation.config import PrepareConfig
from dali_pipes.tools.preview.run import PreviewConfig
from dali_pipes.tools.scan.run import ScanConfig
from dali_pipes.tools.tuning.config import TuneConfig
from dali_pipes.training.config import ModelConfig, OptimizerConfig, TrainConfig

_TRANSFORMS: dict[str, type] = {
    "train": TrainTransform,
    "eval": EvalTransform,
    "center_crop": CenterCropTransform,
    "random_crop": RandomCropTransform,
    "shortest_size": ShortestSizeTransform,
    "letterbox": LetterboxTransform,
    "iou_crop": IoUCropTransform,
    "scale_jitter": ScaleJitterTransform,
    "views": ViewsTransform,
}


def register(users: Path | None = None) -> None:
    """Makes the schemas and the resolvers of conf/ known to Hydra; `users` is the user's own folder of configurations."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("tuned_loaders", lambda: str(tuned_loaders(users)), replace=True)
    OmegaConf.register_new_resolver("demo_images", lambda: str(demo_images()), replace=True)
    store = ConfigStore.instance()
    store.store(name="scan_schema", node=ScanConfig)
    store.store(name="preview_schema", node=PreviewConfig)
    store.store(name="benchmark_schema", node=BenchmarkConfig)
    store.store(name="migrate_schema", node=MigrateConfig)
    store.store(name="train_schema", node=TrainConfig)
    store.store(name="predict_schema", node=PredictConfig)
    store.store(name="diagnose_schema", node=DiagnoseConfig)
    store.store(name="doctor_schema", node=DoctorConfig)
    store.store(name="tune_schema", node=TuneConfig)
    store.store(name="prepare_schema", node=PrepareConfig)
    store.store(group="data", name="schema", node=DataConfig)
    store.store(group="model", name="schema", node=ModelConfig)
    store.store(group="optimizer", name="schema", node=OptimizerConfig)
    for name, transform in _TRANSFORMS.items():
        store.store(group="transform", name=f"{name}_schema", node=_with_epochs(transform, "sizes"))
    for name, sampling in SAMPLINGS.items():
        store.store(group="sampling", name=f"{name}_schema", node=_with_epochs(sampling, "schedule"))
    for name, entry in backends().items():
        store.store(group="loader", name=f"{name}_schema", node=entry.config)


def _with_epochs(schema: type, name: str) -> Any:
    """The schema; its option of this name, if it has it, takes epochs that are not in it yet, which Hydra refuses otherwise."""
    from omegaconf import OmegaConf

    node = OmegaConf.structured(schema)
    if name in node:
        OmegaConf.set_struct(node[name], False)
    return node
