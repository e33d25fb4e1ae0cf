"""How often the benchmark's statistics are right, on made-up runs with known answers.

Made result.json in this folder: python docs/benchmarks/statistics_2026-11-25/simulate.py
"""

import json
from pathlib import Path

import numpy as np
from rich.progress import track

from dali_pipes.measure.rounds import rounds
from dali_pipes.measure.stats import claim, paired_ratio

RUNS = 2000
NOISE = {"2 % noise": 0.02, "4 % noise": 0.04, "2 % noise, one block in 20 slowed by 30 %": 0.02}


def blocks(random, count, kind):
    """What `count` blocks of equal work measure, relative to the truth."""
    measured = np.exp(random.normal(0, NOISE[kind], count))
    return (
        measured * np.where(random.random(count) < 0.05, 1 / 1.3, 1)
        if "slowed" in kind
        else measured
    )


def percentile_interval(first, second, random):
    logs = np.log(second / first)
    means = logs[random.integers(0, len(logs), (2000, len(logs)))].mean(axis=1)
    return np.exp(np.quantile(means, [0.025, 0.975]))


def coverage(pairs, kind):
    """How often the interval holds the truth, and its median width, for the percentile bootstrap
    and for ours.
    """
    random = np.random.default_rng(pairs)
    held, widths = np.zeros((RUNS, 2)), np.zeros((RUNS, 2))
    for run in range(RUNS):
        first, second = blocks(random, pairs, kind), blocks(random, pairs, kind)
        ours = paired_ratio(first, second)
        for column, (low, high) in enumerate(
            (percentile_interval(first, second, random), (ours.low, ours.high))
        ):
            held[run, column], widths[run, column] = low <= 1 <= high, high - low
    names = ("percentile bootstrap", "bootstrap-t")
    return {
        name: {"holds": float(held[:, at].mean()), "width": float(np.median(widths[:, at]))}
        for at, name in enumerate(names)
    }


def claims(pairs, kind, truth):
    """The share of runs with each claim when one arm is `truth` times as fast as the other."""
    random = np.random.default_rng(pairs)
    found: dict[str, float] = {}
    for _ in range(RUNS):
        control = paired_ratio(blocks(random, pairs, kind), blocks(random, pairs, kind))
        ratio = paired_ratio(blocks(random, pairs, kind), truth * blocks(random, pairs, kind))
        claimed = claim(ratio, control)
        found[claimed] = found.get(claimed, 0) + 1 / RUNS
    return {key: round(share, 4) for key, share in sorted(found.items())}


def drift(pairs, slower=0.7):
    """Two equal arms on a machine that slows down to `slower` over the run: one arm after the
    other, or in our rounds.
    """
    random = np.random.default_rng(pairs)
    pace = np.linspace(1, slower, 2 * pairs)
    after, ours = [], []
    for seed in range(RUNS):
        measured = pace * blocks(random, 2 * pairs, "2 % noise")
        after.append(measured[pairs:].mean() / measured[:pairs].mean())
        order = [arm for each in rounds(["a", "b"], pairs, seed) for arm in each]
        by_arm = {
            arm: measured[[place for place, at in enumerate(order) if at == arm]] for arm in "ab"
        }
        ours.append(paired_ratio(by_arm["a"], by_arm["b"]).estimate)
    return {
        "one after the other": float(np.median(after)),
        "rounds": float(np.median(ours)),
        "rounds_p95_off": float(np.quantile(np.abs(np.log(ours)), 0.95)),
    }


def main():
    counts = (5, 6, 8, 12)
    result = {
        "runs": RUNS,
        "coverage": {
            kind: {pairs: coverage(pairs, kind) for pairs in track(counts, kind)} for kind in NOISE
        },
        "claims": {
            kind: {
                truth: {pairs: claims(pairs, kind, truth) for pairs in counts}
                for truth in track((1.0, 1.1, 1.3), kind)
            }
            for kind in NOISE
        },
        "drift": {pairs: drift(pairs) for pairs in counts},
    }
    Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
