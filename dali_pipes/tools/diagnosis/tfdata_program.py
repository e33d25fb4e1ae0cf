"""A tf.data data set and a step as a training program.

`read_pipeline` lists the transformations of a data set; `find_faults` says which of them would be
faster, or right, another way; `TfDataProgram` tries what can be tried. TensorFlow parallelizes maps
without state and adds a prefetch at the end by itself, so neither is called a fault where it does.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from dali_pipes.tools.diagnosis.dataloader_program import Epochs
from dali_pipes.tools.diagnosis.items import ItemProfile
from dali_pipes.tools.diagnosis.probes import Feed, Fix, TrainingProgram
from dali_pipes.tools.diagnosis.span import Step
from dali_pipes.tools.diagnosis.verdict import TrainingFigures

_AUTOTUNE = tf.data.AUTOTUNE
_PYTHON = ("PyFunc", "EagerPyFunc", "PyFuncStateless")


@dataclass(frozen=True, slots=True)
class Stage:
    """One transformation of a pipeline.

    Attributes:
        kind: "map", "cache", "shuffle", "batch", "prefetch", "repeat", "interleave" and so on; for
            a source, its class.
        name: the name of the function that it calls; "" if it calls none.
        is_parallel: whether several elements are made at a time, as the program says.
        is_random: whether its function draws other numbers each time.
        has_python: whether its function calls Python.
        is_fixed: whether it is a shuffle() that gives each epoch the same order.
    """

    kind: str
    name: str = ""
    is_parallel: bool = False
    is_random: bool = False
    has_python: bool = False
    is_fixed: bool = False

    def __str__(self) -> str:
        return f"{self.kind}({self.name})"


def read_pipeline(dataset: Any) -> list[Stage]:
    """Returns the transformations of a tf.data.Dataset, from source to end.

    Of several inputs, such as zip's, the longest is followed.
    """
    inputs = [read_pipeline(each) for each in dataset._inputs()]
    return [*max(inputs, key=len, default=[]), _read_stage(dataset)]


def find_faults(dataset: Any) -> list[str]:
    """Returns what is wrong with the order of a pipeline, or left to chance, in words, each with
    what to do instead.
    """
    stages = [each for each in read_pipeline(dataset) if each.kind != "options"]
    options = dataset.options().experimental_optimization
    faults = [*_wrong_caches(stages)]

    kinds = [stage.kind for stage in stages]
    if "shuffle" in kinds and "batch" in kinds[: kinds.index("shuffle")]:
        faults.append(
            "wrong: shuffle() comes after batch(), so batches of always the same elements are "
            "shuffled; shuffle first"
        )
    if any(stage.is_fixed for stage in stages):
        faults.append(
            "wrong: shuffle(reshuffle_each_iteration=False) gives every epoch the same order"
        )

    for stage in stages:
        if _is_serial(stage, dataset):
            faults.append(
                f"{stage} makes one element at a time; give it num_parallel_calls=tf.data.AUTOTUNE"
            )
        if stage.has_python:
            faults.append(
                f"{stage} calls Python, of which one thread runs at a time; use TensorFlow's "
                "own operations"
            )

    if kinds[-1] != "prefetch" and options.inject_prefetch is False:
        why = "and its options keep TensorFlow from adding one"
        faults.append(
            f"the pipeline ends without prefetch(), {why}; end with prefetch(tf.data.AUTOTUNE)"
        )
    return faults


def _wrong_caches(stages: Sequence[Stage]) -> Iterator[str]:
    """Yields what comes before the last cache although it differs, or should differ, from epoch to
    epoch.
    """
    last = max((place for place, each in enumerate(stages) if each.kind == "cache"), default=0)

    for each in stages[:last]:
        # a shuffle behind the cache gives each epoch another order again
        if each.kind == "shuffle" and not any(later.kind == "shuffle" for later in stages[last:]):
            yield (
                "wrong: cache() comes after shuffle(), so every epoch has the order of the "
                "first; shuffle after the cache"
            )

        if each.is_random:
            repeats = "so every epoch repeats those of the first"
            yield (
                f"wrong: cache() comes after {each}, which draws random numbers, {repeats}; "
                "put what is random after the cache"
            )

        if each.kind == "repeat":
            yield (
                "wrong: cache() comes after repeat(), so it holds each element once for each "
                "epoch; cache before repeat()"
            )


class TfDataProgram(TrainingProgram):
    """A tf.data.Dataset and a step. Without a step, a program's own loop trains on its batches."""

    burst = 1
    uses_torch_threads = False

    def __init__(self, dataset: Any, step: Step | None = None):
        self._dataset, self._step = dataset, step
        stages = read_pipeline(dataset)
        self._serial = [stage for stage in stages if _is_serial(stage, dataset)]
        # TensorFlow decides how many threads make batches, and changes it while it runs: one core
        # may be all that it uses, so a loader that uses less than half of one waits
        self.workers = 1
        injects = dataset.options().experimental_optimization.inject_prefetch is not False
        self.in_flight = 2 if injects or stages[-1].kind == "prefetch" else 0
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

    def other_workers(self, found: TrainingFigures, items: ItemProfile | None) -> list[Fix]:
        """Returns parallel maps and a prefetch, where there is none and TensorFlow adds none."""
        fixes = list[Fix]()
        if self._serial:
            names = ", ".join(sorted({str(each) for each in self._serial}))
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


def _read_stage(dataset: Any) -> Stage:
    # such as _ParallelMapDataset and ShuffleDatasetV2
    kind = type(dataset).__name__.strip("_").replace("Dataset", "").replace("V2", "")
    is_parallel = kind.startswith("Parallel")
    kind = kind.removeprefix("Parallel").lower()

    function = getattr(dataset, "_map_func", None)
    name = getattr(getattr(function, "_func", None), "__name__", "") if function is not None else ""
    nodes = _nodes(function.function) if function is not None else []
    state = bool(function.function.captured_inputs) if function is not None else False

    # a stateless operation draws new numbers only if its seed comes from outside the function
    draws = [
        node
        for node in nodes
        if node.startswith("Random") or (node.startswith("StatelessRandom") and state)
    ]

    return Stage(
        kind=kind,
        name=name,
        is_parallel=is_parallel,
        is_random=bool(draws),
        has_python=any(node in _PYTHON for node in nodes),
        is_fixed=kind == "shuffle" and getattr(dataset, "_reshuffle_each_iteration", None) is False,
    )


def _nodes(function: Any) -> list[str]:
    """Returns the types of all operations of a function, and of the functions that it calls."""
    graph = function.graph.as_graph_def()
    return [
        node.op
        for nodes in (graph.node, *(each.node_def for each in graph.library.function))
        for node in nodes
    ]


def _is_serial(stage: Stage, dataset: Any) -> bool:
    """Whether it makes one element at a time, and TensorFlow cannot change that, since its function
    has a state.
    """
    allowed = dataset.options().experimental_optimization.map_parallelization is not False
    if stage.is_parallel or stage.kind not in ("map", "interleave"):
        return False
    return stage.kind == "interleave" or stage.is_random or stage.has_python or not allowed


def _prefetch(dataset: Any) -> Any:
    return dataset.prefetch(_AUTOTUNE)


def _run_in_parallel(dataset: Any) -> Any:
    """Returns the same pipeline with all its maps in parallel; None if it has a part that cannot be
    built again.
    """
    if not any(_is_serial(each, dataset) for each in read_pipeline(dataset)):
        return dataset

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
