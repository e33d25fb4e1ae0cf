"""From figures to a verdict: a closed list of causes, each with its rule and with the share of the
time that it costs.

rounds of spans + OneOffFigures
-> figures: medians over the rounds, and what the other programs on the machine take
-> causes: those of the machine, of the loader and of the step that cost a tenth or more
-> judge: the verdict of all rounds together, if most of them give the same one alone

docs/diagnose.md has the rules in a table.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from dali_pipes.tools.diagnosis.span import Round, Span

MIN_COST = 0.1  # share of the time from which on something is a cause
CERTAIN = 0.2  # share of the time from which on a cause is certain
SATURATED = 0.9  # share of our cores that is busy, from which on none is left
# the same with as many workers as cores: what is idle then is between their batches
SATURATED_ALL_WORKERS = 0.75
IDLE_WORKERS = 0.5  # cores that the loader uses, of those that its workers could use
WAITING_ITEMS = 0.5  # share of an item's time in which it neither computes nor waits for a core
STRAGGLING = 0.3  # share of the loader's time beyond three times its usual pace
CONTENTION = 0.15  # share of the model's own pace that it loses beside the loader
BLOCKED = 0.4  # share of the step in which its thread neither runs nor waits for a core
LAUNCHING = 1.5  # factor on images/s with batches four times as large
DEVICE_IDLE = 0.8  # share of the step in which the GPU works
TRANSFER = 0.5  # share of a step that copying its batch to the GPU takes
MIN_WORKER_GAIN = 1.1  # factor on images/s that fewer workers gain
# share of our cores busy with other programs, from which on the step's own costs are not known
OTHERS = 0.25
MIN_OTHERS = 0.2  # cores busy with other programs; less is this machine's own work

VERDICTS = {
    "model-bound": "the model sets the pace; a faster loader would change nothing",
    "fetch-bound": (
        "training waits for data: the loader spends its time waiting for them rather than computing"
    ),
    "prep-bound (too few workers)": (
        "training waits for the loader, whose workers are all busy while cores are idle"
    ),
    "prep-bound (too many workers)": (
        "training waits for the loader, and fewer worker processes would be faster"
    ),
    "prep-bound (item by item)": (
        "training waits for items that are made one by one; more workers would have to hand "
        "them over"
    ),
    "prep-bound (CPU saturated)": (
        "training waits for the loader, and no core is left for more of it"
    ),
    "start-bound": "training waits at the start of each epoch, while the loader begins anew",
    "other programs": (
        "other programs on this machine take the cores that the loader and the model need"
    ),
    "cgroup-throttled": "a CPU quota keeps this program from running",
    "transfer-bound": "training waits for batches on their way to the GPU",
    "sync-bound": "the training step waits for something while neither CPU nor GPU works",
    "launch-bound": "the training step costs nearly as much for a few images as for many",
    "decode-contention": (
        "loader and model want the same cores or the same GPU, and the model is the slower for it"
    ),
    "straggler": "training waits for a few batches that take much longer than the rest",
    "memory-bound": "the machine or the GPU is short of memory, and spends its time finding some",
    "inconclusive": "the figures scatter too much, or point in different directions",
}
STARVED = ("cgroup-throttled", "memory-bound")  # they slow down everything else, and come first


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
        contention: share of the model's own pace that its steps lose beside the loader.
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


@dataclass(frozen=True, slots=True)
class Cause:
    """One of `VERDICTS`, and the share of the time of training that it costs.

    Attributes:
        is_hidden: whether it costs nothing now, and this share once the other programs on this
            machine have ended.
    """

    name: str
    loss: float
    is_hidden: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """One of `VERDICTS`, and what else costs time.

    Attributes:
        confidence: "high": every round gives this verdict, and it costs more than what is named
            beside it; "medium": most rounds do; "low": in all other cases, which are
            "inconclusive".
        rounds: the verdict of each round.
        also: other causes that cost a tenth of the time or more, the dearest first.
        loss: the share of the time that the verdict's cause costs.
    """

    name: str
    confidence: str
    rounds: list[str]
    also: tuple[Cause, ...] = ()
    loss: float = 0.0


def judge(rounds: Sequence[Round], one_off: OneOffFigures, workers: int, burst: int) -> Verdict:
    """Returns the verdict of all rounds together, if most of them give the same one alone; else
    "inconclusive".

    Rounds that are all prep-bound agree, even if they differ in why the loader is too slow.
    """
    each = [
        causes(figures([one], workers, burst, one_off), one_off, workers)[0].name for one in rounds
    ]

    first, *also = causes(figures(rounds, workers, burst, one_off), one_off, workers)
    agreeing = sum(_kind(name) == _kind(first.name) for name in each)
    if agreeing * 2 <= len(each):
        return Verdict("inconclusive", "low", each, (first, *also))

    # without a look inside the step, "model-bound" only says that nothing else was found
    looked_inside = one_off.larger_gain is not None or one_off.device_busy is not None
    if first.name == "model-bound":
        is_dear = looked_inside
    else:
        is_dear = first.loss >= CERTAIN and _leads(first, also)
    certain = set(each) == {first.name} and len(each) > 1 and is_dear
    return Verdict(first.name, "high" if certain else "medium", each, tuple(also), first.loss)


def _kind(name: str) -> str:
    """Returns the verdict without the words in brackets, as "prep-bound"."""
    return name.partition(" (")[0]


def _leads(first: Cause, also: Sequence[Cause]) -> bool:
    return first.name in STARVED or all(first.loss >= 1.25 * other.loss for other in also)


def causes(found: TrainingFigures, one_off: OneOffFigures, workers: int) -> list[Cause]:
    """Returns all that costs a tenth of the time or more, the dearest first; what slows down
    everything else comes before it.
    """
    starved = _machine_causes(found, one_off)
    others = [*_loader_causes(found, one_off, workers), *_step_causes(found, one_off)]
    dear = sorted(
        (other for other in others if other.loss >= MIN_COST), key=lambda each: -each.loss
    )
    if starved or dear:
        return [*starved, *dear]

    # larger batches seem to gain, which other programs may cause as well
    disturbed = found.others >= OTHERS * _cores() and (one_off.larger_gain or 0.0) >= LAUNCHING
    return [Cause("inconclusive" if disturbed else "model-bound", found.step_share)]


def _machine_causes(found: TrainingFigures, one_off: OneOffFigures) -> list[Cause]:
    """Returns what slows down loader and model alike, or would if the files were not in memory."""
    starved = []
    if found.throttled >= MIN_COST:
        starved.append(Cause("cgroup-throttled", found.throttled))

    short = found.memory_stall >= MIN_COST or found.alloc_retries
    if short and found.prep_stall >= CONTENTION:
        starved.append(Cause("memory-bound", max(found.memory_stall, found.prep_stall)))

    cold = (
        1.0
        if one_off.cold_rate is None or one_off.data_fits
        else one_off.cold_rate / found.together
    )
    if 1 - cold >= 0.2:
        starved.append(Cause("fetch-bound", 1 - cold))
    return starved


def _loader_causes(found: TrainingFigures, one_off: OneOffFigures, workers: int) -> list[Cause]:
    """Returns what training waits for in next(): the start of an epoch, the cores that others have,
    and the loader itself.
    """
    by_others = found.wait_share * (1 - 1 / found.loader_freed) + found.step_share * (
        1 - 1 / found.model_freed
    )
    left = found.wait_share / found.loader_freed
    if found.loader_sets_pace and not one_off.decodes_on_gpu:
        left += found.contention * found.step_share  # it slows down the steps as well

    # what is left has one name: that of the first rule below that holds
    idle = found.loader_cores * found.loader_freed < IDLE_WORKERS * min(max(workers, 1), _cores())
    waits = idle if one_off.item_waits is None else one_off.item_waits >= WAITING_ITEMS

    if (one_off.transfer_share or 0.0) >= TRANSFER:
        name = "transfer-bound"
    elif found.straggling >= STRAGGLING:
        name = "straggler"
    elif waits:
        name = "decode-contention" if one_off.decodes_on_gpu else "fetch-bound"
    elif (one_off.fewer_gain or 0.0) >= MIN_WORKER_GAIN:
        name = "prep-bound (too many workers)"
    elif (one_off.more_gain or 0.0) >= MIN_WORKER_GAIN:
        name = "prep-bound (too few workers)"
    # without workers it is item by item also where the cores are busy, if more workers were tried
    elif found.busy >= (SATURATED if workers < _cores() else SATURATED_ALL_WORKERS) and not (
        one_off.is_serial and one_off.more_gain
    ):
        name = "prep-bound (CPU saturated)"
    elif one_off.more_gain is not None:
        name = "prep-bound (item by item)"
    else:
        name = "prep-bound (too few workers)"

    start = found.start_share
    if name == "prep-bound (too many workers)" and not one_off.starts_anew:
        # that many workers have to make their first batches
        left, start = left + start, 0.0
    return [Cause("start-bound", start), Cause("other programs", by_others), Cause(name, left)]


def _step_causes(found: TrainingFigures, one_off: OneOffFigures) -> list[Cause]:
    """Returns what slows down the model in its step, whatever the loader does."""
    steps, undisturbed, known = found.step_share, found.others < OTHERS * _cores(), list[Cause]()

    # what the steps would take without the loader beside them
    alone = steps * (1 - found.contention)
    # on a GPU the host may run ahead of it or wait: only the GPU's own idle time counts
    if one_off.device_busy is not None:
        if one_off.device_busy < DEVICE_IDLE:
            idle = (1 - one_off.device_busy) * alone
            known.append(Cause("sync-bound" if one_off.syncs else "launch-bound", idle))
    elif (found.blocked or 0.0) >= BLOCKED:
        known.append(Cause("sync-bound", (found.blocked or 0.0) * alone))
    elif (one_off.larger_gain or 0.0) >= LAUNCHING and undisturbed:
        known.append(Cause("launch-bound", (1 - 1 / (one_off.larger_gain or 1.0)) * alone))

    is_of_the_loader = found.loader_sets_pace and not one_off.decodes_on_gpu
    if (
        found.contention >= CONTENTION
        # else the other programs explain that the steps are slower
        and found.model_freed <= 1 / (1 - CONTENTION)
        # beside a slower loader it counts as waiting: _loader_causes has it
        and not is_of_the_loader
    ):
        copies = (one_off.transfer_share or 0.0) >= TRANSFER
        known.append(
            Cause("transfer-bound" if copies else "decode-contention", found.contention * steps)
        )
    return known


def figures(
    rounds: Sequence[Round], workers: int, burst: int, one_off: OneOffFigures | None = None
) -> TrainingFigures:
    """Returns the medians over the rounds."""

    def of(read: Callable[[Span], float], *parts: str) -> float:
        return median(read(getattr(one, part)) for one in rounds for part in parts)

    rates = {part: of(lambda span: span.rate, part) for part in ("steps", "loader", "together")}
    rates["model"] = rates.pop("steps")

    # Beside other programs the threads of a step wait for each other, in no run queue. Without
    # those programs it is at least as fast as on one thread, which waits for no other.
    model_freed = of(lambda span: freed(span, min(torch.get_num_threads(), _cores())), "model")
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

    queued = min(span.queued_s / (actors * span.seconds), 0.99)
    # our cores over those that the other programs leave us
    room = _cores() / max(_cores() - others, 0.05)
    return max(1.0, min(1 / (1 - queued), _cores() / max(span.cores, 0.01), room))


def straggling(span: Span, burst: int) -> float:
    """Returns the share of the time beyond three times the usual duration of a burst.

    Worker processes deliver in bursts of one batch each, so whole bursts are compared.
    """
    waits = [wait for wait in span.waits_s if wait is not None]
    bursts = [
        sum(waits[start : start + burst]) for start in range(0, len(waits) - burst + 1, burst)
    ]
    if len(bursts) < 3:
        return 0.0

    usual = median(bursts)
    return sum(burst - usual for burst in bursts if burst > 3 * usual) / span.seconds


def _others(span: Span) -> float:
    """Returns how many cores other programs keep busy."""
    return max(0.0, span.busy * _cores() - span.cores)


def _throttled(span: Span) -> float:
    """Returns a share of the time of all cores, since each of them is throttled separately."""
    return (span.throttled_s or 0.0) / span.seconds / _cores()


def _cores() -> int:
    return len(os.sched_getaffinity(0))
