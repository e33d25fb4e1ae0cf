"""The benchmark from start to end: agreement, then each arm in a fresh process, then the report."""

import datetime
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from dali_pipes.benchmark.agreement import follows_plan
from dali_pipes.benchmark.provenance import provenance
from dali_pipes.benchmark.report import print_table, write_html
from dali_pipes.benchmark.work import ArmError, Work, in_fresh_process, plain
from dali_pipes.config import BenchmarkConfig, DaliConfig
from dali_pipes.manifest import Manifest
from dali_pipes.progress import track

console = Console(stderr=True)


def benchmark(config: BenchmarkConfig) -> None:
    """Runs all arms; the table goes to stderr, the result as one line of JSON to stdout, both and a page into a new folder."""
    Path(config.out).mkdir(parents=True, exist_ok=True)
    manifest = _images(config)
    folder = _new_folder(config.out)
    manifest.save(folder / "manifest.parquet")
    work = Work(str(folder / "manifest.parquet"), config.transform, config.batch_size, config.seed)
    loaders = {arm: plain(config.loaders[arm]) for arm in config.arms}
    _say_where_dali_runs(config)
    result: dict[str, Any] = {"arms": {}, "agreement": _agreement(config, work)}
    timing = {"seconds": config.seconds, "min_batches": config.min_batches, "warmup_batches": config.warmup_batches}
    for arm in track(config.arms, "timing the arms", len(config.arms)):
        job = {"work": work.plain(), "loader": loaders[arm], **timing}
        result["arms"][arm] = in_fresh_process("dali_pipes.benchmark.measure", job, f"arm {arm}")
    result["work"] = {**work.plain(), "manifest": "manifest.parquet", "loaders": loaders, **timing}
    result["provenance"] = provenance(manifest)
    (folder / "result.json").write_text(json.dumps(result, indent=1))
    write_html(result, folder / "report.html")
    print_table(result, console)
    console.print(f"Report: {folder / 'report.html'}", soft_wrap=True, markup=False)
    print(json.dumps(result))


def _images(config: BenchmarkConfig) -> Manifest:
    """At most `config.images` of the training images, all of them in the page cache, so that no arm pays for another's reading."""
    manifest = Manifest.open(config.data.source("train"), cache_dir=config.data.cache_dir)
    if len(manifest) > config.images:
        chosen = np.random.default_rng(config.seed).choice(len(manifest), config.images, replace=False)
        manifest = manifest.subset(np.sort(chosen))
    with ThreadPoolExecutor(8) as pool:
        paths = (manifest.path(sample_id) for sample_id in range(len(manifest)))
        for _ in track(pool.map(_read, paths), "reading the images into the page cache", len(manifest)):
            pass
    return manifest


def _read(path: Path) -> None:
    path.read_bytes()


def _new_folder(out: str) -> Path:
    stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = Path(out).absolute() / stamp
    for number in range(2, 100):
        if not folder.exists():
            break
        folder = folder.with_name(f"{stamp}_{number}")
    folder.mkdir(parents=True)
    return folder


def _say_where_dali_runs(config: BenchmarkConfig) -> None:
    arms = [arm for arm in config.arms if isinstance(config.loaders[arm], DaliConfig) and config.loaders[arm].device == "auto"]
    if arms and not torch.cuda.is_available():
        console.print(f"No GPU here: {' and '.join(arms)} on DALI's CPU backend.")


def _agreement(config: BenchmarkConfig, work: Work) -> dict[str, Any]:
    """The comparison of pixels, which has to pass before anything is timed."""
    loaders = {arm: plain(config.loaders[arm]) for arm in config.arms if follows_plan(config.loaders[arm])}
    if len(loaders) < 2:
        return {"images": 0, "arms": {}, "note": "fewer than two arms follow the plan: there is nothing to compare"}
    with console.status("comparing pixels"):
        job = {"work": work.plain(), "loaders": loaders, "images": config.agreement_images}
        found = in_fresh_process("dali_pipes.benchmark.agreement", job, "agreement of the arms")
    for arm, difference in found["arms"].items():
        if not difference["same_ids"]:
            raise ArmError(f"{arm} and {found['reference']} deliver different samples; nothing was timed")
        if not (difference["mean"] <= config.max_mean_difference and difference["p99"] <= config.max_p99_difference):  # nor NaN
            raise ArmError(
                f"{arm} and {found['reference']} differ by {difference['mean']:.2f} of 255 in the mean and {difference['p99']:.1f} "
                f"at the 99th percentile, more than max_mean_difference={config.max_mean_difference:g} and "
                f"max_p99_difference={config.max_p99_difference:g}; nothing was timed, since the work was not the same"
            )
    return found
