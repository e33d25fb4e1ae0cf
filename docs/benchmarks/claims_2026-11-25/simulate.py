"""What a benchmark claims on simulated machines that are quiet, noisy or drifting, against the true
gain.

Made result.json and table.md in this folder: python docs/benchmarks/claims_2026-11-25/simulate.py
The machines are those of tests/support/simulated_machine.py, and the tests run twenty rounds of
each.
"""

import json
import sys
from pathlib import Path

from rich.progress import track

sys.path.insert(0, str(Path(__file__).parents[3] / "tests/support"))
from simulated_machine import GAINS, KINDS, right_and_wrong

RUNS = 400


def table(rows):
    """The rows as docs/method.md has them: for each true gain how many runs claim it."""
    lines = [
        f"| machine | {' | '.join(f'{gain:.2f} ×' for gain in GAINS)} | wrong claims |",
        f"|---|{'---|' * len(GAINS)}---|",
    ]
    for row in rows:
        found = [
            f"{row['right'][str(gain)] / RUNS:.0%}".replace("%", " %") if gain > 1 else "none"
            for gain in GAINS
        ]
        wrong = sum(row["wrong"].values())
        lines.append(
            f"| {row['machine']} | {' | '.join(found)} | {wrong} of {RUNS * len(GAINS):,} |"
        )
    return "\n".join(lines) + "\n"


def main():
    rows = []
    for machine in track(KINDS):
        counts = {str(gain): right_and_wrong(machine, gain, RUNS) for gain in GAINS}
        of = {
            "right": {gain: right for gain, (right, _) in counts.items()},
            "wrong": {gain: wrong for gain, (_, wrong) in counts.items()},
        }
        rows.append({"machine": machine, **of})
    folder = Path(__file__).parent
    (folder / "result.json").write_text(json.dumps({"runs": RUNS, "rows": rows}, indent=1) + "\n")
    (folder / "table.md").write_text(table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
