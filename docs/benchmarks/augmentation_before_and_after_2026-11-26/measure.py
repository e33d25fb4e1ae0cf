"""CPU time of `dali_cpu` and `torch` with and without augmentation in two checkouts: did a change
cost anything?

PYTHONPATH=CHECKOUT python measure.py IMAGES before=CHECKOUT after=CHECKOUT --rounds 10 --out result.json

The first checkout is what the other one is compared with. Each has a process that lives through all
rounds. In a round both take the same batches of the same plan with each loader and policy, one right
after the other, in an order that changes: what slows the machine down weighs on both. CPU time is
that of the process and its DataLoader's workers. `torch` decodes with Pillow in both checkouts.
"""

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dali_pipes.measure.stats import paired_ratio

CHILD = """
import itertools, json, subprocess, sys, time
from pathlib import Path

import dali_pipes as dp
from dali_pipes.data.images import repeat_epoch
from dali_pipes.system.telemetry import cpu_seconds

WARM, BATCHES, BATCH_SIZE = 2, 6, 64
checkout = Path(dp.__file__).parents[1]
assert checkout == Path.cwd().resolve(), f"{checkout} was measured"
manifest = repeat_epoch(dp.Manifest.scan(sys.argv[1], progress=False))
LOADERS = {
    "torch": lambda: dp.TorchConfig(num_workers=2, decoder="pil"),
    "dali_cpu": lambda: dp.DaliConfig(device="cpu", num_threads=2),
}

def block(loader, policies):
    transform = dp.TrainTransform(size=224, augment=policies)
    options = {"transform": transform, "batch_size": BATCH_SIZE, "seed": 0, "device": "cpu"}
    with dp.build_loader(manifest, LOADERS[loader](), **options) as built:
        batches = itertools.islice(built, WARM + BATCHES)
        ids = [next(batches).ids.tolist() for _ in range(WARM)]
        start, cpu = time.perf_counter(), cpu_seconds()
        ids += [batch.ids.tolist() for batch in batches]
        seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    images = BATCHES * BATCH_SIZE
    return {"images_per_s": images / seconds, "cpu_ms_an_image": 1000 * cpu / images,
            "order": hash(str(ids))}

command = ["git", "rev-parse", "HEAD"]
print(subprocess.run(command, capture_output=True, text=True).stdout.strip(), flush=True)
for line in sys.stdin:
    print(json.dumps(block(*json.loads(line))), flush=True)
"""
JITTER = {"name": "ColorJitter", "brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2}
POLICIES: dict[str, list[Any]] = {
    "none": [],
    "TrivialAugmentWide": ["TrivialAugmentWide"],
    "RandAugment": ["RandAugment"],
    "SimCLR": [
        JITTER | {"p": 0.8},
        {"name": "RandomGrayscale", "p": 0.2},
        {"name": "GaussianBlur", "kernel_size": 23, "p": 0.5},
    ],
}
ARMS = [(loader, policy) for loader in ("torch", "dali_cpu") for policy in POLICIES]
# that of which the smallest change is asked for is measured more often
ARMS += [("dali_cpu", "none")] * 2


def start(images: Path, checkout: str) -> subprocess.Popen[str]:
    # strings hash alike in both
    environment = os.environ | {"PYTHONPATH": checkout, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", CHILD, str(images)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=checkout, env=environment, **pipes)


def answer(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline() or sys.exit("a process ended; its last words are above")


def one_round(processes: dict[str, subprocess.Popen[str]], number: int) -> list[dict[str, Any]]:
    """What each arm was measured to take, in each checkout."""
    order, found = random.Random(number).sample(ARMS, len(ARMS)), []
    for place, (loader, policy) in enumerate(order):
        turn = list(processes.items())[:: -1 if (number + place) % 2 else 1]
        each: dict[str, Any] = {"loader": loader, "policy": policy}
        for name, process in turn:
            process.stdin.write(json.dumps([loader, POLICIES[policy]]) + "\n")
            process.stdin.flush()
            each[name] = json.loads(answer(process))
        assert len({each[name].pop("order") for name in processes}) == 1, "not the same samples"
        found.append(each)
    return found


def compare(rounds: list[list[dict[str, Any]]], names: list[str]) -> dict[str, Any]:
    before, after = names

    def times(loader: str, policy: str, name: str) -> list[float]:
        """One for each round."""
        return [
            statistics.fmean(
                each[name]["cpu_ms_an_image"]
                for each in one
                if (each["loader"], each["policy"]) == (loader, policy)
            )
            for one in rounds
        ]

    found: dict[str, Any] = {}
    for loader, policy in dict.fromkeys(ARMS):
        one, other = (times(loader, policy, name) for name in names)
        found[f"{loader} {policy}"] = {
            f"cpu_ms_an_image {before}": statistics.median(one),
            f"cpu_ms_an_image {after}": statistics.median(other),
            f"{after} over {before}": asdict(paired_ratio(one, other)),
        }
    for policy in POLICIES:
        found[f"torch over dali_cpu, {policy}"] = {
            name: asdict(
                paired_ratio(*(times(each, policy, name) for each in ("dali_cpu", "torch")))
            )
            for name in names
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("images", type=Path)
    parser.add_argument("checkouts", nargs=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--beside", default="nothing", help="what else ran on the machine")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    checkouts = dict(each.split("=", 1) for each in args.checkouts)
    with contextlib.ExitStack() as stack:
        processes = {
            name: stack.enter_context(start(args.images.absolute(), path))
            for name, path in checkouts.items()
        }
        commits = {name: answer(process).strip() for name, process in processes.items()}
        rounds = []
        for number in range(args.rounds):
            rounds.append(one_round(processes, number))
            print(f"round {number + 1} of {args.rounds}", flush=True)
        for process in processes.values():
            process.stdin.close()

    figures = compare(rounds, list(checkouts))
    result = {
        "command": "python measure.py IMAGES "
        f"{' '.join(f'{name}=CHECKOUT' for name in checkouts)} --rounds {args.rounds}",
        "commits": commits,
        "beside": args.beside,
        "figures": figures,
        "rounds": rounds,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
