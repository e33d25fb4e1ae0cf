"""A DataLoader of the user's as the work of a measurement: its images, transform and batch size,
and itself as an arm.
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
from dali_pipes.backends.config import DataLoaderConfig
from dali_pipes.data.config import DataConfig
from dali_pipes.errors import ConfigError
from dali_pipes.measure.config import MeasureConfig
from dali_pipes.system.functions import named_function

Config = TypeVar("Config", bound=MeasureConfig)
# options that are the DataLoader's
_OWN = ("batch_size", "transform", "data.train", "data.val", "data.root", "data=")


@contextlib.contextmanager
def work_of(
    function: str,
    config: Config,
    console: Console,
    announce: Callable[[Conversion], None] = lambda _: None,
) -> Iterator[tuple[Config, DataLoaderConfig]]:
    """The config with the images, the transform and the batch size of the DataLoader that
    `function` makes, and the arm that it is.

    What carries out each of its steps is printed. The images are those of the `with` block.

    Args:
        function: module:function, which takes no arguments.
        announce: says more before anything is measured.

    Raises:
        NotConvertibleError: a part cannot be carried over; the table before it says which.
        ConfigError: an option was given that is the DataLoader's.
    """
    if wrong := [each for each in config.overrides if each.lstrip("+~").startswith(_OWN)]:
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
