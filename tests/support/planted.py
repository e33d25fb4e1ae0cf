"""Programs with a known fault: a DataLoader and a step each."""

import subprocess
import time
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZE = 400  # samples


def compute(seconds):
    """Keeps a core busy for so many seconds of its own time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Samples(Dataset):
    """Each sample costs CPU time and time that passes, in seconds; one in a hundred may cost
    more.
    """

    def __init__(self, cpu=0.0, sleep=0.0, slow_s=0.0, side=8):
        self.cpu, self.sleep, self.slow_s, self.side = cpu, sleep, slow_s, side

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        compute(self.cpu)
        time.sleep(self.sleep + (self.slow_s if index % 100 == 50 else 0))
        return torch.zeros(3, self.side, self.side), index % 10


def loader(dataset, workers=2, batch_size=8):
    return DataLoader(
        dataset, batch_size, num_workers=workers, drop_last=True, persistent_workers=workers > 0
    )


def computing(seconds):
    """A step of one thread."""
    return lambda batch: compute(seconds)


def training(width=64, depth=1):
    """A step of a network, on as many threads as PyTorch likes."""
    layers = [
        layer for _ in range(depth) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
    ]
    network = nn.Sequential(
        nn.Conv2d(3, width, 3), nn.ReLU(), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=0)

    def step(batch):
        images, _ = batch
        network(images).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@contextmanager
def hogs(count):
    """Somebody else's processes, that keep a core busy each."""
    # orphans at once, so that they are not ours
    command = ["sh", "-c", "while :; do :; done >/dev/null & echo $!"]
    pids = [
        subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
        for _ in range(count)
    ]
    try:
        yield
    finally:
        subprocess.run(["kill", "-9", *map(str.strip, pids)], check=True)
