"""The time and CPU time of training, without evaluation and saving.

A `Meter` counts one epoch; `rates` and `summarize` make the figures of an epoch and of the run,
and `sentence` says in words whether the loader or the network set the pace.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from dali_pipes.loader.batch import Batch
from dali_pipes.loader.loader import Loader
from dali_pipes.system.cuda import mark, seconds_between
from dali_pipes.system.provenance import Provenance
from dali_pipes.system.telemetry import cpu_seconds
from dali_pipes.training.tasks.monitor import Monitor

SCHEMA = 4
INPUT_BOUND = 0.1  # of the time; less is lost in the noise of a run
SUMS = ("images", "loss_sum", "losses", "cpu_s", "fetched_bytes", "retries")  # over all ranks
FETCHING = ("fetch_wait_s", "fetched_bytes", "retries")  # of LoaderStats
MEANS = ("seconds", "wait_s", FETCHING[0])  # over the ranks, which pass these seconds together


class Meter:
    """Counts images, time and CPU time while batches pass through `watch`.

    The host launches steps ahead of a GPU, so it may wait for a batch while the GPU still works,
    and nothing is lost. On a GPU a wait therefore counts only for as long as the GPU, too, was
    done with the step before and had no batch.

    Args:
        stats: returns the loader's statistics.
        device: where the steps run.

    Attributes:
        figures: images; loss_sum, over `losses` losses; elapsed seconds, wait_s of them lost to
            waiting for batches; fetch_wait_s in which the loader waited for shards; cpu_s of the
            process tree; fetched_bytes and retries.
    """

    def __init__(self, stats: Callable[[], Any], device: torch.device):
        self.figures = dict.fromkeys((*SUMS, *MEANS), 0.0)
        self._stats = stats
        self._on_gpu = device.type == "cuda"
        # waits that the GPU has not got to: the host's seconds, and the GPU's marks on both sides
        self._pending: deque[tuple[float, torch.cuda.Event, torch.cuda.Event]] = deque()
        self.start()

    def start(self) -> None:
        """Begins to count; the time since the last `stop` is left out."""
        self._cpu, self._clock, self._fetched = cpu_seconds(), time.monotonic(), self._stats()

    def stop(self) -> None:
        """Adds what has passed since `start` to the figures; the GPU has to be done by then, or is
        waited for.
        """
        self._count_waits(all_of_them=True)
        cpu, clock, fetched = self._cpu, self._clock, self._fetched
        self.start()
        self.figures["cpu_s"] += self._cpu - cpu
        self.figures["seconds"] += self._clock - clock
        for name in FETCHING:
            self.figures[name] += getattr(self._fetched, name) - getattr(fetched, name)

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        source = iter(batches)
        # where `pace` counts from: the figures of a resumed epoch include an earlier process
        self._began = (
            time.monotonic(),
            self.figures["images"],
            self.figures["wait_s"],
            self.figures["losses"],
            self._stats(),
        )

        ended = None  # the GPU's mark behind the step before; an epoch begins with an idle GPU
        while True:
            before = time.monotonic()
            batch = next(source, None)
            if batch is None:
                return

            waited = time.monotonic() - before
            if ended:
                self._pending.append((waited, ended, mark()))
            else:
                self.figures["wait_s"] += waited
            self._count_waits()
            self.figures["images"] += len(batch)

            yield batch
            ended = mark() if self._on_gpu else None

    def _count_waits(self, all_of_them: bool = False) -> None:
        while self._pending:
            waited, ended, begun = self._pending[0]
            if all_of_them:
                begun.synchronize()
            elif not begun.query():  # type: ignore[no-untyped-call]
                return

            # the GPU's pause is longer if the host did something else as well, such as saving
            self.figures["wait_s"] += min(waited, seconds_between(ended, begun))
            self._pending.popleft()

    def add_losses(self, losses: list[float]) -> None:
        # counted on their own, since they arrive later than their batches
        self.figures["loss_sum"] += sum(losses)
        self.figures["losses"] += len(losses)

    def pace(self) -> tuple[float, float, float, float]:
        """Returns this rank's pace since `watch` began: images and steps per second, and the shares
        of the time spent waiting for batches and waiting for shards.
        """
        clock, images, wait_s, losses, fetched = self._began
        seconds = max(time.monotonic() - clock, 1e-9)
        figures = self.figures

        return (
            (figures["images"] - images) / seconds,
            (figures["losses"] - losses) / seconds,
            (figures["wait_s"] - wait_s) / seconds,
            min(
                self._stats().fetch_wait_s - fetched.fetch_wait_s,
                figures["wait_s"] - wait_s,
            )
            / seconds,
        )

    def over_ranks(self, fabric: Any) -> dict[str, float]:
        """Returns the figures of all ranks together: sums, and means of the seconds."""
        # one exchange for all figures
        mine = torch.tensor(list(self.figures.values()), dtype=torch.float64, device=fabric.device)
        summed = dict(
            zip(self.figures, fabric.all_reduce(mine, reduce_op="sum").tolist(), strict=True)
        )
        return summed | {name: summed[name] / fabric.world_size for name in MEANS}

    def load(self, figures: dict[str, float], fabric: Any) -> None:
        """Continues from figures of `over_ranks`, on any number of ranks."""
        # rank 0 takes over the sums, since `over_ranks` adds up those of all ranks again
        share = 1.0 if fabric.global_rank == 0 else 0.0
        self.figures |= {
            name: value if name in MEANS else value * share for name, value in figures.items()
        }


def rates(figures: dict[str, float]) -> dict[str, float]:
    """Derives means and rates from the figures of `Meter.over_ranks`; shares are from 0 to 1."""
    # a wait for shards is lost only if the batch was waited for as well
    fetching = min(figures["fetch_wait_s"], figures["wait_s"])

    return {
        "loss": figures["loss_sum"] / max(figures["losses"], 1),
        "images_per_s": figures["images"] / max(figures["seconds"], 1e-9),
        "wait_share": figures["wait_s"] / max(figures["seconds"], 1e-9),
        "fetch_wait_share": fetching / max(figures["seconds"], 1e-9),
        "cpu_s_per_1000_images": figures["cpu_s"] / max(figures["images"], 1) * 1e3,
    }


def measured_of(row: dict[str, Any]) -> dict[str, float]:
    """Returns what an evaluation measured, of a row of the history, without the number of
    images.
    """
    own = {"epoch", "val_images", *rates(dict.fromkeys((*SUMS, *MEANS), 0.0)), *SUMS, *MEANS}
    return {name: value for name, value in row.items() if name not in own}


def summarize(
    history: Sequence[dict[str, Any]],
    monitor: Monitor,
    fabric: Any,
    loader: Loader,
    provenance: Provenance,
) -> dict[str, Any]:
    """Returns the result of a run, as docs/training.md describes it."""
    last, best = history[-1], monitor.best(history)
    evaluated: dict[str, Any] = next((row for row in reversed(history) if "val_images" in row), {})
    figures = {name: sum(row[name] for row in history) for name in (*SUMS, *MEANS)}
    shares = rates(figures)

    return {
        "schema": SCHEMA,
        "fetched_bytes": int(figures["fetched_bytes"]),
        **measured_of(evaluated),
        "val_images": evaluated.get("val_images", 0),
        "loss": last["loss"],
        **(
            {
                f"best_{monitor.name}": monitor.value(best),
                "best_epoch": best["epoch"],
                "monitor": monitor.name,
                "monitor_mode": monitor.mode,
            }
            if best
            else {}
        ),
        "epochs": len(history),
        "images": int(figures["images"]),
        "seconds": figures["seconds"],
        **{
            name: shares[name]
            for name in ("images_per_s", "wait_share", "fetch_wait_share", "cpu_s_per_1000_images")
        },
        "conclusion": sentence(shares, fabric.device.type),
        "ranks": fabric.world_size,
        "device": fabric.device.type,
        "global_batch_size": loader.plan.global_batch_size,
        "bad_samples": [
            {"path": path, "problem": problem} for _, path, problem in loader.bad_samples
        ],
        "provenance": provenance,
    }


def sentence(shares: dict[str, float], device: str) -> str:
    """Says whether the loader or the network set the pace."""
    share, rate = shares["wait_share"], shares["images_per_s"]
    waited = f"{share:.0%} of the training time went into waiting for images"
    at = f"{rate:,.0f} images/s, {shares['cpu_s_per_1000_images']:.1f} CPU-s per 1,000 images"
    shared = (
        "; loader and network share the same cores here, so each slows the other down"
        if device == "cpu"
        else ""
    )

    if shares["fetch_wait_share"] >= INPUT_BOUND:
        waited += (
            f", {shares['fetch_wait_share']:.0%} into waiting for shards from the object store"
        )
        return (
            f"Fetch-bound: {waited} ({at}); a larger sampling.window_gb or cache, or a faster "
            f"network, would help{shared}."
        )

    if share >= INPUT_BOUND:
        return (
            f"Input-bound: {waited} ({at}); a loader that kept up would give "
            f"{rate / max(1 - share, 1e-9):,.0f}{shared}."
        )
    return f"Compute-bound: only {waited} ({at}){shared}."
