"""Makes one view of decoded regions: resizes, crops, flips, augments and normalizes them.

`ViewFinisher` does it for some images of a batch, in whichever thread calls it. The loop over
images is compiled by TorchScript, so that it runs without the interpreter lock.

PyTorch resizes uint8 images in memory format channels_last with vector instructions, as Pillow does
and within one step of its result (aten/src/ATen/native/cpu/UpSampleKernelAVXAntialias.h, made after
Pillow-SIMD).
"""

import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from dali_pipes.backends.common import pixels
from dali_pipes.backends.common.fork_gate import GATE
from dali_pipes.backends.common.functions import Functions
from dali_pipes.backends.common.plain_resize import resize_plain
from dali_pipes.backends.common.whole_image import change_array
from dali_pipes.plan.augment.operations import Codes, Numbers
from dali_pipes.plan.plan import PlannedView
from dali_pipes.plan.transforms import INTERPOLATIONS, Transform
from dali_pipes.plan.whole import WholeSteps
from dali_pipes.plan.whole.base import DrawnStep

_COMPILE_LOCK = threading.Lock()  # TorchScript's compiler is not safe for several threads
Regions = list[torch.Tensor]  # (H, W, C) uint8, one for each image


class ViewFinisher:
    """Makes one view of decoded regions."""

    def __init__(self, transform: Transform):
        self._slots, self._erases, self._mode = (
            transform.augmenter.slots,
            transform.augmenter.erases,
            transform.interpolation,
        )
        self._functions = Functions(transform)
        self._before: WholeSteps = getattr(transform, "before", [])
        self._is_plain = transform.is_plain
        # by the width of a batch, which changes if the transform pads batches
        self._normalization = cache(partial(pixels.normalization, transform))
        # what has no augmentation is normalized in the same compiled function
        self._only_places = bool(self._slots or self._functions)
        self._run = _compile_without_gil(
            _place_all if self._only_places else _place_and_normalize_all
        )

    def __call__(
        self,
        regions: Regions,
        places: torch.Tensor,
        ops: Codes,
        magnitudes: Numbers,
        numbers: NDArray[np.float64],
        erased: torch.Tensor,
        before: list[tuple[DrawnStep, ...]],
        modes: list[str],
        out: torch.Tensor,
    ) -> None:
        """Writes this view of the regions into `out`.

        Args:
            places: (N, 10) the arguments of `_place` for each image.
            before: the steps on each image, whose regions are then whole images; empty: none.
            modes: the interpolation of each image; empty: that of the transform.
            out: (N, C, H, W), which is written.
        """
        modes = modes or [self._mode] * len(regions)
        with GATE:
            if before:
                regions = [
                    change_array(region, drawn, self._before)
                    for region, drawn in zip(regions, before, strict=True)
                ]
            self._finish(regions, places, ops, magnitudes, numbers, erased, modes, out)

    def resize(self, regions: Regions, places: torch.Tensor) -> Regions:
        """The resized regions, for views that differ in their crops only; `as_resized` has their
        places.
        """
        with GATE:
            if self._is_plain:
                return _resize_plain(regions, places)
            resize = _compile_without_gil(_resize_all)
            with _without_profiling():
                resized: Regions = resize(regions, places, self._mode)
            return resized

    def _finish(
        self,
        regions: Regions,
        places: torch.Tensor,
        ops: Codes,
        magnitudes: Numbers,
        numbers: NDArray[np.float64],
        erased: torch.Tensor,
        modes: list[str],
        out: torch.Tensor,
    ) -> None:
        if self._is_plain:
            regions, places = _resize_plain(regions, places), as_resized(places)
        placed = regions, places, list(out.shape[2:]), modes

        constants = self._normalization(out.shape[3])
        with _without_profiling():
            placed_by = self._run(*placed, *(() if self._only_places else (out, *constants)))

        if self._only_places:
            rows = zip(out, placed_by, ops, magnitudes, numbers, strict=True)
            for finished, image, codes, strengths, own in rows:
                pixels.finish_into(
                    finished,
                    image,
                    self._slots,
                    codes,
                    strengths,
                    self._functions,
                    own,
                    constants,
                )
        if self._erases:
            pixels.erase(out, erased)


def arguments_of(
    view: PlannedView, origin: NDArray[np.int64]
) -> tuple[
    torch.Tensor,
    Codes,
    Numbers,
    NDArray[np.float64],
    torch.Tensor,
    list[tuple[DrawnStep, ...]],
    list[str],
]:
    """The arguments of `ViewFinisher.__call__` except the first and the last.

    `origin` is the top left corner of each region in its image, (N, 2).
    """
    geometry, drawn = view.geometry, view.augmentation
    flips = np.stack([geometry.flip, geometry.vertical_flip], axis=1)

    # the columns that `_place` unpacks
    columns = (
        geometry.resize,
        geometry.crop,
        flips,
        geometry.region_start - origin,
        geometry.region_size,
    )
    places = np.concatenate(columns, axis=1, dtype=np.int64)
    before = (
        [tuple(step.take(at) for step in view.before) for at in range(len(geometry))]
        if view.before
        else []
    )
    return (
        torch.from_numpy(places),
        drawn.ops,
        drawn.magnitudes,
        drawn.numbers,
        torch.from_numpy(drawn.erased),
        before,
        [] if view.interpolations is None else [INTERPOLATIONS[at] for at in view.interpolations],
    )


@cache
def _compile_without_gil(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function without the interpreter lock, so that threads need not wait for each other.

    TorchScript does that. PyTorch has deprecated it and has no other way. If it is gone, the
    function itself gives the same images.
    """
    if not hasattr(torch.jit, "script"):
        return function

    with GATE, _COMPILE_LOCK, warnings.catch_warnings():
        # a DeprecationWarning of PyTorch 2.10, a FutureWarning of 2.15
        warnings.filterwarnings("ignore", "`torch.jit")
        return torch.jit.script(function)


def _without_profiling() -> AbstractContextManager[None]:
    """Makes TorchScript run a function as it was compiled.

    By default it observes the first calls and optimizes what it has seen, which takes a while and
    which all other threads wait for. There is nothing to gain, since the function is a loop of a
    few large operators.
    """
    return (
        torch.jit.optimized_execution(False)
        if hasattr(torch.jit, "optimized_execution")
        else nullcontext()
    )


def _place(region: torch.Tensor, place: list[int], shape: list[int], mode: str) -> torch.Tensor:
    """(C, *shape): the region resized, cropped or padded with black, and flipped.

    Args:
        place: ten numbers: height and width to resize to; top and left of the crop; 1 to flip left
            to right, 1 to flip top to bottom; top, left, height and width of the part of the region
            that is resized.
    """
    height, width, top, left = place[:4]
    flip, vertical_flip = place[4:6]
    image = _resize_part(region, place, mode)

    if top >= height or left >= width or top <= -shape[0] or left <= -shape[1]:
        # nothing of it is visible; F.pad takes away no more than there is
        image = image.new_zeros([1, image.size(1), shape[0], shape[1]])
    elif [height, width, top, left] != [shape[0], shape[1], 0, 0]:
        image = F.pad(image, [-left, left + shape[1] - width, -top, top + shape[0] - height])

    if flip == 1:
        image = image.flip([3])
    return (image.flip([2]) if vertical_flip == 1 else image)[0]


def _resize_part(region: torch.Tensor, place: list[int], mode: str) -> torch.Tensor:
    """(1, C, height, width): the part of a region, resized; `place` as for `_place`."""
    height, width = place[:2]
    part_top, part_left, part_height, part_width = place[6:]

    if [region.size(0), region.size(1)] != [part_height, part_width]:
        region = region[
            part_top : part_top + part_height, part_left : part_left + part_width
        ].contiguous()

    # unsqueeze before permute: only then the image is channels_last, which PyTorch resizes faster
    image = region.unsqueeze(0).permute(0, 3, 1, 2)
    if image.size(2) != height or image.size(3) != width:
        image = F.interpolate(image, [height, width], mode=mode, antialias=mode != "nearest-exact")
    return image


def as_resized(places: torch.Tensor) -> torch.Tensor:
    """The places of `_place` in regions that are resized already."""
    places = places.clone()
    places[:, 6:8], places[:, 8:] = 0, places[:, :2]
    return places


def _resize_plain(regions: Regions, places: torch.Tensor) -> Regions:
    """The regions resized without antialiasing."""
    resized = []
    for region, (height, width, *_, top, left, rows, columns) in zip(
        regions, places.tolist(), strict=True
    ):
        part = region[top : top + rows, left : left + columns].numpy()
        resized.append(torch.from_numpy(resize_plain(part, (height, width))))
    return resized


def _resize_all(regions: list[torch.Tensor], places: torch.Tensor, mode: str) -> list[torch.Tensor]:
    listed: list[list[int]] = places.tolist()
    return [
        _resize_part(region, listed[i], mode)[0].permute(1, 2, 0)
        for i, region in enumerate(regions)
    ]


def _place_all(
    regions: list[torch.Tensor], places: torch.Tensor, shape: list[int], modes: list[str]
) -> list[torch.Tensor]:
    listed: list[list[int]] = places.tolist()
    return [_place(region, listed[i], shape, modes[i]) for i, region in enumerate(regions)]


def _place_and_normalize_all(
    regions: list[torch.Tensor],
    places: torch.Tensor,
    shape: list[int],
    modes: list[str],
    out: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
) -> None:
    listed: list[list[int]] = places.tolist()
    for i, region in enumerate(regions):
        pixels.normalize_into(out[i], _place(region, listed[i], shape, modes[i]), mean, scale)
