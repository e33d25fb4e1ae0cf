"""The objects of samples, taken out of the columns in which a manifest has them."""

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from dali_pipes.data.objects import TARGET, Objects
from dali_pipes.data.table.samples import Samples
from dali_pipes.errors import ManifestError


def take_objects(
    samples: Samples, ids: NDArray[Any], names: list[str], classes: int, root: Path | str
) -> Objects:
    """The objects of these samples, in pixels as stored.

    Args:
        names: the names of an object's keypoints.
        classes: how many there are.
        root: the root of the data set, for errors.

    Raises:
        ManifestError: their columns do not belong together, or a label is no class.
    """
    # a box is 4 numbers
    counts = samples[TARGET + "boxes"].lengths(ids) // 4

    # every other column must have as many objects for each image as there are boxes
    def values(name: str, width: int = 1) -> NDArray[Any] | None:
        if TARGET + name not in samples.whole.column_names:
            return None
        if (samples[TARGET + name].lengths(ids) != width * counts).any():
            raise ManifestError(
                f"{root}: the manifest has objects of which {name} are too few or too "
                "many; scan again"
            )
        return samples[TARGET + name].concatenate(ids)

    boxes, labels, points = (
        values("boxes", 4),
        values("box_labels"),
        values("keypoints", 3 * len(names)),
    )

    if boxes is None or labels is None:
        raise ManifestError(f"{root}: the manifest has objects without labels; scan again")

    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise ManifestError(
            f"{root}: the manifest has objects outside its {classes} classes; scan again"
        )

    keypoints = None if points is None else points.reshape(len(labels), len(names), 3)
    return Objects(
        counts, boxes.reshape(-1, 4), labels, values("areas"), values("crowd"), keypoints
    )
