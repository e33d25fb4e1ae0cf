"""What a pipeline of tf.data consists of, and what is wrong with it.

`read_pipeline` lists the transformations of a data set; `find_faults` says which of them would be
faster, or right, another way. TensorFlow parallelizes maps without state and adds a prefetch at the
end by itself, so neither is called a fault where it does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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

    It follows the longest of several inputs, such as those of zip.
    """
    inputs = [read_pipeline(input_) for input_ in dataset._inputs()]
    return [*max(inputs, key=len, default=[]), _read_stage(dataset)]


def find_faults(dataset: Any) -> list[str]:
    """Returns what is wrong with the order of a pipeline, or left to chance, in words, each with
    what to do instead.
    """
    # options are a stage of tf.data as well, which may be the last one and changes no element
    stages = [stage for stage in read_pipeline(dataset) if stage.kind != "options"]
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
        if is_serial(stage, dataset):
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
    # what comes before an earlier cache comes before the last one as well
    last = max((place for place, stage in enumerate(stages) if stage.kind == "cache"), default=0)

    for stage in stages[:last]:
        # a shuffle behind the cache gives each epoch another order again
        if stage.kind == "shuffle" and not any(later.kind == "shuffle" for later in stages[last:]):
            yield (
                "wrong: cache() comes after shuffle(), so every epoch has the order of the "
                "first; shuffle after the cache"
            )

        if stage.is_random:
            repeats = "so every epoch repeats those of the first"
            yield (
                f"wrong: cache() comes after {stage}, which draws random numbers, {repeats}; "
                "put what is random after the cache"
            )

        if stage.kind == "repeat":
            yield (
                "wrong: cache() comes after repeat(), so it holds each element once for each "
                "epoch; cache before repeat()"
            )


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
        for nodes in (graph.node, *(definition.node_def for definition in graph.library.function))
        for node in nodes
    ]


def is_serial(stage: Stage, dataset: Any) -> bool:
    """Whether it makes one element at a time, and TensorFlow cannot change that, since its function
    has a state.
    """
    allowed = dataset.options().experimental_optimization.map_parallelization is not False
    if stage.is_parallel or stage.kind not in ("map", "interleave"):
        return False
    return stage.kind == "interleave" or stage.is_random or stage.has_python or not allowed
