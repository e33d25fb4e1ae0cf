"""What from_torch(every_epoch=True) costs and gains, for data sets with random partners.

    python measure.py FOLDER OUT.json [--rounds 6] [--epochs 2] [--workers 2]

FOLDER has images in folders of their classes. Two things are measured, and table.md beside OUT.json
has both:

- "cost": CPU-µs that seeding and recording take an item, in a worker, over the data set's own code:
  the time of the items of planned batches, less that of the same `__getitem__` with trivial
  functions in place of `Image.open` and of the Compose.
- "a/b": the old DataLoader and the new loader with the same number of workers, in processes of
  their own, in turns: images a second and CPU seconds of the process with all its children. The
  first epoch is not counted.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import numpy as np
import psutil
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

import dali_pipes as dp

STEPS = [
    transforms.RandomResizedCrop(224),
    transforms.RandomHorizontalFlip(),
    transforms.ToTensor(),
    transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
]
PICTURE, RESULT = Image.new("RGB", (14, 11)), torch.zeros(3, 224, 224)


class Files(Dataset):
    def __init__(self, folder, repeats):
        samples = ImageFolder(folder).samples * repeats
        self.paths, self.labels = [path for path, _ in samples], [label for _, label in samples]
        self.classes, self.transform = {}, transforms.Compose(STEPS)
        for at, label in enumerate(self.labels):
            self.classes.setdefault(label, []).append(at)

    def __len__(self):
        return len(self.paths)

    def open(self, at):
        with Image.open(self.paths[at]) as image:
            return self.transform(image.convert("RGB"))


class Pair(Files):
    """Each image with another one at random, as CycleGAN's."""

    pictures = 2

    def __getitem__(self, index):
        other = random.randrange(len(self))
        return {"A": self.open(index), "B": self.open(other), "B_path": self.paths[other]}


class Triplet(Files):
    """Anchor, positive and negative."""

    pictures = 3

    def __getitem__(self, index):
        label = self.labels[index]
        positive = random.choice(self.classes[label])
        negative = random.choice(self.classes[random.choice([*self.classes.keys() - {label}])])
        return [self.open(at) for at in (index, positive, negative)], label


class Noise(Files):
    """A label that is wrong once in ten times."""

    pictures = 1

    def __getitem__(self, index):
        wrong = random.random() < 0.1
        return self.open(index), random.randrange(len(self.classes)) if wrong else self.labels[
            index
        ]


PROGRAMS = {"label noise": Noise, "pair": Pair, "triplet": Triplet}
COMPARED = ("pair", "triplet")


def converted(loader, config):
    return dp.from_torch(loader, config, every_epoch=True, seed=0, check=False, device="cpu")


LOADERS = {
    "old": lambda loader: loader,
    "torch": lambda loader: converted(loader, dp.TorchConfig(num_workers=2)),
    "dali_cpu": lambda loader: converted(loader, dp.DaliConfig(device="cpu", num_threads=2)),
}


def cost(folder, name, items):
    """CPU-µs an item of the runner, and of the data set's own code."""
    from dali_pipes.adapters.items.run import ItemTask

    dataset = PROGRAMS[name](folder, max(1, items // len(ImageFolder(folder))))
    runner = converted(DataLoader(dataset, 64, shuffle=True), dp.TorchConfig()).loader
    runner = runner._work._build_backend.keywords["runner"]
    count = min(items, len(dataset)) // 64 * 64
    tasks = [ItemTask(0, np.arange(at, at + 64)) for at in range(0, count, 64)]
    info = mock.patch.object(torch.utils.data._utils.worker, "_worker_info", object())
    with info:
        runner[tasks[0]]  # patches
        start = time.process_time()
        for task in tasks:
            runner[task]
        passed = time.process_time() - start

    stubs = [
        mock.patch.object(Image, "open", lambda *arguments: PICTURE.copy()),
        mock.patch.object(transforms.Compose, "__call__", lambda self, image: RESULT),
    ]
    with ExitStack() as stack:
        for each in stubs:
            stack.enter_context(each)
        start = time.process_time()
        for index in range(count):
            dataset[index]
        own = time.process_time() - start
    return passed / count * 1e6, own / count * 1e6


def run(folder, name, which, epochs, workers):
    """Images a second, and CPU seconds for 1,000 images, after one epoch."""
    torch.set_num_threads(1)
    dataset = PROGRAMS[name](folder, 4)
    old = DataLoader(
        dataset, 32, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=True
    )
    loader, me = LOADERS[which](old), psutil.Process()

    def spent():
        return sum(sum(each.cpu_times()[:2]) for each in (me, *me.children(recursive=True)))

    for _ in loader:
        pass
    start, cpu, images = time.perf_counter(), spent(), 0
    for _ in range(epochs):
        for _ in loader:
            images += 32 * dataset.pictures
    seconds, cpu = time.perf_counter() - start, spent() - cpu
    print(json.dumps({"images_s": images / seconds, "cpu_s": cpu / images * 1000}))
    sys.stdout.flush()
    os._exit(0)


def ratios(rounds, of, what):
    values = [each[of][what] / each["old"][what] for each in rounds]
    return [statistics.median(values), min(values), max(values)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--items", type=int, default=6400)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.folder
    if arguments.run:
        run(folder, *arguments.run, arguments.epochs, arguments.workers)

    costs = {
        name: [cost(folder, name, arguments.items) for _ in range(arguments.rounds)]
        for name in PROGRAMS
    }
    trials = {}
    for name in COMPARED:
        trials[name] = []
        for number in range(arguments.rounds):
            done = {}
            # each comes first as often as the others
            order = list(LOADERS)[number % 3 :] + list(LOADERS)[: number % 3]
            for which in order:
                command = [sys.executable, __file__, folder, "-", "--run", name, which]
                command += ["--epochs", str(arguments.epochs), "--workers", str(arguments.workers)]
                text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                done[which] = json.loads(text.splitlines()[-1])
            trials[name].append(done)
            print(name, number, done, flush=True)

    versions = {each: version(each) for each in ("dali_pipes", "torch", "torchvision", "pillow")}
    result = {"versions": versions, "arguments": vars(arguments) | {"out": str(arguments.out)}}
    result |= {"cost": costs, "a/b": trials}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")

    lines = ["| data set | CPU-µs an item over its own code, median | own code |", "|---|---|---|"]
    for name, rounds in costs.items():
        over = statistics.median(passed - own for passed, own in rounds)
        lines.append(f"| {name} | {over:.0f} | {statistics.median(own for _, own in rounds):.0f} |")
    lines += ["", "| data set | loader | images/s | CPU seconds |", "|---|---|---|---|"]
    for name, rounds in trials.items():
        for which in list(LOADERS)[1:]:
            each = [
                "{:.2f} × [{:.2f}, {:.2f}]".format(*ratios(rounds, which, what))
                for what in ("images_s", "cpu_s")
            ]
            lines.append(f"| {name} | {which} | {each[0]} | {each[1]} |")
    (arguments.out.parent / "table.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
