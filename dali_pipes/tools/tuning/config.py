"""Options of dali-pipes tune."""

from dataclasses import dataclass, field

from dali_pipes.checks import check_choice, check_min
from dali_pipes.measure.config import LoadersConfig
from dali_pipes.options import check_options, option


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

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(kw_only=True, slots=True)
class TuneConfig(LoadersConfig):
    """dali-pipes tune. docs/tune.md explains the search.

    Attributes:
        function: module:function, which takes no arguments and returns your DataLoader: images,
            transform and batch size are its own, and with loader=torch the search starts from its
            number of workers; None: the images are those of `data`.
        loader: the default: the search starts from it, and the winner is compared with it.
        batch_sizes: sizes that are tried besides `batch_size`.
        minutes: time limit of the search; the comparison that follows takes `pairs` × 3 trials.
            With fewer than 5 pairs the default stays.
        max_cpus: limit of the cores used on average.
        max_cpu_s_per_1000_images: limit of the CPU seconds of the whole process tree.
        max_memory_mib: limit of the host memory, PSS of the whole process tree.
        max_gpu_memory_mib: limit of the memory in use on the GPU, by any program.
        host: part of the file's name, tuned_HOST.yaml; None: this machine's name.
        into: folder for that file.
        out: folder for the runs; a subfolder is made for each.
    """

    workload: str = option("loader", check_choice, ("loader", "train"))
    function: str | None = None
    loader_name: str = "dali"
    search: SearchConfig = field(default_factory=SearchConfig)
    batch_sizes: list[int] = field(default_factory=list)
    minutes: float = option(10.0, check_min, 0.1)
    max_cpus: float | None = option(None, check_min, 0)
    max_cpu_s_per_1000_images: float | None = option(None, check_min, 0)
    max_memory_mib: float | None = option(None, check_min, 0)
    max_gpu_memory_mib: float | None = option(None, check_min, 0)
    min_seconds: float = option(3.0, check_min, 0)
    max_warmup_seconds: float = option(10.0, check_min, 0)
    host: str | None = None
    into: str = "conf/loader"
    out: str = "runs/tune"

    def __post_init__(self) -> None:
        LoadersConfig.__post_init__(self)
        for size in self.batch_sizes:
            check_min("one of batch_sizes", size, 1)
