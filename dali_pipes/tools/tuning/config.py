"""Options of scripts/tune.py."""

from dataclasses import dataclass, field
from typing import Any

from dali_pipes.data.config import DataConfig
from dali_pipes.errors import check_choice, check_min
from dali_pipes.measure.config import BenchmarkConfig
from dali_pipes.training.config import ModelConfig


@dataclass(kw_only=True, slots=True)
class SearchConfig:
    """The values that `dali-pipes tune` tries of each option; None: values that suit this machine.

    Attributes:
        num_workers, prefetch_factor: of loader=torch.
        num_threads, prefetch_queue_depth: of loader=dali.
        hw_decoder_load, decode, hybrid_huffman_threshold: of loader=dali on a GPU.
    """

    num_workers: list[int] | None = None
    prefetch_factor: list[int] | None = None
    num_threads: list[int] | None = None
    prefetch_queue_depth: list[int] | None = None
    hw_decoder_load: list[float] | None = None
    decode: list[str] | None = None
    hybrid_huffman_threshold: list[int] | None = None


@dataclass(kw_only=True, slots=True)
class TuneConfig:
    """scripts/tune.py. docs/tune.md explains the search.

    Attributes:
        loader: the default: the search starts from it, and the winner is compared with it.
        loader_name: the option chosen by `loader=`.
        batch_size: images per batch.
        batch_sizes: tried besides `batch_size`.
        seed: for the order of the samples, all random draws, and the order of the trials.
        workload: "loader" takes batches as fast as they come, "train" runs a training step on each.
        model: its name, for "train"; None: resnet50 on a GPU, shufflenet_v2_x0_5 without one.
        cpus: cores that may be used; None: all that this process may use.
        minutes: time limit of the search; the comparison that follows takes `pairs` × 3 trials.
        max_cpus: cores used on average.
        max_cpu_s_per_1000_images: CPU seconds of the whole process tree.
        max_memory_mib: host memory, PSS of the whole process tree.
        max_gpu_memory_mib: in use on the GPU, by any program.
        pairs: trials of the winner and of the default in the comparison. Fewer than 5 give no interval, and the default stays.
        min_seconds, min_batches, max_warmup_seconds, images, agreement_images: as for the benchmark.
        host: part of the file's name, tuned_HOST.yaml; None: this machine's name.
        into: folder for that file.
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
        check_choice("workload", self.workload, ("loader", "train"))
        check_min("minutes", self.minutes, 0)
        for size in self.batch_sizes:
            check_min("one of batch_sizes", size, 1)

    def benchmark(self, loaders: dict[str, Any]) -> BenchmarkConfig:
        """The A/B of these loaders on the same work; it checks the options that both have.

        Raises:
            ConfigError: one of them cannot work.
        """
        timing = ("pairs", "min_seconds", "min_batches", "max_warmup_seconds", "images", "agreement_images")
        names = ("data", "transform", "workload", "model", "cpus", "batch_size", "seed", *timing)
        return BenchmarkConfig(loaders=loaders, arms=list(loaders), **{name: getattr(self, name) for name in names})
