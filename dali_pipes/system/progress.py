"""Progress bars for everything that takes long, on stderr, so that programs can read stdout.

`track` is for items that are iterated over, `steps` for a few named steps.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from dali_pipes.system.random_state import keep_python_random

with keep_python_random():  # rich.style draws a number when it is imported
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
    )

T = TypeVar("T")


def track(
    items: Iterable[T], description: str | Callable[[T], str], total: int, show: bool = True
) -> Iterator[T]:
    """Yields the items, and shows how many of `total` have passed and what is being done; silent
    unless stderr is a terminal.
    """
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )

    with Progress(
        *columns,
        console=console,
        transient=True,
        disable=not (show and total and console.is_terminal),
    ) as progress:
        task = progress.add_task(description if isinstance(description, str) else "", total=total)
        for item in items:
            if callable(description):
                progress.update(task, description=description(item))
            yield item
            progress.advance(task)


@contextmanager
def steps(total: int) -> Iterator[Callable[[str], None]]:
    """Shows a bar of about `total` steps, or lines if stderr is no terminal. Call the yielded
    function with a text when a step begins.
    """
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
    )

    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("", total=total, completed=-1)  # 0 when the first step begins

        def begin_step(text: str) -> None:
            progress.update(task, description=text, advance=1)
            if not console.is_terminal:
                print(text, file=sys.stderr, flush=True)

        yield begin_step
