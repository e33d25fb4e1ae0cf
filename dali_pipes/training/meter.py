"""Time and CPU time of an epoch of training, without evaluation and saving."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from dali_pipes.backends.base import Batch
from dali_pipes.system.telemetry import cpu_seconds

SUMS = ("images", "loss_sum", "losses", "cpu_s", "fetched_bytes", "retries")  # over all ranks
FETCHING = ("fetch_wait_s", "fetched_bytes", "retries")  # of LoaderStats
MEANS = ("seconds", "wait_s", FETCHING[0])  # of all ranks, which go in step


class Meter:
    """Counts while batches pass through `watch`.

    Args:
        stats: those of the loader.

    Attributes:
        figures: images; loss_sum, over `losses` losses; elapsed seconds, wait_s of them for batches and fetch_wait_s of these for
            shards; cpu_s of the process tree; fetched_bytes and retries.
    """

    def __init__(self, stats: Callable[[], Any]):
        self.figures = dict.fromkeys((*SUMS, *MEANS), 0.0)
        self._stats = stats
        self.start()

    def start(self) -> None:
        """The time since the last `stop` does not count."""
        self._cpu, self._clock, self._fetched = cpu_seconds(), time.monotonic(), self._stats()

    def stop(self) -> None:
        cpu, clock, fetched = self._cpu, self._clock, self._fetched
        self.start()
        self.figures["cpu_s"] += self._cpu - cpu
        self.figures["seconds"] += self._clock - clock
        for name in FETCHING:
            self.figures[name] += getattr(self._fetched, name) - getattr(fetched, name)

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        source = iter(batches)
        self._began = time.monotonic(), self.figures["images"], self.figures["wait_s"], self.figures["losses"], self._stats()
        while True:
            before = time.monotonic()
            batch = next(source, None)
            if batch is None:
                return
            self.figures["wait_s"] += time.monotonic() - before
            self.figures["images"] += len(batch)
            yield batch

    def add_losses(self, losses: list[float]) -> None:
        self.figures["loss_sum"] += sum(losses)
        self.figures["losses"] += len(losses)

    def pace(self) -> tuple[float, float, float, float]:
        """Of this rank, since `watch` began: images and steps a second, shares of the time spent waiting and waiting for shards."""
        clock, images, wait_s, losses, fetched = self._began
        seconds = max(time.monotonic() - clock, 1e-9)
        figures = self.figures
        return (
            (figures["images"] - images) / seconds,
            (figures["losses"] - losses) / seconds,
            (figures["wait_s"] - wait_s) / seconds,
            (self._stats().fetch_wait_s - fetched.fetch_wait_s) / seconds,
        )

    def over_ranks(self, fabric: Any) -> dict[str, float]:
        """The figures of all ranks together."""
        mine = torch.tensor(list(self.figures.values()), dtype=torch.float64, device=fabric.device)
        summed = dict(zip(self.figures, fabric.all_reduce(mine, reduce_op="sum").tolist(), strict=True))
        return summed | {name: summed[name] / fabric.world_size for name in MEANS}

    def load(self, figures: dict[str, float], fabric: Any) -> None:
        """Resumes from the figures of `over_ranks`, on any number of ranks."""
        share = 1.0 if fabric.global_rank == 0 else 0.0
        self.figures |= {name: value if name in MEANS else value * share for name, value in figures.items()}


def rates(figures: dict[str, float]) -> dict[str, float]:
    """The derived figures of all ranks; fractions from 0 to 1."""
    return {
        "loss": figures["loss_sum"] / max(figures["losses"], 1),
        "images_per_s": figures["images"] / max(figures["seconds"], 1e-9),
        "wait_share": figures["wait_s"] / max(figures["seconds"], 1e-9),
        "fetch_wait_share": figures["fetch_wait_s"] / max(figures["seconds"], 1e-9),
        "cpu_s_per_1000_images": figures["cpu_s"] / max(figures["images"], 1) * 1e3,
    }
