"""dali-pipes migrate: what a DataLoader's steps become here, and how much faster that is.

`migrate` takes a function that makes the DataLoader. For a program, tools/migration finds the
DataLoader, and `compare_program` runs the A/B.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from dali_pipes.adapters.from_torch.conversion import Conversion
from dali_pipes.adapters.from_torch.reading import Step
from dali_pipes.errors import ConfigError
from dali_pipes.measure.arms.program_loader import ProgramLoaderConfig
from dali_pipes.measure.program_process import MeasuredProgram
from dali_pipes.measure.users_loader import work_of
from dali_pipes.system.files import make_run_folder
from dali_pipes.system.stdout import say
from dali_pipes.tools.benchmark.config import BenchmarkConfig
from dali_pipes.tools.benchmark.run import benchmark

console = Console(stderr=True)


def migrate(config: BenchmarkConfig, sweep: Path | None = None) -> None:
    """Prints what carries out each step and how far the loaders differ; then runs the A/B.

    migration.json, in the folder of the A/B, has both for its report.

    Args:
        sweep: as for `benchmark`.

    Raises:
        ConfigError: no function is named.
        NotConvertibleError: a part cannot be carried over; the printed table says which.
    """
    if not config.function or ":" not in config.function:
        raise ConfigError(
            "migrate needs the function that makes your DataLoader, or your program: dali-pipes "
            "migrate my_train:make_loader, or dali-pipes migrate -- train.py ARGS"
        )

    found = list[tuple[Sequence[Step], str]]()

    def compare(conversion: Conversion) -> None:
        compared = conversion.compared(config.loader, "auto")
        say(console, f"Compared with your loader: {compared}.")
        found.append((conversion.steps, compared))

    with work_of(config.function, config, console, compare) as (work, yours):
        folder = make_run_folder(sweep or Path(config.out))
        save_steps(folder, config.function, *found[0])
        benchmark(replace(work, loaders=work.loaders | {"yours": yours}), sweep, folder)


def save_steps(folder: Path, function: str, steps: Sequence[Step], compared: str) -> None:
    """Writes migration.json, from which the report has the table of a DataLoader's steps."""
    loader = {
        "place": function,
        "trains": True,
        "steps": [asdict(step) for step in steps],
        "refusal": "",
        "compared": compared,
    }
    result = {"loaders": [loader], "diff": "", "notes": []}
    (folder / "migration.json").write_text(json.dumps(result, indent=1))


def compare_program(
    config: BenchmarkConfig, yours: ProgramLoaderConfig, process: MeasuredProgram, folder: Path
) -> None:
    """Runs the A/B of the DataLoader of a program, in the process that has come to it.

    The program runs once only, so the arms are suspended between their trials.
    """
    loaders = config.loaders | {"yours": yours}
    measured = replace(config, loaders=loaders, restart=False)
    benchmark(measured, folder=folder, running={"yours": process})
