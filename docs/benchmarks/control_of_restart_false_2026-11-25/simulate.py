"""Equal arms whose processes differ: how often a difference is claimed with restart=false, by the
process that the control has.

cd docs/benchmarks/control_of_restart_false_2026-11-25 && python simulate.py > result.json
"""

import json

import numpy as np

from dali_pipes.measure.stats import claim, paired_ratio

PAIRS, TRIALS = 6, 1_000


def wrong_claims(block: float, process: float) -> dict[str, float]:
    """Shares of the trials; `block` and `process` are standard deviations of the logarithm of the
    rate.
    """
    random, wrong = (
        np.random.default_rng(0),
        {"the baseline's own process": 0, "a process of its own": 0},
    )
    for _ in range(TRIALS):
        first, second, third = process * random.normal(size=3)
        baseline, arm = (
            np.exp(each + block * random.normal(size=PAIRS)) for each in (first, second)
        )
        noise = block * random.normal(size=PAIRS)
        for name, of_control in zip(wrong, (first, third), strict=True):
            control = paired_ratio(baseline, np.exp(of_control + noise))
            wrong[name] += claim(paired_ratio(baseline, arm), control, restarts=False) in (
                "more",
                "less",
            )
    return {name: count / TRIALS for name, count in wrong.items()}


CASES = [(block, process) for block in (0.005, 0.01, 0.02) for process in (0.0, 0.01, 0.02)]
rows = [
    {"block": block, "process": process, "wrong_claims": wrong_claims(block, process)}
    for block, process in CASES
]
print(json.dumps({"pairs": PAIRS, "trials": TRIALS, "rows": rows}, indent=1))
