"""Made the files in this folder, one part a call: python
docs/benchmarks/cpu_path_2cores_2026-11-23/measure.py PART IMAGES

lock      What `loader=dali_cpu` does under Python's interpreter lock. Reading, decoding and
resizing are taken out: DALI makes
          windows of 2 × 2 pixels, which are resized to 2 × 2. What is left is the plan, feeding it,
          taking the windows out, handing them to threads, and the batch. Nearly all of the main
          thread's CPU time is under the lock, nearly none of the rest.
start     CPU seconds from `python` to the first batch of 64, by part, in fresh processes.
faults    First touches of pages (minor faults), user and system CPU time per image of steady
batches, in fresh processes. profile   Six epochs by function (perf) and by system call (strace),
which have to be installed.
"""

import itertools
import json
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

HERE, ROUNDS, BATCH = Path(__file__).parent, 3, 64
ARMS = ("dali_cpu", "dali_cpu_graph", "dali_native", "torch")


def main(part, images):
    made = {"lock": lock, "start": start, "faults": faults, "profile": profile}[part](images)
    if made:
        (HERE / f"{part}.json").write_text(json.dumps(made | origin(images), indent=2) + "\n")


def origin(images):
    import dali_pipes as dp
    from dali_pipes.system.provenance import provenance

    found = provenance(dp.Manifest.scan(images, progress=False).describe(), [])
    return {key: found[key] for key in ("machine", "versions", "data", "commit") if key in found}


def configs():
    import dali_pipes as dp
    from dali_pipes.backends.config import DaliNativeConfig

    dali = {"device": "cpu", "num_threads": 2}
    graph = dp.DaliConfig(**dali, resize="dali")
    return dict(
        zip(
            ARMS,
            (dp.DaliConfig(**dali), graph, DaliNativeConfig(**dali), dp.TorchConfig(num_workers=2)),
            strict=True,
        )
    )


def endless(images, config, batch_size=BATCH, size=224, dtype="fp32"):
    import dali_pipes as dp
    from dali_pipes.data.images import repeat_epoch

    manifest = repeat_epoch(dp.Manifest.scan(images, progress=False))
    loader = dp.build_loader(
        manifest,
        config,
        transform=dp.TrainTransform(size=size, dtype=dtype),
        batch_size=batch_size,
        device="cpu",
    )
    return itertools.chain.from_iterable(itertools.repeat(loader)), len(loader)


def median(seen):
    """By key; each round is a dictionary."""
    return {key: round(float(np.median([each[key] for each in seen])), 3) for key in seen[0]}


def lock(images):
    from nvidia.dali import fn, types

    from dali_pipes.backends.dali import backend, feed

    def tiny_windows(inputs, transform, decoder, region):
        """They wait for all inputs, as the real ones do."""
        numbers = [inputs.encoded[:1], inputs.anchor[:1], inputs.shape[:1], inputs.source]
        nothing = sum(fn.cast(each, dtype=types.FLOAT) * 0 for each in numbers)
        return fn.reshape(fn.cast(fn.cat(*[nothing] * 12), dtype=types.UINT8), shape=[2, 2, 3])

    backend.window_graph = tiny_windows
    feed._encoded = lambda origin, read_ahead: origin
    return {
        f"batch {size}, {threads} threads": locked(images, size, threads)
        for size in (64, 256)
        for threads in (2, 16)
    }


def locked(images, batch_size, threads, count=150_000):
    import dali_pipes as dp

    seen = []
    for _ in range(ROUNDS):
        batches, _ = endless(
            images, dp.DaliConfig(device="cpu", num_threads=threads), batch_size, size=2
        )
        for _ in range(50):
            next(batches)
        clocks = {
            "main_thread_cpu_us": time.thread_time,
            "process_cpu_us": time.process_time,
            "wall_us": time.perf_counter,
        }
        before = {name: clock() for name, clock in clocks.items()}
        for _ in range(count // batch_size):
            next(batches)
        done = count // batch_size * batch_size
        seen.append({name: (clock() - before[name]) / done * 1e6 for name, clock in clocks.items()})
    return median(seen)


def start(images):
    return in_rounds("started", images, ("dali_cpu", "dali_cpu_graph", "torch"))


def faults(images):
    return {dtype: in_rounds("steady", images, ARMS, dtype) for dtype in ("fp32", "uint8")}


def in_rounds(part, images, arms, *more):
    """Medians over rounds of fresh processes in random order."""
    seen = {arm: [] for arm in arms}
    for number in range(ROUNDS):
        for arm in random.Random(number).sample(arms, len(arms)):
            done = subprocess.run(
                [sys.executable, __file__, part, images, arm, *more],
                capture_output=True,
                text=True,
                check=True,
            )
            seen[arm].append(json.loads(done.stdout.splitlines()[-1]))
    return {arm: median(each) for arm, each in seen.items()}


def started(images, arm):
    """In a process of its own."""
    parts, at = {}, [time.process_time()]

    def part(name):
        now = time.process_time()
        parts[name], at[0] = now - at[0], now

    parts["python"] = at[0]
    import torch  # noqa: F401

    part("import torch")
    import dali_pipes as dp

    dp.build_loader, dp.Manifest  # noqa: B018  names are imported at their first use
    part("import dali_pipes")
    import pandas  # noqa: F401  pyarrow imports it at its first array, where it is installed

    part("import pandas")
    manifest = dp.Manifest.scan(images, progress=False)
    part("scan")
    if arm != "torch":
        import nvidia.dali.plugin.pytorch  # noqa: F401

        part("import nvidia.dali")
    loader = dp.build_loader(
        manifest, configs()[arm], transform=dp.TrainTransform(), batch_size=BATCH, device="cpu"
    )
    next(iter(loader))
    part("build and first batch")
    print(json.dumps(parts | {"all": sum(parts.values())}))
    loader.close()


def steady(images, arm, dtype):
    """In a process of its own; with the worker processes that are alive at the end."""
    import psutil

    batches, _ = endless(images, configs()[arm], dtype=dtype)
    for _ in range(40):
        next(batches)
    me = psutil.Process()

    def spent():
        every = [me, *me.children(recursive=True)]
        times = [each.cpu_times() for each in every]
        stat = [
            Path(f"/proc/{each.pid}/stat").read_text().rsplit(")", 1)[1].split() for each in every
        ]
        return np.array(
            [
                sum(int(each[7]) for each in stat),
                sum(each.user for each in times),
                sum(each.system for each in times),
            ]
        )

    before, clock, count = spent(), time.perf_counter(), 40
    for _ in range(count):
        next(batches)
    minor, user, system = (spent() - before) / (count * BATCH)
    rate = count * BATCH / (time.perf_counter() - clock)
    print(
        json.dumps(
            {
                "minor_faults": minor,
                "user_cpu_ms": user * 1e3,
                "system_cpu_ms": system * 1e3,
                "images_per_s": rate,
            }
        )
    )


def profile(images):
    for arm in ("dali_cpu", "dali_cpu_graph"):
        child = [sys.executable, __file__, "epoch", images, arm]
        subprocess.run(
            ["perf", "record", "-q", "-F", "400", "-D", "8000", "-o", "/tmp/perf.data", *child],
            check=True,
        )
        shown = [
            "perf",
            "report",
            "-i",
            "/tmp/perf.data",
            "--sort",
            "dso,symbol",
            "--percent-limit",
            "0.5",
            "--stdio",
        ]
        functions = subprocess.run(shown, capture_output=True, text=True, check=True).stdout
        lines = [
            " ".join(line.split())[:110]
            for line in functions.splitlines()
            if "%" in line and line[:1] != "#"
        ]
        calls = subprocess.run(
            ["strace", "-f", "-c", "-S", "calls", *child],
            capture_output=True,
            text=True,
            check=True,
        ).stderr
        table = [
            line
            for line in calls.splitlines()
            if line[:8].strip().replace(".", "").isdecimal() or "calls" in line
        ]
        found = ["By function:", *lines[:25], "", "By system call:", *table[:12]]
        (HERE / f"profile_{arm}.txt").write_text("\n".join(found) + "\n")


def epoch(images, arm):
    """Six of them, in a process of its own."""
    batches, steps = endless(images, configs()[arm])
    for _ in range(6 * steps):
        next(batches)
    print(
        resource.getrusage(resource.RUSAGE_SELF).ru_minflt, "minor faults in all", file=sys.stderr
    )


if __name__ == "__main__":
    part, images, *more = sys.argv[1:]
    {"started": started, "steady": steady, "epoch": epoch}.get(
        part, lambda images: main(part, images)
    )(images, *more)
