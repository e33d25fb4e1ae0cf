"""Turns trials into figures, by pure functions. An unknown figure is None, never an estimate.

`trial_figures` takes one trial, `arm_figures` all trials of an arm, and `result_figures` all trials
of a run: it adds the ratios to the baseline, the control and the claims. docs/result.md explains
each figure.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast, get_args

import numpy as np

from dali_pipes.measure.results import (
    Compared,
    ComparedFigure,
    Control,
    Figures,
    RunFigures,
    Trial,
)
from dali_pipes.measure.stats import Ratio, claim, paired_ratio
from dali_pipes.system.telemetry import Sample

COMPARED: tuple[ComparedFigure, ...] = get_args(ComparedFigure)
CEILING = "synthetic"  # the arm that no loader can be faster than
# arms that only decode, and the figure of other arms that their CPU time gives
DECODING = {"decode_regions": "decode_regions_share", "decode_whole": "decode_whole_share"}
_FROM_GPU = {  # telemetry of a GPU, and the figure made of it
    "utilization": "gpu_utilization",
    "sm_utilization": "sm_utilization",
    "nvjpg_utilization": "nvjpg_utilization",
    "memory_mib": "gpu_memory_mib",
    "energy_j": "joules_per_1000_images",
    "pinned": "pinned_mib",
}


def trial_figures(trial: Trial) -> Figures:
    """The figures of one trial, over all jobs that ran at once."""
    jobs, samples = trial["jobs"], trial["samples"]
    # jobs that run at once are one load: rates are summed, CPU time is that of all images
    images, rate = sum(job["images"] for job in jobs), sum(job["images_per_s"] for job in jobs)
    cost = sum(job["cpu_s_per_1000_images"] * job["images"] for job in jobs) / images

    return {
        "images_per_s": rate,
        "cpu_s_per_1000_images": cost,
        "cpus": rate * cost / 1e3,
        # jobs that run at once share a cgroup, whose figure is that of all of them
        "cgroup_cpu_s_per_1000_images": jobs[0]["cgroup_cpu_s_per_1000_images"]
        if len(jobs) == 1
        else None,
        "wait_share": sum(sum(job["waits_s"]) for job in jobs)
        / sum(job["end"] - job["start"] for job in jobs),
        "first_batch_s": max(job["first_batch_s"] for job in jobs),
        "warm_up_s": max(job["warm_up"]["seconds"] for job in jobs),
        "steady": all(job["warm_up"]["steady"] for job in jobs),
        "throttled_s": jobs[0]["throttled_s"],
        "peak_rss_mib": _peak(samples, "rss_mib"),
        "peak_pss_mib": _peak(samples, "pss_mib"),
        "threads": _peak(samples, "threads"),
        "processes": _peak(samples, "processes"),
        "pinned_mib": None
        if jobs[0]["pinned_mib"] is None
        else sum(job["pinned_mib"] or 0 for job in jobs),
        **_gpu_figures(trial, images),
    }


def _peak(samples: Sequence[Sample], figure: str) -> float | None:
    seen = [cast(dict[str, Any], sample).get(figure) for sample in samples]
    return max((float(value) for value in seen if value is not None), default=None)


def _gpu_figures(trial: Trial, images: int) -> Figures:
    """The figures of the GPUs of one trial.

    Utilization is averaged over the measured span and the GPUs; memory is the peak of their sum
    over the whole trial; energy is their sum over the span, from the driver's counter.
    """
    start, end = (
        min(job["start"] for job in trial["jobs"]),
        max(job["end"] for job in trial["jobs"]),
    )
    seen = [sample for sample in trial["samples"] if sample["gpus"]]
    inside = [sample for sample in seen if start < sample["at"] <= end]

    def average(figure: str) -> float | None:
        values = [
            gpu[figure] for sample in inside for gpu in sample["gpus"] if gpu[figure] is not None
        ]
        return float(np.mean(values)) if values else None

    # a sample without the figure of one GPU would make the sum too small
    def over_gpus(figure: str) -> list[tuple[float, float]]:
        return [
            (sample["at"], sum(gpu[figure] for gpu in sample["gpus"]))
            for sample in seen
            if all(gpu[figure] is not None for gpu in sample["gpus"])
        ]

    # samples do not fall on the ends of the span: the counter is interpolated there
    energy = over_gpus("energy_j")
    at, joules = [time for time, _ in energy], [value for _, value in energy]
    used = (
        float(np.interp(end, at, joules) - np.interp(start, at, joules))
        if len(energy) > 1
        else None
    )

    return {
        "gpu_utilization": average("utilization"),
        "sm_utilization": average("sm_utilization"),
        "nvjpg_utilization": average("nvjpg_utilization"),
        "gpu_memory_mib": max((value for _, value in over_gpus("memory_mib")), default=None),
        "joules_per_1000_images": None if used is None else used / images * 1e3,
    }


def arm_figures(trials: Sequence[Trial]) -> Figures:
    """The figures of one arm over all of its trials: medians, and maxima of peaks.

    The figures that are compared also have their range, as `_low` and `_high`.
    """
    of_trials = [trial_figures(trial) for trial in trials]
    figures: Figures = {
        name: _over_trials(name, [trial[name] for trial in of_trials]) for name in of_trials[0]
    }

    for name in COMPARED:
        values = [trial[name] for trial in of_trials]
        figures |= {f"{name}_low": min(values), f"{name}_high": max(values)}

    # the waits of all trials and jobs together, in milliseconds
    waits = (
        np.array([wait for trial in trials for job in trial["jobs"] for wait in job["waits_s"]])
        * 1e3
    )

    first = [
        job["waits_s"][at] * 1e3
        for trial in trials
        for job in trial["jobs"]
        for at in job["epoch_starts"]
    ]
    figures["wait_ms"] = {f"p{share}": float(np.percentile(waits, share)) for share in (50, 95, 99)}
    figures["wait_ms"]["first_of_epoch_p50"] = float(np.median(first)) if first else None

    # device and decoder are the same in all trials of an arm
    job = trials[0]["jobs"][0]
    return figures | {
        "device": job["device"],
        "decodes": job["decodes"],
        "trials": len(trials),
    }


def _over_trials(name: str, values: Sequence[Any]) -> Any:
    """One figure of an arm: the maximum for peaks, else the median; None if no trial has it."""
    known = [value for value in values if value is not None]
    if not known:
        return None

    over: Callable[..., Any] = (
        max
        if name.startswith("peak") or name in ("threads", "processes", "pinned_mib")
        else np.median
    )
    return f"{sum(known)} of {len(known)}" if name == "steady" else float(over(known))


def compare_trials(
    first: Sequence[Trial],
    second: Sequence[Trial],
    control: dict[ComparedFigure, Ratio] | None,
    restarts: bool = True,
) -> Compared:
    """The ratios second / first of each figure in COMPARED.

    Returns:
        by figure: estimate, low, high, and the claim that the control allows.
    """
    ratios = {name: _by_rounds(first, second, name) for name in COMPARED}
    of_baseline = control or dict.fromkeys(COMPARED)
    claimed = {
        name: ratio.to_dict() | {"claim": claim(ratio, of_baseline[name], restarts)}
        for name, ratio in ratios.items()
    }
    return cast(Compared, claimed)


def _by_rounds(first: Sequence[Trial], second: Sequence[Trial], name: ComparedFigure) -> Ratio:
    """The ratio second / first of a figure, over the rounds that both have."""
    by_round = {trial["round"]: trial_figures(trial)[name] for trial in first}
    other = {trial["round"]: trial_figures(trial)[name] for trial in second}
    both = sorted(set(by_round) & set(other))
    return paired_ratio([by_round[number] for number in both], [other[number] for number in both])


def result_figures(
    trials: Sequence[Trial],
    arms: Sequence[str],
    baseline: str,
    planning: Sequence[tuple[str, str]] = (),
    restarts: bool = True,
) -> RunFigures:
    """The figures of a whole run: of the arms, of the control, and what planning costs.

    The control is the ratio of the baseline's two trials of each round, the one of phase "control"
    against the other.

    Args:
        planning: pairs of arms; the second follows the plan, the first does not.
        restarts: whether every trial was a new process; if not, more is needed for a claim.
    """
    by_arm = {
        arm: [trial for trial in trials if (trial["phase"], trial["arm"]) == ("round", arm)]
        for arm in arms
    }

    control_trials = [trial for trial in trials if trial["phase"] == "control"]
    control = (
        {name: _by_rounds(by_arm[baseline], control_trials, name) for name in COMPARED}
        if control_trials
        else None
    )

    # an arm that failed in every round has no figures
    measured = [arm for arm in arms if by_arm[arm]]
    figures: RunFigures = {
        "arms": {arm: arm_figures(by_arm[arm]) for arm in measured},
        "control": None,
        "planning": [],
    }

    # the control is no arm, so nothing is claimed about it
    if control:
        holds = all(ratio.contains_one() for ratio in control.values())
        itself = {name: {**ratio.to_dict(), "claim": ""} for name, ratio in control.items()}
        figures["control"] = cast(Control, {"holds": holds} | itself)

    for arm in measured:
        figures["arms"][arm]["ratio"] = (
            compare_trials(by_arm[baseline], by_arm[arm], control, restarts)
            if baseline in measured
            else None
        )

        ceiling = CEILING in measured and arm != CEILING
        figures["arms"][arm]["share_of_ceiling"] = (
            _by_rounds(by_arm[CEILING], by_arm[arm], "images_per_s").estimate if ceiling else None
        )

        for alone, share in DECODING.items():
            # the ratio of their CPU times is the share that decoding has of this arm's
            is_given = alone in measured and arm not in (CEILING, *DECODING)
            spent = (
                _by_rounds(by_arm[arm], by_arm[alone], "cpu_s_per_1000_images").estimate
                if is_given
                else None
            )
            figures["arms"][arm][share] = spent

    figures["planning"] = [
        {
            "native": native,
            "planned": planned,
            **compare_trials(by_arm[native], by_arm[planned], control, restarts),
        }
        for native, planned in planning
        if {native, planned} <= set(measured)
    ]

    return figures


def not_measured(trials: Sequence[Trial]) -> dict[str, str]:
    """The reason for every figure that no trial has."""
    if not trials:
        return {}

    together = len(trials[0]["jobs"]) > 1
    reasons = dict.fromkeys(_FROM_GPU.values(), "no GPU was used") | {
        "cgroup_cpu_s_per_1000_images": "jobs that run at once share their cgroup"
        if together
        else "no cgroup (v2) that holds only this run",
        "throttled_s": "no cgroup that reports it",
        "peak_pss_mib": "the system does not report it",
    }

    # the reason that a trial gives is more exact than these
    for trial in trials:
        reasons |= {_FROM_GPU[figure]: why for figure, why in trial["gpu_missing"].items()}

    measured = {
        name
        for trial in trials
        for name, value in trial_figures(trial).items()
        if value is not None
    }
    return {figure: why for figure, why in reasons.items() if figure not in measured}
