"""Writes one view of images that are decoded one by one into a batch."""

import numpy as np
import torch

from dali_pipes.backends.common import pillow, pixels
from dali_pipes.backends.common.functions import Functions
from dali_pipes.plan.plan import PlannedView
from dali_pipes.plan.transforms import Transform


class ViewWriter:
    """One view of a batch's images, written into `out`, (N, C, H, W)."""

    def __init__(
        self, transform: Transform, functions: Functions, planned: PlannedView, out: torch.Tensor
    ):
        self._transform, self._functions = transform, functions
        self._planned, self._out = planned, out
        self._slots, self._pixels = (
            transform.augmenter.slots,
            np.empty((*planned.shape, transform.channels), np.uint8),
        )
        self._normalization = pixels.normalization(transform, planned.shape[1])

    def decode_request(self, at: int) -> pillow.View:
        """What to make of image `at`."""
        planned = self._planned
        return pillow.View(
            self._transform,
            planned.geometry.take(at),
            planned.shape,
            tuple(step.take(at) for step in planned.before),
            None if planned.interpolations is None else int(planned.interpolations[at]),
        )

    def write(self, at: int, decoded: np.ndarray) -> None:
        """Finishes what was decoded of image `at`: (height, width, C) uint8, or float32 from 0 to
        255 of a wide image.
        """
        # a copy: the decoded image may have negative strides, which from_numpy refuses
        if decoded.dtype == np.uint8:
            self._pixels[:] = decoded
            values = self._pixels
        else:
            values = decoded.copy()
        image, drawn = torch.from_numpy(values).permute(2, 0, 1), self._planned.augmentation
        pixels.finish_into(
            self._out[at],
            image,
            self._slots,
            drawn.ops[at],
            drawn.magnitudes[at],
            self._functions,
            drawn.numbers[at],
            self._normalization,
        )
