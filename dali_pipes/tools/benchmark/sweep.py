"""Shows the runs of a sweep over options in one table."""

import json
from pathlib import Path

from rich.console import Console

from dali_pipes.errors import DaliPipesError
from dali_pipes.measure.printing import HEADINGS, cells, print_runs
from dali_pipes.measure.results import Result
from dali_pipes.system.provenance import SIMULATED

SCHEMA = 3


class ResultError(DaliPipesError):
    """A result cannot be read."""


def load_result(run: Path) -> Result:
    """Reads the result of a run.

    Args:
        run: the run's folder, or its result.json.

    Raises:
        ResultError: there is no result, another version wrote it, or its GPU was simulated.
    """
    run = run.expanduser()

    file = run / "result.json" if run.is_dir() else run
    if not file.exists():
        missing = "no result.json in this folder" if run.is_dir() else "no such file or folder"
        written = "a benchmark writes one into a folder below its out, runs/benchmark"
        raise ResultError(f"{run}: no result of a benchmark: {missing}; {written}")

    try:
        result: Result = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ResultError(f"{run}: no result of a benchmark ({error})") from None

    schema = result.get("schema") if isinstance(result, dict) else None
    if schema != SCHEMA:
        raise ResultError(
            f"{file}: schema {schema}, and this version reads {SCHEMA}; run the benchmark again"
        )

    gpu = result["provenance"]["hardware"].get("gpu")
    if gpu and gpu.endswith(SIMULATED):
        raise ResultError(
            f"{file}: measured on {gpu}, whose figures mean nothing; run the benchmark on a "
            "real GPU"
        )

    return result


def collect_sweep(folder: Path, console: Console) -> None:
    """Prints a table of the completed runs of a sweep, with the options in which they differ.

    The table is also written to sweep.txt in the sweep's folder.
    """
    results = [load_result(file) for file in sorted(folder.glob("*/result.json"))]

    given_overrides = [result["provenance"]["overrides"] for result in results]
    options = [
        # "+" adds an option in Hydra; overrides such as "~name" have no value
        dict(override.lstrip("+").split("=", 1) for override in overrides if "=" in override)
        for overrides in given_overrides
    ]
    names = list(dict.fromkeys(name for option in options for name in option))
    swept = [name for name in names if len({option.get(name) for option in options}) > 1]

    rows = [
        [*(values.get(name, "") for name in swept), *cells(result, arm)]
        for values, result in zip(options, results, strict=True)
        for arm in result["arms"]
    ]

    title = f"{len(results)} runs of this sweep; × is against the baseline of the same run"
    print_runs(title, [*swept, *HEADINGS], rows, console)
    # a file has no width as a terminal has, so one is given
    with (folder / "sweep.txt").open("w") as file:
        print_runs(title, [*swept, *HEADINGS], rows, Console(file=file, width=200))
