"""Boxes that a model has found in a batch, in pixels of the images as stored."""

from collections.abc import Iterable

import torch
from torch import Tensor

from dali_pipes.backends.base import Batch, Ragged
from dali_pipes.errors import ConfigError


def boxes_to_image(boxes: Iterable[Tensor] | Ragged, batch: Batch) -> list[Tensor]:
    """Takes back resize, crop, padding, flips and the turn by EXIF: what COCO's evaluation compares
    with its annotations.

    Of annotations of upright pictures (`annotated="upright"`) it takes them back to these, also
    where the batch is as stored.

    A box may reach out of its image, as it may have done in the batch.

    Args:
        boxes: of each image of the batch (M, 4) left, top, right, bottom in pixels of
            `batch.images`, such as a detector's.
        batch: as the loader gave it.

    Returns:
        Of each image (M, 4), on the device and of the type that its boxes had.

    Raises:
        ConfigError: the batch is of a manifest without boxes, or has another number of images; or
            an image was sheared or rotated.
    """
    if "to_image" not in batch.targets:
        raise ConfigError(
            "boxes_to_image needs a batch of a manifest with boxes, as the loader gave it"
        )
    every, matrices = list(boxes), batch.targets["to_image"]
    if len(every) != len(matrices):
        raise ConfigError(
            f"boxes_to_image was given boxes of {len(every)} images, and the batch has "
            f"{len(matrices)}"
        )
    return [_moved(each, matrix) for each, matrix in zip(every, matrices.cpu(), strict=True)]


def _moved(boxes: Tensor, matrix: Tensor) -> Tensor:
    if torch.isnan(matrix).any():
        raise ConfigError(
            "boxes_to_image: an image was sheared, moved or rotated by augment, which no box "
            "can take back"
        )
    matrix = matrix.to(boxes.device)
    corners = boxes.double().reshape(-1, 2, 2) @ matrix[:, :2].T + matrix[:, 2]
    found = torch.cat([corners.amin(dim=1), corners.amax(dim=1)], dim=1)
    return found.to(boxes.dtype) if boxes.is_floating_point() else found
