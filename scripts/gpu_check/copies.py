"""Measures three ways from DALI's memory into PyTorch's: images/s, CPU time and GPU memory of each.

PYTHONPATH=scripts python -m gpu_check.copies data.train=/my/images batch_size=256 \\
    transform.dtype=fp16 transform.memory_format=channels_last
PYTHONPATH=scripts python -m gpu_check.copies data.train=/my/images batches=4     # do all run

Each way is a function that yields batches. `exported` is how the package does it; the others exist
here only. `copies` checks that all of them deliver the same, and then measures each way in windows,
in rounds of random order.
"""

import contextlib
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from nvidia.dali import Pipeline, backend
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy
from nvidia.dali.plugin.pytorch.torch_utils import feed_ndarray, to_torch_type

from dali_pipes.backends.base import DecodedBatch
from dali_pipes.backends.common.pixels import TORCH_DTYPES
from dali_pipes.backends.dali.backend import DaliBackend, shut_down, to_batch
from dali_pipes.cli.hydra import run
from dali_pipes.data.images import open_images
from dali_pipes.errors import ConfigError
from dali_pipes.measure.consumers import Touch
from dali_pipes.plan.plan import Plan, PlannedBatch
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.telemetry import MIB, cpu_seconds
from dali_pipes.tools.preview.run import PreviewConfig

SECONDS, WARM_UP = 0.5, 4  # duration of a window, and batches before it
ALL_SECONDS = 14.0  # for as many rounds as fit, at least one
AGREED = 2  # batches of each way that are compared
LATE_CYCLES = 60_000_000  # 30 ms at 2 GHz
Found = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """The work of all ways: a plan, which each way carries out from its beginning."""

    plan: Plan
    transform: Transform
    backend: DaliBackend
    device: torch.device

    def rows(self) -> Iterator[PlannedBatch]:
        return self.plan.iter_from()


def exported(work: Work) -> Iterator[DecodedBatch]:
    """Dynamic executor, DLPack, then `copy_to_torch_memory`: what the loader does."""
    return (batch for _, batch in work.backend.stream(work.rows()))


def copied_by_the_iterator(work: Work) -> Iterator[DecodedBatch]:
    """`exec_dynamic=False`: DALI's iterator makes the copies, in the current stream's order."""
    with _running(work.backend.pipeline(work.rows(), exec_dynamic=False)) as pipeline:
        for (output,) in DALIGenericIterator(
            [pipeline], ["images", "ids"], last_batch_policy=LastBatchPolicy.PARTIAL
        ):
            yield _finished(work, output["images"], output["ids"])


def copied_by_hand(work: Work) -> Iterator[DecodedBatch]:
    """Dynamic executor without DLPack: `share_outputs`, `feed_ndarray` and `release_outputs`.

    All three are on the current stream.
    """
    with _running(work.backend.pipeline(work.rows())) as pipeline:
        pipeline.schedule_run()
        while True:
            stream = torch.cuda.current_stream(work.device) if work.device.type == "cuda" else None
            outputs = pipeline.share_outputs(cuda_stream=stream)
            images, ids = (_copied(output.as_tensor(), work.device, stream) for output in outputs)

            pipeline.release_outputs()
            pipeline.schedule_run()

            yield _finished(work, images, ids)


WAYS: dict[str, Callable[[Work], Iterator[DecodedBatch]]] = {
    "exported by DLPack, then copied": exported,
    "copied by the iterator": copied_by_the_iterator,
    "copied by feed_ndarray": copied_by_hand,
}
# GPU cycles that a consumer waits after each batch; the late one only on a GPU, which the host runs
# ahead of
CONSUMERS = {"reads": 0, "reads, 30 ms late": LATE_CYCLES}


def copies(config: PreviewConfig) -> Found:
    """Compares and measures all ways.

    Returns:
        rounds: how many there were.
        agreement: for each way same_ids and max_difference, against the first way, in the pixels of
            the first batches.
        consumers: by consumer and way: images_per_s (median), _low, _high, cpu_s_per_1000_images
            (median), and device_mib, by which the use of the GPU's memory grew at most (None
            without a GPU).
    """
    work = _work(config)
    agreement = _agreement(work)
    consumers = CONSUMERS if work.device.type == "cuda" else {"reads": 0}
    tasks = [(consumer, way) for consumer in consumers for way in WAYS]

    windows: list[Found] = []
    start, rounds, choice = time.monotonic(), 0, random.Random(0)
    # another round begins only if one as long as the mean of those before it fits
    while rounds == 0 or (
        config.batches is None and (time.monotonic() - start) * (rounds + 1) / rounds < ALL_SECONDS
    ):
        for consumer, way in choice.sample(tasks, len(tasks)):
            figures = _window(work, WAYS[way], consumers[consumer], config.batches)
            windows.append({"consumer": consumer, "way": way, **figures})
        rounds += 1

    by_consumer = {
        each: {way: _over_rounds(windows, each, way) for way in WAYS} for each in consumers
    }
    return {"rounds": rounds, "agreement": agreement, "consumers": by_consumer}


def _work(config: PreviewConfig) -> Work:
    if type(config.loader).__name__ != "DaliConfig":
        raise ConfigError(
            "these are ways out of DALI's pipeline; use loader=dali or loader=dali_cpu"
        )

    on_gpu = torch.cuda.is_available() and config.loader.device != "cpu"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

    manifest = open_images(config.data, config.split)
    plan = Plan(manifest, config.transform, config.batch_size, seed=config.seed, last_batch="pad")

    backend = DaliBackend(
        manifest, config.transform, config.loader.on_cores(), config.batch_size, device
    )
    return Work(plan, config.transform, backend, device)


@contextlib.contextmanager
def _running(pipeline: Pipeline) -> Iterator[Pipeline]:
    try:
        yield pipeline
    finally:
        shut_down(pipeline)


def _finished(work: Work, images: torch.Tensor, ids: torch.Tensor) -> DecodedBatch:
    """Makes a batch, with the cast that `exported` makes while it copies."""
    batch = to_batch([images], ids, work.transform)
    return replace(batch, images=batch.images.to(TORCH_DTYPES[work.transform.dtype]))


def _copied(tensor: Any, device: torch.device, stream: Any) -> torch.Tensor:
    return feed_ndarray(
        tensor,
        torch.empty(tensor.shape(), dtype=to_torch_type[tensor.dtype], device=device),
        cuda_stream=stream,
    )


@contextlib.contextmanager
def _batches(
    work: Work, way: Callable[[Work], Iterator[DecodedBatch]]
) -> Iterator[Iterator[DecodedBatch]]:
    """Yields a way's batches from the plan's beginning, and frees everything at the end."""
    batches = way(work)
    try:
        yield batches
    finally:
        batches.close()  # type: ignore[attr-defined]
        work.backend.close()


def _agreement(work: Work) -> Found:
    """Compares the first batches of each way with those of the first way.

    This also runs each way once, so that its first window is no slower than the others.
    """
    found: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for name, way in WAYS.items():
        with _batches(work, way) as batches:
            found[name] = [
                (batch.images.float().cpu(), batch.ids.cpu())
                for batch in (next(batches) for _ in range(AGREED))
            ]

    first = next(iter(found.values()))
    return {
        name: {
            "same_ids": all(
                torch.equal(one[1], other[1]) for one, other in zip(first, each, strict=True)
            ),
            "max_difference": max(
                float((one[0] - other[0]).abs().max())
                for one, other in zip(first, each, strict=True)
            ),
        }
        for name, each in found.items()
    }


def _window(
    work: Work, way: Callable[[Work], Iterator[DecodedBatch]], late: int, batches_wanted: int | None
) -> Found:
    before, touch, images = _device_bytes(work.device, emptied=True), Touch(), 0

    with _batches(work, way) as batches:

        def step() -> int:
            batch = next(batches)
            touch(batch)
            # the GPU is busy this long, so the host has the next batch before this one was read
            if late:
                torch.cuda._sleep(late)  # type: ignore[no-untyped-call]
            return len(batch)

        for _ in range(WARM_UP):
            step()
        touch.finish()

        cpu, start, steps = cpu_seconds(), time.monotonic(), 0
        while steps < batches_wanted if batches_wanted else time.monotonic() - start < SECONDS:
            images, steps = images + step(), steps + 1
        # asked before anything is given back; the pools keep what they once took
        used = _device_bytes(work.device)
        touch.finish()

        seconds = time.monotonic() - start
        return {
            "images_per_s": images / seconds,
            "cpu_s_per_1000_images": (cpu_seconds() - cpu) / images * 1e3,
            "device_mib": None if used is None or before is None else (used - before) / MIB,
        }


def _device_bytes(device: torch.device, emptied: bool = False) -> int | None:
    """The bytes in use on the GPU, by all processes; None for the CPU.

    Args:
        emptied: PyTorch and DALI first give back what they only keep.
    """
    if device.type == "cpu":
        return None

    if emptied:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        backend.ReleaseUnusedMemory()  # type: ignore[attr-defined]

    free, total = torch.cuda.mem_get_info(device)
    return total - free


def _over_rounds(windows: list[Found], consumer: str, way: str) -> Found:
    mine = [each for each in windows if (each["consumer"], each["way"]) == (consumer, way)]

    rates, used = (
        [each["images_per_s"] for each in mine],
        [each["device_mib"] for each in mine if each["device_mib"] is not None],
    )
    return {
        "images_per_s": statistics.median(rates),
        "images_per_s_low": min(rates),
        "images_per_s_high": max(rates),
        "cpu_s_per_1000_images": statistics.median(each["cpu_s_per_1000_images"] for each in mine),
        "device_mib": max(used, default=None),
    }


def main() -> None:
    run("preview", lambda config: print(json.dumps(copies(config))), __doc__ or "")


if __name__ == "__main__":
    main()
