"""How batches get into PyTorch's memory on a GPU, from the host's or from another library's."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dali_pipes.batch import Batch

MOST_KEPT = 4  # of another library's batches

Arrays = tuple[torch.Tensor, ...]  # images, labels, ids, and what else `finish` takes, which stays on the CPU


def to_gpu(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Finished batches, on `device`, ready on the current stream when yielded."""
    arrays = ((batch.images, batch.labels, batch.ids) for batch in batches)
    return finish_on_gpu(arrays, device, lambda images: images)


def finish_on_gpu(batches: Iterator[Arrays], device: torch.device, finish: Callable[..., torch.Tensor]) -> Iterator[Batch]:
    """The batches on `device`, their images passed through `finish` there, ready on the current stream when yielded.

    One batch is fetched ahead. An error while fetching it is raised only after the batch before it has been delivered.
    """
    copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(batch: Arrays) -> Batch:
        with torch.cuda.stream(copies):
            images, labels, ids = (
                (tensor if tensor.is_pinned() else tensor.pin_memory()).to(device, non_blocking=True) for tensor in batch[:3]
            )
            return Batch(finish(images, *batch[3:]), labels, ids)

    def hand_over(batch: Batch) -> Batch:
        current = torch.cuda.current_stream(device)
        current.wait_stream(copies)
        for tensor in (batch.images, batch.labels, batch.ids):
            tensor.record_stream(current)
        return batch

    def fetch() -> Batch | None:
        batch = next(batches, None)
        return start(batch) if batch else None

    ahead = fetch()
    while ahead:
        ready = hand_over(ahead)
        try:
            ahead = fetch()
        except Exception:
            yield ready
            raise
        yield ready


def taken_over(batches: Iterator[tuple[Any, Batch]], dtype: torch.dtype) -> Iterator[Batch]:
    """Batches made of another library's memory on this GPU, copied into PyTorch's on the current stream.

    The copy casts the images: one pass over memory, whatever their dtype was.

    DALI may write the next batch into memory as soon as nobody refers to it any more, though kernels that read it still wait in a
    stream, and PyTorch's `record_stream` does nothing for memory that is not its own. So the originals are kept until they have
    been copied, and to the copies PyTorch's own rules apply. A host that runs so far ahead of the GPU that `MOST_KEPT` wait to be
    copied, as a loop of CUDA graphs may, sleeps until the first of them is, or they would fill the GPU's memory.

    Args:
        batches: with what owns that memory.
        dtype: of the copied images.
    """
    being_copied: deque[tuple[Any, Any]] = deque()
    try:
        for owner, batch in batches:
            while being_copied and (len(being_copied) == MOST_KEPT or being_copied[0][0].query()):
                being_copied[0][0].synchronize()
                being_copied.popleft()
            copy = Batch(batch.images.to(dtype, copy=True), batch.labels, batch.ids.clone())
            copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            copied.record(torch.cuda.current_stream(copy.images.device))  # type: ignore[no-untyped-call]
            being_copied.append((copied, (owner, batch)))
            yield copy
    finally:
        for copied, _ in being_copied:
            copied.synchronize()
