"""What each script is told; `register()` makes the schemas known to Hydra."""

from dataclasses import dataclass, field
from typing import Any

from dali_pipes.config import (
    CachedConfig,
    DaliConfig,
    DaliNativeConfig,
    DataConfig,
    SyntheticConfig,
    TfDataConfig,
    TorchConfig,
    TorchvisionGpuConfig,
    at_least,
    one_of,
)
from dali_pipes.cpus import available_cpus
from dali_pipes.diagnosis.config import DiagnoseConfig
from dali_pipes.errors import ConfigError
from dali_pipes.gpu_check.config import GpuCheckConfig
from dali_pipes.headers import MAX_PIXELS
from dali_pipes.preparation.config import PrepareConfig
from dali_pipes.training.config import ModelConfig, OptimizerConfig, TrainConfig
from dali_pipes.transforms import EvalTransform, PaddedCropTransform, TrainTransform


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


@dataclass(kw_only=True, slots=True)
class BenchmarkConfig:
    """scripts/benchmark.py. docs/method.md says why each rule of the protocol is there.

    Attributes:
        loader: one more arm, under the name of the option chosen by `loader=`; in `arms` it is called "loader".
        loader_name: that name.
        loaders: a loader config for each other name.
        arms: what to compare.
        baseline: the arm that the others are compared with; None: the first that makes its images.
        workload: "loader" takes batches as fast as they come, "train" takes a training step with each, "cold" is one epoch from
            files that are not in the page cache.
        model: its name, for "train"; None: resnet50 on a GPU, shufflenet_v2_x0_5 without one.
        corun: jobs at once on this machine, each on a GPU of its own as far as there are any.
        cpus: cores for each arm; None: all that this process may use.
        pairs: blocks of every arm; a ratio is taken within each round of blocks. Fewer than 5 give no interval and no claim.
        minutes: from the start of the program; no round is begun that would end later, if there is one already. None: all `pairs`
            are run.
        min_seconds, min_batches: how long a block is measured at least.
        max_warmup_seconds: after that a block that is not steady yet is measured as it is, and reported as never steady.
        restart: every block is a new process. Without, the processes of an arm sleep between its blocks: quicker, but what differs
            from start to start is not averaged out.
        images: how many of the data set's images are used at most; all of them are read into the page cache first.
        agreement_images: images that the arms are compared on, pixel by pixel, before anything is timed; 0: none.
        max_mean_difference, max_p99_difference: the largest mean and 99th percentile of that |difference|, in steps of 1/255.
        out: folder for the report; a subfolder is made for each run.
        overrides: what was given on the command line.
    """

    data: DataConfig = field(default_factory=DataConfig)
    transform: Any = None
    loader: Any = None
    loader_name: str = "loader"
    loaders: dict[str, Any] = field(default_factory=dict)
    arms: list[str] = field(default_factory=lambda: ["torch", "loader"])
    baseline: str | None = None
    workload: str = "loader"
    model: ModelConfig = field(default_factory=lambda: ModelConfig(name=None))
    corun: int = 1
    cpus: int | None = None
    batch_size: int = 64
    seed: int = 0
    pairs: int = 6
    minutes: float | None = None
    min_seconds: float = 4.0
    min_batches: int = 8
    max_warmup_seconds: float = 20.0
    restart: bool = True
    images: int = 20_000
    agreement_images: int = 128
    max_mean_difference: float = 0.25
    max_p99_difference: float = 2.0
    out: str = "runs/benchmark"
    overrides: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        one_of("workload", self.workload, ("loader", "train", "cold"))
        if getattr(self.transform, "sizes", None):
            raise ConfigError("transform.sizes changes the work from epoch to epoch; compare loaders at one transform.size")
        if self.workload == "cold" and self.corun > 1:
            raise ConfigError("workload=cold reads every file once; corun would find in memory what the other job has read")
        if self.model.compile or not self.model.channels_last:
            raise ConfigError("the step of workload=train is channels_last and not compiled; only model.name can be chosen")
        if self.workload == "cold" and not self.restart:
            raise ConfigError("workload=cold is one epoch for each block; it needs restart=true")
        for option in ("corun", "batch_size", "pairs", "min_batches", "images"):
            at_least(option, getattr(self, option), 1)
        at_least("agreement_images", self.agreement_images, 0)
        at_least("minutes", self.minutes, 0)
        at_least("min_seconds", self.min_seconds, 0)
        at_least("max_warmup_seconds", self.max_warmup_seconds, 0)
        if "loader" in self.arms:
            self.loaders = self.loaders | {self.loader_name: self.loader}
            self.arms = [self.loader_name if arm == "loader" else arm for arm in self.arms]
        if not self.arms or len(set(self.arms)) < len(self.arms):
            raise ConfigError(f"arms is {list(self.arms)}; name at least one loader, and each only once")
        for arm in self.arms:
            one_of("an arm", arm, tuple(self.loaders))
        if self.baseline is not None:
            one_of("baseline", self.baseline, tuple(self.arms))
        if self.cpus is not None and not 1 <= self.cpus <= available_cpus():
            raise ConfigError(f"cpus is {self.cpus}; this process may use 1 to {available_cpus()}")


@dataclass(kw_only=True, slots=True)
class DoctorConfig:
    """scripts/doctor.py.

    Attributes:
        data: images whose storage is looked at; none: storage is not.
        split: "train" or "val".
        num_workers: worker processes that memory and limits must suffice for; None: the cores that this process may use.
        batch_size: of one GPU.
        images_per_s: what the storage must give.
        limit_s: a check in a process of its own that takes longer hangs.
    """

    data: DataConfig = field(default_factory=DataConfig)
    split: str = "train"
    num_workers: int | None = None
    batch_size: int = 256
    images_per_s: float = 1000.0
    limit_s: float = 120.0

    def __post_init__(self) -> None:
        one_of("split", self.split, ("train", "val"))
        at_least("num_workers", self.num_workers, 0)
        at_least("batch_size", self.batch_size, 1)
        at_least("images_per_s", self.images_per_s, 0)
        at_least("limit_s", self.limit_s, 1)


@dataclass(kw_only=True, slots=True)
class SearchConfig:
    """The values that scripts/tune.py tries of each option; None: those that make sense on this machine.

    Attributes:
        num_workers, prefetch_factor: of loader=torch.
        num_threads, prefetch_queue_depth: of loader=dali.
        hw_decoder_load, decode: of loader=dali on a GPU.
    """

    num_workers: list[int] | None = None
    prefetch_factor: list[int] | None = None
    num_threads: list[int] | None = None
    prefetch_queue_depth: list[int] | None = None
    hw_decoder_load: list[float] | None = None
    decode: list[str] | None = None


@dataclass(kw_only=True, slots=True)
class TuneConfig:
    """scripts/tune.py. docs/tune.md says how the search goes.

    Attributes:
        loader: where the search starts, and what its winner is compared with: the default.
        loader_name: the option chosen by `loader=`.
        batch_sizes: tried besides `batch_size`.
        workload: "loader" takes batches as fast as they come, "train" takes a training step with each.
        model: its name, for "train"; None: resnet50 on a GPU, shufflenet_v2_x0_5 without one.
        cpus: cores that may be used; None: all that this process may use.
        minutes: how long the search takes at most; the comparison that follows takes `pairs` × 3 blocks.
        max_cpus: cores used on average.
        max_cpu_s_per_1000_images: CPU seconds of the whole process tree.
        max_memory_mib: host memory, PSS of the whole process tree.
        max_gpu_memory_mib: in use on the GPU, by whomever.
        pairs: blocks of the winner and of the default in the comparison. Fewer than 5 give no interval, and the default stays.
        min_seconds, min_batches, max_warmup_seconds, images, agreement_images: as for the benchmark.
        host: what the written file is called after, tuned_HOST.yaml; None: this machine's name.
        into: the folder that it is written into.
        out: folder for the runs; a subfolder is made for each.
        overrides: what was given on the command line.
    """

    data: DataConfig = field(default_factory=DataConfig)
    transform: Any = None
    loader: Any = None
    loader_name: str = "dali"
    search: SearchConfig = field(default_factory=SearchConfig)
    batch_size: int = 64
    batch_sizes: list[int] = field(default_factory=list)
    workload: str = "loader"
    model: ModelConfig = field(default_factory=lambda: ModelConfig(name=None))
    cpus: int | None = None
    seed: int = 0
    minutes: float = 10.0
    max_cpus: float | None = None
    max_cpu_s_per_1000_images: float | None = None
    max_memory_mib: float | None = None
    max_gpu_memory_mib: float | None = None
    pairs: int = 6
    min_seconds: float = 3.0
    min_batches: int = 8
    max_warmup_seconds: float = 10.0
    images: int = 20_000
    agreement_images: int = 128
    host: str | None = None
    into: str = "conf/loader"
    out: str = "runs/tune"
    overrides: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        one_of("workload", self.workload, ("loader", "train"))
        at_least("minutes", self.minutes, 0)
        for size in self.batch_sizes:
            at_least("one of batch_sizes", size, 1)

    def benchmark(self, loaders: dict[str, Any]) -> BenchmarkConfig:
        """The A/B of these loaders on the same work; it checks the options that both have.

        Raises:
            ConfigError: one of them cannot work.
        """
        timing = ("pairs", "min_seconds", "min_batches", "max_warmup_seconds", "images", "agreement_images")
        names = ("data", "transform", "workload", "model", "cpus", "batch_size", "seed", *timing)
        return BenchmarkConfig(loaders=loaders, arms=list(loaders), **{name: getattr(self, name) for name in names})


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
