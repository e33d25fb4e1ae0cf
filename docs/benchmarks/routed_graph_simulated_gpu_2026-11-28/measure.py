"""ms a batch of graphs for a GPU, on the simulated GPU, whose decoders sleep as long as a GPU takes.

    python -m tests.simulated_gpu python docs/benchmarks/routed_graph_simulated_gpu_2026-11-28/measure.py \\
        OUT.json IMAGES [--before CHECKOUT] [--rounds 5] [--only alone,training]

What is real is the host: DALI's executor, nvImageCodec and the graphs, so that what waits for what shows. IMAGES are the JPEGs of the
first table, of which all other sets are made. The arms take turns in rounds of random order. One process holds those of this checkout,
another one those of CHECKOUT, which is dali_pipes before the graph was routed (746aecc9).
"""

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

THREADS, BATCHES = 8, 6
# Microseconds an image of 500 x 375 pixels, of the engine in a batch of one subsampling and of several, and of a thread of the CUDA
# decoder: with NVIDIA's graph and the sample that is 65 us for each image of the engine and 1.0 ms for each of the others, and beside
# training 320 us and 2.5 ms, as on an H200 (docs/benchmarks/gpu_h200_2026-11-27_graph). Beside training the engine was as slow at every
# load. `slower`: by how much all is slowed down, so that the host, which is no faster, takes a small part.
ALONE = {"engine": 63, "mixed": 140, "cuda": 650, "slower": 16}
BESIDE_TRAINING = {"engine": 310, "mixed": 310, "cuda": 1625, "slower": 4}
SETS = {  # name: (times, batch size, how image number n is made of the sample; None: the sample itself)
    "alone": (ALONE, 256, None),
    "training": (BESIDE_TRAINING, 256, None),
    "all 4:2:0": (ALONE, 256, lambda image, n: image.save(subsampling=2)),
    "30 % 4:4:4": (ALONE, 256, lambda image, n: image.save(subsampling=0 if n % 10 < 3 else 2)),
    "12 megapixels": (
        ALONE | {"slower": 1},
        32,
        lambda image, n: image.resized(4000, 3000).save(subsampling=2),
    ),
    "5 % gray": (ALONE, 256, lambda image, n: image.gray(n % 20 == 0).save(subsampling=0)),
    "20 % progressive": (
        ALONE,
        256,
        lambda image, n: image.save(subsampling=2, progressive=n % 5 == 0),
    ),
}
ROUTED = {"routed, one engine decoder": 1, "routed": 2, "routed, three engine decoders": 3}
ARMS = ["NVIDIA's", "one decoder", *ROUTED, "two pipelines"]
BEFORE = ["before"]


class Photo:
    def __init__(self, path, to):
        self.image, self.to = Image.open(path).convert("RGB"), to

    def resized(self, width, height):
        self.image = self.image.resize((width, height))
        return self

    def gray(self, wanted):
        self.image = self.image.convert("L") if wanted else self.image
        return self

    def save(self, **options):
        options = {} if self.image.mode == "L" else options
        self.image.save(self.to, "JPEG", quality=90, **options)


def make_set(images, make, folder):
    (folder / "a").mkdir(parents=True)
    sample = sorted(Path(images).rglob("*.JPEG")) + sorted(Path(images).rglob("*.jpg"))
    count = 8 if folder.name.startswith("12") else 80
    for number, path in enumerate(sample[:count]):
        make(Photo(path, folder / "a" / f"{number}.jpg"), number)
    return folder


# ---- the children: each holds the arms of one checkout ----


def serve():
    """Measures what it is asked for, a line of JSON each, and answers with ms a batch."""
    import torch

    import dali_pipes as dp
    from dali_pipes.backends.dali.backend import DaliBackend
    from dali_pipes.measure.arms.native import DaliNativeConfig
    from dali_pipes.measure.arms.native_loader import DaliNativeBackend

    device, running, closers = torch.device("cuda", 0), {}, []

    def planned(manifest, transform, size, part=0, parts=1):
        plan = dp.Plan(manifest, transform, size, seed=0, last_batch="pad")
        return itertools.islice(plan.iter_from(), part, None, parts)

    def start(arm, images, size):
        manifest = dp.Manifest.scan(images, progress=False)
        manifest = manifest.subset(np.arange(max(4 * size, len(manifest))) % len(manifest))
        transform = dp.TrainTransform(dtype="fp16", memory_format="channels_last")
        options = {"device": "gpu", "num_threads": THREADS, "prefetch_queue_depth": 2}
        if arm == "NVIDIA's":
            backend = DaliNativeBackend(
                manifest,
                transform,
                DaliNativeConfig(**options, jpeg_fancy_upsampling=True),
                size,
                device,
            )
            streams = [backend.stream(iter(()))]
            closers.append(backend.close)
        else:
            if arm in ROUTED:
                options["engine_decoders"] = ROUTED[arm]
            parts, streams = (2 if arm == "two pipelines" else 1), []
            for part in range(parts):
                backend = DaliBackend(manifest, transform, dp.DaliConfig(**options), size, device)
                if arm in ("one decoder", "two pipelines"):
                    backend._routes = None  # DALI's decoder shares the images out
                closers.append(backend.close)
                streams.append(backend.stream(planned(manifest, transform, size, part, parts)))
        turns = itertools.cycle(streams)
        return (next(each) for each in turns)

    for line in sys.stdin:
        asked = json.loads(line)
        if "stop" in asked:
            for close in closers:
                close()
            running.clear(), closers.clear()
            print(json.dumps(0), flush=True)
            continue
        os.environ["SIMULATED_GPU_TIMES"] = asked["times"]
        arm, size = asked["arm"], asked["size"]
        if arm not in running:
            running[arm] = start(arm, asked["images"], size)
            next(running[arm])
        for _ in range(4):  # what was made ahead while others were measured
            next(running[arm])
        began = time.monotonic()
        for _ in range(BATCHES):
            next(running[arm])
        print(json.dumps(1e3 * (time.monotonic() - began) / BATCHES / asked["slower"]), flush=True)


class Child:
    def __init__(self, checkout):
        command = [sys.executable, __file__, "--serve"]
        environment = os.environ | {"SIMULATED_GPU_TIMES": "engine=1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(checkout), environment["PYTHONPATH"]])
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **what):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        while line := self.process.stdout.readline():
            if line[0].isdigit():
                return json.loads(line)
        raise SystemExit("a child ended")


# ---- the parent ----


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("images")
    parser.add_argument("--before", default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(SETS))
    args = parser.parse_args()

    here = Child(Path.cwd())
    children = dict.fromkeys(ARMS, here)
    if args.before:
        children |= dict.fromkeys(BEFORE, Child(args.before))

    choice, found = random.Random(0), {}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only.split(","):
            times, size, make = SETS[name]
            images = str(make_set(args.images, make, Path(folder) / name)) if make else args.images
            slowed = {each: us * times["slower"] for each, us in times.items() if each != "slower"}
            told = ",".join(f"{each}={us}" for each, us in slowed.items())
            rows = []
            for _ in range(args.rounds):
                order = choice.sample(list(children), len(children))
                rows.append(
                    {
                        arm: children[arm].ask(
                            arm=arm, images=images, size=size, times=told, slower=times["slower"]
                        )
                        for arm in order
                    }
                )
            for child in set(children.values()):
                child.ask(stop=True)
            found[name] = {"times": times, "batch_size": size, "ms_a_batch": rows}
            print(
                f"{name}: ms a batch of {size}; x NVIDIA's, with the least and the greatest of {len(rows)} rounds"
            )
            for arm in children:
                ratios = [row[arm] / row["NVIDIA's"] for row in rows]
                print(
                    f"  {arm:34s}{statistics.median(row[arm] for row in rows):8.1f}   "
                    f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]",
                    flush=True,
                )
            args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else main()
