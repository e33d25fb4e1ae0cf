"""dali-pipes migrate: what a DataLoader's steps become here, and how much faster that is."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from dali_pipes.adapters.from_torch.convert import Conversion
from dali_pipes.measure.users_loader import work_of
from dali_pipes.tools.benchmark.config import BenchmarkConfig
from dali_pipes.tools.benchmark.run import benchmark

console = Console(stderr=True)


def migrate(config: BenchmarkConfig, sweep: Path | None = None) -> None:
    """Prints what carries out each step and how far the loaders differ; then runs the A/B.

    Args:
        sweep: as for `benchmark`.

    Raises:
        NotConvertibleError: a part cannot be carried over; the printed table says which.
    """

    def compared(conversion: Conversion) -> None:
        console.print(
            f"Compared with your loader: {conversion.compared(config.loader, 'auto')}.",
            highlight=False,
        )

    with work_of(str(config.function), config, console, compared) as (work, yours):
        benchmark(replace(work, loaders=work.loaders | {"yours": yours}), sweep)
