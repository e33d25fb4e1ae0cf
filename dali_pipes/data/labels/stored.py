"""The form in which a manifest has labels: Arrow's int32 for one class, lists of int32 for any
number of classes, float32 or lists of a fixed length of float32 for numbers to predict.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

# each number up to the highest label becomes a class; a label beyond this is taken for a mistake
MAX_CLASSES = 1_000_000


def task_of(label: pa.DataType) -> str:
    """The task of labels of this type: "classification", "multilabel" or "regression"."""
    if pa.types.is_list(label):
        return "multilabel"
    return "classification" if pa.types.is_integer(label) else "regression"


def distinct_labels(
    counts: NDArray[np.int64], numbers: NDArray[np.int64], classes: int
) -> pa.Array:
    """Labels of several classes each: the distinct ones among an image's numbers, ascending.

    Args:
        counts: (N,) how many numbers each image has.
        numbers: (M,) class numbers, those of each image one after the other.
        classes: how many classes there are.
    """
    # one number for image and class, so that one sort does for all
    pairs = np.unique(np.repeat(np.arange(len(counts)), counts) * max(classes, 1) + numbers)
    image, number = np.divmod(pairs, max(classes, 1))
    ends = np.append(0, np.bincount(image, minlength=len(counts)).cumsum())
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(number, pa.int32()))


def no_labels(images: int) -> pa.Array:
    """An empty list for each image."""
    return pa.array([[]] * images, pa.list_(pa.int32()))
