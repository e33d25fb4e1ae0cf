"""Window shuffle: exact epochs, the same on any number of ranks, from a few shards at a time."""

import re
from itertools import chain, islice, pairwise, takewhile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import KB, labelled, sharded

from dali_pipes import ConfigError, Plan, Rank, TrainTransform, Windows
from dali_pipes.loader.resume import iter_changes
from dali_pipes.plan.windows import Lanes

TRANSFORM = TrainTransform(size=8)
GB = KB / 1e9  # of shards of a kB for each sample


def lanes_of(lengths, lanes=1, window=None, batch=4, epoch_size=None, seed=0):
    lengths = np.array(lengths)
    sizes = (
        (int(lengths.max()) if window is None else window) * KB,
        batch,
        epoch_size or int(lengths.sum()),
    )
    return Lanes(lengths, lengths * KB, lanes, *sizes, seed)


def plan(manifest, batch, rank=None, last_batch="partial", seed=0, **options):
    return Plan(manifest, TRANSFORM, batch, seed, Windows(**options), rank or Rank(), last_batch)


shards = st.lists(st.integers(1, 12), min_size=1, max_size=12)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    lengths=shards,
    lanes=st.integers(1, 5),
    share=st.integers(1, 4),
    more=st.integers(0, 30),
    size=st.none() | st.integers(1, 30),
    seed=st.integers(0, 2**64 - 1),
)
def test_every_sample_comes_once_before_one_comes_again(lengths, lanes, share, more, size, seed):
    """In epochs as long as the data, and after any number of longer or shorter ones."""
    n, window, epoch_size = (
        sum(lengths),
        max(lengths) + more,
        size * lanes if size else sum(lengths),
    )
    order = lanes_of(lengths, lanes, window, lanes * share, epoch_size, seed)
    drawn = order.at(np.arange(4 * epoch_size))
    for epochs in (1, 2, 4):
        assert np.ptp(np.bincount(drawn[: epochs * epoch_size], minlength=n)) <= (epoch_size != n)
    places = np.random.default_rng(1).permutation(4 * epoch_size)[:40]
    assert np.array_equal(order.at(places), drawn[places])
    alone = lanes_of(lengths, lanes, window, lanes * share, epoch_size, seed)
    assert np.array_equal(alone.at(places[:1]), drawn[places[:1]])


@settings(max_examples=25)
@given(
    lengths=shards,
    lanes=st.integers(1, 4),
    share=st.integers(1, 5),
    more=st.integers(0, 20),
    size=st.none() | st.integers(1, 20),
)
def test_windows_say_which_shards_serve_which_batches(lengths, lanes, share, more, size):
    """Each sample lies in a window that serves its batch; windows fit, follow each other, and begin
    at any step.
    """
    lengths, window, batch = np.array(lengths), max(lengths) + more, lanes * share
    epoch_size = size * lanes if size else int(lengths.sum())
    order = lanes_of(lengths, lanes, window, batch, epoch_size)
    shard_of = np.repeat(np.arange(len(lengths)), lengths)[order.at(np.arange(2 * epoch_size))]
    begins = [(epoch, start) for epoch in range(2) for start in range(0, epoch_size, batch)]
    for lane in range(lanes):
        windows = list(takewhile(lambda each: each.first < (2, 0), order.windows(lane)))
        assert all(
            lengths[each.shards].sum() <= window
            and len(set(each.shards.tolist())) == len(each.shards)
            for each in windows
        )
        assert all(
            one.first <= one.last <= other.last and one.last <= other.first
            for one, other in pairwise(windows)
        )
        for epoch, start in begins:
            held, at = min(batch, epoch_size - start), (epoch, start // batch)
            first = epoch * epoch_size + start
            read = set(
                shard_of[first + held * lane // lanes : first + held * (lane + 1) // lanes].tolist()
            )
            serving = [each for each in windows if each.first <= at <= each.last]
            assert read <= {shard for each in serving for shard in each.shards.tolist()}
            if read and start % (3 * batch) == 0:
                assert next(order.windows(lane, *at)).shards.tolist() == serving[0].shards.tolist()


@pytest.mark.parametrize("options", [{}, {"times": 2}, {"epoch_size": 52}])
def test_global_batches_do_not_depend_on_the_number_of_ranks(options):
    """Two lanes on one, two and four ranks, the partial batch of an epoch too."""
    manifest, batches = sharded([9, 5, 14, 2, 11, 7, 3]), {}
    for count in (1, 2, 4):
        plans = [
            plan(manifest, 8 // count, Rank(index, count), lanes=2, window_gb=20 * GB, **options)
            for index in range(count)
        ]
        rows = [
            [each.batch(epoch, step) for each in plans]
            for epoch in range(2)
            for step in range(plans[0].steps)
        ]
        batches[count] = [
            [np.concatenate([part(each) for each in row]).tolist() for row in rows]
            for part in (lambda each: each.ids, lambda each: each.geometry.region)
        ]
    assert batches[1] == batches[2] == batches[4]


def test_ranks_read_their_own_lanes():
    """Whatever the number of ranks: all shards of a rank's batches lie in its lanes' windows, so
    that all fetch about once.
    """
    lengths = np.random.default_rng(0).integers(3, 12, 40)
    manifest, shard_of = sharded(lengths), np.repeat(np.arange(40), lengths)
    for count in (1, 2, 4, 8):
        fetched = []
        for index in range(count):
            planned = plan(manifest, 16 // count, Rank(index, count), lanes=4, window_gb=30 * GB)
            lanes = planned.lanes(0)
            read = {
                int(each)
                for step in range(len(planned))
                for each in shard_of[planned.batch(0, step).ids]
            }
            epochs = [
                takewhile(lambda each: not each.first[0], lanes.windows(lane))
                for lane in lanes.lanes_of(index, count)
            ]
            given = [shard for each in chain(*epochs) for shard in each.shards.tolist()]
            assert read <= set(given)
            fetched += given if count <= 4 or index % 2 == 0 else []
        assert len(fetched) <= 40 + 3 and set(fetched) == set(range(40))


def test_any_step_can_be_planned_alone():
    manifest, options = sharded([9, 5, 14, 2, 11, 7, 3]), {"lanes": 2, "window_gb": 20 * GB}
    walked = [
        rows for _, rows in zip(range(20), plan(manifest, 8, **options).iter_from(1), strict=False)
    ]
    fresh = plan(manifest, 8, **options)
    for rows in reversed(walked):
        again = fresh.batch(rows.epoch, rows.step)
        assert np.array_equal(rows.ids, again.ids) and np.array_equal(
            rows.geometry.region, again.geometry.region
        )


@pytest.mark.parametrize("last_batch", ["partial", "drop", "pad", "even"])
def test_every_policy_of_the_last_batch_is_that_of_other_orders(last_batch):
    manifest = sharded([9, 5, 14, 2, 11, 7, 3])
    ranks = [
        plan(manifest, 4, Rank(index, 2), last_batch, lanes=2, window_gb=20 * GB)
        for index in range(2)
    ]
    plain = [
        Plan(manifest, TRANSFORM, 4, rank=Rank(index, 2), last_batch=last_batch)
        for index in range(2)
    ]
    assert [(each.epoch_samples, each.rank_samples, len(each)) for each in ranks] == [
        (each.epoch_samples, each.rank_samples, len(each)) for each in plain
    ]
    ids = np.concatenate(
        [each.batch(0, step).ids for step in range(ranks[0].steps) for each in ranks]
    )
    assert len(ids) == ranks[0].epoch_samples and len(set(ids.tolist())) == min(
        len(ids), len(manifest)
    )


def test_every_epoch_has_another_order_and_other_partners():
    """A shard's samples stand beside those of others than in the epoch before, and in another
    order.
    """
    lengths, beside = np.full(60, 10), []
    order = lanes_of(lengths, 2, 50, 10)
    for epoch in range(3):
        ids = order.at(epoch * 600 + np.arange(600))
        windows = [
            each.shards.tolist()
            for lane in range(2)
            for each in islice(order.windows(lane, epoch), 6)
        ]
        beside.append({pair for each in windows for pair in pairwise(each)})
        assert (np.diff(ids[ids // 10 == 7]) < 0).any()
    assert all(len(one & other) < 5 for one, other in pairwise(beside))  # of 48 pairs
    assert not np.array_equal(order.at(np.arange(600)), order.at(np.arange(600, 1200)))
    assert not np.array_equal(
        order.at(np.arange(600)), lanes_of(lengths, 2, 50, 10, seed=1).at(np.arange(600))
    )


def test_a_window_is_permuted_uniformly():
    """Of a shard of six in one window each sample stands everywhere about equally often."""
    order = lanes_of([6, 6], 1, 12, 4)
    drawn = order.at(np.arange(12 * 300)).reshape(300, 12)
    counts = np.stack([np.bincount(each, minlength=12) for each in drawn.T])
    assert abs(counts - 25).max() < 5 * np.sqrt(25)


def test_batches_are_as_mixed_as_those_of_the_global_shuffle():
    """100 shards of each of 20 classes, one after the other; four lanes, whose windows hold 400 of
    the 2,000 shards.
    """
    labels, batch = np.repeat(np.arange(20), 100 * 10), 32
    order = lanes_of([10] * 2000, 4, 100 * 10, batch)
    n = len(labels)

    def distinct(ids):
        return np.array(
            [
                len(set(each))
                for each in labels[ids[: n // batch * batch]].reshape(-1, batch).tolist()
            ]
        )

    for epoch in range(3):
        windows, everything = (
            distinct(order.at(epoch * n + np.arange(n))),
            distinct(np.random.default_rng(epoch).permutation(n)),
        )
        tenth = len(windows) // 10
        for part in (
            slice(tenth),
            slice(len(windows) // 2 - tenth // 2, len(windows) // 2 + tenth // 2),
            slice(-tenth, None),
        ):
            assert abs(windows[part].mean() / everything.mean() - 1) < 0.05


def test_the_last_two_windows_of_a_lane_are_alike():
    held = [
        len(each.shards)
        for each, _ in zip(lanes_of([5] * 11, 1, 50).windows(0), range(4), strict=False)
    ]
    assert held == [6, 5, 6, 5]


def test_images_of_a_shard_may_lie_anywhere_in_the_manifest():
    files = np.random.default_rng(3).permutation(np.repeat(np.arange(6), 5))
    planned = plan(sharded(None, np.zeros(30, int), files), 5, window_gb=10 * GB)
    ids = planned.order(0)
    number = planned.manifest.shards.numbers
    assert sorted(ids.tolist()) == list(range(30))
    assert all(len(set(number[ids[start : start + 10]].tolist())) == 2 for start in (0, 10, 20))


def test_repeats_stand_side_by_side_with_random_numbers_of_their_own():
    planned = plan(sharded([20] * 6), 24, lanes=2, window_gb=40 * GB, times=3)
    rows = [planned.batch(0, step) for step in range(planned.steps)]
    ids = np.concatenate([each.ids for each in rows])
    assert (
        len(ids) == 120
        and (ids.reshape(-1, 3) == ids[::3, None]).all()
        and len(set(ids.tolist())) == 40
    )
    assert len({tuple(each) for each in rows[0].geometry.region.tolist()}) > 20
    seen = np.concatenate([planned.order(epoch)[::3] for epoch in range(3)])
    assert sorted(seen.tolist()) == list(range(120))


def test_a_schedule_may_switch_to_windows():
    manifest = sharded([10] * 6)
    given = {
        "name": "schedule",
        "schedule": {0: {"name": "windows", "lanes": 2, "window_gb": 20 * GB}, 2: "uniform"},
    }
    planned = Plan(manifest, TRANSFORM, 6, sampling=given)
    assert np.array_equal(planned.order(1), plan(manifest, 6, lanes=2, window_gb=20 * GB).order(1))
    assert planned.lanes(1) and planned.lanes(2) is None


@pytest.mark.parametrize(
    ("options", "files", "changed"),
    [
        ({"lanes": 4}, {}, "lanes"),
        ({"window_gb": 31 * GB}, {}, "window_gb"),
        ({"times": 2}, {}, "times"),
        ({}, {"lengths": [10, 11, 9]}, "shard_sizes"),
    ],
)
def test_what_the_state_holds(options, files, changed):
    before = plan(sharded([10] * 3), 4, lanes=2, window_gb=30 * GB).sampling_state
    after = plan(
        sharded(**{"lengths": [10] * 3} | files), 4, **{"lanes": 2, "window_gb": 30 * GB} | options
    ).sampling_state
    assert [name for name, *_ in iter_changes(before, after)] == [changed] and before["algorithm"]


@pytest.mark.parametrize(
    ("options", "batch", "ranks", "message"),
    [
        (
            {"lanes": 4},
            30,
            1,
            (
                "lanes=4 do not divide a global batch of 30 images; 28 or 32 images would do, or 3 "
                "or 5 lanes"
            ),
        ),
        ({"lanes": 40}, 30, 1, "; 40 images would do, or 30 or 1 lanes"),
        (
            {"lanes": 4},
            4,
            3,
            ("lanes=4 cannot be shared by 3 ranks; 1, 2, 4 ranks would do, or a multiple of 4"),
        ),
        (
            {"lanes": 2, "epoch_size": 45},
            6,
            1,
            "lanes=2 do not divide an epoch of 45 images; 44 or 46 images would do",
        ),
        (
            {"window_gb": 5 * GB},
            6,
            1,
            "window_gb=5e-06 holds no shard of 1e-05 GB; 1e-05 at least would do",
        ),
        (
            {"times": 4, "lanes": 2},
            30,
            1,
            "times=4 does not divide a global batch of 30; 24 or 32 would do",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_what_would_do(options, batch, ranks, message):
    with pytest.raises(ConfigError, match=message):
        plan(sharded([10] * 6), batch, Rank(0, ranks), **{"window_gb": 20 * GB} | options)


@pytest.mark.parametrize("largest", [268_432_384, 123_456_489, 402_653_184])
def test_the_least_window_that_is_named_would_do(largest):
    with pytest.raises(ConfigError, match="holds no shard") as caught:
        Lanes(np.array([10, 10]), np.array([10**6, largest]), 1, 10**8, 4, 20, 0)
    least = round(1e9 * float(re.search(r"([\d.]+) at least would do", str(caught.value))[1]))
    assert (
        Lanes(np.array([10, 10]), np.array([10**6, largest]), 1, least, 4, 20, 0).window_bytes
        == least
        == largest
    )


def test_what_it_is_not_for_is_refused():
    with pytest.raises(
        ConfigError,
        match="/nowhere has images that are files of their own; pack them by `dali-pipes prepare",
    ):
        plan(labelled([0] * 9), 3)
    with pytest.raises(
        ConfigError,
        match=(
            r"sampling windows: .*'weights'.*its options are epoch_size, lanes, window_gb, "
            r"times"
        ),
    ):
        Plan(sharded([3, 3]), TRANSFORM, 3, sampling={"name": "windows", "weights": [1] * 6})


def test_the_order_is_that_of_the_first_version():
    """Written down once: whatever changes it changes every run."""
    order = lanes_of([7, 3, 9, 5], 2, 12, 4, seed=7)
    assert order.at(np.arange(48, 60)).tolist() == ORDER


ORDER = [9, 23, 15, 16, 8, 22, 18, 17, 19, 21, 14, 5]
