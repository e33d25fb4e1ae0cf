"""Measures a user's DataLoader: it is an arm, and the work takes its images and its transform.

    with work_of("my_train:make_loader", config, console) as (config, yours):
        ...    # measure `yours` and other loaders with this config

The batch size is the DataLoader's too. The benchmark uses this.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from dali_pipes.adapters.from_torch.conversion import Conversion
from dali_pipes.adapters.transforms.reading import NotConvertibleError, Step
from dali_pipes.data.config import DataConfig
from dali_pipes.errors import ConfigError
from dali_pipes.measure.arms.users_dataloader import DataLoaderConfig
from dali_pipes.measure.config import MeasureConfig
from dali_pipes.measure.workload import from_dict, to_dict
from dali_pipes.system.functions import import_function

Config = TypeVar("Config", bound=MeasureConfig)
# options whose values come from the DataLoader begin with these
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
    refuse_own_options(config)
    dataloader = import_function(function)()
    try:
        conversion = Conversion.of(dataloader, config.data.cache_dir)
    except NotConvertibleError as error:
        print_steps(error.steps, console)
        raise

    print_steps(conversion.steps, console)
    announce(conversion)
    if left_out := conversion.unmeasured:
        console.print(f"The loaders compared with yours are measured without {left_out}.")

    # the trials are other processes, which read the manifest from this file
    with tempfile.TemporaryDirectory() as folder:
        work = _save_work(dataloader, conversion, folder)
        yield (
            _of_work(config, work),
            DataLoaderConfig(function=function, num_workers=work["workers"]),
        )


def refuse_own_options(config: MeasureConfig) -> None:
    """Raises ConfigError if an option was given whose value comes from the DataLoader."""
    # Hydra's + and ~ add an option and remove it
    if wrong := [
        override for override in config.overrides if override.lstrip("+~").startswith(_OWN)
    ]:
        raise ConfigError(
            f"{wrong[0]}: images, transform and batch size are those of your DataLoader; leave "
            "it out"
        )


def _save_work(dataloader: Any, conversion: Conversion, folder: str) -> dict[str, Any]:
    """Returns the work that a DataLoader does, in a form that JSON can hold; its manifest is saved
    in the folder.
    """
    conversion.manifest.save(manifest := f"{folder}/manifest.arrow")
    return {
        "manifest": manifest,
        "transform": to_dict(conversion.transform),
        "batch_size": conversion.order.batch_size,
        # timm's PrefetchLoader wraps the DataLoader
        "workers": getattr(dataloader, "loader", dataloader).num_workers,
    }


def _of_work(config: Config, work: Mapping[str, Any]) -> Config:
    """Returns the config with the images, the transform and the batch size of what `_save_work`
    returned.
    """
    data, transform = DataConfig(train=work["manifest"]), from_dict(work["transform"])
    return replace(config, data=data, transform=transform, batch_size=work["batch_size"])


def print_steps(steps: Sequence[Step], console: Console) -> None:
    """Prints the table of what carries out each step of a DataLoader."""
    # a word that is wider than its column, such as the name of an enum, is broken and not cut off
    headings = ("your step", "is carried out by")
    table = Table(*(Column(heading, overflow="fold") for heading in headings), box=box.SIMPLE)
    for step in steps:
        table.add_row(
            Text(step.text), Text(step.by, "red" if step.by.startswith("REFUSED") else "")
        )
    if steps:
        console.print(table)
