"""Makes a result into one self-contained HTML page, with charts as SVG.

`write_page` reads what a run has saved in its folder, draws the charts with Matplotlib, and fills
page.html. Charts are drawn in placeholder colors, which `_svg` replaces by variables of the page's
CSS, so that they follow its light or dark colors; `standalone` makes a chart a file of its own.
"""

import base64
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
import numpy as np
from jinja2 import Environment, StrictUndefined
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from PIL import Image

from dali_pipes.measure.agreement import AMPLIFIED, SHOWN
from dali_pipes.measure.arms import makes_images
from dali_pipes.measure.figures import trial_figures
from dali_pipes.measure.results import ComparedFigure, Result, Trial
from dali_pipes.measure.wording import (
    HEADINGS,
    agreement_line,
    caveats,
    cells,
    control_line,
    headline,
    notes,
    same_work,
)
from dali_pipes.measure.workload import from_dict
from dali_pipes.system.telemetry import Sample

PALETTE = Path(__file__).with_name("palette.css").read_text()
# inches; about the width of the page's column, so that letters are as large as the page's
WIDTH = 5.2
# placeholders, which no other part of an SVG contains
INK, LINE = "#ab1001", "#ab1002"
COLORS = [f"#ab20{number:02x}" for number in range(10)]
_CSS = {INK: "var(--ink)", LINE: "var(--line)"} | {
    color: f"var(--c{number})" for number, color in enumerate(COLORS)
}
_STYLE = {
    "svg.fonttype": "none",  # letters stay text, in the page's font
    "font.size": 11,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": LINE,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
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


def ratios(result: Result, arms: Sequence[str]) -> str:
    """A chart of each arm's images/s against the baseline's, with its interval.

    The band is the control, the baseline against itself.
    """

    def draw(axes: Axes) -> None:
        for row, arm in enumerate(arms):
            if not (compared := result["arms"][arm]["ratio"]):
                continue
            ratio = compared["images_per_s"]
            if ratio["low"] is not None and ratio["high"] is not None:
                axes.plot(
                    [ratio["low"], ratio["high"]],
                    [row, row],
                    color=_colour(result, arm),
                    linewidth=4,
                    solid_capstyle="butt",
                )
            axes.plot(ratio["estimate"], row, "o", color=_colour(result, arm), markersize=9)

        control = result["control"]["images_per_s"] if result["control"] else None
        if control and control["low"] is not None and control["high"] is not None:
            axes.axvspan(control["low"], control["high"], color=LINE, alpha=0.6, linewidth=0)
        axes.axvline(1, color=INK, linewidth=1)

        low, high = axes.get_xlim()
        if high > 4 * low > 0:  # a large gain would squeeze the ratios near 1
            _log_axis(axes)

        _rows(axes, arms)
        axes.set_xlabel(f"× the images/s of {result['baseline']}")

    return _svg(draw, 0.9 + 0.42 * len(arms))


def standalone(chart: str) -> str:
    """Completes a chart to an SVG file, with the page's colors."""
    # inside an HTML page an SVG needs no namespaces, in a file it does
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    style = f"<style>{PALETTE}text {{ font-family: system-ui, sans-serif !important; }}</style>"
    return re.sub(r"<svg([^>]*)>", rf"<svg {names}\1>{style}", chart, count=1)


def per_trial(
    result: Result, trials: Sequence[Trial], figure: ComparedFigure, label: str, arms: Sequence[str]
) -> str:
    """A chart with a dot for each trial of each arm, and a line for the arm's median."""

    def draw(axes: Axes) -> None:
        for row, arm in enumerate(arms):
            values = [trial_figures(trial)[figure] for trial in trials if trial["arm"] == arm]

            axes.plot(
                values,
                [row] * len(values),
                "o",
                color=_colour(result, arm),
                alpha=0.55,
                markersize=7,
                markeredgewidth=0,
            )
            axes.plot(
                [np.median(values)] * 2,
                [row - 0.3, row + 0.3],
                color=_colour(result, arm),
                linewidth=3,
            )

        axes.set_xlim(left=0)
        _rows(axes, arms)
        axes.set_xlabel(label)

    return _svg(draw, 0.9 + 0.42 * len(arms))


def waits(result: Result, trials: Sequence[Trial], arms: Sequence[str]) -> str:
    """A chart of the cumulative share of batches over the time that they were waited for."""

    def draw(axes: Axes) -> None:
        shares = np.linspace(0, 1, 201)
        for arm in arms:
            times = [
                wait
                for trial in trials
                if trial["arm"] == arm
                for job in trial["jobs"]
                for wait in job["waits_s"]
            ]

            # 1 µs is added, since a time of 0 has no place on a logarithmic axis
            axes.plot(
                np.quantile(times, shares) * 1e3 + 1e-3,
                shares * 100,
                color=_colour(result, arm),
                linewidth=2,
                label=arm,
            )

        _log_axis(axes)
        axes.set_xlabel("ms in next() for one batch")
        axes.set_ylabel("% of batches")
        axes.legend(frameon=False, fontsize=10)

    return _svg(draw, 3.2)


def timeline(result: Result, trial: Trial) -> str:
    """A chart of the CPU cores in use and of the GPUs' utilization during one trial.

    The measured span is shaded.
    """
    samples = trial["samples"]
    start = samples[0]["at"]
    at = np.array([sample["at"] for sample in samples]) - start
    # from a counter of CPU seconds, so a core is the slope between two samples
    cores = np.diff([sample["cpu_s"] for sample in samples]) / np.diff(at)

    def draw(axes: Axes) -> None:
        span = [
            min(job["start"] for job in trial["jobs"]) - start,
            max(job["end"] for job in trial["jobs"]) - start,
        ]
        axes.axvspan(*span, color=LINE, alpha=0.5, linewidth=0)

        axes.plot(
            at[1:], cores, color=_colour(result, trial["arm"]), linewidth=2, drawstyle="steps-pre"
        )

        axes.set_ylim(0, max(result["protocol"]["cpus"], cores.max(initial=0)) * 1.1)
        axes.set_ylabel("CPU cores")
        axes.set_xlabel(f"{trial['arm']}: seconds of one trial")

        _add_gpu(axes, samples, at)

    return _svg(draw, 2.0)


def _add_gpu(axes: Axes, samples: Sequence[Sample], at: np.ndarray) -> None:
    for figure, style in (("utilization", "--"), ("nvjpg_utilization", ":")):
        seen = [
            (time, np.mean([gpu[figure] for gpu in sample["gpus"]]) * 100)
            for time, sample in zip(at, samples, strict=True)
            if sample["gpus"] and all(gpu[figure] is not None for gpu in sample["gpus"])
        ]
        if seen:
            right = axes.twinx()
            right.plot(*zip(*seen, strict=True), style, color=INK, linewidth=1.5)
            right.set_ylim(0, 105)
            right.set_ylabel("GPU %  (dotted: JPEG)")


def _colour(result: Result, arm: str) -> str:
    return COLORS[list(result["arms"]).index(arm) % len(COLORS)]


def _rows(axes: Axes, arms: Sequence[str]) -> None:
    axes.set_yticks(range(len(arms)), arms)
    # the first arm is at the top
    axes.set_ylim(len(arms) - 0.4, -0.6)
    axes.grid(False, axis="y")


def _log_axis(axes: Axes) -> None:
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    # a short axis would have one label or none
    if high / low < 50:
        axes.xaxis.set_major_locator(LogLocator(subs=[1, 2, 5]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _svg(draw: Callable[[Axes], None], height: float) -> str:
    # the salt makes the ids of elements, which must differ between the charts of a page
    with mpl.rc_context(_STYLE | {"svg.hashsalt": repr(draw)}):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        draw(figure.subplots())
        out = io.StringIO()
        figure.savefig(
            out,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )

    svg = out.getvalue()
    # what only a file of its own needs; without a fixed size it scales with the column
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r' width="[\d.]+pt" height="[\d.]+pt"', "", svg, count=1)

    return re.sub("|".join(_CSS), lambda color: _CSS[color[0]], svg)


def write_page(folder: Path) -> None:
    """Reads result.json, trials/ and samples/ of a run's folder, and writes report.html there."""
    result: Result = json.loads((folder / "result.json").read_text())
    # NUMBER_PHASE_ROUND_ARM.json, and an arm's name may have anything in it
    trials = [
        json.loads(file.read_text())
        for file in sorted((folder / "trials").glob("*.json"))
        if file.name.split("_")[1] == "round"
    ]

    measured = [arm for arm in result["arms"] if "images_per_s" in result["arms"][arm]]
    trials = [trial for trial in trials if trial["arm"] in measured]

    pages = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    page = pages.from_string(TEMPLATE.read_text()).render(
        result=result,
        palette=PALETTE,
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
        provenance=json.dumps(result["provenance"], indent=2, ensure_ascii=False),
        work=json.dumps(
            result["work"] | {"protocol": result["protocol"]}, indent=2, ensure_ascii=False
        ),
    )

    (folder / "report.html").write_text(page)


def _charts(
    result: Result, trials: Sequence[Trial], measured: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yields each chart as SVG, with its caption."""
    makers = [arm for arm in measured if _makes_images(result, arm)]

    if others := compared(result):
        yield (
            ratios(result, others),
            "Speed against the baseline: 95 % intervals. Band: the baseline against itself.",
        )

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

        yield waits(result, trials, measured), "How long batches are waited for."

    for arm in measured:
        trial = _median_trial([trial for trial in trials if trial["arm"] == arm])
        # a line through the spans between samples takes two of them
        if len(trial["samples"]) > 2:
            yield timeline(result, trial), f"{arm}, its median trial; shaded: what was measured."


def compared(result: Result) -> list[str]:
    """The arms that a chart shows against the baseline: they make images, and were measured."""
    arms = [
        arm
        for arm in result["arms"]
        if arm != result["baseline"] and result["arms"][arm].get("ratio")
    ]
    return [arm for arm in arms if _makes_images(result, arm)]


def _makes_images(result: Result, arm: str) -> bool:
    return makes_images(from_dict(result["work"]["loaders"][arm]))


def _median_trial(trials: Sequence[Trial]) -> Trial:
    return sorted(trials, key=lambda trial: trial_figures(trial)["images_per_s"])[len(trials) // 2]


def _samples(result: Result, folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yields the arms that follow the plan, with pictures as data URIs.

    The pictures are the arm's first images, and their differences from the reference arm's.
    """
    for arm in result["arms"]:
        if same_work(result, arm):
            kinds = ("", "_difference") if arm != result["agreement"]["reference"] else ("",)
            images, *differences = (
                [_image(folder / f"{arm}_{number}{kind}.png") for number in range(SHOWN)]
                for kind in kinds
            )
            yield arm, images, differences[0] if differences else []


def _image(file: Path) -> str:
    out = io.BytesIO()
    image = Image.open(file)
    # the page contains the pictures, so they are small
    image.thumbnail((160, 160))
    image.save(out, "WEBP", quality=90)
    return f"data:image/webp;base64,{base64.b64encode(out.getvalue()).decode()}"


def _details_table(result: Result, measured: Sequence[str]) -> Table:
    """The second table, with the figures that at least one arm has.

    The page lists the others, with the reason, under "What this does not show".
    """
    arms = {arm: cast(dict[str, Any], result["arms"][arm]) for arm in measured}
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
