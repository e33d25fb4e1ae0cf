"""What a data set does for a sample, seen by running it: `trace` returns a `Trace`, or refuses.

Some samples are run under recorders (recording/), twice with true pictures, then with pictures
that are made up, and with cheap noise. In all of these visits the same transforms must be called,
the picture that reaches the first one must be the decoded file, pixel for pixel, and everything
else in the sample must stay the same.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dali_pipes.adapters.from_torch.chains import Chain
from dali_pipes.adapters.from_torch.recorder import Recorder, Trace, name_of
from dali_pipes.adapters.from_torch.recording.kept import Kept
from dali_pipes.adapters.from_torch.recording.made_up import (
    BLANK,
    MADE_UP,
)
from dali_pipes.adapters.from_torch.recording.visit import Supply
from dali_pipes.adapters.from_torch.tracer import TOGETHER, Tracer
from dali_pipes.adapters.transforms.reading import (
    refuse_unless,
)

TRUE_SAMPLES = 8  # samples that are run with their true pictures, spread over the data set


def trace(
    recorder: Recorder,
    indices: Sequence[Any],
    batch_size: int,
    accept: Callable[[list[Chain]], Any] = lambda chains: None,
) -> Trace:
    """Runs samples of a data set, within the recorder's block.

    Args:
        indices: the indices of all samples, of which at most `TRUE_SAMPLES` are run.
        batch_size: samples that the DataLoader asks for at once.
        accept: gets the chains of the first sample, and refuses steps that cannot be carried over,
            before anything else is run.

    Raises:
        NotConvertibleError: the samples cannot be made in the same way.
    """
    places = np.unique(np.linspace(0, len(indices) - 1, TRUE_SAMPLES).round().astype(int)).tolist()
    name = name_of(recorder.dataset)
    tracer = Tracer(recorder, name)
    before = tracer.kept = Kept.of(recorder.copy)
    tracer.find_masks([indices[place] for place in places])

    first = tracer.ask_gray(indices[places[0]])
    tracer.expected = list(zip(first.shown, first.chains, strict=True))
    accept(first.used)
    for place in places:
        tracer.visit_truly(indices[place])
    tracer.refuse_epochs(recorder.dataset)

    # pictures that no data set has show what depends on pixels
    for number, made_up in enumerate((*MADE_UP, *BLANK)):
        tracer.visit_made_up(indices[places[number % len(places)]], made_up)
    exif = tracer.ask_orientation(indices[places[0]])
    for place in places:
        tracer.expect_orientation(tracer.see_true(indices[place]), exif)
    modes = tracer.ask_modes(indices[places[0]])

    # last: in cheap visits a step returns an example of what it returned in a visit before
    tracer.ask_caches([indices[place] for place in places])
    for place in places:
        tracer.visit_cheaply(indices[place])
    together = 1
    if batch_size > 1 and callable(getattr(recorder.copy, "__getitems__", None)):
        tracer.visit_together(indices, batch_size)
        # with masks a visit follows one sample
        files = len(tracer.file_modes)
        together = 1 if recorder.masks else min(batch_size, max(1, TOGETHER // max(1, files)))
    tracer.visit_later([indices[place] for place in places], before)
    tracer.refuse_told_steps(first.used)

    seen = Trace(
        name,
        tracer.expected,
        first.skeleton,
        modes,
        exif,
        tracer.file_modes,
        tracer.events,
        {name for name, _, _ in before.changed()},
        together,
        recorder.masks,
    )
    for index in tracer.others:
        ask_more(recorder, seen, index)
    return seen


def visit_more(
    recorder: Recorder, seen: Trace, indices: Sequence[Any], skeletons: Sequence[Any]
) -> None:
    """Visits further samples with their true pictures, within a recorder's block.

    Args:
        skeletons: what is known of each of these samples without its picture; None: nothing.

    Raises:
        NotConvertibleError: they are made in another way than the others.
    """
    tracer = Tracer(recorder, seen.name)
    tracer.expected = seen.slots
    for index, skeleton in zip(indices, skeletons, strict=True):
        tracer.visit_truly(index)
        true = tracer.see_true(index)
        tracer.expect_orientation(true, seen.exif)
        refuse_unless(
            not any(chain.is_gray for chain in true.used),
            seen.name,
            f"it does not convert sample {index}, a gray file, to RGB, as dali_pipes does",
            'open images with Image.open(path).convert("RGB")',
        )
        if skeleton is not None:
            tracer.refuse_other_values(index, true, skeleton)


def visit_as_large(
    recorder: Recorder,
    seen: Trace,
    indices: Sequence[Any],
    skeletons: Sequence[Any],
    sizes: Sequence[tuple[int, int]],
) -> None:
    """Visits samples with noise as large as their pictures, within a recorder's block.

    Args:
        skeletons: as for `visit_more`.
        sizes: height and width of their pictures.

    Raises:
        NotConvertibleError: they are made in another way than others, such as by code for pictures
            of some sizes, or for places that small ones do not have.
    """
    tracer = Tracer(recorder, seen.name)
    tracer.expected = seen.slots
    for index, skeleton, size in zip(indices, skeletons, sizes, strict=True):
        tracer.visit_as_large(index, skeleton, Supply(size=size, modes=seen.file_modes))


def ask_more(recorder: Recorder, seen: Trace, index: Any) -> None:
    """Asks a sample that is made in another way, such as by another opener, what the first one was
    asked with made-up files, within a recorder's block.

    Raises:
        NotConvertibleError: it treats them in another way.
    """
    tracer = Tracer(recorder, seen.name)
    tracer.expected, tracer.file_modes = seen.slots, seen.file_modes
    tracer.visit_truly(index)
    same = tracer.ask_orientation(index) == seen.exif and tracer.ask_modes(index) == seen.modes
    refuse_unless(
        same,
        seen.name,
        f"sample {index} is opened in another way than others: EXIF tags, or pictures that are "
        "not RGB, are treated otherwise",
        "open all files in the same way",
    )
