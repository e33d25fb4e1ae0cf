"""timm's policies on the backends: equal pixels and equal noise, or a refusal by name."""

import numpy as np
import pytest
import torch

import dali_pipes as dp
from dali_pipes.backends.common.pixels import join_erased
from dali_pipes.errors import ConfigError

POLICIES = [
    {"name": "TimmRandAugment", "fill": [124, 116, 104], "interpolation": "random"},
    {"name": "TimmRandomErasing", "p": 0.9, "max_count": 2},
]


def images(folder, config, *policies, **options):
    manifest = dp.Manifest.scan(folder, progress=False)
    transform = dp.TrainTransform(size=40, augment=list(policies), **options)
    with dp.build_loader(manifest, config, transform=transform, batch_size=4, seed=2) as loader:
        return torch.cat([batch.images.cpu() for batch in loader]).float()


@pytest.mark.parametrize("normalize_on", ["worker", "device"])
def test_backends_agree(photograph_folder, normalize_on):
    config = dp.TorchConfig(num_workers=0, decoder="torchvision", normalize_on=normalize_on)
    expected = images(photograph_folder, config, *POLICIES)
    ours = images(photograph_folder, dp.DaliConfig(device="cpu", num_threads=2), *POLICIES)
    # the resizes differ by a step here and there, which policies enlarge; noise is equal
    assert float((ours - expected).abs().mean()) < 0.01
    assert float((ours - expected).abs().median()) == 0
    assert not torch.equal(expected, images(photograph_folder, config, POLICIES[0]))


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_erased_pixels_are_normally_distributed(photograph_folder, dtype):
    whole = {"name": "TimmRandomErasing", "p": 1.0, "scale": [0.5, 0.6], "ratio": [0.9, 1.1]}
    config = dp.TorchConfig(num_workers=0)
    made = images(photograph_folder, config, whole, dtype=dtype)
    plain = images(photograph_folder, config, dtype=dtype)
    noise = made[made != plain]
    assert abs(float(noise.mean())) < 0.02 and abs(float(noise.std()) - 1) < 0.02
    # another color in each image, and one in all of its pixels
    made = images(photograph_folder, config, whole | {"mode": "rand"}, dtype=dtype)
    colors = [
        image[0][image[0] != before[0]].unique() for image, before in zip(made, plain, strict=True)
    ]
    assert all(len(each) == 1 for each in colors) and len(torch.cat(colors).unique()) > 20


def test_the_graph_of_dali_refuses_them(photograph_folder):
    graph = dp.DaliConfig(device="cpu", resize="dali")
    for policy, name in zip(POLICIES, ("EqualizeInSteps", "TimmRandomErasing"), strict=True):
        with pytest.raises(ConfigError, match=f"does not have .*{name}.* use .*TorchConfig"):
            images(photograph_folder, graph, policy)


def test_bytes_take_no_noise(photograph_folder):
    with pytest.raises(ConfigError, match="dtype is uint8, and TimmRandomErasing fills normalized"):
        images(photograph_folder, dp.TorchConfig(num_workers=0), POLICIES[1], dtype="uint8")


def test_regions_of_several_kinds_are_joined():
    zeros = np.array([[1, 2, 3, 4]])
    noise = np.ones((1, 2, 6), np.int64)
    joined = join_erased([zeros, noise])
    assert joined.shape == (2, 2, 6) and joined[0, 0].tolist() == [1, 2, 3, 4, 0, 0]
    assert torch.equal(join_erased([zeros, zeros]), torch.tensor([[1, 2, 3, 4]] * 2))
