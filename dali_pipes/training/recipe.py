"""The training recipe: the network by its name, the optimizer and its parameter groups, the
learning rate of every step, mixing, and the average of the weights.
"""

import math
import os
import shutil
from difflib import get_close_matches
from importlib.util import find_spec

import torch
from torch import nn, optim

from dali_pipes.backends.base import BatchTransform
from dali_pipes.errors import ConfigError
from dali_pipes.loader.mixing import CutMix, MixUp, RandomChoice
from dali_pipes.training.average import WeightAverage
from dali_pipes.training.config import MixingConfig, ModelConfig, OptimizerConfig, TrainConfig

# In training these two have auxiliary outputs with losses (Szegedy et al., 2014 and 2015); only the
# main output is trained here.
_ONE_OUTPUT = {
    name: {"aux_logits": False, "init_weights": True} for name in ("googlenet", "inception_v3")
}
_ONE_SIZE = ("vit_", "maxvit_")  # beginnings of torchvision's names


def check_model(name: str | None) -> str:
    """Returns the name, if torchvision or timm has such a model for classification.

    Raises:
        ConfigError: neither has one; the text names the nearest ones.
    """
    if name is None:
        raise ConfigError(
            "no model is named; choose one, as in model=resnet50 or model.name=vit_b_16"
        )

    names, where = _torchvision_names(), "torchvision.models does"
    if name in names:
        return name
    if find_spec("timm"):
        import timm

        if name in timm.list_models():
            return name
        where = "torchvision.models and timm do"

    near = get_close_matches(name, names, n=5, cutoff=0.3)
    raise ConfigError(
        f"model.name is {name!r}, which {where} not have; near names: {', '.join(near) or 'none'}"
    )


def check_size(name: str, size: object) -> None:
    """Checks that a network takes images of a `Transform.size`; some transformers of torchvision
    have a grid of one size.

    Raises:
        ConfigError: this one takes images of 224 pixels only.
    """
    if name in _torchvision_names() and name.startswith(_ONE_SIZE) and size != 224:
        raise ConfigError(
            f"model.name={name} takes images of 224 pixels only; set transform.size=224, or "
            "choose another network"
        )


def check_channels(name: str, channels: int) -> None:
    """Checks that a network can be built for images of this many channels.

    Raises:
        ConfigError: torchvision builds its networks for three only.
    """
    if channels != 3 and name in _torchvision_names():
        raise ConfigError(
            f"model.name={name} is torchvision's, for images of three channels, and "
            f"transform.channels is {channels}; choose a network that only timm has, such as "
            "resnet26d, or set transform.channels=3"
        )


def check_compiler() -> None:
    """Checks that torch.compile finds a compiler, which torch._inductor needs on a CPU and Triton
    on a GPU.

    Raises:
        ConfigError: there is none, as in the container's image.
    """
    if not any(
        shutil.which(name)
        for name in (os.environ.get("CC", "gcc"), os.environ.get("CXX", "g++"), "clang")
    ):
        raise ConfigError(
            "model.compile=true needs a C++ compiler, and there is none; set "
            "model.compile=false, or install g++"
        )


def build_model(name: str | None, num_classes: int = 1000, channels: int = 3) -> nn.Module:
    """Builds a network with random weights and `num_classes` outputs, for images of `channels`;
    torchvision's if timm has one of that name too.

    Raises:
        ConfigError: there is no such network.
    """
    name = check_model(name)
    check_channels(name, channels)
    if name in _torchvision_names():
        from torchvision.models import get_model

        return get_model(name, weights=None, num_classes=num_classes, **_ONE_OUTPUT.get(name, {}))
    import timm

    return timm.create_model(name, num_classes=num_classes, in_chans=channels)


def _torchvision_names() -> list[str]:
    from torchvision import models  # here, since it takes longer to import than PyTorch

    return models.list_models(models)


def default_model() -> str:
    """Returns the name of the network that measurements train."""
    return "resnet50" if torch.cuda.is_available() else "shufflenet_v2_x0_5"


def build_network(config: ModelConfig, num_classes: int, channels: int = 3) -> nn.Module:
    """Builds the configured network for images of `channels`, with random weights drawn on the
    CPU.
    """
    module = build_model(config.name, num_classes, channels)
    return module.to(memory_format=torch.channels_last) if config.channels_last else module  # type: ignore[call-overload]


def peak_lr(config: OptimizerConfig, global_batch_size: int) -> float:
    """Returns the learning rate after the warm-up: `lr`, scaled linearly with the global batch if
    `lr_batch_size` is given.

    Linear scaling: Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour (2017),
    section 2.1.
    """
    return config.lr * (global_batch_size / config.lr_batch_size if config.lr_batch_size else 1.0)


def lr_at(step: int, steps: int, warmup_steps: int, peak: float) -> float:
    """Returns the learning rate of a step, counted from 0: a linear warm-up to `peak`, then half a
    cosine that reaches 0 after the last step.

    Warm-up: Goyal et al. (2017), section 2.2. Cosine: Loshchilov and Hutter, SGDR (2017); He et
    al., Bag of Tricks (2019), 5.1.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    return (
        peak * 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1, steps - warmup_steps)))
    )


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> optim.Optimizer:
    """Builds SGD or AdamW.

    Without `decay_norm_and_bias` only weights are decayed: He et al. (2019), section 3.1.
    """
    groups = parameter_groups(model, config)

    # the fused one skips a step whose gradients overflowed (fp16) without asking the host
    fused = all(parameter.is_cuda for parameter in model.parameters())
    if config.name == "adamw":
        return optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), fused=fused)

    sgd = optim.SGD(
        groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov, fused=fused
    )
    if fused and config.momentum:
        # PyTorch (2.10, torch/optim/sgd.py, `_fused_sgd`) leaves the momentum as it finds it in
        # memory if the first step is skipped, and the second one adds to it
        for parameter in model.parameters():
            if parameter.requires_grad:
                sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return sgd


def parameter_groups(model: nn.Module, config: OptimizerConfig) -> list[dict[str, object]]:
    """Returns the parameters that are trained, in groups of one weight decay."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if config.decay_norm_and_bias:
        return [{"params": trained, "weight_decay": config.weight_decay}]

    # biases and the scales of normalizations have one dimension
    return [
        {
            "params": [parameter for parameter in trained if parameter.ndim > 1],
            "weight_decay": config.weight_decay,
        },
        {
            "params": [parameter for parameter in trained if parameter.ndim <= 1],
            "weight_decay": 0.0,
        },
    ]


def build_mixing(config: MixingConfig, num_classes: int) -> BatchTransform | None:
    """Builds MixUp, CutMix, or a choice of the two for each batch, as in torchvision's recipe.

    Returns None if neither is configured.
    """
    kinds = [(CutMix, config.cutmix_alpha), (MixUp, config.mixup_alpha)]
    mixes = [
        kind(alpha=alpha, num_classes=num_classes, probability=config.probability)
        for kind, alpha in kinds
        if alpha
    ]
    return RandomChoice(mixes) if len(mixes) > 1 else next(iter(mixes), None)


def build_ema(config: TrainConfig, model: nn.Module) -> WeightAverage | None:
    """Builds the average of the weights; returns None without `ema_decay`."""
    return None if config.ema_decay is None else WeightAverage(model, config.ema_decay)
