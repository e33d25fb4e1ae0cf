"""Every sampling is a pure function of (seed, epoch, place), and gives what it says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned import labelled
from scipy.stats import chisquare

from dali_pipes import ConfigError, Plan, Shard, TrainTransform
from dali_pipes.plan import permutation
from dali_pipes.plan.permutation import bijection
from dali_pipes.plan.sampling import Balanced, PerClass, Repeated, Sequential, Uniform, Weighted

TRANSFORM = TrainTransform(size=8)
SAMPLINGS = {
    "uniform": Uniform(),
    "longer": Uniform(epoch_size=70),
    "shorter": Uniform(epoch_size=20),
    "sequential": Sequential(epoch_size=45),
    "weighted": Weighted(weights=np.arange(31) % 5),
    "balanced": Balanced(),
    "per_class": PerClass(classes=5, samples=6),
    "repeated": Repeated(),
    "spread": Repeated(times=3, spread=True),
}


def images(classes):
    return labelled(classes)


def some(count=31, classes=7):
    return images(np.arange(count) * 3 % classes)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_global_batches_do_not_depend_on_the_number_of_shards(name):
    manifest, batches = some(), {}
    for count in (1, 2, 3, 5):
        plans = [
            Plan(manifest, TRANSFORM, 30 // count, shard=Shard(index, count), last_batch="pad", sampling=SAMPLINGS[name])
            for index in range(count)
        ]
        rows = [[plan.rows(epoch, step) for plan in plans] for epoch in range(3) for step in range(plans[0].steps)]
        batches[count] = [
            (np.concatenate([each.ids for each in row]).tolist(), np.concatenate([each.geometry.window for each in row]).tolist())
            for row in rows
        ]
    assert batches[1] == batches[2] == batches[3] == batches[5]


@pytest.mark.parametrize("name", SAMPLINGS)
def test_any_step_can_be_planned_alone(name):
    plan = Plan(some(), TRANSFORM, 30, sampling=SAMPLINGS[name], last_batch="pad")
    walked = [rows for _, rows in zip(range(7), plan.iter_from(2), strict=False)]
    fresh = Plan(some(), TRANSFORM, 30, sampling=SAMPLINGS[name], last_batch="pad")
    for rows in reversed(walked):
        again = fresh.rows(rows.epoch, rows.step)
        assert np.array_equal(rows.ids, again.ids) and np.array_equal(rows.geometry.window, again.geometry.window)


def test_repeats_have_random_numbers_of_their_own():
    rows = Plan(some(), TRANSFORM, 30, sampling=Repeated(times=3)).rows(0, 0)
    assert (rows.ids.reshape(-1, 3) == rows.ids[::3, None]).all() and len(set(rows.ids.tolist())) == 10
    assert len({tuple(each) for each in rows.geometry.window.tolist()}) > 25


def test_spread_repeats_lie_in_different_parts_of_the_batch():
    ids = Plan(some(), TRANSFORM, 30, sampling=Repeated(times=3, spread=True)).rows(0, 0).ids
    assert np.array_equal(ids[:10], ids[10:20]) and np.array_equal(ids[:10], ids[20:])


@given(n=st.integers(1, 40), size=st.integers(1, 100), seed=st.integers(0, 2**64 - 1))
def test_epochs_of_another_size_go_on_where_the_last_one_stopped(n, size, seed):
    order = Plan(images([0] * n), TRANSFORM, 1, seed=seed, sampling=Uniform(epoch_size=size))
    plain = Plan(images([0] * n), TRANSFORM, 1, seed=seed)
    stream = np.concatenate([order.order(epoch) for epoch in range(5)])
    expected = np.concatenate([plain.order(epoch) for epoch in range(5 * size // n + 1)])[: 5 * size]
    assert np.array_equal(stream, expected)


def test_an_epoch_of_all_images_is_todays():
    plain, named = Plan(some(), TRANSFORM, 10), Plan(some(), TRANSFORM, 10, sampling=Uniform())
    assert np.array_equal(plain.rows(3, 1).geometry.window, named.rows(3, 1).geometry.window)
    assert np.array_equal(plain.order(3), named.order(3))


def test_weighted_draws_are_distributed_as_the_weights():
    weights = np.array([0, 1, 2, 0, 5, 0.5, 0])
    plan = Plan(images([0] * 7), TRANSFORM, 1000, sampling=Weighted(weights=weights, epoch_size=10**6))
    seen = np.bincount(plan.order(0), minlength=7)
    assert (seen[weights == 0] == 0).all()
    there = weights > 0
    assert chisquare(seen[there], weights[there] / weights.sum() * seen.sum()).pvalue > 1e-3


def test_weights_by_class_and_by_column_are_those_of_each_image():
    manifest = images([0, 0, 1, 2])
    by_class = dict(zip(manifest.classes, (1.0, 4.0, 2.0), strict=True))
    one = Plan(manifest, TRANSFORM, 4, sampling=Weighted(weights=by_class, epoch_size=64)).order(0)
    two = Plan(manifest, TRANSFORM, 4, sampling=Weighted(weights=[1, 1, 4, 2], epoch_size=64)).order(0)
    assert np.array_equal(one, two)


@pytest.mark.parametrize("counts", [(1, 20), (3, 7, 50), (5,), (1, 1, 1)])
def test_balanced_classes_come_equally_often_and_so_do_their_images(counts):
    manifest = images(np.repeat(np.arange(len(counts)), counts))
    labels = np.repeat(np.arange(len(counts)), counts)
    order = Plan(manifest, TRANSFORM, 1, sampling=Balanced(epoch_size=40 * len(counts) * max(counts))).order(0)
    assert (labels[order].reshape(-1, len(counts)).sum(axis=1) == sum(range(len(counts)))).all()
    seen = np.bincount(order, minlength=len(labels))
    assert (seen == 40 * max(counts) / np.array(counts)[labels]).all() or all(
        np.ptp(seen[labels == each]) <= 1 for each in range(len(counts))
    )


@given(classes=st.integers(1, 6), samples=st.integers(1, 5), more=st.integers(0, 3), seed=st.integers(0, 2**32))
def test_every_global_batch_has_classes_times_samples(classes, samples, more, seed):
    labels = np.repeat(np.arange(classes + more), np.arange(classes + more) % 4 + samples)
    sampling = PerClass(classes=classes, samples=samples)
    plan = Plan(images(labels), TRANSFORM, classes * samples, seed=seed, sampling=sampling, last_batch="pad")
    for step in range(30):
        ids = plan.rows(*divmod(step, plan.steps)).ids
        drawn = labels[ids].reshape(classes, samples)
        assert (drawn == drawn[:, :1]).all() and len(set(drawn[:, 0].tolist())) == classes
        assert len(set(ids.tolist())) == classes * samples  # each class has as many


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (Weighted(weights=[1, 2]), "2 weights for 31 images"),
        (Weighted(weights=[-1.0] * 31), "from 0 on"),
        (Weighted(weights=[0.0] * 31), "above 0"),
        (Weighted(weights="price"), "no column 'price'"),
        (Weighted(weights={"nowhere": 1}), "no weight for|no class"),
        (PerClass(classes=4, samples=4), "4 classes × 4 samples are not the global batch of 30"),
        (PerClass(classes=15, samples=2), "there are 7 classes"),
        (Repeated(times=4, spread=True), "does not divide the global batch of 30"),
    ],
)
def test_what_cannot_work_is_refused(sampling, message):
    with pytest.raises(ConfigError, match=message):
        Plan(some(), TRANSFORM, 30, sampling=sampling)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 16, 17, 1000, 65_536, 65_537])
def test_the_bijection_is_one(n):
    assert np.array_equal(np.sort(bijection(n, 7, 3, np.arange(n))), np.arange(n))


@pytest.mark.parametrize("n", [5, 64])
def test_the_bijection_puts_everything_everywhere_equally_often(n):
    found = np.array([bijection(n, seed, number, np.arange(n)) for seed in range(60) for number in range(200)])
    for place in range(0, n, 9):
        assert chisquare(np.bincount(found[:, place], minlength=n)).pvalue > 1e-4
    pairs = np.bincount(found[:, 0] * n + found[:, 1], minlength=n * n).reshape(n, n)
    assert chisquare(pairs[~np.eye(n, dtype=bool)]).pvalue > 1e-4


def test_large_numbers_are_permuted_at_the_cost_of_a_batch():
    n = 10**9
    drawn = bijection(n, 1, 0, np.arange(5000))
    assert drawn.min() >= 0 and drawn.max() < n and len(set(drawn.tolist())) == 5000
    assert chisquare(np.bincount(drawn * 20 // n, minlength=20)).pvalue > 1e-4


def test_from_some_size_on_the_order_is_not_stored(monkeypatch):
    monkeypatch.setattr(permutation, "LARGE", 31)
    plan = Plan(some(), TRANSFORM, 10)
    permutation.stored.cache_clear()
    assert sorted(plan.order(0)) == list(range(31)) and permutation.stored.cache_info().misses == 0
