"""dali-pipes migrate: what of a DataLoader can be carried over, and what that would gain."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from dali_pipes.adapters.from_torch.convert import Conversion
from dali_pipes.adapters.from_torch.refusal import NotConvertibleError, Step
from dali_pipes.backends.config import DataLoaderConfig
from dali_pipes.data.config import DataConfig
from dali_pipes.system.files import new_folder
from dali_pipes.system.functions import named_function
from dali_pipes.tools.benchmark.config import MigrateConfig
from dali_pipes.tools.benchmark.run import benchmark

console = Console(stderr=True)


def migrate(config: MigrateConfig) -> None:
    """Prints what carries out each step, how far the loaders differ, and then runs the A/B.

    Raises:
        NotConvertibleError: a part cannot be carried over; the table before it says which.
    """
    dataloader = named_function(str(config.function))()
    folder = new_folder(Path(config.out))
    try:
        conversion = Conversion.of(dataloader, config.data.cache_dir)
    except NotConvertibleError as error:
        _print(error.steps)
        raise
    _print(conversion.steps)
    console.print(f"compared with your loader: {conversion.compared(config.loader, 'auto')}", highlight=False)
    if conversion.batch_transform:
        console.print("The A/B leaves mixing out of ours; it is work of the GPU there.")
    conversion.manifest.save(folder / "manifest.arrow")
    yours = DataLoaderConfig(function=str(config.function), num_workers=getattr(dataloader, "loader", dataloader).num_workers)
    changed: dict[str, Any] = {"data": DataConfig(train=str(folder / "manifest.arrow")), "transform": conversion.transform}
    changed |= {"batch_size": conversion.order.batch_size, "loaders": config.loaders | {"yours": yours}, "out": str(folder)}
    benchmark(replace(config, **changed))


def _print(steps: Sequence[Step]) -> None:
    table = Table("your step", "is carried out by", box=box.SIMPLE)
    for step in steps:
        table.add_row(step.text, f"[red]{step.by}[/red]" if step.by.startswith("REFUSED") else step.by)
    if steps:
        console.print(table)
