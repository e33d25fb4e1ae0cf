"""Options of dali-pipes diagnose."""

from dataclasses import dataclass
from typing import ClassVar

from dali_pipes.checks import check_int, check_number
from dali_pipes.errors import ConfigError
from dali_pipes.options import option
from dali_pipes.training.config import TrainConfig


@dataclass(kw_only=True, slots=True)
class DiagnoseConfig(TrainConfig):
    """dali-pipes diagnose: the options of dali-pipes train and of the measurement. Nothing is
    learned, and no checkpoint is read.

    Attributes:
        rounds: how often each part is measured; the confidence follows from how many of them agree.
        seconds: minimum duration of each measurement; at least three steps are taken.
        images: how many of the images are used at most.
        cold: also train on files that are not in the page cache.
        verify: run the first fix, and report its gain beside the prediction.
        verify_pairs: how often before and after are run, alternately.
        corun: number of training programs that run at the same time on this machine; 1: this one
            alone.
    """

    SELDOM: ClassVar = ("epochs", "optimizer.lr", "resume")

    rounds: int = option(3, check_int, 1)
    seconds: float = option(3.0, check_number, 0.1)
    images: int = option(20_000, check_int, 1)
    cold: bool = True
    verify: bool = False
    verify_pairs: int = option(3, check_int, 1)
    corun: int = option(1, check_int, 1)
    out: str | None = "runs/diagnose"

    def __post_init__(self) -> None:
        TrainConfig.__post_init__(self)
        if self.function:
            raise ConfigError(
                f"function={self.function} is for dali-pipes train; diagnose trains the network of "
                "model=, or runs a program as it is: dali-pipes diagnose -- train.py ARGS"
            )
        if getattr(self.transform, "sizes", None):
            raise ConfigError(
                "transform.sizes changes the work from epoch to epoch; diagnose one "
                "transform.size at a time"
            )
