"""Orders: the program's samplers with a seed, cut by ranks, and gone on with in the middle."""

import itertools
import json
import random
from collections import Counter

import pytest
import torch
from lazy_programs import Pictures, assert_equal, batches_of, copied, indices_of, loader_of
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import dali_pipes as dp
from dali_pipes.adapters.lazy.loader import LazyLoader

COUNT = 20


class Twice(Sampler):
    """A sampler of a program's own, that draws."""

    def __init__(self, count=COUNT):
        self.count = count

    def __len__(self):
        return self.count

    def __iter__(self):
        for _ in range(self.count // 2):
            yield from [random.randrange(self.count)] * 2


class Ragged:
    """A batch sampler of a program's own, whose batches have different sizes."""

    def __iter__(self):
        left = torch.randperm(COUNT).tolist()
        while left:
            size = random.choice([2, 3])
            yield left[:size]
            left = left[size:]


class Counts(Sampler):
    """A sampler of a program's own, that counts its epochs, as it begins or ends one."""

    def __init__(self, at_end=False):
        self.at_end, self.epoch, self.order = at_end, 0, random.Random(0)

    def __len__(self):
        return COUNT

    def __iter__(self):
        if not self.at_end:
            self.epoch += 1
        yield from [(number * 3 + self.epoch) % COUNT for number in range(COUNT)]
        if self.at_end:
            self.epoch += 1


SAMPLERS = {
    "random": lambda data: RandomSampler(data),
    "random, with replacement": lambda data: RandomSampler(data, True, 50),
    "random, with a generator": lambda data: RandomSampler(data, generator=torch.Generator()),
    "sequential": lambda data: SequentialSampler(data),
    "weighted": lambda data: WeightedRandomSampler(range(1, COUNT + 1), 18),
    "subset": lambda data: SubsetRandomSampler(range(3, 17)),
    "own": lambda data: Twice(),
    "own, that counts": lambda data: Counts(),
    "own, that counts in the end": lambda data: Counts(at_end=True),
}


def make(files, name, *, workers=0, size=3, drop_last=False):
    data = Pictures(files)
    return loader_of(
        data,
        batch_size=size,
        sampler=SAMPLERS[name](data),
        num_workers=workers,
        drop_last=drop_last,
    )


def lazy(own, **options):
    return LazyLoader(own, seed=4, check=False, **options)


def plain(loader):
    """The batches of an epoch, and the states before them and after them."""
    with loader:
        states, batches = [json.loads(json.dumps(loader.state_dict()))], []
        for batch in loader:
            batches.append(copied(batch))
            states.append(json.loads(json.dumps(loader.state_dict())))
    return batches, states


def samples_of(batches):
    """Each sample alone: index, numbers and pixels."""
    return [list(sample) for batch in batches for sample in zip(*batch, strict=True)]


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_resume_goes_on_anywhere(files, name):
    batches, states = plain(lazy(make(files, name)))
    assert [state["samples"] for state in states[:3]] == [0, 3, 6]
    assert (states[-1]["epoch"], states[-1]["samples"]) == (1, 0)
    for step, workers in ((1, 0), (3, 2), (len(batches) - 1, 1)):
        with lazy(make(files, name, workers=workers)) as loader:
            loader.load_state_dict(states[step])
            assert_equal(copied(list(loader)), batches[step:])
            assert loader.state_dict() == states[-1]


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("count", [2, 3])
def test_ranks_together_have_the_samples_of_one(files, name, count):
    """Each sample with the same numbers; the first come again where they are not enough."""
    whole = samples_of(plain(lazy(make(files, name)))[0])
    parts = []
    for index in range(count):
        loader = lazy(make(files, name), rank=dp.Rank(index, count))
        expected = len(loader)
        batches = plain(loader)[0]
        assert len(batches) == expected
        parts.append(samples_of(batches))
    assert len({len(part) for part in parts}) == 1
    together = [sample for group in zip(*parts, strict=True) for sample in group]
    assert_equal(together[: len(whole)], whole)
    again = together[len(whole) :]
    assert [each[1] for each in again] == [each[1] for each in whole[: len(again)]]


@pytest.mark.parametrize("name", ["random", "weighted", "own"])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 3)])
def test_a_resume_goes_on_with_another_number_of_ranks(files, name, before, after):
    whole = samples_of(plain(lazy(make(files, name)))[0])
    parts = [
        plain(lazy(make(files, name, size=2), rank=dp.Rank(index, before)))
        for index in range(before)
    ]
    states = {json.dumps(states[2]) for _, states in parts}
    assert len(states) == 1  # of all ranks
    state = json.loads(states.pop())
    delivered = 2 * 2 * before
    assert state["samples"] == delivered

    resumed = []
    for index in range(after):
        with lazy(make(files, name, size=2), rank=dp.Rank(index, after)) as loader:
            loader.load_state_dict(state)
            resumed.append(samples_of(copied(list(loader))))
    together = [sample for group in zip(*resumed, strict=True) for sample in group]
    assert_equal(together[: len(whole) - delivered], whole[delivered:])
    assert len(together) < len(whole) - delivered + after


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_distributed_sampler_has_its_own_order(files, drop_last):
    """With a seed it is cut as without: padded, or the rest left out."""
    data = Pictures(files[:19])
    for index, epoch in itertools.product(range(3), (0, 2)):
        sampler = DistributedSampler(data, 3, index, seed=8, drop_last=drop_last)
        own = loader_of(data, sampler=sampler)
        sampler.set_epoch(epoch)
        expected = indices_of(own)
        with lazy(own) as loader:
            loader.set_epoch(epoch)
            assert len(loader) == len(own)
            assert indices_of(loader) == expected


def test_a_distributed_sampler_goes_on_with_other_ranks(files):
    data = Pictures(files)

    def loader(index, count):
        own = loader_of(data, batch_size=2, sampler=DistributedSampler(data, count, index))
        return lazy(own)

    whole = samples_of(plain(loader(0, 1))[0])
    _, states = plain(loader(0, 2))
    resumed = []
    for index in range(3):
        with loader(index, 3) as each:
            each.load_state_dict(states[1])
            resumed.append(samples_of(copied(list(each))))
    together = [sample for group in zip(*resumed, strict=True) for sample in group]
    assert_equal(together[:16], whole[4:])


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("how", ["own", "loader.sampler", "loader", "batch_sampler"])
def test_set_epoch_works_as_programs_call_it(files, seed, how):
    data = Pictures(files)
    sampler = DistributedSampler(data, 2, 0)
    orders = {}
    for epoch in (0, 1, 5):
        sampler.set_epoch(epoch)
        orders[epoch] = indices_of(loader_of(data, sampler=sampler))
    sampler.set_epoch(0)

    with LazyLoader(loader_of(data, sampler=sampler), seed=seed, check=False) as loader:
        assert isinstance(loader.sampler, DistributedSampler)
        whose = {
            "own": sampler,
            "loader.sampler": loader.sampler,
            "loader": loader,
            "batch_sampler": loader.batch_sampler.sampler,
        }[how]
        for epoch in (0, 5, 1, 5):
            whose.set_epoch(epoch)
            assert indices_of(loader) == orders[epoch]


def test_epochs_without_set_epoch_differ_with_a_seed(files):
    with LazyLoader(make(files, "random"), seed=1) as loader:
        first, second = indices_of(loader), indices_of(loader)
        loader.set_epoch(0)
        assert indices_of(loader) == first != second


@pytest.mark.parametrize("seed", [None, 4])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", [name for name in SAMPLERS if "counts" in name])
def test_what_a_sampler_counts_goes_on_after_a_resume(files, name, workers, seed):
    orders, states = [], []
    with LazyLoader(make(files, name, workers=workers), seed=seed, check=False) as loader:
        for _ in range(3):
            orders.append(indices_of(loader))
            states.append(json.loads(json.dumps(loader.state_dict())))
    assert orders[0] != orders[1] != orders[2]
    with LazyLoader(make(files, name, workers=workers), seed=seed, check=False) as loader:
        loader.load_state_dict(states[1])
        assert indices_of(loader) == orders[2]
        loader.load_state_dict(states[0])
        assert indices_of(loader) == orders[1]


def test_a_count_of_another_sampler_is_refused(files):
    with lazy(make(files, "own, that counts")) as loader:
        state = loader.state_dict() | {"sampler": {"sampler.other": {"epoch": 3}}}
        with pytest.raises(dp.ConfigError, match=r"counts sampler\.other, which Counts has not"):
            loader.load_state_dict(state)


def test_set_epoch_after_a_resume_keeps_its_place(files):
    batches, states = plain(lazy(make(files, "random")))
    with lazy(make(files, "random")) as loader:
        loader.load_state_dict(states[2])
        loader.set_epoch(0)  # as programs do before each epoch
        assert_equal(copied(list(loader)), batches[2:])
        loader.load_state_dict(states[2])
        loader.set_epoch(1)
        assert len(list(loader)) == len(batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_programs_own_sizes(files, workers):
    def own():
        return DataLoader(Pictures(files), batch_sampler=Ragged(), num_workers=workers)

    batches, states = plain(lazy(own()))
    assert Counter(itertools.chain(*indices_of(batches))) == Counter(range(COUNT))
    assert {2, 3} <= {len(each) for each in indices_of(batches)}
    with lazy(own()) as loader:
        loader.load_state_dict(states[3])
        assert_equal(copied(list(loader)), batches[3:])

        state = states[3] | {"samples": states[3]["samples"] - 1}
        loader.load_state_dict(state)
        with pytest.raises(dp.ConfigError, match="Ragged now has a batch from"):
            list(loader)


def test_a_sampler_without_end(files):
    class Endless(Sampler):
        def __iter__(self):
            while True:
                yield random.randrange(COUNT)

    def own(workers):
        return loader_of(Pictures(files), sampler=Endless(), num_workers=workers)

    found = []
    for workers in (0, 1):
        with lazy(own(workers)) as loader:
            found.append(batches_of(loader, most=40))
    assert_equal(found[0], found[1])


# What is refused


def test_ranks_that_cannot_share_an_order_are_refused_by_name(files):
    data, two = Pictures(files), dp.Rank(0, 2)
    with pytest.raises(dp.ConfigError, match="Ragged makes batches of its own"):
        LazyLoader(DataLoader(data, batch_sampler=Ragged()), seed=1, rank=two)
    with pytest.raises(dp.ConfigError, match=r"rank= needs seed=.*RandomSampler"):
        LazyLoader(make(files, "random"), rank=two)
    other = loader_of(data, sampler=DistributedSampler(data, 2, 1))
    with pytest.raises(dp.ConfigError, match="DistributedSampler has rank 1 of 2"):
        LazyLoader(other, seed=1, rank=two)
    with LazyLoader(make(files, "sequential"), rank=two) as loader:
        assert list(itertools.chain(*indices_of(loader))) == list(range(0, 20, 2))


def test_without_a_seed_there_is_no_state_in_the_middle(files):
    with LazyLoader(make(files, "random")) as loader:
        state = loader.state_dict()
        for number, _ in enumerate(loader, 1):
            if number < len(loader):
                with pytest.warns(UserWarning, match=r"in the middle of epoch 0.*seed="):
                    middle = loader.state_dict()
        with pytest.raises(dp.ConfigError, match=r"in the middle of epoch 0.*seed="):
            loader.load_state_dict(json.loads(json.dumps(middle)))
        assert loader.state_dict()["epoch"] == 1
        loader.load_state_dict(state)
        assert loader.epoch == 0


def test_a_state_of_something_else_is_refused_by_name(files):
    _, states = plain(lazy(make(files, "random")))

    def refuse(text, own, **options):
        with (
            LazyLoader(own, **options) as loader,
            pytest.raises(dp.ConfigError, match=text),
        ):
            loader.load_state_dict(states[2])

    refuse(r"length \(20 → 10\)", make(files[:10], "random"), seed=4)
    refuse(r"seed \(4 → 5\)", make(files, "random"), seed=5)
    refuse(r"order \(RandomSampler.*SequentialSampler", make(files, "sequential"), seed=4)
    refuse(r"batch_size \(3 → 4\)", make(files, "random", size=4), seed=4)
    refuse("seed", make(files, "random"))
    with lazy(make(files, "random")) as loader:
        for wrong in ({}, {"epoch": 1}, states[2] | {"epoch": -1}, states[2] | {"samples": 1.5}):
            with pytest.raises(dp.ConfigError, match="state"):
                loader.load_state_dict(wrong)


def test_ranks_may_have_smaller_batches_each_after_a_resume(files):
    _, states = plain(lazy(make(files, "random", size=4)))
    own = make(files, "random", size=2)
    with lazy(own, rank=dp.Rank(1, 2)) as loader:
        loader.load_state_dict(states[1])
        assert len(indices_of(loader)[0]) == 2


def test_a_batch_sampler_of_pytorchs_is_cut_as_well(files):
    data = Pictures(files)
    own = DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 3, drop_last=True))
    parts = []
    for index in range(2):
        with lazy(own, rank=dp.Rank(index, 2)) as loader:
            assert len(loader) == 3
            parts.append(list(itertools.chain(*indices_of(loader))))
    assert len(set(parts[0]) | set(parts[1])) == 18
