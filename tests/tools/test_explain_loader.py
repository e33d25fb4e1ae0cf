"""dp.explain: the table of a live DataLoader."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torchvision import datasets, transforms

import dali_pipes as dp


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(3, 8, 8)


@pytest.fixture
def loader(image_folder):
    steps = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
    return DataLoader(datasets.ImageFolder(image_folder, steps), batch_size=8, shuffle=True)


@pytest.mark.slow
def test_a_loader_that_converts_is_explained_and_left_as_it_is(loader, capsys):
    state = torch.get_rng_state()
    assert dp.explain(loader) is None
    printed = capsys.readouterr().out
    assert "a DataLoader of 37 samples of ImageFolder, batches of 8" in printed
    assert "RandomResizedCrop(size=(32, 32)" in printed and "TrainTransform: size=32" in printed
    assert printed.splitlines()[-1] == "dali_pipes.from_torch(loader) converts it."
    assert torch.equal(torch.get_rng_state(), state)


def test_what_cannot_be_carried_over_is_said_and_not_raised(capsys):
    dp.explain(DataLoader(Stream()))
    printed = capsys.readouterr().out
    assert "It stays as it is: an IterableDataset, Stream (test_explain_loader.py:" in printed
    assert "converts it" not in printed


@pytest.mark.slow
def test_a_loader_of_ours_explains_itself(loader, capsys):
    with dp.from_torch(loader, dp.TorchConfig(num_workers=0), check=False) as ours:
        dp.explain(ours)
        assert ours.explain() in capsys.readouterr().out


def test_what_is_no_loader_is_refused(loader):
    with pytest.raises(dp.ConfigError, match="ImageFolder is not a torch DataLoader"):
        dp.explain(loader.dataset)
