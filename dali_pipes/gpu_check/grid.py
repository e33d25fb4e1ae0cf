"""The grid: DALI's settings and the DataLoader's workers, each for a moment, in one process that pays for its start once.

What is found here chooses the settings of the A/B, and is no comparison itself: one short window each, in a fixed order.
"""

import contextlib
import itertools
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dali_pipes.benchmark.block import endless, gpu_uuid, whole_bursts, window
from dali_pipes.benchmark.consume import Touch
from dali_pipes.benchmark.fresh_process import ArmError, FreshProcess, Leader, led
from dali_pipes.benchmark.work import Work, from_plain, plain
from dali_pipes.config import DaliConfig, LoaderConfig, TorchConfig
from dali_pipes.nvml import Gpu, NoGpu

WINDOW, WARM_UP = 0.7, 0.3  # seconds of each
TUNED = ("num_threads", "hw_decoder_load", "decode")
_AS_GIVEN = {name: getattr(DaliConfig(), name) for name in ("prefetch_queue_depth", "jpeg_fancy_upsampling")}
Cell = dict[str, Any]  # loader (plain), batch_size, dtype if it is not that of the work; measured: images_per_s …, or error


def search(work: Work, cores: int, seconds: float, log: Path) -> list[Cell]:
    """Measures as many cells as there is time for; each is written into `log` as it comes. One that crashes is told as an error."""
    end = time.monotonic() + seconds
    todo, done = cells(work.batch_size, cores), list[Cell]()
    with open(log, "w") as lines:
        while todo and time.monotonic() + 10 < end:
            job = {"work": work.plain(), "cells": todo, "seconds": end - time.monotonic()}
            for cell in _measure(job, end):
                done.append(cell)
                todo = todo[1:]
                print(json.dumps(cell), file=lines, flush=True)
    return done


def cells(batch_size: int, cores: int) -> list[Cell]:
    """All cells but those that follow from the best one."""
    workers = sorted({max(1, cores // 2), cores, 3 * cores // 2})
    loaders: list[LoaderConfig] = [
        TorchConfig(decoder=decoder, num_workers=count) for decoder, count in itertools.product(("pil", "torchvision"), workers)
    ]
    threads = sorted({max(1, cores // share) for share in (1, 2, 4)}, reverse=True)
    loads = (0.0, 0.65, 1.0) if torch.cuda.is_available() else (0.65,)
    loaders += [
        DaliConfig(num_threads=count, hw_decoder_load=load, decode=decode)
        for count, decode, load in itertools.product(threads, ("region", "whole"), loads)
    ]
    return [{"loader": plain(loader), "batch_size": batch_size} for loader in loaders]


def best_dali(parts: dict[str, Any]) -> dict[str, Any]:
    """The fastest of DALI's settings that were tried at the first cell's batch size; nothing if there are none."""
    best = _best(parts, "DaliConfig")
    return {name: best["loader"][name] for name in TUNED} if best else {}


def best_torch(parts: dict[str, Any]) -> tuple[str, int | None]:
    """The arm and the number of workers of the fastest DataLoader."""
    best = _best(parts, "TorchConfig")
    if not best:
        return "torch", None
    return "torch" if best["loader"]["decoder"] == "pil" else "torch_torchvision", best["loader"]["num_workers"]


def _best(parts: dict[str, Any], kind: str) -> Cell | None:
    rows: list[Cell] = parts.get("grid", {}).get("result") or []
    tried = [
        row
        for row in rows
        if row["loader"]["kind"] == kind
        and row["batch_size"] == rows[0]["batch_size"]
        and "dtype" not in row
        and "error" not in row
        and (kind != "DaliConfig" or row["loader"] == row["loader"] | _AS_GIVEN)
    ]
    return max(tried, key=lambda row: row["images_per_s"], default=None)


def _measure(job: dict[str, Any], end: float) -> Iterator[Cell]:
    """The cells that one process got through; the last of them with an error if that ended it."""
    found = 0
    with FreshProcess(__name__, job, "grid", os.sched_getaffinity(0), patience_s=30) as process:
        try:
            while time.monotonic() < end and (cell := process.answer()["cell"]):
                found += 1
                yield cell
        except ArmError as error:
            if found < len(job["cells"]):
                yield job["cells"][found] | {"error": str(error)}


def _child(leader: Leader) -> None:
    end = time.monotonic() + leader.job["seconds"] - WINDOW - WARM_UP
    work, found = Work.from_plain(leader.job["work"]), list[Cell]()
    gpu = _gpu()
    for cell in itertools.chain(leader.job["cells"], _around_the_best(found)):
        if time.monotonic() > end or leader.stop.is_set():
            break
        found.append(cell | _figures(work_of(cell, work), from_plain(cell["loader"]), gpu, leader))
        leader.tell({"cell": found[-1]})
    leader.tell({"cell": None})


def _gpu() -> Gpu | None:
    """None where nothing can be asked of it: then cells have no such figures."""
    uuid = gpu_uuid()
    with contextlib.suppress(NoGpu):
        return Gpu(uuid) if uuid else None
    return None


def work_of(cell: Cell, work: Work) -> Work:
    transform = replace(work.transform, dtype=cell.get("dtype", work.transform.dtype))
    return replace(work, batch_size=cell["batch_size"], transform=transform)


def _around_the_best(found: list[Cell]) -> Iterator[Cell]:
    """Other batch sizes, a longer queue, no fancy upsampling, other dtypes; asked for only when all else has been measured."""
    best = _best({"grid": {"result": found}}, "DaliConfig")
    if best is None:
        return
    for factor in (1 / 4, 1 / 2, 2, 4):
        yield {"loader": best["loader"], "batch_size": max(1, int(factor * best["batch_size"]))}
    for other in ({"prefetch_queue_depth": 4}, {"jpeg_fancy_upsampling": False}):
        yield {"loader": best["loader"] | other, "batch_size": best["batch_size"]}
    for dtype in ("bf16", "fp32"):
        yield {"loader": best["loader"], "batch_size": best["batch_size"], "dtype": dtype}


def _figures(work: Work, config: LoaderConfig, gpu: Gpu | None, leader: Leader) -> Cell:
    try:
        with work.loader(config) as loader:
            batches, touch, burst = endless(loader), Touch(), whole_bursts(1, config)
            touch(next(batches))
            warm = time.monotonic() + WARM_UP
            for number in itertools.count(1):
                touch(next(batches))
                if time.monotonic() >= warm and number >= burst:
                    break
            touch.finish()
            if gpu:
                gpu.sample()
            measured = window(loader, batches, touch, leader.stop, WINDOW, 4, burst)
            used = gpu.sample() if gpu else {}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    names = ("images_per_s", "cpu_s_per_1000_images", "device")
    return {name: measured[name] for name in names} | {
        name: used.get(name) for name in ("utilization", "sm_utilization", "nvjpg_utilization", "memory_mib")
    }


if __name__ == "__main__":
    led(_child)
