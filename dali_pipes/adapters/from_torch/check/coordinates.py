"""What live steps do to an image, seen by an image whose pixels are their own coordinates."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_pipes.adapters.from_torch.check.common import random_states_kept

MARK = 0.7  # no color that a step fills with
# reads off a moved image of coordinates, whose height and width were these, what was done to it
ReadOff = Callable[[torch.Tensor, int, int], NDArray[np.float64]]


def draw(live: Sequence[Any], sizes: NDArray[np.int64], read_off: ReadOff) -> NDArray[np.float64]:
    """Returns a row of what is read off for one draw of the live steps for each height and width.

    Random states are set back afterwards.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the images are small, so threads would only cost time
    try:
        with random_states_kept():
            rows = [
                read_off(_move(live, height, width), height, width)
                for height, width in sizes.tolist()
            ]
    finally:
        torch.set_num_threads(threads)
    return np.stack(rows)


def _move(live: Sequence[Any], height: int, width: int) -> torch.Tensor:
    """An image after the steps, whose three channels were y, x and `MARK`, the last to tell the
    image from what is around it.
    """
    exact: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
    places = torch.arange(height, **exact) + 0.5, torch.arange(width, **exact) + 0.5
    down, across = torch.meshgrid(*places, indexing="ij")
    image = torch.stack([down, across, torch.full_like(down, MARK)])

    for step in live:
        image = step(image)
    return image
