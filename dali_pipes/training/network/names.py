"""The names of networks: which library has one, or whether it is a folder of Hugging Face."""

from collections.abc import Collection
from pathlib import Path

from dali_pipes.options import propose_name

FROM_TIMM = "timm/"  # before the name of a network that torchvision has too
SET_HERE = (
    "is set by this program, from the labels, the transform and the other options of model; leave "
    "it out"
)


def timm_name(name: str) -> str:
    """What timm calls a network of `ModelConfig.name`."""
    return name.removeprefix(FROM_TIMM)


def is_of_torchvision(name: str) -> bool:
    """Whether a network is built by torchvision, which goes before timm."""
    return name in torchvision_names()


def torchvision_names() -> list[str]:
    """The names of torchvision's networks for classification."""
    from torchvision import models  # here, since it takes longer to import than PyTorch

    return models.list_models(models)


def is_folder(name: str) -> bool:
    """Whether a network is in a folder that Hugging Face's transformers saved."""
    return ("/" in name and not name.startswith(FROM_TIMM)) or Path(name).is_dir()


def propose_option(option: str, known: Collection[str], own: Collection[str]) -> str:
    """Returns what is to be added to an error of an unknown entry of `ModelConfig.options`: the
    name that may have been meant.

    Args:
        own: names that the program gives, and that the user cannot set.
    """
    proposal = propose_name(option, {*known, *own})
    for name in own:
        if proposal == propose_name(name, [name]):
            return f"; {name} {SET_HERE}"
    return proposal
