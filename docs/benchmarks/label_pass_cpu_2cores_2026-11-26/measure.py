"""What from_torch's label pass costs over the user's own code, by opener.

    python measure.py FOLDER OUT.json [--rounds 5] [--items 10000] [--once 100000]

FOLDER has images in any depth. The data sets have `items` samples, of as many files as there are
over and over. "pass" is the CPU time of `pass_over`, which visits each sample twice. "own" is that
of calling `dataset[index]` twice with trivial functions in the place of the opener and of the
Compose, which return one small picture each. Both are of this process, in turns. `--once` adds one
round with so many samples. The table goes to table.md beside OUT.json.
"""

import argparse
import io
import json
import statistics
import sys
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import cv2
import datasets
import numpy as np
import torch
import torchvision
from dali_pipes.adapters.from_torch.label_pass import pass_over
from dali_pipes.adapters.from_torch.trace import Recorder, trace
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms

torch.set_num_threads(1)
STEPS = [
    transforms.RandomResizedCrop(224),
    transforms.RandomHorizontalFlip(),
    transforms.ToTensor(),
    transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
]
PICTURE = Image.fromarray(np.arange(11 * 14 * 3, dtype=np.uint8).reshape(11, 14, 3))
ARRAY = np.asarray(PICTURE)
PLANES = torch.from_numpy(ARRAY.transpose(2, 0, 1).copy())
RESULT = torch.zeros(3, 224, 224)


class Files(Dataset):
    def __init__(self, files, count, opener, steps=STEPS):
        self.paths = [files[at % len(files)] for at in range(count)]
        self.labels = [at % 1000 for at in range(count)]
        self.opener, self.transform = opener, transforms.Compose(steps)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.transform(self.opener(self.paths[index])), self.labels[index]


def by_path(path):
    return Image.open(path).convert("RGB")


def by_file(path):
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


def by_bytes(path):
    with open(path, "rb") as file:
        return Image.open(io.BytesIO(file.read())).convert("RGB")


def by_opencv(path):
    return Image.fromarray(cv2.cvtColor(cv2.imread(path), cv2.COLOR_BGR2RGB))


def by_torchvision(path):
    return torchvision.io.read_image(path, torchvision.io.ImageReadMode.RGB)


def hugging_face(files, count):
    compose = transforms.Compose(STEPS)
    rows = {
        "image": [files[at % len(files)] for at in range(count)],
        "label": [at % 1000 for at in range(count)],
    }

    def transform(batch):
        batch["image"] = [compose(each.convert("RGB")) for each in batch["image"]]
        return batch

    table = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    return table.with_transform(transform)


TENSORS = [*STEPS[:2], transforms.ConvertImageDtype(torch.float32), STEPS[3]]
PROGRAMS = {
    "PIL.Image.open(path)": lambda files, count: Files(files, count, by_path),
    "open(path), PIL.Image.open(file)": lambda files, count: Files(files, count, by_file),
    "PIL.Image.open(BytesIO(bytes))": lambda files, count: Files(files, count, by_bytes),
    "cv2.imread, cvtColor": lambda files, count: Files(files, count, by_opencv),
    "torchvision.io.read_image": lambda files, count: Files(files, count, by_torchvision, TENSORS),
    "Hugging Face's Image": hugging_face,
}


def stubs():
    """Trivial functions in the place of openers and of Compose."""
    return [
        mock.patch.object(Image, "open", lambda *arguments: PICTURE.copy()),
        mock.patch.object(cv2, "imread", lambda *arguments: ARRAY.copy()),
        mock.patch.object(torchvision.io, "read_image", lambda *arguments: PLANES.clone()),
        mock.patch.object(transforms.Compose, "__call__", lambda self, image: RESULT),
    ]


def get(dataset, index):
    if hasattr(dataset, "__getitems__"):
        return dataset.__getitems__([index])[0]
    return dataset[index]


def measure(dataset, count):
    """CPU-µs a sample of the pass, and of the user's own code twice."""
    with Recorder(dataset) as recorder:
        seen = trace(recorder, range(count), 64)
        start = time.process_time()
        pass_over(recorder, seen, range(count))
        passed = time.process_time() - start

    with ExitStack() as stack:
        for each in stubs():
            stack.enter_context(each)
        start = time.process_time()
        for index in [*range(count), *reversed(range(count))]:
            get(dataset, index)
        own = time.process_time() - start
    return passed / count * 1e6, own / count * 1e6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--once", type=int, default=0)
    arguments = parser.parse_args()

    suffixes = (".jpg", ".jpeg")
    paths = sorted(path for path in arguments.folder.rglob("*") if path.suffix.lower() in suffixes)
    files = [str(path) for path in paths if Image.open(path).mode == "RGB"]
    datasets.disable_progress_bars()

    rounds = {name: [] for name in PROGRAMS}
    for _ in range(arguments.rounds):
        for name, make in PROGRAMS.items():
            rounds[name].append(measure(make(files, arguments.items), arguments.items))
            print(name, rounds[name][-1], file=sys.stderr, flush=True)
    once = {}
    if arguments.once:
        for name, make in PROGRAMS.items():
            once[name] = measure(make(files, arguments.once), arguments.once)
            print(name, once[name], file=sys.stderr, flush=True)

    packages = ("torch", "torchvision", "pillow", "numpy", "datasets", "opencv-python-headless")
    result = {
        "files": len(files),
        "items": arguments.items,
        "once": arguments.once,
        "versions": {
            "python": sys.version.split()[0],
            **{each: version(each) for each in packages},
        },
        "cpu_us_per_item": {
            name: {
                "pass": [round(passed, 1) for passed, _ in values],
                "own": [round(own, 1) for _, own in values],
                "over_own": round(statistics.median(one - other for one, other in values), 1),
                "once": [round(each, 1) for each in once.get(name, ())],
            }
            for name, values in rounds.items()
        },
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    (arguments.out.parent / "table.md").write_text(to_table(result))


def to_table(result):
    """CPU-µs a sample, both visits together."""
    once = f" | {result['once']:,} samples |" if result["once"] else " |"
    lines = [
        f"| opener | pass | own code | over it, {result['items']:,} samples{once}",
        "|---|---|---|---|" + ("---|" if result["once"] else ""),
    ]
    for name, values in result["cpu_us_per_item"].items():
        passed, own = (statistics.median(values[key]) for key in ("pass", "own"))
        cells = [f"{passed:.0f}", f"{own:.0f}", f"**{values['over_own']:.0f}**"]
        if values["once"]:
            cells.append(f"{values['once'][0] - values['once'][1]:.0f}")
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
