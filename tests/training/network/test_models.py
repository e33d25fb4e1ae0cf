import shutil

import pytest
import torch

from dali_pipes.errors import ConfigError
from dali_pipes.training.network.build import (
    build_model,
    check_channels,
    check_compiler,
    check_model,
    check_size,
)


@pytest.mark.parametrize("name", ["resnet18", "vit_b_16", "mobilenet_v3_small"])
def test_names_of_torchvision_are_models(name):
    model = build_model(name, 7).eval()
    assert model(torch.zeros(1, 3, 224, 224)).shape == (1, 7)


def test_an_unknown_name_is_reported_with_near_ones():
    with pytest.raises(
        ConfigError,
        match=r"model.name is 'resnet', which torchvision.models .* near names: .*resnet",
    ):
        check_model("resnet")


@pytest.mark.parametrize(("name", "size"), [("vit_b_16", 160), ("maxvit_t", 64)])
def test_a_size_that_a_network_does_not_take_is_reported(name, size):
    check_size(name, 224)
    check_size("resnet18", size)
    with pytest.raises(
        ConfigError,
        match=f"model.name={name} takes images of 224 pixels only; set transform.size=224",
    ):
        check_size(name, size)
    with pytest.raises((AssertionError, RuntimeError)):
        build_model(name, 7).eval()(torch.zeros(1, 3, size, size))


@pytest.mark.parametrize(
    ("name", "option", "size"),
    [
        ("vit_b_16", "image_size", 96),
        ("maxvit_t", "input_size", [448, 448]),
        ("vit_tiny_patch16_224", "img_size", 96),
        ("timm/maxvit_nano_rw_256", "img_size", 64),
    ],
)
def test_a_network_takes_the_size_that_it_is_built_for(name, option, size):
    options = {option: size}
    check_size(name, size, options)
    shape = size if isinstance(size, list) else [size, size]
    assert build_model(name, 7, 3, options).eval()(torch.zeros(1, 3, *shape)).shape == (1, 7)
    for given in ({}, {option: 128 if isinstance(size, int) else [128, 128]}):
        with pytest.raises(ConfigError, match=rf"only; .*model\.options={{{option}: …}}"):
            check_size(name, size, given)


def test_a_network_of_timm_that_takes_any_size_is_not_refused():
    for name, options in [
        ("resnet26d", {}),
        ("vit_tiny_patch16_224", {"dynamic_img_size": True}),
        ("swin_tiny_patch4_window7_224", {"strict_img_size": False}),
    ]:
        check_size(name, 192, options)
        build_model(name, 7, 3, options).eval()(torch.zeros(1, 3, 192, 192))


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_networks_with_further_outputs_have_one(name):
    scores = build_model(name, 7).train()(torch.zeros(2, 3, 96, 96))
    assert isinstance(scores, torch.Tensor) and scores.shape == (2, 7)


def test_networks_for_one_channel():
    assert build_model("resnet10t", 7, 1).eval()(torch.zeros(1, 1, 64, 64)).shape == (1, 7)
    check_channels("resnet18", 3)
    with pytest.raises(
        ConfigError,
        match=r"model.name=resnet18 is torchvision's, for images of three channels, and "
        "transform.channels is 1; choose a network that only timm has",
    ):
        build_model("resnet18", 7, 1)


def test_compilation_needs_a_compiler(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/g++" if name == "g++" else None)
    check_compiler()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=r"model.compile=true needs a C\+\+ compiler"):
        check_compiler()
