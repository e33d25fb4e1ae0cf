"""An exponential moving average of a network's weights, updated without waiting for the device.

The training step updates it after every step of the optimizer; its `module` is what is evaluated.
"""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn


class WeightAverage:
    """The average of the weights and of the floating-point buffers over all updates.

    Other buffers, such as counts, are copied from the network.

    PyTorch's AveragedModel counts its updates in a tensor on the CPU, which each update reads and
    copies to the device: the host then waits in every step for all that is queued on the GPU. Here
    the count is Python's.

    Args:
        module: the network; the average is a copy of it until the first update.
        decay: the weight of the average in each update; the network's is 1 - decay.

    Attributes:
        module: the averaged network.
        updates: how often the average was updated.
    """

    def __init__(self, module: nn.Module, decay: float):
        self.module, self.updates, self._decay = deepcopy(module), 0, decay

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Adds the present weights to the average; the first update copies them."""
        averaged, current = _values(self.module), _values(module)
        pairs = list(zip(averaged, current, strict=True))
        for average, value in pairs:
            if self.updates == 0 or not average.is_floating_point():
                average.copy_(value)

        # One call for all tensors of a type, because each call launches kernels: a network has
        # hundreds of small tensors.
        if self.updates:
            for dtype in {average.dtype for average in averaged if average.is_floating_point()}:
                of_type = [pair for pair in pairs if pair[0].dtype == dtype]
                torch._foreach_lerp_(
                    [a for a, _ in of_type], [v for _, v in of_type], 1 - self._decay
                )
        self.updates += 1

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the state under the names of PyTorch's AveragedModel."""
        weights = {f"module.{name}": value for name, value in self.module.state_dict().items()}
        return {
            "n_averaged": torch.tensor(self.updates, dtype=torch.int64, device="cpu"),
            **weights,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what `state_dict` returned, here or of AveragedModel."""
        self.updates = int(state["n_averaged"])
        self.module.load_state_dict(averaged_weights(state))


def averaged_weights(state: dict[str, Any]) -> dict[str, Any]:
    """Returns the network's state dict, taken from the state dict of an average."""
    return {
        name.removeprefix("module."): value
        for name, value in state.items()
        if name.startswith("module.")
    }


def _values(module: nn.Module) -> list[Tensor]:
    return [parameter.detach() for parameter in (*module.parameters(), *module.buffers())]
