"""Made pairs.json and table.md here: python
docs/benchmarks/loaders_cpu_8_pairs_2026-11-23/collect.py RUN [RUN …]

Each RUN is the folder of a benchmark, whose result.json is copied here as DTYPE_BATCH/result.json.
The benchmark takes ratios against `torch`; here they are also taken of `dali_cpu` against
`dali_native`, from the trials of the same rounds, with the same interval.
"""

import json
import re
import sys
from pathlib import Path

from dali_pipes.measure.stats import paired_ratio

HERE = Path(__file__).parent
ARMS = ("torch", "dali_cpu", "dali_native", "tfdata")
FIGURES = ("images_per_s", "cpu_s_per_1000_images")


def rounds(run, arm):
    files = sorted(
        (run / "trials").glob(f"*_round_*_{arm}.json"),
        key=lambda file: int(file.name.split("_")[2]),
    )
    return [json.loads(file.read_text())["jobs"][0] for file in files]


def shown(ratio):
    return f"{ratio['estimate']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"


def main(runs):
    pairs, lines = {}, []
    for run in map(Path, runs):
        text = re.sub(
            r'"data\.train=[^"]*"', '"data.train=IMAGES"', (run / "result.json").read_text()
        )
        result = json.loads(re.sub(r',\s*"out=[^"]*"', "", text))
        name = f"{result['work']['transform']['dtype']}_{result['work']['batch_size']}"
        (HERE / name).mkdir(exist_ok=True)
        (HERE / name / "result.json").write_text(json.dumps(result, indent=1) + "\n")
        trials = {
            arm: {figure: [each[figure] for each in rounds(run, arm)] for figure in FIGURES}
            for arm in ARMS
        }
        native = {
            each: paired_ratio(trials["dali_native"][each], trials["dali_cpu"][each]).to_dict()
            for each in FIGURES
        }
        pairs[name] = {"trials": trials, "dali_cpu against dali_native": native}
        cells = [shown(result["arms"][arm]["ratio"][each]) for each in FIGURES for arm in ARMS[1:]]
        control = shown(result["control"]["images_per_s"])
        lines.append(
            f"| {name.replace('_', ', ')} | {control} | "
            + " | ".join(cells + [shown(native[each]) for each in FIGURES])
            + " |"
        )
    (HERE / "pairs.json").write_text(json.dumps(pairs, indent=1) + "\n")
    (HERE / "table.md").write_text("\n".join(sorted(lines)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
