"""Makes the folder of a sweep into a page that compares its runs: a table and their curves.

Every run of a sweep calls `write_sweep` when it has ended; so the page has all runs that have ended
so far, also if the sweep is stopped.
"""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from dali_pipes.system.files import read_yaml, replacing
from dali_pipes.tools.drawing.page import render
from dali_pipes.tools.drawing.svg import COLORS, count_along, svg
from dali_pipes.tools.training_page.rows import read_rows, to_numbers
from dali_pipes.training.log.log import describe

TEMPLATE = Path(__file__).with_name("sweep.html")
_CURVES = 6  # runs whose curves are drawn: more would hide each other
_LETTERS = 40  # of a run's options in a legend, at most
_LOGARITHMIC = 20.0  # an option whose greatest value is so many times its least is drawn so


@dataclass(slots=True)
class Run:
    """A run of the sweep.

    Attributes:
        options: what it was given on the command line, by the names of the options.
        summary: of summary.json; empty: the run has not ended.
        epochs: the rows of epochs.csv.
    """

    folder: Path
    options: dict[str, str]
    summary: dict[str, Any] = field(default_factory=dict)
    epochs: list[dict[str, float]] = field(default_factory=list)
    label: str = ""

    def value(self, measured: str) -> float | None:
        """Returns the best that was measured, or the loss of the last epoch; None: not ended."""
        if self.summary.get("monitor") == measured:
            return float(self.summary[f"best_{measured}"])
        return self.summary.get("loss")


def write_sweep(folder: Path) -> str:
    """Writes report.html and sweep.csv into the folder of a sweep.

    Returns:
        A sentence that names the best run, and the page.
    """
    while True:
        runs = read_runs(folder)
        measured, mode = _monitored(runs)
        varied = _varied(runs)
        for run in runs:
            given = [
                f"{name}={run.options[name]}".removesuffix("=")
                for name in varied
                if name in run.options
            ]
            run.label = ", ".join(given) or f"run {run.folder.name}"
        # NaN is no value, and such a run is last, as one that has not ended
        compared = [
            (value, run)
            for run in runs
            if (value := run.value(measured)) is not None and value == value
        ]
        compared.sort(key=lambda each: each[0], reverse=mode == "max")
        best_first = [run for _, run in compared]
        ordered = best_first + [run for run in runs if run not in best_first]

        headline = "No run has ended"
        if compared:
            value, best = compared[0]
            of = f"the best of {len(runs)} run{'s' if len(runs) > 1 else ''}"
            headline = f"{best.label}: {describe((measured, value))}, {of}"
        columns, cells = _table(ordered, varied, measured)
        page = render(
            TEMPLATE,
            headline=headline,
            charts=_charts(compared, varied, measured),
            columns=columns,
            rows=[
                (run.folder.name if (run.folder / "report.html").exists() else None, row)
                for run, row in zip(ordered, cells, strict=True)
            ],
            left_out=max(0, len(compared) - _CURVES),
            shared=_shared(runs, varied),
        )
        table = io.StringIO()
        csv.writer(table, lineterminator="\n").writerows([columns, *cells])
        for name, text in {"report.html": page, "sweep.csv": table.getvalue()}.items():
            with replacing(folder / name) as aside:
                aside.write_text(text)
        # runs of a cluster end at the same time: whoever writes last must have seen all of them
        if len(_ended(folder)) == sum(bool(run.summary) for run in runs):
            return f"{headline}. The page of the sweep is {folder / 'report.html'}"


def read_runs(folder: Path) -> list[Run]:
    """Returns the runs in a sweep's folder, in the order of their names."""
    ended, runs = _ended(folder), []
    for config in folder.glob("*/config.yaml"):
        given = read_yaml(config).get("overrides", [])
        # ~NAME takes an option away, and has no value
        options = dict(each.lstrip("+").partition("=")[::2] for each in given)
        run = Run(config.parent, options)
        if config.parent in ended:
            run.summary = json.loads((config.parent / "summary.json").read_text())
        run.epochs = [to_numbers(row) for row in read_rows(config.parent / "epochs.csv")]
        runs.append(run)
    return sorted(runs, key=lambda run: (len(run.folder.name), run.folder.name))


def _ended(folder: Path) -> set[Path]:
    return {file.parent for file in folder.glob("*/summary.json")}


def _monitored(runs: Sequence[Run]) -> tuple[str, str]:
    """Returns what the runs are compared by, and which values are better."""
    found = {
        (run.summary.get("monitor", "loss"), run.summary.get("monitor_mode", "min"))
        for run in runs
        if run.summary
    }
    # runs that monitor different values have their training loss in common
    return found.pop() if len(found) == 1 else ("loss", "min")


def _varied(runs: Sequence[Run]) -> list[str]:
    """Returns the options that differ between the runs."""
    names = dict.fromkeys(name for run in runs for name in run.options)
    return [name for name in names if len({run.options.get(name) for run in runs}) > 1]


def _shared(runs: Sequence[Run], varied: Sequence[str]) -> list[str]:
    options = runs[0].options if runs else {}
    return [f"{name}={value}" for name, value in options.items() if name not in varied]


def _table(
    runs: Sequence[Run], varied: Sequence[str], measured: str
) -> tuple[list[str], list[list[str]]]:
    # what they are compared by stands beside their names, for those who look at it on a phone
    columns = ["run", f"best {measured}", *varied, "in epoch", "loss", "images/s", "waiting"]
    cells = []
    for run in runs:
        options, found = [run.options.get(name, "") for name in varied], run.summary
        value = run.value(measured) if found else None
        row = [run.folder.name, "" if value is None else f"{value:.5g}", *options]
        if found:
            at = found.get("best_epoch")
            row += [
                "" if at is None else f"{at + 1} of {found['epochs']}",
                f"{found['loss']:.4g}",
                f"{found['images_per_s']:,.0f}",
                f"{found['wait_share']:.0%}",
            ]
        else:
            row += [f"not ended, {len(run.epochs)} so far", "", "", ""]
        cells.append(row)
    return columns, cells


def _charts(
    compared: Sequence[tuple[float, Run]], varied: Sequence[str], measured: str
) -> list[tuple[str, str]]:
    """Returns the charts of runs that have ended, the best first, each with its caption."""
    name = measured.replace("_", " ")
    charts = []
    shown = [run for _, run in compared[:_CURVES]]
    # the table has what a run was given
    is_long = any(len(run.label) > _LETTERS for run in shown)
    curves = [
        (f"run {run.folder.name}" if is_long else run.label, _curve(run, measured)) for run in shown
    ]
    if any(len(at) > 1 for _, (at, _) in curves):
        charts.append((svg("runs", _draw_curves(curves, name), 3.0), f"{name} by epoch."))
    if len(varied) == 1 and len(points := _points(compared, varied[0])) > 1:
        caption = f"The best {name} of each run, by {varied[0]}."
        charts.append((svg("option", _draw_points(points, varied[0], name), 3.0), caption))
    return charts


def _curve(run: Run, measured: str) -> tuple[list[float], list[float]]:
    rows = [row for row in run.epochs if measured in row]
    return [row["epoch"] + 1 for row in rows], [row[measured] for row in rows]


def _points(compared: Sequence[tuple[float, Run]], option: str) -> list[tuple[float, float]]:
    """Returns the values by an option of numbers; none if it is not one."""
    try:
        return sorted((float(run.options[option]), value) for value, run in compared)
    except (KeyError, ValueError):
        return []


def _draw_curves(
    curves: Sequence[tuple[str, tuple[list[float], list[float]]]], name: str
) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        for (label, (at, values)), color in zip(curves, COLORS, strict=False):
            axes.plot(at, values, "o-", color=color, markersize=4, label=label)
        count_along(axes, "epoch")
        axes.set_ylabel(name)
        axes.legend(frameon=False, fontsize=9, loc="best")

    return draw


def _draw_points(
    points: Sequence[tuple[float, float]], option: str, name: str
) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        at = [place for place, _ in points]
        axes.plot(at, [value for _, value in points], "o-", color=COLORS[0], markersize=5)
        if at[0] > 0 and at[-1] / at[0] >= _LOGARITHMIC:
            axes.set_xscale("log")
        axes.set_xlabel(option)
        axes.set_ylabel(name)

    return draw
