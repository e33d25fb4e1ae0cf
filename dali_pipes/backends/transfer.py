"""Copies batches into PyTorch's memory on a GPU, from host memory or from another library's memory.

Copies run on a stream of their own while the batch before is in use; `hand_over` makes the current
stream wait for them.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from dali_pipes.backends.backend import Decoded
from dali_pipes.system.traces import span

MAX_PENDING_COPIES = 4  # batches of another library that wait until they are copied

T = TypeVar("T")
R = TypeVar("R")
Groups = tuple[torch.Tensor, ...]  # as `Decoded.groups`


def to_gpu(
    batches: Iterator[Decoded],
    device: torch.device,
    finish: Callable[[Decoded], Decoded] = lambda batch: batch,
) -> Iterator[Decoded]:
    """Copies the batches to `device`, and passes them through `finish` there.

    They are ready on the current stream when yielded.
    """
    copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(batch: Decoded) -> Decoded:
        # `finish` runs on this stream too, beside the step that uses the batch before
        with span("transfer"), torch.cuda.stream(copies):
            groups = tuple(copy_to(device, images) for images in batch.groups)
            return finish(replace(batch, groups=groups))

    return run_one_ahead(map(start, batches), lambda started: hand_over(started, copies))


def run_one_ahead(started: Iterator[T], ready: Callable[[T], R]) -> Iterator[R]:
    """Yields `ready` of each one, with the next one started already.

    `ready` is called before the next one is begun. If beginning the next one fails, this one is
    still yielded, and then the error is raised.
    """
    ahead = next(started, None)
    while ahead is not None:
        result = ready(ahead)
        try:
            ahead = next(started, None)
        except Exception:
            yield result
            raise
        yield result


def copy_to(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of host memory on any device; on the CPU the tensor itself.

    The host does not wait, since the copy goes through page-locked memory.
    """
    if device.type == "cpu":
        return tensor
    return (tensor if tensor.is_pinned() else tensor.pin_memory()).to(device, non_blocking=True)


def join_groups(
    views: Groups, counts: Sequence[int], dtype: torch.dtype, copy: bool = False
) -> Groups:
    """The views of each group joined in one tensor.

    A view alone is copied only if `copy` is set or its dtype differs.
    """
    ends = itertools.accumulate(counts)
    parts = [views[end - count : end] for end, count in zip(ends, counts, strict=True)]
    return tuple(
        torch.cat(part).to(dtype) if len(part) > 1 else part[0].to(dtype, copy=copy)
        for part in parts
    )


def hand_over(batch: Decoded, made_on: torch.cuda.Stream) -> Decoded:
    """The batch, ready on the current stream.

    Its memory is not reused before that stream has read it.
    """
    current = torch.cuda.current_stream(batch.groups[0].device)
    current.wait_stream(made_on)
    for images in batch.groups:
        images.record_stream(current)
    return batch


def copy_to_torch_memory(
    batches: Iterator[tuple[Any, Decoded]], dtype: torch.dtype, views: Sequence[int] = (1,)
) -> Iterator[Decoded]:
    """Copies images from another library's memory on this GPU into PyTorch's memory.

    The copy runs on the current stream and casts the images too: one pass over memory, whatever
    their dtype was.

    By DALI's sources (2.2.0 and 2.4.0), its dynamic executor, the default, allocates new memory for
    each batch, and the iterator gives that to PyTorch by DLPack (plugin/pytorch/__init__.py:236 in
    2.4.0, :240 in 2.2.0). The exported tensor is one more owner
    (dali/pipeline/data/dltensor.h:283-296). When it is dropped, its deleter hands the memory to a
    thread (:170-180) that first calls cudaDeviceSynchronize (dltensor.cc, class DLTensorGraveyard,
    whose comment says why).

    So the batches could be delivered as they are. But their memory would be held until all that is
    queued on the whole device by then is done, and PyTorch's allocator could not reuse it. A host
    that runs ahead of the GPU, as a loop of CUDA graphs may, would fill the GPU with one more batch
    for each step. A copy, in contrast, follows the rules of PyTorch's allocator, and DALI's batch
    is kept only until it has been copied. If `MAX_PENDING_COPIES` batches wait for that, the host
    sleeps until the first is copied, which needs nothing from the library that owns it.

    docs/gpu-check.md compares this with not copying, and with two other ways to copy.

    Args:
        batches: each after the owner of its memory; every view is a group of its own.
        dtype: of the copied images.
        views: how many views each group of the copies has.
    """
    being_copied: deque[tuple[Any, Any]] = deque()
    try:
        for owner, batch in batches:
            with span("transfer"):
                # `query` tells without waiting whether a copy has ended
                while being_copied and (
                    len(being_copied) == MAX_PENDING_COPIES or being_copied[0][0].query()
                ):
                    being_copied[0][0].synchronize()
                    being_copied.popleft()
                copy = replace(batch, groups=join_groups(batch.groups, views, dtype, copy=True))

                # blocking: the host sleeps while it waits, and does not spin
                copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
                copied.record(torch.cuda.current_stream(copy.groups[0].device))  # type: ignore[no-untyped-call]
                being_copied.append((copied, (owner, batch)))
            yield copy
    finally:
        # when this function ends, it lets go of the owners' memory: by then all must be copied
        for copied, _ in being_copied:
            copied.synchronize()
