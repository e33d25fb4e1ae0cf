"""Options of dali-pipes benchmark."""

from dataclasses import dataclass, field
from typing import Any

from dali_pipes.backends.config import LoaderConfig
from dali_pipes.checks import check_choice, check_int, check_number
from dali_pipes.errors import ConfigError
from dali_pipes.measure.arms import DataLoaderConfig, arm_of
from dali_pipes.measure.config import LoadersConfig
from dali_pipes.options import option

# options whose values come from the user's DataLoader begin with these
_OWN = ("batch_size", "transform", "data.train", "data.val", "data.root", "data=")


@dataclass(kw_only=True, slots=True)
class BenchmarkConfig(LoadersConfig):
    """dali-pipes benchmark.

    Attributes:
        loader: one more loader to compare, under the name given with loader=NAME; in `arms` it is
            called "loader".
        loaders: a loader config for each other name.
        function: module:function, which takes no arguments and returns your DataLoader. `arms`
            begins with it, as `yours`, and each other arm is what from_torch makes of it with that
            loader; None: the images are those of `data`.
        arms: what to compare: names of `loaders`, and "loader".
        baseline: the arm that the others are compared with; None: the first that loads real images.
        corun: jobs at once on this machine, each on a separate GPU as far as there are enough.
        minutes: time limit from the start of the program: after the first round, no round begins
            that would end later. None: all `pairs` are run.
        restart: every trial is a new process. If false, an arm's processes are suspended between
            its trials: faster, but differences between process starts are not averaged out.
        out: folder for the report; a subfolder is made for each run.
    """

    loaders: dict[str, Any] = field(default_factory=dict)
    function: str | None = None
    arms: list[str] = field(default_factory=lambda: ["torch", "loader"])
    baseline: str | None = None
    corun: int = option(1, check_int, 1)
    minutes: float | None = option(None, check_number, 0)
    restart: bool = True
    out: str = "runs/benchmark"

    def __post_init__(self) -> None:
        LoadersConfig.__post_init__(self)

        # in the report the arm has the name that was given with loader=NAME
        if "loader" in self.arms:
            self.loaders = self.loaders | {self.loader_name: self.loader}
            self.arms = [self.loader_name if arm == "loader" else arm for arm in self.arms]

        if not self.arms or len(set(self.arms)) < len(self.arms):
            raise ConfigError(
                f"arms is {list(self.arms)}; name at least one loader, and each only once"
            )
        names = ("yours",) if self.function else ()
        for arm in self.arms:
            check_choice("an arm", arm, (*names, *self.loaders))
        if self.function:
            self._check_function(self.function)

        if self.baseline is not None:
            check_choice("baseline", self.baseline, tuple(self.arms))

    def _check_function(self, function: str) -> None:
        """Checks what is compared with the user's DataLoader, and puts it first among the arms."""
        if ":" not in function:
            raise ConfigError(
                f"function is {function}; it takes module:function, which makes your DataLoader: "
                "dali-pipes benchmark my_train:make_loader"
            )
        # Hydra's + and ~ add an option and remove it
        given = [each for each in self.overrides if each.lstrip("+~").startswith(_OWN)]
        if given:
            raise ConfigError(
                f"{given[0]}: images, transform and batch size are those of your DataLoader; leave "
                "it out"
            )

        others = [arm for arm in self.arms if arm != "yours"]
        if wrong := [arm for arm in others if arm_of(type(self.loaders[arm]))]:
            raise ConfigError(
                f"arm {wrong[0]} exists only to be compared, and cannot make the batches of your "
                "DataLoader; name loaders that one trains with, such as dali or torch"
            )
        self.arms = ["yours", *others]

    def loader_of(self, arm: str) -> LoaderConfig:
        """The options of an arm."""
        if not self.function:
            return self.loaders[arm]
        return DataLoaderConfig(function=self.function, made_by=self.loaders.get(arm))
