"""What dali_pipes makes of a DataLoader or of a transform: `explain` prints it in a notebook or a
program, and diagnose of the loader that it examines.
"""

import itertools
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from torch.utils.data import DataLoader

from dali_pipes.adapters.lazy.convert import from_torch
from dali_pipes.adapters.lazy.loader import LazyLoader
from dali_pipes.adapters.lazy.random_numbers import own_numbers
from dali_pipes.adapters.transforms.reading import NotConvertibleError, ReadStep
from dali_pipes.adapters.transforms.steps import read
from dali_pipes.errors import ConfigError
from dali_pipes.loader.loader import Loader
from dali_pipes.options import check_arguments
from dali_pipes.system.stdout import say

_BATCHES = 8  # of a DataLoader that are loaded


@check_arguments()
def explain(subject: Any) -> None:
    """Prints what dali_pipes makes of a DataLoader or of a transform.

    Of a DataLoader, by loading its first batches as `from_torch` does: which share of its pictures
    waits, and for each line of its program that looks at pixels what would let them wait. Of a
    transform: what carries out each step if `transform_from_torch` reads it, or why nothing does.

    The random states of the process stay as they are.

    Args:
        subject: a DataLoader, or timm's PrefetchLoader around one; a transform of torchvision, timm
            or albumentations; or a loader of ours, which then explains itself.

    Raises:
        ConfigError: it is none of these.
    """
    explain_on(Console(), subject)


def explain_on(console: Console, subject: Any) -> None:
    """Does what `explain` does, on this console."""
    if isinstance(subject, (Loader, LazyLoader)):
        say(console, subject.explain())
    elif isinstance(getattr(subject, "loader", subject), DataLoader):
        # a seed, so that samplers of PyTorch draw from generators of their own
        with own_numbers(True), from_torch(subject, seed=0) as lazy:
            for _ in itertools.islice(lazy, _BATCHES):
                pass
            say(console, f"Its first {_BATCHES} batches, made by from_torch(loader, seed=0):")
            say(console, lazy.explain())
    elif callable(subject):
        _explain_transform(console, subject)
    else:
        raise ConfigError(
            f"{type(subject).__name__} is no torch DataLoader and no transform: explain(loader) "
            "takes the loader that your training loop iterates"
        )


def _explain_transform(console: Console, transform: Any) -> None:
    try:
        reading = read(transform)
        reading.built()
    except NotConvertibleError as error:
        _print_steps(console, error.steps)
        say(console, str(error))
        return
    _print_steps(console, reading.steps)


def _print_steps(console: Console, steps: Sequence[ReadStep]) -> None:
    """Prints the table of what carries out each step of a transform."""
    # a word that is wider than its column, such as the name of an enum, is broken and not cut off
    headings = ("your step", "is carried out by")
    table = Table(*(Column(heading, overflow="fold") for heading in headings), box=box.SIMPLE)
    for step in steps:
        table.add_row(
            Text(step.text), Text(step.by, "red" if step.by.startswith("REFUSED") else "")
        )
    if steps:
        console.print(table)
