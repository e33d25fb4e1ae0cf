"""The names of networks: which library has one, or whether it is a folder of Hugging Face."""

from pathlib import Path

FROM_TIMM = "timm/"  # before the name of a network that torchvision has too


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
