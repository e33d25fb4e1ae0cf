"""Measures what a preparation changed.

`pixel_difference` compares the pixels as a network sees them, after decoding, cropping and
resizing; `measure` compares the loader's throughput and CPU time before and after.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_pipes.backends.torch.config import TorchConfig
from dali_pipes.data.manifest import Manifest
from dali_pipes.loader.build import build_loader
from dali_pipes.measure.agreement import difference
from dali_pipes.measure.figures import result_figures
from dali_pipes.measure.protocol import Trials
from dali_pipes.measure.rounds import list_trials
from dali_pipes.measure.workload import to_dict
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.files import make_run_folder
from dali_pipes.system.stdout import save_result
from dali_pipes.tools.preparation.config import PrepareConfig

BEFORE, AFTER = "before", "after"
SCHEMA = 3


def pixel_difference(
    config: PrepareConfig, source: Manifest, ids: list[int], written: Manifest
) -> dict[str, Any]:
    """Compares the pixels before and after, of images chosen at random.

    The training transform gets the same random numbers before and after, so the regions are the
    same except for rounding to the new pixels.

    Args:
        ids: the source's id of each written image.

    Returns:
        images; and for "evaluation" and "training" max, mean and p99 of |after - before|, in steps
        of 1/255.
    """
    before, after = _pairs(
        source,
        ids,
        written,
        np.random.default_rng(config.seed).permutation(len(ids))[: config.agreement_images],
    )

    figures = {
        name: difference(_pixels(config, after, transform), _pixels(config, before, transform))
        for name, transform in (
            ("evaluation", config.eval_transform),
            ("training", config.transform),
        )
    }
    return {"images": len(before)} | figures


def _pairs(
    source: Manifest, ids: list[int], written: Manifest, sample: NDArray[np.int64]
) -> tuple[Manifest, Manifest]:
    return source.subset(np.array(ids)[sample]), written.subset(sample)


def _pixels(config: PrepareConfig, manifest: Manifest, transform: Transform) -> torch.Tensor:
    exif = "apply" if config.exif == "apply" else transform.exif
    # before normalization, so that the difference is in steps of 1/255
    as_bytes = replace(transform, dtype="uint8", exif=exif)
    options: dict[str, Any] = {
        "seed": config.seed,
        "shuffle": False,
        "last_batch": "partial",
        "device": "cpu",
    }

    with build_loader(
        manifest, TorchConfig(), transform=as_bytes, batch_size=16, **options
    ) as loader:
        return torch.cat([batch.images.float() for batch in loader])


def measure(
    config: PrepareConfig, source: Manifest, ids: list[int], written: Manifest
) -> dict[str, Any]:
    """Measures the loader's gain: the benchmark's A/B, with two sets of images for two loaders.

    The same loader and plan run on the source and on the written images, in alternating trials,
    each in a new process. docs/method.md has the protocol.

    Args:
        ids: the source's id of each written image.

    Returns:
        arms, control, work, protocol and provenance as in docs/result.md, with the arms "before"
        and "after"; and folder.

    Raises:
        ArmError: a trial failed.
    """
    sample = np.sort(np.random.default_rng(config.seed).permutation(len(ids))[: config.images])
    folder = make_run_folder(Path(config.report))
    images = zip((BEFORE, AFTER), _pairs(source, ids, written, sample), strict=True)

    # each arm has images of its own, and `Trials` has one set of them
    trials = {arm: Trials(config, manifest, folder / arm) for arm, manifest in images}
    done = [
        trials[key.arm].run(key, config.loader)
        for key in list_trials([*trials], BEFORE, config.pairs, config.seed)
    ]

    facts = {arm: trials_of_arm.facts() for arm, trials_of_arm in trials.items()}
    result = {
        "schema": SCHEMA,
        "baseline": BEFORE,
        **result_figures(done, [BEFORE, AFTER], BEFORE),
        **facts[BEFORE],
        "work": facts[BEFORE]["work"] | {"loader": to_dict(config.loader)},
        "provenance": {arm: fact["provenance"] for arm, fact in facts.items()},
        "folder": str(folder),
    }

    save_result(folder, result)
    return result
