"""Whether the images fit into memory, and how fast storage delivers those that are not there."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from dali_pipes.data.manifest import Manifest
from dali_pipes.data.reader import Extent, Reader
from dali_pipes.system.memory import memory_left
from dali_pipes.system.page_cache import evict, resident_share
from dali_pipes.tools.doctor.report import Finding, ok, size, warning

THREADS = (1, 8)
SECONDS = 3.0
FILES = 1000  # at most, for each number of threads
_RESIDENT = 0.01


def not_asked() -> Finding:
    return warning("not checked: no images were named", "data.train=DIR, or data.root=DIR with train/ in it, checks their storage")


def page_cache(manifest: Manifest) -> Finding:
    """The data set's size against the memory that is left, and how much of it is in the page cache."""
    total, left, share = manifest.bytes_in_all, memory_left(), resident_share(files(sample(manifest, FILES)))
    now = "how much of it is there now is unknown (another owner's files)" if share is None else f"{share:.0%} of it is there now"
    sizes = f"{size(total)} in {len(manifest):,} images, {size(left)} of memory left; {now}"
    if total <= left:
        return ok(sizes)
    return warning(
        f"does not fit into memory: {sizes}",
        "every epoch reads from storage: add memory, or check below that its speed is enough",
    )


def storage_speed(manifest: Manifest, images_per_s: float) -> Finding:
    """Reads images that are not in memory for a few seconds, different ones with each number of threads.

    Args:
        images_per_s: the rate that the storage must reach so that training does not wait for it.
    """
    extents = sample(manifest, FILES * len(THREADS))
    if len(extents) < THREADS[-1] * len(THREADS):
        return warning(f"unknown: {len(extents)} images are too few", "name more images")
    rates, rate = [], 0.0
    for number, threads in enumerate(THREADS):
        some = extents[number :: len(THREADS)]
        evict(files(some))
        share = resident_share(files(some))
        if share is None or share > _RESIDENT:
            why = (
                "the kernel does not report whether another owner's files left memory"
                if share is None
                else f"{share:.0%} of them stayed in memory"
            )
            return warning(f"unknown: {why}", "name images that this user owns, on a disk or network (tmpfs is memory)")
        megabytes, rate = read_speed(some, threads)
        rates.append(f"{megabytes:,.0f} MB/s, {rate:,.0f} images/s with {threads} thread{'s' if threads > 1 else ''}")
    if rate >= images_per_s:
        return ok("; ".join(rates))
    return warning(
        f"{'; '.join(rates)}: less than images_per_s={images_per_s:g}",
        "training waits for it whenever images are not in memory: a faster disk, a local copy, or memory that holds them all",
    )


def read_speed(extents: Sequence[Extent], threads: int, seconds: float = SECONDS) -> tuple[float, float]:
    """MB (10**6 bytes) and images per second; ends after `seconds` or with the last image, whichever comes first."""
    reader, start = Reader(), time.monotonic()

    def read(extent: Extent) -> int | None:
        return len(reader.read(extent)) if time.monotonic() - start < seconds else None

    with ThreadPoolExecutor(threads) as pool:
        done = [count for count in pool.map(read, extents) if count is not None]
    elapsed = time.monotonic() - start
    return sum(done) / 1e6 / elapsed, len(done) / elapsed


def sample(manifest: Manifest, count: int) -> list[Extent]:
    """At most `count` images, each once, from anywhere in the data set, in random order; the same ones every time."""
    ids = np.random.default_rng(0).permutation(len(manifest))[:count]
    return list(dict.fromkeys(manifest.extent(int(each)) for each in ids))


def files(extents: Sequence[Extent]) -> list[Path]:
    """The files that hold them."""
    return [Path(extent.file) for extent in extents]
