"""The training recipe: the optimizer and its parameter groups, mixing, and the average of the
weights.
"""

import fnmatch
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn, optim

from dali_pipes.errors import ConfigError
from dali_pipes.loader.batch import BatchTransform
from dali_pipes.loader.mixing import CutMix, MixUp, RandomChoice
from dali_pipes.training.config import MixingConfig, OptimizerConfig, TrainConfig
from dali_pipes.training.network.average import WeightAverage


def peak_lr(config: OptimizerConfig, global_batch_size: int) -> float:
    """Returns the learning rate after the warm-up: `lr`, scaled linearly with the global batch if
    `lr_batch_size` is given.

    Linear scaling: Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour (2017),
    section 2.1.
    """
    return config.lr * (global_batch_size / config.lr_batch_size if config.lr_batch_size else 1.0)


def check_optimizer(config: OptimizerConfig) -> None:
    """Checks that the package of an optimizer is installed.

    Raises:
        ConfigError: it is not.
    """
    if config.name == "lamb" and not find_spec("timm"):
        raise ConfigError(
            "optimizer.name=lamb is timm's, and needs the package timm; pip install timm"
        )


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> optim.Optimizer:
    """Builds SGD, AdamW or LAMB.

    Without `decay_norm_and_bias` only weights are decayed: He et al. (2019), section 3.1.
    """
    check_optimizer(config)
    groups = parameter_groups(model, config)
    if config.name == "lamb":
        from timm.optim import Lamb

        # it would clip gradients by itself, which `clip_grad_norm` does for every optimizer
        lamb: optim.Optimizer = Lamb(
            groups, lr=config.lr, betas=(config.beta1, config.beta2), max_grad_norm=None
        )
        return lamb

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


def parameter_groups(model: nn.Module, config: OptimizerConfig) -> list[dict[str, Any]]:
    """Returns the parameters that are trained, in groups of one weight decay and one factor of the
    learning rate, which is under "lr_scale".

    Raises:
        ConfigError: a pattern of `lr_scale` is of no parameter that is trained, or others come
            before it for all of them.
    """
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    first = {
        name: next((one for one in config.lr_scale if fnmatch.fnmatch(name, one)), None)
        for name in trained
    }
    for pattern in config.lr_scale:
        if not fnmatch.filter(trained, pattern):
            parts = ", ".join(f"{each}.*" for each, _ in model.named_children())
            raise ConfigError(
                f"optimizer.lr_scale: {pattern} is of no parameter that is trained; the network's "
                f"parts are {parts}"
            )
        if pattern not in first.values():
            raise ConfigError(
                f"optimizer.lr_scale: {pattern} has no effect, since the first pattern that fits a "
                "name counts, and others fit all of its names; put it before them"
            )

    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, each in trained.items():
        # biases and the scales of normalizations have one dimension
        decays = config.decay_norm_and_bias or each.ndim > 1
        factor = config.lr_scale.get(first[name] or "", 1.0)
        key = (config.weight_decay if decays else 0.0, factor)
        groups.setdefault(key, []).append(each)
    return [
        {"params": each, "weight_decay": decay, "lr_scale": factor}
        for (decay, factor), each in groups.items()
    ]


def build_mixing(config: MixingConfig, num_classes: int) -> BatchTransform | None:
    """Builds MixUp, CutMix, or a choice of the two for each batch, as in torchvision's recipe.

    Returns None if neither is configured.

    Raises:
        ConfigError: there are no classes whose shares could be mixed.
    """
    kinds = [(CutMix, config.cutmix_alpha), (MixUp, config.mixup_alpha)]
    if not num_classes and any(alpha for _, alpha in kinds):
        raise ConfigError(
            "mixing.mixup_alpha and mixing.cutmix_alpha mix shares of classes, and the images have "
            "no classes; leave them out"
        )
    mixes = [
        kind(alpha=alpha, num_classes=num_classes, probability=config.probability)
        for kind, alpha in kinds
        if alpha
    ]
    return RandomChoice(mixes) if len(mixes) > 1 else next(iter(mixes), None)


def build_ema(config: TrainConfig, model: nn.Module) -> WeightAverage | None:
    """Builds the average of the weights; returns None without `ema_decay`."""
    return None if config.ema_decay is None else WeightAverage(model, config.ema_decay)
