"""Made the files in this folder: python docs/benchmarks/windows_plan_cpu_2026-11-23/measure.py

cost.json   the plan of a window shuffle alone: 10**5 shards of 10**4 images (10**9) over 64 lanes,
memory and CPU time mixed.json  how many distinct classes a batch has where shards are sorted by
class, against the global shuffle's

No manifest is made: the order needs the shards' lengths and sizes only.
"""

import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import psutil

from dali_pipes.plan.windows import PlainLanes
from dali_pipes.system.provenance import provenance

HERE = Path(__file__).parent
SHARDS, IMAGES, LANES, BATCH = 10**5, 10**4, 64, 4096
SHARD_BYTES = IMAGES * 110_000  # about an ImageNet image
CLASSES, LENGTH = 1000, 100  # of `mixed`


def cpu(function):
    start = time.process_time()
    made = function()
    return time.process_time() - start, made


def mib():
    return psutil.Process().memory_info().rss / 2**20


def cost(window_shards):
    """Of a process that plans whole global batches, and of one that is one rank of 64."""
    before = mib()
    lengths = np.full(SHARDS, IMAGES)
    sizes, window = lengths * SHARD_BYTES // IMAGES, window_shards * SHARD_BYTES
    made, lanes = cpu(
        lambda: PlainLanes(lengths, sizes, LANES, window, BATCH, SHARDS * IMAGES, seed=0)
    )
    first, _ = cpu(lambda: lanes.at(np.arange(BATCH)))
    next_epoch, _ = cpu(lambda: lanes.at(SHARDS * IMAGES + np.arange(BATCH)))
    starts = np.random.default_rng(0).integers(0, SHARDS * IMAGES // BATCH, 400) * BATCH
    steps = [cpu(lambda start=start: lanes.at(start + np.arange(BATCH)))[0] for start in starts]
    own = (np.arange(16)[:, None] * BATCH + np.arange(BATCH // LANES)).ravel()  # 16 steps of rank 0
    rank = [
        cpu(lambda start=start: lanes.at(start + own))[0]
        for start in starts[starts < SHARDS * IMAGES - 16 * BATCH]
    ]
    windows, _ = cpu(lambda: next(lanes.windows(5, 1, 1000)))
    return {
        "window_shards": window_shards,
        "resident_mib": round(mib() - before, 1),
        "set_up_cpu_ms": round(made * 1e3, 2),
        "first_batch_of_an_epoch_cpu_ms": round(first * 1e3, 1),
        "first_batch_of_the_next_epoch_cpu_ms": round(next_epoch * 1e3, 1),
        "step_of_4096_cpu_ms": round(float(np.median(steps)) * 1e3, 2),
        "cpu_us_per_image": round(float(np.median(steps)) / BATCH * 1e6, 2),
        "a_rank_planning_1024_cpu_us_per_image": round(float(np.median(rank)) / 1024 * 1e6, 2),
        "first_window_from_a_step_cpu_ms": round(windows * 1e3, 2),
    }


def distinct(labels, ids, batch):
    return np.array(
        [
            len(np.unique(each))
            for each in labels[ids[: len(ids) // batch * batch]].reshape(-1, batch)
        ]
    )


def mixed(shards_of_each, in_flight, lanes=8, batch=256):
    """Shards of one class each. By the shards that are read at once: distinct classes in the first,
    middle and last tenth.
    """
    labels = np.repeat(np.arange(CLASSES), shards_of_each * LENGTH)
    shards = CLASSES * shards_of_each
    lengths = np.full(shards, LENGTH)
    order = PlainLanes(
        lengths, lengths, lanes, in_flight // lanes * LENGTH, batch, len(labels), seed=0
    )
    found = distinct(labels, order.at(np.arange(len(labels))), batch)
    whole = distinct(labels, np.random.default_rng(0).permutation(len(labels)), batch).mean()
    tenth = len(found) // 10
    middle = len(found) // 2 - tenth // 2
    parts = {
        "first": found[:tenth],
        "middle": found[middle : middle + tenth],
        "last": found[-tenth:],
    }
    shares = {name: round(float(each.mean() / whole), 3) for name, each in parts.items()}
    return {
        "shards": shards,
        "read_at_once": in_flight,
        "for_each_class": in_flight / CLASSES,
        "classes_in_a_batch": whole,
    } | shares


if __name__ == "__main__":
    # a process each, for its memory
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as fresh:
        costs = list(fresh.map(cost, (2, 20, 200)))
    table = [mixed(20, each) for each in (400, 1000, 2000, 4000, 10_000)]
    setting = {
        "shards": SHARDS,
        "images_of_each": IMAGES,
        "lanes": LANES,
        "global_batch": BATCH,
        "cores": os.cpu_count(),
    }
    for name, found in (
        ("cost", {"setting": setting, "costs": costs}),
        ("mixed", {"classes": CLASSES, "batch": 256, "rows": table}),
    ):
        (HERE / f"{name}.json").write_text(
            json.dumps(found | {"provenance": provenance({}, [])}, indent=1) + "\n"
        )
    print(json.dumps([costs, table], indent=1))
