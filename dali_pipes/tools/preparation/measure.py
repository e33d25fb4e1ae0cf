"""The loader's gain: the benchmark's A/B with two sets of images instead of two loaders. docs/method.md has the protocol."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from dali_pipes.data.manifest import Manifest
from dali_pipes.measure.figures import result_figures
from dali_pipes.measure.protocol import Trials, turns
from dali_pipes.measure.workload import to_dict
from dali_pipes.system.files import new_folder
from dali_pipes.tools.preparation.config import PrepareConfig

BEFORE, AFTER = "before", "after"
SCHEMA = 3


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
    folder = new_folder(Path(config.report))
    trials = {arm: Trials(config, manifest, folder / arm) for arm, manifest in images.items()}
    done = [trials[turn.arm].run(turn, config.loader) for turn in turns([*trials], BEFORE, config.pairs, config.seed)]
    facts = {arm: each.facts() for arm, each in trials.items()}
    result = {
        "schema": SCHEMA,
        "baseline": BEFORE,
        **result_figures(done, [BEFORE, AFTER], BEFORE),
        **facts[BEFORE],
        "work": facts[BEFORE]["work"] | {"loader": to_dict(config.loader)},
        "provenance": {arm: each["provenance"] for arm, each in facts.items()},
        "folder": str(folder),
    }
    (folder / "result.json").write_text(json.dumps(result, indent=1))
    return result
