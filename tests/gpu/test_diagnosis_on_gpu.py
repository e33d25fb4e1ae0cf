"""Planted faults that only a GPU can have."""

import time

import pytest
import torch
from planted import Samples, loader
from torch.utils.data import TensorDataset

from dali_pipes.tools.diagnosis.examination.budget import ProbeBudget
from dali_pipes.tools.diagnosis.examination.examination import examine
from dali_pipes.tools.diagnosis.examination.probes import Probes, copy_seconds
from dali_pipes.tools.diagnosis.measuring.training import drive
from dali_pipes.tools.diagnosis.programs.dataloader import DataLoaderProgram
from dali_pipes.training.network.build import build_model

pytestmark = [
    pytest.mark.needs_cuda,
    pytest.mark.gpu_pixels,
    pytest.mark.alone,
    pytest.mark.timeout(250),
]


def training(width=128, depth=8, after=lambda loss: None):
    layers = [
        torch.nn.Conv2d(3, width, 3),
        *[torch.nn.Conv2d(width, width, 3, padding=1) for _ in range(depth)],
    ]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def step(batch):
        loss = model(batch[0].cuda(non_blocking=True)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after(loss)

    return step


def in_memory(side=64):
    return loader(
        TensorDataset(torch.zeros(2000, 3, side, side), torch.zeros(2000)), workers=2, batch_size=64
    )


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lambda: (in_memory(), training()), "model-bound"),
        (
            lambda: (
                in_memory(8),
                training(8, 60, after=lambda loss: (loss.item(), time.sleep(0.01))),
            ),
            "sync-bound",
        ),
        (
            lambda: (
                loader(TensorDataset(torch.zeros(2000, 3, 8, 8)), workers=2, batch_size=2),
                training(8, 100),
            ),
            "launch-bound",
        ),
        (
            lambda: (loader(Samples(cpu=0.005, side=64), workers=1), training(16, 1)),
            "prep-bound (too few workers)",
        ),
    ],
)
def test_a_planted_cause_is_found(program, expected):
    found = examine(DataLoaderProgram(*program()), ProbeBudget(3, 1.0, cold=False))
    print(found.verdict, found.figures, found.one_off)
    assert found.verdict.name == expected


def test_what_a_step_does_on_the_gpu():
    model, images = build_model("resnet18").cuda(), torch.zeros(64, 3, 224, 224, device="cuda")
    model(images)
    with DataLoaderProgram(in_memory(), lambda batch: None).feed() as feed:
        probes = Probes(DataLoaderProgram(in_memory()), feed, 0.1)
        drive(probes.start(), lambda batch: model(images))
        assert drive(probes.busy_share(), lambda batch: model(images)) > 0.7
        assert drive(probes.busy_share(), lambda batch: time.sleep(0.01)) < 0.05
        assert drive(probes.count_syncs(), lambda batch: model(images).sum()) == 0
        assert drive(probes.count_syncs(), lambda batch: model(images).sum().item()) > 0
    assert 0 < copy_seconds(2**28, pinned=True) < 1
