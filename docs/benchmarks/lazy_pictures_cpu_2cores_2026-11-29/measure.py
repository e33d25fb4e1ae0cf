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


def micros(work, count):
    start = time.process_time()
    work()
    return (time.process_time() - start) / count * 1e6


def cost_of_items(program, images, count=512):
    """What one sample costs in all but its pixels, and what of that the program does itself."""
    from dali_pipes.adapters.lazy.compiler.batches import Room, images_of, kind_of, plan_batch
    from dali_pipes.adapters.lazy.compiler.reading import read
    from dali_pipes.adapters.lazy.found import WaitingParts
    from dali_pipes.adapters.lazy.loader import LazyLoader, _Parcels
    from dali_pipes.adapters.lazy.patching import patched
    from dali_pipes.adapters.lazy.state import sending

    loader = LazyLoader(loader_of(program, images, count, workers=0), check=False)

    def parcels():
        loader._order.epoch, loader._order.delivered = 0, 0
        return list(_Parcels(loader._inner, None, 0, 0))

    costs, made, sent = {}, [], []
    with patched(), sending():
        parcels()
        costs["worker"] = micros(lambda: made.extend(parcels()), count)
        costs["sent"] = micros(
            lambda: sent.extend(bytes(ForkingPickler.dumps(vars(each))) for each in made), count
        )
    costs["received"] = micros(lambda: [pickle.loads(each) for each in sent], count)
    cells = []
    costs["found"] = micros(
        lambda: cells.extend(cell for each in made for cell in WaitingParts(each.batch).cells),
        count,
    )
    rows = []
    costs["read"] = micros(
        lambda: rows.extend((r, read(r)) for cell in cells for r in cell.rows), count
    )

    def plan():
        for first in range(0, len(rows), BATCH):
            some = rows[first : first + BATCH]
            room = Room.of([row for _, row in some])
            plan_batch(
                kind_of(some[0][1]), room, [row for _, row in some], images_of([r for r, _ in some])
            )

    plan()
    costs["planned"] = micros(plan, count)
    costs["program's own"] = own_work(program, count)
    return costs


def own_work(program, count):
    """What the program does besides pixels: it runs with pictures of a few pixels, and what these
    cost alone is subtracted.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [f"{folder}/{at}.jpg" for at in range(count)]
        for file in files:
            Image.new("RGB", (8, 8)).save(file, "JPEG")
        torch.manual_seed(0)
        loader = DataLoader(PROGRAMS[program](files, 8), BATCH, True)
        list(loader)
        whole = micros(lambda: list(loader), count)
        pictures = [Image.open(file) for file in files]

        def pixels():
            made = []
            for each in pictures:
                array = np.array(each.resize((8, 8), Image.BILINEAR))
                made.append(torch.from_numpy(array).permute(2, 0, 1).contiguous().div(255))
                made[-1].sub_(0.5).div_(0.25)
            for first in range(0, count, BATCH):
                torch.stack(made[first : first + BATCH])

        return whole - micros(pixels, count)


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
            beyond = sum(costs.values()) - 2 * costs["program's own"]
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
