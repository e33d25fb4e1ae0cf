"""Images out of tar shards against the folder they were made from, and with a latency added to each
read: 95 % intervals of ratios.

python docs/benchmarks/shards_cpu_2cores_2026-11-21/measure.py IMAGES OUT.json [PAIRS]

IMAGES is a folder with a subfolder for each class.
"""

import io
import itertools
import json
import os
import sys
import tarfile
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import psutil

import dali_pipes as dp
from dali_pipes.data import reader
from dali_pipes.data.images import repeat_epoch, warm_page_cache
from dali_pipes.measure.rounds import rounds
from dali_pipes.measure.stats import paired_ratio
from dali_pipes.system.progress import track
from dali_pipes.system.provenance import provenance

LATENCY_S = 200e-6
BATCH, BATCHES, WARM_UP = 64, 12, 6
LOADERS = {
    "dali_cpu": dp.DaliConfig(device="cpu"),
    "torch": dp.TorchConfig(num_workers=2),
    "tfdata": dp.TfDataConfig(),
}
ARMS = ("folder", "folder again", "shards", "shards, slow reads")


def make_shards(manifest, folder, shards=8):
    """All images in so many tars; the order of the folder."""
    for shard in range(shards):
        with tarfile.open(folder / f"shard-{shard:06d}.tar", "w") as archive:
            for number in range(
                shard * len(manifest) // shards, (shard + 1) * len(manifest) // shards
            ):
                label = str(manifest.labels[number]).encode()
                for kind, content in (("jpg", manifest.read(number).tobytes()), ("cls", label)):
                    member = tarfile.TarInfo(f"{number:09d}.{kind}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    (folder / "classes.json").write_text(json.dumps(manifest.classes))
    return dp.Manifest.scan(folder, progress=False)


@contextmanager
def slow_reads(slow):
    """Every read of an image takes longer, as over a network; worker processes inherit it."""
    read = reader._read

    def late(*what):
        time.sleep(LATENCY_S)
        return read(*what)

    reader._read = late if slow else read
    try:
        yield
    finally:
        reader._read = read


def cpu_seconds():
    """Of this process and its workers."""
    return sum(
        sum(process.cpu_times()[:2])
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]
    )


def measure(manifest, config):
    """CPU-ms an image, and images/s, after what was prefetched is used up."""
    options = {"transform": dp.TrainTransform(), "batch_size": BATCH, "last_batch": "pad"}
    with dp.build_loader(repeat_epoch(manifest), config, **options) as loader:
        endless = itertools.chain.from_iterable(itertools.repeat(loader))
        for _ in range(WARM_UP):
            next(endless)
        cpu, begin = cpu_seconds(), time.monotonic()
        images = sum(len(next(endless)) for _ in range(BATCHES))
        return {
            "cpu_ms": (cpu_seconds() - cpu) / images * 1e3,
            "rate": images / (time.monotonic() - begin),
        }


def main(images, out, pairs="8"):
    folder = dp.Manifest.scan(images, progress=False)
    with tempfile.TemporaryDirectory() as place:
        shards = make_shards(folder, Path(place))
        warm_page_cache(folder)
        warm_page_cache(shards)
        found = {name: {arm: [] for arm in ARMS} for name in LOADERS}
        jobs = [
            (name, arm)
            for order in rounds(ARMS, int(pairs), 0)
            for name in LOADERS
            for arm in order
        ]
        for name, arm in track(jobs, " ".join, len(jobs)):
            with slow_reads("slow" in arm):
                found[name][arm].append(
                    measure(folder if "folder" in arm else shards, LOADERS[name])
                )
    ratios = {}
    for name, arms in found.items():
        for arm, base in (
            ("folder again", "folder"),
            ("shards", "folder"),
            ("shards, slow reads", "shards"),
        ):
            for figure in ("cpu_ms", "rate"):
                ratio = paired_ratio(
                    *([each[figure] for each in arms[which]] for which in (base, arm))
                )
                ratios[f"{name}: {figure}, {arm} / {base}"] = [
                    ratio.estimate,
                    ratio.low,
                    ratio.high,
                ]
                interval = f" [{ratio.low:.3f}, {ratio.high:.3f}]" if ratio.low else ""
                print(
                    f"{name}: {figure}, {arm} / {base}: {ratio.estimate:.3f}{interval}",
                    file=sys.stderr,
                )
    result = {
        "ratios": ratios,
        "runs": found,
        "latency_s": LATENCY_S,
        "batch": BATCH,
        "batches": BATCHES,
        "cores": os.cpu_count(),
    }
    Path(out).write_text(
        json.dumps(result | {"provenance": provenance(folder, sys.argv[1:])}, indent=1)
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
