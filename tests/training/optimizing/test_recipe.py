import pytest
import torch
from torch import nn

import dali_pipes as dp
from dali_pipes.errors import ConfigError
from dali_pipes.training.config import MixingConfig, OptimizerConfig, TrainConfig
from dali_pipes.training.optimizing.recipe import (
    build_ema,
    build_mixing,
    build_optimizer,
    parameter_groups,
    peak_lr,
)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))


def test_the_rate_is_scaled_with_the_global_batch_only_if_asked_for():
    assert peak_lr(OptimizerConfig(lr=0.1, lr_batch_size=256), 1024) == pytest.approx(0.4)
    assert peak_lr(OptimizerConfig(lr=0.1, lr_batch_size=None), 1024) == 0.1


def test_norms_and_biases_are_decayed_only_if_asked_for():
    everything = parameter_groups(model(), OptimizerConfig(weight_decay=0.1))
    assert [(len(group["params"]), group["weight_decay"]) for group in everything] == [(6, 0.1)]
    weights, rest = parameter_groups(
        model(), OptimizerConfig(weight_decay=0.1, decay_norm_and_bias=False)
    )
    assert (len(weights["params"]), weights["weight_decay"]) == (2, 0.1)
    assert (len(rest["params"]), rest["weight_decay"]) == (4, 0.0)


def test_frozen_parameters_are_left_out():
    frozen = model()
    frozen[0].weight.requires_grad_(False)
    assert sum(len(group["params"]) for group in parameter_groups(frozen, OptimizerConfig())) == 5


def test_the_optimizer_is_the_one_that_is_named():
    sgd = build_optimizer(OptimizerConfig(lr=0.2, momentum=0.8, nesterov=True), model())
    assert isinstance(sgd, torch.optim.SGD)
    assert {sgd.defaults["lr"], sgd.defaults["momentum"], sgd.defaults["nesterov"]} == {
        0.2,
        0.8,
        True,
    }
    adamw = build_optimizer(OptimizerConfig(name="adamw", beta2=0.95), model())
    assert isinstance(adamw, torch.optim.AdamW) and adamw.defaults["betas"] == (0.9, 0.95)


def test_lamb_is_timm_s_and_leaves_the_clipping_to_the_step():
    optim = pytest.importorskip("timm.optim")
    options = {"weight_decay": 0.1, "decay_norm_and_bias": False, "lr_scale": {"0.*": 0.5}}
    config = OptimizerConfig(name="lamb", lr=0.1, beta2=0.95, **options)
    ours, theirs = model(), model()
    lamb = build_optimizer(config, ours)
    assert isinstance(lamb, optim.Lamb)
    assert {group["betas"] for group in lamb.param_groups} == {(0.9, 0.95)}
    assert [group["weight_decay"] for group in lamb.param_groups] == [0.1, 0.0, 0.0, 0.1]
    expected = optim.Lamb(
        parameter_groups(theirs, config), lr=0.1, betas=(0.9, 0.95), max_grad_norm=None
    )
    for each, trained in ((lamb, ours), (expected, theirs)):
        trained(torch.ones(2, 3, 3, 3)).square().sum().mul(100).backward()
        each.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)


def test_lamb_without_timm_is_refused(monkeypatch):
    monkeypatch.setattr("dali_pipes.training.optimizing.recipe.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="lamb is timm's, and needs the package timm"):
        build_optimizer(OptimizerConfig(name="lamb"), model())


def test_the_average_has_the_decay_that_is_configured():
    trained = model()
    ema = build_ema(TrainConfig(ema_decay=0.9), trained)
    ema.update(trained)
    before = trained[0].weight.detach().clone()
    with torch.no_grad():
        trained[0].weight += 1
        trained[1].running_mean += 1
    ema.update(trained)
    assert torch.allclose(ema.module[0].weight, before + 0.1)
    assert torch.allclose(ema.module[1].running_mean, torch.full((4,), 0.1))
    assert build_ema(TrainConfig(), trained) is None
    # it would keep the weights of the first step for ever
    with pytest.raises(
        ConfigError, match=r"ema_decay is 1\.0; it takes numbers from 0 to 0\.9999999"
    ):
        TrainConfig(ema_decay=1.0)


def test_one_mix_or_a_choice_or_none():
    up = dp.MixUp(alpha=0.2, num_classes=7, probability=0.5)
    cut = dp.CutMix(alpha=1.0, num_classes=7, probability=0.5)
    assert build_mixing(MixingConfig(), 7) is None
    assert build_mixing(MixingConfig(), 0) is None
    with pytest.raises(ConfigError, match="mix shares of classes, and the images have no classes"):
        build_mixing(MixingConfig(mixup_alpha=0.2), 0)
    assert build_mixing(MixingConfig(mixup_alpha=0.2, probability=0.5), 7) == up
    assert build_mixing(MixingConfig(cutmix_alpha=1.0, probability=0.5), 7) == cut
    assert build_mixing(
        MixingConfig(mixup_alpha=0.2, cutmix_alpha=1.0, probability=0.5), 7
    ) == dp.RandomChoice([cut, up])
