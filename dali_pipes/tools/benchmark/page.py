"""Makes a result into one self-contained HTML page.

`write_page` reads what a run has saved in its folder, has the charts drawn (charts.py), and fills
page.html.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from dali_pipes.measure.agreement import AMPLIFIED, SHOWN
from dali_pipes.measure.arms import makes_images
from dali_pipes.measure.printing import HEADINGS, cells
from dali_pipes.measure.results import Result, Trial
from dali_pipes.measure.wording import (
    agreement_line,
    caveats,
    control_line,
    headline,
    notes,
    same_work,
)
from dali_pipes.tools.benchmark.charts import per_trial, ratios
from dali_pipes.tools.drawing.page import picture, render

TEMPLATE = Path(__file__).with_name("page.html")
DETAILS = {  # figures of the second table: heading with unit, format
    "images_per_s_low": ("images/s from", "{:,.0f}"),
    "images_per_s_high": ("to", "{:,.0f}"),
    "first_batch_s": ("first batch, s", "{:.2f}"),
    "warm_up_s": ("warm-up, s", "{:.1f}"),
    "wait_share": ("time in next()", "{:.0%}"),
    "share_of_ceiling": ("of the ceiling", "{:.1%}"),
    "decode_regions_share": ("decoding regions, of CPU", "{:.0%}"),
    "decode_whole_share": ("decoding whole, of CPU", "{:.0%}"),
    "peak_rss_mib": ("RSS MiB", "{:,.0f}"),
    "threads": ("threads", "{:.0f}"),
    "processes": ("processes", "{:.0f}"),
    "pinned_mib": ("pinned MiB", "{:,.0f}"),
    "gpu_memory_mib": ("GPU MiB", "{:,.0f}"),
    "gpu_utilization": ("GPU busy", "{:.0%}"),
    "sm_utilization": ("SM busy", "{:.0%}"),
    "nvjpg_utilization": ("NVJPG busy", "{:.0%}"),
    "joules_per_1000_images": ("J/1,000", "{:.1f}"),
    "throttled_s": ("throttled, s", "{:.1f}"),
}
Table = tuple[Sequence[str], list[list[str]]]  # headings and rows


def write_page(folder: Path) -> None:
    """Reads result.json, trials/ and samples/ of a run's folder, and writes report.html there."""
    result: Result = json.loads((folder / "result.json").read_text())
    # NUMBER_PHASE_ROUND_ARM.json, and an arm's name may have anything in it
    trials = [
        json.loads(file.read_text())
        for file in sorted((folder / "trials").glob("*.json"))
        if file.name.split("_")[1] == "round"
    ]

    # an arm that failed, or was left out, has a reason and no figures
    measured = [arm for arm in result["arms"] if "images_per_s" in result["arms"][arm]]
    trials = [trial for trial in trials if trial["arm"] in measured]

    page = render(
        TEMPLATE,
        result=result,
        headline=headline(result),
        facts=[
            control_line(
                result["control"], result["baseline"], result["protocol"].get("restart", True)
            ),
            agreement_line(result),
            *notes(result),
        ],
        charts=list(_charts(result, trials, measured)),
        figures=(HEADINGS, [cells(result, arm) for arm in result["arms"]]),
        more=_details_table(result, measured),
        samples=list(_samples(result, folder / "samples")),
        amplified=AMPLIFIED,
        caveats=caveats(result),
        provenance=list(_facts(result["provenance"])),
        work=json.dumps(
            result["work"] | {"protocol": result["protocol"]}, indent=2, ensure_ascii=False
        ),
    )

    (folder / "report.html").write_text(page)


def _facts(provenance: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields what the provenance says, each group in a line."""
    for name, value in provenance.items():
        if isinstance(value, Mapping):
            known = (
                f"{key.replace('_', ' ')} {each}" for key, each in value.items() if each is not None
            )
            yield name, ", ".join(known)
        elif isinstance(value, list):
            yield name, " ".join(map(str, value))
        elif value is not None:
            yield name, str(value)


def _charts(
    result: Result, trials: Sequence[Trial], measured: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yields each chart as SVG, with its caption."""
    makers = [arm for arm in measured if _makes_images(result, arm)]

    if others := _compared(result):
        yield ratios(result, others), _ratio_caption(result, others)

    if measured:
        rates = {arm: result["arms"][arm]["images_per_s"] for arm in measured}
        # arms that only deliver ready images would squeeze all others together
        drawn = [
            arm
            for arm in measured
            if rates[arm] <= 10 * max(rates[maker] for maker in makers or measured)
        ]

        off = ", ".join(f"{arm} {rates[arm]:,.0f}" for arm in measured if arm not in drawn)
        caption = "Images per second. A dot is a trial, the line their median." + (
            f" Off the scale: {off}." if off else ""
        )

        yield per_trial(result, trials, "images_per_s", "images/s", drawn), caption

        cost = per_trial(
            result, trials, "cpu_s_per_1000_images", "CPU-s per 1,000 images", measured
        )
        yield cost, "CPU time of all processes of an arm. A dot is a trial."


def _ratio_caption(result: Result, arms: Sequence[str]) -> str:
    """The caption of what is drawn: a quick look has neither intervals nor a control."""
    drawn = [result["arms"][arm]["ratio"] for arm in arms]
    caption = "Speed against the baseline"
    if any(ratio and ratio["images_per_s"]["low"] is not None for ratio in drawn):
        caption += ", with 95 % intervals"
    control = result["control"]
    if control and control["images_per_s"]["low"] is not None:
        caption += ". Band: the baseline against itself"
    return f"{caption}."


def _compared(result: Result) -> list[str]:
    """The arms that a chart shows against the baseline: they make images, and were measured."""
    arms = [
        arm
        for arm in result["arms"]
        if arm != result["baseline"] and result["arms"][arm].get("ratio")
    ]
    return [arm for arm in arms if _makes_images(result, arm)]


def _makes_images(result: Result, arm: str) -> bool:
    return makes_images(result["work"]["loaders"][arm]["kind"])


def _samples(result: Result, folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yields the arms that follow the plan, with pictures as data URIs.

    The pictures are the arm's first images, and their differences from the reference arm's.
    """
    for arm in result["arms"]:
        if same_work(result, arm):
            kinds = ("", "_difference") if arm != result["agreement"]["reference"] else ("",)
            images, *differences = (
                [
                    picture(Image.open(folder / f"{arm}_{number}{kind}.png"))
                    for number in range(SHOWN)
                ]
                for kind in kinds
            )
            yield arm, images, differences[0] if differences else []


def _details_table(result: Result, measured: Sequence[str]) -> Table:
    """The second table, with the figures that at least one arm has.

    The page lists the others, with the reason, under "What this does not show".
    """
    arms = {arm: result["arms"][arm] for arm in measured}
    shown = [figure for figure in DETAILS if any(arm[figure] is not None for arm in arms.values())]

    rows = [
        [
            name,
            *(
                "" if arm[figure] is None else DETAILS[figure][1].format(arm[figure])
                for figure in shown
            ),
        ]
        for name, arm in arms.items()
    ]
    return ["arm", *(DETAILS[figure][0] for figure in shown)], rows
