"""Networks from functions and from folders, their heads, and parts that are not trained."""

import pytest
import torch
from torch import nn

from dali_pipes.errors import ConfigError
from dali_pipes.training.config import ModelConfig, OptimizerConfig
from dali_pipes.training.network.build import (
    build_model,
    build_network,
    check_network,
    find_head,
    refuse_training_options,
)
from dali_pipes.training.optimizing.recipe import parameter_groups


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("resnet18", "fc"),
        ("mobilenet_v3_small", "classifier.3"),
        ("squeezenet1_1", "classifier.1"),
        ("vit_tiny_patch16_224", "head"),
    ],
)
def test_the_head_makes_the_outputs(name, head):
    assert find_head(build_model(name, 7), 7) == head


def test_a_function_gets_the_classes_and_channels_that_it_takes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_networks.py").write_text(
        "from torch import nn\n"
        "def make(num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(48, num_classes))\n"
        "def lazy():\n"
        "    return nn.LazyLinear(5)\n"
        "def gray(num_classes=2, channels=3):\n"
        "    return nn.Conv2d(channels, num_classes, 1)\n"
        "def wide(num_classes, width):\n"
        "    return nn.Linear(width, num_classes)\n"
        "def fixed():\n"
        "    return nn.Linear(4, 9)\n"
        "def none():\n"
        "    return 3\n"
    )
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        made = build_network(ModelConfig(name=None, function="own_networks:make"), 5)
        assert made(torch.zeros(2, 3, 4, 4)).shape == (2, 5)
        made = build_network(ModelConfig(name=None, function="own_networks:gray"), 5, 1)
        assert made.weight.shape == (5, 1, 1, 1)
        assert find_head(build_network(ModelConfig(function="own_networks:fixed"), 5), 5) == ""
        with pytest.raises(ConfigError, match="returns int; it must return the network"):
            build_network(ModelConfig(function="own_networks:none"), 5)
        with pytest.raises(ConfigError, match="lazy layers have no weights yet"):
            build_network(ModelConfig(function="own_networks:lazy"), 5)
        options = {"options": {"width": 6}}
        made = build_network(ModelConfig(function="own_networks:wide", **options), 5)
        assert made.in_features == 6
        with pytest.raises(ConfigError, match=r"own_networks:make takes no width$"):
            build_network(ModelConfig(function="own_networks:make", **options), 5)
        with pytest.raises(ConfigError, match=r"called as wide\(num_classes\) \(missing"):
            check_network(ModelConfig(function="own_networks:wide"), [224], 3)
        check_network(ModelConfig(function="own_networks:wide", **options), [224], 3)
        with pytest.raises(ConfigError, match="has no function other"):
            check_network(ModelConfig(function="own_networks:other"), [224], 3)


def drops(network):
    return [each.drop_prob for each in network.modules() if type(each).__name__ == "DropPath"]


def test_options_are_arguments_of_the_library_s_function():
    options = {"stochastic_depth_prob": 0.3}
    network = build_network(ModelConfig(name="convnext_tiny", options=options), 7)
    assert network.features[-1][-1].stochastic_depth.p == pytest.approx(0.3)

    options = {"width_mult": 0.5, "dropout": 0.4}
    network = build_network(ModelConfig(name="mobilenet_v3_small", options=options), 7)
    assert (network.features[0][0].out_channels, network.classifier[2].p) == (8, 0.4)

    pytest.importorskip("timm")
    options = {"drop_path_rate": 0.05}
    network = build_network(ModelConfig(name="timm/resnet26", options=options), 7, 1)
    assert max(drops(network)) == pytest.approx(0.05) and network.conv1.in_channels == 1


def test_timm_s_network_of_a_name_that_torchvision_has_too():
    timm = pytest.importorskip("timm")
    assert isinstance(build_model("timm/resnet18", 7), timm.models.resnet.ResNet)
    assert not isinstance(build_model("resnet18", 7), timm.models.resnet.ResNet)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "resnet18",
            {"drop_path_rate": 0.1},
            r"^model.options=\{drop_path_rate: 0.1\}: .*unexpected",
        ),
        (
            "timm/resnet18",
            {"stochastic_depth": 0.1},
            "cannot be built with it .*unexpected keyword",
        ),
        (
            "convnext_tiny",
            {"drop_path_rate": 0.1},
            "torchvision's ConvNeXt takes no drop_path_rate",
        ),
        ("mobilenet_v3_small", {"drop_out": 0.1}, "takes no drop_out; did you mean dropout"),
        (
            "mobilenet_v3_small",
            {"num_clases": 3},
            "takes no num_clases; num_classes is set by this program, from the labels",
        ),
        ("mobilenet_v3_small", {"selfs": 0.1}, "takes no selfs$"),
        ("resnet18", {"num_classes": 3}, "num_classes is set by this program"),
        ("timm/resnet18", {"pretrained": True}, "pretrained is set by this program"),
        ("googlenet", {"aux_logits": True}, "aux_logits is set by this program"),
    ],
)
def test_options_that_a_network_does_not_take(name, options, message):
    if name.startswith("timm/"):
        pytest.importorskip("timm")
    with pytest.raises(ConfigError, match=message) as raised:
        build_network(ModelConfig(name=name, options=options), 7)
    assert "\n" not in str(raised.value)


def test_what_builds_no_network_of_the_user_s_refuses_its_options():
    with pytest.raises(ConfigError, match=r"model\.options is for dali-pipes train"):
        refuse_training_options(ModelConfig(options={"a": 1}))
    refuse_training_options(ModelConfig(options={"a": 1}), but=["options"])


def test_rates_by_pattern():
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Linear(4, 2))
    options = {"decay_norm_and_bias": False, "lr_scale": {"0.*": 0.1, "*.bias": 2.0}}
    groups = parameter_groups(network, OptimizerConfig(**options))
    found = {
        id(each): (group["weight_decay"] > 0, group["lr_scale"])
        for group in groups
        for each in group["params"]
    }
    assert {name: found[id(each)] for name, each in network.named_parameters()} == {
        "0.weight": (True, 0.1),
        "0.bias": (False, 0.1),
        "1.weight": (False, 1.0),
        "1.bias": (False, 2.0),
        "2.weight": (True, 1.0),
        "2.bias": (False, 2.0),
    }
    with pytest.raises(ConfigError, match=r"optimizer.lr_scale: head\.\* is of no parameter"):
        parameter_groups(network, OptimizerConfig(lr_scale={"head.*": 2.0}))
    with pytest.raises(ConfigError, match=r"optimizer.lr_scale: 0\.\* has no effect"):
        parameter_groups(network, OptimizerConfig(lr_scale={"*": 2.0, "0.*": 1.0}))
