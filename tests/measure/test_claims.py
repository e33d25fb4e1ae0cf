"""What a benchmark claims on simulated machines, of which the truth is known;
docs/benchmarks/claims_2026-11-25 has the table of many runs.
"""

import itertools

import pytest
from simulated_machine import GAINS, KINDS, right_and_wrong

from dali_pipes.measure.stats import Ratio, claim, threshold

RUNS = 20
FOUND = {  # of 20 runs, at least, by machine and true gain
    "quiet": {1.10: 18, 1.84: 20},
    "noisy": {1.84: 20},
    "drifting": {1.84: 20},
}


@pytest.mark.few
@pytest.mark.parametrize("kind", KINDS)
def test_claims_are_true_and_large_gains_are_found(kind):
    for gain in GAINS:
        right, wrong = right_and_wrong(kind, gain, RUNS)
        assert wrong == 0, f"{wrong} of {RUNS} claims are wrong at a true gain of {gain}"
        assert right >= FOUND[kind].get(gain, 0), f"{right} of {RUNS} runs found a gain of {gain}"


def test_a_control_that_is_slightly_off_voids_no_large_gain():
    gain = Ratio(1.84, 1.81, 2.34)
    assert claim(gain, Ratio(0.99, 0.98, 0.9999)) == "more"
    assert claim(Ratio(1 / 1.84, 1 / 2.34, 1 / 1.81), Ratio(0.99, 0.98, 0.9999)) == "less"
    assert claim(gain, Ratio(1.9, 1.85, 1.95)) == "untrustworthy"
    assert claim(gain, Ratio(1.0, 0.5, 2.0)) == "no difference shown"


@pytest.mark.parametrize("restarts", [True, False])
def test_what_a_control_lets_pass_every_control_nearer_to_one_lets_pass_too(restarts):
    """Near: both ends of the interval; whether it holds 1 makes no difference."""
    ends = [0.6, 0.9, 0.98, 0.9999, 1.0, 1.0001, 1.02, 1.1, 1.7]
    controls = sorted(
        (Ratio((low * high) ** 0.5, low, high) for low, high in itertools.combinations(ends, 2)),
        key=lambda control: control.noise,
    )
    for low in (1.001, 1.01, 1.03, 1.15, 1.5, 1.8, 3.5):
        passed = [
            claim(Ratio(low * 1.01, low, low * 1.02), control, restarts) == "more"
            for control in controls
        ]
        assert passed == sorted(passed, reverse=True)


def test_without_restarts_a_claim_takes_twice_the_distance():
    control = Ratio(1.0, 0.99, 1.1)
    assert threshold(control) == pytest.approx(1.1) and threshold(
        control, restarts=False
    ) == pytest.approx(1.21)
    assert claim(Ratio(1.2, 1.15, 1.25), control) == "more"
    assert claim(Ratio(1.2, 1.15, 1.25), control, restarts=False) == "no difference shown"
    assert threshold(None) is None and threshold(Ratio(1.0)) is None
