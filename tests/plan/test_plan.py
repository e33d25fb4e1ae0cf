import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned import labelled

from dali_pipes import ConfigError, EvalTransform, Manifest, Plan, Rank, Sequential, TrainTransform
from dali_pipes.plan.plan import _LAUNCHERS

TRANSFORM = TrainTransform(size=32)


def images(count: int) -> Manifest:
    return labelled(np.arange(count) % 3)


def ranks(count: int, images: Manifest, **options) -> list[Plan]:
    return [Plan(images, TRANSFORM, rank=Rank(index, count), **options) for index in range(count)]


sizes, batches, counts, seeds = (
    st.integers(1, 90),
    st.integers(1, 12),
    st.integers(1, 5),
    st.integers(0, 2**64 - 1),
)


@given(sizes, batches, counts, st.integers(0, 3), seeds)
def test_partial_delivers_every_sample_once(n, batch, count, epoch, seed):
    plans = ranks(count, images(n), batch_size=batch, last_batch="partial", seed=seed)
    planned = [plan.batch(epoch, step) for plan in plans for step in range(len(plan))]
    assert sorted(np.concatenate([row.ids for row in planned])) == list(range(n))
    assert all(1 <= len(row) <= batch for row in planned)


@pytest.mark.slow
@given(st.integers(60, 120), batches, counts, seeds)
def test_drop_delivers_full_batches_without_repetition(n, batch, count, seed):
    plans = ranks(count, images(n), batch_size=batch, last_batch="drop", seed=seed)
    ids = np.concatenate([plan.batch(1, step).ids for plan in plans for step in range(len(plan))])
    assert len(set(ids)) == len(ids) == n // (batch * count) * batch * count
    assert {len(plan.batch(1, step)) for plan in plans for step in range(len(plan))} == {batch}


@given(sizes, batches, counts, seeds)
def test_pad_delivers_full_batches_and_every_sample(n, batch, count, seed):
    plans = ranks(count, images(n), batch_size=batch, last_batch="pad", seed=seed)
    assert len({len(plan) for plan in plans}) == 1
    ids = np.concatenate([plan.batch(0, step).ids for plan in plans for step in range(len(plan))])
    assert set(ids) == set(range(n))
    assert len(ids) == -(-n // (batch * count)) * batch * count


@pytest.mark.slow
@given(
    st.integers(60, 200),
    st.sampled_from([(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)]),
    st.sampled_from(["drop", "pad", "partial"]),
)
def test_global_batches_do_not_depend_on_the_number_of_shards(n, split, last_batch):
    count, batch = split
    alone = Plan(images(n), TRANSFORM, 12, last_batch=last_batch)
    together = ranks(count, images(n), batch_size=batch, last_batch=last_batch)
    for step in range(len(alone)):
        parts = [plan.batch(2, step) for plan in together]
        whole = alone.batch(2, step)
        assert np.array_equal(np.concatenate([part.ids for part in parts]), whole.ids)
        assert np.array_equal(
            np.concatenate([part.geometry.region for part in parts]), whole.geometry.region
        )


def test_rows_are_a_pure_function():
    one, two = Plan(images(50), TRANSFORM, 8, seed=3), Plan(images(50), TRANSFORM, 8, seed=3)
    later = two.batch(4, 2)
    [two.batch(0, step) for step in range(3)]
    assert np.array_equal(one.batch(4, 2).ids, later.ids)
    assert np.array_equal(one.batch(4, 2).geometry.region, later.geometry.region)
    assert np.array_equal(one.batch(4, 2).geometry.flip, later.geometry.flip)


def test_each_epoch_and_seed_has_its_own_order_and_crops():
    plan = Plan(images(100), TRANSFORM, 10)
    orders = [plan.order(0), plan.order(1), Plan(images(100), TRANSFORM, 10, seed=1).order(0)]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert not any(np.array_equal(a, b) for a, b in itertools.combinations(orders, 2))
    first, again = (
        {
            sample: region
            for step in range(10)
            for sample, region in zip(*by_id(plan.batch(epoch, step)), strict=True)
        }
        for epoch in (0, 1)
    )
    assert sum(np.array_equal(first[sample], again[sample]) for sample in range(100)) < 5


def by_id(planned):
    return planned.ids, planned.geometry.region


def test_the_order_is_uniform():
    """Each sample lands in each place equally often: chi-squared over 6,000 epochs of 6 samples."""
    plan = Plan(images(6), TRANSFORM, 1)
    places = np.array([plan.order(epoch) for epoch in range(6000)])
    counts = np.array(
        [[(places[:, place] == sample).sum() for place in range(6)] for sample in range(6)]
    )
    assert ((counts - 1000) ** 2 / 1000).sum() < 60  # 25 degrees of freedom; p < 1e-4


def test_without_shuffle_the_order_is_the_manifests():
    plan = Plan(
        images(10), EvalTransform(size=8, resize=8), 4, sampling=Sequential(), last_batch="partial"
    )
    assert [plan.batch(3, step).ids.tolist() for step in range(len(plan))] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]


def test_walk_goes_on_across_epochs():
    plan = Plan(images(20), TRANSFORM, 8)
    places = [
        (planned.epoch, planned.step) for planned in itertools.islice(plan.iter_from(1, 1), 4)
    ]
    assert places == [(1, 1), (2, 0), (2, 1), (3, 0)]


@pytest.mark.parametrize("step", [-1, 3, 99, 2**48])
@pytest.mark.parametrize(
    "ask",
    [
        lambda plan, step: plan.batch(0, step),
        lambda plan, step: plan.batch_offset(step),
        # step 3 is after the last one, where a loader is at an epoch's end
        lambda plan, step: plan.iter_from(0, step if step != 3 else 4),
    ],
)
def test_a_step_that_the_epoch_does_not_have_is_refused(ask, step):
    with pytest.raises(ConfigError, match=f"step is {-1 if step < 0 else '(3|4|99|2814)'}"):
        ask(Plan(images(20), TRANSFORM, 8, last_batch="partial"), step)


def test_of_a_last_batch_that_is_too_small_a_rank_has_no_sample_and_no_place():
    """Two ranks of 8 divide 17 samples: the last one is that of the second rank."""
    first, second = ranks(2, images(17), batch_size=8, last_batch="partial")
    assert (len(first.batch(0, 1)), len(second.batch(0, 1)), second.batch_offset(1)) == (0, 1, 16)
    with pytest.raises(ConfigError, match="step is 1, and rank 0 of 2 has 1 steps"):
        first.batch_offset(1)


def test_a_walk_of_a_rank_without_samples_is_refused():
    alone, _ = ranks(2, images(1), batch_size=8, last_batch="partial")
    with pytest.raises(ConfigError, match="rank 0 of 2 has 0 steps; it has no sample in any"):
        alone.iter_from()


@pytest.mark.parametrize("epoch", [-1, 2**63])
def test_an_epoch_that_does_not_exist_is_refused(epoch):
    plan = Plan(images(20), TRANSFORM, 8)
    for ask in (plan.batch, plan.iter_from):
        with pytest.raises(ConfigError, match="epoch is"):
            ask(epoch, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 11}, "10 images do not fill one global batch of 11"),
        (
            {"batch_size": 6, "rank": Rank(1, 2)},
            r"10 images do not fill one global batch of 12 \(6 × 2 ranks\)",
        ),
        ({"batch_size": 2, "last_batch": "keep"}, "last_batch is 'keep'"),
        ({"batch_size": 2, "seed": -1}, "seed is -1"),
    ],
)
def test_what_cannot_work_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Plan(images(10), TRANSFORM, **options)


def test_the_rank_of_the_environment_is_that_of_the_innermost_launcher(monkeypatch):
    for name in itertools.chain(*_LAUNCHERS):
        monkeypatch.delenv(name, raising=False)
    assert Rank.from_env() == Rank(0, 1)
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert Rank.from_env() == Rank(3, 4)
    # as where srun starts what starts the ranks of a machine: Intel's mpirun, or torchrun
    monkeypatch.setenv("PMI_RANK", "5")
    monkeypatch.setenv("PMI_SIZE", "32")
    assert Rank.from_env() == Rank(5, 32)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert Rank.from_env() == Rank(1, 2)
    with pytest.raises(ConfigError, match="rank 2 of 2"):
        Rank(2, 2)


@pytest.mark.parametrize(("sampling", "same"), [("uniform", True), ("balanced", False)])
def test_what_pad_repeats_has_the_crop_again_unless_the_sampling_may_repeat_images(sampling, same):
    plan = Plan(images(6), TRANSFORM, 4, sampling=sampling, last_batch="pad")
    first, last = plan.batch(0, 0), plan.batch(0, 1)
    assert last.ids[2:].tolist() == first.ids[:2].tolist()
    assert np.array_equal(last.region[2:], first.region[:2]) == same
