"""The charts of a result, as SVG for its page or as files of their own."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from dali_pipes.measure.figures import trial_figures
from dali_pipes.measure.results import ComparedFigure, Result, Trial
from dali_pipes.system.telemetry import Sample
from dali_pipes.tools.drawing.svg import COLORS, INK, LINE, svg


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
            axes.annotate(
                f"{ratio['estimate']:.2f} ×",
                (ratio["estimate"], row),
                (0, 8),
                textcoords="offset points",
                horizontalalignment="center",
            )

        control = result["control"]["images_per_s"] if result["control"] else None
        if control and control["low"] is not None and control["high"] is not None:
            axes.axvspan(control["low"], control["high"], color=LINE, alpha=0.6, linewidth=0)
        axes.axvline(1, color=INK, linewidth=1)

        low, high = axes.get_xlim()
        if high > 4 * low > 0:  # a large gain would squeeze the ratios near 1
            _log_axis(axes)
        axes.margins(x=0.12)  # room for the numbers

        _rows(axes, arms)
        axes.set_xlabel(f"× the images/s of {result['baseline']}")

    return svg("ratios", draw, 0.9 + 0.42 * len(arms))


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

    return svg(figure, draw, 0.9 + 0.42 * len(arms))


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

    return svg("waits", draw, 3.2)


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

    return svg(f"timeline {trial['arm']}", draw, 2.0)


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
            right.set_ylabel("GPU %")


def _colour(result: Result, arm: str) -> str:
    return COLORS[list(result["arms"]).index(arm) % len(COLORS)]


def _rows(axes: Axes, arms: Sequence[str]) -> None:
    axes.set_yticks(range(len(arms)), arms)
    # the first arm is at the top
    axes.set_ylim(len(arms) - 0.4, -0.75)
    axes.grid(False, axis="y")


def _log_axis(axes: Axes) -> None:
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    # a short axis would have one label or none
    if high / low < 50:
        axes.xaxis.set_major_locator(LogLocator(subs=[1, 2, 5]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
