"""Makes a run's folder into one self-contained HTML page: curves, classes, pictures, provenance.

`write_page` reads only what the run has left in its folder.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from PIL import Image

from dali_pipes.tools.drawing.page import picture, render
from dali_pipes.tools.drawing.svg import COLORS, INK, count_along, svg
from dali_pipes.tools.training_page.rows import Rows, read_rows, to_numbers
from dali_pipes.training.log.examples import EXAMPLES
from dali_pipes.training.log.log import describe
from dali_pipes.training.log.meter import measured_of

TEMPLATE = Path(__file__).with_name("page.html")
_CONFUSED = 12  # pairs of classes that are listed
_MATRIX = 20  # most classes of a matrix
_CLASSES = 50  # rows of the table of classes
_SMOOTH = 50  # spans that the steps of a long run are averaged over


def write_page(folder: Path) -> Path:
    """Writes report.html into the folder of a run that has ended, and returns its path."""
    summary = json.loads((folder / "summary.json").read_text())
    epochs, steps = read_rows(folder / "epochs.csv"), read_rows(folder / "steps.csv")
    evaluated = [to_numbers(row) for row in epochs if row.get("val_images")]
    matrix = read_rows(folder / "confusion.csv")
    classes = read_rows(folder / "classes.csv")

    page = render(
        TEMPLATE,
        headline=_headline(summary, evaluated),
        conclusion=summary["conclusion"],
        charts=[chart for chart in _charts(epochs, steps) if chart],
        classes=_class_table(classes),
        classes_left_out=max(0, len(classes) - _CLASSES),
        confusions=_confusions(matrix),
        matrix=_shade(matrix) if 0 < len(matrix) <= _MATRIX else [],
        examples=_examples(folder),
        facts=_facts(summary),
        left_out=_omissions(summary),
        options=_options(folder),
    )
    path = folder / "report.html"
    path.write_text(page)
    return path


def _options(folder: Path) -> str:
    # a run that was resumed from a checkpoint of another folder has no config.yaml
    began = folder / "config.yaml"
    resumed = sorted(folder.glob("config_from_step_*.yaml"), key=lambda path: path.stat().st_mtime)
    return (began if began.exists() else resumed[-1]).read_text()


def _headline(summary: dict[str, Any], evaluated: Sequence[dict[str, float]]) -> str:
    epochs = f"{summary['epochs']} epoch{'s' if summary['epochs'] > 1 else ''}"
    if not evaluated:
        return f"Training loss {summary['loss']:.4g} after {epochs}"
    last = evaluated[-1]
    best = next((name for name in summary if name.startswith("best_") and name != "best_epoch"), "")
    name = best.removeprefix("best_")
    if not name or name not in last:
        return f"{', '.join(map(describe, measured_of(last).items()))} after {epochs}"
    text = f"{describe((name, last[name]))} after {epochs}"
    if len(evaluated) == 1:
        return text
    if summary["best_epoch"] == last["epoch"]:
        return f"{text}, the best epoch"
    return f"{text}; best {describe((name, summary[best]))}, after {summary['best_epoch'] + 1}"


def _charts(epochs: Rows, steps: Rows) -> list[tuple[str, str]]:
    """Returns each chart as SVG, with its caption."""
    rows = [to_numbers(row) for row in epochs]
    evaluated = [row for row in rows if "val_images" in row]
    ends = _ends(steps)
    # the steps before a checkpoint of another folder are in that folder
    charts = []
    if steps:
        text = "Loss by step: of each batch, and of the evaluations."
        charts.append((_loss(steps, evaluated, ends), text))

    names = [name for name in measured_of(evaluated[-1] if evaluated else {}) if name != "val_loss"]
    shares = [name for name in names if all(0 <= row[name] <= 1 for row in evaluated)]
    for group in (shares, [name for name in names if name not in shares]):
        if group and len(evaluated) > 1:
            charts.append((_measured(evaluated, group), "What the evaluations measured, by epoch."))
    if steps:
        charts.append((_rates(steps), "The learning rate by step."))
    charts.append(
        (
            _speed(rows),
            "Images a second by epoch; bars: the share of the time spent waiting for them.",
        )
    )
    return charts


def _ends(steps: Rows) -> dict[int, int]:
    """Returns the number of each epoch's last step."""
    return {int(row["epoch"]): int(row["step"]) for row in steps}


def _loss(steps: Rows, evaluated: Sequence[dict[str, float]], ends: dict[int, int]) -> str:
    def draw(axes: Axes) -> None:
        at, losses = (np.array([float(row[name]) for row in steps]) for name in ("step", "loss"))
        dots = len(at) <= 5 * _SMOOTH
        axes.plot(at, losses, color=COLORS[7], linewidth=1, alpha=1 if dots else 0.4)
        if not dots:  # the mean of each span, since single steps hide the course
            spans = [span for span in np.array_split(np.arange(len(at)), 4 * _SMOOTH) if len(span)]
            axes.plot(
                [at[span].mean() for span in spans],
                [losses[span].mean() for span in spans],
                color=COLORS[0],
                linewidth=2,
            )
        axes.lines[-1].set_label("training")
        found = [
            (ends[int(row["epoch"])], row["val_loss"])
            for row in evaluated
            if "val_loss" in row and int(row["epoch"]) in ends
        ]
        if found:
            axes.plot(*zip(*found, strict=True), "o-", color=COLORS[1], label="validation")
        axes.set_ylim(bottom=min(0, losses.min()))
        count_along(axes, "step")
        axes.set_ylabel("loss")
        axes.legend(frameon=False, fontsize=10)

    return svg("loss", draw, 3.0)


def _measured(evaluated: Sequence[dict[str, float]], names: Sequence[str]) -> str:
    def draw(axes: Axes) -> None:
        for number, name in enumerate(names):
            axes.plot(
                [row["epoch"] + 1 for row in evaluated],
                [row[name] for row in evaluated],
                "o-",
                color=COLORS[number % len(COLORS)],
                markersize=4,
                label=name.replace("_", " "),
            )
        count_along(axes, "epoch")
        axes.legend(frameon=False, fontsize=10)

    return svg(f"measured {names[0]}", draw, 3.0)


def _rates(steps: Rows) -> str:
    def draw(axes: Axes) -> None:
        axes.plot(
            [int(row["step"]) for row in steps],
            [float(row["lr"]) for row in steps],
            color=COLORS[2],
            linewidth=2,
        )
        axes.set_ylim(bottom=0)
        count_along(axes, "step")
        axes.set_ylabel("learning rate")

    return svg("rate", draw, 2.2)


def _speed(rows: Sequence[dict[str, float]]) -> str:
    def draw(axes: Axes) -> None:
        at = [row["epoch"] + 1 for row in rows]
        axes.plot(at, [row["images_per_s"] for row in rows], "o-", color=COLORS[0], markersize=4)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("images/s")
        count_along(axes, "epoch")
        right = axes.twinx()
        right.bar(
            at, [100 * row["wait_share"] for row in rows], color=COLORS[1], alpha=0.5, width=0.5
        )
        right.set_ylim(0, 100)
        right.set_ylabel("% waiting", color=INK)
        right.grid(False)

    return svg("speed", draw, 2.2)


def _class_table(classes: Rows) -> tuple[list[str], list[list[str]]]:
    """The classes with the lowest of the first measurement first; those without one are last."""
    if not classes:
        return [], []
    names = list(classes[0])

    def order(row: dict[str, str]) -> tuple[bool, float]:
        value = float(row[names[1]])
        return math.isnan(value), value

    rows = sorted(classes, key=order)[:_CLASSES]
    cells = [[row["class"], *(_spell(float(row[name])) for name in names[1:])] for row in rows]
    return [name.replace("_", " ") for name in names], cells


def _spell(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def _confusions(matrix: Rows) -> list[tuple[str, str, int]]:
    """The pairs of a class and another that was found in its place, the most frequent first."""
    pairs = [
        (row["class"], name, int(count))
        for row in matrix
        for name, count in row.items()
        if name not in ("class", row["class"]) and int(count)
    ]
    return sorted(pairs, key=lambda pair: -pair[2])[:_CONFUSED]


def _shade(matrix: Rows) -> list[tuple[str, list[tuple[str, int, int]]]]:
    """Each class with its cells: the class that was found, the count, and the share in percent."""
    rows = []
    for row in matrix:
        counts = {name: int(count) for name, count in row.items() if name != "class"}
        total = max(1, sum(counts.values()))
        cells = [(name, count, round(100 * count / total)) for name, count in counts.items()]
        rows.append((row["class"], cells))
    return rows


def _examples(folder: Path) -> list[dict[str, Any]]:
    """Pictures with what was found, those that are wrong first."""
    file = folder / "examples.json"
    if not file.exists():
        return []
    rows = json.loads(file.read_text())
    rows.sort(key=lambda row: row["right"] is not False)
    return [row | {"picture": picture(_open_example(folder, row["picture"]))} for row in rows]


def _open_example(folder: Path, name: str) -> Image.Image:
    # the file may have come with the folder: no place outside, and none of Pillow's formats that
    # start a program
    return Image.open(folder / EXAMPLES / Path(name).name, formats=["WEBP"])


def _facts(summary: dict[str, Any]) -> list[tuple[str, str]]:
    origin = summary["provenance"]
    data, machine = origin.get("data", {}), origin.get("hardware", {})
    sizes = data.get("median_size", [])
    facts = {
        "training images": f"{data.get('images', 0):,}, {data.get('mean_kib', 0)} KiB on average"
        + (f", middle size {sizes[1]:.0f} × {sizes[0]:.0f}" if len(sizes) == 2 else ""),
        "validation images": f"{summary['val_images']:,}" if summary["val_images"] else "none",
        "trained on": f"{summary['ranks']} × {summary['device']}, batches of "
        f"{summary['global_batch_size']:,} images",
        "time": f"{summary['seconds']:,.0f} s of training, "
        f"{summary['images_per_s']:,.0f} images/s, "
        f"{summary['wait_share']:.0%} waiting for images",
        "CPU time": f"{summary['cpu_s_per_1000_images']:.1f} s for 1,000 images",
        "bad images": f"{len(summary['bad_samples'])}"
        + "".join(f"; {bad['path']}: {bad['problem']}" for bad in summary["bad_samples"][:5]),
        "machine": ", ".join(str(machine[key]) for key in ("cpu", "gpu") if machine.get(key)),
        "commit": str(origin.get("commit") or ""),
    }
    return [(name, text) for name, text in facts.items() if text]


def _omissions(summary: dict[str, Any]) -> list[str]:
    return [
        f"{split}: {omission['number']:,} × {omission['kind']}"
        for split, omissions in summary["left_out"].items()
        for omission in omissions
    ]
