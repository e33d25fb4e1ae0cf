"""The figures that the rules read: medians over the rounds, and what the other programs on the
machine take from each part.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from dali_pipes.system.cpus import affinity_cores
from dali_pipes.tools.diagnosis.measuring.span import Round, Span

MIN_OTHERS = 0.2  # cores busy with other programs; less is this machine's own work


@dataclass(frozen=True, slots=True)
class OneOffFigures:
    """Measurements that are made once; some only on a GPU, and None otherwise.

    Attributes:
        larger_gain: images/s in batches four times as large, over those in the usual ones.
        cold_rate: images/s from files that are not in the page cache.
        data_fits: whether the page cache has room for all images.
        device_busy: share of the step in which the GPU works.
        syncs: how often a step waits for the GPU.
        transfer_share: share of a step of training that copying its batch from the CPU would take.
        decodes_on_gpu: whether the loader decodes there, so that its CPU threads are idle while it
            works.
        is_fetched: whether images come over the network, out of an object store.
        item_waits: share of an item's time in which it neither computes nor waits for a core.
        fewer_gain: factor on images/s of the whole with the best of the smaller numbers of workers
            that were tried.
        more_gain: the same with more workers than now.
        is_serial: whether the loader has no workers at all.
        works_beside: whether anything of the loader works while the step runs. Otherwise they
            alternate, and it can't be the loader that slows down the step.
        starts_anew: whether each epoch starts the loader's worker processes anew.
        one_thread_gain: beside other programs, images/s of the model on one thread over those on as
            many as it has.
        one_thread_freed: the factor on the pace of the model on one thread if the other programs
            ended.
        one_thread_larger_gain: images/s on one thread in batches four times as large, over those in
            the usual ones.
    """

    larger_gain: float | None = None
    cold_rate: float | None = None
    data_fits: bool = True
    device_busy: float | None = None
    syncs: int | None = None
    transfer_share: float | None = None
    decodes_on_gpu: bool = False
    is_fetched: bool = False
    item_waits: float | None = None
    fewer_gain: float | None = None
    more_gain: float | None = None
    is_serial: bool = False
    works_beside: bool = True
    starts_anew: bool = True
    one_thread_gain: float | None = None
    one_thread_freed: float | None = None
    one_thread_larger_gain: float | None = None


@dataclass(frozen=True, slots=True)
class TrainingFigures:
    """Inputs of the rules: rates in images/s, factors, the rest shares from 0 to 1.

    Attributes:
        model, loader, together: images/s of these parts.
        wait_share, start_share: shares of the time of training that go into next(), and into
            starting epochs.
        overlap: pace of training over that of the slower of model and loader.
        contention: share of the model's own pace that its steps lose in training.
        loader_cores: cores that the loader keeps busy alone.
        busy: share of our cores that is busy in training.
        others: cores busy with other programs in training.
        loader_freed, model_freed: factor on the pace of each if the other programs ended.
        blocked: share of the model's step in which its thread neither runs nor waits for a core;
            None: unknown.
        straggling: share of the time beyond three times the usual duration of a burst.
        throttled, model_throttled: share of the time in which a CPU quota keeps our cores from
            running, in training and for the model alone.
        memory_stall: share of the time of training in which something waits for memory.
        alloc_retries: how often PyTorch had to free GPU memory to find room.
    """

    model: float
    loader: float
    together: float
    wait_share: float
    start_share: float
    overlap: float
    contention: float
    loader_cores: float
    busy: float
    others: float
    loader_freed: float
    model_freed: float
    blocked: float | None
    straggling: float
    throttled: float
    model_throttled: float
    memory_stall: float
    alloc_retries: int

    @property
    def prep_stall(self) -> float:
        """The share of the model's own pace that is lost to the loader, with files in memory."""
        return max(0.0, 1 - self.together / self.model)

    @property
    def loader_sets_pace(self) -> bool:
        """Whether the loader would be the slower part if there were no other programs."""
        return self.loader * self.loader_freed < self.model * self.model_freed

    @property
    def step_share(self) -> float:
        """The share of the time of training that the steps take."""
        return max(0.0, 1 - self.wait_share - self.start_share)


def median_figures(
    rounds: Sequence[Round], workers: int, burst: int, one_off: OneOffFigures | None = None
) -> TrainingFigures:
    """Returns the medians over the rounds."""

    def of(read: Callable[[Span], float], *parts: str) -> float:
        return median(read(getattr(one, part)) for one in rounds for part in parts)

    rates = {part: of(lambda span: span.rate, part) for part in ("steps", "loader", "together")}
    rates["model"] = rates.pop("steps")

    # Beside other programs the threads of a step wait for each other, in no run queue. Without
    # those programs it is at least as fast as on one thread, which waits for no other.
    model_freed = of(
        lambda span: freed(span, min(torch.get_num_threads(), affinity_cores())), "model"
    )
    if one_off and one_off.one_thread_gain and one_off.one_thread_freed:
        model_freed = max(model_freed, one_off.one_thread_gain * one_off.one_thread_freed)

    blocked = [
        one.model.blocked_s / one.model.seconds for one in rounds if one.model.blocked_s is not None
    ]
    return TrainingFigures(
        **rates,
        wait_share=of(lambda span: span.wait_share, "together"),
        start_share=of(lambda span: span.start_share, "together"),
        overlap=rates["together"] / min(rates["model"], rates["loader"]),
        contention=median(max(0.0, 1 - one.model.step_s / one.together.step_s) for one in rounds),
        loader_cores=of(lambda span: span.cores, "loader"),
        busy=of(lambda span: span.busy, "together"),
        others=of(_others, "together"),
        loader_freed=of(lambda span: freed(span, max(workers, 1)), "loader"),
        model_freed=model_freed,
        blocked=max(0.0, median(blocked)) if blocked else None,
        straggling=of(lambda span: straggling(span, burst), "loader", "together"),
        throttled=of(_throttled, "together"),
        model_throttled=of(_throttled, "model"),
        memory_stall=of(lambda span: span.memory_stall or 0.0, "together"),
        alloc_retries=sum(one.together.alloc_retries for one in rounds),
    )


def freed(span: Span, actors: int) -> float:
    """Returns the factor on the pace if other programs ended, never less than 1: at most what our
    processes stood in the run queue for.

    Args:
        actors: threads or processes that share the work; an actor that sleeps gains nothing from a
            free core.
    """
    others = _others(span)
    if others < MIN_OTHERS:
        return 1.0

    # three bounds: the time in run queues, the cores that this work could still use, and the cores
    # that the other programs use
    queued = min(span.queued_s / (actors * span.seconds), 0.99)
    # our cores over those that the other programs leave us
    room = affinity_cores() / max(affinity_cores() - others, 0.05)
    return max(1.0, min(1 / (1 - queued), affinity_cores() / max(span.cores, 0.01), room))


def straggling(span: Span, burst: int) -> float:
    """Returns the share of the time beyond three times the usual duration of a burst.

    Worker processes deliver in bursts of one batch each, so whole bursts are compared.
    """
    waits = [wait for wait in span.waits_s if wait is not None]
    bursts = [
        sum(waits[start : start + burst]) for start in range(0, len(waits) - burst + 1, burst)
    ]
    # the usual duration is a median, which needs a few of them
    if len(bursts) < 3:
        return 0.0

    usual = median(bursts)
    return sum(burst - usual for burst in bursts if burst > 3 * usual) / span.seconds


def _others(span: Span) -> float:
    """Returns how many cores other programs keep busy."""
    return max(0.0, span.busy * affinity_cores() - span.cores)


def _throttled(span: Span) -> float:
    """Returns a share of the time of all cores, since each of them is throttled separately."""
    return (span.throttled_s or 0.0) / span.seconds / affinity_cores()
