"""What can only be told, not tried, for each verdict, and what it is calculated to gain."""

import os

from dali_pipes.diagnosis.subject import Fix
from dali_pipes.diagnosis.verdict import Figures

_LEAST = 0.02  # of a share that is divided by


def advice(verdict: str, found: Figures, workers: int) -> Fix | None:
    cores = len(os.sched_getaffinity(0))
    usable = min(workers, cores) / max(found.loader_cores, _LEAST)  # how much faster the loader is that never waits
    match verdict:
        case "fetch-bound":
            what = "copy the data to a local disk, or into memory (/dev/shm)"
            return Fix(what, "workers that need not wait for it only compute", speeds_up={"loader": usable})
        case "straggler":
            what = "find the images that take long (those above, if any are named), and mend or leave them out"
            return Fix(what, "all others wait for them", speeds_up={"loader": 1 / max(1 - found.straggling, _LEAST)})
        case "sync-bound":
            what = "take .item(), print, .cpu(), sleeping and locks out of the step; read numbers some steps later"
            free = 1 / max(1 - (found.blocked or 0.0), _LEAST)
            return Fix(what, "it waits for them", speeds_up={} if found.blocked is None else {"model": free})
        case "cgroup-throttled":
            free = 1 / max(1 - found.throttled / cores, _LEAST)
            what = "raise the CPU quota of the container (docker --cpus, Kubernetes limits.cpu)"
            return Fix(what, "it is used up", speeds_up={"model": free, "loader": free})
        case "prep-bound (CPU saturated)" if found.others >= 0.25 * cores:
            return Fix("stop the other programs, or give them other cores", "they keep ours busy", speeds_up={"loader": usable})
        case "prep-bound (CPU saturated)":
            return Fix("prepare the images once: shorter side 256, JPEG", "there is less to decode for each of them")
        case "launch-bound":
            return Fix("a larger batch_size", "what a step costs is shared by more images")
        case "memory-bound":
            return Fix("a smaller batch_size, or fewer batches ahead", "takes less memory")
        case "model-bound":
            return Fix("a faster step: bf16, torch.compile, channels_last, a larger batch", "the step sets the pace")
    return None
