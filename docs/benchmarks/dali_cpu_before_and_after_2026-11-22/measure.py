"""CPU time of `dali_cpu` in several checkouts: did a change cost anything?

python measure.py IMAGES NAME=PYTHON:CHECKOUT NAME=PYTHON:CHECKOUT … --out result.json
The first is what the others are compared with. In each of `--rounds` rounds all start fresh
processes, which carry out the same plan in turns of one epoch: what slows the machine down weighs
on all of them. Images: a thousand at least, since what is read ahead counts in the turn before.
result_less_code.json and result_loader.json are of each of the 125 sample images eight times.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dali_pipes.measure.stats import paired_ratio

CHILD = """
import json, resource, subprocess, sys
from importlib.metadata import version
from pathlib import Path

import dali_pipes as dp

checkout = Path(dp.__file__).parents[1]
assert checkout == Path.cwd().resolve(), f"{checkout} was measured"

def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

manifest = dp.Manifest.scan(sys.argv[1], progress=False)
config = dp.DaliConfig(device="cpu", num_threads=1)
with dp.build_loader(manifest, config, transform=dp.TrainTransform(size=224), batch_size=64, seed=0) as loader:
    for batch in loader:
        pass
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    print(json.dumps({"dali": version("nvidia-dali-cuda120"), "commit": commit}), flush=True)
    for _ in sys.stdin:
        start, ids = cpu_seconds(), []
        for batch in loader:
            ids += batch.ids.tolist()
        spent = 1000 * (cpu_seconds() - start) / len(ids)
        print(json.dumps({"cpu_ms_an_image": spent, "images": len(ids), "order": hash(tuple(ids))}), flush=True)
"""


def start(images: Path, program: str) -> subprocess.Popen[str]:
    python, _, checkout = program.partition(":")
    environment = os.environ | {"PYTHONPATH": checkout}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [python, "-c", CHILD, images],
        cwd=checkout,
        env=environment,
        stdin=pipe,
        stdout=pipe,
        text=True,
    )


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    line = process.stdout.readline()
    return json.loads(line) if line else sys.exit("a process ended; its last words are above")


def one_round(
    images: Path, programs: dict[str, str], turns: int
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """What was measured, and the CPU milliseconds an image of every turn."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    with contextlib.ExitStack() as stack:
        processes = {
            name: stack.enter_context(start(images.absolute(), program))
            for name, program in programs.items()
        }
        about = {name: answer(process) for name, process in processes.items()}
        orders = set()
        for turn in range(turns):
            for name, process in list(processes.items())[:: -1 if turn % 2 else 1]:
                process.stdin.write("go\n")
                process.stdin.flush()
                found = answer(process)
                times[name].append(found["cpu_ms_an_image"])
                orders.add((turn, found["images"], found["order"]))
        assert len(orders) == turns, "not the same plan"
        for process in processes.values():
            process.stdin.close()
    return about, times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("images", type=Path)
    parser.add_argument("programs", nargs="+")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    programs = dict(program.split("=", 1) for program in args.programs)
    rounds: dict[str, list[list[float]]] = {name: [] for name in programs}
    for number in range(args.rounds):
        about, times = one_round(args.images, programs, args.turns)
        for name in programs:
            rounds[name].append(times[name])
        print(
            number + 1,
            *(f"{name} {statistics.fmean(of):.3f}" for name, of in times.items()),
            flush=True,
        )
    means = {name: [statistics.fmean(each) for each in of] for name, of in rounds.items()}
    first, *others = means
    result = {
        "command": "python measure.py IMAGES "
        f"{' '.join(f'{name}=PYTHON:CHECKOUT' for name in programs)} --rounds {args.rounds} "
        f"--turns {args.turns} --out result.json",
        "programs": about,
        "cpu_ms_an_image": rounds,
        f"over {first}": {name: asdict(paired_ratio(means[first], means[name])) for name in others},
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    for name, ratio in result[f"over {first}"].items():
        print(
            f"{name} / {first}: {ratio['estimate']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"
        )


if __name__ == "__main__":
    main()
