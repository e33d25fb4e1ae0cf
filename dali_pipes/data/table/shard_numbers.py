"""Which samples are in the same file: `Shards` numbers the files of a manifest.

The window shuffle reads a few files at once by these numbers.
"""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dali_pipes.data.table.samples import Samples


class Shards(NamedTuple):
    """The files that samples are in, numbered in the order of their first samples.

    Attributes:
        numbers: (n,) the number of each sample's file.
        names: (S,) paths of the files, relative to the root.
        files: (S,) paths or URLs of the files, with the root.
        bytes: (S,) int64 sizes; 0 for a file that is one image.
        times: (S,) int64, the rest of their versions.
    """

    numbers: NDArray[np.int32]
    names: list[str]
    files: list[str]
    bytes: NDArray[np.int64]
    times: NDArray[np.int64]


def number_shards(samples: Samples, root: Path | str) -> Shards:
    """Numbers the files of all samples.

    Args:
        root: what the paths are relative to.
    """
    coded = samples.column("path").combine_chunks().dictionary_encode()
    numbers = coded.indices.to_numpy()
    names = [os.fsdecode(path) for path in coded.dictionary.to_pylist()]
    files = [os.path.join(root, name) for name in names]

    # the first sample of each file: numbers count up in the order of first use
    firsts = np.searchsorted(np.maximum.accumulate(numbers), np.arange(len(files)))

    return Shards(
        numbers,
        names,
        files,
        *(samples[name].numbers(firsts) for name in ("file_bytes", "mtime_ns")),
    )
