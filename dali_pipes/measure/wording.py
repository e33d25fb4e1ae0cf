"""Puts a result into sentences, which the terminal and the HTML page share.

`headline`, `control_line`, `agreement_line`, `notes` and `caveats` are the sentences, in the order
in which they are shown; printing.py has the table.
"""

from dali_pipes.measure.results import Agreement, Compared, Control, Interval, Result
from dali_pipes.measure.stats import Ratio, contains_one, threshold

CAVEATS = {
    "loader": (
        "The loader alone. Training that computes longer than it loads gains nothing from a "
        "faster one."
    ),
    "train": (
        "One model at one batch size. A larger model hides a slow loader, a smaller one shows it."
    ),
}
# keys of a result that may be missing, in words
FIGURES = {
    "gpu_utilization": "how busy the GPU was",
    "sm_utilization": "how busy its multiprocessors were",
    "nvjpg_utilization": "how busy its JPEG engines were",
    "gpu_memory_mib": "GPU memory",
    "joules_per_1000_images": "energy",
    "pinned_mib": "pinned memory",
    "cgroup_cpu_s_per_1000_images": "CPU time of the cgroup",
    "throttled_s": "throttling",
    "warm_up_s": "the warm-up",
    "steady": "whether rates were steady",
    "peak_pss_mib": "memory with shared parts counted once",
}


def caveats(result: Result) -> list[str]:
    """What the figures do not show, one sentence each."""
    work = result["work"]
    lines = [
        CAVEATS[work["workload"]],
        "Files come from the page cache, not from a disk or a network."
        if work["manifest"]
        else "Files were not read before, so the first trials may have waited for a disk.",
    ]
    if (work["epoch"] or 0) > (images := result["provenance"]["data"]["images"]):
        lines.append(
            f"{images} images, repeated to epochs of {work['epoch']:,}: all of them stay in memory."
        )
    if work["corun"] == 1:
        lines.append("One job on the machine. Several at once share its cores: corun=N.")

    # one line for each reason, with all of its figures
    missing = {figure: why for figure, why in result["not_measured"].items() if figure in FIGURES}
    for why in dict.fromkeys(missing.values()):
        figures = [FIGURES[figure] for figure, reason in missing.items() if reason == why]
        lines.append(f"Not measured, {why}: {', '.join(figures)}.")
    lines.append(
        "Other programs on this machine are not known; the control shows how far they disturbed."
    )
    return [
        *lines,
        "Accuracy. Equal pixels within the stated difference are all that is shown of it.",
    ]


def headline(result: Result) -> str:
    """Names the best arm that did the same work as the baseline, with the claim about it."""
    arms, baseline = result["arms"], result["baseline"]
    compared = {
        arm: ratio
        for arm in arms
        if arm != baseline and (ratio := arms[arm].get("ratio")) and same_work(result, arm)
    }

    if arms[baseline]["failed"]:
        return f"{baseline}, the baseline, failed: no comparison"
    if not compared:
        return f"{baseline}: {arms[baseline]['images_per_s']:,.0f} images/s"

    best = max(compared, key=lambda arm: compared[arm]["images_per_s"]["estimate"])
    return comparison(best, baseline, compared[best], result["protocol"]["pairs"])


def same_work(result: Result, arm: str) -> bool:
    """Whether an arm was compared pixel by pixel; an arm that differs too much ends the run."""
    agreement = result["agreement"]
    return arm in agreement["arms"] or arm == agreement.get("reference")


def comparison(arm: str, baseline: str, ratio: Compared, pairs: int) -> str:
    """What may be claimed about two arms, as `stats.claim` says it, with the ratios."""
    speed, cost = ratio["images_per_s"], ratio["cpu_s_per_1000_images"]
    ratios = f"{interval(speed)} × its images/s, {interval(cost)} × its CPU time per image"

    match speed["claim"]:
        case "no interval" if speed["low"] is not None:
            return f"{arm} against {baseline}: {ratios}; without a control nothing is claimed"
        case "no interval":
            count = "one round" if pairs == 1 else f"{pairs} rounds"
            return (
                f"Quick look, {count}: {arm} made about {speed['estimate']:.2g} × the images/s of "
                f"{baseline}, for about {cost['estimate']:.2g} × its CPU time per image; pairs=6 "
                "confirms it, or not"
            )
        case "untrustworthy":
            as_much = f"{baseline} differs from itself by as much as from {arm}"
            return (
                f"Untrustworthy: {as_much}, so nothing is claimed. {arm} against {baseline}: "
                f"{ratios}"
            )
        case "more":
            return f"{arm} is faster than {baseline}: {ratios}"
        case "less":
            return f"{arm} is slower than {baseline}: {ratios}"

    cheaper = f", but {arm} takes less CPU time" if cost["claim"] == "less" else ""
    return (
        f"No difference in speed between {arm} and {baseline} beyond what {baseline} differs "
        f"from itself{cheaper}: {ratios}"
    )


def interval(ratio: Interval) -> str:
    return f"{ratio['estimate']:.2f}" + (
        "" if ratio["low"] is None else f" [{ratio['low']:.2f}, {ratio['high']:.2f}]"
    )


def control_line(control: Control | None, baseline: str, restarts: bool = True) -> str:
    """Says how the baseline compares with itself, and how large a difference must be to be claimed.

    Args:
        restarts: whether every trial was a new process.
    """
    if control is None:
        return "No interval and no control yet: both take at least five rounds (pairs=6)."

    ratios = {"images/s": control["images_per_s"], "CPU time": control["cpu_s_per_1000_images"]}
    line = (
        f"Control, {baseline} against itself: "
        f"{', '.join(f'{name} {interval(ratio)}' for name, ratio in ratios.items())}"
    )

    off = [name for name, ratio in ratios.items() if not contains_one(ratio["low"], ratio["high"])]
    verdict = (
        f"not equal in {' and '.join(off)}, so something disturbed the trials"
        if off
        else "both hold 1"
    )

    factors = {
        name: threshold(Ratio(ratio["estimate"], ratio["low"], ratio["high"]), restarts)
        for name, ratio in ratios.items()
    }
    claimed = [
        f"{name} beyond a factor of {factor:.2f}" for name, factor in factors.items() if factor
    ]

    return (
        f"{line}: {verdict}. Differences are claimed in {' and in '.join(claimed)}."
        if claimed
        else f"{line}: {verdict}."
    )


def agreement_line(result: Result) -> str:
    agreement = result["agreement"]
    if not agreement["images"]:
        return f"Pixels: {agreement['note']}."
    return (
        f"Pixels: {agreement['images']} images, same samples in the same order, "
        "|difference| of 255: "
        f"mean {agreement['mean']:.2f}, p99 {agreement['p99']:.0f}, max "
        f"{agreement['max']:.0f}{_other_decoders(agreement)}."
    )


def _other_decoders(agreement: Agreement) -> str:
    """Names the arms that may differ by more, since the reference decodes in another way."""
    other = [arm for arm, apart in agreement["arms"].items() if "allowed" in apart]
    return f" ({', '.join(other)} decoded in another way: docs/pixels.md)" if other else ""


def notes(result: Result) -> list[str]:
    """What a reader must know before trusting the figures."""
    lines = [
        f"{name} FAILED and has no figures: {arm['failed']}"
        for name, arm in result["arms"].items()
        if arm["failed"]
    ]
    lines += [
        f"{name} was left out: it {arm['skipped']}."
        for name, arm in result["arms"].items()
        if arm["skipped"]
    ]
    lines += [
        f"{name}: {arm['decodes']}." for name, arm in result["arms"].items() if "decodes" in arm
    ]

    for cost in result["planning"]:
        ratios = (
            f"CPU time {interval(cost['cpu_s_per_1000_images'])} ×, images/s "
            f"{interval(cost['images_per_s'])} ×"
        )
        lines.append(
            f"What the plan costs, {cost['planned']} against {cost['native']}, which decode "
            f"alike: {ratios}."
        )

    for what, share in (
        ("regions", "decode_regions_share"),
        ("whole images", "decode_whole_share"),
    ):
        if shares := [
            f"{name} {arm[share]:.0%}" for name, arm in result["arms"].items() if arm.get(share)
        ]:
            lines.append(f"Decoding {what} alone, as a share of CPU time: {', '.join(shares)}.")

    for name, arm in result["arms"].items():
        if (steady := arm.get("steady")) and steady.split(" of ")[0] != steady.split(" of ")[1]:
            lines.append(
                f"{name} became steady in {steady} trials; the others were measured as "
                "they were after the longest warm-up."
            )

        if arm.get("throttled_s"):
            lines.append(
                f"{name} was kept from running for {arm['throttled_s']:.1f} s of what was measured "
                "by the cgroup's CPU quota."
            )

    for name, tried in result["workers"].items():
        rates = ", ".join(
            f"{number}: {rate:,.0f}" for number, rate in tried["images_per_s"].items()
        )
        what = "workers" if "num_workers" in result["work"]["loaders"][name] else "threads"
        lines.append(
            f"{name} with {tried['kept']} {what}, the fastest of those tried (images/s by {what}: "
            f"{rates})."
        )

    return lines
