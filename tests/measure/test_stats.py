"""Made-up series with known answers."""

import math

import numpy as np
import pytest

from dali_pipes.measure.stats import Ratio, claim, is_steady, paired_ratio


def series(random, true_ratio, pairs, noise, drift=None):
    """Rates of two arms; what disturbs the machine weighs on both trials of a pair, with a little
    noise of each trial's own.
    """
    machine = 1000 * (np.ones(pairs) if drift is None else drift)
    first, second = (
        machine * factor * np.exp(random.normal(0, noise, pairs)) for factor in (1, true_ratio)
    )
    return first, second


def decision(random, true_ratio, pairs=6, noise=0.04, drift=None):
    first, again = series(random, 1, pairs, noise, drift)
    return claim(
        paired_ratio(*series(random, true_ratio, pairs, noise, drift)), paired_ratio(first, again)
    )


def test_the_estimate_is_the_geometric_mean():
    ratio = paired_ratio([1, 1, 1], [1, 2, 4])
    assert ratio.estimate == pytest.approx(2)
    assert paired_ratio([1, 2, 4], [1, 1, 1]).estimate == pytest.approx(0.5)


@pytest.mark.slow
def test_a_true_gain_is_found_through_noise():
    random = np.random.default_rng(0)
    found = [decision(random, 1.3) for _ in range(200)]
    assert found.count("more") > 160
    assert "less" not in found
    assert [decision(random, 1 / 1.3) for _ in range(200)].count("less") > 160
    assert [decision(random, 1.1, pairs=10, noise=0.02) for _ in range(200)].count("more") > 180


@pytest.mark.slow
def test_noise_alone_claims_next_to_nothing():
    random = np.random.default_rng(1)
    found = [decision(random, 1) for _ in range(500)]
    assert found.count("more") + found.count("less") <= 5
    assert found.count("untrustworthy") < 50


@pytest.mark.parametrize(
    ("pairs", "least"),
    [(5, 0.92), *(pytest.param(pairs, 0.93, marks=pytest.mark.slow) for pairs in (8, 12))],
)
def test_the_interval_holds_the_truth_as_often_as_it_says(pairs, least):
    random = np.random.default_rng(2)
    ratios = [paired_ratio(*series(random, 1.3, pairs, 0.1)) for _ in range(1000)]
    assert sum(ratio.low <= 1.3 <= ratio.high for ratio in ratios) / 1000 >= least


def test_one_disturbed_pair_of_six_widens_the_interval_to_itself_and_no_further():
    first, second = [1.0] * 6, [1.9, 1.88, 1.92, 1.91, 1.89, 1.4]
    ratio = paired_ratio(first, second)
    assert ratio.low == pytest.approx(1.4) and ratio.high <= 1.92
    assert paired_ratio(first[1:], second[1:]).low < 1.4  # five pairs are too few for that


def test_a_drifting_machine_is_caught_by_pairing():
    """The machine loses two thirds of its speed meanwhile. Unpaired, the arms' ranges overlap;
    paired, 1.1 × is plain.
    """
    random = np.random.default_rng(3)
    first, second = series(random, 1.1, 6, 0.005, drift=np.linspace(1, 0.33, 6))
    assert first.max() > second.min() and second.max() > first.min()
    ratio = paired_ratio(first, second)
    assert 1.08 < ratio.low < 1.1 < ratio.high < 1.12


def test_trials_in_abba_order_do_not_see_a_steady_drift():
    """One arm always first in its round would seem faster on a machine that slows down."""
    speed = iter(np.linspace(1, 0.5, 12))
    order = ["ab", "ba"] * 3
    rates = {arm: [] for arm in "ab"}
    for each in order:
        for arm in each:
            rates[arm].append(next(speed))
    assert paired_ratio(rates["a"], rates["b"]).contains_one()
    straight = np.linspace(1, 0.5, 12)
    assert not paired_ratio(straight[0::2], straight[1::2]).contains_one()


def test_a_control_that_does_not_hold_one_forbids_claims_of_less_than_its_distance():
    off = Ratio(1.1, 1.05, 1.15)
    assert (
        claim(Ratio(1.1, 1.07, 1.13), off)
        == claim(Ratio(0.9, 0.88, 0.92), off)
        == claim(Ratio(1, 0.9, 1.1), off)
        == "untrustworthy"
    )
    assert claim(Ratio(2.0, 1.9, 2.1), off) == "more" and claim(Ratio(0.5, 0.4, 0.6), off) == "less"


def test_a_gain_within_the_noise_of_the_control_is_no_gain():
    control = Ratio(1.0, 0.9, 1.05)
    assert control.noise == pytest.approx(1 / 0.9)
    assert claim(Ratio(1.1, 1.06, 1.14), control) == "no difference shown"
    assert claim(Ratio(1.2, 1.12, 1.28), control) == "more"
    assert claim(Ratio(0.8, 0.7, 0.89), control) == "less"
    assert claim(Ratio(0.8, 0.7, 0.91), control) == "no difference shown"


def test_fewer_than_five_pairs_give_no_interval():
    ratio = paired_ratio([1] * 4, [2] * 4)
    assert ratio == Ratio(2.0) and ratio.noise is None and not ratio.contains_one()
    assert claim(ratio, Ratio(1, 0.9, 1.1)) == claim(Ratio(2, 1.9, 2.1), None) == "no interval"


def test_equal_pairs_have_an_interval_of_no_width():
    ratio = paired_ratio([1, 2, 3, 4, 5], [2, 4, 6, 8, 10])
    assert ratio.low == ratio.high == pytest.approx(2) and not math.isnan(ratio.low)


def test_steady_is_three_rates_alike():
    assert not is_steady([100, 100])
    assert is_steady([10, 50, 100, 96, 104])
    assert not is_steady([100, 100, 112])
