"""Window shuffle of stratified mixtures: the shares in every batch, each source in windows of its
own.
"""

from functools import cache
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import KB, sharded

import dali_pipes as dp
from dali_pipes import ConfigError, Plan, Rank, TrainTransform, Windows
from dali_pipes.loader.fingerprint import iter_changes
from dali_pipes.plan.sampling import Mixture, choose_sampling

TRANSFORM = TrainTransform(size=8)
GB = KB / 1e9
SMALL, LARGE = ((9, 5, 14, 2, 11), (7, 3), (4, 4, 4)), ((900,) * 10, (1200, 700) * 4, (300,) * 20)


@cache
def mixed(shares=(5, 2, 1), lengths=SMALL, mode="stratified"):
    """Sources of shards of so many images, of a kB each."""
    sources = {
        f"source {place}": (moved(sharded(each), place), share)
        for place, (share, each) in enumerate(zip(shares, lengths, strict=True))
    }
    return dp.Manifest.mix(sources, mode=mode)


def moved(manifest, place):
    return dp.Manifest(f"/nowhere/{place}", manifest.classes, manifest.table)


def plan(manifest, batch=16, rank=None, **options):
    return Plan(
        manifest,
        TRANSFORM,
        batch,
        sampling=Windows(**{"window_gb": 200 * GB} | options),
        rank=rank or Rank(),
    )


@pytest.mark.few
@pytest.mark.parametrize("lanes", [1, 2, 8, 32])
@pytest.mark.parametrize("shares", [(5, 2, 1), (0.7, 0.3, 0.02), (1, 1, 1), (0.02, 0.02, 0.96)])
def test_every_global_batch_has_the_shares_and_so_has_every_lanes_part(shares, lanes):
    manifest, part = mixed(shares, LARGE), 8
    batch, wanted = part * lanes, np.array(shares) / sum(shares)
    source = manifest.columns["source"]
    drawn = source[
        plan(manifest, batch, lanes=lanes, window_gb=5000 * GB, epoch_size=batch * 256).order(1)
    ]
    for size in (part, batch):
        counts = np.stack(
            [(drawn.reshape(-1, size) == each).sum(axis=1) for each in range(3)], axis=1
        )
        # shares are rounded to 1/256 of a part's
        assert (np.abs(counts - wanted * size) < 1 + 1 / 64).all()
    of_lane = drawn.reshape(256, lanes, part)
    each = np.stack([(of_lane == number).sum(axis=(0, 2)) for number in range(3)], axis=1)
    assert (each == each[0]).all() and np.abs(each[0] / (256 * part) - wanted).max() < 1 / 1024


def test_sources_are_shuffled_within_a_lanes_part():
    manifest = mixed((1, 1, 1), LARGE)
    drawn = manifest.columns["source"][
        plan(manifest, 12, lanes=2, window_gb=5000 * GB, epoch_size=12 * 900).order(0)
    ].reshape(-1, 2, 6)
    for number in range(3):
        each = (drawn == number).mean(axis=0)
        assert abs(each - 1 / 3).max() < 0.07
    assert not np.array_equal(drawn[:, 0], drawn[:, 1])


@pytest.mark.slow
@settings(max_examples=15)
@given(
    lengths=st.lists(st.lists(st.integers(3, 12), min_size=2, max_size=8), min_size=1, max_size=3),
    lanes=st.integers(1, 4),
    part=st.integers(3, 8),
    seed=st.integers(0, 2**64 - 1),
)
def test_every_image_of_a_source_comes_before_one_comes_again(lengths, lanes, part, seed):
    """With several lanes some are in the next pass while others end theirs."""
    manifest = mixed.__wrapped__((3, 2, 1)[: len(lengths)], lengths)
    sampling = Windows(lanes=lanes, window_gb=1e6, epoch_size=lanes * part * 12)
    order = sampling.order(manifest, seed, lanes * part)
    # at least three times as many of each source as it has, since a source's share is a sixth or
    # more
    drawn, source = order.at(np.arange(18 * len(manifest))), manifest.columns["source"]
    for number in range(len(lengths)):
        seen = np.bincount(drawn, minlength=len(manifest))[source == number]
        assert np.ptp(seen) <= (1 if lanes == 1 else 2) and seen.min() > 0
    places = np.random.default_rng(1).permutation(len(drawn))[:20]
    assert np.array_equal(order.at(places), drawn[places])


@pytest.mark.slow
@settings(max_examples=12)
@given(
    lanes=st.integers(1, 4),
    part=st.integers(3, 6),
    window=st.integers(150, 400),
    epoch=st.integers(0, 3),
    step=st.integers(0, 6),
)
def test_windows_say_which_shards_serve_which_batches(lanes, part, window, epoch, step):
    manifest = mixed()
    planned = plan(manifest, lanes * part, lanes=lanes, window_gb=window * GB)
    made, shards = planned.lanes(0), manifest.shards
    for lane in range(lanes):
        each = [list(islice(windows, 25)) for windows in made.windows(lane, epoch, step)]
        assert all(
            one[0].first <= (epoch, step) <= one[0].last or one[0].first > (epoch, step)
            for one in each
        )
        assert (
            sum(max(shards.bytes[window.shards].sum() for window in one) for one in each)
            <= made.window_bytes
        )
        end = min(one[-1].last for one in each)
        at = (epoch, step)
        for _ in range(12):
            assert at <= end
            ids = planned.batch(*at).ids[lane * part : (lane + 1) * part]
            serving = {
                shard
                for one in each
                for window in one
                if window.first <= at <= window.last
                for shard in window.shards.tolist()
            }
            assert set(shards.numbers[ids].tolist()) <= serving
            at = divmod(at[0] * planned.steps + at[1] + 1, planned.steps)


@pytest.mark.parametrize("times", [1, 2])
def test_global_batches_do_not_depend_on_the_number_of_ranks(times):
    manifest, batches = mixed(), {}
    for count in (1, 2, 4, 8):
        plans = [
            plan(manifest, 16 // count, Rank(index, count), lanes=4, times=times)
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
    assert batches[1] == batches[2] == batches[4] == batches[8]


def test_shards_of_two_sources_come_in_different_orders():
    """Sources of as many shards are not shuffled alike."""
    manifest = mixed((1, 1), ((4,) * 60, (4,) * 60))
    first, second = (
        next(each).shards
        for each in plan(manifest, lanes=1, window_gb=240 * GB).lanes(0).windows(0)
    )
    assert len(first) == len(second) == 30 and (first != second - 60).sum() > 20


def test_what_the_state_holds():
    def state(shares):
        return plan(mixed(shares), lanes=2).sampling_state

    assert [name for name, *_ in iter_changes(state((5, 2, 1)), state((5, 3, 1)))] == [
        "shares.source 0",
        "shares.source 1",
        "shares.source 2",
    ]


def test_windows_that_hold_no_shard_of_a_source_are_refused_with_what_would_do():
    manifest = mixed()
    with pytest.raises(
        ConfigError,
        match=(
            r"window_gb=2e-05 does not hold a shard of each of the 3 sources; 2.5e-05 at least "
            r"would do"
        ),
    ):
        plan(manifest, window_gb=20 * GB)
    lanes = plan(manifest, window_gb=25 * GB).lanes(0)
    sizes = manifest.shards.bytes
    largest = [
        max(sizes[window.shards].sum() for window in islice(each, 40)) for each in lanes.windows(0)
    ]
    assert [each // KB for each in largest] == [14, 7, 4]


def test_what_cannot_work_is_refused():
    with pytest.raises(
        ConfigError, match="is for stratified mixtures, and this one is proportional"
    ):
        plan(mixed(mode="proportional"))
    with pytest.raises(
        ConfigError, match=r"'source 2' is rounded to nothing: .* of every 1,024 samples of a lane"
    ):
        plan(mixed((5, 2, 1e-4)), lanes=4)
    with pytest.raises(ConfigError, match="'source 1' of the mixture has no image"):
        plan(mixed().filter("source != 1"))
    with pytest.raises(ConfigError, match="lanes=3 do not divide a global batch of 16 images"):
        plan(mixed(), lanes=3)
    assert isinstance(choose_sampling("windows", None, mixed(), True), Windows) and isinstance(
        choose_sampling(None, None, mixed(), True), Mixture
    )
