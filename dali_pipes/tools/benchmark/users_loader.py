"""A benchmark with the user's own DataLoader, which a function makes: its steps are shown first."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from dali_pipes.adapters.from_torch.conversion import Conversion
from dali_pipes.adapters.transforms.reading import Step
from dali_pipes.errors import ConfigError
from dali_pipes.measure.users_loader import work_of
from dali_pipes.system.files import make_run_folder
from dali_pipes.system.stdout import say
from dali_pipes.tools.benchmark.config import BenchmarkConfig
from dali_pipes.tools.benchmark.page import save_steps
from dali_pipes.tools.benchmark.run import benchmark

console = Console(stderr=True)


def benchmark_users_loader(config: BenchmarkConfig, sweep: Path | None = None) -> None:
    """Prints what carries out each step and how far the loaders differ; then runs the A/B.

    The report of the A/B has both.

    Args:
        sweep: as for `benchmark`.

    Raises:
        ConfigError: no function is named.
        NotConvertibleError: a part cannot be carried over; the printed table says which.
    """
    if not config.function or ":" not in config.function:
        raise ConfigError(
            f"function is {config.function}; it takes module:function, which makes your "
            "DataLoader: dali-pipes benchmark my_train:make_loader"
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
