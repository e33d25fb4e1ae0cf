"""Ranks that load other images, or in another way, are found by whoever comes later; nobody waits.
Real ranks: test_ranks.py.
"""

import itertools
import logging
import time
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import torch.distributed as dist

import dali_pipes as dp
from dali_pipes.loader import ranks
from dali_pipes.plan.plan import _LAUNCHERS

CONFIG = dp.TorchConfig(num_workers=0)


@pytest.fixture
def group(monkeypatch):
    """A process group of two, whose ranks are built one after the other here; called, the next
    group begins.
    """
    stores = []
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: stores[-1])

    def begin(store=None):
        # as PyTorch does: a new object, around a new store or an old one
        stores[:] = [dist.PrefixStore("default", store or dist.HashStore())]

    begin()
    return begin


@pytest.fixture
def as_rank(group, monkeypatch):
    """Builds a loader as another process would."""
    groups = {}

    def build(index, manifest, count=2, **options):
        monkeypatch.setattr(ranks, "_groups", groups.setdefault(index, WeakKeyDictionary()))
        options = {
            "transform": dp.TrainTransform(size=32),
            "batch_size": 4,
            "rank": dp.Rank(index, count),
            **options,
        }
        with dp.build_loader(manifest, CONFIG, **options) as loader:
            return loader

    return build


def test_equal_ranks_are_equal(manifest, as_rank):
    val = {"transform": dp.EvalTransform(size=32)}
    as_rank(0, manifest)
    for _ in range(3):
        as_rank(1, manifest)
        as_rank(1, manifest, **val)
        as_rank(0, manifest, **val)
        as_rank(0, manifest)


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


def test_a_rank_may_build_more_loaders_after_those_that_all_have(scanned, as_rank):
    as_rank(0, scanned)
    as_rank(0, scanned.subset(np.arange(20)))
    as_rank(1, scanned)


@pytest.mark.parametrize("rank", [None, dp.Rank()])
def test_a_loader_for_one_rank_is_not_counted(scanned, as_rank, rank):
    as_rank(0, scanned.subset(np.arange(20)), rank=rank)
    as_rank(0, scanned)
    as_rank(1, scanned)
    with pytest.raises(dp.ConfigError, match=r"seed 0, not 1 \(loader 2 of both\)"):
        as_rank(0, scanned, seed=1)
        as_rank(1, scanned)


def test_another_order_of_the_loaders_is_refused_with_what_to_do(scanned, as_rank):
    as_rank(0, scanned.subset(np.arange(20)))
    as_rank(0, scanned)
    with pytest.raises(
        dp.ConfigError,
        match=r"rank 1 loads 37 images in 4 steps, and rank 0 20 in 2.* \(loader 1 of both\); .* "
        r"build their loaders in the same order, with rank=Rank\(\) for one that a single rank",
    ):
        as_rank(1, scanned)


def test_a_loader_that_was_refused_is_not_counted(scanned, as_rank):
    """As in a notebook, where it is built again."""
    as_rank(0, scanned)
    as_rank(0, scanned, seed=7)
    with pytest.raises(dp.ConfigError, match="seed 1, not 0"):
        as_rank(1, scanned, seed=1)
    as_rank(1, scanned)
    as_rank(1, scanned, seed=7)


@pytest.mark.parametrize("keeps_store", [False, True], ids=["new store", "torchrun's store"])
def test_a_group_that_is_made_anew_counts_anew(scanned, as_rank, group, keeps_store):
    """Also where ranks of the group before had different numbers of loaders."""
    store = dist.HashStore()
    for number in range(3):
        group(store if keeps_store else None)
        for rank in (0, 1):
            as_rank(rank, scanned, seed=number)
        as_rank(0, scanned, seed=10 + number)
    group(store if keeps_store else None)
    as_rank(0, scanned)
    with pytest.raises(dp.ConfigError, match=r"seed 1, not 0 \(loader 1 of both\)"):
        as_rank(1, scanned, seed=1)


def test_a_group_that_has_ended_is_forgotten(manifest, as_rank, group):
    as_rank(0, manifest)
    assert len(ranks._groups) == 1
    group()
    assert not ranks._groups


def test_large_sets_are_compared_without_a_name(manifest, as_rank, monkeypatch):
    monkeypatch.setattr(ranks, "_BLOCKS", {})
    as_rank(0, manifest)
    with pytest.raises(
        dp.ConfigError,
        match=r"rank 1 loads 20 images in 2 steps, and rank 0 37 in 4 \(loader 1 of both\); give",
    ):
        as_rank(1, manifest.subset(np.arange(20)))


def test_a_rank_that_loads_for_itself_is_compared_with_nobody(manifest, as_rank):
    start = time.monotonic()
    as_rank(0, manifest, transform=dp.EvalTransform(size=32), count=1)
    as_rank(0, manifest)
    as_rank(1, manifest)
    as_rank(0, manifest, transform=dp.EvalTransform(size=32))
    # a wait for others would last as long as the store's time-out
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("last", range(4))
def test_a_loader_that_equals_another_one_of_the_other_rank_is_found(scanned, as_rank, last):
    """Such as validation images that one rank trains on, whoever comes first."""
    val = scanned.subset(np.arange(20))
    loads = {0: iter((scanned, val)), 1: iter((val, val))}
    with pytest.raises(dp.ConfigError, match=r"rank [01] loads (20|37) images in .* steps"):
        for rank in np.roll([0, 0, 1, 1], last):
            as_rank(int(rank), next(loads[rank]))


@pytest.mark.parametrize(
    ("index", "count"),
    [
        ("RANK", "WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
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


def test_ranks_that_no_variables_name_are_warned_of(manifest, monkeypatch, caplog, group):
    """Such as those of torch.multiprocessing.spawn and of Lightning."""
    for name in itertools.chain(*_LAUNCHERS):
        monkeypatch.delenv(name, raising=False)
    for rank, warned in ((None, 1), (dp.Rank(), 0), (dp.Rank(1, 2), 0)):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            dp.build_loader(
                manifest, CONFIG, transform=dp.TrainTransform(size=32), batch_size=4, rank=rank
            ).close()
        said = [each for each in caplog.messages if "2 ranks were started" in each]
        assert len(said) == warned
        assert all("Rank(dist.get_rank(), dist.get_world_size())" in each for each in said)
