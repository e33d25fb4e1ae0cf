"""Ranks that load other images, or in another way, are found by whoever comes later; nobody waits.
Real ranks: test_ranks.py.
"""

import logging
import time

import numpy as np
import pytest
import torch.distributed as dist

import dali_pipes as dp
from dali_pipes.loader import ranks

CONFIG = dp.TorchConfig(num_workers=0)


@pytest.fixture
def group(monkeypatch):
    """The store of a process group of two, whose ranks are built one after the other here."""
    store = dist.HashStore()
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    return store


@pytest.fixture
def as_rank(group, monkeypatch):
    """Builds a loader as another process would at this place of the program: it has built none
    before.
    """
    built = {}

    def build(rank, manifest, count=2, place=("train.py:12", "train.py:40"), **options):
        monkeypatch.setattr(ranks, "_loader_counts", built.setdefault(rank, ranks.Counter()))
        monkeypatch.setattr(ranks, "_find_place", lambda: place)
        options = {
            "transform": dp.TrainTransform(size=32),
            "batch_size": 4,
            "rank": dp.Rank(rank, count),
            **options,
        }
        with dp.build_loader(manifest, CONFIG, **options) as loader:
            return loader

    return build


def test_equal_ranks_are_equal(manifest, as_rank):
    for _ in range(3):
        as_rank(0, manifest)
        as_rank(1, manifest)
        as_rank(1, manifest, transform=dp.EvalTransform(size=32))
        as_rank(0, manifest, transform=dp.EvalTransform(size=32))


def test_a_missing_file_is_named(scanned, as_rank):
    as_rank(0, scanned)
    less = scanned.subset(np.delete(np.arange(len(scanned)), 7))
    with pytest.raises(
        dp.ConfigError,
        match=f"rank 1 loads 36 images in 4 steps, and rank 0 37 in 4; .* {scanned.path(8)} on",
    ):
        as_rank(1, less)


def test_a_renamed_file_is_named(scanned, as_rank):
    as_rank(1, scanned)
    scanned.path(9).rename(scanned.path(9).with_name("009a.jpg"))
    renamed = dp.Manifest.scan(scanned.root, progress=False)
    with pytest.raises(
        dp.ConfigError, match=r"rank 0 loads 37 images .* they differ from .*009a.jpg on"
    ):
        as_rank(0, renamed)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"seed": 1}, "seed 1, not 0"),
        ({"batch_size": 3}, "global_batch_size 6, not 8"),
        ({"transform": dp.TrainTransform(size=48)}, "transform.size"),
        (
            {"transform": dp.TrainTransform(size=32, channels=1, mean=[0.5], std=[0.5])},
            "transform.channels 1, not 3",
        ),
        ({"last_batch": "pad"}, "last_batch pad, not drop"),
        ({"batch_transform": dp.MixUp(num_classes=5)}, "batch_transform"),
    ],
)
def test_other_options_are_named(manifest, as_rank, options, what):
    as_rank(0, manifest)
    with pytest.raises(
        dp.ConfigError,
        match=f"rank 1 loads in another way than rank 0: .*{what}.*; give all ranks the same",
    ):
        as_rank(1, manifest, **options)


@pytest.mark.parametrize("last", [0, 1])
def test_a_loader_that_one_rank_has_in_addition_is_compared_with_none(scanned, as_rank, last):
    """Wherever in the program it is, and whoever comes first; those that all have are compared as
    before.
    """
    more, place = scanned.subset(np.arange(20)), ("data.py:5", "train.py:30")
    order = [
        lambda: as_rank(0, more, place=place),
        lambda: as_rank(0, scanned),
        lambda: as_rank(1, scanned),
    ]
    for build in np.roll(order, last):
        build()
    as_rank(1, scanned.subset(np.arange(30)), place=("data.py:5", "train.py:31"))
    renamed = scanned.subset(np.delete(np.arange(len(scanned)), 7))
    with pytest.raises(
        dp.ConfigError, match="rank 1 loads 36 images in 4 steps, and rank 0 20 in 2"
    ):
        as_rank(1, renamed, place=place)


def test_a_rank_that_is_started_in_another_way_is_compared(manifest, as_rank):
    as_rank(0, manifest, place=("train.py:12", "train.py:40"))
    with pytest.raises(
        dp.ConfigError, match="rank 1 loads in another way than rank 0: seed 1, not 0"
    ):
        # such as by torch.multiprocessing.spawn, from no line of the program
        as_rank(1, manifest, seed=1, place=("train.py:12",))


def test_the_place_is_that_of_the_program(manifest, group, monkeypatch):
    built = ranks.Counter()
    monkeypatch.setattr(ranks, "_loader_counts", built)
    options = {"transform": dp.TrainTransform(size=32), "batch_size": 4, "rank": dp.Rank(0, 2)}
    for _ in range(2):
        dp.build_loader(manifest, CONFIG, **options).close()
    dp.build_loader(manifest, CONFIG, **options).close()
    assert [*built.values()] == [2, 1]
    assert all(any(each.startswith("test_compared_ranks.py") for each in place) for place in built)
    # pytest's
    assert not any(each.startswith(("python.py", "runner.py")) for place in built for each in place)


def test_large_sets_are_compared_without_a_name(manifest, as_rank, monkeypatch):
    monkeypatch.setattr(ranks, "_BLOCKS", {})
    as_rank(0, manifest)
    with pytest.raises(
        dp.ConfigError,
        match="rank 1 loads 20 images in 2 steps, and rank 0 37 in 4; give all ranks",
    ):
        as_rank(1, manifest.subset(np.arange(20)))


def test_a_rank_that_loads_for_itself_is_compared_with_nobody(manifest, as_rank):
    start = time.monotonic()
    as_rank(0, manifest, transform=dp.EvalTransform(size=32), count=1)
    as_rank(0, manifest, transform=dp.EvalTransform(size=32), place=("train.py:50",))
    as_rank(0, manifest)
    as_rank(1, manifest)
    # a wait for others would last as long as the store's time-out
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("last", range(4))
def test_a_loader_that_equals_another_one_of_the_other_rank_is_found(scanned, as_rank, last):
    """Such as validation images that one rank trains on, whoever comes first."""
    train, val = ("train.py:12", "train.py:40"), ("train.py:14", "train.py:40")
    images = {"train": scanned, "val": scanned.subset(np.arange(20))}
    order = [
        lambda: as_rank(0, images["train"], place=train),
        lambda: as_rank(0, images["val"], place=val),
        lambda: as_rank(1, images["val"], place=train),
        lambda: as_rank(1, images["val"], place=val),
    ]
    with pytest.raises(dp.ConfigError, match=r"rank [01] loads (20|37) images in .* steps"):
        for build in np.roll(order, last):
            build()


def test_the_loaders_of_two_ranks_may_be_exchanged_between_places(manifest, as_rank):
    """What is equal is not compared over places: each rank has these two places for itself."""
    as_rank(0, manifest, place=("a.py:1", "train.py:1"))
    as_rank(1, manifest, place=("b.py:1", "train.py:1"))
    as_rank(0, manifest, seed=1, place=("c.py:1", "train.py:1"))
    with pytest.raises(dp.ConfigError, match="seed 0, not 1"):
        as_rank(1, manifest, place=("c.py:1", "train.py:1"))


@pytest.mark.parametrize(
    ("index", "count"),
    [
        ("RANK", "WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
    ],
)
def test_ranks_without_a_part_are_warned_of(manifest, monkeypatch, caplog, index, count):
    monkeypatch.setenv(index, "1")
    monkeypatch.setenv(count, "4")
    assert dp.Rank.from_env() == dp.Rank(1, 4)
    for rank, warned in ((None, 1), (dp.Rank(), 0), (dp.Rank(1, 4), 0)):
        caplog.clear()
        with (
            caplog.at_level(logging.WARNING),
            dp.build_loader(
                manifest, CONFIG, transform=dp.TrainTransform(size=32), batch_size=4, rank=rank
            ),
        ):
            assert (
                sum("4 ranks were started" in record.getMessage() for record in caplog.records)
                == warned
            )
