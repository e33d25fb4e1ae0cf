"""What the trainer asks of a task."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from dali_pipes.loader.batch import Batch

# a number of each image, (N,), or the mean of the batch; or an object such as a metric of
# torchmetrics, whose import takes seconds
Measured = Tensor | float | object
CONFUSION = "confusion"  # the name of a matrix (classes, classes)
BY_CLASS = "_by_class"  # the end of the name of what is measured for each class


class Task(nn.Module):
    """A network with the loss that a step makes smaller, and with what an evaluation measures.

    Attributes:
        name: what a checkpoint calls the kind of the labels.
        directions: of each measurement that can be monitored, whether more is better ("max") or
            less ("min"); those of an evaluation are under their names in the history.
        monitored: the measurement that says which epoch is the best, unless the user names one.
    """

    name: ClassVar[str]
    directions: ClassVar[Mapping[str, str]] = {"loss": "min", "val_loss": "min"}
    monitored: ClassVar[str] = "val_loss"

    @property
    @abstractmethod
    def network(self) -> nn.Module:
        """What is trained and saved."""

    @property
    def evaluates(self) -> bool:
        """Whether there is something to evaluate."""
        return True

    def begin_evaluation(self) -> None:
        """Makes what `evaluate` needs, before the first batch."""

    @abstractmethod
    def step(self, batch: Batch) -> Tensor:
        """Returns the mean loss of a batch, with a gradient."""

    @abstractmethod
    def evaluate(self, batch: Batch) -> Mapping[str, Measured]:
        """Measures a batch, without gradients and in evaluation mode."""

    def end_evaluation(self) -> None:
        """Brings all metrics up to date, after the last batch."""

    @abstractmethod
    def compile(self) -> None:
        """Lets steps run through torch.compile from now on."""

    # under the network's own names, so that a file of weights fits other programs too
    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:  # type: ignore[override]
        return self.network.state_dict(*args, **options)

    def load_state_dict(self, *args: Any, **options: Any) -> Any:
        return self.network.load_state_dict(*args, **options)
