"""Random numbers of a program: all of its generators, seeded by place, and their states."""

import random
import warnings
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from lazy_programs import Pictures, assert_equal, batches_of, loader_of, seed_globals
from PIL import Image
from torch.utils.data import Subset, default_collate, get_worker_info

import dali_pipes as dp
from dali_pipes.adapters.lazy.loader import LazyLoader
from dali_pipes.adapters.lazy.random_numbers import (
    Numbers,
    own_numbers,
    read_states,
    restore,
    seed_of,
)

GLOBAL = np.random.default_rng(1)


class Owner:
    """Has generators in many places."""

    def __init__(self):
        rng = np.random.default_rng(2)
        self.python, self.torch = random.Random(3), torch.Generator()
        self.steps = [lambda: rng.random(), {"legacy": np.random.RandomState(4)}]
        self.system = random.SystemRandom()
        self.files = ["file"] * 100_000

    def draw(self):
        return [
            self.python.random(),
            float(torch.rand((), generator=self.torch)),
            self.steps[0](),
            self.steps[1]["legacy"].rand(),
            GLOBAL.random(),
            random.random(),
            np.random.rand(),
            float(torch.rand(())),
        ]


@pytest.mark.parametrize("is_seeded", [True, False])
def test_all_generators_of_a_program_are_found(is_seeded):
    owner = Owner()
    numbers = Numbers(is_seeded, dataset=owner)
    assert len(numbers.own) == 5
    paths = {each.path for each in numbers.own}
    assert {"dataset.python", "dataset.torch", "dataset.steps[1]['legacy']"} < paths
    assert any(path.endswith(":GLOBAL") for path in paths)

    with own_numbers():
        states = numbers.states()
        first = owner.draw()
        assert owner.draw() != first
        numbers.restore(states)
        assert owner.draw() == first

        numbers.seed(1, "sample", 2)
        first = owner.draw()
        numbers.seed(1, "sample", 3)
        other = owner.draw()
        numbers.seed(1, "sample", 2)
        assert owner.draw() == first
        assert not set(other) & set(first)
        assert len(set(first)) == len(first)


def test_states_pickle_and_come_back():
    with own_numbers():
        seed_globals(1)
        random.gauss(0, 1)  # Python and NumPy keep the second of two numbers
        np.random.randn()
        states = read_states()

        def draw():
            return random.gauss(0, 1), np.random.randn(), float(torch.randn(()))

        first = draw()
        assert draw() != first
        restore(states)
        assert draw() == first


def test_own_numbers_leaves_the_process_as_it_was():
    before = read_states()
    with pytest.raises(KeyError), own_numbers():
        seed_globals(5)
        raise KeyError
    assert read_states() == before


def test_seeds_of_different_keys_differ():
    keys = [(1, "sample", 0, 12), (1, "sample", 1, 2), (12, "sample", 0), (1, "collate", 0, 12)]
    seeds = {seed_of(*key) for key in keys}
    assert len(seeds) == len(keys)
    assert seed_of(0, "sample", 0, 0) == seed_of(0, "sample", 0, 0)


# In a loader


class Generous(Pictures):
    """Draws from generators of its own, too."""

    def __init__(self, files):
        super().__init__(files)
        self.rng, self.torch = np.random.default_rng(), torch.Generator()

    def __getitem__(self, at):
        own = float(self.rng.random()), float(torch.rand((), generator=self.torch))
        return *super().__getitem__(at), *own


def draw_and_collate(samples):
    return [*default_collate(samples), random.random(), float(torch.rand(())), np.random.rand()]


def run(files, workers, *, seed=5, epochs=2, **options):
    own = loader_of(
        Generous(files), shuffle=True, num_workers=workers, collate_fn=draw_and_collate, **options
    )
    with LazyLoader(own, seed=seed, check=False) as loader:
        return batches_of(loader, epochs)


def test_a_seed_decides_everything_with_any_number_of_workers(files):
    expected = run(files, 0)
    for workers in (1, 2):
        assert_equal(run(files, workers), expected)
    assert_equal(run(files, 2, persistent_workers=True, prefetch_factor=3), expected)
    assert run(files, 0, seed=6)[0][0][1].tolist() != expected[0][0][1].tolist()

    first, second = expected[:5], expected[5:]  # each epoch has its own order and numbers
    numbers = [value for batch in (*first, *second) for value in batch[0][2].tolist()]
    assert len(set(numbers)) == len(numbers)
    assert [batch[0][1].tolist() for batch in first] != [batch[0][1].tolist() for batch in second]


class OfItsWorker(Pictures):
    def __getitem__(self, at):
        worker = get_worker_info()
        return at, np.random.default_rng(worker.seed).random() if worker else 0.0


def test_a_worker_has_the_seed_of_its_sample(files):
    def epochs(workers, **options):
        own = loader_of(OfItsWorker(files), num_workers=workers, **options)
        with LazyLoader(own, seed=5, check=False) as loader:
            return batches_of(loader, 2)

    expected = epochs(1)
    assert_equal(epochs(2), expected)
    assert_equal(epochs(2, persistent_workers=True), expected)
    numbers = [float(value) for (_, drawn), *_ in expected for value in drawn]
    assert len(set(numbers)) == len(numbers)


class MakesLater(Pictures):
    """Has a generator and a count only from its first sample on."""

    def __getitem__(self, at):
        vars(self).setdefault("rng", np.random.default_rng(1))
        self.asked = getattr(self, "asked", 0) + 1
        return at, self.rng.random()


class Table:
    """Made by the first samples."""

    def __init__(self, count):
        self.count = count


class Remembers(Pictures):
    """Keeps something from sample to sample; `number` says what, and gives a number of it."""

    size = 16

    def __init__(self, files, number):
        super().__init__(files)
        self.of_no_use, self.number, self.known = float("nan"), number, {}
        self.seen, self.calls, self.length = {"n": 0}, [0], None
        self.drawn = torch.zeros(())
        self.manifest = dp.Manifest.open(Path(files[0]).parent, with_labels=False)

    def __getitem__(self, at):
        return at, self.number(self, at)

    @cached_property
    def total(self):
        return len(self.files)


def of_a_table(data, at, step=0):
    table = data.known.setdefault("table", Table(3))
    table.count += step
    return table.count


def of_a_dict(data, at):
    data.seen["n"] += 1
    return data.seen["n"]


def of_a_tensor(data, at):
    data.drawn += 1
    return float(data.drawn)


def of_every_fifth(data, at):
    data.calls[0] += 0.2
    return int(data.calls[0])


def of_a_length(data, at):
    data.length = data.length or len(data.files)
    return data.length


def of_a_cache(data, at):
    return data.known.setdefault(at, at * 2)


def heard(dataset, seed, workers):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with LazyLoader(loader_of(dataset, num_workers=workers), seed=seed) as loader:
            list(loader)
    return sorted(str(each.message) for each in said if "first samples" in str(each.message))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("number", "path"),
    [
        (of_a_table, None),
        (of_a_length, None),
        (of_a_cache, None),
        (lambda data, at: data.total, None),
        # a Manifest reads its columns when they are first asked for
        (lambda data, at: len(str(data.manifest.path(at))), None),
        (partial(of_a_table, step=1), "dataset.known['table'].count"),
        (of_a_dict, "dataset.seen['n']"),
        (of_a_tensor, "dataset.drawn"),
        (of_every_fifth, "dataset.calls[0]"),
    ],
)
def test_what_the_samples_make_is_said_only_if_it_changes(files, workers, number, path):
    said = heard(Remembers(files, number), 5, workers)
    assert [each.partition(" has changed with the first")[0] for each in said] == [path] * bool(
        path
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_two_batches_are_enough_to_see_a_count(files, workers):
    said = heard(MakesLater(files[:8]), 5, workers)
    assert [each.partition(" ")[0] for each in said] == ["dataset.asked", "dataset.rng"]


@pytest.mark.parametrize("workers", [0, 1])
def test_what_no_seed_decides_is_said(files, workers):
    count, generator = heard(MakesLater(files), 5, workers)
    assert count.startswith("dataset.asked has changed with the first samples")
    assert generator.startswith("dataset.rng was made with the first samples")
    assert heard(MakesLater(files), None, workers) == heard(Generous(files), 5, workers) == []


@pytest.mark.parametrize("workers", [0, 1])
def test_with_a_seed_the_training_draws_what_it_drew_without_a_loader(files, workers):
    seed_globals()
    alone = [[random.random(), float(torch.rand(())), np.random.rand()] for _ in range(5)]
    assert [batch[1:] for batch in run(files, workers, epochs=1)] == alone


def test_a_sample_that_comes_twice_is_drawn_twice(files):
    own = loader_of(Pictures(files), sampler=[3, 3, 3, 3])
    with LazyLoader(own, seed=1) as loader:
        (batch,) = loader
    assert batch[1].tolist() == [3] * 4
    assert len(set(batch[2].tolist())) == 4


class Augmented(Pictures):
    def __init__(self, files, compose):
        super().__init__(files)
        self.compose = compose

    def __getitem__(self, at):
        with Image.open(self.files[at]) as picture:
            array = np.array(picture.convert("RGB"))
        return self.compose(image=array)["image"], at


def test_albumentations_is_seeded_with_different_numbers_for_its_steps(files):
    albumentations = pytest.importorskip("albumentations")
    drawn = []

    class Draws(albumentations.ImageOnlyTransform):
        def apply(self, image, **_):
            return image

        def get_params(self):
            drawn.append((self.py_random.random(), self.random_generator.random()))
            return {}

    def make(workers):
        steps = [albumentations.RandomCrop(16, 16), albumentations.HorizontalFlip(), Draws(p=1)]
        compose = albumentations.Compose([*steps, Draws(p=1)])
        return loader_of(Augmented(files, compose), shuffle=True, num_workers=workers)

    found = []
    for workers in (0, 1, 2):
        with LazyLoader(make(workers), seed=3, check=False) as loader:
            found.append(batches_of(loader, 2))
    assert_equal(found[1], found[0])
    assert_equal(found[2], found[0])
    assert len(set(drawn)) == len(drawn) == 2 * 20 * 2  # of the loader without workers

    # outside of the loader they are not seeded
    own = make(0)
    one, other = list(own), list(own)
    assert not all(torch.equal(a[0], b[0]) for a, b in zip(one, other, strict=True))


class Together(Pictures):
    """Makes all samples of a batch at once, as Hugging Face's data sets do."""

    def __getitems__(self, indices):
        return [self[at] for at in indices]


def test_samples_that_are_made_together_are_seeded_by_batch(files):
    found = []
    for workers in (0, 2):
        with LazyLoader(
            loader_of(Together(files), shuffle=True, num_workers=workers), seed=2, check=False
        ) as loader:
            found.append(batches_of(loader))
            assert "made together" in loader.explain()
    assert_equal(found[1], found[0])


def test_explain_says_what_is_seeded(files):
    with LazyLoader(loader_of(Generous(files)), seed=2) as loader:
        assert "dataset.rng, dataset.torch" in loader.explain()
    with LazyLoader(loader_of(Generous(files))) as loader:
        assert "as the program draws them" in loader.explain()


def test_generators_inside_of_wrapped_data_sets_are_found(files):
    make = partial(loader_of, Subset(Generous(files), range(8)))
    found = []
    for workers in (0, 2):
        with LazyLoader(make(num_workers=workers), seed=2, check=False) as loader:
            found.append(batches_of(loader))
    assert_equal(found[1], found[0])


def test_a_subset_is_asked_for_one_sample_after_the_other(files):
    """Its `__getitems__` has no more than that in it, so batches of any size are equal."""
    found = []
    for size in (2, 4):
        own = loader_of(Subset(Pictures(files), range(8)), batch_size=size)
        with LazyLoader(own, seed=2, check=False) as loader:
            found.append([image for batch in loader for image in batch[0]])
            assert "made together" not in loader.explain()
    assert_equal(found[1], found[0])
