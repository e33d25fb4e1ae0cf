"""dali-pipes migrate: what of a DataLoader can be carried over, and what that would gain."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dali_pipes.adapters.from_torch.convert import Conversion
from dali_pipes.adapters.from_torch.reading import NotConvertibleError, Step
from dali_pipes.backends.config import DataLoaderConfig
from dali_pipes.data.config import DataConfig
from dali_pipes.errors import ConfigError
from dali_pipes.system.functions import named_function
from dali_pipes.tools.benchmark.config import MigrateConfig
from dali_pipes.tools.benchmark.run import benchmark

console = Console(stderr=True)


def migrate(config: MigrateConfig) -> None:
    """Prints what carries out each step, how far the loaders differ, and then runs the A/B.

    Raises:
        NotConvertibleError: a part cannot be carried over; the table before it says which.
    """
    own = ("batch_size", "transform", "data.train", "data.val", "data.root", "data=")
    if wrong := [each for each in config.overrides if each.lstrip("+~").startswith(own)]:
        raise ConfigError(f"{wrong[0]}: images, transform and batch size are those of your DataLoader; leave it out")
    dataloader = named_function(str(config.function))()
    try:
        conversion = Conversion.of(dataloader, config.data.cache_dir)
    except NotConvertibleError as error:
        _print(error.steps)
        raise
    _print(conversion.steps)
    console.print(f"Compared with your loader: {conversion.compared(config.loader, 'auto')}.", highlight=False)
    if conversion.batch_transform:
        console.print("The A/B leaves mixing out of ours.")
    yours = DataLoaderConfig(function=str(config.function), num_workers=getattr(dataloader, "loader", dataloader).num_workers)
    with tempfile.TemporaryDirectory() as folder:
        conversion.manifest.save(manifest := f"{folder}/manifest.arrow")
        work: dict[str, Any] = {
            "data": DataConfig(train=manifest),
            "transform": conversion.transform,
            "batch_size": conversion.order.batch_size,
        }
        benchmark(replace(config, **work, loaders=config.loaders | {"yours": yours}))


def _print(steps: Sequence[Step]) -> None:
    table = Table("your step", "is carried out by", box=box.SIMPLE)
    for step in steps:
        table.add_row(Text(step.text), Text(step.by, "red" if step.by.startswith("REFUSED") else ""))
    if steps:
        console.print(table)
