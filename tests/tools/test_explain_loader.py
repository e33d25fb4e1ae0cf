"""dp.explain: what dali_pipes makes of a DataLoader or of a transform."""

import random

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

import dali_pipes as dp

STEPS = [transforms.RandomResizedCrop(32), transforms.ToTensor()]


@pytest.fixture
def loader(image_folder):
    images = datasets.ImageFolder(image_folder, transforms.Compose(STEPS))
    return DataLoader(images, batch_size=8, shuffle=True, generator=torch.Generator())


def test_a_loader_is_run_and_random_states_stay_as_they_are(loader, capsys):
    state = torch.get_rng_state(), loader.generator.get_state(), random.getstate()
    assert dp.explain(loader) is None
    assert "waited" in capsys.readouterr().out
    assert torch.equal(torch.get_rng_state(), state[0])
    assert torch.equal(loader.generator.get_state(), state[1]) and random.getstate() == state[2]


def test_a_loader_of_ours_explains_itself(loader, capsys):
    with dp.from_torch(loader, dp.TorchConfig(num_workers=0), check=False) as ours:
        dp.explain(ours)
        assert ours.explain() in capsys.readouterr().out


def test_each_step_of_a_transform_is_in_a_table(capsys):
    dp.explain(transforms.Compose(STEPS))
    printed = capsys.readouterr().out
    assert "RandomResizedCrop(size=(32, 32)" in printed and "TrainTransform: size=32" in printed
    dp.explain(transforms.Compose([*STEPS[:1], transforms.FiveCrop(8), *STEPS[1:]]))
    printed = " ".join(capsys.readouterr().out.split())
    assert "REFUSED" in printed and "FiveCrop cannot be carried over: " in printed


def test_what_is_neither_is_refused(loader):
    with pytest.raises(dp.ConfigError, match="ImageFolder is no torch DataLoader and no transform"):
        dp.explain(loader.dataset)
