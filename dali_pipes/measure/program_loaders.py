"""In the process of a user's program: the DataLoaders that it makes, until its training begins.

    run_until_training(words, is_module, reached, fail)

`reached` is called instead of iter(loader) of the DataLoader that the program trains with, and
does not return. That is the first one in random order that is iterated once the program has an
optimizer: an evaluation before training, and a loop that computes a mean, go by. If all are in
order, it is the one that was iterated last when an optimizer steps for the first time.

Imports only the standard library at its top, since a program may set OMP_NUM_THREADS before it
imports torch.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

from dali_pipes.system.program.frames import is_library, library_of, own_traceback
from dali_pipes.system.program.hooks import Fail, install_hooks, refuse_processes
from dali_pipes.system.program.running import run_program

# libraries with a training loop of their own, which iterate a program's DataLoaders
TRAINERS = ("lightning", "pytorch_lightning", "transformers", "accelerate", "fastai", "ignite")
_COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")


@dataclass(frozen=True, slots=True)
class SourceCall:
    """A call that a frame of the program was at.

    Attributes:
        end: the line and the column, in bytes of UTF-8, where its expression ends.
        scope: the qualified name of its function.
    """

    file: str
    line: int
    end: tuple[int, int]
    scope: str


@dataclass(frozen=True, slots=True)
class Name:
    """An expression by which the program has a DataLoader when its training begins."""

    file: str
    scope: str
    text: str

    def is_in(self, call: SourceCall) -> bool:
        return (self.file, self.scope) == (call.file, call.scope)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a program made a DataLoader.

    Attributes:
        calls: the program's own calls by which it was made, the innermost first.
        library: the library in which it was made; "" for the program itself.
        names: what the program calls it.
    """

    calls: tuple[SourceCall, ...]
    library: str = ""
    names: tuple[Name, ...] = ()

    @property
    def is_value(self) -> bool:
        """Whether the innermost call returns the DataLoader itself."""
        return not self.library

    def place(self, folder: Path) -> str:
        """Returns "file:line" of the innermost call, relative to the folder if it is below it."""
        if not self.calls:
            return self.library or "?"
        file = Path(self.calls[0].file)
        shown = file.relative_to(folder) if file.is_relative_to(folder) else file
        return f"{shown}:{self.calls[0].line}"

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> "Origin":
        calls = tuple(SourceCall(**call | {"end": tuple(call["end"])}) for call in value["calls"])
        names = tuple(Name(**name) for name in value["names"])
        return cls(**value | {"calls": calls, "names": names})


@dataclass(slots=True)
class MadeLoader:
    """A DataLoader of the program.

    Attributes:
        number: counts those that the program has made, from 1.
        loader: the DataLoader, or timm's PrefetchLoader around it.
        iterations: how often it has been iterated.
        before_training: whether it was iterated before there was an optimizer, as for a mean.
        iterated_by: the library that iterates it; "": the program itself.
    """

    number: int
    loader: Any
    origin: Origin
    iterations: int = 0
    before_training: bool = False
    iterated_by: str = ""


# called with the DataLoader that the program trains with; None: it has made none
Reached = Callable[["ProgramLoaders", MadeLoader | None], NoReturn]


class ProgramLoaders:
    """The DataLoaders that the program has made.

    Args:
        reached: is called with this and the DataLoader with which training begins.

    Attributes:
        made: all of them, in the order in which they were made.
        optimizers: how many optimizers the program has made.
    """

    def __init__(self, reached: Reached):
        # worker processes are forked with the watched classes, and have another number
        self._reached, self._pid = reached, os.getpid()
        self.made, self.optimizers = list[MadeLoader](), 0
        self._by_id: dict[int, MadeLoader] = {}
        self._copies = list[Any]()  # held, or another object could get the id of one
        self._last: MadeLoader | None = None
        self._is_over, self._lock = False, threading.Lock()

    def hooks(self) -> dict[str, Callable[[ModuleType], None]]:
        """Returns, by module, what to do with it once it has been imported."""
        return {
            "torch.utils.data.dataloader": self._watch_dataloaders,
            "timm.data.loader": self._watch_prefetching,
            "torch.optim.optimizer": self._watch_optimizers,
        }

    def end(self) -> NoReturn:
        """Called when the program has ended: reaches the last DataLoader that it has iterated, in
        random order if there is one.
        """
        iterated = [made for made in self.made if made.iterations]
        random = [made for made in iterated if _is_random(made.loader)]
        self._reach(next(iter(reversed(random or iterated or self.made)), None))

    def _watch_dataloaders(self, module: Any) -> None:
        loaders, initialize = module.DataLoader, module.DataLoader.__init__

        def watched(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
            @wraps(original)
            def __iter__(loader: Any) -> Any:
                self._begin(loader, sys._getframe(1))
                return original(loader)

            return __iter__

        # a subclass with an __iter__ of its own, such as a loader whose workers outlive an epoch,
        # may never call that of DataLoader
        def of_subclass(cls: Any, /, **options: Any) -> None:
            super(loaders, cls).__init_subclass__(**options)
            if "__iter__" in vars(cls):
                cls.__iter__ = watched(cls.__iter__)

        @wraps(initialize)
        def __init__(loader: Any, *arguments: Any, **options: Any) -> None:
            initialize(loader, *arguments, **options)
            self._note(loader, sys._getframe(1))

        loaders.__init__ = __init__
        loaders.__iter__ = watched(loaders.__iter__)
        loaders.__init_subclass__ = classmethod(of_subclass)

    def _watch_prefetching(self, module: Any) -> None:
        """Notes timm's PrefetchLoader, which a program has in place of a DataLoader."""
        initialize = module.PrefetchLoader.__init__

        @wraps(initialize)
        def __init__(prefetch: Any, *arguments: Any, **options: Any) -> None:
            initialize(prefetch, *arguments, **options)
            if made := self._by_id.get(id(prefetch.loader)):
                made.loader, self._by_id[id(prefetch)] = prefetch, made

        module.PrefetchLoader.__init__ = __init__

    def _watch_optimizers(self, module: Any) -> None:
        initialize = module.Optimizer.__init__

        @wraps(initialize)
        def __init__(optimizer: Any, *arguments: Any, **options: Any) -> None:
            self.optimizers += 1
            initialize(optimizer, *arguments, **options)

        module.Optimizer.__init__ = __init__
        module.register_optimizer_step_pre_hook(lambda *_: self._step())

    def _note(self, loader: Any, frame: FrameType | None) -> None:
        if self._is_ours():
            return

        # the constructors of its subclasses are a part of it
        while frame is not None and _is_constructor(frame, loader):
            frame = frame.f_back
        library = library_of(frame)

        # Accelerate and Lightning make a DataLoader anew to change its sampler
        dataset = getattr(loader, "dataset", None)
        copied = [made for made in self.made if library and _dataset(made.loader) is dataset]
        if copied:
            self._by_id[id(loader)] = copied[-1]
            self._copies.append(loader)
            return

        made = MadeLoader(len(self.made) + 1, loader, Origin(tuple(_calls(frame)), library))
        self.made.append(made)
        self._by_id[id(loader)] = made

    def _begin(self, loader: Any, frame: FrameType | None) -> None:
        """Called before iter(loader)."""
        made = self._by_id.get(id(loader))
        if made is None or self._is_ours():
            return
        made.iterated_by = made.iterated_by or _training_library(frame)
        # an evaluation in order may come before the training, whose loader waits to be iterated
        if self.optimizers:
            loaders = (made, *self._waiting())
            random = [loader for loader in loaders if _is_random(loader.loader)]
            if random:
                self._reach(random[0])

        made.iterations += 1
        made.before_training |= not self.optimizers
        self._last = made

    def _waiting(self) -> list[MadeLoader]:
        """Returns the DataLoaders in random order that no loop has iterated yet, the longest
        first.
        """
        fresh = [made for made in self.made if not made.iterations and _is_random(made.loader)]
        return sorted(fresh, key=lambda made: -_length(made.loader))

    def _step(self) -> None:
        """Called before each step of an optimizer."""
        if self._last is not None and not self._is_ours():
            self._reach(self._last)

    def _reach(self, made: MadeLoader | None) -> NoReturn:
        # two threads may iterate DataLoaders at once
        with self._lock:
            is_first, self._is_over = not self._is_over, True
        while not is_first:  # another thread has the program's end in hand
            threading.Event().wait()
        self._reached(self, made)

    def _is_ours(self) -> bool:
        """Whether what happens is no longer the program's own: it has reached its training, or
        this is one of its worker processes.
        """
        return self._is_over or os.getpid() != self._pid


def _training_library(frame: FrameType | None) -> str:
    """Returns the library that iterates a DataLoader; "" for the program itself."""
    while frame is not None and is_library(frame.f_code.co_filename):
        if (library := library_of(frame)) in TRAINERS:
            return library
        frame = frame.f_back
    return ""


def run_until_training(
    words: Sequence[str], is_module: bool, reached: Reached, fail: Fail
) -> NoReturn:
    """Runs a program until its training begins, and calls `reached` with its DataLoaders.

    A program that ends before counts as one that trains with the DataLoader it has iterated last.

    Args:
        words: the file or the module, and its arguments.
        fail: ends the process with a message, a traceback and an exit status.
    """
    loaders = ProgramLoaders(reached)
    install_hooks(loaders.hooks() | refuse_processes(fail, "migrate"))
    sys.dont_write_bytecode = True  # dali_pipes writes nothing into the program's folders

    try:
        run_program(words, is_module)
    except SystemExit as end:
        if end.code not in (None, 0):
            status = end.code if isinstance(end.code, int) else 1
            fail(f"it ended by itself with {end.code!r}, before its training", status=status)
    except BaseException as error:
        fail("it failed by itself, before its training", own_traceback(error))

    loaders.end()


def with_names(made: MadeLoader) -> Origin:
    """Returns the origin of a DataLoader with the names that the program has for it now."""
    # a dict, since a set would change the order of names that are found first
    names = {name: None for frame in _live_frames() for name in _names(frame, made.loader)}
    origin = made.origin
    shortest = tuple(sorted(names, key=lambda name: len(name.text)))
    return Origin(origin.calls, origin.library, shortest)


def _calls(frame: FrameType | None) -> Iterator[SourceCall]:
    """Yields the program's own calls on the stack, the innermost first."""
    while frame is not None:
        code, inner = frame.f_code, frame
        if not is_library(code.co_filename) and Path(code.co_filename).is_file():
            # before Python 3.12 a comprehension is a function; its caller is at the whole of it
            while frame.f_code.co_name in _COMPREHENSIONS and frame.f_back is not None:
                frame = frame.f_back
            # an instruction has two bytes; its position is line, end line, column, end column
            positions = [*code.co_positions()][inner.f_lasti // 2]
            _, end_line, _, end_column = positions
            end = (end_line or inner.f_lineno, -1 if end_column is None else end_column)
            file = str(Path(code.co_filename).absolute())
            yield SourceCall(file, inner.f_lineno, end, frame.f_code.co_qualname)
        frame = frame.f_back


def _live_frames() -> Iterator[FrameType]:
    """Yields the program's own frames, this thread's first, then those of all threads."""
    for frame in (sys._getframe(), *sys._current_frames().values()):
        here: FrameType | None = frame
        while here is not None:
            if not is_library(here.f_code.co_filename):
                yield here
            here = here.f_back


def _names(frame: FrameType, loader: Any) -> Iterator[Name]:
    file = str(Path(frame.f_code.co_filename).absolute())
    for name, value in [*frame.f_locals.items()]:
        if name.isidentifier():
            for text in _expressions(name, value, loader):
                yield Name(file, frame.f_code.co_qualname, text)


def _expressions(name: str, value: Any, loader: Any) -> Iterator[str]:
    """Yields the expressions by which a value is the loader, or holds it."""
    if value is loader:
        yield name
    elif isinstance(value, dict):
        keys = [key for key, held in value.items() if held is loader]
        yield from (f"{name}[{key!r}]" for key in keys if type(key) in (str, int))
    elif isinstance(value, list):
        yield from (f"{name}[{at}]" for at, held in enumerate(value) if held is loader)
    else:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict) and not isinstance(value, (type, ModuleType)):
            yield from (f"{name}.{key}" for key, held in [*attributes.items()] if held is loader)


def _is_constructor(frame: FrameType, loader: Any) -> bool:
    """Whether a frame is of an __init__ of this loader, or of a `wrapper` around one."""
    # the first parameter is `self`, whatever its name
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_varnames else None
    return code.co_name in ("__init__", "wrapper") and first is loader


def _dataset(loader: Any) -> Any:
    return getattr(getattr(loader, "loader", loader), "dataset", None)


def _length(loader: Any) -> int:
    try:
        return len(loader)
    except Exception:  # such as an IterableDataset's, which may do anything
        return 0


def _is_random(loader: Any) -> bool:
    """Returns whether a DataLoader is in an order of training: none that is known to be fixed."""
    loader = getattr(loader, "loader", loader)
    batches, sampler = getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)
    kinds = (type(batches).__name__, type(sampler).__name__)
    # a batch sampler of the program's own; timm's _RepeatSampler only repeats another one
    if kinds[0] not in ("BatchSampler", "_RepeatSampler", "NoneType"):
        return True
    if kinds[1] == "_InfiniteConstantSampler":  # of an IterableDataset: its code has the order
        return False
    in_order = any(word in kinds[1] for word in ("Sequential", "Ordered", "NoneType"))
    return not in_order and getattr(sampler, "shuffle", True) is not False
