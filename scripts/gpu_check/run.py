"""Runs all parts of the check, the most important first; writes the results after each of them."""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from dali_pipes.backends.torch.config import TorchConfig
from dali_pipes.data.images import open_images, sample_images
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError, DaliPipesError
from dali_pipes.loader.build import build_loader
from dali_pipes.measure.worker_process import exit_on_signals
from dali_pipes.plan.transforms import EvalTransform
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.nvml import NoGpu, driver
from dali_pipes.system.provenance import FIGURES_ANYWAY, gpu_is_simulated, provenance
from dali_pipes.tools.doctor.software import installed
from gpu_check.bench import Bench, PartError
from gpu_check.config import GpuCheckConfig
from gpu_check.goals import goals
from gpu_check.parts import PARTS
from gpu_check.report import markdown

LEAST = 5.0  # a part does not begin with fewer seconds left
IMAGES = 20_000  # of an epoch; a smaller number of real images is repeated
MOST_IMAGES = 2_000  # different images; more would only take longer to decode before the check
console = Console(stderr=True, highlight=False)


def gpu_check(config: GpuCheckConfig) -> bool:
    """Runs the parts; writes gpu_check.json and gpu_check.md into `out` after each of them.

    The parts' own files go into details/. A part that fails or runs out of time does not affect the
    others.

    Returns:
        whether all parts have a result and no test failed.

    Raises:
        ConfigError: there is no GPU, or `out` holds an earlier check.
        BadSampleError: an image cannot be decoded, which would end most parts.
    """
    if gpu_is_simulated():
        # else every tool refuses a simulated GPU
        os.environ[FIGURES_ANYWAY] = "1"

    if not config.dry_run and not torch.cuda.is_available():
        raise ConfigError(
            "PyTorch sees no GPU here; dry_run=true runs the parts on the CPU, with little "
            "work and no verdict"
        )

    out = Path(config.out).absolute()
    if (out / "gpu_check.json").exists():
        raise ConfigError(f"{out} holds an earlier check; choose another folder with out=")

    end = time.monotonic() + 60 * config.minutes
    details = out / "details"
    details.mkdir(parents=True, exist_ok=True)

    images = sample_images(open_images(config.data, "train"), MOST_IMAGES, seed=0)
    _decode_all(images)
    images.save(details / "real_images.parquet")

    epoch = images.subset(
        np.arange(max(len(images), 1_000 if config.dry_run else IMAGES)) % len(images)
    )
    epoch.save(details / "images.parquet")

    bench = Bench(
        config,
        str(details / "images.parquet"),
        str(details / "real_images.parquet"),
        details,
        available_cpus(),
    )

    where = provenance(images.describe(), config.overrides) | {
        "epoch": len(epoch),
        "gpu_software": _gpu_software(),
    }

    with exit_on_signals():
        found = _run(config.parts, bench, where, out, end)
    print((out / "gpu_check.md").read_text())

    failed = (found.get("suite", {}).get("result") or {}).get("failed")
    return not failed and all(part["error"] is None for part in found.values())


def limit_of(parts: Sequence[str], left: float) -> float:
    """Seconds for the first of these parts: what the others' shares leave, but at least its own.

    Never more than the time left.
    """
    own, *others = (PARTS[name][0] for name in parts)
    return min(left, max(own, left - sum(others)))


def _run(
    parts: Sequence[str], bench: Bench, where: dict[str, Any], out: Path, end: float
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for at, name in enumerate(parts):
        found[name] = _part(name, bench, found, limit_of(parts[at:], end - time.monotonic()))
        # figures of a simulated GPU meet no goal
        met = list(goals({} if gpu_is_simulated() else found))
        result = {"provenance": where, "goals": met, "parts": found}
        (out / "gpu_check.json").write_text(json.dumps(result, indent=1))
        (out / "gpu_check.md").write_text(markdown(result))

    return found


def _decode_all(images: Manifest) -> None:
    config = TorchConfig(num_workers=min(available_cpus(), 8))
    # an image that cannot be decoded is named now, not in the middle of a part
    with build_loader(
        images, config, transform=EvalTransform(size=32, resize=36), batch_size=16, device="cpu"
    ) as loader:
        for _ in loader:
            pass


def _gpu_software() -> dict[str, Any]:
    versions = {
        name: version
        for name, version in installed().items()
        if name.startswith(("cupy", "nvidia"))
    }

    try:
        return {"driver": driver()[0], "cuda_of_pytorch": torch.version.cuda} | versions
    except NoGpu as error:
        return {"driver": str(error), "cuda_of_pytorch": torch.version.cuda} | versions


def _part(name: str, bench: Bench, before: dict[str, Any], limit: float) -> dict[str, Any]:
    """Runs one part; returns seconds, error or None, and result or None."""
    start = time.monotonic()
    console.print(f"{name} …", end=" ")

    result: Any = None
    error = None

    try:
        if limit < LEAST:
            raise PartError("not begun, the time was over; give it a separate run with parts=")
        result = PARTS[name][1](bench, before, limit)
    except DaliPipesError as failure:
        error = str(failure)
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"

    seconds = time.monotonic() - start
    console.print(
        f"{seconds:.0f} s{'' if error is None else f', {error}'}", markup=False, soft_wrap=True
    )
    sys.stderr.flush()
    return {"seconds": round(seconds, 1), "error": error, "result": result}
