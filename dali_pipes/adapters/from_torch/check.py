"""Compares a converted loader with the old one.

`compare_batches` compares a batch: its structure, dtypes and shapes; for an evaluation its values
too, which must be equal, pixels up to rounding. `compare_draws` is for training, where no two draws
are equal: distributions of what the live steps draw must be those of the plan. For that an image
whose pixels are their own coordinates goes through the live steps, which shows what they did to it.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import default_collate

from dali_pipes.adapters.from_torch import check_before
from dali_pipes.adapters.from_torch.masks import compare_masks, masks_in
from dali_pipes.adapters.from_torch.output import call_seeded
from dali_pipes.adapters.from_torch.reading import refuse_unless
from dali_pipes.adapters.from_torch.recorder import get_sample
from dali_pipes.adapters.from_torch.recording.untouched import (
    find_generators,
    generator_state,
    globals_kept,
    light_copy,
    set_generator_state,
)
from dali_pipes.adapters.from_torch.structure import first_difference, leaves
from dali_pipes.backends.common.pixels import to_steps
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.data.manifest import Manifest
from dali_pipes.loader.build import build_loader
from dali_pipes.plan.geometry import Geometry
from dali_pipes.plan.philox import Draws
from dali_pipes.plan.plan import Rank
from dali_pipes.plan.transforms import Transform

SAMPLES = 64  # that are compared at most
DRAWS = 8  # per sample
# a larger mean |difference|, in steps of 1/255, has another cause than rounding
MAX_MEAN_DIFFERENCE = 2.0
_QUANTITIES = (
    "area",
    "aspect ratio",
    "horizontal position",
    "vertical position",
    "left-right flips",
    "top-bottom flips",
)
_TOLERANCE = 0.004  # in these quantities, since crops begin at whole pixels
_MIN_EXTENT = 3.5  # pixels; in fewer one cannot see where a crop was
_FALSE_ALARM_RATE = 1e-6  # the probability that equal distributions are found different


@contextmanager
def random_states_kept(holder: Any = None) -> Iterator[None]:
    """Seeds Python's, NumPy's and torch's random numbers on the CPU with 0, and restores their
    states afterwards, and those of the generators that an object and its transforms hold.
    """
    python, numpy = random.getstate(), np.random.get_state()
    held = [(each, generator_state(each)) for each in find_generators(holder)]
    try:
        with torch.random.fork_rng(devices=[]):
            random.seed(0)
            np.random.seed(0)
            torch.default_generator.manual_seed(0)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        for generator, state in held:
            set_generator_state(generator, state)


def choose_samples(count: int) -> NDArray[np.int64]:
    """Returns at most `SAMPLES` ids, spread evenly over all."""
    return np.unique(np.linspace(0, count - 1, min(count, SAMPLES)).round().astype(np.int64))


def compare_batches(conversion: Any, config: LoaderConfig, device: Any) -> str:
    """Compares a batch of the old data set and collate function with ours: structure, dtypes and
    shapes; for an evaluation all values and pixels too.

    Args:
        conversion: a `Conversion`.

    Returns:
        How far the pixels differ, in words.

    Raises:
        NotConvertibleError: something differs, or pixels by more than rounding.
    """
    training = conversion.transform.training
    ids = choose_samples(len(conversion.manifest))[: 4 if training else SAMPLES]
    places = [conversion.indices[at] for at in ids.tolist()]
    # a mixed batch has other labels
    mixes = conversion.batch_transform is not None or conversion.prefetched
    # a copy, since it may count its calls
    collate = default_collate if mixes else light_copy(conversion.collate)
    with random_states_kept(conversion.dataset), globals_kept(conversion.dataset):
        copied = light_copy(conversion.dataset)
        samples = [get_sample(copied, index) for index in places]
        # before the collate function, which may write into them
        masks = masks_in(samples, conversion.output.subset(ids))
        theirs = call_seeded(collate, samples, (0,))

    # the samples in the data set's order, in one batch
    options: dict[str, Any] = {
        "transform": conversion.transform,
        "batch_size": len(ids),
        "shuffle": False,
        "last_batch": "partial",
    }
    manifest = conversion.manifest.subset(ids)
    with build_loader(manifest, config, device=device, rank=Rank(), **options) as loader:
        batch = next(iter(loader)).to("cpu")
    output = conversion.output.subset(ids)
    ours = replace(output, collate=light_copy(output.collate))(batch)

    old, new = leaves(theirs), leaves(ours)
    instead = "compare both loaders' batches, and report it with the data set's transform"
    forms = [[(path, *_form(value)) for path, value in each] for each in (old, new)]
    # a PrefetchLoader changes the dtype of its images later, so only labels are compared here
    if conversion.prefetched:
        forms = [[form for form in each if "torch.int64" in form] for each in forms]
    for one, other in zip(*forms, strict=False):
        refuse_unless(
            one == other, "the data set", f"{_describe(one)}, and ours {_text(other)}", instead
        )
    refuse_unless(
        len(forms[0]) == len(forms[1]),
        "the data set",
        f"its batches have {len(forms[0])} parts, and ours {len(forms[1])}",
        instead,
    )
    if training:
        return f"{len(ids)} samples make batches of the same structure"
    return _compare_values(old, new, conversion, len(ids)) + compare_masks(masks, output, batch)


def _form(value: Any) -> tuple[Any, ...]:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape)
    return (type(value).__name__,)


def _describe(form: tuple[Any, ...]) -> str:
    what = "images are" if len(form) > 2 and len(form[2]) > 2 else f"batch{form[0]} is"
    return f"its {what} {_text(form)}"


def _text(form: tuple[Any, ...]) -> str:
    _, dtype, *shape = form
    return f"{dtype} of {tuple(shape[0][1:])}" if shape else str(dtype)


def _compare_values(
    old: list[tuple[str, Any]], new: list[tuple[str, Any]], conversion: Any, count: int
) -> str:
    transform, instead = conversion.transform, "compare both loaders' batches, and report it"
    worst = (0.0, 0.0)
    for (path, theirs), (_, ours) in zip(old, new, strict=True):
        if not (isinstance(theirs, torch.Tensor) and theirs.ndim > 2):
            same = first_difference(theirs, ours) is None
            what = "labels" if path == "[1]" else f"batch{path}"
            refuse_unless(same, "the data set", f"{what} differ from ours", instead)
            continue

        raw = theirs.float()
        # both in steps of 1/255: the old values are uint8 before a PrefetchLoader; else the range
        # of the old values, however they are normalized, is taken as 255
        if conversion.prefetched:
            difference = (to_steps(ours, transform) - raw).abs()
        else:
            extent = 255.0 if theirs.dtype == torch.uint8 else float(raw.max() - raw.min())
            difference = (ours.float() - raw).abs() * (255.0 / max(extent, 1e-6))
        worst = max(worst, (float(difference.mean()), float(difference.max())))

    found = f"{count} images differ by {worst[0]:.3f} of 255 on average, by {worst[1]:.0f} at most"
    refuse_unless(worst[0] <= MAX_MEAN_DIFFERENCE, "the data set", found, instead)
    return found


def compare_draws(
    live: list[Any],
    manifest: Manifest,
    transform: Transform,
    seed: int,
    before: Sequence[Any] = (),
) -> str:
    """Compares the distributions of what the live steps draw and of what the plan draws, by the
    test of Kolmogorov and Smirnov.

    Args:
        live: the steps that move pixels, in their order.
        before: the steps on the whole image, which come before them.

    Returns:
        The largest distance of two distributions, in words.

    Raises:
        NotConvertibleError: a distance is larger than chance allows.
    """
    ids = choose_samples(len(manifest))
    sizes = manifest.take_sizes(ids, upright=transform.exif == "apply")
    # epochs of a plan are independent draws of the same samples
    each_epoch = [Draws(seed, epoch, ids) for epoch in range(DRAWS)]
    befores = [transform.draw_before(sizes, draws) for draws in each_epoch]
    # the live steps of the crop are called with images as the steps before it leave them
    left = [before[-1].size if before else sizes for before in befores]
    planned = [
        of_geometry(transform.geometry(size, draws), transform.shape)
        for size, draws in zip(left, each_epoch, strict=True)
    ]
    ours, theirs = np.concatenate(planned), of_steps(live, np.concatenate(left))

    distances = dict(zip(_QUANTITIES, map(distance, ours.T, theirs.T), strict=True))
    if before:
        small = check_before.shrink(sizes)
        drawn = [check_before.of_plan(transform, small, draws) for draws in each_epoch]
        seen = _seeded(check_before.of_steps, before, np.tile(small, (DRAWS, 1)))
        names, moved = check_before.QUANTITIES, np.concatenate(drawn)
        distances |= dict(zip(names, map(distance, moved.T, seen.T), strict=True))
    # the critical value for two samples of this size
    allowed = float(np.sqrt(-np.log(_FALSE_ALARM_RATE / 2) / len(ours)))
    name, largest = max(distances.items(), key=lambda each: each[1])

    found = (
        f"over {len(ours)} draws the largest distance of distributions is {largest:.3f}, "
        f"of {name} (chance: up to {allowed:.3f})"
    )
    refuse_unless(
        largest <= allowed,
        "the transform",
        found,
        "compare both loaders' batches, and report it with the transform",
    )
    return found


def of_geometry(geometry: Geometry, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Returns (N, 6), what `_QUANTITIES` names, of the plan's crops.

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
    # as `_measure_draw`, which cannot see such crops
    return np.where(extent.min(axis=1, keepdims=True) < _MIN_EXTENT, np.nan, found)


def of_steps(live: list[Any], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns (N, 6), the same for one draw of the live steps for each of N heights and widths."""
    return _seeded(_measure_draws, live, sizes)


def _seeded(
    measure: Callable[[Sequence[Any], NDArray[np.int64]], NDArray[np.float64]],
    live: Sequence[Any],
    sizes: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Calls `measure` with random states that are set back afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the images are small, so threads would only cost time
    try:
        with random_states_kept():
            return measure(live, sizes)
    finally:
        torch.set_num_threads(threads)


def _measure_draws(live: Sequence[Any], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.stack([_measure_draw(live, height, width) for height, width in sizes.tolist()])


def _measure_draw(live: Sequence[Any], height: int, width: int) -> NDArray[np.float64]:
    """Returns (6,): passes an image of its own coordinates through the steps, and reads them off.

    Its three channels are y, x and 1, the last to tell the image from what is around it.
    """
    exact: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
    places = torch.arange(height, **exact) + 0.5, torch.arange(width, **exact) + 0.5
    down, across = torch.meshgrid(*places, indexing="ij")
    image = torch.stack([down, across, torch.ones_like(down)])

    for step in live:
        image = step(image)

    inside = image[2] > 0.999  # not the black around the image
    (y, rows), (x, columns) = _fit_line(image[0], inside, 0), _fit_line(image[1], inside, 1)
    extent_y, extent_x = abs(rows) * image.shape[1], abs(columns) * image.shape[2]
    if min(extent_y, extent_x) < _MIN_EXTENT:
        return np.full(len(_QUANTITIES), np.nan)

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


def distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Returns the largest difference of two cumulative distributions, from 0 to 1; values within
    `_TOLERANCE` count as equal.
    """
    one, other = (np.sort(each[~np.isnan(each)]) for each in (one, other))
    if not (len(one) and len(other)):
        return 0.0

    def above(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
        """Returns how far the share of `a` up to a value exceeds that of `b` up to a bit more."""
        return float(
            (
                np.arange(1, len(a) + 1) / len(a)
                - np.searchsorted(b, a + _TOLERANCE, "right") / len(b)
            ).max()
        )

    return max(above(one, other), above(other, one), 0.0)
