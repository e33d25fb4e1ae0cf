"""Compares items of the old loader with ours: `compare_items`, and `compare_all_draws`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dali_pipes.adapters.every_epoch.reader import RecordedReader
from dali_pipes.adapters.every_epoch.trace import ItemTrace
from dali_pipes.adapters.from_torch.check.batches import compare_values, refuse_other_forms
from dali_pipes.adapters.from_torch.check.common import random_states_kept
from dali_pipes.adapters.from_torch.check.draws import compare_draws
from dali_pipes.adapters.from_torch.output import call_seeded
from dali_pipes.adapters.from_torch.recorder import get_sample
from dali_pipes.adapters.from_torch.recording.kept import globals_kept
from dali_pipes.adapters.from_torch.recording.light_copy import light_copy
from dali_pipes.adapters.from_torch.recording.reach import copy_data
from dali_pipes.adapters.from_torch.samples import DataSetSamples
from dali_pipes.adapters.from_torch.structure import leaves
from dali_pipes.adapters.items.load import ItemLoader
from dali_pipes.adapters.items.run import seeds_of
from dali_pipes.plan.transforms import Transform


def compare_items(
    loader: ItemLoader,
    reader: RecordedReader,
    output: Any,
    dataset: Any,
    indices: Sequence[Any],
    collate: Any,
) -> str:
    """Compares the first batch of a loader without shuffling with what the old program makes of
    the same items, with the same random numbers: structure, dtypes and shapes; where no transform
    draws, all values and pixels too.

    Returns:
        How far they differ, in words.

    Raises:
        NotConvertibleError: something differs, or pixels by more than rounding.
    """
    count, seed = loader.plan.batch_size, loader.plan.seed
    ids = np.arange(count, dtype=np.int64)
    # before the batch, which runs the program's own objects
    with random_states_kept(dataset), globals_kept(dataset) as kept:
        copied, _ = copy_data(dataset, kept)
        samples = []
        for number, seeds in enumerate(seeds_of(seed, 0, ids)):
            reader.seed(seeds)
            samples.append(get_sample(copied, indices[number]))
        theirs = call_seeded(light_copy(collate), samples, (seed, 0, 0))

    with random_states_kept(dataset), globals_kept(dataset):
        batch: Any = next(iter(loader))
    pictures = [each.cpu() for each in batch.pictures]
    copied = replace(
        output, output=replace(output.output, collate=light_copy(output.output.collate))
    )
    ours = copied(batch._replace(pictures=pictures), (seed, 0, 0))

    old, new = leaves(theirs), leaves(ours)
    refuse_other_forms(old, new)
    if loader.plan.transform.training:
        return f"{count} samples make batches of the same structure"
    return compare_values(old, new, count)


def compare_all_draws(
    trace: ItemTrace,
    transforms: list[Transform],
    live: list[tuple[list[Any], list[Any]]],
) -> str:
    """Compares the distributions of what the old steps draw and of what the plan draws, for
    pictures that were seen.

    Raises:
        NotConvertibleError: they differ by more than chance allows.
    """
    different = {repr(steps): (steps, each) for steps, each in zip(live, transforms, strict=True)}
    training = [each for each in different.values() if each[1].training]
    if not training or not trace.examples:
        return ""
    manifest = DataSetSamples(trace.examples, None).manifest()
    return "".join(
        f"; {compare_draws(steps, manifest, transform, 0, before)}"
        for (steps, before), transform in training
    )
