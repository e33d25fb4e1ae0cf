"""Do the arms deliver the same samples and the same pixels? `python -m dali_pipes.benchmark.agreement` with a job on stdin."""

from typing import Any

import numpy as np
import torch

from dali_pipes.benchmark.work import Work, answer, from_plain
from dali_pipes.config import DaliNativeConfig, LoaderConfig, SyntheticConfig, Transform


def follows_plan(config: LoaderConfig) -> bool:
    """Whether an arm's pixels can be compared; constant batches and DALI's own reader are outside the plan."""
    return not isinstance(config, (DaliNativeConfig, SyntheticConfig))


def agreement(job: dict[str, Any]) -> dict[str, Any]:
    """Compares the first images of every arm with those of the first one.

    Returns:
        |difference| in steps of 1/255 of the pixel range: max, mean and p99 over all arms (the largest of each) and for each arm;
        same_ids; images compared; the reference arm.
    """
    work = Work.from_plain(job["work"])
    loaders = {name: from_plain(config) for name, config in job["loaders"].items()}
    reference, *others = loaders
    ids, pixels = _first_images(work, loaders[reference], job["images"])
    arms = {}
    for name in others:
        other_ids, other_pixels = _first_images(work, loaders[name], job["images"])
        difference = (other_pixels - pixels).abs_().numpy()
        arms[name] = {
            "max": float(difference.max()),
            "mean": float(difference.mean(dtype=np.float64)),
            "p99": float(np.percentile(difference, 99)),
            "same_ids": torch.equal(ids, other_ids),
        }
    worst = {key: max((arm[key] for arm in arms.values()), default=0.0) for key in ("max", "mean", "p99")}
    same = all(arm["same_ids"] for arm in arms.values())
    return {**worst, "same_ids": same, "images": len(ids), "reference": reference, "arms": arms}


def _first_images(work: Work, config: LoaderConfig, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids, images = [], []
    with work.loader(config) as loader:
        for batch in loader:
            ids.append(batch.ids.cpu())
            images.append(to_steps(batch.images.cpu(), work.transform))
            if sum(map(len, ids)) >= count:
                break
    return torch.cat(ids)[:count], torch.cat(images)[:count]


def to_steps(images: torch.Tensor, transform: Transform) -> torch.Tensor:
    """float32 pixels from 0 to 255, normalization undone."""
    if transform.dtype == "uint8":
        return images.float()
    mean, std = (torch.tensor(value).mul(255).reshape(3, 1, 1) for value in (transform.mean, transform.std))
    return images.float() * std + mean


if __name__ == "__main__":
    answer(agreement)
