"""The visit of a thread, which openers, steps and Python itself tell what happens."""

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from dali_pipes.adapters.from_torch.recording.visit import Visit


class _Active(threading.local):
    visit: Visit | None = None


_ACTIVE = _Active()


def active() -> Visit | None:
    """The visit of this thread that records now."""
    visit = _ACTIVE.visit
    return None if visit is None or visit.depth else visit


def record(visit: Visit, function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function whose openers and steps tell this visit."""
    # no context manager: it takes three times as long, and there is one call for each sample
    before, _ACTIVE.visit = _ACTIVE.visit, visit
    try:
        return function(*args)
    finally:
        _ACTIVE.visit = before


_LISTINGS = frozenset(("os.listdir", "os.scandir"))  # audit events
# audit events of changes of files, but for `open`
_CHANGES = frozenset(
    (
        *("os.remove", "os.rename", "os.rmdir", "os.truncate", "os.link"),
        *("os.symlink", "os.chmod", "os.utime", "shutil.rmtree", "shutil.move", "shutil.copyfile"),
    )
)
_WATCHED = _LISTINGS | _CHANGES | {"open"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _note_file(event: str, args: tuple[Any, ...]) -> None:
    # Python calls it at every audit event of every thread, as long as the process lives
    if event not in _WATCHED or (visit := _ACTIVE.visit) is None:
        return
    # a number is a file that is open already
    path = args[0]
    if type(path) is not str:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        path = os.fsdecode(path)
    if event == "open" and not args[2] & _WRITES:
        visit.read.append(path)
    elif event in _LISTINGS:
        visit.listed.append(path)
    # Python's own caches of code, and devices
    elif not (path.startswith(("/dev/", "/proc/")) or "__pycache__" in path):
        visit.refuse_change("writes" if event == "open" else f"calls {event} for", path)


_HOOKED: list[bool] = []


def note_files() -> None:
    """From now on visits see which files Python opens; such a hook of Python cannot be removed."""
    if not _HOOKED:
        _HOOKED.append(True)
        sys.addaudithook(_note_file)
