"""Every sampling is a pure function of (seed, epoch, place), and gives what it says."""

import tracemalloc
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from later import later
from planned import labelled

import dali_pipes as dp
from dali_pipes import ConfigError, Plan, Rank, TrainTransform
from dali_pipes.plan.draws import Kind, permute
from dali_pipes.plan.sampling import (
    Balanced,
    Mixture,
    PerClass,
    Repeated,
    Schedule,
    Sequential,
    Uniform,
    Weighted,
    choose_sampling,
    parse_sampling,
    samplings,
)

stats = later("scipy.stats")

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
    "mixture": Mixture(),
    "proportional": Mixture(epoch_size=77),
    "schedule": Schedule(
        schedule={0: "balanced", 1: {"name": "repeated", "times": 2}, 2: Uniform()}
    ),
}
every_sampling = pytest.mark.parametrize("name", SAMPLINGS)


def some(count=31, classes=7):
    return labelled(np.arange(count) * 3 % classes)


def mixed(mode="stratified", shares=(5, 2, 1), sizes=(12, 7, 12)):
    sources = {
        f"source {place}": (some(size), share)
        for place, (share, size) in enumerate(zip(shares, sizes, strict=True))
    }
    return dp.Manifest.mix(sources, mode=mode)


def manifest_for(name):
    return (
        mixed(name if name == "proportional" else "stratified")
        if name in ("mixture", "proportional")
        else some()
    )


def plan(name, batch=30, **options):
    return Plan(
        manifest_for(name), TRANSFORM, batch, last_batch="pad", sampling=SAMPLINGS[name], **options
    )


@every_sampling
def test_global_batches_do_not_depend_on_the_number_of_shards(name):
    batches = {}
    for count in (1, 2, 3, 5):
        plans = [plan(name, 30 // count, rank=Rank(index, count)) for index in range(count)]
        rows = [
            [each.batch(epoch, step) for each in plans]
            for epoch in range(3)
            for step in range(plans[0].steps)
        ]
        batches[count] = [
            (
                np.concatenate([each.ids for each in row]).tolist(),
                np.concatenate([each.geometry.region for each in row]).tolist(),
            )
            for row in rows
        ]
    assert batches[1] == batches[2] == batches[3] == batches[5]


@every_sampling
def test_any_step_can_be_planned_alone(name):
    walked = [rows for _, rows in zip(range(7), plan(name).iter_from(1), strict=False)]
    fresh = plan(name)
    for rows in reversed(walked):
        again = fresh.batch(rows.epoch, rows.step)
        assert np.array_equal(rows.ids, again.ids) and np.array_equal(
            rows.geometry.region, again.geometry.region
        )


@every_sampling
def test_other_seeds_and_epochs_are_others(name):
    first = plan(name).order(0)
    assert name == "sequential" or not np.array_equal(first, plan(name).order(1))
    other = Plan(
        manifest_for(name), TRANSFORM, 30, seed=1, last_batch="pad", sampling=SAMPLINGS[name]
    ).order(0)
    assert name == "sequential" or not np.array_equal(first, other)


@pytest.mark.slow
@given(
    n=st.integers(1, 60),
    batch=st.integers(1, 9),
    epoch_size=st.none() | st.integers(1, 99),
    seed=st.integers(0, 2**64 - 1),
)
def test_images_come_before_they_come_again(n, batch, epoch_size, seed):
    """In any number of epochs no image comes twice more often than another, whatever is a
    permutation.
    """
    for each in (
        Uniform(epoch_size=epoch_size),
        Sequential(epoch_size=epoch_size),
        Repeated(times=2, epoch_size=epoch_size),
    ):
        planned = Plan(
            labelled([0] * n), TRANSFORM, batch, seed=seed, sampling=each, last_batch="pad"
        )
        seen = np.bincount(
            np.concatenate([planned.order(epoch) for epoch in range(4)]), minlength=n
        )
        assert np.ptp(seen) <= (2 if isinstance(each, Repeated) else 1)


def test_repeats_have_random_numbers_of_their_own():
    rows = Plan(some(), TRANSFORM, 30, sampling=Repeated(times=3)).batch(0, 0)
    assert (rows.ids.reshape(-1, 3) == rows.ids[::3, None]).all() and len(
        set(rows.ids.tolist())
    ) == 10
    assert len({tuple(each) for each in rows.geometry.region.tolist()}) > 25


def test_spread_repeats_lie_in_different_parts_of_the_batch():
    ids = (
        Plan(some(), TRANSFORM, 30, sampling=Repeated(times=3, spread=True), last_batch="pad")
        .batch(0, 0)
        .ids
    )
    assert np.array_equal(ids[:10], ids[10:20]) and np.array_equal(ids[:10], ids[20:])


@given(n=st.integers(1, 40), size=st.integers(1, 100), seed=st.integers(0, 2**64 - 1))
def test_epochs_of_another_size_go_on_where_the_last_one_stopped(n, size, seed):
    order = Plan(labelled([0] * n), TRANSFORM, 1, seed=seed, sampling=Uniform(epoch_size=size))
    plain = Plan(labelled([0] * n), TRANSFORM, 1, seed=seed)
    stream = np.concatenate([order.order(epoch) for epoch in range(5)])
    expected = np.concatenate([plain.order(epoch) for epoch in range(5 * size // n + 1)])[
        : 5 * size
    ]
    assert np.array_equal(stream, expected)


def test_an_epoch_of_all_images_is_todays():
    plain, named = (
        Plan(some(), TRANSFORM, 10),
        Plan(some(), TRANSFORM, 10, sampling=Uniform(epoch_size=31)),
    )
    assert np.array_equal(plain.batch(3, 1).geometry.region, named.batch(3, 1).geometry.region)
    assert np.array_equal(plain.order(3), named.order(3))


def test_weighted_draws_are_distributed_as_the_weights():
    weights = np.array([0, 1, 2, 0, 5, 0.5, 0])
    plan = Plan(
        labelled([0] * 7), TRANSFORM, 1000, sampling=Weighted(weights=weights, epoch_size=10**6)
    )
    seen = np.bincount(plan.order(0), minlength=7)
    assert (seen[weights == 0] == 0).all()
    there = weights > 0
    assert stats.chisquare(seen[there], weights[there] / weights.sum() * seen.sum()).pvalue > 1e-3


def test_weights_by_class_and_by_column_are_those_of_each_image():
    manifest = labelled([0, 0, 1, 2])
    by_class = dict(zip(manifest.classes, (1.0, 4.0, 2.0), strict=True))
    one = Plan(manifest, TRANSFORM, 4, sampling=Weighted(weights=by_class, epoch_size=64)).order(0)
    two = Plan(
        manifest, TRANSFORM, 4, sampling=Weighted(weights=[1, 1, 4, 2], epoch_size=64)
    ).order(0)
    assert np.array_equal(one, two)


@pytest.mark.parametrize("counts", [(1, 20), (3, 7, 50), (5,), (1, 1, 1)])
def test_balanced_classes_come_equally_often_and_so_do_their_labelled(counts):
    manifest = labelled(np.repeat(np.arange(len(counts)), counts))
    labels = np.repeat(np.arange(len(counts)), counts)
    order = Plan(
        manifest, TRANSFORM, 1, sampling=Balanced(epoch_size=40 * len(counts) * max(counts))
    ).order(0)
    assert (labels[order].reshape(-1, len(counts)).sum(axis=1) == sum(range(len(counts)))).all()
    seen = np.bincount(order, minlength=len(labels))
    assert (seen == 40 * max(counts) / np.array(counts)[labels]).all() or all(
        np.ptp(seen[labels == each]) <= 1 for each in range(len(counts))
    )


@pytest.mark.slow
@settings(max_examples=50)
@given(
    classes=st.integers(1, 6),
    samples=st.integers(1, 5),
    more=st.integers(0, 3),
    seed=st.integers(0, 2**32),
)
def test_every_global_batch_has_classes_times_samples(classes, samples, more, seed):
    labels = np.repeat(np.arange(classes + more), np.arange(classes + more) % 4 + samples)
    sampling = PerClass(classes=classes, samples=samples)
    plan = Plan(
        labelled(labels),
        TRANSFORM,
        classes * samples,
        seed=seed,
        sampling=sampling,
        last_batch="pad",
    )
    for step in range(8):
        ids = plan.batch(*divmod(step, plan.steps)).ids
        drawn = labels[ids].reshape(classes, samples)
        assert (drawn == drawn[:, :1]).all() and len(set(drawn[:, 0].tolist())) == classes
        assert len(set(ids.tolist())) == classes * samples  # each class has as many


SHARES = [(5, 2, 1), (0.7, 0.3, 0.001), (1, 1, 1), (0.01, 0.01, 0.98)]


@pytest.mark.few
@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("batch", [30, 64, 256])
def test_every_global_batch_of_a_mixture_has_the_shares(shares, batch):
    """Within one sample in every batch of 20 epochs, and within a thousandth of one on average."""
    manifest = mixed(shares=shares)
    planned = Plan(manifest, TRANSFORM, batch, sampling=Mixture(epoch_size=batch * 64))
    source = manifest.columns["source"]
    batches = np.array(
        [source[planned.order(epoch)].reshape(-1, batch) for epoch in range(20)]
    ).reshape(-1, batch)
    wanted = np.array(shares) / sum(shares) * batch
    counts = np.stack([(batches == each).sum(axis=1) for each in range(3)], axis=1)
    assert (np.abs(counts - wanted) < 1).all()
    assert (np.abs(counts.mean(axis=0) - wanted) <= 1 / 256).all()
    # of the first source
    places = np.array([np.bincount(batches[:, place], minlength=3) for place in range(batch)])
    assert stats.chisquare(places[:, 0]).pvalue > 1e-4  # no place of the batch is one source's


def test_a_proportional_mixture_is_exact_in_the_long_run_only():
    manifest = mixed("proportional")
    planned = Plan(manifest, TRANSFORM, 64, sampling=Mixture(epoch_size=2**16))
    source = manifest.columns["source"][planned.order(3)]
    assert (np.bincount(source) * 8 == 2**16 * np.array([5, 2, 1])).all()
    counts = (source.reshape(-1, 64) == 2).sum(axis=1)
    # binomial: 64 × 1/8 × 7/8
    assert counts.min() < 6 and counts.max() > 10 and abs(counts.var() - 7) < 1.5


@pytest.mark.parametrize("mode", ["stratified", "proportional"])
def test_each_source_has_its_own_epochs(mode):
    manifest = mixed(mode)
    order = Plan(manifest, TRANSFORM, 30, sampling=Mixture(epoch_size=30 * 200)).order(0)
    source, sizes = manifest.columns["source"], np.bincount(manifest.columns["source"])
    for each, size in enumerate(sizes):
        seen = np.bincount(order[source[order] == each], minlength=len(manifest))[source == each]
        assert np.ptp(seen) <= 1 and seen.min() > 6000 / 8 / 12 - 10 and len(seen) == size


@pytest.mark.slow
@settings(max_examples=50)
@given(
    classes=st.integers(1, 6),
    samples=st.integers(1, 5),
    more=st.integers(0, 3),
    bad=st.sets(st.integers(0, 39), max_size=9),
)
def test_bad_images_are_replaced_by_others_of_their_class(classes, samples, more, bad):
    """On any number of ranks by the same, and by one that the batch does not hold as long as the
    class has such.
    """
    labels, batch = np.arange(40) % (classes + more), classes * samples
    planned = {
        count: [
            Plan(
                labelled(labels),
                TRANSFORM,
                batch // count,
                rank=Rank(index, count),
                sampling=PerClass(classes=classes, samples=samples),
            )
            for index in range(count)
        ]
        for count in (1, classes)
    }
    for epoch in range(3):
        clean, replaced, parted = (
            np.concatenate(
                [each.batch(epoch, 0, np.array(sorted(known))).ids for each in planned[count]]
            )
            for count, known in ((1, {}), (1, bad), (classes, bad))
        )
        assert np.array_equal(replaced, parted) and np.array_equal(labels[replaced], labels[clean])
        assert np.array_equal(
            replaced[~np.isin(clean, list(bad))], clean[~np.isin(clean, list(bad))]
        )
        for group in set(labels[clean].tolist()):
            good = set(np.flatnonzero(labels == group).tolist()) - bad
            here = replaced[labels[replaced] == group].tolist()
            assert not good or not set(here) & bad
            assert len(set(here)) == samples or len(good) < samples * (1 + len(bad))


def test_a_class_with_few_others_still_gives_one_that_the_batch_does_not_hold():
    """Six images, of which four are in the batch and one of those is bad."""
    for seed in range(20):
        plan = Plan(
            labelled([0] * 6 + [1] * 6),
            TRANSFORM,
            8,
            seed=seed,
            sampling=PerClass(classes=2, samples=4),
        )
        for bad in range(12):
            assert len(set(plan.batch(seed, 0, np.array([bad])).ids.tolist()) - {bad}) == 8


@pytest.mark.parametrize("name", ["balanced", "mixture", "proportional"])
def test_bad_images_are_replaced_by_others_of_their_group(name):
    manifest, bad = manifest_for(name), np.array([0, 3, 12, 20])
    group = manifest.columns["source"] if manifest.facts.mixture else manifest.labels
    for rows, clean in zip(plan(name).iter_from(0, 0, bad), plan(name).iter_from(), strict=False):
        assert (
            np.array_equal(group[rows.ids], group[clean.ids]) and not np.isin(rows.ids, bad).any()
        )
        assert np.array_equal(rows.ids == clean.ids, ~np.isin(clean.ids, bad))
        if rows.epoch == 9:
            break


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Weighted(weights=[1, 2]), "2 weights for 31 images"),
        (Weighted(weights=[-1.0] * 31), "from 0 on"),
        (Weighted(weights=[0.0] * 31), "above 0"),
        (Weighted(weights=["a"] * 31), "no numbers: could not convert"),
        (Weighted(weights={str(name): "a" for name in range(7)}), "no numbers: could not convert"),
        (Weighted(weights="price"), "no column 'price'"),
        (Weighted(weights={"nowhere": 1}), "no weight for|no class"),
        (PerClass(classes=4, samples=4), "4 classes × 4 samples are not the global batch of 30"),
        (PerClass(classes=15, samples=2), "there are 7 classes"),
        (Mixture(), "for the images of Manifest.mix"),
        (Schedule(schedule={0: "uniform", 2: "per_class"}), "8 classes × 4 samples are not"),
        (
            Schedule(schedule={0: "uniform", 2: {"name": "per_class", "classes": 5, "samples": 6}}),
            "epochs of different sizes",
        ),
    ],
)
def test_what_cannot_work_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        Plan(some(), TRANSFORM, 30, sampling=given)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Uniform(epoch_size=0), "epoch_size is 0"),
        (lambda: PerClass(classes=0), "classes is 0"),
        (lambda: Repeated(times="3"), "times is '3'; it takes whole numbers"),
        (lambda: Uniform(epoch_size=2.5), "epoch_size is 2.5; it takes whole numbers"),
        (lambda: dp.Manifest.mix({"a": some()}), "made of names, manifests and shares"),
        (lambda: parse_sampling("even"), "choose one of uniform, sequential"),
        (
            lambda: parse_sampling({"name": "balanced", "times": 3}),
            "sampling balanced: .*'times'.*its options are epoch_size",
        ),
        (lambda: Schedule(), "begins with that of epoch 0"),
        (lambda: Schedule(schedule={3: "uniform"}), "begins with that of epoch 0"),
        (lambda: Schedule(schedule={0: "uniform", -1: "balanced"}), "begins with that of epoch 0"),
        (
            lambda: Schedule(schedule={0: {"name": "schedule", "schedule": {0: "uniform"}}}),
            "a schedule within a schedule",
        ),
        (lambda: choose_sampling("balanced", True, some(), True), "are both given"),
        (lambda: choose_sampling("uniform", False, some(), True), "are both given"),
        (
            lambda: choose_sampling("balanced", None, mixed(), True),
            "whose shares say what is drawn",
        ),
        (
            lambda: choose_sampling("windows", None, mixed(), True),
            "whose shares say what is drawn",
        ),
        (lambda: mixed(shares=(1, 0, 1)), "each must be positive"),
        (lambda: mixed("layered"), "mode is 'layered'"),
        (lambda: dp.Manifest.mix({"a": (mixed(), 1)}), "a column 'source' already"),
        (
            lambda: Plan(mixed(shares=(1, 1, 1e-6)), TRANSFORM, 30, sampling=Mixture()),
            "'source 2' is rounded to nothing: .* whole numbers of every 7,680 samples;",
        ),
        (
            # a share that is refused in batches of 30 is kept in the larger windows of this mode
            lambda: [
                Plan(mixed("proportional", (1, 1, share)), TRANSFORM, 30, sampling=Mixture())
                for share in (1e-4, 1e-7)
            ],
            "'source 2' is rounded to nothing: .* whole numbers of every 1,048,576 samples;",
        ),
        (
            lambda: Plan(mixed().filter("source != 1"), TRANSFORM, 15, sampling=Mixture()),
            "the source 'source 1' .* has no image",
        ),
    ],
)
def test_wrong_options_are_named(make, message):
    with pytest.raises((ConfigError, dp.ManifestError), match=message):
        make()


def test_what_is_taken_where_nothing_is_given():
    assert [
        type(choose_sampling(None, shuffle, some(), True)) for shuffle in (None, True, False)
    ] == [
        Uniform,
        Uniform,
        Sequential,
    ]
    assert type(choose_sampling(None, None, some(), False)) is Sequential
    assert [type(choose_sampling(None, shuffle, mixed(), True)) for shuffle in (None, False)] == [
        Mixture,
        Sequential,
    ]
    assert (
        type(choose_sampling("uniform", True, some(), True)) is Uniform
        and type(choose_sampling("sequential", False, some(), True)) is Sequential
    )


def test_a_schedule_is_each_sampling_in_its_epochs():
    for epoch, name in (
        (0, "balanced"),
        (1, {"name": "repeated", "times": 2}),
        (2, "uniform"),
        (7, "uniform"),
    ):
        alone = Plan(some(), TRANSFORM, 30, sampling=parse_sampling(name))
        assert np.array_equal(
            plan("schedule").batch(epoch, 0).geometry.region, alone.batch(epoch, 0).geometry.region
        )
    sized = Schedule(
        schedule={0: "balanced", 1: {"name": "uniform", "epoch_size": 60}}, epoch_size=60
    )
    assert Plan(some(), TRANSFORM, 30, sampling=sized).steps == 2


@pytest.mark.parametrize("n", [1, 2, 3, 5, 16, 17, 1000, 65_536, 65_537])
def test_the_bijection_is_one(n):
    assert np.array_equal(np.sort(permute(n, np.arange(n), 7, Kind.IMAGES, 3)), np.arange(n))


@pytest.mark.few
@pytest.mark.parametrize("n", [3, 5, 64, 300])
def test_the_bijection_puts_everything_everywhere_equally_often(n):
    numbers = np.repeat(np.arange(12_000), n)
    found = permute(n, np.tile(np.arange(n), 12_000), 3, Kind.IMAGES, numbers).reshape(12_000, n)
    for place in range(0, n, 9):
        assert stats.chisquare(np.bincount(found[:, place], minlength=n)).pvalue > 1e-4
    pairs = np.bincount(found[:, 0] * n + found[:, 1], minlength=n * n).reshape(n, n)
    assert stats.chisquare(pairs[~np.eye(n, dtype=bool)]).pvalue > 1e-4


def test_large_numbers_are_permuted_at_the_cost_of_a_batch():
    n = 10**9
    drawn = permute(n, np.arange(5000), 1, Kind.IMAGES)
    assert drawn.min() >= 0 and drawn.max() < n and len(set(drawn.tolist())) == 5000
    assert stats.chisquare(np.bincount(drawn * 20 // n, minlength=20)).pvalue > 1e-4


def test_permutations_of_one_call_are_those_of_many():
    n, number, stream = (
        np.array([5, 700, 31, 2]),
        np.array([0, 3, 2**40, 1]),
        np.array([9, 0, 2**20, 7]),
    )
    together = permute(n, np.array([4, 99, 30, 1]), 3, Kind.MEMBERS, number, stream)
    alone = [
        permute(
            n[each], np.array([(4, 99, 30, 1)[each]]), 3, Kind.MEMBERS, number[each], stream[each]
        )
        for each in range(4)
    ]
    assert together.tolist() == np.concatenate(alone).tolist()


@pytest.fixture
def made(monkeypatch):
    """The numbers of the permutations that were made as a whole."""
    made, make = [], samplings.random_permutation

    def count(n, seed, number):
        made.append(number)
        return make(n, seed, number)

    monkeypatch.setattr(samplings, "random_permutation", count)
    return made


def test_from_some_size_on_the_order_is_not_stored(monkeypatch, made):
    monkeypatch.setattr(samplings, "LARGE", 31)
    assert sorted(Plan(some(), TRANSFORM, 10).order(0)) == list(range(31)) and not made
    assert Uniform().state(some())["permutation"] == "Feistel"


def test_the_order_of_an_epoch_is_made_once_though_the_next_one_is_made_meanwhile(made):
    planned = Plan(some(), TRANSFORM, 10)
    for rows in islice(planned.iter_from(), 4 * planned.steps):
        planned.make_order(rows.epoch + 1)
    assert made == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "sampling", ["uniform", {"name": "schedule", "schedule": dict.fromkeys(range(5), "uniform")}]
)
def test_orders_take_8_bytes_an_image_however_many_epochs_and_nothing_after_the_plan(sampling):
    """That of this epoch, and that of the next one."""
    images = some(100_000)
    tracemalloc.start()
    try:
        planned = Plan(images, TRANSFORM, 10, sampling=sampling)
        for epoch in range(5):
            planned.make_order(epoch)
            planned.make_order(epoch + 1)
        assert tracemalloc.get_traced_memory()[0] < 8.5 * len(images)
        del planned
        assert tracemalloc.get_traced_memory()[0] < 0.5 * len(images)
    finally:
        tracemalloc.stop()
