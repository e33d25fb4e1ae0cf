"""What each probe runs, and where."""

import threading

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from dali_pipes.tools.diagnosis.examination.probes import Probes
from dali_pipes.tools.diagnosis.measuring.training import drive
from dali_pipes.tools.diagnosis.programs.dataloader import DataLoaderProgram


class Threads(Dataset):
    """Remembers which threads asked for a sample."""

    def __init__(self):
        self.seen = []

    def __len__(self):
        return 400

    def __getitem__(self, index):
        self.seen.append(threading.current_thread())
        return torch.zeros(3, 8, 8), index % 10


@pytest.mark.parametrize("part", ["model", "loader", "together"])
def test_a_loader_without_workers_runs_in_the_thread_that_trains(part):
    dataset = Threads()
    program = DataLoaderProgram(DataLoader(dataset, 8, num_workers=0), lambda batch: None)
    with program.feed() as feed:
        probes = Probes(program, feed, 0.05)
        drive(probes.start(), program.step())
        span = drive(getattr(probes, part)(), program.step())
    assert span.rate > 0
    assert set(dataset.seen) == {threading.main_thread()}
