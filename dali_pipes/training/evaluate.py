"""Top-1, top-5 and loss over a whole validation set; every image counts once, on any number of
ranks.

`validate` builds a loader for one evaluation; `evaluate` takes the batches of any loader.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dali_pipes.backends.base import Batch
from dali_pipes.data.manifest import Manifest
from dali_pipes.loader.build import build_loader
from dali_pipes.plan.plan import Rank
from dali_pipes.training.config import TrainConfig
from dali_pipes.training.supervision import Heartbeat


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores of a network, as fractions from 0 to 1, and the mean loss.

    top5 counts the true class among the five most likely, or among all if there are fewer.
    """

    top1: float
    top5: float
    loss: float
    images: int


def validate(
    config: TrainConfig, model: nn.Module, val: Manifest, fabric: Any, heartbeat: Heartbeat
) -> Evaluation:
    """Evaluates all validation images, with a loader that exists only for this evaluation."""
    with build_loader(
        val,
        config.loader,
        transform=config.eval_transform,
        batch_size=config.eval_batch_size,
        rank=Rank(fabric.global_rank, fabric.world_size),
        on_bad_sample=config.on_bad_sample,
        max_bad_fraction=config.max_bad_fraction,
        device=fabric.device,
    ) as loader:
        return evaluate(model, heartbeat.watch(loader), fabric)


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Batch], fabric: Any) -> Evaluation:
    """Evaluates one epoch of a loader; its ranks together deliver every image once
    (`last_batch="partial"`).

    The ranks may have different numbers of batches: nothing is exchanged before the end, so `model`
    is not the one wrapped by DDP.
    """
    was_training = model.training
    model.eval()
    # on the device, so that no batch waits for its sums
    totals = torch.zeros(4, dtype=torch.float64, device=fabric.device)

    for batch in batches:
        with fabric.autocast():
            scores = model(batch.images.float())
        totals += counts(scores.float(), batch.labels)
    model.train(was_training)

    # sums, since the ranks have different numbers of images
    top1, top5, loss, images = fabric.all_reduce(totals, reduce_op="sum").tolist()
    return Evaluation(top1 / images, top5 / images, loss / images, int(images))


def counts(scores: Tensor, labels: Tensor) -> Tensor:
    """Returns (4,) float64 on the device: top-1 hits, top-5 hits, summed loss, images."""
    best = scores.topk(min(5, scores.shape[1]), dim=1).indices == labels[:, None]
    loss = cross_entropy(scores, labels, reduction="sum")
    return torch.stack(
        [
            best[:, 0].sum().double(),
            best.any(dim=1).sum().double(),
            loss.double(),
            # new_tensor would wait for the GPU
            loss.new_full((), len(labels), dtype=torch.float64),
        ]
    )
