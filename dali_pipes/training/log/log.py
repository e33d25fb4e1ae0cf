"""The output of a run: a live line, a line per epoch, CSV files, TensorBoard and its likes, a log.

Within its `with` block a `Log` also receives what the package logs, such as bad samples.
"""

import csv
import datetime
import io
import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from dali_pipes.errors import DaliPipesError
from dali_pipes.system.files import open_replacing
from dali_pipes.training.log.loggers import FAILED, KILLED, SUCCESS, close_logger
from dali_pipes.training.log.meter import Meter, measured_of

Row = dict[str, Any]

package = logging.getLogger("dali_pipes")  # the loader logs bad samples here too

SHOWN_EVERY_S = 0.5  # between two updates of the live line
STEP_COLUMNS = ("epoch", "step", "loss", "lr")


class Log:
    """Writes into the run's folder and to stderr.

    Files: epochs.csv, rewritten after each epoch; steps.csv, one row per step; train.log.

    Args:
        folder: the run's folder; None: nothing is written or shown, as on every rank but the first.
        step: the step that the run continues with; rows of an earlier process for it and later
            steps are dropped.
        loggers: from `open_loggers`; they get what the CSV files get, and are closed at the end.
    """

    def __init__(self, folder: Path | None, step: int = 0, loggers: Sequence[Any] = ()):
        self._folder, self._loggers = folder, loggers
        self._to_file: list[logging.FileHandler] = []  # train.log, within the block
        self._console = Console(stderr=True, soft_wrap=True, quiet=folder is None)

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[status]}"),
        )
        self._progress = Progress(
            *columns, console=self._console, transient=True, disable=not self._console.is_terminal
        )
        self._task = self._progress.add_task("starting", status="")

        self._shown, self._loss, self._named_left_out = 0.0, float("nan"), False
        if folder:
            # rows of steps that are trained again go, and the file is appended to from then on
            steps = folder / "steps.csv"
            _write(steps, STEP_COLUMNS, _rows_before(steps, step))
            self._steps_file = steps.open("a", newline="")

    def say(self, text: str) -> None:
        if self._folder:
            package.info(text)

    def live(
        self,
        epoch: int,
        epochs: int,
        step: int,
        steps: int,
        epoch_steps: int,
        meter: Meter,
        ranks: int,
    ) -> None:
        """Updates the live line: progress, speed, share of waiting, and remaining time."""
        if self._progress.disable or time.monotonic() - self._shown < SHOWN_EVERY_S:
            return
        self._shown = time.monotonic()

        images_per_s, steps_per_s, waiting, fetching = meter.pace()
        seconds = round((steps - step - 1) / steps_per_s) if steps_per_s else None
        left = "" if seconds is None else f", {datetime.timedelta(seconds=seconds)} left"
        rate = f"{images_per_s * ranks:,.0f} images/s  {waiting_for(waiting, fetching)}{left}"

        self._progress.update(
            self._task,
            description=f"epoch {epoch + 1} of {epochs}",
            completed=step % epoch_steps + 1,
            total=epoch_steps,
            status=(
                f"step {step % epoch_steps + 1:,} of {epoch_steps:,}  loss {self._loss:.3f}  {rate}"
            ),
        )

    def step(self, row: Row) -> None:
        """Logs one step: its epoch, its number from the start of the run, its loss and its lr."""
        self._loss = row["loss"]
        if not self._folder:
            return

        csv.DictWriter(self._steps_file, STEP_COLUMNS).writerow(row)
        for logger in self._loggers:
            figures = {"train/loss": row["loss"], "train/lr": row["lr"]}
            logger.log_metrics(figures, row["step"])

    def epochs(self, rows: Sequence[Row], step: int, epochs: int) -> None:
        """Logs an epoch that has ended.

        Args:
            rows: the rows of all epochs so far; the last one is new.
            step: the next step, counted from the start of the run.
            epochs: how many epochs there are in all.
        """
        row = rows[-1]
        pace = (
            f"{row['images_per_s']:,.0f} images/s, "
            f"{waiting_for(row['wait_share'], row['fetch_wait_share'])}"
        )
        if row["fetched_bytes"]:
            pace += f", {row['fetched_bytes'] / 1e9:,.3g} GB fetched"
            pace += f", {row['retries']:.0f} requests sent again" if row["retries"] else ""

        scores = [f"loss {row['loss']:.3f}", *map(describe, measured_of(row).items())]
        self.say(f"epoch {row['epoch'] + 1} of {epochs}: {', '.join(scores)} ({pace})")

        if not self._folder:
            return
        # epochs that were not evaluated have no value there
        columns = dict.fromkeys(name for each in rows for name in each)
        _write(self._folder / "epochs.csv", list(columns), rows)
        for logger in self._loggers:
            logger.log_metrics({f"epoch/{name}": value for name, value in row.items()}, step)

    def classes(
        self,
        names: Sequence[str],
        measured: Mapping[str, Sequence[float]],
        confusion: Sequence[Sequence[int]] | None,
    ) -> None:
        """Writes what the last evaluation measured of each class. What is not one number for each
        class is left out, and named.

        Args:
            confusion: as in `Evaluation`.
        """
        of_classes = {name: each for name, each in measured.items() if len(each) == len(names)}
        left_out = measured.keys() - of_classes.keys()
        if left_out and not self._named_left_out:
            self._named_left_out = True  # it is the same in every epoch
            self.say(
                f"classes.csv leaves out {', '.join(sorted(left_out))}: not one number for each of "
                f"the {len(names)} classes"
            )
        if self._folder and names and of_classes:
            rows = [
                {"class": name, **{key: of_classes[key][place] for key in of_classes}}
                for place, name in enumerate(names)
            ]
            _write(self._folder / "classes.csv", ["class", *of_classes], rows)
        if self._folder and names and confusion and len(confusion) == len(names):
            matrix = [
                {"class": name, **dict(zip(names, row, strict=True))}
                for name, row in zip(names, confusion, strict=True)
            ]
            _write(self._folder / "confusion.csv", ["class", *names], matrix)

    def flush(self) -> None:
        """Has all that was logged on the disk, where a power cut leaves it."""
        if self._folder:
            self._steps_file.flush()
            for file in (self._steps_file, *(each.stream for each in self._to_file)):
                if file:
                    os.fsync(file.fileno())
            for logger in self._loggers:
                logger.save()

    def __enter__(self) -> Self:
        # first: on a terminal rich replaces sys.stderr by what prints above the live line
        self._progress.start()
        if self._folder:
            to_file = logging.FileHandler(self._folder / "train.log")
            to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            self._to_file.append(to_file)
            self._handlers: list[logging.Handler] = [to_file, logging.StreamHandler(sys.stderr)]
            package.setLevel(logging.INFO)
            # the handlers of the root logger would print each line once more
            package.propagate = False
            for handler in self._handlers:
                package.addHandler(handler)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._progress.stop()
        if self._folder:
            if isinstance(error, Exception):
                self._keep(error)
            self._steps_file.close()
            # a signal ends a run by SystemExit, after it has been saved
            status = SUCCESS if kind is None else KILLED if kind is SystemExit else FAILED
            for logger in self._loggers:
                close_logger(logger, status)
            package.propagate = True
            for handler in self._handlers:
                package.removeHandler(handler)
                handler.close()

    def _keep(self, error: Exception) -> None:
        """Writes what ends the run into train.log; on the terminal it comes later."""
        ours = isinstance(error, DaliPipesError)
        record = package.makeRecord(
            package.name,
            logging.ERROR,
            "",
            0,
            str(error) if ours else "the run failed",
            (),
            None if ours else (type(error), error, error.__traceback__),
        )
        self._handlers[0].handle(record)


def _write(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Replaces a CSV file by one with these rows: whole, or not at all if the process is killed."""
    with open_replacing(path) as binary:
        file = io.TextIOWrapper(binary, newline="", write_through=True)
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
        file.detach()  # what has opened the binary file closes it


def _rows_before(path: Path, step: int) -> list[Row]:
    """Returns the rows that an earlier process wrote for the steps before this one."""
    if not path.exists():
        return []

    # the end of the last line is missing if the process was killed while it wrote a part of its
    # buffer; the number of a step may be cut too, and then is another one
    with path.open(newline="") as file:
        lines = [line for line in file if line.endswith("\n")]
    rows = csv.DictReader(lines)
    return [row for row in rows if str(row["step"]).isdigit() and int(row["step"]) < step]


def describe(measured: tuple[str, float]) -> str:
    """What an evaluation measured, in words."""
    name, value = measured
    if name in ("top1", "top5"):
        return f"top-{name[3:]} {value:.1%}"
    return f"{name.replace('_', ' ')} {value:.4g}"


def waiting_for(waiting: float, fetching: float) -> str:
    # less than half a percent would be shown as 0
    return f"{waiting:.0%} waiting" + (f" ({fetching:.0%} for shards)" if fetching >= 0.005 else "")
