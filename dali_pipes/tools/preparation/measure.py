"""What changed: the pixels as a network sees them, and the loader's pace."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dali_pipes.backends.config import TorchConfig
from dali_pipes.data.manifest import Manifest
from dali_pipes.loader.loader import build_loader
from dali_pipes.measure.agreement import difference
from dali_pipes.measure.figures import result_figures
from dali_pipes.measure.protocol import Trials, turns
from dali_pipes.measure.workload import to_dict
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.files import new_folder
from dali_pipes.tools.preparation.config import PrepareConfig
from dali_pipes.tools.preparation.shards import read_back


def folder_difference(config: PrepareConfig, source: Manifest, ids: list[int], written: Manifest) -> dict[str, Any]:
    """The difference over images chosen at random.

    Args:
        ids: the source's id of each written image.

    Returns:
        images; and for "evaluation" and "training" max, mean and p99 of |after - before|, in steps of 1/255.
    """
    chosen = np.random.default_rng(config.seed).permutation(len(ids))[: config.agreement_images]
    return _compared(config, source.subset(np.array(ids)[chosen]), written.subset(chosen))


def shards_difference(config: PrepareConfig, source: Manifest, folder: Path) -> dict[str, Any]:
    """The same for images taken from the shards."""
    with tempfile.TemporaryDirectory() as temporary:
        into = Path(temporary, "images")
        into.mkdir()
        ids = read_back(folder, config.agreement_images, into)
        return _compared(config, source.subset(np.array(ids)), Manifest.scan(temporary, progress=False))


def _compared(config: PrepareConfig, before: Manifest, after: Manifest) -> dict[str, Any]:
    """Training uses the same random numbers before and after, so the windows are the same except for rounding to the new pixels."""
    found = {
        name: difference(_pixels(config, after, transform), _pixels(config, before, transform))
        for name, transform in (("evaluation", config.eval_transform), ("training", config.transform))
    }
    return {"images": len(before)} | found


def _pixels(config: PrepareConfig, manifest: Manifest, transform: Transform) -> torch.Tensor:
    exif = "apply" if config.exif == "apply" else transform.exif
    as_bytes = replace(transform, dtype="uint8", exif=exif)
    with build_loader(
        manifest,
        TorchConfig(),
        transform=as_bytes,
        batch_size=16,
        seed=config.seed,
        shuffle=False,
        last_batch="partial",
        device="cpu",
    ) as loader:
        return torch.cat([batch.images.float() for batch in loader])


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
