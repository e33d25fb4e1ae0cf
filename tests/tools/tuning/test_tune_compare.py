"""The winner against the default, and what is kept in the end."""

import itertools

import numpy as np
import pytest
from tools.tuning.conftest import MadeUp, config, setting

from dali_pipes.errors import ConfigError
from dali_pipes.measure.worker_process import ArmError
from dali_pipes.tools.tuning.search import Race
from dali_pipes.tools.tuning.verdict import compare, verdict

DEFAULT, WINNER = setting(1), setting(3)


@pytest.fixture
def race():
    return Race(DEFAULT, [WINNER], 0)


def decided(bench, race, **options):
    asked = config(**options)
    return verdict(asked, race, WINNER, compare(bench, DEFAULT, WINNER, asked.pairs, asked.seed))


def test_rounds_with_a_control(bench):
    compared = compare(bench, DEFAULT, WINNER, 6, 0)
    orders = [
        [(phase, each) for phase, number, each in bench.ran if number == at] for at in range(1, 7)
    ]
    assert all(
        len(order) == 3 and ("control", DEFAULT) in order and ("round", WINNER) in order
        for order in orders
    )
    assert all(orders[at + 1] == orders[at][::-1] for at in (0, 2, 4))
    assert (
        set(compared["arms"]) == {"default", "tuned"}
        and compared["control"]["holds"]
        and compared["failed"] is None
    )


def test_a_winner_that_is_faster_is_kept(bench, race):
    bench.rate = lambda each: 1500.0 if each == WINNER else 1000.0
    kept, message = decided(bench, race)
    assert kept == WINNER
    assert message.startswith(
        "num_workers=3 prefetch_factor=2 batch_size=64 is faster than the default: 1."
    )
    assert message.endswith("; the default is num_workers=1 prefetch_factor=2 batch_size=64")
    assert "× its images/s" in message and "[1." in message


def test_what_is_not_faster_beyond_the_noise_is_not_kept(bench, race):
    bench.rate = lambda each: 1005.0 if each == WINNER else 1000.0
    kept, message = decided(bench, race)
    assert (
        kept == DEFAULT
        and message.startswith("The default stays, num_workers=1")
        and "No difference in speed" in message
    )


def test_lucky_trials_are_seldom_taken_for_a_gain():
    """Of equal settings the luckiest is compared again; of 40 such runs at most 2 keep it."""
    taken = 0
    for seed in range(40):
        bench = MadeUp(noise=0.05)
        bench._random = np.random.default_rng(seed)
        taken += decided(bench, Race(DEFAULT, [WINNER], 0))[0] == WINNER
    assert taken <= 2


def test_a_default_that_differs_from_itself_stays(bench, race):
    bench.rate = lambda each: (
        2000.0 if bench.ran[-1][0] == "control" else 1500.0 if each == WINNER else 1000.0
    )
    kept, message = decided(bench, race)
    assert (
        kept == DEFAULT
        and "Untrustworthy" in message
        and message.endswith("try again when the machine is quiet")
    )


def test_few_pairs_claim_nothing(bench, race):
    bench.rate = lambda each: 1500.0 if each == WINNER else 1000.0
    kept, message = decided(bench, race, pairs=2)
    assert kept == DEFAULT and "Quick look, 2 rounds" in message and len(bench.ran) == 4


def test_running_out_of_memory_in_the_comparison(bench, race):
    bench.fails = lambda each: "std::bad_alloc" if each == WINNER else None
    kept, message = decided(bench, race)
    assert kept == DEFAULT and message.endswith("in the comparison: ran out of memory")
    race.drop(DEFAULT, "2.00 cores, more than max_cpus=1")
    with pytest.raises(ConfigError, match="no setting that was tried can be kept"):
        decided(bench, race)


def test_other_failures_end_the_comparison(bench, race):
    bench.fails = lambda _: "the file is broken"
    with pytest.raises(ArmError):
        decided(bench, race)


def test_a_limit_that_the_comparison_breaks(bench, race):
    bench.rate = lambda each: 1500.0 if each == WINNER else 1000.0
    kept, message = decided(bench, race, max_cpus=1.2)
    assert kept == DEFAULT and message.endswith("cores, more than max_cpus=1.2")


def test_a_slower_setting_is_kept_where_the_default_breaks_a_limit(bench, race):
    bench.rate = lambda each: 700.0 if each == WINNER else 1000.0
    race.drop(DEFAULT, "1.00 cores, more than max_cpus=0.9")
    kept, message = decided(bench, race, max_cpus=0.9)
    assert (
        kept == WINNER
        and f"since the default, {DEFAULT}, cannot be: 1.00 cores" in message
        and "is slower than the default" in message
    )


def test_without_a_comparison(race, bench):
    race.drop_as_large(DEFAULT)
    assert verdict(config(), race, WINNER, None) == (
        WINNER,
        "num_workers=3 prefetch_factor=2 batch_size=64 is kept, and not compared: the "
        "default, num_workers=1 prefetch_factor=2 "
        "batch_size=64, ran out of memory",
    )
    race = bench.search(
        [setting(*each) for each in itertools.product((2, 3), (1, 2))], DEFAULT, minutes=60
    )
    kept, message = verdict(config(), race, DEFAULT, None)
    assert (
        kept == DEFAULT
        and ("None of 4 others is faster beyond the noise of the search; the nearest: num_workers=")
        in message
    )
    assert verdict(config(), Race(DEFAULT, [], 0), DEFAULT, None)[1].endswith(
        "No other setting could be measured"
    )
