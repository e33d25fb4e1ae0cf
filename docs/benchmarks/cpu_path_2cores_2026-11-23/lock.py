"""What `loader=dali_cpu` does under Python's interpreter lock, in microseconds an image: python lock.py [OUT.json]

The loader itself, with reading, decoding and resizing taken out: DALI makes windows of 2 × 2 pixels, which are resized to 2 × 2. What is
left is the plan, feeding it into DALI, taking the windows out, handing them to threads, and the batch. The main thread's CPU time is
nearly all spent under the lock; the rest of the process's is DALI's and PyTorch's own, without it.
"""

import itertools
import json
import sys
import time

import numpy as np
from nvidia.dali import fn, types

import dali_pipes as dp
from dali_pipes.backends.dali import backend, feed

from dali_pipes.system.provenance import provenance

BATCH_SIZES, THREADS, IMAGES, ROUNDS = (64, 256), (2, 16), 200_000, 5


def tiny_windows(inputs, transform, decoder, region):
    """Windows of 2 × 2 pixels that wait for all inputs, as the real ones do."""
    nothing = fn.cast(inputs.encoded[:1] * 0, dtype=types.FLOAT) + (inputs.anchor[:1] + inputs.shape[:1]) * 0
    return fn.reshape(fn.cast(fn.cat(*[nothing] * 12) + fn.cast(inputs.source * 0, dtype=types.FLOAT), dtype=types.UINT8), shape=[2, 2, 3])


def rate(manifest, batch_size, threads):
    """Microseconds an image: the main thread's CPU time, all CPU time, and the wall clock's."""
    config = dp.DaliConfig(device="cpu", num_threads=threads)
    with dp.build_loader(manifest, config, transform=dp.TrainTransform(size=2), batch_size=batch_size, device="cpu") as loader:
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        for _ in range(50):
            next(batches)
        steps = IMAGES // batch_size
        start = np.array([time.thread_time(), time.process_time(), time.perf_counter()])
        for _ in range(steps):
            next(batches)
        spent = np.array([time.thread_time(), time.process_time(), time.perf_counter()]) - start
    return spent / steps / batch_size * 1e6


def main(out=None):
    backend.window_graph = tiny_windows
    feed.fn = type("NoFiles", (), {"external_source": staticmethod(fn.external_source), "io": type("io", (), {"file": type("file", (), {"read": staticmethod(lambda path, **_: path)})})})
    folder = "/work/shared/imagenet_sample/train"
    manifest = dp.Manifest.scan(folder, progress=False)
    manifest = manifest.subset(np.resize(np.arange(len(manifest)), 1_000_000))
    figures = {}
    for batch_size, threads in itertools.product(BATCH_SIZES, THREADS):
        seen = np.median([rate(manifest, batch_size, threads) for _ in range(ROUNDS)], axis=0)
        names = ("main_thread_cpu_us", "process_cpu_us", "wall_us")
        figures[f"batch {batch_size}, {threads} threads"] = dict(zip(names, seen.round(2).tolist(), strict=True))
        print(figures, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
