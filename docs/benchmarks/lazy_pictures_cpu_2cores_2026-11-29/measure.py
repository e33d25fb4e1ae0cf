"""What pictures that wait cost and save on a CPU, without a GPU.

    python measure.py IMAGES [--before CHECKOUT] [--rounds 7] [--only NAME]  # CPU-ms an image
    python measure.py IMAGES --first [--before CHECKOUT]                     # until the first batch
    python measure.py IMAGES --items                                         # CPU-µs a sample

IMAGES is a folder for torchvision's ImageFolder. CHECKOUT is one of version 0.3, whose `from_torch`
is another arm. Each trial is a process of its own; rounds are interleaved. Results are added to
result.json.
"""

import argparse
import json
import os
import pickle
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "NO_ALBUMENTATIONS_UPDATE": "1"}

import albumentations as A
import cv2
import numpy as np
import psutil
import torch
import torchvision.transforms.functional as F
from albumentations.pytorch import ToTensorV2
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets
from torchvision import transforms as T

import dali_pipes as dp

HERE = Path(__file__).resolve().parent
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE, BATCH, COUNT = 224, 64, 1280
# the comparisons of the first, tenth and hundredth sample lie before, that of the thousandth after
FIRST, LAST = 3, 14
PROGRAMS_OWN = r"torchvision|measure\.py|ImageFile\.py|JpegImagePlugin|torch/(nn|utils/data)"
MANY = 100_000  # files of the data set whose first batch is waited for
END = [T.ToTensor(), T.Normalize(MEAN, STD)]


class Table(Dataset):
    """Files and labels of a table."""

    def __init__(self, files, steps):
        self.files, self.steps = files, steps

    def __len__(self):
        return len(self.files)

    def __getitem__(self, at):
        return self.steps(Image.open(self.files[at]).convert("RGB")), at % 7


class Pairs(Table):
    """Two pictures, which are cut and flipped alike."""

    def __getitem__(self, at):
        one, other = (
            Image.open(self.files[each]).convert("RGB").resize((320, 320), Image.BILINEAR)
            for each in (at, at - 1)
        )
        box = T.RandomCrop.get_params(one, (SIZE, SIZE))
        one, other = F.crop(one, *box), F.crop(other, *box)
        if random.random() < 0.5:
            one, other = F.hflip(one), F.hflip(other)
        return self.steps(one), self.steps(other)


class Arrays(Table):
    """OpenCV reads, albumentations does the rest."""

    def __getitem__(self, at):
        image = cv2.cvtColor(cv2.imread(self.files[at]), cv2.COLOR_BGR2RGB)
        return self.steps(image=image)["image"], at % 7


class Looks(Table):
    """Looks at the pixels of each picture, so none waits."""

    def __getitem__(self, at):
        image = np.asarray(Image.open(self.files[at]).convert("RGB").resize((SIZE, SIZE)))
        return torch.from_numpy(image * (128 / image.mean())).permute(2, 0, 1).float(), at % 7


def albumentations_of(*colors):
    crop = [A.RandomResizedCrop((SIZE, SIZE)), A.HorizontalFlip()]
    return A.Compose([*crop, *colors, A.Normalize(MEAN, STD), ToTensorV2()])


def crop_of(size):
    return [T.RandomResizedCrop(size), T.RandomHorizontalFlip()]


COLORS = A.RandomBrightnessContrast(p=0.8), A.HueSaturationValue(p=0.8)
PROGRAMS = {
    "ImageFolder, train": lambda files, size=SIZE: Table(files, T.Compose([*crop_of(size), *END])),
    "ImageFolder, evaluation": lambda files: Table(
        files, T.Compose([T.Resize(256), T.CenterCrop(SIZE), *END])
    ),
    "CSV, TrivialAugment": lambda files, size=SIZE: Table(
        files, T.Compose([*crop_of(size), T.TrivialAugmentWide(), *END])
    ),
    "pair": lambda files: Pairs(files, T.Compose(END)),
    "albumentations": lambda files: Arrays(files, albumentations_of()),
    "albumentations, colors": lambda files: Arrays(files, albumentations_of(*COLORS)),
    "looks at all pixels": lambda files: Looks(files, None),
}


def files_of(images, count):
    files = [file for file, _ in datasets.ImageFolder(images).samples]
    return [files[at % len(files)] for at in range(count)]


def loader_of(program, images, count, workers=1):
    return DataLoader(PROGRAMS[program](files_of(images, count)), BATCH, True, num_workers=workers)


def config_of(arm):
    if arm == "torch":
        return dp.TorchConfig(num_workers=0)
    return dp.DaliConfig(device="cpu", num_threads=1)


def cpu_seconds():
    me = psutil.Process()
    times = [each.cpu_times() for each in (me, *me.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def try_once(program, arm, images):
    """CPU-ms an image, of this process and its workers."""
    torch.manual_seed(0)
    loader = loader_of(program, images, COUNT)
    if arm != "DataLoader":
        loader = dp.from_torch(loader, config_of(arm))
    for number, _ in enumerate(loader):
        if number == FIRST:
            start = cpu_seconds()
        if number == LAST:
            end = cpu_seconds()
            break
    return (end - start) / ((LAST - FIRST) * BATCH) * 1e3


def try_first(arm, images):
    """Seconds from the call until the first batch, of a folder with many files and two workers."""
    folder = datasets.ImageFolder(images, T.Compose([*crop_of(SIZE), *END]))
    assert len(folder) >= MANY, f"{len(folder)} files"
    loader = DataLoader(folder, BATCH, True, num_workers=2)
    start = time.perf_counter()
    if arm != "DataLoader":
        options = {"check": False} if arm == "unchecked" else {}
        loader = dp.from_torch(loader, config_of("dali_cpu"), **options)
    next(iter(loader))
    return time.perf_counter() - start


def run(arm, before, *args):
    """A trial in a process of its own."""
    root = before if arm == "0.3" else HERE.parents[2]
    command = [sys.executable, __file__, "--trial", "dali_cpu" if arm == "0.3" else arm, *args]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    if not found:
        print(f"{arm}: {(done.stderr.strip().splitlines() or ['?'])[-1][:200]}", flush=True)
        return None
    return float(found[0].split()[1])


def compare(title, arms, rounds, before, *args):
    """All arms in each round, in another order, and the median of each one's share of the first."""
    found = {arm: [] for arm in arms}
    for _ in range(rounds):
        for arm in random.sample(arms, len(arms)):
            found[arm].append(run(arm, before, *args))
    for arm in arms:
        pairs = [
            one / other
            for one, other in zip(found[arm], found[arms[0]], strict=True)
            if one and other
        ]
        values = [each for each in found[arm] if each]
        if pairs:
            print(
                f"{title:26s} {arm:12s} {statistics.median(values):7.2f}   "
                f"{statistics.median(pairs):.2f} [{min(pairs):.2f}, {max(pairs):.2f}]",
                flush=True,
            )
    save({title: found})


def save(found):
    file = HERE / "result.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | found, indent=1) + "\n")


def with_many_files(images, then):
    """Calls a function with a folder of many hard links to these images."""
    files = files_of(images, MANY)
    with tempfile.TemporaryDirectory(dir=Path(images).parent) as folder:
        for at, file in enumerate(files):
            place = Path(folder) / f"{at % 100:02d}"
            place.mkdir(exist_ok=True)
            os.link(file, place / f"{at}.jpg")
        then(folder)


# CPU-µs of a sample


def micros(work, count, times=7):
    """The median of some times; the first one, which fills caches, is left out."""
    found = []
    for _ in range(1 + times):
        start = time.process_time()
        work()
        found.append((time.process_time() - start) / count * 1e6)
    return statistics.median(found[1:])


def cost_of_items(program, images, count=512):
    """CPU-µs of one sample in all but its pixels, without comparisons: what the program itself takes,
    and what waiting adds to it in each part.
    """
    from dali_pipes.adapters.lazy.compiler.batches import Room, images_of, kind_of, plan_batch
    from dali_pipes.adapters.lazy.compiler.reading import read
    from dali_pipes.adapters.lazy.found import WaitingParts
    from dali_pipes.adapters.lazy.loader import LazyLoader
    from dali_pipes.adapters.lazy.parcels import Parcels
    from dali_pipes.adapters.lazy.patching import patched
    from dali_pipes.adapters.lazy.state import sending

    loader = LazyLoader(
        loader_of(program, images, count, workers=0), config_of("dali_cpu"), check=False
    )
    made, cells, rows = [], [], []

    def make():
        loader._order.epoch, loader._order.delivered = 0, 0
        made[:] = Parcels(loader._inner, None, 0, 0)

    def send():
        for each in made:
            pickle.loads(ForkingPickler.dumps(vars(each)))

    def find():
        cells[:] = [cell for each in made for cell in WaitingParts(each.batch).cells]

    def read_all():
        rows[:] = [(recipe, read(recipe)) for cell in cells for recipe in cell.rows]

    def plan():
        for first in range(0, len(rows), BATCH):
            recipes, some = zip(*rows[first : first + BATCH], strict=True)
            plan_batch(kind_of(some[0]), Room.of(some), some, images_of(recipes))

    with patched(), sending():
        in_worker = micros(make, count)
        with Share() as share:
            for _ in range(20):
                make()
        costs = {
            "the program": in_worker * (1 - share.ours / share.count),
            "noted": in_worker * share.ours / share.count,
            "sent and received": micros(send, count),
        }
    costs["found"] = micros(find, count)
    costs["read"] = micros(read_all, count)
    costs["planned"] = micros(plan, count)
    return costs


class Share:
    """In it the share of the CPU time is sampled in which code of this package runs, and not the
    program's, with PyTorch and torchvision, or Pillow's that reads a header.
    """

    def __enter__(self):
        self.ours = self.count = 0
        signal.signal(signal.SIGPROF, self._see)
        signal.setitimer(signal.ITIMER_PROF, 5e-4, 5e-4)
        return self

    def _see(self, _, frame):
        self.count += 1
        while frame is not None and not re.search(PROGRAMS_OWN, frame.f_code.co_filename):
            if "dali_pipes" in frame.f_code.co_filename:
                self.ours += 1
                return
            frame = frame.f_back

    def __exit__(self, *_):
        signal.setitimer(signal.ITIMER_PROF, 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("images")
    parser.add_argument("--before", default="")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--items", action="store_true")
    parser.add_argument("--trial", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    more = ["0.3"] if args.before else []
    if args.trial:
        arm, *program = args.trial
        found = try_once(*program, arm, args.images) if program else try_first(arm, args.images)
        print("found", found, flush=True)
        for each in psutil.Process().children(recursive=True):
            each.kill()
        os._exit(0)
    if args.first:
        arms = ["DataLoader", "dali_cpu", "unchecked", *more]
        with_many_files(
            args.images,
            lambda folder: compare("first batch", arms, args.rounds, args.before, "--", folder),
        )
    elif args.items:
        found = {name: cost_of_items(name, args.images) for name in list(PROGRAMS)[:3:2]}
        for name, costs in found.items():
            print(name, {part: round(cost) for part, cost in costs.items()})
            beyond = sum(costs.values()) - costs["the program"]
            print(f"  beyond the program's own work: {beyond:.0f} µs")
        save({"CPU-µs a sample": found})
    else:
        for name in PROGRAMS:
            if args.only in name:
                compare(
                    name,
                    ["DataLoader", "dali_cpu", "torch", *more],
                    args.rounds,
                    args.before,
                    name,
                    "--",
                    args.images,
                )


if __name__ == "__main__":
    main()
