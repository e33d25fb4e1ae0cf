"""The order of the blocks, and how each of them is run. docs/method.md says why."""

import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from dali_pipes.benchmark.fresh_process import FreshProcess
from dali_pipes.benchmark.page_cache import evict, resident_share
from dali_pipes.benchmark.work import Work
from dali_pipes.cpus import available_cpus
from dali_pipes.jobs import BenchmarkConfig
from dali_pipes.manifest import Manifest
from dali_pipes.nvml import FIGURES, Gpu, NoGpu
from dali_pipes.telemetry import Sampler

Block = dict[str, Any]
Arm = TypeVar("Arm")
SLOWEST = 5  # images/s of a whole epoch from a disk; an arm that is slower is ended as one that hangs


def rounds(arms: Sequence[Arm], count: int, seed: int) -> list[list[Arm]]:
    """The arms of each round in the order in which they run: a random order, then the same reversed (ABBA), then another.

    What changes steadily over two such rounds, as a machine that grows warm, weighs on all arms alike.
    """
    random = np.random.default_rng(seed)
    orders: list[list[Arm]] = []
    while len(orders) < count:
        order = [arms[place] for place in random.permutation(len(arms))]
        orders += [order, order[::-1]]
    return orders[:count]


class Blocks:
    """Runs blocks of one work, one after the other, and writes each of them into a file.

    Args:
        folder: for the files; their names begin with a running number.
        cpus: the cores of every arm.
    """

    def __init__(self, work: Work, manifest: Manifest, config: BenchmarkConfig, folder: Path):
        self.cpus = frozenset(sorted(os.sched_getaffinity(0))[: config.cpus or available_cpus()])
        self._work, self._manifest, self._config, self._folder = work, manifest, config, folder
        self._count = 0
        folder.mkdir()

    def run(self, arm: str, loader: dict[str, Any], phase: str, number: int, batch_size: int | None = None) -> Block:
        """One block, in as many processes at once as `corun` says.

        Args:
            batch_size: another one than that of the work.

        Returns:
            arm, phase and round; jobs: what each process answered; samples and sampler_cost of the telemetry around them; and
            resident, the share of the files in the page cache before a cold block (None: unknown).

        Raises:
            ArmError: a process failed.
        """
        config = self._config
        work = self._work if batch_size is None else replace(self._work, batch_size=batch_size)
        job = {
            "work": work.plain(),
            "loader": loader,
            "min_seconds": config.min_seconds,
            "min_batches": config.min_batches,
            "max_warmup_seconds": config.max_warmup_seconds,
        }
        patience = 300 + config.max_warmup_seconds + 10 * config.min_seconds
        if config.workload == "cold":
            patience += len(self._manifest) / SLOWEST
        block: Block = {"arm": arm, "phase": phase, "round": number}
        with contextlib.ExitStack() as stack:
            processes = [
                stack.enter_context(
                    FreshProcess("dali_pipes.benchmark.block", job, f"arm {arm}", self.cpus, gpu_of(index, config.corun), patience)
                )
                for index in range(config.corun)
            ]
            with Sampler([process.pid for process in processes]) as sampler:
                ready = [process.answer() for process in processes]
                sampler.gpus, block["gpu_missing"] = _gpus(each["gpu"] for each in ready)
                if self._work.workload == "cold":
                    block["resident"] = self._make_cold()
                for process in processes:
                    process.go()
                windows = [process.answer() for process in processes]
            block["jobs"] = [one | other for one, other in zip(ready, windows, strict=True)]
            block |= {"samples": sampler.samples, "sampler_cost": sampler.cost}
            block["gpu_missing"] |= {figure: why for gpu in sampler.gpus for figure, why in gpu.missing.items()}
        self._write(block)
        return block

    def _make_cold(self) -> float | None:
        paths = [self._manifest.path(sample_id) for sample_id in range(len(self._manifest))]
        evict(paths)
        return resident_share(paths)

    def _write(self, block: Block) -> None:
        self._count += 1
        name = f"{self._count:03d}_{block['phase']}_{block['round']}_{block['arm']}.json"
        (self._folder / name).write_text(json.dumps(block))


def gpu_of(index: int, corun: int) -> str | None:
    """Each of several jobs has a GPU of its own, as far as there are any."""
    count = torch.cuda.device_count()
    if corun == 1 or not count:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    return visible[index % count]


def _gpus(uuids: Iterable[str | None]) -> tuple[list[Gpu], dict[str, str]]:
    """The GPUs that the jobs use, and what cannot be asked of them with the reason."""
    gpus, missing = [], dict[str, str]()
    for uuid in sorted({uuid for uuid in uuids if uuid}):
        try:
            gpus.append(Gpu(uuid))
        except NoGpu as error:
            missing |= dict.fromkeys(FIGURES, str(error))
    return gpus, missing
