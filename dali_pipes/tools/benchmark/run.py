"""The benchmark from start to end: agreement, baseline workers, control, rounds of trials, report."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from dali_pipes.backends.config import LoaderConfig
from dali_pipes.data.images import open_images, repeat_epoch, sample_images, warm_page_cache
from dali_pipes.data.manifest import Manifest
from dali_pipes.measure.agreement import gate
from dali_pipes.measure.arms import Arms, baseline, on_cpu_for_want_of_gpu, planning, skipped
from dali_pipes.measure.config import BenchmarkConfig
from dali_pipes.measure.figures import Trial, not_measured, result_figures, trial_figures
from dali_pipes.measure.protocol import Trials, rounds
from dali_pipes.measure.stats import LEAST_PAIRS
from dali_pipes.measure.table import print_result
from dali_pipes.measure.worker_process import ArmError, ended_in_order
from dali_pipes.measure.workload import Workload, to_dict
from dali_pipes.system.files import new_folder
from dali_pipes.system.progress import track
from dali_pipes.system.provenance import provenance
from dali_pipes.tools.benchmark.compare import SCHEMA, collect_sweep
from dali_pipes.tools.benchmark.page import write_page
from dali_pipes.training.models import check_model, default_model

console = Console(stderr=True)
Turn = tuple[str, int, str]  # phase, round and arm of a trial


def benchmark(config: BenchmarkConfig, sweep: Path | None = None) -> None:
    """Runs all arms; the table goes to stderr, the result as one line of JSON to stdout, everything into a new folder.

    Args:
        sweep: the folder of a sweep that this run belongs to; its table is brought up to date.

    Raises:
        ArmError: the arms do not agree, so that nothing was timed; or an arm failed, after all others have been reported.
    """
    start = time.monotonic()
    out = sweep or Path(config.out)
    out.mkdir(parents=True, exist_ok=True)
    network = config.model.name or default_model()
    check_model(network)
    left_out = skipped(config)
    arms = {arm: config.loaders[arm] for arm in config.arms if arm not in left_out}
    _say_what_is_missing(arms, left_out)
    manifest = _images(config)
    folder = new_folder(out)
    epoch = manifest if config.workload == "cold" else repeat_epoch(manifest)
    epoch.save(folder / "manifest.parquet")
    model = network if config.workload == "train" else None
    work = Workload(str(folder / "manifest.parquet"), config.transform, config.batch_size, config.seed, config.workload, model)
    trials = Trials(work, manifest, config, folder / "trials")
    with console.status("comparing pixels"):
        agreement = gate(config, work, arms, trials.cpus, folder / "samples")
    failed: dict[str, str] = {}
    with ended_in_order(), contextlib.closing(trials):
        arms, swept = _with_best_workers(arms, trials, config.seed, failed)
        trials.close()  # the numbers of workers that were not kept
        if not config.restart:
            control = baseline(config, arms) if config.pairs >= LEAST_PAIRS else None
            failed |= trials.start({arm: to_dict(loader) for arm, loader in arms.items() if arm not in failed}, control)
        measured, pairs = _measure(config, arms, trials, failed, start)
    result = {"schema": SCHEMA, **measured, "agreement": agreement, "workers": swept}
    result["arms"] |= {arm: {"failed": None, "skipped": why} for arm, why in left_out.items()}
    result["arms"] = {arm: result["arms"][arm] for arm in config.arms}
    result["work"] = work.to_dict() | {"manifest": "manifest.parquet", "corun": config.corun, "epoch": len(epoch)}
    result["work"]["loaders"] = {arm: to_dict(loader) for arm, loader in arms.items()}
    result["protocol"] = _protocol(config, trials) | {"pairs": pairs}
    result["provenance"] = provenance(manifest.describe(), config.overrides)
    (folder / "result.json").write_text(json.dumps(result, indent=1))
    write_page(folder)
    print_result(result, console)
    if sweep:
        collect_sweep(sweep, console)
    console.print(f"Report: {folder / 'report.html'}", soft_wrap=True, markup=False)
    print(json.dumps(result))
    if failed:
        raise ArmError(f"{' and '.join(failed)} failed and {'has' if len(failed) == 1 else 'have'} no figures; the reason is above")


def _say_what_is_missing(arms: Arms, left_out: dict[str, str]) -> None:
    for arm, why in left_out.items():
        console.print(f"{arm} is left out: it {why}.")
    if dali := on_cpu_for_want_of_gpu(arms):
        console.print(f"No GPU here: {' and '.join(dali)} on DALI's CPU backend.")


def _images(config: BenchmarkConfig) -> Manifest:
    """At most `config.images` of the training images. All of them are read, so that the page cache is equal for all arms."""
    manifest = sample_images(open_images(config.data, "train"), config.images, config.seed)
    if config.workload == "cold" and len(manifest) < config.min_batches * config.batch_size:
        raise ArmError(
            f"workload=cold reads every file once, and {len(manifest)} images are less than min_batches={config.min_batches} "
            f"batches of {config.batch_size}; use more images, or a smaller batch_size"
        )
    warm_page_cache(manifest)
    return manifest


def _with_best_workers(arms: Arms, trials: Trials, seed: int, failed: dict[str, str]) -> tuple[Arms, dict[str, Any]]:
    """The DataLoader arms without a given number of workers, with the fastest number on this machine, and all numbers tried.

    Each number is tried twice, in ABBA order, and judged by the mean of both.
    """
    cores = len(trials.cpus)
    candidates = sorted({max(1, cores // 2), cores, 3 * cores // 2, 2 * cores})
    free = {arm: loader for arm, loader in arms.items() if getattr(loader, "num_workers", 0) is None}
    tries = [(arm, workers) for arm in free for order in rounds(candidates, 2, seed) for workers in order]
    found: dict[str, dict[int, list[float]]] = {arm: {workers: [] for workers in candidates} for arm in free}
    for arm, workers in track(tries, lambda each: f"{each[0]}: {each[1]} workers", len(tries)):
        trial = _try(trials, arm, free[arm].on_cores(workers), "workers", workers, failed)
        if trial:
            found[arm][workers].append(trial_figures(trial)["images_per_s"])
    rates = {arm: {str(workers): fmean(each) for workers, each in rate.items()} for arm, rate in found.items() if arm not in failed}
    best = {arm: int(max(rate, key=rate.__getitem__)) for arm, rate in rates.items()}
    tuned = {arm: free[arm].on_cores(workers) for arm, workers in best.items()}
    return arms | tuned, {arm: {"images_per_s": rates[arm], "kept": workers} for arm, workers in best.items()}


def _try(trials: Trials, arm: str, loader: LoaderConfig, phase: str, number: int, failed: dict[str, str]) -> Trial | None:
    """One trial; an arm that fails once is in `failed` from then on, and is not run again."""
    if arm in failed:
        return None
    try:
        return trials.run(arm, to_dict(loader), phase, number)
    except ArmError as error:
        failed[arm] = str(error)
        return None


def _measure(
    config: BenchmarkConfig, arms: Arms, trials: Trials, failed: dict[str, str], start: float
) -> tuple[dict[str, Any], int]:
    """All arms in rounds, and the baseline once more in each. An arm that has failed has no figures. Returns the rounds too."""
    first, done = baseline(config, arms), list[Trial]()
    plan = list(_plan(config, list(arms), first))
    total = sum(map(len, plan))
    for phase, number, arm in track(_in_time(plan, start, config.minutes), lambda each: f"round {each[1]}: {each[2]}", total):
        if trial := _try(trials, arm, arms[arm], phase, number, failed):
            done.append(trial)
    pairs = max((trial["round"] for trial in done), default=0)
    phases = ("round", "control") if pairs >= LEAST_PAIRS else ("round",)
    done = [trial for trial in done if trial["arm"] not in failed and trial["phase"] in phases]
    found = result_figures(done, list(arms), first, planning(arms))
    figures = {arm: {"failed": None, "skipped": None} | found["arms"].get(arm, {"failed": failed.get(arm)}) for arm in arms}
    cost = max((trial["sampler_cost"] for trial in done), default=None)
    result = {"baseline": first, **found, "arms": figures, "not_measured": not_measured(done), "telemetry_cost": cost}
    return result, pairs


def _in_time(plan: list[list[Turn]], start: float, minutes: float | None) -> Iterator[Turn]:
    """The trials of all rounds that should end in time, judging by the longest so far."""
    longest = 0.0
    for turns in plan:
        begin = time.monotonic()
        if longest and minutes is not None and begin + longest > start + 60 * minutes:
            console.print(f"{len(plan)} rounds do not fit into minutes={minutes:g}; ended after {turns[0][1] - 1}.")
            return
        yield from turns
        longest = max(longest, time.monotonic() - begin)


def _plan(config: BenchmarkConfig, arms: list[str], first: str) -> Iterator[list[Turn]]:
    """The trials of every round. The control is a second trial of the baseline in each, at a random place."""
    trials = [("round", arm) for arm in arms]
    if config.pairs >= LEAST_PAIRS:
        trials.append(("control", first))
    for number, order in enumerate(rounds(trials, config.pairs, config.seed), 1):
        yield [(phase, number, arm) for phase, arm in order]


def _protocol(config: BenchmarkConfig, trials: Trials) -> dict[str, Any]:
    names = ("minutes", "min_seconds", "min_batches", "max_warmup_seconds", "restart", "images", "agreement_images")
    return {name: getattr(config, name) for name in names} | {"cpus": len(trials.cpus)}
