"""Backends are functions of planned batches: each makes any part of a plan, whoever makes the rest,
so that one put together of several, such as a loader that changes its backend while it trains,
delivers what each of them would.
"""

from collections import deque
from contextlib import ExitStack, closing

import numpy as np
import pytest
import torch

import dali_pipes as dp
from dali_pipes.backends.backend import Job
from dali_pipes.backends.registry import load_backend

CONFIGS = {
    "dali_cpu": dp.DaliConfig(device="cpu", num_threads=2),
    "dali_cpu_graph": dp.DaliConfig(device="cpu", num_threads=2, resize="dali"),
    "torch": dp.TorchConfig(num_workers=1),
    "torch_in_this_process": dp.TorchConfig(num_workers=0),
}
TRANSFORM = dp.TrainTransform(size=24, augment=["TrivialAugmentWide", "RandomErasing"])
COUNT = 6  # batches


@pytest.fixture(scope="module")
def plan(thumbnails):
    return dp.Plan(thumbnails, TRANSFORM, 8)


@pytest.fixture(scope="module")
def alone(thumbnails, plan):
    """The batches of each backend, when it makes all of them."""
    made = {}
    with ExitStack() as ends:
        for name in CONFIGS:
            backend = ends.enter_context(closing(make(name, thumbnails)))
            made[name] = images(backend.stream(iter(planned(plan))))
    return made


def make(name, manifest):
    config = CONFIGS[name]
    job = Job(TRANSFORM, manifest, 8, torch.device("cpu"))
    return load_backend(config)(job, config)


def planned(plan):
    return [plan.batch(*divmod(at, plan.steps)) for at in range(COUNT)]


def images(decoded):
    """Copies, since a backend may use the memory of a batch again."""
    return [each.images.clone() for each in decoded]


def check(found, expected):
    assert len(found) == len(expected)
    assert all(torch.equal(*both) for both in zip(found, expected, strict=True))


def test_backends_take_over_from_each_other_at_every_batch(thumbnails, plan, alone):
    """Each has a stream of its own open, and is given its batches only."""
    names = list(CONFIGS)
    with ExitStack() as ends:
        queues = {name: deque() for name in names}
        for at, batch in enumerate(planned(plan)):
            queues[names[at % len(names)]].append(batch)
        streams = {
            name: ends.enter_context(closing(make(name, thumbnails))).stream(iter(queues[name]))
            for name in names
        }
        found = images(next(streams[names[at % len(names)]]) for at in range(COUNT))
        assert all(next(each, None) is None for each in streams.values())
    check(found, [alone[names[at % len(names)]][at] for at in range(COUNT)])


@pytest.mark.parametrize("names", [("dali_cpu", "torch"), ("torch", "dali_cpu_graph")])
def test_a_batch_is_made_in_parts_by_several(thumbnails, plan, alone, names):
    parts = [np.arange(3), np.arange(3, 8)]
    made = []
    with ExitStack() as ends:
        for name, places in zip(names, parts, strict=True):
            backend = ends.enter_context(closing(make(name, thumbnails)))
            taken = (batch.take(places[places < len(batch)]) for batch in planned(plan))
            made.append(images(backend.stream(iter(list(taken)))))
    found = [torch.cat(both) for both in zip(*made, strict=True)]
    expected = [
        torch.cat(
            [
                alone[name][at][places[places < len(found[at])]]
                for name, places in zip(names, parts, strict=True)
            ]
        )
        for at in range(COUNT)
    ]
    check(found, expected)


@pytest.mark.parametrize("name", CONFIGS)
def test_batches_come_in_any_order(thumbnails, plan, alone, name):
    with closing(make(name, thumbnails)) as backend:
        found = images(backend.stream(iter(planned(plan)[::-1])))
    check(found[::-1], alone[name])
