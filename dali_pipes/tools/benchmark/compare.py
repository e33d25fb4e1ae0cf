"""Shows several results side by side.

`compare` is for the same work on other machines or days, `collect_sweep` for a sweep over options;
`draw` makes a chart of one result.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from dali_pipes.errors import DaliPipesError
from dali_pipes.measure.printing import HEADINGS, cells, print_runs
from dali_pipes.measure.results import Result
from dali_pipes.system.provenance import SIMULATED
from dali_pipes.system.stdout import say
from dali_pipes.tools.benchmark.charts import ratios
from dali_pipes.tools.benchmark.page import compared
from dali_pipes.tools.drawing.svg import standalone

SCHEMA = 3


class CompareError(DaliPipesError):
    """The results cannot be compared."""


def load_result(run: Path) -> Result:
    """Reads the result of a run.

    Args:
        run: the run's folder, or its result.json.

    Raises:
        CompareError: there is no result, another version wrote it, or its GPU was simulated.
    """
    run = run.expanduser()

    file = run / "result.json" if run.is_dir() else run
    if not file.exists():
        missing = "no result.json in this folder" if run.is_dir() else "no such file or folder"
        written = "a benchmark writes one into a folder below its out, runs/benchmark"
        raise CompareError(f"{run}: no result of a benchmark: {missing}; {written}")

    try:
        result: Result = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise CompareError(f"{run}: no result of a benchmark ({error})") from None

    schema = result.get("schema") if isinstance(result, dict) else None
    if schema != SCHEMA:
        raise CompareError(
            f"{file}: schema {schema}, and this version reads {SCHEMA}; run the benchmark again"
        )

    gpu = result["provenance"]["hardware"].get("gpu")
    if gpu and gpu.endswith(SIMULATED):
        raise CompareError(
            f"{file}: measured on {gpu}, whose figures mean nothing; run the benchmark on a "
            "real GPU"
        )

    return result


def compare(runs: Sequence[Path], console: Console) -> None:
    """Prints a table of runs that did the same work.

    Raises:
        CompareError: the runs did different work; the text says how it differs.
    """
    results = {run: load_result(run) for run in runs}

    first, *others = runs
    for run in others:
        one, other = the_work(results[first]), the_work(results[run])
        names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
        differ = [f"{name} ({one.get(name)} and {other.get(name)})" for name in names]
        if differ:
            raise CompareError(
                f"{first} and {run} did not do the same work: {', '.join(differ)}; each alone "
                "is still right"
            )

    rows = [
        [str(number), *cells(result, arm)]
        for number, result in enumerate(results.values(), 1)
        for arm in result["arms"]
    ]
    print_runs(
        "the same work; × is against the baseline of the same run",
        ["run", *HEADINGS],
        rows,
        console,
    )

    for number, (run, result) in enumerate(results.items(), 1):
        provenance, cores = result["provenance"], result["protocol"]["cpus"]
        machine = provenance["hardware"]["gpu"] or provenance["hardware"]["cpu"]
        say(console, f"{number}: {run}, {provenance['date'][:10]}, {machine}, {cores} cores")


def draw(run: Path, file: Path) -> None:
    """Writes an SVG of each arm's speed against the baseline's, with its interval.

    Raises:
        CompareError: no arm was measured against the baseline.
    """
    result = load_result(run)
    if not (arms := compared(result)):
        raise CompareError(
            f"{run}: no arm was measured against {result['baseline']}; there is nothing to draw"
        )

    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(standalone(ratios(result, arms)))


def the_work(result: Result) -> dict[str, Any]:
    """Returns everything that must be equal for two rates to be comparable."""
    work = result["work"]
    equal = {name: work[name] for name in ("batch_size", "epoch", "workload", "model", "corun")}
    return equal | {"images": result["provenance"]["data"]["fingerprint"], **work["transform"]}


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
