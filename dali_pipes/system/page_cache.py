"""Drops files from the page cache, and measures how much of them is in it.

Measurements of storage do so: a file in the page cache is read without its disk.
"""

import ctypes
import math
import mmap
import os
import random
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

_libc = ctypes.CDLL(None, use_errno=True)


def evict(paths: Iterable[Path], seconds: float = math.inf) -> None:
    """Asks the kernel to drop the files' pages (posix_fadvise, DONTNEED), which it may not do.
    Shards are dropped whole.

    Args:
        seconds: after which no further file is dropped. The order is random, so that those of a
            million files that are dropped lie among all of them.
    """
    end = time.monotonic() + seconds
    files = list(set(paths))
    random.Random(0).shuffle(files)
    for path in files:
        if time.monotonic() > end:
            return
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)  # pages that are not written yet cannot be dropped
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def spread(paths: Sequence[Path], most: int) -> Sequence[Path]:
    """At most so many of the files, evenly spread over all of them."""
    return paths[:: -(-len(paths) // most)] if paths else paths


def resident_share(paths: Iterable[Path]) -> float | None:
    """The share of the files' pages that are in memory (mincore), from 0 to 1; None if the kernel
    does not say.

    Since Linux 5.2 only users who own a file or may write to it get the truth; to others it reports
    all pages as present.
    """
    resident = pages = 0
    for path in set(paths):
        if path.stat().st_uid != os.geteuid() and not os.access(path, os.W_OK):
            return None

        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                continue
            states = _mincore(file.fileno(), size)
        if states is None:
            return None

        # the lowest bit of each byte says it; the others are reserved: mincore(2)
        resident += int((np.frombuffer(states, np.uint8) & 1).sum())
        pages += len(states)
    return resident / pages if pages else None


def _mincore(file: int, size: int) -> bytes | None:
    # a private mapping is writable, which ctypes needs to find its address; no page of it is
    # touched
    with mmap.mmap(file, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as mapping:
        states = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        first = ctypes.c_ubyte.from_buffer(mapping)
        try:
            failed = _libc.mincore(
                ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), states
            )
        finally:
            del first  # otherwise the mapping cannot be closed
    return None if failed else bytes(states)
