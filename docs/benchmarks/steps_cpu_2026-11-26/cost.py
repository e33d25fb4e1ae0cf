"""Made cost.json here, of which `measure.py --read` writes the column of CPU time in docs/steps.md:

PYTHONPATH=.:tests/support python docs/benchmarks/steps_cpu_2026-11-26/cost.py IMAGES --rounds 5

What a step costs at 224 × 224 pixels, in CPU-µs an image: by its library (a loop over PIL images, or
arrays for albumentations), by `loader=torch` in its own process, and by `loader=dali_cpu` with one
thread. The images are stored as PPMs of 224 × 224, so that little else is done. Each figure is the
time with the step minus the time without, one right after the other; the middle of all rounds.
PyTorch and OpenCV have one thread.
"""

import argparse
import contextlib
import itertools
import json
import random
import statistics
import tempfile
import time
import warnings
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import cv2
import numpy as np
import torch
from library_steps import CASES, Case
from PIL import Image
from step_table import COST, key_of

import dali_pipes as dp
from dali_pipes.adapters.transforms.reading import NotConvertibleError
from dali_pipes.system.provenance import provenance

SIZE, IMAGES, BATCH, WARM = (224, 224), 64, 32, 2
LOADERS = {
    "torch": dp.TorchConfig(num_workers=0, decoder="pil"),
    "dali_cpu": dp.DaliConfig(device="cpu", num_threads=1),
}
NOTHING = {
    "torchvision": "Lambda(lambda image: image)",
    "timm": "MaybePILToTensor()",
    "albumentations": "NoOp()",
}


def write_images(source, folder):
    (folder / "a").mkdir(parents=True)
    files = sorted(Path(source).rglob("*.JPEG")) + sorted(Path(source).rglob("*.jpg"))
    for place, file in enumerate(files[:IMAGES]):
        with Image.open(file) as image:
            image.convert("RGB").resize(SIZE).save(folder / "a" / f"{place:02}.ppm")
    return sorted((folder / "a").iterdir())


def by_library(live, case, pictures):
    """CPU seconds an image of the live transform."""
    is_array = case.library == "albumentations"
    inputs = [np.array(each) for each in pictures] if is_array else pictures
    start = time.process_time()
    for each in inputs:
        if is_array:
            live(image=each)
        else:
            # timm's Posterize draws 0 bits in some policies, which Pillow refuses
            with contextlib.suppress(ValueError):
                live(each)
    return (time.process_time() - start) / len(inputs)


def by_loader(name, transform, manifest, batches):
    """CPU seconds an image of a loader."""
    options = {"batch_size": BATCH, "seed": 0, "device": "cpu"}
    with dp.build_loader(manifest, LOADERS[name], transform=transform, **options) as loader:
        taken = itertools.islice(loader, WARM + batches)
        for _ in range(WARM):
            next(taken)
        start, images = time.process_time(), sum(len(batch) for batch in taken)
        return (time.process_time() - start) / images


def one_round(cases, folder, pictures, manifest, batches):
    found = {}
    for case in cases:
        plain = replace(case, text=NOTHING[case.library])
        live, empty = case.transform(), _frame_alone(plain)
        costs = {"own": by_library(live, case, pictures) - by_library(empty, case, pictures)}
        _, transform = case.read()
        without = replace(transform, **_nothing(transform))
        for name in LOADERS:
            costs[name] = by_loader(name, transform, manifest, batches) - by_loader(
                name, without, manifest, batches
            )
        found[key_of(case)] = {name: 1e6 * seconds for name, seconds in costs.items()}
    return found


def _frame_alone(case):
    """The transform of a case without its steps."""
    live = case.transform()
    if case.library == "albumentations":
        return live
    is_own = [type(step).__name__ in ("Lambda", "MaybePILToTensor") for step in live.transforms]
    live.transforms = [step for step, own in zip(live.transforms, is_own, strict=True) if not own]
    return live


def _nothing(transform):
    """Options with which a transform only makes tensors of images."""
    options = {"augment": [], "before": [], "flip": 0.0, "vertical_flip": 0.0}
    return {name: value for name, value in options.items() if hasattr(transform, name)}


def list_cases(folder):
    """Steps that are carried out, and leave the size of images."""
    for case in CASES:
        # what changes the size is followed by another resize
        others = any(word in case.text for word in ("Pad(", "expand", "Normalize", "ToFloat"))
        sized = Case(case.library, case.place, case.text, SIZE)
        if case.place in ("before", "after", "floats") and not others:
            with contextlib.suppress(NotConvertibleError):
                sized.read()
                yield sized


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("images")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--beside", default="nothing", help="what else ran on the machine")
    args = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    warnings.filterwarnings("ignore")

    with tempfile.TemporaryDirectory() as root:
        files = write_images(args.images, Path(root))
        pictures = [Image.open(file).convert("RGB") for file in files]
        manifest = dp.Manifest.scan(root, progress=False)
        cases = list(list_cases(Path(root)))
        repeated = manifest.subset(np.arange(BATCH * (WARM + args.batches + 8)) % len(manifest))
        rounds = []
        for number in range(args.rounds):
            order = random.Random(number).sample(cases, len(cases))
            rounds.append(one_round(order, Path(root), pictures, repeated, args.batches))
            print(f"round {number + 1} of {args.rounds}", flush=True)

    costs = {
        key_of(case): {
            name: {
                "middle": statistics.median(each[key_of(case)][name] for each in rounds),
                "rounds": [each[key_of(case)][name] for each in rounds],
            }
            for name in ("own", *LOADERS)
        }
        for case in cases
    }
    origin = provenance(manifest.describe(), [])
    result = {
        "command": "PYTHONPATH=.:tests/support python "
        f"docs/benchmarks/steps_cpu_2026-11-26/cost.py IMAGES --rounds {args.rounds}",
        "beside": args.beside,
        "cpu_us_an_image": costs,
        "timm": version("timm"),
        "albumentations": version("albumentations"),
        **{key: origin[key] for key in ("versions", "commit")},
    }
    COST.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
