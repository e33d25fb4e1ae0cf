"""Measures a user's DataLoader: it is an arm, and the work takes its images and its transform.

    with work_of("my_train:make_loader", config, console) as (config, yours):
        ...    # measure `yours` and other loaders with this config

The batch size is the DataLoader's too. The tools benchmark, migrate and tune use this.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dali_pipes.adapters.from_torch.convert import Conversion
from dali_pipes.adapters.from_torch.reading import NotConvertibleError, Step
from dali_pipes.data.config import DataConfig
from dali_pipes.errors import ConfigError
from dali_pipes.measure.arms.users_dataloader import DataLoaderConfig
from dali_pipes.measure.config import MeasureConfig
from dali_pipes.system.functions import named_function

Config = TypeVar("Config", bound=MeasureConfig)
# beginnings of options whose values come from the DataLoader
_OWN = ("batch_size", "transform", "data.train", "data.val", "data.root", "data=")


@contextlib.contextmanager
def work_of(
    function: str,
    config: Config,
    console: Console,
    announce: Callable[[Conversion], None] = lambda _: None,
) -> Iterator[tuple[Config, DataLoaderConfig]]:
    """Yields the config of the work that a user's DataLoader does, and the DataLoader as an arm.

    The config has the images, the transform and the batch size of the DataLoader. Its manifest is
    a temporary file, which exists inside the `with` block only. A table of what carries out each
    of the DataLoader's steps is printed.

    Args:
        function: module:function, which takes no arguments and returns the DataLoader.
        announce: is called with the conversion after the table was printed.

    Raises:
        NotConvertibleError: a part cannot be carried over; the printed table says which.
        ConfigError: an option was given whose value comes from the DataLoader.
    """
    if wrong := [
        override for override in config.overrides if override.lstrip("+~").startswith(_OWN)
    ]:
        raise ConfigError(
            f"{wrong[0]}: images, transform and batch size are those of your DataLoader; leave "
            "it out"
        )

    dataloader = named_function(function)()
    try:
        conversion = Conversion.of(dataloader, config.data.cache_dir)
    except NotConvertibleError as error:
        _print(error.steps, console)
        raise

    _print(conversion.steps, console)
    announce(conversion)
    if conversion.batch_transform:
        console.print("What is measured leaves mixing out of ours.")

    # timm's PrefetchLoader wraps the DataLoader
    yours = DataLoaderConfig(
        function=function, num_workers=getattr(dataloader, "loader", dataloader).num_workers
    )

    with tempfile.TemporaryDirectory() as folder:
        conversion.manifest.save(manifest := f"{folder}/manifest.arrow")
        data = DataConfig(train=manifest)
        yield (
            replace(
                config,
                data=data,
                transform=conversion.transform,
                batch_size=conversion.order.batch_size,
            ),
            yours,
        )


def _print(steps: Sequence[Step], console: Console) -> None:
    table = Table("your step", "is carried out by", box=box.SIMPLE)
    for step in steps:
        table.add_row(
            Text(step.text), Text(step.by, "red" if step.by.startswith("REFUSED") else "")
        )
    if steps:
        console.print(table)
