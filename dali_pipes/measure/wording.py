"""A result in words; the same for the terminal and the page."""

from typing import Any, cast

from dali_pipes.measure.results import Compared, Control, Interval, Result

CAVEATS = {
    "loader": "The loader alone. Training that computes longer than it loads gains nothing from a faster one.",
    "train": "One model at one batch size. A larger model hides a slow loader, a smaller one shows it.",
    "cold": "A first epoch. The files were dropped from the page cache of this machine, not from those of its disk or network.",
}
WARM = "Files come from the page cache, not from a disk or a network."
ALONE = "One job on the machine. Several at once share its cores: corun=N."
SHARED = "Other programs on this machine are not known; the control shows how far they disturbed."


def caveats(result: Result) -> list[str]:
    work = result["work"]
    lines = [CAVEATS[work["workload"]]]
    lines += [WARM] if work["workload"] != "cold" else []
    images, epoch = result["provenance"]["data"]["images"], work["epoch"]
    lines += [f"{images} images, repeated to epochs of {epoch:,}: all of them stay in memory."] if epoch > images else []
    lines += [ALONE] if work["corun"] == 1 else []
    for why in dict.fromkeys(result["not_measured"].values()):
        figures = [figure for figure, reason in result["not_measured"].items() if reason == why]
        lines.append(f"Not measured, {why}: {', '.join(figures)}.")
    return [*lines, SHARED, "Accuracy. Equal pixels within the stated difference are all that is shown of it."]


def headline(result: Result) -> str:
    """The best arm that did the same work as the baseline, and the claim about it."""
    arms, baseline = result["arms"], result["baseline"]
    compared = {arm: ratio for arm in arms if arm != baseline and (ratio := arms[arm].get("ratio")) and same_work(result, arm)}
    if arms[baseline]["failed"]:
        return f"{baseline}, the baseline, failed: no comparison"
    if not compared:
        return f"{baseline}: {arms[baseline]['images_per_s']:,.0f} images/s"
    best = max(compared, key=lambda arm: compared[arm]["images_per_s"]["estimate"])
    return comparison(best, baseline, compared[best], result["protocol"]["pairs"])


def same_work(result: Result, arm: str) -> bool:
    agreement = result["agreement"]
    return arm in agreement["arms"] or arm == agreement.get("reference")


def comparison(arm: str, baseline: str, ratio: Compared, pairs: int) -> str:
    speed, cost = ratio["images_per_s"], ratio["cpu_s_per_1000_images"]
    ratios = f"{interval(speed)} × its images/s, {interval(cost)} × its CPU time per image"
    match speed["claim"]:
        case "no interval":
            count = "1 pair" if pairs == 1 else f"{pairs} pairs"
            return f"{arm} against {baseline}: {ratios}; {count}: no interval, and nothing is claimed"
        case "untrustworthy":
            return f"Untrustworthy: {baseline} differs from itself, so nothing is claimed. {arm} against {baseline}: {ratios}"
        case "more":
            return f"{arm} is faster than {baseline}: {ratios}"
        case "less":
            return f"{arm} is slower than {baseline}: {ratios}"
    cheaper = f", but {arm} takes less CPU time" if cost["claim"] == "less" else ""
    return f"No difference in speed between {arm} and {baseline} beyond what {baseline} differs from itself{cheaper}: {ratios}"


def interval(ratio: Interval) -> str:
    if ratio["low"] is None:
        return f"{ratio['estimate']:.2f}"
    return f"{ratio['estimate']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"


def control_line(control: Control | None, baseline: str) -> str:
    if control is None:
        return "No control: it takes at least five pairs."
    speed, cost = control["images_per_s"], control["cpu_s_per_1000_images"]
    off = [name for name, ratio in (("images/s", speed), ("CPU time", cost)) if not _holds_one(ratio)]
    verdict = f"UNTRUSTWORTHY, nothing is claimed of {' and '.join(off)}" if off else "both hold 1"
    return f"Control, {baseline} against itself: images/s {interval(speed)}, CPU time {interval(cost)}: {verdict}."


def _holds_one(ratio: Interval) -> bool:
    return ratio["low"] is not None and ratio["high"] is not None and ratio["low"] <= 1 <= ratio["high"]


def agreement_line(result: Result) -> str:
    agreement = result["agreement"]
    if not agreement["images"]:
        return f"Pixels: {agreement['note']}."
    return (
        f"Pixels: {agreement['images']} images, same samples in the same order, |difference| of 255: "
        f"mean {agreement['mean']:.2f}, p99 {agreement['p99']:.0f}, max {agreement['max']:.0f}."
    )


def notes(result: Result) -> list[str]:
    """What a reader must know before trusting the figures."""
    lines = [f"{name} FAILED and has no figures: {arm['failed']}" for name, arm in result["arms"].items() if arm["failed"]]
    lines += [f"{name} was left out: it {arm['skipped']}." for name, arm in result["arms"].items() if arm["skipped"]]
    lines += [f"{name}: {arm['decodes']}." for name, arm in result["arms"].items() if "decodes" in arm]
    for cost in result["planning"]:
        ratios = f"CPU time {interval(cost['cpu_s_per_1000_images'])} ×, images/s {interval(cost['images_per_s'])} ×"
        lines.append(f"What the plan costs, {cost['planned']} against {cost['native']}, which decode alike: {ratios}.")
    for what, share in (("regions", "decode_regions_share"), ("whole images", "decode_whole_share")):
        if shares := [f"{name} {arm[share]:.0%}" for name, arm in cast(dict[str, Any], result["arms"]).items() if arm.get(share)]:
            lines.append(f"Decoding {what}, alone and with as many threads, as a share of CPU time: {', '.join(shares)}.")
    for name, arm in result["arms"].items():
        if (steady := arm.get("steady")) and steady.split(" of ")[0] != steady.split(" of ")[1]:
            lines.append(
                f"{name} became steady in {steady} trials; the others were measured as they were after the longest warm-up."
            )
        if arm.get("throttled_s"):
            lines.append(f"{name} was kept from running for {arm['throttled_s']:.1f} s of a window by the cgroup's CPU quota.")
        if result["work"]["workload"] == "cold" and "images_per_s" in arm:
            lines.append(f"{name}: {_cold(arm['resident'])}")
    for name, tried in result["workers"].items():
        rates = ", ".join(f"{workers}: {rate:,.0f}" for workers, rate in tried["images_per_s"].items())
        lines.append(f"{name} with {tried['kept']} workers, the fastest of those tried (images/s by workers: {rates}).")
    return lines


def _cold(resident: float | None) -> str:
    if resident is None:
        return "whether its files had left the page cache is unknown."
    return f"{resident:.0%} of its files lay in the page cache when it began."
