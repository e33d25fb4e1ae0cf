"""From figures to a verdict, a closed list of causes, each with its rule; and what to do that cannot be tried from here."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from dali_pipes.tools.diagnosis.probes import Fix, Round
from dali_pipes.tools.diagnosis.window import Window

WAITING = 0.1  # share of the time inside next() from which on training counts as waiting for the loader
SATURATED = 0.9  # share of our cores that is busy
CONTENTION = 0.85  # pace of the model beside the loader, relative to its pace alone
IDLE_WORKERS = 0.5  # cores that the loader uses, of those that its workers could use
STRAGGLING = 0.3  # share of the loader's time beyond three times its usual pace
BLOCKED = 0.4  # share of the step in which its thread neither runs nor waits for a core
LAUNCHING = 1.5  # factor on images/s with batches four times as large
DEVICE_IDLE = 0.8  # share of the step in which the GPU works
TRANSFER = 0.5  # share of a step that copying its batch to the GPU takes
THROTTLED = 0.1
STALLED = 0.1
COLD = 0.8  # cold pace, relative to the warm one
OTHERS = 0.25  # share of our cores busy with other programs, from which on the step's own costs cannot be determined
_LEAST = 0.02  # lower bound of a share used as a divisor

VERDICTS = {
    "model-bound": "the model sets the pace; a faster loader would change nothing",
    "fetch-bound": "training waits for files: the loader's workers wait for their data more than they compute",
    "prep-bound (too few workers)": "training waits for the loader, whose workers are all busy while cores are idle",
    "prep-bound (CPU saturated)": "training waits for the loader, and no core is left for more of it",
    "cgroup-throttled": "a CPU quota keeps this program from running",
    "transfer-bound": "training waits for batches on their way to the GPU",
    "sync-bound": "the training step waits for something while neither CPU nor GPU works",
    "launch-bound": "the training step costs nearly as much for a few images as for many",
    "decode-contention": "loader and model want the same cores or the same GPU, and the model is the slower for it",
    "straggler": "training waits for a few batches that take much longer than the rest",
    "memory-bound": "the machine or the GPU is short of memory, and spends its time finding some",
    "inconclusive": "the figures scatter too much, or point in different directions",
}


@dataclass(frozen=True, slots=True)
class OneOffFigures:
    """Measurements made once; some on a GPU only, and None otherwise.

    Attributes:
        larger_gain: images/s in batches four times as large, over those in the usual ones.
        cold_rate: images/s from files that are not in the page cache.
        data_fits: whether the page cache has room for all images.
        device_busy: share of the step in which the GPU works.
        syncs: how often a step waits for the GPU.
        transfer_share: of a step of training, what copying its batch from the CPU would take.
        decodes_on_gpu: whether the loader decodes there, so that its CPU threads are idle while it works.
        is_fetched: whether images come over the network, out of an object store.
    """

    larger_gain: float | None = None
    cold_rate: float | None = None
    data_fits: bool = True
    device_busy: float | None = None
    syncs: int | None = None
    transfer_share: float | None = None
    decodes_on_gpu: bool = False
    is_fetched: bool = False


@dataclass(frozen=True, slots=True)
class Figures:
    """Inputs of the rules: rates in images/s, the rest shares from 0 to 1."""

    model: float
    loader: float
    model_under_load: float
    together: float
    wait_share: float
    overlap: float
    contention: float
    loader_cores: float
    busy: float
    others: float
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


@dataclass(frozen=True, slots=True)
class Verdict:
    """One of `VERDICTS`.

    Attributes:
        confidence: "high": every round gives this verdict; "medium": most do; "low": in all other cases, which are "inconclusive".
        rounds: the verdict of each round.
    """

    name: str
    confidence: str
    rounds: list[str]


def judge(rounds: Sequence[Round], one_off: OneOffFigures, workers: int, burst: int) -> Verdict:
    """The verdict of all rounds together, if most of them give the same one alone."""
    each = [cause(figures([one], burst), one_off, workers) for one in rounds]
    name, agreeing = Counter(each).most_common(1)[0]
    if name != cause(figures(rounds, burst), one_off, workers) or agreeing * 2 <= len(each):
        return Verdict("inconclusive", "low", each)
    return Verdict(name, "high" if agreeing == len(each) and len(each) > 1 else "medium", each)


def cause(found: Figures, one_off: OneOffFigures, workers: int) -> str:
    """The first rule that holds: first what slows down everything, then the loader's causes, then the model's."""
    if found.throttled >= THROTTLED:
        return "cgroup-throttled"
    if (found.memory_stall >= STALLED or found.alloc_retries) and found.together < CONTENTION * found.model:
        return "memory-bound"
    if not one_off.data_fits and one_off.cold_rate is not None and one_off.cold_rate < COLD * found.together:
        return "fetch-bound"
    if found.wait_share < WAITING:
        return _of_the_step(found, one_off)
    if (one_off.transfer_share or 0.0) >= TRANSFER:
        return "transfer-bound"
    if found.straggling >= STRAGGLING:
        return "straggler"
    if found.busy >= SATURATED:
        return "prep-bound (CPU saturated)"
    if found.loader_cores < IDLE_WORKERS * min(workers, _cores()):
        return "decode-contention" if one_off.decodes_on_gpu else "fetch-bound"
    return "prep-bound (too few workers)"


def _of_the_step(found: Figures, one_off: OneOffFigures) -> str:
    """Not waiting for batches. A step that is slower with new batches than with resident ones has to copy them."""
    if found.together < CONTENTION * min(found.model, found.model_under_load):
        return "transfer-bound" if (one_off.transfer_share or 0.0) >= TRANSFER else "inconclusive"
    if one_off.device_busy is not None:  # on a GPU, where the host may run ahead or wait as it likes
        if one_off.device_busy < DEVICE_IDLE:
            return "sync-bound" if one_off.syncs else "launch-bound"
    elif (found.blocked or 0.0) >= BLOCKED:
        return "sync-bound"
    elif (one_off.larger_gain or 0.0) >= LAUNCHING:
        return "launch-bound" if found.others < OTHERS * _cores() else "inconclusive"
    return "decode-contention" if found.contention >= 1 - CONTENTION else "model-bound"


def figures(rounds: Sequence[Round], burst: int) -> Figures:
    """Medians over the rounds."""

    def of(read: Callable[[Window], float], *parts: str) -> float:
        return median(read(getattr(one, part)) for one in rounds for part in parts)

    rates = {part: of(lambda window: window.rate, part) for part in ("model", "loader", "model_under_load", "together")}
    blocked = [one.model.blocked_s / one.model.seconds for one in rounds if one.model.blocked_s is not None]
    return Figures(
        **rates,
        wait_share=of(lambda window: window.wait_share, "together"),
        overlap=rates["together"] / min(rates["model"], rates["loader"]),
        contention=1 - min(1.0, rates["model_under_load"] / rates["model"]),
        loader_cores=of(lambda window: window.cores, "loader"),
        busy=of(lambda window: window.busy, "together"),
        others=of(lambda window: max(0.0, window.busy * _cores() - window.cores), "together"),
        blocked=max(0.0, median(blocked)) if blocked else None,
        straggling=of(lambda window: straggling(window, burst), "loader", "together"),
        throttled=of(_throttled, "together"),
        model_throttled=of(_throttled, "model"),
        memory_stall=of(lambda window: window.memory_stall or 0.0, "together"),
        alloc_retries=sum(one.together.alloc_retries for one in rounds),
    )


def straggling(window: Window, burst: int) -> float:
    """Share of the time beyond three times the usual duration of a burst.

    Worker processes deliver in bursts of one batch each, so whole bursts are compared.
    """
    waits = [wait for wait in window.waits_s if wait is not None]
    bursts = [sum(waits[start : start + burst]) for start in range(0, len(waits) - burst + 1, burst)]
    if len(bursts) < 3:
        return 0.0
    usual = median(bursts)
    return sum(burst - usual for burst in bursts if burst > 3 * usual) / window.seconds


def advice(verdict: str, found: Figures, one_off: OneOffFigures, workers: int) -> Iterator[Fix]:
    """What cannot be tried from here, with its calculated gain as far as there is one."""
    cores = _cores()
    usable = min(workers, cores) / max(found.loader_cores, _LEAST)  # how much faster the loader would be if it never waited
    match verdict:
        case "fetch-bound" if one_off.is_fetched:
            what = "give the cache of shards more room (DALI_PIPES_CACHE_GB), or use a machine that is near the object store"
            yield Fix(what, "the network, not this machine, sets the pace", speeds_up={"loader": usable})
        case "fetch-bound":
            what = "copy the data to a local disk, or into memory (/dev/shm)"
            yield Fix(what, "workers that do not wait for data only compute", speeds_up={"loader": usable})
        case "straggler":
            what = "find the images that take long (those above, if any are named), and fix or remove them"
            yield Fix(what, "all others wait for them", speeds_up={"loader": 1 / max(1 - found.straggling, _LEAST)})
        case "sync-bound":
            what = "take .item(), print, .cpu(), sleeping and locks out of the step; read numbers some steps later"
            working = 1 - (found.blocked or 0.0) if one_off.device_busy is None else one_off.device_busy
            yield Fix(what, "it waits for them", speeds_up={"model": 1 / max(working, _LEAST)})
        case "cgroup-throttled":
            model, loader = (1 / max(1 - share, _LEAST) for share in (found.model_throttled, found.throttled))
            what = "raise the CPU quota of the container (docker --cpus, Kubernetes limits.cpu)"
            yield Fix(what, "it is used up", speeds_up={"model": model, "loader": loader})
        case "prep-bound (CPU saturated)" if found.others >= 0.25 * cores:
            yield Fix("stop the other programs, or give them other cores", "they keep ours busy", speeds_up={"loader": usable})
        case "prep-bound (CPU saturated)":
            yield Fix("prepare the images once: shorter side 256, JPEG", "there is less to decode for each of them")
        case "transfer-bound":
            yield Fix("pin_memory=True and non_blocking=True, uint8 instead of float, or decode on the GPU", "fewer bytes, faster")
        case "launch-bound":
            yield Fix("a larger batch_size", "what a step costs is shared by more images")
        case "memory-bound":
            yield Fix("a smaller batch_size, or fewer batches ahead", "takes less memory")
        case "model-bound":
            yield Fix("a faster step: bf16, torch.compile, channels_last, a larger batch", "the step sets the pace")


def _throttled(window: Window) -> float:
    """A share of the time of all cores, since each of them is throttled separately."""
    return (window.throttled_s or 0.0) / window.seconds / _cores()


def _cores() -> int:
    return len(os.sched_getaffinity(0))
