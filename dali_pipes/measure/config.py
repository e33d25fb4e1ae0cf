"""The options of every measurement."""

from dataclasses import dataclass, field
from typing import Any

from dali_pipes.checks import check_choice, check_int, check_number
from dali_pipes.data.config import DataConfig
from dali_pipes.errors import ConfigError
from dali_pipes.options import check_options, option
from dali_pipes.plan.transforms import views_of
from dali_pipes.system.cpus import available_cpus
from dali_pipes.training.config import ModelConfig


def _check_cpus(option: str, value: Any) -> None:
    if not 1 <= check_int(option, value) <= available_cpus():
        raise ConfigError(f"{option} is {value}; this process may use 1 to {available_cpus()}")


@dataclass(kw_only=True, slots=True)
class MeasureConfig:
    """What is loaded, and how long and how often it is measured. docs/method.md explains each rule
    of the protocol.

    Attributes:
        workload: "loader" takes batches as fast as they come, "train" runs a training step on each.
        model: the network of workload=train; None: resnet50 on a GPU, without one
            shufflenet_v2_x0_5.
        cpus: cores for each trial; None: all that this process may use.
        batch_size: images per batch and job.
        seed: for the order of the samples, all random choices, and the order of the trials.
        pairs: rounds of trials; in each round every loader is measured once, and ratios are taken
            within a round. With fewer than 5 there is no interval, and no loader is called faster.
        min_seconds, min_batches: how long a trial is measured at least.
        max_warmup_seconds: a trial that is not steady by then is measured anyway, and the report
            says so.
        images: how many of the data set's images are used at most; all of them are read into the
            page cache first.
        agreement_images: images that are compared pixel by pixel; 0: none.
        overrides: what was given on the command line.
    """

    data: DataConfig = field(default_factory=DataConfig)
    transform: Any = None
    loader: Any = None
    workload: str = option("loader", check_choice, ("loader", "train"))
    model: ModelConfig = field(default_factory=lambda: ModelConfig(name=None))
    cpus: int | None = option(None, _check_cpus)
    batch_size: int = option(64, check_int, 1)
    seed: int = option(0, check_int, 0, 2**63 - 1)
    pairs: int = option(6, check_int, 1)
    min_seconds: float = option(4.0, check_number, 0)
    min_batches: int = option(8, check_int, 1)
    max_warmup_seconds: float = option(20.0, check_number, 0)
    images: int = option(20_000, check_int, 1)
    agreement_images: int = option(128, check_int, 0)
    overrides: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_options(self)

        if getattr(self.transform, "sizes", None):
            raise ConfigError(
                "transform.sizes changes the work from epoch to epoch; compare loaders at one "
                "transform.size"
            )

        if (
            self.workload == "train"
            and self.transform is not None
            and len(views_of(self.transform)) > 1
        ):
            raise ConfigError(
                "workload=train would train on the first of several views only; measure them "
                "with workload=loader"
            )

        if self.model.compile or not self.model.channels_last:
            raise ConfigError(
                "the step of workload=train is channels_last and not compiled; only model.name "
                "can be chosen"
            )


@dataclass(kw_only=True, slots=True)
class LoadersConfig(MeasureConfig):
    """A measurement of loaders that have to make the same pixels.

    Attributes:
        loader_name: the name given with loader=NAME.
        max_mean_difference, max_p99_difference: the largest mean and 99th percentile of
            |difference| over `agreement_images`, in steps of 1/255; loaders that differ by more are
            not timed. Those that upsample chroma in another way than the reference may differ by
            1.5 and 12 (docs/pixels.md).
    """

    loader_name: str = "loader"
    max_mean_difference: float = option(0.25, check_number, 0)
    max_p99_difference: float = option(2.0, check_number, 0)
