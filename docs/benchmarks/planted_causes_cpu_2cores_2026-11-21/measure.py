"""What the diagnosis says of programs with a planted fault, what it predicts of its fix, and what
the fix gains.

python docs/benchmarks/planted_causes_cpu_2cores_2026-11-21/measure.py OUT.json
"""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3] / "tests/support"))
sys.path.insert(0, str(Path(__file__).parents[3] / "tests/tools/diagnosis"))
from planted import Samples, computing, loader, training
from test_planted import PLANTED, in_memory

from dali_pipes.measure.stats import paired_ratio
from dali_pipes.system.progress import track
from dali_pipes.tools.diagnosis.examination.budget import ProbeBudget
from dali_pipes.tools.diagnosis.examination.examination import examine
from dali_pipes.tools.diagnosis.examination.probes import Probes
from dali_pipes.tools.diagnosis.measuring.training import drive
from dali_pipes.tools.diagnosis.programs.dataloader import DataLoaderProgram
from dali_pipes.tools.diagnosis.report import to_dict

PAIRS = 3
# The fix that the diagnosis names, made: what is changed, and the program afterwards.
FIXED = {
    "slow storage": ("copy the data", lambda: (loader(Samples()), computing(0.001))),
    "one worker": (
        "num_workers=2",
        lambda: (loader(Samples(cpu=0.003), workers=2), computing(0.001)),
    ),
    "other programs": (
        "stop the other programs",
        lambda: (loader(Samples(cpu=0.003), workers=1), computing(0.001)),
    ),
    "CPU quota": ("raise the CPU quota", lambda: (loader(Samples(cpu=0.003)), computing(0.001))),
    "blocking step": ("out of the step", lambda: (loader(Samples()), lambda batch: None)),
    "tiny batches": (
        "a larger batch_size",
        lambda: (loader(in_memory(), workers=0, batch_size=4), training(16, 20)),
    ),
    "slow samples": (
        "find the images that take long",
        lambda: (loader(Samples(cpu=0.001)), computing(0.001)),
    ),
}


def pace(program):
    subject = DataLoaderProgram(*program)
    with subject.feed() as feed:
        probes, step = Probes(subject, feed, 1.0), subject.step()
        drive(probes.start(), step)
        return drive(probes.together(), step).rate


def measured(before, condition, after):
    rates = {"before": [], "after": []}
    for number in range(PAIRS):
        for which in ("before", "after") if number % 2 == 0 else ("after", "before"):
            with condition() if which == "before" else nullcontext():
                rates[which].append(pace((before if which == "before" else after)()))
    return paired_ratio(rates["before"], rates["after"]).estimate


def main(out):
    found = {}
    for cause, (program, condition, expected) in track(
        PLANTED.items(), lambda item: item[0], len(PLANTED)
    ):
        subject = DataLoaderProgram(*program())
        with condition():
            diagnosis = examine(subject, ProbeBudget(3, 1.0, cold=False))
        result = to_dict(diagnosis, subject.workers)
        result = {
            name: result[name] for name in ("verdict", "confidence", "evidence", "figures", "fixes")
        } | {"expected": expected}
        if cause in FIXED:
            what, after = FIXED[cause]
            proposed = [
                (fix["predicted"] or {}).get("estimate")
                for fix in result["fixes"]
                if what in fix["what"]
            ]
            # four times as large is what the evidence was measured with
            if cause == "tiny batches":
                proposed = [diagnosis.one_off.larger_gain]
            result["fix"] = what
            result["predicted"], result["measured"] = (
                (proposed or [None])[0],
                measured(program, condition, after),
            )
        found[cause] = result
        told = (
            f"{result.get('predicted') or np.nan:.2f} predicted, "
            f"{result.get('measured') or np.nan:.2f} measured"
        )
        print(
            f"{cause}: {diagnosis.verdict.name}, {diagnosis.verdict.confidence}; {told}",
            file=sys.stderr,
            flush=True,
        )
    Path(out).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
