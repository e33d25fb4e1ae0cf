"""Takes the boxes that a model found in a batch back to pixels of the images as stored."""

from collections.abc import Iterable

import torch
from torch import Tensor

from dali_pipes.errors import ConfigError
from dali_pipes.loader.batch import Batch, Ragged


def boxes_to_image(boxes: Iterable[Tensor] | Ragged, batch: Batch) -> list[Tensor]:
    """Undoes resize, crop, padding, flips and the turn by EXIF for the boxes of a batch, so that
    COCO's evaluation can compare them with its annotations.

    If the annotations were made on upright pictures (`annotated="upright"`), the boxes come back in
    pixels of the upright pictures, also where the batch has the images as stored. A box may reach
    beyond its image, if it did so in the batch.

    Args:
        boxes: (M, 4) for each image of the batch: left, top, right, bottom in pixels of
            `batch.images`, as a detector finds them.
        batch: as the loader delivered it.

    Returns:
        (M, 4) for each image, on the device of its boxes; in their dtype if that is a floating
        point type, else in float64.

    Raises:
        ConfigError: the batch comes from a manifest without boxes, or has another number of images;
            or augmentation has sheared, moved or rotated an image.
    """
    if "to_image" not in batch.targets:
        raise ConfigError(
            "boxes_to_image needs a batch of a manifest with boxes, as the loader gave it"
        )

    boxes_of_images, matrices = list(boxes), batch.targets["to_image"]
    if len(boxes_of_images) != len(matrices):
        raise ConfigError(
            f"boxes_to_image was given boxes of {len(boxes_of_images)} images, and the batch has "
            f"{len(matrices)}"
        )

    # one copy to the CPU for all matrices: each is checked for NaN there
    return [
        _move_boxes(boxes, matrix)
        for boxes, matrix in zip(boxes_of_images, matrices.cpu(), strict=True)
    ]


def _move_boxes(boxes: Tensor, matrix: Tensor) -> Tensor:
    if torch.isnan(matrix).any():  # such a step has no inverse that takes a box to a box
        raise ConfigError(
            "boxes_to_image: an image was sheared, moved or rotated by augment, which no box "
            "can take back"
        )

    # two corners of each box; a flip or a turn changes which of them is the left or top one
    matrix = matrix.to(boxes.device)
    corners = boxes.double().reshape(-1, 2, 2) @ matrix[:, :2].T + matrix[:, 2]
    sides = torch.cat([corners.amin(dim=1), corners.amax(dim=1)], dim=1)
    return sides.to(boxes.dtype) if boxes.is_floating_point() else sides
