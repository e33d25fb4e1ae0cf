"""Some validation images with what the network says of them, for the page of a run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dali_pipes.data.manifest import Manifest
from dali_pipes.loader.build import build_loader
from dali_pipes.plan.plan import Rank
from dali_pipes.plan.sampling import Sequential
from dali_pipes.system.files import replacing
from dali_pipes.training.config import TrainConfig
from dali_pipes.training.tasks.supervised import Supervised

EXAMPLES = "examples"
_SHOWN = 48


@torch.no_grad()
def save_examples(
    config: TrainConfig, task: Supervised, val: Manifest, fabric: Any, folder: Path
) -> None:
    """Writes pictures, and what the network says of each, into a folder of the run.

    Args:
        task: on the device of `fabric`.
        folder: the run's.
    """
    count = min(_SHOWN, len(val))
    ids = np.sort(np.random.default_rng(config.seed).choice(len(val), count, replace=False))
    shown, rows = val.subset(ids), list[dict[str, Any]]()
    (folder / EXAMPLES).mkdir(exist_ok=True)

    task.eval()
    with build_loader(
        shown,
        config.loader,
        transform=config.eval_transform,
        batch_size=min(config.eval_batch_size, count),
        sampling=Sequential(),
        last_batch="partial",
        rank=Rank(0, 1),
        on_bad_sample=config.on_bad_sample,
        max_bad_fraction=1.0,
        device=fabric.device,
    ) as loader:
        for batch in loader:
            with fabric.autocast():
                described = task.describe(batch, val.classes)
            for image, sample, row in zip(
                _to_pixels(batch.images, config), batch.ids.tolist(), described, strict=True
            ):
                file = f"{EXAMPLES}/{len(rows)}.webp"
                Image.fromarray(image).save(folder / file, quality=90)
                rows.append({"picture": file, "name": shown.name(sample), **row})

    with replacing(folder / f"{EXAMPLES}.json") as aside:
        aside.write_text(json.dumps(rows, indent=1))


def _to_pixels(images: Tensor, config: TrainConfig) -> np.ndarray:
    """Returns normalized images (N, C, H, W) as they look, (N, H, W, 3) uint8."""
    transform = config.eval_transform
    mean, std = (
        torch.tensor(each, dtype=torch.float32, device=images.device).view(1, -1, 1, 1)
        for each in (transform.mean, transform.std)
    )
    pixels = ((images.float() * std + mean) * 255).round().clamp(0, 255).byte()
    return pixels.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).contiguous().cpu().numpy()
