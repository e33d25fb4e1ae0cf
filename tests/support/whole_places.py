"""Where pixels of whole images come from: in the plan's draws, and in those of live steps.

Three pixels of a small image tell what was done to it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_pipes.plan.draws import Draws
from dali_pipes.plan.geometry import Int
from dali_pipes.plan.steps.whole import DrawnStep
from dali_pipes.plan.transforms import Transform

_MARK = 0.7  # no color that a step fills with
_POINTS = ((0.3, 0.3), (0.4, 0.7), (0.75, 0.45))  # y and x, as shares of height and width
Float = NDArray[np.float64]


def of_plan(transform: Transform, sizes: Int, draws: Draws) -> Float:
    """(N, 6) where y and x of each of `_POINTS` come from, as shares of height and width.

    Pixels from outside the image are NaN.
    """
    drawn = transform.draw_before(sizes, draws)
    return np.concatenate([_trace(point, drawn, sizes) for point in _POINTS], axis=1)


def _trace(point: tuple[float, float], drawn: Sequence[DrawnStep], sizes: Int) -> Float:
    """(N, 2) where the pixel at `point` of the result comes from, y before x."""
    y, x = (np.floor(drawn[-1].size * point) + 0.5).T
    inside = np.ones(len(sizes), bool)

    for step in drawn[::-1]:
        if step.kind == "function":
            continue  # left out of both: it is the same code
        moved: Float = np.stack([y, x])
        if step.kind in ("resize", "plain_resize"):
            moved = moved * (step.source / step.size).T
        elif step.kind == "pad":
            moved = moved - step.numbers[:, [1, 0]].T
            if step.padding_mode == "constant":
                inside &= ((moved >= 0) & (moved < step.source.T)).all(axis=0)
            moved = _repeat(moved, step.source.T, step.padding_mode)
        else:
            a, b, c, d, e, f, g, h = step.numbers.T
            depth = g * x + h * y + 1
            moved = np.stack([d * x + e * y + f, a * x + b * y + c]) / depth
            inside &= ~step.happens | ((moved >= 0) & (moved < step.source.T)).all(axis=0)
            if step.interpolation == "nearest":
                # the nearest pixel's own coordinates; a flip, a right angle or a shift by whole
                # pixels takes each pixel to another one
                across, along = np.abs([a, e]), np.abs([b, d])
                is_exact = ((across == 1) & (along == 0)).all(axis=0)
                is_exact |= ((across == 0) & (along == 1)).all(axis=0)
                moved = np.where(is_exact, moved, np.floor(moved) + 0.5)
        y, x = np.where(step.happens, moved, [y, x])

    return np.where(inside, [y, x] / sizes.T, np.nan).T


def _repeat(places: Float, sides: Int, padding_mode: str) -> Float:
    """Where pixels come from whose places are counted from the corner of an image, and may be
    outside of it.
    """
    if padding_mode == "constant":
        return places
    if padding_mode == "edge":
        return places.clip(0.5, sides - 0.5)
    # mirrored about the middle of the outermost pixels, or about the image's edges
    start, length = (0.5, np.maximum(sides - 1, 1)) if padding_mode == "reflect" else (0.0, sides)
    turned = np.mod(places - start, 2 * length)
    return start + np.minimum(turned, 2 * length - turned)


def of_steps(live: Sequence[Any], sizes: Int) -> Float:
    """(N, 6) the same for one draw of the live steps for each size."""
    return np.stack([_read_off(live, height, width) for height, width in sizes.tolist()])


def _read_off(live: Sequence[Any], height: int, width: int) -> Float:
    """(6,) the same, of an image whose three channels are y, x and `_MARK`, the last to tell the
    image from what is around it.
    """
    down, across = torch.meshgrid(
        torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij"
    )
    image = torch.stack([down, across, torch.full_like(down, _MARK)])
    for step in live:
        image = step(image)

    rows, columns = image.shape[1:]
    pixels = [image[:, int(rows * y), int(columns * x)].tolist() for y, x in _POINTS]
    return np.array(
        [
            value / side if abs(mark - _MARK) < 1e-3 else np.nan
            for *place, mark in pixels
            for value, side in zip(place, (height, width), strict=True)
        ]
    )
