"""The training recipe: parameter groups, the learning rate of every step, the average of the weights."""

import math

import torch
from torch import Tensor, nn, optim
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from dali_pipes.backends.base import BatchTransform
from dali_pipes.loader.mixing import CutMix, MixUp, RandomChoice
from dali_pipes.training.config import MixingConfig, ModelConfig, OptimizerConfig, TrainConfig
from dali_pipes.training.models import build_model, check_model


def build_network(config: ModelConfig, num_classes: int) -> nn.Module:
    """Random weights, drawn on the CPU."""
    module = build_model(check_model(config.name), num_classes)
    return module.to(memory_format=torch.channels_last) if config.channels_last else module  # type: ignore[call-overload]


def peak_lr(config: OptimizerConfig, global_batch_size: int) -> float:
    """The learning rate after the warm-up: `lr` as it is, or scaled linearly with the global batch if `lr_batch_size` is given.

    Linear scaling: Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour (2017), section 2.1.
    """
    return config.lr * (global_batch_size / config.lr_batch_size if config.lr_batch_size else 1.0)


def lr_at(step: int, steps: int, warmup_steps: int, peak: float) -> float:
    """The learning rate of an optimizer step, from 0: a linear warm-up to `peak`, then half a cosine down to 0 after the last.

    Warm-up: Goyal et al. (2017), section 2.2. Cosine: Loshchilov and Hutter, SGDR (2017); He et al., Bag of Tricks (2019), 5.1.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1, steps - warmup_steps)))


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> optim.Optimizer:
    """SGD or AdamW. Without `decay_norm_and_bias` only weights are decayed: He et al. (2019), section 3.1.

    On a GPU it is PyTorch's fused one, which skips a step of overflowed gradients (fp16) without asking the host.
    """
    groups = parameter_groups(model, config)
    fused = all(parameter.is_cuda for parameter in model.parameters())
    if config.name == "adamw":
        return optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), fused=fused)
    return optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov, fused=fused)


def parameter_groups(model: nn.Module, config: OptimizerConfig) -> list[dict[str, object]]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if config.decay_norm_and_bias:
        return [{"params": trained, "weight_decay": config.weight_decay}]
    return [
        {"params": [parameter for parameter in trained if parameter.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
    ]


def build_mixing(config: MixingConfig, num_classes: int) -> BatchTransform | None:
    """MixUp, CutMix, or one of the two for each batch, as in torchvision's recipe; None if neither is configured."""
    chosen = [(CutMix, config.cutmix_alpha), (MixUp, config.mixup_alpha)]
    mixes = [kind(alpha=alpha, num_classes=num_classes, probability=config.probability) for kind, alpha in chosen if alpha]
    return RandomChoice(mixes) if len(mixes) > 1 else next(iter(mixes), None)


def build_ema(config: TrainConfig, model: nn.Module) -> AveragedModel | None:
    """An exponential average of weights and buffers, updated after every optimizer step; None without `ema_decay`."""
    if config.ema_decay is None:
        return None
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(config.ema_decay), use_buffers=True)  # type: ignore[no-untyped-call]


def averaged_weights(ema: dict[str, Tensor]) -> dict[str, Tensor]:
    """The network's state dict from a saved average."""
    return {name.removeprefix("module."): value for name, value in ema.items() if name.startswith("module.")}
