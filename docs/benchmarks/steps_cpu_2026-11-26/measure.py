"""Made figures.json here, and the tables of docs/steps.md:

PYTHONPATH=.:tests/support python docs/benchmarks/steps_cpu_2026-11-26/measure.py
PYTHONPATH=.:tests/support python docs/benchmarks/steps_cpu_2026-11-26/measure.py --only RandomErasing

For each case of tests/support/library_steps.py: what `from_torch` makes of it, which loaders carry
that out, the pixels of 32 pictures against the library's with the same draws, and the largest
distance of Kolmogorov and Smirnov over 22 measures of images, 10,000 of `loader=torch` and as many
of the live transform; 100 where nothing is drawn.
`--only` measures the cases anew whose text begins so, `--read` none: only what becomes of each.
"""

import argparse
import json
import sys
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path

import torch
from library_steps import CASES, LARGE, SMALL, SQUARE, draw_pictures, outcome_of
from step_figures import differences, distance_of_draws, is_random
from step_table import FIGURES, PAGE, key_of, page_with, write_tables

PACKAGES = ("torch", "torchvision", "timm", "albumentations", "pillow", "numpy")
PIXELS = ("torch", "dali_cpu", "dali")  # loaders whose pixels are compared
PICTURES, DRAWS, FEW = 32, 10_000, 100


def measure(case, folder, known, only_read):
    outcome = outcome_of(case, folder)
    found = {"kind": outcome.kind, "words": outcome.words, "loaders": outcome.loaders}
    if outcome.kind == "refused":
        return found
    if only_read:
        return known | found
    found["pixels"] = {
        name: differences(case, outcome.transform, name, folder)
        for name in PIXELS
        if not outcome.loaders[name]
    }
    count = DRAWS if is_random(case, outcome.transform, folder) else FEW
    distance = distance_of_draws(case, outcome.transform, folder, count)
    return found | {"draws": {"count": count, "distance": distance}}


def save(cases):
    command = "PYTHONPATH=.:tests/support python docs/benchmarks/steps_cpu_2026-11-26/measure.py"
    versions = {name: version(name) for name in PACKAGES}
    figures = {"command": command, "versions": versions, "pictures": PICTURES, "cases": cases}
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    return figures


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--read", action="store_true")
    args = parser.parse_args()
    known = json.loads(FIGURES.read_text())["cases"] if FIGURES.exists() else {}
    torch.set_num_threads(1)
    # of albumentations and v2, about older names
    warnings.filterwarnings("ignore")

    cases = {}
    with tempfile.TemporaryDirectory() as root:
        folders = {
            size: Path(root) / str(place) for place, size in enumerate((SMALL, SQUARE, LARGE))
        }
        for size, folder in folders.items():
            draw_pictures(folder, size, PICTURES)
        for case in CASES:
            key = key_of(case)
            left_out = args.only is not None and not case.text.startswith(tuple(args.only))
            if key in known and left_out:
                cases[key] = known[key]
                continue
            cases[key] = measure(case, folders[case.size], known.get(key, {}), args.read)
            print(
                key, cases[key].get("pixels"), cases[key].get("draws"), file=sys.stderr, flush=True
            )

            save(known | cases)
    PAGE.write_text(page_with(write_tables(save(cases))))


if __name__ == "__main__":
    main()
