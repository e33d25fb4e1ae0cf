"""Networks from functions and from folders, their heads, and parts that are not trained."""

import copy

import pytest
import torch
from torch import nn

from dali_pipes.errors import ConfigError
from dali_pipes.training.config import ModelConfig, OptimizerConfig
from dali_pipes.training.networks import (
    build_model,
    build_network,
    check_network,
    find_head,
    freeze,
)
from dali_pipes.training.recipe import parameter_groups


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
        "def make(num_classes=1000):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(48, num_classes))\n"
        "def lazy():\n"
        "    return nn.LazyLinear(5)\n"
        "def gray(num_classes=2, channels=3):\n"
        "    return nn.Conv2d(channels, num_classes, 1)\n"
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
        with pytest.raises(ConfigError, match="has no function other"):
            check_network(ModelConfig(function="own_networks:other"), [224], 3)


def test_a_folder_of_hugging_face(tmp_path):
    transformers = pytest.importorskip("transformers")
    own = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=4
    )
    theirs = transformers.ResNetForImageClassification(own).eval()
    theirs.save_pretrained(tmp_path)
    network = build_network(ModelConfig(name=str(tmp_path)), 4).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(network(images), theirs(images).logits, atol=1e-6)

    network = build_network(ModelConfig(name=str(tmp_path)), 6)
    assert network(images).shape == (2, 6) and find_head(network, 6) == "network.classifier.1"
    inner = network.network.resnet.state_dict()
    assert all(
        torch.equal(value, inner[name]) for name, value in theirs.resnet.state_dict().items()
    )
    with pytest.raises(ConfigError, match=r"takes images of 3 channels.*set transform\.channels=3"):
        build_network(ModelConfig(name=str(tmp_path)), 4, 1)


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no config\.json in it"):
        check_network(ModelConfig(name=str(tmp_path)), [224], 3)


def test_what_is_frozen_is_not_trained_and_stays_as_in_evaluation():
    network = build_model("resnet18", 7)
    share = freeze(network, ["backbone.*"], "fc")
    trained = [name for name, each in network.named_parameters() if each.requires_grad]
    assert trained == ["fc.weight", "fc.bias"] and 0 < share < 0.01

    before = {name: value.clone() for name, value in network.state_dict().items()}
    for each in (network, copy.deepcopy(network)):
        each.train()
        assert each.fc.training and not each.bn1.training and not each.layer1[0].bn1.training
        each(torch.randn(4, 3, 32, 32)).sum().backward()
        after = each.state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items())
        assert each.conv1.weight.grad is None and each.fc.weight.grad is not None


def test_a_part_is_frozen_by_its_pattern():
    network = build_model("resnet18", 7)
    freeze(network, ["layer1.*", "conv1.weight"], "fc")
    frozen = {name for name, each in network.named_parameters() if not each.requires_grad}
    assert {name.split(".")[0] for name in frozen} == {"layer1", "conv1"}
    network.train()
    assert network.bn1.training and not network.layer1[0].bn1.training
    assert freeze(build_model("resnet18", 7), [], "fc") == 1


@pytest.mark.parametrize(
    ("patterns", "why"),
    [(["*"], "leaves nothing to train"), (["layers.*"], r"of no parameter.*conv1\.\*, bn1\.\*")],
)
def test_a_pattern_that_makes_no_sense(patterns, why):
    with pytest.raises(ConfigError, match=why):
        freeze(build_model("resnet18", 7), patterns, "fc")


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
