"""Is what a program makes with pictures that wait what it would have made without? A forked copy of
the process makes it truly, and says.

What these modules do not know of a program is mostly there from its first sample on, such as an
`except` that swallows an error which the program alone would not have had. The copy runs while this
process waits, and changes nothing in it: not its memory, and where it reads from a file that both
have open, the position in that file is set back.
"""

import dataclasses
import gc
import hashlib
import os
import pickle
import random
import select
import signal
import socket
import stat
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import PIL.Image
import torch

from dali_pipes.adapters.lazy.found import WaitingParts
from dali_pipes.adapters.lazy.memory import find_shared
from dali_pipes.adapters.lazy.state import PROCESS, eager, waits

# seconds for a copy, which hangs if the program needs a thread that a fork does not have: at first,
# and as a multiple of what copies took before
SECONDS, MULTIPLE = 30.0, 10.0
_DEEPEST = 8
_KINDS = ("picture", "tensor", "array")
_PLAIN = (int, float, complex, str, bytes, bool, type(None), np.generic)
_OPAQUE = (type, FunctionType, ModuleType)
Print = tuple[Any, ...]  # place, class, type, and a digest of the values


def prints(value: Any, path: str = "", depth: int = 0) -> Iterator[Print]:
    """Place, class, type and a digest of all that is in a sample or batch."""
    kind = type(value).__name__
    if isinstance(value, PIL.Image.Image):
        yield path, kind, (value.mode, value.size, value.format), _digest(value.tobytes())
    elif isinstance(value, torch.Tensor):
        about = str(value.dtype), tuple(value.shape), value.requires_grad
        plain = value.detach().cpu().as_subclass(torch.Tensor).contiguous().reshape(-1)
        flat = plain.view(torch.uint8) if plain.numel() else plain
        yield path, kind, about, _digest(flat.numpy().tobytes())
    elif isinstance(value, np.ndarray):
        data = repr(value).encode() if value.dtype.hasobject else value.tobytes()
        yield path, kind, (str(value.dtype), value.shape), _digest(data)
    elif isinstance(value, _PLAIN):
        yield path, kind, None, repr(value)
    elif depth == _DEEPEST or isinstance(value, _OPAQUE):
        yield path, kind, None, None

    elif isinstance(value, Mapping):
        yield path, kind, tuple(map(str, value)), None
        for key in value:
            yield from prints(value[key], f"{path}[{key!r}]", depth + 1)
    elif isinstance(value, (list, tuple)):
        yield path, kind, len(value), None
        for at, each in enumerate(value):
            yield from prints(each, f"{path}[{at}]", depth + 1)
    elif dataclasses.is_dataclass(value) or hasattr(value, "__dict__"):
        yield path, kind, None, None
        for name, each in vars(value).items():
            yield from prints(each, f"{path}.{name}", depth + 1)
    else:
        yield path, kind, None, None


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def difference(expected: list[Print], found: list[Print]) -> str | None:
    """How two differ, in words; None: they do not."""
    for one, other in zip(expected, found, strict=False):
        if one != other:
            place = other[0] or "it"
            if one[:3] == other[:3]:
                return f"{place} has other values"
            return f"{place} is {_words(other)} instead of {_words(one)}"
    if len(expected) != len(found):
        return f"it has {len(found)} parts instead of {len(expected)}"
    return None


def _words(seen: Print) -> str:
    _, kind, about, _ = seen
    return kind if about is None else f"{kind} of {about}"


class NotTheSame(Exception):
    """A sample or a batch is another one if its pictures wait."""


class Unknown(Exception):
    """A copy of the process has not said what it made."""


class Checks:
    """Compares what a program makes in a process: the first samples, the tenth, the hundredth, ….

    Args:
        most: seconds that a comparison may take.
        roots: what the program consists of, by name.

    Attributes:
        count, seconds: how many comparisons there were, and what they took.
        said: what the user should know of them.
    """

    def __init__(self, is_active: bool, most: float, **roots: Any):
        self._roots = roots
        self._most = self._limit = min(most, SECONDS)
        self.is_active, self._made, self._next = is_active, 0, 10
        self.is_new = True  # nothing was compared yet
        self.count, self.seconds, self.said = 0, 0.0, list[str]()

    def go_on(self, made: int) -> None:
        """In the training process, before workers start: each of those before has made so many."""
        if made:
            self.is_new, self._made = False, made
            while self._next <= made:
                self._next *= 10

    def call(self, make: Callable[[], Any]) -> Any:
        """Makes a sample with a function; the tenth and so on is compared before.

        Raises:
            NotTheSame: as of `compare`.
        """
        if not any(map(waits, _KINDS)):
            return make()
        self._made += 1
        if self._made == self._next:
            self._next *= 10
            self.compare(make)
        return make()

    def compare(self, make: Callable[[], Any]) -> None:
        """Compares what two copies of this process make with a function, the one truly, and the
        other while pictures wait. Here it is not called.

        Raises:
            NotTheSame: these differ.
        """
        if not any(map(waits, _KINDS)):
            return
        self.is_new = False
        if not self.is_active:
            return
        if path := find_shared(**self._roots):
            self._end(f"other processes use {path} as well, which a copy would change")
            return

        start = time.perf_counter()
        try:
            remark = compare(make, self._limit)
            self.count += 1
        except (OSError, AttributeError, Unknown) as error:  # a platform without fork, for one
            remark = str(error)
        seconds = time.perf_counter() - start
        self.seconds, self._limit = self.seconds + seconds, min(self._most, 5 + MULTIPLE * seconds)
        if remark:
            self._end(remark)

    def _end(self, why: str) -> None:
        self.is_active = False
        self.said.append(f"samples are not compared with true ones here: {why}")


def compare(make: Callable[[], Any], limit: float = SECONDS) -> str:
    """Compares what a function makes truly, and while pictures wait.

    Args:
        limit: seconds for each of the copies that do it.

    Returns:
        What there is to say of a program whose samples cannot be compared bit by bit, since it
        draws numbers that no generator known here gives; "": nothing.

    Raises:
        NotTheSame: these differ.
        Unknown: a copy has not said what it made.
    """

    def make_truly() -> Any:
        with eager():
            return make()

    def make_waiting() -> Any:
        made = WaitingParts(make()).true()
        if PROCESS.failed is not None:  # it will be done once more here as well
            raise PROCESS.failed
        return made

    expected = _Copy(make_truly).result(limit)
    found = _Copy(make_waiting).result(limit)
    differs = _difference(expected, found)
    if differs is None or isinstance(found, str):
        return ""  # an error of what waits comes here, too, where it is mended
    again = _Copy(make_truly).result(limit)
    if _difference(expected, again) is None or isinstance(expected, str):
        raise NotTheSame(differs)

    # two true ones differ as well: only what the program does not draw can be compared
    bare = [[each[:3] for each in some] for some in (expected, again, found)]
    if bare[0] == bare[1] != bare[2]:
        raise NotTheSame(differs)
    return "it draws numbers of which this loader does not know, so only types can be compared"


def _difference(expected: Any, found: Any) -> str | None:
    """The same of what copies say, which is text where the program raised an error."""
    if isinstance(expected, str) or isinstance(found, str):
        return None if expected == found else f"without waiting it is {expected}"
    return difference(expected, found)


class _Copy:
    """A copy of this process, which makes something."""

    def __init__(self, make: Callable[[], Any]):
        self._places = dict(_positions())
        self._answer, answer = os.pipe()
        has_gpu: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        state = random.getstate()  # which a fork draws anew
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the process has threads
            self._process = os.fork()
        if self._process:
            os.close(answer)
            return
        try:
            random.setstate(state)
            _say(answer, make, has_gpu)
        finally:
            os._exit(0)

    def result(self, limit: float) -> Any:
        """The prints of what it made, or the name of the program's error.

        Raises:
            Unknown: it has not said so.
        """
        try:
            parts = list(self._read(limit))
        finally:
            self._close()
        if not parts:
            raise Unknown("a copy of the process crashed")
        found = pickle.loads(b"".join(parts))
        if isinstance(found, Unknown):
            raise found
        return found

    def _read(self, limit: float) -> Iterator[bytes]:
        end = time.monotonic() + limit
        while select.select([self._answer], [], [], max(end - time.monotonic(), 0))[0]:
            part = os.read(self._answer, 2**20)
            if not part:
                return
            yield part
        raise Unknown(f"a copy of the process did not end within {limit:.0f} s")

    def _close(self) -> None:
        """Ends it, and sets back where files are read from that both have open."""
        os.close(self._answer)
        with suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)
        with suppress(ChildProcessError):  # the program may leave its children to the system
            os.waitpid(self._process, 0)
        for descriptor, place in _positions():
            if self._places.get(descriptor, place) != place:
                os.lseek(descriptor, self._places[descriptor], os.SEEK_SET)


def _say(answer: int, make: Callable[[], Any], has_gpu: bool) -> None:
    """What the copy does."""
    gc.disable()  # what it would collect here belongs to the process
    sys.dont_write_bytecode = True
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    is_connected = _cut_connections(nowhere)
    # threads of OpenMP and OpenCV do not come along, and would be waited for
    torch.set_num_threads(1)
    if "cv2" in sys.modules:
        sys.modules["cv2"].setNumThreads(0)

    file = os.fdopen(answer, "wb")

    def end(found: Any) -> None:
        pickle.dump(found, file)
        file.close()
        os._exit(0)

    sys.addaudithook(_Watch(end).see)
    try:
        end(list(prints(make())))
    except Exception as error:
        # it may have tried to use what a copy cannot
        if has_gpu:
            end(Unknown("a copy of a process that uses a GPU cannot use it"))
        if is_connected:
            end(Unknown("a copy cannot use the network connections of the program"))
        end(type(error).__name__)


class _Watch:
    """Ends a copy that is about to change a file, which is not its own: the process itself would
    find it changed. Files that it makes under a name of no other file are its own, as temporary
    ones. What is written by C libraries is not seen.

    Args:
        end: ends the copy, which has then said this.
    """

    def __init__(self, end: Callable[[Unknown], None]):
        self._end, self._own = end, set[str]()

    def see(self, event: str, args: Any) -> None:
        """A hook for Python's audit events."""
        if event == "open":
            path, _, flags = args
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND)
            # a folder is opened by `tempfile`, which then makes a file in it
            if not writes or isinstance(path, int) or Path(os.fsdecode(path)).is_dir():
                return
            if flags & os.O_EXCL and flags & os.O_CREAT:
                self._own.add(os.fsdecode(path))
            elif os.fsdecode(path) != os.devnull:
                self._refuse(path)
        elif event == "os.mkdir":
            self._own.add(os.fsdecode(args[0]))
        elif event in ("os.remove", "os.rmdir") and args[1] >= 0:
            folder = Path(f"/proc/self/fd/{args[1]}").resolve()
            self._refuse(folder / os.fsdecode(args[0]))
        elif event in ("os.remove", "os.rename", "os.rmdir", "os.truncate", "os.link"):
            self._refuse(args[0])
        elif event in ("subprocess.Popen", "os.system"):
            self._end(Unknown("the program starts another one, which a copy must not"))

    def _refuse(self, path: Any) -> None:
        name = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else str(path)
        if not {name, str(Path(name).parent)} & self._own:
            self._end(Unknown(f"the program writes files, which a copy must not: {name}"))


# What a copy and this process have in common


def _descriptors() -> Iterator[tuple[int, os.stat_result]]:
    folder = Path("/proc/self/fd")
    for each in list((folder if folder.is_dir() else Path("/dev/fd")).iterdir()):
        with suppress(OSError):  # such as that of the folder itself
            yield int(each.name), os.fstat(int(each.name))


def _positions() -> Iterator[tuple[int, int]]:
    """Where each regular file that is open is read from."""
    for descriptor, found in _descriptors():
        if stat.S_ISREG(found.st_mode):
            with suppress(OSError):
                yield descriptor, os.lseek(descriptor, 0, os.SEEK_CUR)


def _cut_connections(nowhere: int) -> bool:
    """Has this process's network connections lead nowhere, since a copy that used one would disturb
    the process itself. Returns whether there are any.
    """
    found = False
    for descriptor, about in list(_descriptors()):
        if not stat.S_ISSOCK(about.st_mode):
            continue
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                os.dup2(nowhere, descriptor)
                found = True
    return found
