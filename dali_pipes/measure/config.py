"""Options of scripts/benchmark.py."""

from dataclasses import dataclass, field
from typing import Any

from dali_pipes.data.config import DataConfig
from dali_pipes.errors import ConfigError, check_choice, check_min
from dali_pipes.system.cpus import available_cpus
from dali_pipes.training.config import ModelConfig


@dataclass(kw_only=True, slots=True)
class BenchmarkConfig:
    """scripts/benchmark.py. docs/method.md explains each rule of the protocol.

    Attributes:
        loader: one more arm, under the name of the option chosen by `loader=`; in `arms` it is called "loader".
        loader_name: that name.
        loaders: a loader config for each other name.
        arms: what to compare.
        baseline: the arm that the others are compared with; None: the first that loads real images.
        workload: "loader" takes batches as fast as they come, "train" runs a training step on each, "cold" is one epoch from
            files that are not in the page cache.
        model: its name, for "train"; None: resnet50 on a GPU, shufflenet_v2_x0_5 without one.
        corun: jobs at once on this machine, each on a separate GPU as far as there are enough.
        cpus: cores for each arm; None: all that this process may use.
        batch_size: images per batch and job.
        seed: for the order of the samples, all random draws, and the order of the trials.
        pairs: rounds of trials, one trial of every arm in each; ratios are taken within a round. Fewer than 5 give no interval and
            no claim.
        minutes: time limit from the start of the program: after the first round, no round begins that would end later. None: all
            `pairs` are run.
        min_seconds, min_batches: how long a trial is measured at least.
        max_warmup_seconds: a trial that is not steady by then is measured anyway, and reported as never steady.
        restart: every trial is a new process. If false, an arm's processes are suspended between its trials: faster, but
            differences between process starts are not averaged out.
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
        check_choice("workload", self.workload, ("loader", "train", "cold"))
        if getattr(self.transform, "sizes", None):
            raise ConfigError("transform.sizes changes the work from epoch to epoch; compare loaders at one transform.size")
        if self.workload == "cold" and self.corun > 1:
            raise ConfigError("workload=cold reads every file once; corun would find in memory what the other job has read")
        if self.model.compile or not self.model.channels_last:
            raise ConfigError("the step of workload=train is channels_last and not compiled; only model.name can be chosen")
        if self.workload == "cold" and not self.restart:
            raise ConfigError("workload=cold is one epoch for each trial; it needs restart=true")
        for option in ("corun", "batch_size", "pairs", "min_batches", "images"):
            check_min(option, getattr(self, option), 1)
        check_min("agreement_images", self.agreement_images, 0)
        check_min("minutes", self.minutes, 0)
        check_min("min_seconds", self.min_seconds, 0)
        check_min("max_warmup_seconds", self.max_warmup_seconds, 0)
        if "loader" in self.arms:
            self.loaders = self.loaders | {self.loader_name: self.loader}
            self.arms = [self.loader_name if arm == "loader" else arm for arm in self.arms]
        if not self.arms or len(set(self.arms)) < len(self.arms):
            raise ConfigError(f"arms is {list(self.arms)}; name at least one loader, and each only once")
        for arm in self.arms:
            check_choice("an arm", arm, tuple(self.loaders))
        if self.baseline is not None:
            check_choice("baseline", self.baseline, tuple(self.arms))
        if self.cpus is not None and not 1 <= self.cpus <= available_cpus():
            raise ConfigError(f"cpus is {self.cpus}; this process may use 1 to {available_cpus()}")
