"""Small programs for lazy loaders, and their batches beside those of a DataLoader."""

import os
import random
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torchvision import transforms as T

import dali_pipes as dp
from dali_pipes.adapters.lazy.loader import LazyLoader

COUNT = 20
CPU = dp.DaliConfig(device="cpu", num_threads=1)


def make_pictures(folder, count=COUNT):
    """JPEGs of 40 × 30 pixels, old enough not to be kept as bytes."""
    rng, files = np.random.default_rng(3), []
    folder.mkdir(parents=True, exist_ok=True)
    for at in range(count):
        soft = Image.fromarray(rng.integers(0, 256, (5, 6, 3), np.uint8))
        file = folder / f"{at:03d}.jpg"
        soft.resize((40, 30), Image.Resampling.BICUBIC).save(file, quality=90)
        age(file)
        files.append(str(file))
    return files


def train_steps(size=16):
    return T.Compose(
        [T.RandomResizedCrop(size), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize([0.5], [2])]
    )


class Pictures(Dataset):
    """(picture, index), and a number that the sample has drawn of each library."""

    def __init__(self, files, transform=None):
        self.files, self.transform = files, transform or train_steps()

    def __len__(self):
        return len(self.files)

    def __getitem__(self, at):
        drawn = random.random(), float(np.random.rand()), float(torch.rand(()))
        return self.transform(Image.open(self.files[at]).convert("RGB")), at, *drawn


class Stream(IterableDataset):
    """The same, divided among workers."""

    def __init__(self, files, transform=None, item=None):
        self.inner = Pictures(files, transform)
        self.item = item or self.inner.__getitem__

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for at in range(first, len(self.inner), step):
            yield self.item(at)


def truncate(file):
    with open(file, "r+b") as opened:
        opened.truncate(Path(file).stat().st_size // 2)
    age(file)


def garble(file):
    """A PNG whose pixels cannot be read, while it begins and ends as it should."""
    with Image.open(file) as picture:
        picture.save(file, "PNG")
    with open(file, "r+b") as opened:
        data = bytearray(opened.read())
        middle = data.index(b"IDAT") + 40
        data[middle : middle + 20] = bytes(20)
        opened.seek(0)
        opened.write(data)
    age(file)


def empty(file):
    with open(file, "wb"):
        pass
    age(file)


def age(file):
    os.utime(file, (time.time() - 1000,) * 2)


def seed_globals(seed=7):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def batches_of(loader, epochs=1, most=None):
    """Batches, and the random state of this process after each."""
    seed_globals()
    found = []
    for _ in range(epochs):
        for number, batch in enumerate(loader):
            found.append([copied(batch), random.random(), float(torch.rand(())), np.random.rand()])
            if number + 1 == most:
                break
    return found


def heard_of(loader, epochs=1):
    """Its batches, and what it says."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = batches_of(loader, epochs)
    return found, [str(each.message) for each in heard if each.category is UserWarning]


def copied(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    return [copied(each) for each in value] if isinstance(value, (list, tuple)) else value


def assert_equal(one, other):
    """Structure, types and bits."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for first, second in zip(one, other, strict=True):
            assert_equal(first, second)
    else:
        assert one == other


def assert_same_as_ever(make, epochs=1, **options):
    """Whether a lazy loader yields what the DataLoader does, and leaves the same random state."""
    theirs = batches_of(make(), epochs)
    with LazyLoader(make(), **options) as loader:
        ours = batches_of(loader, epochs)
        assert_equal(theirs, ours)
        assert loader.waited
        return loader


def indices_of(batches):
    return [batch[1].tolist() for batch in batches]


def loader_of(dataset, **options):
    return DataLoader(dataset, **{"batch_size": 4} | options)
