"""The parts of the check: the project's jobs and tests, each with its options and its time.

A part is a function that takes the results of the parts before it, such as the fastest settings
that the grid found. `PARTS` has their order and their shares of the time.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.data.manifest import Manifest
from dali_pipes.system.provenance import gpu_is_simulated
from gpu_check.bench import ROOT, Bench, PartError
from gpu_check.grid import FANCY, Cell, best_dali, best_torch, search
from gpu_check.probing import Row, probed, regions_are_right
from gpu_check.profiling import profiled
from gpu_check.suite import run_tests

Found = dict[str, Any]
# takes the results of the parts before it, and its time limit in seconds
Part = Callable[[Bench, Found, float], Any]
# arms of the comparison of loaders, besides the best DataLoader
ARMS = (
    "synthetic",
    "dali_cpu",
    "dali",
    "dali_native_fancy",
    "dali_fastest",
    "dali_native",
)
TRAINED = ("synthetic", "dali_cpu", "dali", "dali_fastest")
# the difference of the pixels is reported, and stops nothing
NO_GATE = ("max_mean_difference=255", "max_p99_difference=255")
BRIEF = ("restart=false", "max_warmup_seconds=0.5", "min_batches=4", "pairs=6")
LEAST = 45.0  # seconds that a comparison takes for the starts, one round and the report
# how many of them are before the benchmark's clock starts, and for the report: 16 on an H100 with
# 16 cores
REPORT = 20.0


def _probe(bench: Bench, before: Found, limit: float) -> list[Row]:
    dry = bench.config.dry_run
    device = torch.device("cpu") if dry else torch.device("cuda", 0)
    images = Manifest.load(bench.real_images)
    return probed(
        images, bench.config.batch_size, bench.details, limit, device, at_most=2 if dry else None
    )


def _doctor(bench: Bench, before: Found, limit: float) -> Found:
    options = [f"batch_size={bench.config.batch_size}"]
    return bench.job("doctor", "doctor", options, limit, statuses=(0, 1))


def _grid(bench: Bench, before: Found, limit: float) -> list[Cell]:
    return search(
        bench.work(), bench.cpus, limit, bench.details / "grid.jsonl", regions_are_right(before)
    )


def _loader(bench: Bench, before: Found, limit: float) -> Found:
    arm, _ = best_torch(before)
    # on a simulated GPU no kernel runs, so there are no pixels to compare
    gate = ["agreement_images=0"] if gpu_is_simulated() else NO_GATE
    return _compare(
        bench, "loader", before, ARMS, [f"baseline={arm}", "min_seconds=1.5", *gate], limit
    )


def _training(model: str, arms: Sequence[str], min_seconds: float) -> Part:
    def compare(bench: Bench, before: Found, limit: float) -> Found:
        options = [*_train(bench, model), f"min_seconds={min_seconds}"]
        return _compare(bench, model, before, arms, options, limit)

    return compare


def _corun(bench: Bench, before: Found, limit: float) -> Found:
    """Two jobs at once, each with as many threads as half of the cores."""
    dali = best_dali(before) | {"num_threads": max(1, bench.cpus // 2)}
    arms = ["corun=2", "arms=[synthetic,dali]", *_under("loaders.dali", dali)]
    options = [
        *bench.form("corun"),
        *BRIEF,
        *_train(bench, "resnet50"),
        "min_seconds=1",
        *arms,
        _minutes(limit),
    ]
    return bench.job("corun", "benchmark", options, limit)


def _profile(bench: Bench, before: Found, limit: float) -> Found:
    return profiled(bench.work(), DaliConfig(**best_dali(before)), limit)


def _diagnose(bench: Bench, before: Found, limit: float) -> Found:
    options = [
        "loader=dali",
        f"model.name={bench.model('resnet50')}",
        "rounds=1",
        "seconds=1.5",
        "cold=false",
    ]
    options += [
        f"precision={'fp32' if bench.config.dry_run else 'bf16'}",
        *_under("loader", best_dali(before)),
    ]

    return bench.job("diagnose", "diagnose", [*bench.form("diagnose"), *options], limit)


def _suite(bench: Bench, before: Found, limit: float) -> Found:
    return run_tests(bench, ROOT, limit, fail_without_cuda=not bench.config.dry_run)


def _compare(
    bench: Bench, part: str, before: Found, arms: Sequence[str], options: list[str], limit: float
) -> Found:
    """Runs the A/B of these arms and of the DataLoader, with the best settings of the grid."""
    arm, workers = best_torch(before)
    tuned = [
        option
        for name in ("dali_cpu", *FANCY)
        if name in arms
        # no time for the benchmark's own search for the number of threads
        for option in _under(
            f"loaders.{name}",
            {"num_threads": bench.cpus} | (best_dali(before, name) if name in FANCY else {}),
        )
    ]

    tuned += [f"loaders.{arm}.num_workers={workers or bench.cpus}", _minutes(limit)]

    options = [*bench.form(part), f"arms=[{','.join([arm, *arms])}]", *BRIEF, *options, *tuned]
    return bench.job(part, "benchmark", options, limit, statuses=(0, 2))


def _train(bench: Bench, model: str) -> list[str]:
    """The options of a comparison with training; its pixels were compared by the part `loader`."""
    return [
        "workload=train",
        f"model.name={bench.model(model)}",
        "baseline=synthetic",
        "agreement_images=0",
    ]


def _minutes(limit: float) -> str:
    if limit < LEAST:
        raise PartError(
            f"not begun: {limit:.0f} s are too little for a comparison; give it a separate run "
            "with parts="
        )
    return f"minutes={(limit - REPORT) / 60:.2f}"


def _under(group: str, settings: dict[str, Any]) -> list[str]:
    return [
        f"{group}.{name}={'null' if value is None else value}" for name, value in settings.items()
    ]


# Each part with the seconds that it may take, 9 1/2 minutes in all. The most important ones come
# first, since a slow part takes time from the last ones.
PARTS: dict[str, tuple[float, Part]] = {
    "probe": (80, _probe),
    "grid": (70, _grid),
    "loader": (120, _loader),
    "doctor": (40, _doctor),
    "resnet50": (70, _training("resnet50", TRAINED, 1.0)),
    "profile": (15, _profile),
    "corun": (45, _corun),
    "suite": (75, _suite),
    "diagnose": (20, _diagnose),
    "resnet18": (35, _training("resnet18", ("synthetic", "dali"), 0.7)),
}
