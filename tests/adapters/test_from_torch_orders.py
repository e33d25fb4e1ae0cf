"""Samplers and batch samplers of programs: the order of an epoch is the very same, or it is refused
because more than the epoch decides it.
"""

import random

import composes
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    Sampler,
    SequentialSampler,
    Subset,
    default_collate,
)
from torchvision import datasets

import dali_pipes as dp
from dali_pipes.adapters.from_torch.batches import read_order
from dali_pipes.adapters.transforms.reading import NotConvertibleError

EVAL = composes.torchvision_eval(40, 32)
CPU = {"device": "cpu"}
COUNT = 37


class ByEpoch(Sampler):
    """As many programs have it: a permutation of their own for each epoch."""

    def __init__(self, count=COUNT, seed=3):
        self.count, self.seed, self.epoch = count, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.count

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(torch.randperm(self.count, generator=generator).tolist())


class ByLength(BatchSampler):
    """Batches of neighbours in a sorted order; the batches are shuffled, the last one is smaller.

    The epoch is left to the sampler inside, as in torchvision's GroupedBatchSampler.
    """

    def __init__(self, batch_size):
        super().__init__(DistributedSampler(range(COUNT), 1, 0, seed=5), batch_size, False)

    def __iter__(self):
        order = sorted(range(COUNT), key=lambda index: (index * 7) % COUNT)
        batches = [order[at : at + self.batch_size] for at in range(0, COUNT, self.batch_size)]
        first = next(iter(self.sampler)) % (len(batches) - 1)
        yield from batches[first:-1] + batches[:first] + batches[-1:]


class Identities(ByEpoch):
    """Two images of each chosen class, so that some come more than once in an epoch."""

    def __iter__(self):
        draw = np.random.default_rng(self.epoch)
        for label in draw.permutation(5)[:4].tolist():
            yield from (label + 5 * draw.integers(0, 7, 2)).tolist()

    def __len__(self):
        return 8


class _RepeatSampler:
    """A program's own, which has the name of one of timm's, and turns batches around."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __len__(self):
        return len(self.sampler)

    def __iter__(self):
        return (batch[::-1] for batch in self.sampler)


def batches_of(old, tell, epochs=(0, 1, 4)):
    made = []
    for epoch in epochs:
        tell(epoch)
        made.append([labels.tolist() for _, labels in old])
    return made


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """A data set whose labels are the indices of its samples."""
    root = tmp_path_factory.mktemp("numbered")
    (root / "a").mkdir()
    for at in range(COUNT):
        Image.new("RGB", (48, 40 + at), (at, 2 * at, 90)).save(root / "a" / f"{at:02d}.png")
    made = datasets.ImageFolder(root, EVAL)
    made.samples = [(path, at) for at, (path, _) in enumerate(made.samples)]
    return made


@pytest.fixture(autouse=True)
def quickly(few_made_up):
    """With few of the made-up pictures, which have nothing to do with the order."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (lambda: {"sampler": ByEpoch(), "batch_size": 8}, "sampler"),
        (lambda: {"sampler": ByEpoch(), "batch_size": 8, "drop_last": True}, "sampler"),
        (lambda: {"sampler": Identities(), "batch_size": 4}, "sampler"),
        (lambda: {"batch_sampler": BatchSampler(ByEpoch(), 8, True)}, "batch_sampler"),
        (lambda: {"batch_sampler": ByLength(6)}, "batch_sampler"),
    ],
)
def test_the_order_of_each_epoch_is_theirs(options, told, numbered):
    old = DataLoader(numbered, **options())
    sampler = old.sampler if told == "sampler" else old.batch_sampler.sampler
    expected = batches_of(old, sampler.set_epoch)
    sampler.set_epoch(9)
    before = [labels.tolist() for _, labels in old]
    with dp.from_torch(old, dp.TorchConfig(num_workers=0), **CPU) as loader:
        assert batches_of(loader, getattr(loader, told).set_epoch) == expected
        assert len(loader) == len(loader.batch_sampler) == len(expected[0])
        assert type(sampler).__name__ in loader.explain() or told == "batch_sampler"
    # theirs is still in the epoch that the program has told it
    assert [labels.tolist() for _, labels in old] == before


@pytest.mark.slow
def test_a_batch_sampler_with_the_name_of_timms(numbered):
    batches = BatchSampler(SequentialSampler(numbered), 8, False)
    old = DataLoader(numbered, batch_sampler=_RepeatSampler(batches))
    expected = [labels.tolist() for _, labels in old]
    assert expected[0] == list(range(8))[::-1]
    with dp.from_torch(old, dp.TorchConfig(num_workers=0), **CPU) as loader:
        assert [labels.tolist() for _, labels in loader] == expected


@pytest.mark.slow
def test_an_order_is_resumed_and_loaded_by_workers(numbered):
    def make(workers=0):
        old = DataLoader(numbered, 8, sampler=ByEpoch())
        return dp.from_torch(old, dp.TorchConfig(num_workers=workers), check=False, **CPU)

    with make() as whole, make() as first, make(workers=1) as second:
        expected = [labels.tolist() for _ in range(2) for _, labels in whole]
        taken = [labels.tolist() for _, labels in first]
        batches = iter(first)
        taken += [next(batches)[1].tolist() for _ in range(2)]
        second.load_state_dict(first.state_dict())
        assert taken + [labels.tolist() for _, labels in second] == expected
        state = first.state_dict()
    other = DataLoader(numbered, 8, sampler=ByEpoch(seed=4))
    with (
        dp.from_torch(other, dp.TorchConfig(num_workers=0), check=False, **CPU) as loader,
        pytest.raises(dp.ConfigError, match=r"cannot resume.*sampling"),
    ):
        loader.load_state_dict(state)


class Unseeded(ByEpoch):
    def __iter__(self):
        return iter(torch.randperm(self.count).tolist())


class SeedingGlobally(ByEpoch):
    def __iter__(self):
        random.seed(self.epoch)
        return iter(random.sample(range(self.count), self.count))


class GoingOn(ByEpoch):
    """One generator for all epochs."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)

    def __iter__(self):
        return iter(torch.randperm(self.count, generator=self.generator).tolist())


class OfHardOnes(ByEpoch):
    def update(self, losses):
        self.losses = losses


class Growing(ByEpoch):
    def __iter__(self):
        return iter(range(10 + self.epoch))


class Outside(ByEpoch):
    def __iter__(self):
        return iter([0, 1, COUNT])


class Broken(ByEpoch):
    def __iter__(self):
        raise KeyError("lengths")


class Unequal(ByLength):
    def __iter__(self):
        yield from ([0, 1], [2, 3, 4], [5])


LEVELS = {"now": 0.0}


class TellingTheData(ByEpoch):
    """Sets the stage of a training at the beginning of each epoch."""

    def __init__(self, data):
        super().__init__()
        self.data = data

    def __iter__(self):
        self.data.level = 0.5 + self.epoch
        return super().__iter__()


class TellingAll(ByEpoch):
    def __iter__(self):
        LEVELS["now"] = 0.5 + self.epoch
        return super().__iter__()


class ShufflingTheData(ByEpoch):
    """Shuffles the list, dict, set or array of the data set in place."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def __iter__(self):
        if isinstance(self.rows, set):
            self.rows.add(("new", self.epoch))
        elif isinstance(self.rows, dict):
            self.rows[0] = self.epoch
        else:
            random.Random(self.epoch).shuffle(self.rows)
        return iter(range(self.count))


REFUSED = {
    r"Unseeded \(test_from_torch_orders.py:\d+\) .* global random numbers.*set_epoch": Unseeded,
    "SeedingGlobally .* global random numbers": SeedingGlobally,
    "GoingOn .* another one each time": GoingOn,
    "OfHardOnes .* may change its order by update": OfHardOnes,
    "Growing .* 10 samples in one epoch and 11 in the next": Growing,
    "Outside .* the index 37, and there are 37 samples": Outside,
    "Broken .* fails \\(KeyError: 'lengths'\\)": Broken,
}


@pytest.mark.parametrize("message", REFUSED)
def test_an_order_that_more_than_the_epoch_decides_is_refused(message):
    data = range(COUNT)
    states = random.getstate(), torch.get_rng_state()
    with pytest.raises(NotConvertibleError, match=message):
        read_order(DataLoader(data, 8, sampler=REFUSED[message]()), COUNT)
    assert random.getstate() == states[0] and torch.equal(torch.get_rng_state(), states[1])


def test_a_sampler_that_changes_the_data_is_refused_and_changes_nothing():
    data = Subset(range(COUNT), range(COUNT))
    data.level = 0.0
    for sampler, name in ((TellingTheData(data), "level"), (TellingAll(), "now")):
        with pytest.raises(
            NotConvertibleError, match=rf"{type(sampler).__name__} .* changes {name}"
        ):
            read_order(DataLoader(data, 8, sampler=sampler), COUNT)
    assert (data.level, LEVELS) == (0.0, {"now": 0.0})


@pytest.mark.parametrize("kind", [list, np.array, set, lambda each: dict.fromkeys(each, 0)])
def test_a_sampler_that_changes_a_long_table_is_refused_and_changes_nothing(kind):
    data = Subset(range(COUNT), range(COUNT))
    data.samples = kind(range(500))
    sampler = ShufflingTheData(data.samples)
    with pytest.raises(NotConvertibleError, match=r"it changes .*, on which samples may depend"):
        read_order(DataLoader(data, 8, sampler=sampler), COUNT)
    assert list(data.samples) == list(range(500))


def test_batches_of_many_sizes_are_refused():
    with pytest.raises(NotConvertibleError, match=r"batch_sampler Unequal .* 1 to 3 samples"):
        read_order(DataLoader(range(COUNT), batch_sampler=Unequal(4)), COUNT)


def test_an_order_of_several_processes_is_refused(monkeypatch):
    old = DataLoader(range(COUNT), 8, sampler=ByEpoch())
    with pytest.raises(NotConvertibleError, match="in several processes"):
        read_order(old, COUNT, dp.Rank(0, 2))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(NotConvertibleError, match="what the others load is in its code"):
        read_order(old, COUNT)


@pytest.mark.slow
def test_an_epoch_of_another_length_later_on(numbered):
    class Later(ByEpoch):
        def __iter__(self):
            return iter(range(20 if self.epoch < 2 else 19))

    old = DataLoader(numbered, 20, sampler=Later(), collate_fn=default_collate)
    message = r"Later .* 19 samples in epoch 2, .* 20 in epoch 0"
    with (
        dp.from_torch(old, dp.TorchConfig(num_workers=0), check=False, **CPU) as loader,
        pytest.raises(dp.ConfigError, match=message),
    ):
        for _ in range(3):
            list(loader)


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_evaluation_whose_sampler_drops_and_whose_loader_keeps(shuffle, numbered):
    """37 samples on 2 ranks: each gets 18, in batches of 8, 8 and 2."""
    seen = []
    for rank in range(2):
        sampler = DistributedSampler(numbered, 2, rank, shuffle=shuffle, drop_last=True)
        old = DataLoader(numbered, 8, sampler=sampler)
        with dp.from_torch(old, dp.TorchConfig(num_workers=0), check=False, **CPU) as loader:
            ours = [labels.tolist() for _, labels in loader]
            assert "1 of 37 left out" in loader.explain()
        assert list(map(len, ours)) == [8, 8, 2]
        if not shuffle:
            assert ours == [labels.tolist() for _, labels in old]
        seen += [label for labels in ours for label in labels]
    assert len(set(seen)) == 36
