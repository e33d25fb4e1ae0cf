"""Progress bars for everything that takes long, on stderr, so that programs can read stdout.

`track` is for items that are iterated over, `steps` for a few named steps.
"""

import random
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar


@contextmanager
def keep_python_random() -> Iterator[None]:
    """Makes a block after which Python's `random` goes on as if nothing had been drawn in it: its
    numbers belong to the program.
    """
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


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

_STEP_S = 0.1  # between two steps of a bar


def track(
    items: Iterable[T],
    description: str | Callable[[T], str],
    total: int,
    show: bool = True,
    after_s: float = 0.0,
) -> Generator[T]:
    """Yields the items, and shows how many of `total` have passed and what is being done; silent
    unless stderr is a terminal.

    Args:
        after_s: how many seconds pass before the bar appears, for work that is usually short.
    """
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    if not (show and total and console.is_terminal):
        yield from items
        return

    progress = Progress(*columns, console=console, transient=True)
    task = progress.add_task(description if isinstance(description, str) else "", total=total)
    # A step of the bar costs as much as some items that are usually short, so it is made a few
    # times a second only. Other items may take minutes, and the bar counts them at once.
    step_s = _STEP_S if after_s else 0.0
    passed, begin = 0, time.monotonic() + after_s

    with ExitStack() as stack:
        if not after_s:
            stack.enter_context(progress)
        for item in items:
            if callable(description):
                progress.update(task, description=description(item))
            yield item
            passed += 1
            if (now := time.monotonic()) < begin:
                continue
            if not progress.live.is_started:
                stack.enter_context(progress)
            progress.update(task, completed=passed)
            begin = now + step_s


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
                sys.stderr.write(f"{text}\n")
                sys.stderr.flush()

        yield begin_step
