"""Advice on changes that diagnose cannot try by itself, with gains calculated from the figures.

`advice` answers a verdict, `remedies` answers the part of an item that takes the most time.
"""

from collections.abc import Iterator

from dali_pipes.tools.diagnosis.items.profile import ItemProfile
from dali_pipes.tools.diagnosis.programs.base import Fix
from dali_pipes.tools.diagnosis.verdict.figures import OneOffFigures, TrainingFigures

_MIN_DIVISOR = 0.02  # lower bound of a share used as a divisor
_COSTLY_SHARE = 0.2  # share of an item's time from which on a part is worth a change
# For each kind of item part: what to do instead, and by which factors, from and to, the part
# becomes cheaper. np.load in place of np.loadtxt was 648 times as fast (docs/diagnose.md); the
# other ranges are wide on purpose, since nothing has been tried.
_REMEDIES = {
    "text_parsing": (
        "parse the files once, keep them with np.save, and read them with np.load",
        (5.0, 600.0),
    ),
    "python_loop": ("let NumPy or PyTorch loop: one call for all elements", (5.0, 100.0)),
    "transform": (
        "do it for a whole batch at once, after the loader or on the device",
        (1.2, 20.0),
    ),
    "decode": ("prepare the images once, smaller: dali-pipes prepare resize=256", (1.2, 4.0)),
}
# A step that has slept runs slower than one that has not: its caches are cold, and its core's clock
# has gone down. So taking the wait out gained 47 where the wait alone was 9
# (docs/benchmarks/askers_programs_cpu_2cores_2026-11-25/table.md).
_AFTER_A_WAIT = 8.0
_GAIN_ERROR = 0.25  # relative error of such a calculation


def advice(
    verdict: str,
    figures: TrainingFigures,
    one_off: OneOffFigures,
    workers: int,
    cores: int,
    items: ItemProfile | None = None,
) -> Iterator[Fix]:
    """Yields what a person could change for one verdict.

    The gain is calculated from the share of the time that is lost.
    """
    # the loader's factor if it never waited: usable cores over those that it keeps busy
    usable = min(max(workers, 1), cores) / max(figures.loader_cores, _MIN_DIVISOR)

    match verdict:
        case "fetch-bound" if one_off.is_fetched:
            what = (
                "give the cache of shards more room (DALI_PIPES_CACHE_GB), or use a machine "
                "that is near the object store"
            )
            yield Fix(
                what,
                "the network, not this machine, sets the pace",
                speeds_up={"loader": _gain_range(usable)},
            )
        case "fetch-bound":
            what = "copy the data to a local disk, or into memory (/dev/shm)"
            if items and items.parts and items.parts[0].kind == "wait":
                what = f"make what {items.parts[0].name} waits for faster, or do without it"
            # from no gain, if it waits for something else, to all of it
            yield Fix(
                what,
                "workers that do not wait for data only compute",
                speeds_up={"loader": (1.0, _gain_range(usable)[1])},
            )

        case "straggler":
            what = (
                "find the images that take long (those above, if any are named), and fix or "
                "remove them"
            )
            share = 1 - figures.straggling
            yield Fix(
                what,
                "all others wait for them",
                speeds_up={"loader": (1 / max(share, _MIN_DIVISOR), 2 / max(share, _MIN_DIVISOR))},
            )

        case "sync-bound":
            what = (
                "take .item(), print, .cpu(), sleeping and locks out of the step; read numbers "
                "some steps later"
            )
            working = (
                1 - (figures.blocked or 0.0) if one_off.device_busy is None else one_off.device_busy
            )
            low, high = _gain_range(1 / max(working, _MIN_DIVISOR))
            high *= _AFTER_A_WAIT if one_off.device_busy is None else 1.0
            yield Fix(
                what,
                "it waits for them",
                speeds_up={"model": (low, 1 / max(working, _MIN_DIVISOR), high)},
            )

        case "cgroup-throttled":
            model, loader = (
                _gain_range(1 / max(1 - share, _MIN_DIVISOR))
                for share in (figures.model_throttled, figures.throttled)
            )
            what = "raise the CPU quota of the container (docker --cpus, Kubernetes limits.cpu)"
            yield Fix(what, "it is used up", speeds_up={"model": model, "loader": loader})

        case "other programs":
            gain = one_off.one_thread_gain or 0.0
            # at least as fast as on one thread, if that was measured
            model = max(1.0, gain), max(1.0, gain, figures.model_freed)
            freed: dict[str, tuple[float, ...]] = {
                "loader": (1.0, figures.loader_freed),
                "model": model,
            }
            why = f"they keep {figures.others:.1f} of {cores} cores busy"
            yield Fix("stop the other programs, or give them other cores", why, speeds_up=freed)
            if gain > 1:
                what = "torch.set_num_threads(1), for as long as they run"
                yield Fix(
                    what,
                    "the threads of the step wait for each other there",
                    part="model",
                    threads=1,
                )

        case "transfer-bound":
            yield Fix(
                (
                    "pin_memory=True and non_blocking=True, uint8 instead of float, or decode on "
                    "the GPU"
                ),
                "fewer bytes, faster",
            )
        case "launch-bound":
            yield Fix("a larger batch_size", "what a step costs is shared by more images")
        case "memory-bound":
            yield Fix("a smaller batch_size, or fewer batches ahead", "takes less memory")
        case "model-bound":
            yield Fix(
                "a faster step: bf16, torch.compile, channels_last, a larger batch",
                "the step sets the pace",
            )


def remedies(verdict: str, items: ItemProfile | None) -> Iterator[Fix]:
    """Yields what to change in the code that takes most of an item's time.

    Only for the verdicts that this time explains: prep-bound and decode-contention.
    """
    if items is None or not verdict.startswith(("prep-bound", "decode-contention")):
        return

    for part in items.parts[:2]:
        if part.share >= _COSTLY_SHARE and part.kind in _REMEDIES:
            what, (low, high) = _REMEDIES[part.kind]
            rest = 1 - part.share
            where = f" in {part.where}" if part.where else ""
            why = f"{part.name} is {part.share:.0%} of an item's time"
            faster = 1 / (rest + part.share / low), 1 / (rest + part.share / high)
            yield Fix(
                f"{part.name}{where}: {what}", why, speeds_up={"loader": faster}, computes_less=True
            )


def _gain_range(factor: float) -> tuple[float, float]:
    return 1 + (factor - 1) * (1 - _GAIN_ERROR), 1 + (factor - 1) * (1 + _GAIN_ERROR)
