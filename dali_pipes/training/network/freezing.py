"""What of a network is not trained: patterns of the names of its parameters."""

from collections.abc import Sequence
from fnmatch import fnmatch
from types import MethodType

from torch import nn

from dali_pipes.errors import ConfigError


def freeze(module: nn.Module, patterns: Sequence[str], head: str) -> float:
    """Leaves parameters out of the training, and returns the share of the weights that is trained.

    A part of which nothing is trained stays in evaluation mode, so that its running statistics stay
    what they are, and it drops nothing out.

    Args:
        patterns: of parameters' names, such as layer1.*; backbone.* is everything but the head
            where no name begins with that word.
        head: as from `find_head`.

    Raises:
        ConfigError: a pattern is of no parameter, or nothing would be trained.
    """
    named = dict(module.named_parameters())
    for pattern in patterns:
        matched = [name for name in named if fnmatch(name, pattern)]
        if not matched and pattern in ("backbone", "backbone.*") and head:
            matched = [name for name in named if not name.startswith(f"{head}.")]
        if not matched:
            parts = ", ".join(f"{each}.*" for each, _ in module.named_children())
            raise ConfigError(
                f"model.freeze={pattern} is of no parameter of the network; its parts are {parts}"
            )
        for name in matched:
            named[name].requires_grad_(False)

    trained = sum(each.numel() for each in named.values() if each.requires_grad)
    if not trained:
        raise ConfigError(
            f"model.freeze=[{','.join(patterns)}] leaves nothing to train; leave a part out of it, "
            "such as backbone.* for all but the head"
        )
    if patterns:
        _keep_in_evaluation(module)
    return trained / sum(each.numel() for each in named.values())


def _keep_in_evaluation(module: nn.Module) -> None:
    parameters = list(module.parameters())
    if parameters and not any(each.requires_grad for each in parameters):
        # a method of the object, so that a copy of it has one of its own
        module.train = MethodType(_train_nothing, module)  # type: ignore[method-assign]
        module.eval()
        return
    for child in module.children():
        _keep_in_evaluation(child)


def _train_nothing(module: nn.Module, mode: bool = True) -> nn.Module:
    for each in module.children():
        each.train(False)
    module.training = False
    return module
