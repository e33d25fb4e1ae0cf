"""Compares the runs of a sweep in a table.

Every run of a sweep calls `write_sweep` when it has ended; so the table has all runs that have
ended so far, also if the sweep is stopped.
"""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dali_pipes.system.files import read_yaml, replacing
from dali_pipes.training.log.log import describe


@dataclass(slots=True)
class Run:
    """A run of the sweep.

    Attributes:
        options: what it was given on the command line, by the names of the options.
        epochs: the number of those that it has trained.
        summary: of summary.json; empty: the run has not ended.
    """

    folder: Path
    options: dict[str, str]
    epochs: int
    summary: dict[str, Any] = field(default_factory=dict)

    def value(self, measured: str) -> float | None:
        """Returns the best that was measured, or the loss of the last epoch; None: not ended."""
        if self.summary.get("monitor") == measured:
            return float(self.summary[f"best_{measured}"])
        return self.summary.get("loss")

    def label(self, varied: Sequence[str]) -> str:
        """Returns its options of these names, or its number if it has none of them."""
        given = [
            f"{name}={self.options[name]}".removesuffix("=")
            for name in varied
            if name in self.options
        ]
        return ", ".join(given) or f"run {self.folder.name}"


def write_sweep(folder: Path) -> str:
    """Writes sweep.csv into the folder of a sweep.

    Returns:
        A sentence that names the best run, and the table.
    """
    while True:
        ended = _ended(folder)
        runs = read_runs(folder, ended)
        measured, mode = _monitored(runs)
        varied = _varied(runs)
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
            headline = f"{best.label(varied)}: {describe((measured, value))}, {of}"
        table = io.StringIO()
        csv.writer(table, lineterminator="\n").writerows(_table(ordered, varied, measured))
        with replacing(folder / "sweep.csv") as aside:
            aside.write_text(table.getvalue())
        # runs of a cluster end at the same time: whoever writes last must have seen all of them
        if _ended(folder) == ended:
            return f"{headline}. The table of the sweep is {folder / 'sweep.csv'}"


def read_runs(folder: Path, ended: set[Path]) -> list[Run]:
    """Returns the runs in a sweep's folder, in the order of their names.

    Args:
        ended: the folders of those that have.
    """
    configs = {file.parent: file for file in sorted(folder.glob("*/config_from_step_*.yaml"))}
    # a run that was resumed from a checkpoint of another folder has no config.yaml
    configs |= {file.parent: file for file in folder.glob("*/config.yaml")}
    runs = []
    for path, config in configs.items():
        given = read_yaml(config).get("overrides", [])
        # ~NAME takes an option away, and has no value
        options = dict(each.lstrip("+").partition("=")[::2] for each in given)
        run = Run(path, options, _count_epochs(path / "epochs.csv"))
        if path in ended:
            run.summary = json.loads((path / "summary.json").read_text())
        runs.append(run)
    return sorted(runs, key=lambda run: (len(run.folder.name), run.folder.name))


def _ended(folder: Path) -> set[Path]:
    return {file.parent for file in folder.glob("*/summary.json")}


def _count_epochs(file: Path) -> int:
    if not file.exists():
        return 0
    with file.open(newline="") as lines:
        return sum(1 for _ in csv.DictReader(lines))


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


def _table(runs: Sequence[Run], varied: Sequence[str], measured: str) -> list[list[str]]:
    """Returns the names of the columns, and a row for each run."""
    rows = [["run", f"best {measured}", *varied, "in epoch", "loss", "images/s", "waiting"]]
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
            row += [f"not ended, {run.epochs} so far", "", "", ""]
        rows.append(row)
    return rows
