"""Fixes that can be suggested but not tried, for each verdict, with their calculated gain."""

import os

from dali_pipes.tools.diagnosis.program import Fix
from dali_pipes.tools.diagnosis.verdict import Figures, OneOffFigures

_LEAST = 0.02  # lower bound of a share used as a divisor


def advice(verdict: str, found: Figures, one_off: OneOffFigures, workers: int) -> Fix | None:
    cores = len(os.sched_getaffinity(0))
    usable = min(workers, cores) / max(found.loader_cores, _LEAST)  # how much faster the loader would be if it never waited
    match verdict:
        case "fetch-bound":
            what = "copy the data to a local disk, or into memory (/dev/shm)"
            return Fix(what, "workers that do not wait for data only compute", speeds_up={"loader": usable})
        case "straggler":
            what = "find the images that take long (those above, if any are named), and fix or remove them"
            return Fix(what, "all others wait for them", speeds_up={"loader": 1 / max(1 - found.straggling, _LEAST)})
        case "sync-bound":
            what = "take .item(), print, .cpu(), sleeping and locks out of the step; read numbers some steps later"
            working = 1 - (found.blocked or 0.0) if one_off.device_busy is None else one_off.device_busy
            return Fix(what, "it waits for them", speeds_up={"model": 1 / max(working, _LEAST)})
        case "cgroup-throttled":
            model, loader = (1 / max(1 - share, _LEAST) for share in (found.model_throttled, found.throttled))
            what = "raise the CPU quota of the container (docker --cpus, Kubernetes limits.cpu)"
            return Fix(what, "it is used up", speeds_up={"model": model, "loader": loader})
        case "prep-bound (CPU saturated)" if found.others >= 0.25 * cores:
            return Fix("stop the other programs, or give them other cores", "they keep ours busy", speeds_up={"loader": usable})
        case "prep-bound (CPU saturated)":
            return Fix("prepare the images once: shorter side 256, JPEG", "there is less to decode for each of them")
        case "transfer-bound":
            return Fix("pin_memory=True and non_blocking=True, uint8 instead of float, or decode on the GPU", "fewer bytes, faster")
        case "launch-bound":
            return Fix("a larger batch_size", "what a step costs is shared by more images")
        case "memory-bound":
            return Fix("a smaller batch_size, or fewer batches ahead", "takes less memory")
        case "model-bound":
            return Fix("a faster step: bf16, torch.compile, channels_last, a larger batch", "the step sets the pace")
    return None
