"""Runs a benchmark from start to end.

    arms that cannot run here are left out
    images → page cache → agreement of the pixels      (`check_agreement`: may end the run)
    workers and threads that are not given             (`_with_best_workers`)
    rounds of trials, with the control                 (`_measure`)
    result.json, report.html, the table                (`_result`)

An arm that fails is reported, and the others go on without it.
"""

import contextlib
import itertools
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import numpy as np
import torch
from rich.console import Console

from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.dali.config import DaliOptions
from dali_pipes.backends.torch.config import TorchConfig
from dali_pipes.measure.agreement import check_agreement
from dali_pipes.measure.arms import arm_of, makes_images
from dali_pipes.measure.arms.users_dataloader import describe_dataloader
from dali_pipes.measure.figures import not_measured, result_figures, trial_figures
from dali_pipes.measure.images import open_measured_images
from dali_pipes.measure.printing import print_result
from dali_pipes.measure.protocol import Trials
from dali_pipes.measure.results import Result, Trial
from dali_pipes.measure.rounds import TrialKey, list_trials, rounds
from dali_pipes.measure.stats import MIN_PAIRS
from dali_pipes.measure.worker_process import ArmError, exit_on_signals
from dali_pipes.measure.workload import lacks_gpu, to_dict
from dali_pipes.system.files import make_run_folder
from dali_pipes.system.progress import track
from dali_pipes.system.stdout import print_json, save_result, say
from dali_pipes.tools.benchmark.config import BenchmarkConfig
from dali_pipes.tools.benchmark.page import write_page
from dali_pipes.tools.benchmark.sweep import SCHEMA, collect_sweep

Arms = dict[str, LoaderConfig]

console = Console(stderr=True)


def benchmark(config: BenchmarkConfig, sweep: Path | None = None) -> None:
    """Runs all arms; prints a table to stderr, and the result as one line of JSON to stdout.

    All files go into a new folder below `config.out`.

    Args:
        sweep: the folder of the sweep that this run belongs to, which replaces `config.out`; the
            sweep's table is updated.

    Raises:
        ArmError: the arms do not agree, and nothing was timed; or an arm failed, which is raised
            after all others have been reported.
    """
    start = time.monotonic()
    out = sweep or Path(config.out)
    out.mkdir(parents=True, exist_ok=True)

    left_out = _left_out(config)
    # decided here, so that the result has what was chosen
    arms = {arm: config.loader_of(arm).on_packages() for arm in config.arms if arm not in left_out}
    # an arm that only delivers ready images is a baseline only if there is no other
    makers = [arm for arm, loader in arms.items() if makes_images(type(loader))]
    baseline = config.baseline if config.baseline in arms else [*makers, *arms][0]

    say(console, *(f"{arm} is left out: it {why}." for arm, why in left_out.items()))
    if dali := [arm for arm in arms if arm != "yours" and lacks_gpu(config.loaders[arm])]:
        say(console, f"No GPU here: {' and '.join(dali)} on DALI's CPU backend.")

    images: Any
    if config.function:
        images = describe_dataloader(config.function)
        config = replace(config, batch_size=images["batch_size"])
        workers = {"num_workers": images["num_workers"]}
        arms = {arm: replace(loader, **workers) for arm, loader in arms.items()}
    else:
        images = open_measured_images(config)
    folder = make_run_folder(out)
    trials = Trials(config, images, folder, config.corun, config.restart)
    # before anything is timed: the speed of an arm with other pixels would mean nothing
    with console.status("comparing pixels"):
        agreement = check_agreement(
            config, trials.work, arms, baseline, trials.cpus, folder / "samples"
        )

    failed: dict[str, str] = {}
    # a signal must end the suspended processes as well
    with exit_on_signals(), contextlib.closing(trials):
        arms, swept = _with_best_workers(arms, trials, config.seed, failed)

        if not config.restart:
            # it has processes of its own, so that the control shows how far two starts differ
            control = baseline if config.pairs >= MIN_PAIRS else None
            failed |= trials.start(
                {arm: loader for arm, loader in arms.items() if arm not in failed}, control
            )

        done = _measure(config, arms, baseline, trials, failed, start)

    figures = _result(config, arms, baseline, done, failed, left_out, trials)
    result = cast(Result, figures | {"agreement": agreement, "workers": swept})
    save_result(folder, result)  # the page is made from the files in the folder
    write_page(folder)
    print_result(result, console)
    if sweep:
        # after each run, so that a sweep that is stopped has its table too
        collect_sweep(sweep, console)
    say(console, f"Report: {folder / 'report.html'}")
    print_json(result)

    if failed:
        raise ArmError(
            f"{' and '.join(failed)} failed and {'has' if len(failed) == 1 else 'have'} no "
            "figures; the reason is above"
        )


def _left_out(config: BenchmarkConfig) -> dict[str, str]:
    """The arms that cannot run here, with the reason.

    Raises:
        ArmError: without them there is nothing to compare.
    """
    without = (
        []
        if torch.cuda.is_available()
        else [arm for arm in config.arms if config.loader_of(arm).needs_gpu]
    )

    if without and len(config.arms) - len(without) < 2:
        raise ArmError(
            f"{' and '.join(f'arm {arm}' for arm in without)}: no GPU here, and too few other "
            "arms to compare"
        )
    return dict.fromkeys(without, "needs a GPU, and PyTorch sees none here")


def _with_best_workers(
    arms: Arms, trials: Trials, seed: int, failed: dict[str, str]
) -> tuple[Arms, dict[str, dict[str, Any]]]:
    """Finds the fastest number of workers for DataLoader arms that have none given, and of threads
    for those of DALI.

    Each number is tried twice, in ABBA order, and judged by the mean of both.

    Returns:
        all arms, with these numbers set; and the images/s of all numbers tried, by arm.
    """
    cores = len(trials.cpus)
    candidates = sorted({max(1, cores // 2), cores, 3 * cores // 2, 2 * cores})

    free = {arm: loader for arm, loader in arms.items() if _is_free(loader)}
    tries = [
        TrialKey("workers", workers, arm)
        for arm in free
        for order in rounds(candidates, 2, seed)
        for workers in order
    ]

    by_workers: dict[str, dict[int, list[float]]] = {
        arm: {workers: [] for workers in candidates} for arm in free
    }
    shown = track(
        tries, lambda key: f"{key.arm}: {free[key.arm].cores_option}={key.number}", len(tries)
    )
    for arm, keys in itertools.groupby(shown, lambda key: key.arm):
        for key in keys:
            if trial := _try(trials, key, free[arm].on_cores(key.number), failed):
                by_workers[arm][key.number].append(trial_figures(trial)["images_per_s"])
        trials.close()  # ends suspended processes, which hold memory of the GPU

    rates = {
        arm: {str(workers): fmean(measured) for workers, measured in rate.items()}
        for arm, rate in by_workers.items()
        if arm not in failed
    }

    best = {arm: int(max(rate, key=rate.__getitem__)) for arm, rate in rates.items()}
    tuned = {arm: free[arm].on_cores(workers) for arm, workers in best.items()}
    return arms | tuned, {
        arm: {"images_per_s": rates[arm], "kept": workers} for arm, workers in best.items()
    }


def _is_free(loader: LoaderConfig) -> bool:
    """Whether it is left open how many workers or threads a loader has."""
    if isinstance(loader, TorchConfig):
        return loader.num_workers is None
    # a list of CPUs says how many threads, too
    return (
        isinstance(loader, DaliOptions)
        and loader.num_threads is None
        and loader.cpus in (None, "gpu")
    )


def _measure(
    config: BenchmarkConfig,
    arms: Arms,
    baseline: str,
    trials: Trials,
    failed: dict[str, str],
    start: float,
) -> list[Trial]:
    """Runs the rounds; none begins that would end after `config.minutes`. Returns all trials."""
    begun: list[float] = []

    def in_time(number: int) -> bool:
        """Whether a round as long as the longest so far would end in time."""
        # called when a round begins, so the differences are the durations of the rounds
        begun.append(time.monotonic())
        longest = max(np.diff(begun), default=0.0)
        if (
            number == 1
            or config.minutes is None
            or begun[-1] + longest <= start + 60 * config.minutes
        ):
            return True

        say(
            console,
            (
                f"{config.pairs} rounds do not fit into minutes={config.minutes:g}; ended after "
                f"{number - 1}."
            ),
        )
        return False

    plan = list_trials(list(arms), baseline, config.pairs, config.seed, in_time)
    return [trial for key in plan if (trial := _try(trials, key, arms[key.arm], failed))]


def _try(
    trials: Trials, key: TrialKey, loader: LoaderConfig, failed: dict[str, str]
) -> Trial | None:
    """Runs one trial; None if the arm fails. It is then in `failed`, and is not run again."""
    if key.arm in failed:
        return None
    try:
        return trials.run(key, loader)
    except ArmError as error:
        failed[key.arm] = str(error)
        return None


def _result(
    config: BenchmarkConfig,
    arms: Arms,
    baseline: str,
    done: list[Trial],
    failed: dict[str, str],
    left_out: dict[str, str],
    trials: Trials,
) -> dict[str, Any]:
    """The result without the agreement and the workers.

    The arms are in the order of `config.arms`. One that failed or was left out has the reason
    instead of figures.
    """
    pairs = max((trial["round"] for trial in done), default=0)
    # with fewer rounds there is no control, and trials that were begun for it are not used
    phases = ("round", "control") if pairs >= MIN_PAIRS else ("round",)

    figured = [trial for trial in done if trial["arm"] not in failed and trial["phase"] in phases]
    figures, facts = (
        result_figures(figured, list(arms), baseline, _planning(arms), config.restart),
        trials.facts(),
    )

    facts["work"]["loaders"] = {arm: to_dict(loader) for arm, loader in arms.items()}
    facts["protocol"] |= {"minutes": config.minutes, "pairs": pairs}

    figures["arms"] = {
        arm: {
            "failed": failed.get(arm),
            "skipped": left_out.get(arm),
            **figures["arms"].get(arm, {}),
        }
        for arm in config.arms
    }

    return {
        "schema": SCHEMA,
        "baseline": baseline,
        **figures,
        "not_measured": not_measured(figured),
        "telemetry_cost": max((trial["sampler_cost"] for trial in figured), default=None),
        **facts,
    }


def _planning(arms: Arms) -> list[tuple[str, str]]:
    """Pairs of arms that decode alike, the first without the plan, the second with it.

    Their ratio is what planning costs.
    """

    # what two graphs must have in common to decode and finish alike
    def graph(loader: LoaderConfig) -> tuple[str, bool, bool]:
        return (
            loader.decodes_on,
            getattr(loader, "fancy_upsampling", True),
            getattr(loader, "graph_finishes", True),
        )

    return [
        (native, planned)
        for native, one in arms.items()
        for planned, other in arms.items()
        if (row := arm_of(type(one)))
        and row.planned_by is type(other)
        and graph(one) == graph(other)
    ]
