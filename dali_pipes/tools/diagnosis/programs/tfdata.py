"""A tf.data data set and a step as a training program.

`TfDataProgram` runs it as it is, and tries the parallel maps and the prefetch that it lacks.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from dali_pipes.tools.diagnosis.items.profile import ItemProfile
from dali_pipes.tools.diagnosis.measuring.training import Step
from dali_pipes.tools.diagnosis.programs.base import Feed, Fix, TrainingProgram
from dali_pipes.tools.diagnosis.programs.epochs import Epochs
from dali_pipes.tools.diagnosis.programs.tfdata_pipeline import (
    find_faults,
    is_serial,
    read_pipeline,
)
from dali_pipes.tools.diagnosis.verdict.figures import TrainingFigures

_AUTOTUNE = tf.data.AUTOTUNE


class TfDataProgram(TrainingProgram):
    """A tf.data.Dataset and a step. Without a step, a program's own loop trains on its batches."""

    burst = 1
    uses_torch_threads = False

    def __init__(self, dataset: Any, step: Step | None = None):
        self._dataset, self._step = dataset, step
        stages = read_pipeline(dataset)
        self._serial = [stage for stage in stages if is_serial(stage, dataset)]

        # TensorFlow decides how many threads make batches, and changes it while it runs: one core
        # may be all that it uses, so a loader that uses less than half of one waits
        self.workers = 1

        # TensorFlow adds a prefetch at the end by itself, unless the options forbid it
        injects = dataset.options().experimental_optimization.inject_prefetch is not False
        # options are a stage too, which may be the last one
        kinds = [stage.kind for stage in stages if stage.kind != "options"]
        self.in_flight = 2 if injects or kinds[-1:] == ["prefetch"] else 0

        batches = int(dataset.cardinality())
        # cardinality is negative if it is infinite or unknown
        self.epoch = batches if batches >= 0 else None

    @contextmanager
    def feed(self) -> Iterator[Feed]:
        epochs = Epochs(self._dataset, "data set")
        try:
            yield Feed(iter(epochs), lambda: epochs.at_start)
        finally:
            epochs.close()  # its threads may call Python, and have to end before it

    def step(self) -> Step | None:
        return self._step

    def transfer_size(self) -> tuple[int, bool]:
        return 0, True  # TensorFlow copies by itself

    def count(self, batch: Any) -> int:
        first = tf.nest.flatten(batch)[0]
        return int(first.shape[0]) if first.shape.rank else 1

    def concat(self, batches: Sequence[Any]) -> Any:
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *batches)

    def remarks(self) -> list[str]:
        return find_faults(self._dataset)

    def other_workers(self, figures: TrainingFigures, items: ItemProfile | None) -> list[Fix]:
        """Returns parallel maps and a prefetch, where there is none and TensorFlow adds none."""
        fixes = list[Fix]()
        if self._serial:
            names = ", ".join(sorted({str(stage) for stage in self._serial}))
            what = f"{names}: num_parallel_calls=tf.data.AUTOTUNE"
            fixes.append(
                self._with(what, "several elements are made at the same time", _run_in_parallel)
            )

        if not self.in_flight:
            fixes.append(
                self._with(
                    "prefetch(tf.data.AUTOTUNE) at the end", "batches are made ahead", _prefetch
                )
            )

        return fixes

    def fixes(self, verdict: str) -> list[Fix]:
        stages = read_pipeline(self._dataset)
        if not verdict.startswith(("prep-bound", "fetch-bound")) or any(
            stage.kind == "cache" for stage in stages
        ):
            return []
        what = (
            "cache() in front of shuffle() and of all that is random, if what it holds fits in "
            "memory"
        )
        return [Fix(what, "later epochs need nothing of what comes before it")]

    def _with(self, what: str, why: str, change: Callable[[Any], Any]) -> Fix:
        changed = change(self._dataset)
        return Fix(what, why, TfDataProgram(changed, self._step) if changed is not None else None)


def _prefetch(dataset: Any) -> Any:
    return dataset.prefetch(_AUTOTUNE)


def _run_in_parallel(dataset: Any) -> Any:
    """Returns the same pipeline with all its maps in parallel; None if it has a part that cannot be
    built again.
    """
    if not any(is_serial(stage, dataset) for stage in read_pipeline(dataset)):
        return dataset

    # tf.data keeps what a data set was made of in private attributes only
    inputs = dataset._inputs()
    before = _run_in_parallel(inputs[0]) if len(inputs) == 1 else None
    if before is None:
        return None

    # each transformation is applied again, to the changed input
    kind = type(dataset).__name__.strip("_").removeprefix("Parallel")
    match kind:
        case "MapDataset":
            return before.map(dataset._map_func._func, num_parallel_calls=_AUTOTUNE)
        case "InterleaveDataset":
            length = int(dataset._cycle_length)
            return before.interleave(
                dataset._map_func._func, cycle_length=length, num_parallel_calls=_AUTOTUNE
            )
        case "BatchDataset":
            return before.batch(
                int(dataset._batch_size), drop_remainder=bool(dataset._drop_remainder)
            )
        case "ShuffleDataset":
            return before.shuffle(
                int(dataset._buffer_size),
                reshuffle_each_iteration=dataset._reshuffle_each_iteration,
            )
        case "PrefetchDataset":
            return before.prefetch(int(dataset._buffer_size))
        case "RepeatDataset":
            return before.repeat(int(dataset._count))
        case "TakeDataset":
            return before.take(int(dataset._count))
        case "CacheDataset":
            return before.cache()  # a cache in memory of its own; the program's stays as it is
        case "OptionsDataset":
            return before.with_options(dataset.options())
    return None
