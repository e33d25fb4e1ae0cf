"""The charts of a result, as SVG for the page of a run or as files of their own.

Charts are drawn in placeholder colors, which `_svg` replaces by variables of the page's CSS, so
that they follow its light or dark colors; `standalone` makes a chart a file of its own.
"""

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from dali_pipes.measure.figures import trial_figures
from dali_pipes.measure.results import ComparedFigure, Result, Trial
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

    return _svg("ratios", draw, 0.9 + 0.42 * len(arms))


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

    return _svg(figure, draw, 0.9 + 0.42 * len(arms))


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

    return _svg("waits", draw, 3.2)


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

    return _svg(f"timeline {trial['arm']}", draw, 2.0)


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


def _svg(name: str, draw: Callable[[Axes], None], height: float) -> str:
    # the salt makes the ids of elements, which must differ between the charts of a page, and be the
    # same when the page is written again
    with mpl.rc_context(_STYLE | {"svg.hashsalt": name}):
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
