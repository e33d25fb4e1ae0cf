"""Labels of objects as class numbers, and lists of values for each image as Arrow columns."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.data.labels.classes import number_names
from dali_pipes.data.labels.stored import MAX_CLASSES, distinct_labels
from dali_pipes.errors import ManifestError


def list_column(counts: NDArray[np.int64], values: Any, width: int = 1) -> pa.Array:
    offsets = pa.array(np.append(0, counts.cumsum()) * width, pa.int64())
    return pa.LargeListArray.from_arrays(
        offsets, values if isinstance(values, pa.Array) else pa.array(values)
    )


def number_labels(
    source: Any, labels: pa.Array, classes: list[str] | None = None
) -> tuple[list[str], pa.Array, pa.Array]:
    """Returns class names, the labels of the objects as class numbers, and the label of each image:
    the classes that occur in it.

    Args:
        source: for errors.
        labels: class numbers from 0 or class names, a list for each image.
        classes: the class names if they are known; None: the names that occur, sorted, or the
            numbers from 0 to the highest.
    """
    values, counts = labels.flatten(), labels.value_lengths().to_numpy()

    # numbers are taken as they are, and names are numbered in sorted order
    if pa.types.is_integer(values.type):
        high = pc.max(values).as_py() if len(values) else -1
        if high >= (MAX_CLASSES if classes is None else len(classes)):
            advice = (
                "number the classes from 0, without large gaps"
                if classes is None
                else f"there are {len(classes)} classes"
            )
            raise ManifestError(f"{source}: labels of objects go up to {high}; {advice}")

        classes = number_names(high + 1) if classes is None else classes
        numbers = values.cast(pa.int64())
    else:
        values = pc.utf8_normalize(values, form="NFC")
        classes = sorted(set(values.to_pylist())) if classes is None else classes
        numbers = pc.index_in(values, value_set=pa.array(classes, values.type)).cast(pa.int64())
        if numbers.null_count:
            unknown = values.filter(numbers.is_null())[0].as_py()
            none = f"the label {unknown!r} of an object is none of the {len(classes)} classes"
            raise ManifestError(f"{source}: {none}; add it to them")

    return (
        classes,
        list_column(counts, numbers),
        distinct_labels(counts, numbers.to_numpy(), len(classes)),
    )
