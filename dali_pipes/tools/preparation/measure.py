"""The loader's gain: the benchmark's A/B with two sets of images instead of two loaders. docs/method.md has the protocol."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from dali_pipes.data.images import repeat_epoch, warm_page_cache
from dali_pipes.data.manifest import Manifest
from dali_pipes.measure.config import BenchmarkConfig
from dali_pipes.measure.figures import Trial, result_figures
from dali_pipes.measure.protocol import Trials, rounds
from dali_pipes.measure.stats import LEAST_PAIRS
from dali_pipes.measure.workload import Workload, to_dict
from dali_pipes.system.files import new_folder
from dali_pipes.system.progress import track
from dali_pipes.system.provenance import provenance
from dali_pipes.tools.preparation.config import PrepareConfig

BEFORE, AFTER = "before", "after"
SCHEMA = 2

_TIMING = ("workload", "cpus", "batch_size", "seed", "pairs", "min_seconds", "min_batches", "max_warmup_seconds", "images")


def measurement(config: PrepareConfig) -> BenchmarkConfig:
    """The options of the trials.

    Raises:
        ConfigError: one of them cannot work.
    """
    timing = {name: getattr(config, name) for name in _TIMING}
    return BenchmarkConfig(transform=config.transform, loaders={BEFORE: config.loader}, arms=[BEFORE], **timing)


def measure(config: PrepareConfig, source: Manifest, ids: list[int], written: Manifest) -> dict[str, Any]:
    """Alternating trials of the source and of the written images, each in a fresh process, with the same loader and plan.

    Args:
        ids: the source's id of each written image.

    Returns:
        arms, control, work, protocol and provenance as in docs/result.md, with the arms "before" and "after"; and folder.

    Raises:
        ArmError: a trial failed.
    """
    chosen = np.sort(np.random.default_rng(config.seed).permutation(len(ids))[: config.images])
    images = {BEFORE: source.subset(np.array(ids)[chosen]), AFTER: written.subset(chosen)}
    options = measurement(config)
    folder = new_folder(Path(config.report))
    trials = {name: _trials(options, config, manifest, folder / name) for name, manifest in images.items()}
    done = _run(options, trials, to_dict(config.loader))
    result = {
        "schema": SCHEMA,
        "baseline": BEFORE,
        **result_figures(done, [BEFORE, AFTER], BEFORE),
        "work": _work(options, config, folder / BEFORE).to_dict() | {"loader": to_dict(config.loader)},
        "protocol": {name: getattr(config, name) for name in _TIMING} | {"cpus": len(trials[BEFORE].cpus)},
        "provenance": {name: provenance(manifest.describe(), config.overrides) for name, manifest in images.items()},
        "folder": str(folder),
    }
    (folder / "result.json").write_text(json.dumps(result, indent=1))
    return result


def _trials(options: BenchmarkConfig, config: PrepareConfig, manifest: Manifest, folder: Path) -> Trials:
    folder.mkdir()
    warm_page_cache(manifest)
    work = _work(options, config, folder)
    (manifest if options.workload == "cold" else repeat_epoch(manifest)).save(work.manifest)
    return Trials(work, manifest, options, folder / "trials")


def _work(options: BenchmarkConfig, config: PrepareConfig, folder: Path) -> Workload:
    return Workload(str(folder / "manifest.parquet"), config.transform, options.batch_size, options.seed, options.workload)


def _run(options: BenchmarkConfig, trials: dict[str, Trials], loader: dict[str, Any]) -> list[Trial]:
    each_round = [("round", BEFORE), ("round", AFTER), *([("control", BEFORE)] if options.pairs >= LEAST_PAIRS else [])]
    plan = [(number, *trial) for number, order in enumerate(rounds(each_round, options.pairs, options.seed), 1) for trial in order]
    turns = track(plan, lambda each: f"{each[1]} {each[0]} of {options.pairs}: {each[2]}", len(plan))
    return [trials[arm].run(arm, loader, phase, number) for number, phase, arm in turns]
