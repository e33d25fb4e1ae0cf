"""The closed list of causes, each with its rule and with the share of the time that it costs.

`find_causes` is what others call: it asks for the causes of the machine, of the loader and of the
step. docs/diagnose.md has the rules in a table.
"""

from dataclasses import dataclass

from dali_pipes.system.cpus import affinity_cores
from dali_pipes.tools.diagnosis.verdict.figures import OneOffFigures, TrainingFigures

MIN_COST = 0.1  # share of the time from which on something is a cause
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


def find_causes(figures: TrainingFigures, one_off: OneOffFigures, workers: int) -> list[Cause]:
    """Returns all that costs a tenth of the time or more, the dearest first; what slows down
    everything else comes before it.
    """
    starved = _machine_causes(figures, one_off)
    others = [*_loader_causes(figures, one_off, workers), *_step_causes(figures, one_off)]
    dear = sorted(
        (cause for cause in others if cause.loss >= MIN_COST), key=lambda cause: -cause.loss
    )
    if starved or dear:
        return [*starved, *dear]

    # larger batches seem to gain, which other programs may cause as well
    disturbed = (
        figures.others >= OTHERS * affinity_cores() and (one_off.larger_gain or 0.0) >= LAUNCHING
    )
    # the steps are slower in training, and there is nothing beside them that could be the reason
    unexplained = not one_off.works_beside and figures.contention >= CONTENTION
    return [
        Cause("inconclusive" if disturbed or unexplained else "model-bound", figures.step_share)
    ]


def _machine_causes(figures: TrainingFigures, one_off: OneOffFigures) -> list[Cause]:
    """Returns what slows down loader and model alike, or would if the files were not in memory."""
    starved = []
    if figures.throttled >= MIN_COST:
        starved.append(Cause("cgroup-throttled", figures.throttled))

    short = figures.memory_stall >= MIN_COST or figures.alloc_retries
    if short and figures.prep_stall >= CONTENTION:
        starved.append(Cause("memory-bound", max(figures.memory_stall, figures.prep_stall)))

    # files that fit into memory are cold in the first epoch only
    cold = (
        1.0
        if one_off.cold_rate is None or one_off.data_fits
        else one_off.cold_rate / figures.together
    )
    if 1 - cold >= 0.2:
        starved.append(Cause("fetch-bound", 1 - cold))
    return starved


def _loader_causes(figures: TrainingFigures, one_off: OneOffFigures, workers: int) -> list[Cause]:
    """Returns what training waits for in next(): the start of an epoch, the cores that others have,
    and the loader itself.
    """
    # what of the waits and of the steps would be saved without the other programs
    by_others = figures.wait_share * (1 - 1 / figures.loader_freed) + figures.step_share * (
        1 - 1 / figures.model_freed
    )
    left = figures.wait_share / figures.loader_freed
    if figures.loader_sets_pace and not one_off.decodes_on_gpu:
        # it slows down the steps as well
        left += _contention(figures, one_off) * figures.step_share

    # what is left has one name: that of the first rule below that holds
    idle = figures.loader_cores * figures.loader_freed < IDLE_WORKERS * min(
        max(workers, 1), affinity_cores()
    )
    waits = idle if one_off.item_waits is None else one_off.item_waits >= WAITING_ITEMS

    if (one_off.transfer_share or 0.0) >= TRANSFER:
        name = "transfer-bound"
    elif figures.straggling >= STRAGGLING:
        name = "straggler"
    elif waits:
        name = "decode-contention" if one_off.decodes_on_gpu else "fetch-bound"
    elif (one_off.fewer_gain or 0.0) >= MIN_WORKER_GAIN:
        name = "prep-bound (too many workers)"
    elif (one_off.more_gain or 0.0) >= MIN_WORKER_GAIN:
        name = "prep-bound (too few workers)"
    # without workers it is item by item also where the cores are busy, if more workers were tried
    elif figures.busy >= (
        SATURATED if workers < affinity_cores() else SATURATED_ALL_WORKERS
    ) and not (one_off.is_serial and one_off.more_gain):
        name = "prep-bound (CPU saturated)"
    elif one_off.more_gain is not None:
        name = "prep-bound (item by item)"
    else:
        name = "prep-bound (too few workers)"

    start = figures.start_share
    if name == "prep-bound (too many workers)" and not one_off.starts_anew:
        # that many workers have to make their first batches
        left, start = left + start, 0.0
    return [Cause("start-bound", start), Cause("other programs", by_others), Cause(name, left)]


def _step_causes(figures: TrainingFigures, one_off: OneOffFigures) -> list[Cause]:
    """Returns what slows down the model in its step, whatever the loader does."""
    steps, undisturbed, known = (
        figures.step_share,
        figures.others < OTHERS * affinity_cores(),
        list[Cause](),
    )

    # what the steps would take without the loader beside them
    contention = _contention(figures, one_off)
    alone = steps * (1 - contention)
    # on a GPU the host may run ahead of it or wait: only the GPU's own idle time counts
    if one_off.device_busy is not None:
        if one_off.device_busy < DEVICE_IDLE:
            idle = (1 - one_off.device_busy) * alone
            known.append(Cause("sync-bound" if one_off.syncs else "launch-bound", idle))
    elif (figures.blocked or 0.0) >= BLOCKED:
        known.append(Cause("sync-bound", (figures.blocked or 0.0) * alone))
    elif (one_off.larger_gain or 0.0) >= LAUNCHING and undisturbed:
        known.append(Cause("launch-bound", (1 - 1 / (one_off.larger_gain or 1.0)) * alone))

    is_of_the_loader = figures.loader_sets_pace and not one_off.decodes_on_gpu
    if (
        contention >= CONTENTION
        # else the other programs explain that the steps are slower
        and figures.model_freed <= 1 / (1 - CONTENTION)
        # beside a slower loader it counts as waiting: _loader_causes has it
        and not is_of_the_loader
    ):
        copies = (one_off.transfer_share or 0.0) >= TRANSFER
        known.append(Cause("transfer-bound" if copies else "decode-contention", contention * steps))
    return known


def _contention(figures: TrainingFigures, one_off: OneOffFigures) -> float:
    """Returns the share of the model's own pace that its steps lose to the loader. A loader that
    does not work beside them takes nothing from them: where they are slower nevertheless, the
    machine has changed its pace.
    """
    return figures.contention if one_off.works_beside else 0.0
