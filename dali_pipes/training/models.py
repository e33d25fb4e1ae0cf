"""Networks by name: torchvision's, and timm's where it is installed."""

import os
import shutil
from difflib import get_close_matches
from importlib.util import find_spec

import torch
from torch import nn

from dali_pipes.errors import ConfigError

# In training these two have auxiliary outputs with losses (Szegedy et al., 2014 and 2015); only the main one is trained here.
_ONE_OUTPUT = {name: {"aux_logits": False, "init_weights": True} for name in ("googlenet", "inception_v3")}
_ONE_SIZE = ("vit_", "maxvit_")


def check_model(name: str | None) -> str:
    """The name, if there is such a model for classification.

    Raises:
        ConfigError: there is none; the text names the nearest ones.
    """
    if name is None:
        raise ConfigError("no model is named; choose one, as in model=resnet50 or model.name=vit_b_16")
    names = _torchvision_names()
    if name in names or name in _timm_names():
        return name
    near = get_close_matches(name, names, n=5, cutoff=0.3)
    where = "torchvision.models and timm do" if find_spec("timm") else "torchvision.models does"
    raise ConfigError(f"model.name is {name!r}, which {where} not have; near names: {', '.join(near) or 'none'}")


def check_size(name: str, size: object) -> None:
    """For torchvision's transformers with a grid of one size.

    Raises:
        ConfigError: this one does not take images of a `Transform.size`.
    """
    if name in _torchvision_names() and name.startswith(_ONE_SIZE) and size != 224:
        raise ConfigError(f"model.name={name} takes images of 224 pixels only; set transform.size=224, or choose another network")


def check_compiler() -> None:
    """For torch.compile, which looks for these: torch._inductor on a CPU, Triton on a GPU.

    Raises:
        ConfigError: there is none, as in the container's image.
    """
    if not any(shutil.which(name) for name in (os.environ.get("CC", "gcc"), os.environ.get("CXX", "g++"), "clang")):
        raise ConfigError("model.compile=true needs a C++ compiler, and there is none; set model.compile=false, or install g++")


def build_model(name: str, num_classes: int = 1000) -> nn.Module:
    """The network with random weights and `num_classes` outputs; torchvision's if both have the name."""
    check_model(name)
    if name in _torchvision_names():
        from torchvision.models import get_model

        return get_model(name, weights=None, num_classes=num_classes, **_ONE_OUTPUT.get(name, {}))
    import timm

    return timm.create_model(name, num_classes=num_classes)


def _torchvision_names() -> list[str]:
    from torchvision import models  # here, since it takes longer to import than PyTorch

    return models.list_models(models)


def _timm_names() -> list[str]:
    if not find_spec("timm"):
        return []
    import timm

    return timm.list_models()


def default_model() -> str:
    """The network that is trained in measurements."""
    return "resnet50" if torch.cuda.is_available() else "shufflenet_v2_x0_5"
