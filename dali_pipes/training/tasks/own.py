"""A task that is the user's own object, made by a function that is named on the command line."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.loader.batch import Batch
from dali_pipes.system.functions import import_function
from dali_pipes.training.config import TrainConfig
from dali_pipes.training.tasks.task import Measured, Task

# what the function is called with
ARGUMENTS = ("config", "manifest")


class OwnTask(Task):
    """The user's object as a task.

    Args:
        function: its name on the command line, for messages.
        made: has `step(batch)`, which returns the loss, and may have `evaluate(batch)`, which
            returns measurements by name. It is an nn.Module, or has some as attributes.

    Raises:
        ConfigError: it has no step, or nothing to train.
    """

    name: ClassVar[str] = "own"

    def __init__(self, function: str, made: Any):
        super().__init__()
        self._function, self._made = function, made
        for part in ("step", "evaluate"):
            if hasattr(made, part) and not callable(getattr(made, part)):
                raise ConfigError(f"function={function}: {part} of what it returns is no method")
        # a LightningModule brings its optimizers and hooks, which are its Trainer's to call
        if not hasattr(made, "step") and hasattr(made, "training_step"):
            raise ConfigError(
                f"function={function} returns {type(made).__name__}, which is a LightningModule; "
                "train it with Lightning's Trainer and dali_pipes.adapters.lightning.DataModule"
            )
        if not hasattr(made, "step"):
            raise ConfigError(
                f"function={function} returns {type(made).__name__}, which has no step(batch); it "
                "must return an object with step(batch), which returns the loss"
            )

        if not isinstance(made, nn.Module):
            # its modules are known by their names, and are not held twice
            parts = {name: each for name, each in vars(made).items() if isinstance(each, nn.Module)}
            if hidden := [name for name, each in vars(made).items() if _hides_weights(each)]:
                raise ConfigError(
                    f"function={function}: {type(made).__name__}.{hidden[0]} would be neither "
                    "trained nor saved, since of an object that is no nn.Module only the "
                    f"attributes that are modules are known; make {type(made).__name__} an "
                    "nn.Module, or keep several modules in an nn.ModuleList"
                )
            if taken := [name for name in parts if hasattr(nn.ModuleDict, name)]:
                raise ConfigError(
                    f"function={function}: {type(made).__name__}.{taken[0]} has a name that "
                    f"nn.ModuleDict has too; give it another, or make {type(made).__name__} an "
                    "nn.Module"
                )
            self._network: nn.Module = nn.ModuleDict(parts)
        else:
            self._network = made
        if not any(each.requires_grad for each in self._network.parameters()):
            raise ConfigError(
                f"function={function} returns {type(made).__name__}, which has nothing to train; "
                "it must be an nn.Module with parameters, or have such modules as attributes"
            )

    @property
    def network(self) -> nn.Module:
        return self._network

    @property
    def evaluates(self) -> bool:
        return hasattr(self._made, "evaluate")

    def compile(self) -> None:
        raise ConfigError(
            f"model.compile=true is not for function={self._function}; compile what it returns in "
            "the function"
        )

    def step(self, batch: Batch) -> Tensor:
        loss = self._made.step(batch)
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise ConfigError(
                f"function={self._function}: step(batch) returns {_describe(loss)}; it must return "
                "the mean loss of the batch, a tensor of one number with a gradient"
            )
        return loss.reshape(())

    def evaluate(self, batch: Batch) -> Mapping[str, Measured]:
        measured = self._made.evaluate(batch)
        if not isinstance(measured, Mapping) or not measured:
            raise ConfigError(
                f"function={self._function}: evaluate(batch) returns {_describe(measured)}; it "
                "must return numbers by name, such as {'loss': loss}"
            )
        if other := [name for name in measured if not isinstance(name, str)]:
            raise ConfigError(
                f"function={self._function}: evaluate(batch) returns {other[0]!r} as a name; name "
                "what is measured by text"
            )
        return measured


def _hides_weights(value: Any) -> bool:
    """Whether an attribute of an object that is no nn.Module has weights that nobody would find."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return any(isinstance(each, nn.Module) or _hides_weights(each) for each in value)
    return isinstance(value, nn.Parameter)


def _describe(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"an empty {type(value).__name__}" if value == {} else type(value).__name__
    gradient = "" if value.requires_grad else " without a gradient"
    return f"a tensor of shape {tuple(value.shape)}{gradient}"


def make_own(config: TrainConfig, manifest: Manifest) -> OwnTask:
    """Calls the function of `function=` with the options of the run and the training images.

    Raises:
        ConfigError: there is no such function, or what it returns cannot be trained.
    """
    function = str(config.function)
    return OwnTask(function, import_function(function, ARGUMENTS)(config, manifest))
