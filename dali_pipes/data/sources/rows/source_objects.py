"""Objects of images as a source has them: `SourceObjects`.

tables, shards: object_cells.py ─┐
                                 ├─▶ SourceObjects ─▶ checked_objects.py ─▶ columns
COCO files: coco/objects.py ─────┘        object_faults.py: what is wrong with an object
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dali_pipes.errors import ManifestError


@dataclass(frozen=True, slots=True)
class SourceObjects:
    """The objects of N images, those of each image one after the other; M in all.

    Attributes:
        counts: (N,) int64, how many each image has.
        boxes: (M, 4) float64.
        labels: M class numbers or class names.
        name: how messages call the object with a number below M; None: by its place in its image,
            from 1.
        faults: what is wrong with an object apart from its box, by its number.
        areas: (M,) float64; None: those of the boxes.
        crowd: (M,) bool; None: not known.
        keypoints: (M, 3 K) float64; None: there are none.
        outlines: (M,) JSON text; None: there are none.
        without: what is wrong with parts of an object, which is kept without them.
        annotated: as in `Targets`.
        flipped: as in `Keypoints`; needed if the keypoints are of upright pictures.
    """

    counts: NDArray[np.int64]
    boxes: NDArray[np.float64]
    labels: pa.Array
    name: Callable[[int], str] | None = None
    faults: dict[int, str] = field(default_factory=dict)
    areas: NDArray[np.float64] | None = None
    crowd: NDArray[np.bool_] | None = None
    keypoints: NDArray[np.float64] | None = None
    outlines: list[str] | None = None
    without: dict[int, list[str]] = field(default_factory=dict)
    annotated: str | None = None
    flipped: list[int] = field(default_factory=list)


def refuse_without_objects(source: Path | str, lost: list[str]) -> None:
    """Raises ManifestError if objects were left out; the error has the first reason in `lost`.

    It is called where no object is left, since training would see images without any.
    """
    if lost:
        raise ManifestError(
            f"{source}: none of its objects can be used: {len(lost):,} left out, the first: "
            f"{lost[0]}"
        )
