"""What each probe runs, and where."""

import threading

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from dali_pipes.tools.diagnosis.dataloader_program import DataLoaderProgram
from dali_pipes.tools.diagnosis.probes import Probes


class Threads(Dataset):
    """Remembers which threads asked for a sample."""

    def __init__(self):
        self.seen = []

    def __len__(self):
        return 400

    def __getitem__(self, index):
        self.seen.append(threading.current_thread())
        return torch.zeros(3, 8, 8), index % 10


@pytest.mark.parametrize("part", ["model", "loader", "model_under_load", "together"])
def test_a_loader_without_workers_runs_in_the_thread_that_trains_and_never_beside_the_model(part):
    dataset = Threads()
    program = DataLoaderProgram(DataLoader(dataset, 8, num_workers=0), lambda batch: None)
    with program.feed() as feed:
        window = getattr(Probes(program, feed, 0.05), part)()
    assert window.rate > 0
    assert set(dataset.seen) == {threading.main_thread()}
