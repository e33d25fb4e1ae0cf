"""The central crop, with which image classifiers are evaluated."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import check_if_given, check_pixels
from dali_pipes.options import option
from dali_pipes.plan.geometry import Geometry, center_crop
from dali_pipes.plan.philox import Draws
from dali_pipes.plan.transforms.base import Transform
from dali_pipes.plan.transforms.center_crop import refuse_larger_crop


@dataclass(kw_only=True, slots=True)
class EvalTransform(Transform):
    """The shorter side resized, then a central crop: torchvision's Resize(resize) and
    CenterCrop(size).

    Resize((h, w)) without a crop is size=(h, w) and resize=(h, w). What the crop has outside the
    image is black.

    Attributes:
        resize: length of the shorter side before the crop, or (height, width), in pixels; None: as
            stored.
        pad_if_needed: whether a crop that is larger than every resized image is meant; otherwise it
            is refused.
    """

    resize: Any = option(256, check_if_given, check_pixels, 1, "(height, width)")
    pad_if_needed: bool = False

    def __post_init__(self) -> None:
        Transform.__post_init__(self)
        if not self.pad_if_needed:
            refuse_larger_crop(self, self.resize, self.shape)

    training: ClassVar[bool] = False

    def geometry(self, source: NDArray[np.int64], draws: Draws) -> Geometry:
        return center_crop(source, self.resize, self.shape, np.zeros((2, len(source)), bool))
