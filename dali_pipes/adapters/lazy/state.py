"""Whether pictures wait: in this thread, in this process."""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch


class Look(NamedTuple):
    """Where pixels were made because the program looked at them.

    Attributes:
        place: file and line of the program, as in `train.py:12`.
        where: the function that this line is in.
        by: the function of a library that looked; `where` if the program did so itself.
    """

    place: str
    where: str
    by: str


class _State(threading.local):
    """Of one thread.

    Attributes:
        waits: whether pictures wait here; None: as in this process.
        sends: whether what waits is pickled as it is. Whoever pickles otherwise, such as a
            cache, gets pixels.
        is_dry: whether a function runs for its random numbers only (dry_run.py), without pixels.
        has_looked: whether it looked at pixels all the same.
    """

    waits: bool | None = None
    sends: bool = False
    is_dry: bool = False
    has_looked: bool = False


@dataclass
class _Process:
    """Of this process.

    Attributes:
        waits: whether pictures wait in threads of which nothing else is said: in a worker.
        off: kinds ("picture", "tensor", "array") that no longer wait, since a program did not
            get along with them.
        failed: an error in making pixels, whatever the program has done with it.
        seen: how many pictures were made where the program looked.
        seconds: the seconds of CPU that it took.
        look: where it looked last.
        opened: how many pictures were opened that wait.
        undecoded: encoded pictures of this batch that were opened and not decoded yet, by `id`.
    """

    waits: bool = False
    off: set[str] = field(default_factory=set)
    failed: BaseException | None = None
    seen: Counter[Look] = field(default_factory=Counter)
    seconds: dict[Look, float] = field(default_factory=lambda: defaultdict(float))
    look: Look | None = None
    opened: int = 0
    undecoded: dict[int, Any] = field(default_factory=dict)

    def forget(self) -> None:
        """Counts anew what is opened and looked at."""
        self.opened = 0
        self.undecoded.clear()
        self.seen.clear()
        self.seconds.clear()


STATE, PROCESS = _State(), _Process()


def pictures_wait() -> bool:
    """`waits("picture")`, of which each method of a picture asks."""
    on = PROCESS.waits if STATE.waits is None else STATE.waits
    return on and "picture" not in PROCESS.off


def waits(kind: str) -> bool:
    """Whether something of this kind waits, here and now.

    No tensor and no array does where PyTorch's modes change what its functions do: they may be
    others where the pixels are made.
    """
    if kind == "picture":
        return pictures_wait()
    on = PROCESS.waits if STATE.waits is None else STATE.waits
    return (
        on
        and kind not in PROCESS.off
        and not torch.is_autocast_enabled("cpu")
        and torch.get_default_dtype() == torch.float32
    )


@contextmanager
def waiting(on: bool) -> Iterator[None]:
    """In it pictures wait in this thread, or do not. What one loader gives up in it is off for no
    other one.
    """
    before, STATE.waits, off = STATE.waits, on, PROCESS.off
    try:
        yield
    finally:
        STATE.waits, PROCESS.off = before, off


def eager() -> AbstractContextManager[None]:
    """In it nothing waits in this thread."""
    return waiting(False)


@contextmanager
def sending() -> Iterator[None]:
    """In it what waits is pickled as it is, in this thread."""
    before, STATE.sends = STATE.sends, True
    try:
        yield
    finally:
        STATE.sends = before
