"""The weights that a network starts from: files of other programs, and what does not fit."""

import argparse
import os
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import dali_pipes as dp
from dali_pipes.training.checkpoint import CheckpointError
from dali_pipes.training.network.build import build_model, find_head
from dali_pipes.training.network.weights import Weights, describe_pixels, find_weights, fit_weights

CLASSES = ["a", "b", "c"]


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(1)
    return build_model("resnet18", 7)


@pytest.fixture
def network():
    torch.manual_seed(2)
    return build_model("resnet18", 3)


def same_body(network, trained):
    theirs = trained.state_dict()
    return all(
        torch.equal(value, theirs[name])
        for name, value in network.state_dict().items()
        if not name.startswith("fc.")
    )


def fit(network, path):
    weights = find_weights(str(path), "resnet18")
    return fit_weights(network, weights, find_head(network, 3), CLASSES)


def prefixed(state, prefix):
    return {prefix + name: value for name, value in state.items()}


FORMS = {
    "a state dict": lambda state: state,
    "torchvision's references": lambda state: {"model": state, "args": argparse.Namespace(lr=1)},
    "DDP": lambda state: {"state_dict": prefixed(state, "module."), "epoch": 3},
    "torch.compile": lambda state: prefixed(state, "_orig_mod."),
    "Lightning": lambda state: {"state_dict": prefixed(state, "model.net."), "callbacks": {}},
    "DINO": lambda state: {
        "student": prefixed({name: value + 1 for name, value in state.items()}, "module.backbone."),
        "teacher": {
            **prefixed(state, "backbone."),
            "head.last_layer.weight": torch.zeros(4096, 256),
        },
    },
    "MoCo": lambda state: {
        "state_dict": {
            **prefixed(state, "module.encoder_q."),
            **prefixed({name: value + 1 for name, value in state.items()}, "module.encoder_k."),
            "module.queue": torch.zeros(128, 4096),
        }
    },
    "without a head": lambda state: {
        name: value for name, value in state.items() if not name.startswith("fc.")
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_files_of_other_programs_give_all_but_the_head(network, trained, tmp_path, form):
    torch.save(FORMS[form](trained.state_dict()), tmp_path / "weights.pth")
    head = network.fc.weight.clone()
    found = fit(network, tmp_path / "weights.pth")
    assert same_body(network, trained) and torch.equal(network.fc.weight, head)
    assert found.replaced == ["fc.weight", "fc.bias"] and not found.missing
    assert "the head (fc.weight, fc.bias)" in " ".join(
        found.sentences(Weights(source="it", tensors={}))
    )


def test_safetensors(network, trained, tmp_path):
    save_file(trained.state_dict(), tmp_path / "model.safetensors")
    fit(network, tmp_path / "model.safetensors")
    assert same_body(network, trained)


def test_a_head_of_as_many_classes_is_taken_where_they_are_not_named(trained, tmp_path):
    torch.save(trained.state_dict(), tmp_path / "weights.pth")
    network = build_model("resnet18", 7)
    weights = find_weights(str(tmp_path / "weights.pth"), "resnet18")
    assert not fit_weights(network, weights, find_head(network, 7), list("abcdefg")).replaced
    assert torch.equal(network.fc.weight, trained.fc.weight)


def test_the_head_of_other_classes_is_not_taken(trained):
    network, own = build_model("resnet18", 7), trained.state_dict()
    weights = Weights(source="ours", tensors=own, classes=list("abcdefg"))
    assert fit_weights(network, weights, "fc", list("gfedcba")).replaced
    assert not torch.equal(network.fc.weight, trained.fc.weight)
    assert not fit_weights(network, weights, "fc", list("abcdefg")).replaced


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("resnet34", "of another network, which also has layer1.2.conv1.weight"),
        ("resnet50", "layer1.0.conv1.weight is 64 × 64 × 1 × 1 there and 64 × 64 × 3 × 3 in the"),
        ("mobilenet_v3_small", "of another network: it lacks 100% of this one's weights"),
    ],
)
def test_weights_of_another_network_are_refused_and_change_nothing(network, tmp_path, other, why):
    torch.save(build_model(other, 3).state_dict(), tmp_path / "weights.pth")
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with pytest.raises(CheckpointError) as caught:
        fit(network, tmp_path / "weights.pth")
    assert why in str(caught.value) and "\n" not in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_a_larger_grid_of_positions_is_refused_by_the_size():
    small, large = (
        {"pos_embed": torch.zeros(1, count, 8), "body": torch.zeros(99)} for count in (5, 17)
    )
    network = nn.Module()
    for name, value in small.items():
        network.register_parameter(name, nn.Parameter(value))
    with pytest.raises(CheckpointError, match=r"pos_embed is 1 × 17 × 8 there.*transform\.size"):
        fit_weights(network, Weights(source="it", tensors=large), "head", CLASSES)


class Code:
    """What makes a folder named "ran" when it is read."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (
            {"model": {"weight": Code()}},
            r"other objects than tensors \(\w+\.mkdir\).*state_dict\(\)",
        ),
        ([1, 2], "no weights in it by name"),
        ({"epoch": 3}, "no weights in it by name"),
    ],
)
def test_what_is_no_file_of_weights(tmp_path, content, why, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(content, tmp_path / "weights.pth")
    with pytest.raises(CheckpointError, match=why):
        find_weights(str(tmp_path / "weights.pth"), "resnet18")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["missing.pth", "missing.safetensors", "no/such/folder"])
def test_a_file_that_is_not_there(tmp_path, name):
    with pytest.raises(CheckpointError, match="no such"):
        find_weights(str(tmp_path / name), "resnet18")


def test_names_of_weights():
    with pytest.raises(CheckpointError, match=r"IMAGENET1K_V3 is no file, .* IMAGENET1K_V1"):
        find_weights("IMAGENET1K_V3", "resnet18")
    with pytest.raises(CheckpointError, match=r"a9_in1k is no file, and timm has .* resnet26d"):
        find_weights("a9_in1k", "resnet26d")
    with pytest.raises(CheckpointError, match=r"the network of model\.function has no weights by"):
        find_weights("IMAGENET1K_V1", None)


def test_weights_by_name_come_out_of_the_cache(network, trained, tmp_path, monkeypatch):
    """Offline the message names the folder that the file belongs into."""
    from torchvision.models import ResNet18_Weights

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    url = ResNet18_Weights.IMAGENET1K_V1.url

    def no_network(*_, **__):
        raise OSError("Name or service not known")

    monkeypatch.setattr("torch.hub.urlopen", no_network)
    with pytest.raises(CheckpointError) as caught:
        find_weights("IMAGENET1K_V1", "resnet18")
    folder = tmp_path / "hub/checkpoints"
    assert f"put the file into {folder}" in str(caught.value)

    folder.mkdir(parents=True, exist_ok=True)
    torch.save(trained.state_dict(), folder / url.rpartition("/")[2])
    weights = find_weights("IMAGENET1K_V1", "resnet18")
    fit_weights(network, weights, "fc", CLASSES)
    assert same_body(network, trained)
    form = dp.EvalTransform(mean=weights.mean, std=weights.std)
    assert describe_pixels(weights, form) is None
    wrong = describe_pixels(weights, replace(form, mean=(0.5, 0.5, 0.5)))
    assert "set transform.mean=[0.485,0.456,0.406]" in wrong
