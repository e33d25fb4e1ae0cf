"""Searches for the fastest settings of DALI and of the DataLoader, each in one short window.

A cell is one setting. `search` runs `measure` in a separate process and starts it again only after
a crash; it measures `cells` first, then cells that vary the best one (`_around_the_best`).
`best_dali` and `best_torch` read the results, which choose the settings of the A/B. They are not a
comparison: there is one window for each cell, in a fixed order.
"""

import contextlib
import itertools
import json
import os
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.backends.dali.decoding import choose
from dali_pipes.backends.torch.config import TorchConfig
from dali_pipes.measure.arms.native import DaliNativeConfig
from dali_pipes.measure.consumers import Touch
from dali_pipes.measure.trial import gpu_uuid, measure_span, repeat_epochs, whole_bursts
from dali_pipes.measure.worker_process import ArmError, MeasuringProcess
from dali_pipes.measure.workload import Workload, from_dict, to_dict
from dali_pipes.system.child import Controller
from dali_pipes.system.nvml import Gpu, NoGpu

WINDOW, WARM_UP = 0.7, 0.3  # seconds
Change = dict[str, Any]  # of options
BY_LOAD: list[Change] = [{"hw_decoder_load": load} for load in (0.0, 0.3, 1.0)]
BY_THRESHOLD: list[Change] = [{"hybrid_huffman_threshold": pixels} for pixels in (300_000, 1)]
# NVIDIA's own benchmarks take 6000 as a hint. What it costs in memory is not worth a few percent,
# so these cells say what they gain, and no arm gets their settings.
HINTS: Change = {"preallocate_width_hint": 6000, "preallocate_height_hint": 6000}
TUNED = ("num_threads", "decode", "hw_decoder_load", "hybrid_huffman_threshold")
# jpeg_fancy_upsampling of the arms that get tuned settings; two with the same value decode alike
FANCY = {"dali": True, "dali_native_fancy": True, "dali_fastest": False, "dali_native": False}
# loader (as JSON) and batch_size; dtype, if it is not the work's; once measured, images_per_s … or
# error
Cell = dict[str, Any]


def search(
    work: Workload, cores: int, seconds: float, log: Path, regions: Collection[bool] = ()
) -> list[Cell]:
    """Measures as many cells as fit into the time; each is written into `log` when done.

    A crash is an error in its cell, and the other cells follow in a new process.

    Args:
        seconds: for all cells.
        regions: the values of jpeg_fancy_upsampling with which decode=force_region was correct on
            this GPU.
    """
    end = time.monotonic() + seconds
    todo, done, crashed = cells(work.batch_size, cores, regions), list[Cell](), True

    with open(log, "w") as lines:
        while crashed and time.monotonic() + 10 < end:
            job = {
                "work": work.to_dict(),
                "cells": todo,
                "found": done,
                "regions": [*regions],
                "seconds": end - time.monotonic(),
            }

            crashed = False
            for cell in _measure(job, end):
                crashed = cell.pop("crashed", False)
                done.append(cell)
                print(json.dumps(cell), file=lines, flush=True)

    return done


def cells(batch_size: int, cores: int, regions: Collection[bool] = ()) -> list[Cell]:
    """Returns all cells except those that vary the best one."""
    workers = sorted({cores, 3 * cores // 2})
    loaders: list[LoaderConfig] = [
        TorchConfig(decoder=decoder, num_workers=count)
        for decoder, count in itertools.product(("pil", "torchvision"), workers)
    ]

    threads = sorted({max(1, cores // share) for share in (1, 2, 4)}, reverse=True)
    loaders += [
        DaliConfig(num_threads=count, decode=decode)
        for count, decode in itertools.product(threads, _decodes(True, regions))
    ]

    return [{"loader": to_dict(loader), "batch_size": batch_size} for loader in loaders]


def _decodes(fancy: bool, regions: Collection[bool]) -> list[str]:
    """Returns the values of `decode` whose decoding differs here."""
    auto = choose(DaliConfig(jpeg_fancy_upsampling=fancy), torch.cuda.is_available())
    others = ["whole"] if auto.region else ["force_region"] if fancy in regions else []
    return ["auto", *others]


def best_dali(parts: dict[str, Any], arm: str = "dali") -> dict[str, Any]:
    """Returns the fastest settings that were tried for an arm.

    They are empty if none was tried. A reference arm for which there was no time gets the settings
    of the arm that decodes alike.
    """
    rows, native = _rows_of(parts), arm.startswith("dali_native")

    best = (native and _best(rows, "DaliNativeConfig", FANCY[arm])) or _best(
        rows, "DaliConfig", FANCY[arm]
    )
    return {name: best["loader"][name] for name in TUNED} if best else {}


def best_torch(parts: dict[str, Any]) -> tuple[str, int | None]:
    """Returns the arm and the number of workers of the fastest DataLoader; None: not known."""
    best = _best(_rows_of(parts), "TorchConfig")
    if not best:
        return "torch", None
    return "torch" if best["loader"]["decoder"] == "pil" else "torch_torchvision", best["loader"][
        "num_workers"
    ]


def _rows_of(parts: dict[str, Any]) -> list[Cell]:
    return parts.get("grid", {}).get("result") or []


def _best(rows: list[Cell], kind: str, fancy: bool | None = None) -> Cell | None:
    tried = (
        row
        for row in rows
        if row["loader"]["kind"] == kind
        and row["loader"].get("jpeg_fancy_upsampling") == fancy
        and row["loader"].get("preallocate_width_hint") is None
        and "dtype" not in row
        and "error" not in row
    )
    return max(tried, key=lambda row: float(row["images_per_s"]), default=None)


def _measure(job: dict[str, Any], end: float) -> Iterator[Cell]:
    """Yields the cells that one process completes.

    If a cell ends the process, it is the last one, and has an error and `crashed`.

    Raises:
        ArmError: the process does not reach the first cell of the grid.
    """
    cell = None

    with MeasuringProcess(
        f"{__name__}:measure", job, "grid", os.sched_getaffinity(0), limit_s=30
    ) as process:
        try:
            while time.monotonic() < end and (cell := process.answer()["next"]):
                yield process.answer()["cell"]
                cell = None
        except ArmError as error:
            if cell:
                yield cell | {"error": str(error), "crashed": True}
            elif not job["found"]:
                raise


def measure(controller: Controller) -> None:
    end = time.monotonic() + controller.job["seconds"] - WINDOW - WARM_UP
    work, found = Workload.from_dict(controller.job["work"]), controller.job["found"]
    gpu = _gpu()

    for cell in itertools.chain(
        controller.job["cells"], _around_the_best(found, controller.job["regions"])
    ):
        if time.monotonic() > end or controller.stop.is_set():
            break

        if not any(_setting(cell) == _setting(row) for row in found):
            controller.send({"next": cell})
            found.append(
                cell | _figures(work_of(cell, work), from_dict(cell["loader"]), gpu, controller)
            )
            controller.send({"cell": found[-1]})

    controller.send({"next": None})


def _setting(cell: Cell) -> tuple[Any, ...]:
    return cell["loader"], cell.get("dtype")


def _gpu() -> Gpu | None:
    """The GPU's telemetry; None if it is not available, and cells then have no such figures."""
    uuid = gpu_uuid()
    with contextlib.suppress(NoGpu):
        return Gpu(uuid) if uuid else None
    return None


def work_of(cell: Cell, work: Workload) -> Workload:
    assert work.transform is not None  # None: of a user's DataLoader
    transform = replace(work.transform, dtype=cell.get("dtype", work.transform.dtype))
    return replace(work, batch_size=cell["batch_size"], transform=transform)


def _around_the_best(found: list[Cell], regions: Collection[bool]) -> Iterator[Cell]:
    """Yields cells that vary the best ones in `found`, the most important first.

    `found` grows while this runs, since each cell is added to it once it is measured.
    """
    by_load, by_threshold, hints = (
        (BY_LOAD, BY_THRESHOLD, [HINTS]) if torch.cuda.is_available() else ([], [], [])
    )
    for changes in (by_load, by_threshold, hints):
        yield from _changed(_best(found, "DaliConfig", True), changes)

    plain_upsampling = [
        {"jpeg_fancy_upsampling": False, "decode": decode} for decode in _decodes(False, regions)
    ]
    yield from _changed(_best(found, "DaliConfig", True), plain_upsampling)

    yield from _changed(_best(found, "DaliConfig", False), by_load)

    for fancy in (True, False):
        if best := _best(found, "DaliConfig", fancy):
            yield {"loader": _native_like(best["loader"]), "batch_size": best["batch_size"]}
        yield from _changed(_best(found, "DaliNativeConfig", fancy), by_load)

    if best := _best(found, "DaliConfig", True):
        for dtype in ("bf16", "fp32"):
            yield {"loader": best["loader"], "batch_size": best["batch_size"], "dtype": dtype}


def _native_like(loader: dict[str, Any]) -> dict[str, Any]:
    """NVIDIA's own graph with these settings, but with DALI's share of the engine."""
    usual = to_dict(DaliNativeConfig())
    kept = {name: value for name, value in loader.items() if name in usual}
    return usual | kept | {name: usual[name] for name in ("kind", "resize", "hw_decoder_load")}


def _changed(cell: Cell | None, changes: list[Change]) -> Iterator[Cell]:
    if cell:
        for change in changes:
            yield {"loader": cell["loader"] | change, "batch_size": cell["batch_size"]}


def _figures(work: Workload, config: LoaderConfig, gpu: Gpu | None, controller: Controller) -> Cell:
    try:
        with work.arm_loader(config) as loader:
            batches, touch, burst = repeat_epochs(loader), Touch(), whole_bursts(1, config)
            touch(next(batches))

            warm = time.monotonic() + WARM_UP
            for number in itertools.count(1):
                touch(next(batches))
                if time.monotonic() >= warm and number >= burst:
                    break
            touch.finish()

            # shares of the next sample are of the time since this one
            if gpu:
                gpu.sample()
            measured = measure_span(loader, batches, touch, controller.stop, WINDOW, 4, burst)
            used = gpu.sample() if gpu else {}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}

    names = ("images_per_s", "cpu_s_per_1000_images", "device")
    return {name: measured[name] for name in names} | {
        name: used.get(name)
        for name in ("utilization", "sm_utilization", "nvjpg_utilization", "memory_mib")
    }
