"""Where the time of a data set's items goes: makes some in this thread and samples its stack.

`profile_items` is what others call. The flow:

_ItemMaker fetches and collates items as a DataLoader does
-> _Sampler adds up time by stack, each millisecond, by a signal or from another thread
-> _place names each stack: the function, transform, decoder or loop that the time belongs to
-> _summary adds up the stacks of one place, and makes ItemParts of the places
"""

import dis
import itertools
import linecache
import random
import signal
import sys
import sysconfig
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

TICK_S = 0.001
MIN_SHARE = 0.02
MAX_FAILED = 10
OPERATOR_S = 5e-6  # a line of Python takes a tenth of it; a longer one computes in C
LOOP_SHARE = 0.1  # share of an item's time from which on a loop's lines are counted
_STDLIB = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_PACKAGE = str(Path(__file__).parents[2])
_PLUMBING = (
    "torch.nn.modules.module",
    "torch.utils._contextlib",
    "torch.utils.data",
    "contextlib",
    "functools",
)
# what others have put around each call or allocation: modes of PyTorch, callbacks of the collector
_AROUND = ("torch.utils._device", "torch.overrides", "hypothesis", "nvidia.dali._utils.hacks")
_TEXT = {"loadtxt", "genfromtxt", "fromstring", "read_csv", "literal_eval", "safe_load"}
_TEXT_MODULES = {
    "json",
    "orjson",
    "ujson",
    "csv",
    "yaml",
    "toml",
    "tomllib",
}  # not pickle's loads()
# the last three are those of torchvision's image folders, which open and decode
_DECODERS = {
    *("imread", "imdecode", "decode_jpeg", "decode_image", "read_image"),
    *("default_loader", "pil_loader", "accimage_loader"),
}
_NETWORK = {
    "requests",
    "urllib",
    "urllib3",
    "http",
    "socket",
    "ssl",
    "boto3",
    "botocore",
    "s3fs",
    "aiohttp",
}
_TRANSFORMS = {"torchvision", "albumentations", "monai", "kornia", "torchaudio"}
_ALIASES = {"numpy": "np", "pandas": "pd"}
# code, offset of the instruction, id of the object whose step it is (0: none)
_Entry = tuple[CodeType, int, int]


@dataclass(frozen=True, slots=True)
class ItemPart:
    """One place where the time goes.

    Attributes:
        name: as a person would say it: "np.loadtxt", "RandomRotation", "a Python loop in resize()".
        where, text: file and line number of the user's own code, and the text of that line; "" if
            none of it is on the stack.
        share: its share of the elapsed time of fetching and collating.
        seconds: its seconds per item.
        waits: whether it is of kind "wait", or for most of its time nothing was computed, and the
            thread did not stand in the run queue either.
        kind: "open", "decode", "transform", "python_loop", "text_parsing", "wait", "collate",
            "operator" (C code that is called by operators in a loop of the user's) or "other".
    """

    name: str
    where: str
    text: str
    share: float
    seconds: float
    waits: bool
    kind: str


@dataclass(frozen=True, slots=True)
class ItemProfile:
    """What items cost; all seconds are per item, of fetching and collating.

    Attributes:
        items, failed: how many were made, and how many raised an exception and were left out.
        cpu_s: CPU time of all threads of this process.
        queued_s, blocked_s: time in which the thread could run but had no core, and the rest, in
            which it waited.
        collate_s: time in the collate function.
        parts: the parts of at least 2 % of the time, the largest first.
    """

    items: int
    failed: int
    seconds: float
    cpu_s: float
    queued_s: float
    blocked_s: float
    collate_s: float
    parts: list[ItemPart]


def profile_items(
    dataset: Any,
    batches: Iterable[Any],
    collate_fn: Callable[[Any], Any],
    seconds: float = 1.0,
    *,
    auto_collation: bool = True,
) -> ItemProfile:
    """Makes items for so many seconds, as a DataLoader without workers does, and samples the stack
    of this thread.

    The random states of Python, NumPy and torch (CPU) are put back. Warnings are not shown.

    Args:
        batches: of indices, or single indices without auto_collation; for an IterableDataset only
            their lengths count.

    Raises:
        Exception: the first of an item, if none could be made.
    """
    watched = _ItemMaker(dataset, collate_fn, auto_collation)

    with _same_random_states(), warnings.catch_warnings(record=True):
        sampler = _sampler()
        with sampler:
            begin = time.perf_counter()
            for batch in batches:
                if (
                    not watched.take(batch)
                    or time.perf_counter() - begin >= seconds
                    or watched.failed >= MAX_FAILED
                ):
                    break

        profile = _summary(watched, sampler)

    if not watched.items and watched.error is not None:
        raise watched.error
    return profile


class _ItemMaker:
    """Fetches and collates items as PyTorch's fetchers do."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], auto_collation: bool):
        self._dataset, self._collate, self._auto = dataset, collate, auto_collation
        self._stream: Iterator[Any] | None = (
            iter(dataset) if isinstance(dataset, IterableDataset) else None
        )
        self.items = self.failed = 0
        self.fetch_s = self.collate_s = 0.0
        self.error: Exception | None = None
        self._last: Any = None  # the last index that gave an item

    def take(self, batch: Any) -> bool:
        """Makes one batch. Returns False if an iterable data set has ended."""
        begin = time.perf_counter()
        made = list[Any]()

        # PyTorch's fetcher prefers __getitems__, if a data set has it
        if self._auto and self._stream is None and getattr(self._dataset, "__getitems__", None):
            made = self._try(self._fetch_many, batch) or []
        else:
            for index in batch if self._auto else [batch]:
                try:
                    made.append(self._fetch(index))
                except StopIteration:
                    break
                except Exception as error:
                    self._note(error)
                    if self.failed >= MAX_FAILED:
                        break

        fetched = time.perf_counter()
        self.fetch_s += fetched - begin
        if made:
            self._try(self._collate_items, made if self._auto else made[0])
            self.collate_s += time.perf_counter() - fetched

        self.items += len(made)
        return bool(made) or self._stream is None

    def _try(self, call: Callable[[Any], Any], given: Any) -> Any:
        try:
            return call(given)
        except Exception as error:
            self._note(error)
            return None

    def _note(self, error: Exception) -> None:
        self.failed += 1
        self.error = self.error or error

    def _fetch(self, index: Any) -> Any:
        item = next(self._stream) if self._stream is not None else self._dataset[index]
        self._last = index
        return item

    def _fetch_many(self, indices: Sequence[Any]) -> Any:
        items = self._dataset.__getitems__(indices)
        self._last = list(indices)[:1]
        return items

    def count_lines(self, code: CodeType) -> int:
        """Returns how many lines of this code one more item runs; 0 if that cannot be counted."""
        lines = 0

        def count(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal lines
            if frame.f_code is not code:
                return None
            lines += event == "line"
            return count

        if sys.gettrace() is not None:  # a debugger's, which must stay
            return 0

        sys.settrace(lambda frame, event, argument: count if frame.f_code is code else None)
        try:
            many = (
                self._auto and self._stream is None and getattr(self._dataset, "__getitems__", None)
            )
            (self._fetch_many if many else self._fetch)(self._last)
        except (Exception, StopIteration):
            return 0
        finally:
            sys.settrace(None)
        return lines

    def _collate_items(self, made: Any) -> Any:
        return self._collate(made)


_ROOTS = {
    _ItemMaker._fetch.__code__,
    _ItemMaker._fetch_many.__code__,
    _ItemMaker._collate_items.__code__,
    _ItemMaker.take.__code__,
}


class _Sampler(ABC):
    """Adds up wall, CPU (of all threads) and run-queue time by stack. Each sample is weighted with
    the time since the last one.

    A signal handler runs between two bytecodes of the main thread. A C call that holds the
    interpreter lock delays it to the end of the call; the frame is then still at the line that
    calls, and the weight is the whole call. A sampling thread has to take that lock, gets it where
    it is released anyway, and there counts the Python code before it: on items of 130 us a Python
    loop of 15 % got 0 %, and a PIL call of 15 % got 20 to 40 %. The signal was at most 3 points
    off, also beside two busy processes. So the thread is only for callers outside the main thread.

    The signal has a fault of its own: an operator in C (a @ b) is no call, so its time goes to the
    next call, loop or function entry, which may be a line, or a function's return, later.
    """

    def __init__(self) -> None:
        # key: whether a batch is collated, and the stack below; value: wall, CPU and queued seconds
        self.stacks: dict[tuple[bool, tuple[_Entry, ...]], list[float]] = defaultdict(
            lambda: [0.0, 0.0, 0.0]
        )
        self.globals: dict[CodeType, dict[str, Any]] = {}
        self.objects: dict[int, Any] = {}
        self._thread = threading.get_native_id()
        self._last = self._clocks()

    def _clocks(self) -> tuple[float, float, float]:
        # schedstat: nanoseconds on a core, nanoseconds in the run queue, time slices
        try:
            queued = (
                int(Path(f"/proc/self/task/{self._thread}/schedstat").read_text().split()[1]) / 1e9
            )
        except (OSError, ValueError, IndexError):
            queued = 0.0
        return time.perf_counter(), time.process_time(), queued

    def add(self, frame: FrameType | None) -> None:
        now, stack = self._clocks(), list[_Entry]()
        while frame is not None and frame.f_code not in _ROOTS:
            code, owner = frame.f_code, 0
            if code.co_filename == __file__:
                # this handler was itself interrupted: its time counts for what it interrupted
                stack.clear()
                frame = frame.f_back
                continue

            # which transform it is, can only be read off the object
            if code.co_name in ("__call__", "forward") and code.co_argcount:
                object_ = frame.f_locals.get(code.co_varnames[0])
                owner = id(object_)
                self.objects[owner] = object_
            self.globals[code] = frame.f_globals
            stack.append((code, frame.f_lasti, owner))
            frame = frame.f_back

        if frame is not None:
            sums = self.stacks[
                frame.f_code is _ItemMaker._collate_items.__code__, tuple(reversed(stack))
            ]
            for place in range(3):
                sums[place] += now[place] - self._last[place]
        self._last = now

    @abstractmethod
    def __enter__(self) -> "_Sampler":
        """Begins to sample."""

    @abstractmethod
    def __exit__(self, *error: object) -> None:
        """Ends it, and puts back what it changed."""


class _BySignal(_Sampler):
    def __enter__(self) -> "_Sampler":
        self._before = signal.signal(signal.SIGALRM, lambda number, frame: self.add(frame))
        # reads go on in C libraries that do not expect EINTR
        signal.siginterrupt(signal.SIGALRM, False)
        self._timer, self._began = (
            signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S),
            time.monotonic(),
        )
        return self

    def __exit__(self, *error: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

        # a timer of the program's own goes on where it would be now; 0 would switch it off
        left, interval = self._timer
        if left:
            signal.setitimer(
                signal.ITIMER_REAL, max(left - (time.monotonic() - self._began), 1e-6), interval
            )


class _ByThread(_Sampler):
    def __enter__(self) -> "_Sampler":
        self._interval, watched = sys.getswitchinterval(), threading.get_ident()
        # Python's own 5 ms would be longer than the time between two samples
        sys.setswitchinterval(5e-5)
        self._over = threading.Event()

        def sample() -> None:
            while not self._over.wait(TICK_S):
                self.add(sys._current_frames().get(watched))

        self._sampling = threading.Thread(target=sample, daemon=True)
        self._sampling.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._sampling.join()
        sys.setswitchinterval(self._interval)


def _sampler() -> _Sampler:
    # Python runs signal handlers in the main thread alone
    main = threading.current_thread() is threading.main_thread()
    # a handler that was not installed from Python (None) could not be put back
    return _BySignal() if main and signal.getsignal(signal.SIGALRM) is not None else _ByThread()


@contextmanager
def _same_random_states() -> Iterator[None]:
    python, numpy, torch_ = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(torch_)


def _summary(watched: _ItemMaker, sampler: _Sampler) -> ItemProfile:
    items, total = max(watched.items, 1), watched.fetch_s + watched.collate_s
    sums: dict[_Place, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for (collates, stack), spent in sampler.stacks.items():
        if stack:
            for place, each in enumerate(spent):
                sums[_place(stack, sampler, collates)][place] += each

    wall, cpu, queued = (sum(each[place] for each in sampler.stacks.values()) for place in range(3))
    wall = max(wall, 1e-9)

    parts = list[ItemPart]()
    for found, spent in sums.items():
        # A sleep is known by its name. Its figures may say otherwise: other threads of the process
        # compute meanwhile, and each sample wakes this thread up, which then stands in the run
        # queue of a busy machine.
        share, waits = spent[0] / wall, found.kind == "wait" or sum(spent[1:]) < spent[0] / 2

        if share >= MIN_SHARE:
            named = (
                _without_operators(found, spent[1] / wall * total / items, watched)
                if share >= LOOP_SHARE
                else found
            )
            parts.append(
                ItemPart(
                    named.name,
                    named.where,
                    named.text,
                    share,
                    share * total / items,
                    waits,
                    named.kind,
                )
            )

    # blocked: the time in which no thread computed and this one did not stand in the run queue
    blocked = sum(max(0.0, spent[0] - spent[1] - spent[2]) for spent in sampler.stacks.values())
    # the samples do not add up to the measured time exactly: they are scaled to it
    scale = total / wall / items
    parts.sort(key=lambda part: -part.share)
    return ItemProfile(
        watched.items,
        watched.failed,
        total / items,
        cpu * scale,
        queued * scale,
        blocked * scale,
        watched.collate_s / items,
        parts,
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """The place where a sample fell; see `ItemPart`.

    Attributes:
        loop: the code that a Python loop is in; None if it is no loop.
    """

    name: str
    where: str
    text: str
    kind: str
    loop: CodeType | None = None


def _without_operators(found: _Place, cpu_s: float, watched: _ItemMaker) -> _Place:
    """Renames a loop whose lines take longer than Python needs for them by its function: its
    operators compute, not the loop.
    """
    if found.loop is None:
        return found
    lines = watched.count_lines(found.loop)
    if not lines or cpu_s / lines < OPERATOR_S:
        return found
    return replace(found, name=found.name.removeprefix("a Python loop in "), kind="operator")


def _place(stack: tuple[_Entry, ...], sampler: _Sampler, collates: bool) -> _Place:
    while len(stack) > 1 and _module(stack[-1][0], sampler).startswith(_AROUND):
        stack = stack[:-1]

    own = [place for place, (code, _, _) in enumerate(stack) if _is_users(code.co_filename)]
    # collating is named by what PyTorch's collate function calls, whatever that calls in turn
    if collates and not own:
        stack = (
            tuple(
                itertools.takewhile(
                    lambda each: _module(each[0], sampler).startswith("torch.utils.data"), stack
                )
            )
            or stack
        )

    last = own[-1] if own else -1
    code, offset, _ = stack[last]
    line = _lines(code).get(offset, code.co_firstlineno)
    loop = _loop(code, offset) if own else None
    where, text = ("", "") if not own else _where(code, line)

    below = [
        each for each in stack[last + 1 :] if not _module(each[0], sampler).startswith(_PLUMBING)
    ]

    # Pillow decodes when the pixels are first needed, which may be in any of its functions
    for each, _, _ in below:
        if _module(each, sampler).startswith("PIL.ImageFile") and each.co_name == "load":
            first = next(code for code, _, _ in below if _module(code, sampler).startswith("PIL."))
            return _Place(f"decoding ({_public(first, sampler)})", where, text, "decode")

    # the innermost step of a library of transforms
    if step := next(
        (
            sampler.objects[owner]
            for _, _, owner in reversed(below)
            if owner and _is_step(sampler.objects[owner])
        ),
        None,
    ):
        return _Place(type(step).__name__, where, text, "transform")

    # else the first function of a library that the user's line calls
    if below:
        first = next(
            (code for code, _, _ in below if not code.co_name.startswith("__")), below[0][0]
        )
        name = _public(first, sampler)
        if collates and not own:
            return _Place(f"collating ({name})", where, text, "collate")
        return _Place(name, where, text, _kind(name, _module(first, sampler)))

    # else the line itself: a call into C, or Python code
    called = _called(code, offset)

    if not own:
        name = (
            called if called and not _is_small(called) else code.co_qualname.split(".<locals>")[0]
        )
        return _Place(
            f"collating ({name})" if collates else name,
            where,
            text,
            "collate" if collates else "other",
        )

    if loop is not None and (called is None or _is_small(called)):
        name = next(
            part for part in reversed(code.co_qualname.split(".")) if not part.startswith("<")
        )
        return _Place(f"a Python loop in {name}()", *_where(code, loop), "python_loop", code)
    return _Place(called or f"{code.co_name}()", where, text, _kind(called or "", ""))


@cache
def _is_users(file: str) -> bool:
    if file.startswith("<"):
        return not file.startswith("<frozen")
    library = "site-packages" in file or "dist-packages" in file or file.startswith(_STDLIB)
    return not library and not file.startswith(_PACKAGE + "/")


def _is_step(transform: Any) -> bool:
    # a composition's time belongs to its steps
    composes = isinstance(getattr(transform, "transforms", None), (list, tuple)) or isinstance(
        transform, torch.nn.Sequential
    )
    return not composes and type(transform).__module__.split(".")[0] in _TRANSFORMS


def _module(code: CodeType, sampler: _Sampler) -> str:
    return str(sampler.globals[code].get("__name__", ""))


def _public(code: CodeType, sampler: _Sampler) -> str:
    """Returns the name that a person would use: numpy.lib._npyio_impl.loadtxt is np.loadtxt.

    It takes the shortest module that has a thing of this name.
    """
    words, steps = (
        code.co_qualname.split(".<locals>")[0].split("."),
        _module(code, sampler).split("."),
    )

    for length in range(1, len(steps) + 1):
        module = sys.modules.get(".".join(steps[:length]))
        if module is not None and words[0] in vars(module):
            steps = steps[:length]
            break
    # a function of the same name as its module
    if steps[-1] == words[0]:
        words = words[1:]
    return ".".join([_ALIASES.get(steps[0], steps[0]), *steps[1:], *words])


def _kind(name: str, module: str) -> str:
    last, top = name.rsplit(".", 1)[-1], (module or name).split(".")[0]
    if name in ("time.sleep", "sleep") or top in _NETWORK:
        return "wait"
    if last in _TEXT or top in _TEXT_MODULES:
        return "text_parsing"

    if last in _DECODERS:
        return "decode"
    if name in ("open", "np.load", "PIL.Image.open", "torch.load") or last in (
        "read",
        "read_bytes",
        "read_text",
    ):
        return "open"

    if top in _TRANSFORMS or top in ("cv2", "PIL") or name.startswith("scipy.ndimage"):
        return "transform"
    return "other"


@cache
def _lines(code: CodeType) -> dict[int, int]:
    # an instruction takes two bytes
    return {
        2 * place: each[0] for place, each in enumerate(code.co_positions()) if each[0] is not None
    }


@cache
def _loop(code: CodeType, offset: int) -> int | None:
    """Returns the first line of the outermost loop around an instruction; None if there is none.

    Jumps back show the loops, so it works without a source.
    """
    # JUMP_BACKWARD_NO_INTERRUPT belongs to `yield from` and `await`, not to a loop of the source
    ranges = [
        (instruction.argval, instruction.offset)
        for instruction in dis.get_instructions(code)
        if "BACKWARD" in instruction.opname and "NO_INT" not in instruction.opname
    ]
    # a loop that yields goes from item to item; that of a generator expression is inside one item
    yields = [
        instruction.offset
        for instruction in dis.get_instructions(code)
        if instruction.opname == "YIELD_VALUE" and code.co_name != "<genexpr>"
    ]
    around = [
        (a, b) for a, b in ranges if a <= offset <= b and not any(a <= each <= b for each in yields)
    ]

    if not around:
        return None
    first, end = min(around)
    return min(line for at, line in _lines(code).items() if first <= at <= end)


@cache
def _called(code: CodeType, offset: int) -> str | None:
    """Returns the function that this instruction calls, as its source has it; None if it is no
    call, or has no source.
    """
    opcode = code.co_code[offset] if offset >= 0 else 0
    if not dis.opname[opcode].startswith(("CALL", "PRECALL")):
        return None

    line, _, column, _ = list(code.co_positions())[offset // 2]
    if line is None or column is None:
        return None
    # co_positions counts columns in bytes of UTF-8
    source = linecache.getline(code.co_filename, line).encode()[column:].decode(errors="ignore")
    return source.split("(", 1)[0].strip()[:40] or None


def _is_small(called: str) -> bool:
    """Whether it is a builtin or a built-in type's method; in a loop its time is the loop's."""
    last = called.rsplit(".", 1)[-1]
    return called in _BUILTINS or any(hasattr(type_, last) for type_ in (str, list, dict, set))


_BUILTINS = set(Counter(__builtins__ if isinstance(__builtins__, dict) else vars(__builtins__))) - {
    "open"
}


def _where(code: CodeType, line: int) -> tuple[str, str]:
    file = Path(code.co_filename)
    # a cell's file has a made-up name
    if "ipykernel_" in code.co_filename or code.co_filename.startswith("<ipython"):
        name = "notebook cell"
    else:
        name = str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else file.name
    return f"{name}:{line}", linecache.getline(code.co_filename, line).strip()[:100]
