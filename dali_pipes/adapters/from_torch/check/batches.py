"""Compares a batch of the old data set and collate function with ours: `compare_batches`."""

from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import default_collate

from dali_pipes.adapters.from_torch.check.common import SAMPLES, choose_samples, random_states_kept
from dali_pipes.adapters.from_torch.masks import compare_masks, masks_in
from dali_pipes.adapters.from_torch.output import call_seeded
from dali_pipes.adapters.from_torch.recorder import get_sample
from dali_pipes.adapters.from_torch.recording.kept import globals_kept
from dali_pipes.adapters.from_torch.recording.light_copy import light_copy
from dali_pipes.adapters.from_torch.recording.reach import copy_data
from dali_pipes.adapters.from_torch.structure import first_difference, leaves
from dali_pipes.adapters.transforms.reading import refuse_unless
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.pixels.tensors import to_steps
from dali_pipes.loader.build import build_loader
from dali_pipes.plan.plan import Rank
from dali_pipes.plan.transforms import Transform

# a larger mean |difference|, in steps of 1/255, has another cause than rounding
MAX_MEAN_DIFFERENCE = 2.0
_INSTEAD = "compare both loaders' batches, and report it with the data set's transform"


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
    with random_states_kept(conversion.dataset), globals_kept(conversion.dataset) as kept:
        copied, _ = copy_data(conversion.dataset, kept)
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
    refuse_other_forms(old, new, labels_only=conversion.prefetched)
    if training:
        return f"{len(ids)} samples make batches of the same structure"
    raw = conversion.transform if conversion.prefetched else None
    return compare_values(old, new, len(ids), raw) + compare_masks(masks, output, batch)


Leaves = list[tuple[str, Any]]


def refuse_other_forms(old: Leaves, new: Leaves, *, labels_only: bool = False) -> None:
    """Refuses batches of other structures, dtypes or shapes.

    Args:
        labels_only: whether only int64 is compared: a PrefetchLoader changes its images later.
    """
    forms = [[(path, *_form(value)) for path, value in each] for each in (old, new)]
    if labels_only:
        forms = [[form for form in each if "torch.int64" in form] for each in forms]
    for one, other in zip(*forms, strict=False):
        refuse_unless(
            one == other, "the data set", f"{_describe(one)}, and ours {_text(other)}", _INSTEAD
        )
    refuse_unless(
        len(forms[0]) == len(forms[1]),
        "the data set",
        f"its batches have {len(forms[0])} parts, and ours {len(forms[1])}",
        _INSTEAD,
    )


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


def compare_values(old: Leaves, new: Leaves, count: int, transform: Transform | None = None) -> str:
    """Compares values, and pixels within rounding.

    Args:
        count: of the images.
        transform: ours, where the old values are bytes and not normalized; None: they are as ours.

    Returns:
        How far the pixels differ, in words.
    """
    worst = (0.0, 0.0)
    for (path, theirs), (_, ours) in zip(old, new, strict=True):
        if not (isinstance(theirs, torch.Tensor) and theirs.ndim > 2):
            same = first_difference(theirs, ours) is None
            what = "labels" if path == "[1]" else f"batch{path}"
            refuse_unless(same, "the data set", f"{what} differ from ours", _INSTEAD)
            continue

        raw = theirs.float()
        # both in steps of 1/255: the old values are uint8 before a PrefetchLoader; else the range
        # of the old values, however they are normalized, is taken as 255
        if transform is not None:
            difference = (to_steps(ours, transform) - raw).abs()
        else:
            extent = 255.0 if theirs.dtype == torch.uint8 else float(raw.max() - raw.min())
            difference = (ours.float() - raw).abs() * (255.0 / max(extent, 1e-6))
        worst = max(worst, (float(difference.mean()), float(difference.max())))

    found = f"{count} images differ by {worst[0]:.3f} of 255 on average, by {worst[1]:.0f} at most"
    refuse_unless(worst[0] <= MAX_MEAN_DIFFERENCE, "the data set", found, _INSTEAD)
    return found
