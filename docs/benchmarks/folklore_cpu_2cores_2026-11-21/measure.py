"""What common advice on slow input pipelines is worth on this machine: before and after by turns,
95 % intervals of the ratio.

python docs/benchmarks/folklore_cpu_2cores_2026-11-21/measure.py IMAGES OUT.json

IMAGES is a folder with a subfolder for each class.
"""

import itertools
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import cross_entropy

import dali_pipes as dp
from dali_pipes.data.images import repeat_epoch, warm_page_cache
from dali_pipes.measure.rounds import rounds
from dali_pipes.measure.stats import paired_ratio
from dali_pipes.system.page_cache import evict
from dali_pipes.system.progress import track
from dali_pipes.system.provenance import provenance
from dali_pipes.training.network.build import build_model

PAIRS, SECONDS = 5, 1.5
TRANSFORM = dp.TrainTransform()


def loader(manifest, config, batch_size=64):
    """Images/s of a loader alone, after what it had prefetched is used up."""

    def rate():
        with dp.build_loader(
            repeat_epoch(manifest),
            config,
            transform=TRANSFORM,
            batch_size=batch_size,
            last_batch="pad",
        ) as batches:
            endless = itertools.chain.from_iterable(itertools.repeat(batches))
            for _ in range(8):
                next(endless)
            return per_second(lambda: len(next(endless)))

    return rate


def epochs(manifest, persistent):
    """Images/s over epochs of two batches."""

    def rate():
        config = dp.TorchConfig(num_workers=2, persistent_workers=persistent)
        with dp.build_loader(
            manifest, config, transform=TRANSFORM, batch_size=50, last_batch="drop"
        ) as batches:
            list(batches)
            return per_second(lambda: sum(map(len, batches)))

    return rate


def cold(manifest):
    def rate():
        evict({manifest.path(number) for number in range(len(manifest))})
        with dp.build_loader(
            manifest, dp.DaliConfig(device="cpu"), transform=TRANSFORM, batch_size=25
        ) as batches:
            begin = time.monotonic()
            return sum(map(len, batches)) / (time.monotonic() - begin)

    return rate


def step(batch_size=32, dtype=None, channels_last=True, item=False, size=112):
    """Images/s of a training step of ResNet-18."""
    torch.manual_seed(0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = build_model("resnet18", 100).to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    images, labels = (
        torch.rand(batch_size, 3, size, size).to(memory_format=layout),
        torch.arange(batch_size) % 100,
    )

    def once():
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            loss = cross_entropy(model(images).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if item:
            loss.item()
        return batch_size

    def rate():
        once()
        return per_second(once)

    return rate


def text(folder, binary):
    """Numbers/s from a file of 200,000."""
    numbers = np.random.default_rng(0).normal(size=(2_000, 100)).astype(np.float32)
    np.save(folder / "numbers.npy", numbers)
    np.savetxt(folder / "numbers.txt", numbers)
    read = (
        (lambda: np.load(folder / "numbers.npy"))
        if binary
        else (lambda: np.loadtxt(folder / "numbers.txt", dtype=np.float32))
    )
    return lambda: per_second(lambda: read().size)


def smaller(manifest, folder):
    """The images with a shorter side of 256, JPEG quality 90."""
    for number in range(len(manifest)):
        path = manifest.path(number)
        with Image.open(path) as image:
            scale = 256 / min(image.size)
            image = image.convert("RGB")
            if scale < 1:
                image = image.resize(
                    (round(image.width * scale), round(image.height * scale)),
                    Image.Resampling.LANCZOS,
                )
            out = folder / path.parent.name / path.name
            out.parent.mkdir(parents=True, exist_ok=True)
            image.save(out, format="JPEG", quality=90)
    return dp.Manifest.scan(folder, progress=False)


def copied(manifest, folder):
    for number in range(len(manifest)):
        path = manifest.path(number)
        out = folder / path.parent.name / path.name
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(path.read_bytes())
    return dp.Manifest.scan(folder, progress=False)


def cached_random_map():
    """Whether a random map before tf.data's cache() draws anew in the second epoch, and one after
    it.
    """
    import tensorflow as tf

    numbers = tf.data.Dataset.range(8)
    draw = lambda number: tf.random.uniform(())  # noqa: E731
    drawn = {
        "before": [
            [each.numpy() for each in one] for one in [numbers.map(draw).cache()] for _ in range(2)
        ],
        "after": [
            [each.numpy() for each in one] for one in [numbers.cache().map(draw)] for _ in range(2)
        ],
    }
    return {name: first != second for name, (first, second) in drawn.items()}


def per_second(work):
    done, begin = 0, time.monotonic()
    while time.monotonic() - begin < SECONDS:
        done += work()
    return done / (time.monotonic() - begin)


def claims(manifest, stack):
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    memory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
    small, in_memory = smaller(manifest, folder / "small"), copied(manifest, memory / "images")
    workers = {count: loader(manifest, dp.TorchConfig(num_workers=count)) for count in (0, 1, 2, 8)}
    dali = loader(manifest, dp.DaliConfig(device="cpu"))
    yield "num_workers 0 → 1", workers[0], workers[1]
    yield "num_workers 1 → 2 (the cores)", workers[1], workers[2]
    yield "num_workers 2 → 8", workers[2], workers[8]
    yield (
        "prefetch_factor 2 → 8",
        workers[2],
        loader(manifest, dp.TorchConfig(num_workers=2, prefetch_factor=8)),
    )
    yield (
        "persistent_workers, epochs of two batches",
        epochs(manifest, False),
        epochs(manifest, True),
    )
    yield (
        "Pillow → torchvision's decoder",
        workers[2],
        loader(manifest, dp.TorchConfig(num_workers=2, decoder="torchvision")),
    )
    yield "DataLoader → DALI on the CPU", workers[2], dali
    yield (
        "images made smaller beforehand, DataLoader",
        workers[2],
        loader(small, dp.TorchConfig(num_workers=2)),
    )
    yield "images made smaller beforehand, DALI", dali, loader(small, dp.DaliConfig(device="cpu"))
    yield "page cache → /dev/shm", dali, loader(in_memory, dp.DaliConfig(device="cpu"))
    yield (
        "cold files → page cache, one epoch",
        cold(manifest),
        lambda: (warm_page_cache(manifest), epoch_once(manifest))[1],
    )
    yield "loader batches 16 → 64", loader(manifest, dp.TorchConfig(num_workers=2), 16), workers[2]
    yield "training batches 2 → 32", step(2), step(32)
    yield "training batches 32 → 128", step(32), step(128)
    yield "fp32 → bf16 autocast, on this CPU", step(), step(dtype="bf16")
    yield "contiguous → channels_last, on this CPU", step(channels_last=False), step()
    yield ".item() in every step → none, on a CPU", step(item=True), step()
    yield "np.loadtxt → np.load", text(folder, False), text(folder, True)


def epoch_once(manifest):
    with dp.build_loader(
        manifest, dp.DaliConfig(device="cpu"), transform=TRANSFORM, batch_size=25
    ) as batches:
        begin = time.monotonic()
        return sum(map(len, batches)) / (time.monotonic() - begin)


def main(images, out):
    manifest = dp.Manifest.scan(images, progress=False)
    warm_page_cache(manifest)
    found = {}
    with ExitStack() as stack:
        listed = list(claims(manifest, stack))
        for name, before, after in track(listed, lambda claim: claim[0], len(listed)):
            rates = {"before": [], "after": []}
            for order in rounds(["before", "after"], PAIRS, 0):
                for which in order:
                    rates[which].append({"before": before, "after": after}[which]())
            ratio = paired_ratio(rates["before"], rates["after"])
            found[name] = {"ratio": ratio.estimate, "low": ratio.low, "high": ratio.high, **rates}
            print(
                f"{name}: {ratio.estimate:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]",
                file=sys.stderr,
                flush=True,
            )
    result = {
        "ratios": found,
        "tf_data_cache_draws_anew": cached_random_map(),
        "pairs": PAIRS,
        "seconds": SECONDS,
    }
    result["provenance"] = provenance(manifest.describe(), sys.argv[1:])
    Path(out).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
