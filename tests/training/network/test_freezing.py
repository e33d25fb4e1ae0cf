"""Parts of a network that are not trained."""

import copy

import pytest
import torch

from dali_pipes.errors import ConfigError
from dali_pipes.training.network.build import build_model
from dali_pipes.training.network.freezing import freeze


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
