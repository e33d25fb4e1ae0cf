"""The area, aspect ratio, place and flips of crops: those of the plan, and of live steps."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_pipes.adapters.from_torch.check import coordinates
from dali_pipes.plan.geometry import Geometry

QUANTITIES = (
    "area",
    "aspect ratio",
    "horizontal position",
    "vertical position",
    "left-right flips",
    "top-bottom flips",
)
_MIN_EXTENT = 3.5  # pixels; in fewer one cannot see where a crop was


def of_geometry(geometry: Geometry, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Returns (N, 6), what `QUANTITIES` names, of the plan's crops.

    Area and position are relative to the image. Crops that are too small to see are NaN.
    """
    scale = geometry.region_size / geometry.resize  # pixels of the image per pixel of the output
    extent = scale * shape
    centre = (geometry.region_start + geometry.crop * scale + extent / 2) / geometry.source

    area = extent.prod(axis=1) / geometry.source.prod(axis=1)
    flips = geometry.flip, geometry.vertical_flip
    found = np.stack(
        [area, extent[:, 1] / extent[:, 0], centre[:, 1], centre[:, 0], *flips], axis=1
    ).astype(np.float64)
    # as `_read_off`, which cannot see such crops
    return np.where(extent.min(axis=1, keepdims=True) < _MIN_EXTENT, np.nan, found)


def of_steps(live: Sequence[Any], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns (N, 6), the same for one draw of the live steps for each of N heights and widths."""
    return coordinates.draw(live, sizes, _read_off)


def _read_off(image: torch.Tensor, height: int, width: int) -> NDArray[np.float64]:
    """Returns (6,), the same of a moved image of coordinates."""
    inside = (image[2] - coordinates.MARK).abs() < 1e-3  # not what is around the image
    (y, rows), (x, columns) = _fit_line(image[0], inside, 0), _fit_line(image[1], inside, 1)
    extent_y, extent_x = abs(rows) * image.shape[1], abs(columns) * image.shape[2]
    if min(extent_y, extent_x) < _MIN_EXTENT:
        return np.full(len(QUANTITIES), np.nan)

    # a coordinate that falls along its axis was flipped
    area = extent_y * extent_x / (height * width)
    return np.array(
        [area, extent_x / extent_y, x / width, y / height, columns < 0, rows < 0], np.float64
    )


def _fit_line(coordinates: torch.Tensor, inside: torch.Tensor, axis: int) -> tuple[float, float]:
    """Returns the coordinate in the middle of an output, and how much it grows per pixel along
    `axis`.

    Both are read off far from the edges, since resizing averages fewer pixels there.
    """
    places = [inside.any(dim=1 - each).nonzero().flatten() for each in (0, 1)]
    along, across = places[axis].tolist(), places[1 - axis].tolist()
    first, last = along[len(along) // 4], along[3 * len(along) // 4]
    line = coordinates.select(1 - axis, across[len(across) // 2])
    growth = float(line[last] - line[first]) / max(1, last - first)
    return float(line[first]) + growth * (coordinates.shape[axis] / 2 - first - 0.5), growth
