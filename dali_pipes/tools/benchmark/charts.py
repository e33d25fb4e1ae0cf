"""The charts of a result, as SVG for its page or as files of their own."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from dali_pipes.measure.figures import trial_figures
from dali_pipes.measure.results import ComparedFigure, Result, Trial
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
