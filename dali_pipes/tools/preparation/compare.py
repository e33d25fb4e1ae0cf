"""Compares the pixels before and after a preparation, as a network sees them: decoded, cropped and
resized.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_pipes.backends.torch.config import TorchConfig
from dali_pipes.data.manifest import Manifest
from dali_pipes.loader.build import build_loader
from dali_pipes.measure.agreement import difference
from dali_pipes.plan.transforms import Transform
from dali_pipes.tools.preparation.config import PrepareConfig


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
