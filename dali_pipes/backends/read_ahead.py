"""Threads that read the encoded images of the next batches, without the GIL."""

import itertools
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dali_pipes.data.image_files.headers import describe_os_error
from dali_pipes.data.loose_images import LooseImages
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.reader import Extent, Reader
from dali_pipes.plan.plan import PlannedBatch

T = TypeVar("T")
# the bytes of each image of a batch; an empty array for an image that cannot be read
EncodedImages = list[NDArray[np.uint8]]


class ReadAhead:
    """Reads batches in order, a bounded number of them ahead.

    Args:
        threads: how many read at the same time, each a part of a batch.
        batches: how many are read ahead.

    Attributes:
        failures: a line for each image of the present stream that could not be read, with the
            reason.
    """

    def __init__(self, threads: int, batches: int):
        self._batches, self._count = batches, threads
        self._threads, self._reader = ThreadPoolExecutor(threads, "read_ahead"), Reader()
        self.failures: list[str] = []

    def __call__(
        self, planned: Iterator[PlannedBatch]
    ) -> Iterator[tuple[PlannedBatch, EncodedImages]]:
        """Each batch with the bytes of its images."""
        # a list for each stream: a read that an earlier one has begun may still fail
        failures: list[str] = []
        self.failures = failures
        ahead: deque[tuple[PlannedBatch, list[Future[EncodedImages]]]] = deque()
        try:
            for planned_batch in planned:
                parts = np.array_split(planned_batch.ids, min(self._count, len(planned_batch)))
                reads = [
                    self._threads.submit(self._read, planned_batch.images, part, failures)
                    for part in parts
                ]
                ahead.append((planned_batch, reads))

                # the oldest batch is yielded only when enough others are being read
                if len(ahead) > self._batches:
                    yield _result(*ahead.popleft())
            while ahead:
                yield _result(*ahead.popleft())
        finally:
            for part in itertools.chain.from_iterable(parts for _, parts in ahead):
                part.cancel()

    def _read(
        self, images: Manifest | LooseImages, ids: NDArray[np.int64], failures: list[str]
    ) -> EncodedImages:
        return [self._read_one(images.extent(number), failures) for number in ids.tolist()]

    def _read_one(self, extent: Extent, failures: list[str]) -> NDArray[np.uint8]:
        try:
            return self._reader.read(extent)
        except OSError as error:
            # no exception yet, since earlier batches may still be waiting to be delivered; decoders
            # reject the empty image when its turn comes
            failures.append(f"{extent}: {describe_os_error(error)}")
            return np.empty(0, np.uint8)

    def note_failures(self, batches: Iterator[T]) -> Iterator[T]:
        """The batches; an error among them gets a note for each image that could not be read."""
        try:
            yield from batches
        except Exception as error:
            for failure in self.failures:
                error.add_note(failure)
            raise

    def close(self) -> None:
        """Ends the threads, after the reads in progress."""
        self._threads.shutdown(cancel_futures=True)
        self._reader.close()


def _result(
    planned: PlannedBatch, parts: list[Future[EncodedImages]]
) -> tuple[PlannedBatch, EncodedImages]:
    return planned, [data for part in parts for data in part.result()]
