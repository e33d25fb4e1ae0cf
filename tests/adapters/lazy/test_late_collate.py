"""Collate functions that look at pixels run in the training process, on finished pictures, with
the random numbers that they would have had in the worker.
"""

import random

import numpy as np
import pytest
import torch
from lazy_programs import CPU, Pictures, assert_equal, batches_of, heard_of, loader_of, seed_globals
from torch.utils.data import default_collate
from torchvision.transforms import v2

from dali_pipes.adapters.lazy.finishing import draws_on_cpu
from dali_pipes.adapters.lazy.loader import LazyLoader
from dali_pipes.adapters.lazy.random_numbers import own_numbers


def mix(samples):
    """Draws from all generators, before and after it has looked."""
    images, labels, *rest = default_collate(samples)
    ratio, order = np.random.beta(1, 1), torch.randperm(len(images))
    images = images * ratio + images[order] * (1 - ratio)
    images = images + torch.randn_like(images) * random.random()
    return images, labels, labels[order], float(ratio), *rest


def erase_some(samples):
    """Looks at some batches only."""
    images, *rest = default_collate(samples)
    if random.random() < 0.6:
        images = images.clone()
        images[:, :, 3:9, 3:9] = images[:, :, 3:9, 3:9].flip(-1) * 0.5
    return images, *rest


class Mixing:
    """As torchvision's recipes do it; it keeps nothing from batch to batch."""

    def __init__(self):
        self.mix = v2.RandomChoice([v2.MixUp(num_classes=30), v2.CutMix(num_classes=30)])

    def __call__(self, samples):
        images, labels, *rest = default_collate(samples)
        return *self.mix(images, labels), *rest


class Counting(Mixing):
    """Keeps something from batch to batch."""

    count = 0

    def __call__(self, samples):
        self.count += 1
        images, *rest = default_collate(samples)
        return images * images.mean() * self.count, *rest


TOTAL = 0


def count_globally(samples):
    global TOTAL
    TOTAL += 1
    images, *rest = default_collate(samples)
    return images * images.mean() * TOTAL, *rest


def draw_by_pixels(samples):
    """How many numbers it draws depends on what it sees."""
    images, *rest = default_collate(samples)
    numbers = torch.rand(1 + int(images.abs().sum()) % 5)
    return images, numbers.sum(), *rest


@pytest.mark.parametrize("collate", [mix, erase_some, Mixing()], ids=["all", "some", "recipe"])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_are_those_of_the_old_loader(files, workers, collate):
    def own():
        return loader_of(
            Pictures(files), batch_size=2, shuffle=True, num_workers=workers, collate_fn=collate
        )

    expected = batches_of(own(), 2)
    with LazyLoader(own(), check=False) as loader:
        found, heard = heard_of(loader, 2)
        assert_equal(found, expected)
        assert not heard
        assert "runs in the training process" in loader.explain()
        # only the first batches of each worker, from which it is seen that it looks
        assert loader.waited >= 40 - 2 * 2 * 2 * max(workers, 1)


@pytest.mark.parametrize("collate", [mix, erase_some, Mixing()], ids=["all", "some", "recipe"])
def test_with_a_seed_any_number_of_workers_gives_the_same(files, collate):
    found = []
    for workers in (0, 2):
        own = loader_of(Pictures(files), shuffle=True, num_workers=workers, collate_fn=collate)
        with LazyLoader(own, seed=3, check=False) as loader:
            found.append(batches_of(loader, 2))
    assert_equal(found[0], found[1])


@pytest.mark.parametrize(
    "collate",
    [Counting(), count_globally, draw_by_pixels],
    ids=["object", "global", "pixels"],
)
def test_what_cannot_run_elsewhere_runs_in_the_worker(files, collate):
    def own():
        return loader_of(Pictures(files), num_workers=1, collate_fn=collate)

    expected = batches_of(own(), 2)
    with LazyLoader(own(), check=False) as loader:
        found, heard = heard_of(loader, 2)
        assert_equal(found, expected)
        assert "it runs in the workers, with true pictures" in loader.explain()
    assert len(heard) == 1


def test_a_backend_makes_the_pictures_before_they_are_mixed(files):
    def own():
        return loader_of(Pictures(files), num_workers=1, collate_fn=mix)

    expected = batches_of(own())
    with LazyLoader(own(), CPU, check=False) as loader:
        found = batches_of(loader)
        assert loader._executor.count
    for (old, *draws), (new, *drawn) in zip(expected, found, strict=True):
        assert_equal([*old[1:], draws], [*new[1:], drawn])
        assert (old[0] - new[0]).abs().mean() < 0.5 / 510


def test_its_error_is_the_programs_own(files):
    def collate(samples):
        images, labels, *_ = default_collate(samples)
        if 8 in labels:
            raise ZeroDivisionError("eight")
        return images * images.mean(), labels

    own = loader_of(Pictures(files), num_workers=1, collate_fn=collate)
    with LazyLoader(own, check=False) as loader:
        batches = iter(loader)
        assert len([next(batches), next(batches)]) == 2
        with pytest.raises(ZeroDivisionError, match="eight"):
            next(batches)


def test_the_first_batch_is_compared(files):
    own = loader_of(Pictures(files), num_workers=1, collate_fn=mix)
    with LazyLoader(own, seed=1) as loader:
        found, heard = heard_of(loader)
    assert not heard
    assert len(found) == 5


@pytest.mark.parametrize(
    "draw",
    [
        lambda device: torch.randperm(7, device=device),
        lambda device: torch.rand(3, device=device),
        lambda device: torch.randn((2, 3), device=device),
        lambda device: torch.randint(9, (4,), device=device),
        lambda device: torch.normal(0.0, 1.0, (3,), device=device),
    ],
    ids=["randperm", "rand", "randn", "randint", "normal"],
)
def test_numbers_for_another_device_are_drawn_on_the_cpu(draw):
    with own_numbers():
        seed_globals()
        expected = draw("cpu")
        state = torch.get_rng_state()
        seed_globals()
        with draws_on_cpu():
            made = draw("meta")
        assert torch.equal(torch.get_rng_state(), state)
    assert made.device.type == "meta"
    assert (made.shape, made.dtype) == (expected.shape, expected.dtype)
