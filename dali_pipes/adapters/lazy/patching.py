"""How functions of libraries are replaced while pictures wait.

    with patched():      # or, in a worker, `patch_for_good()`
        ...

- A function of Python is replaced by its code, so that also who has imported it by its name calls
  the new one.
- One of C is replaced in every module that has it.
- Properties of classes, and methods that use `super()`, are replaced in their class.
- Of a library that is imported later, such as cv2 inside of `__getitem__`, all this happens at the
  end of that import.

In threads where nothing waits the functions do what they always did: a replacement looks at its
first argument, and calls the original.
"""

import gc
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import PIL.Image

from dali_pipes.adapters.lazy.arrays import LazyArray
from dali_pipes.adapters.lazy.noting import bound, instead_of, with_true_arrays
from dali_pipes.adapters.lazy.pictures import is_lazy
from dali_pipes.adapters.lazy.steps import (  # noqa: F401  # they fill the table
    albumentations,
    numpy_ops,
    opencv,
    pillow,
    torch_ops,
    torchvision_decoders,
    torchvision_pictures,
    torchvision_tensors,
)
from dali_pipes.adapters.lazy.steps.step import PATCHES, STEPS, Method, found, original, place

Undo = Callable[[], None]

# libraries whose modules have functions of C for themselves, which never see what waits
_LEFT_ALONE = ("numpy", "torch", "dali_pipes")
# libraries of which all functions of C get true arrays, but for those with a row
_IN_C = ("cv2",)


@contextmanager
def patched() -> Iterator[None]:
    """In it libraries know what waits, in all threads of this process. It may be entered again.

    They go on to know it while a program keeps something that waits.
    """
    _PATCHES.enter()
    try:
        yield
    finally:
        _PATCHES.leave()


def patch_for_good() -> None:
    """The same until the process ends: in a worker. Calls after the first one do nothing."""
    _PATCHES.stay()


class _Patches:
    """What is replaced in this process."""

    def __init__(self) -> None:
        self.lock, self.users, self.stays = threading.RLock(), 0, False
        self.are_in_place = False
        self.finder = _Finder(self.meet)
        self._undo: list[Undo] = []
        self._met: set[tuple[str, str]] = set()
        self._in_c: dict[Any, Any] = {}  # functions of C, and what is called instead
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """Another thread may have held the lock, and is not there any more."""
        self.lock = threading.RLock()

    def stay(self) -> None:
        with self.lock:
            if not self.stays:
                self.stays = True
                self.enter()

    def enter(self) -> None:
        with self.lock:
            self.users += 1
            if not self.are_in_place:
                self.are_in_place = True
                self.finder.watched = _names_of_owners()
                sys.meta_path.insert(0, self.finder)
            if self.users == 1:
                self.meet()

    def leave(self) -> None:
        with self.lock:
            self.users -= 1
            if self.users or _something_waits():
                return
            self.are_in_place = False
            sys.meta_path.remove(self.finder)
            while self._undo:
                self._undo.pop()()
            _replace_in_modules({new: old for old, new in self._in_c.items()}, FunctionType)
            self._met.clear()
            self._in_c.clear()

    def meet(self) -> None:
        """Replaces the functions of libraries that are imported by now, and were not before."""
        with self.lock:
            if not self.are_in_place:
                return
            in_c = dict(self._functions_of_c())
            for (owner, attribute), bind in _all_patches():
                if (owner, attribute) in self._met or not self._is_ready(owner):
                    continue
                self._met.add((owner, attribute))
                try:
                    function = original(owner, attribute)
                except AttributeError:
                    continue  # another version of the library has no such class
                if isinstance(function, BuiltinFunctionType):
                    in_c[function] = bind(function)
                elif undo := _replace(owner, attribute, bind(function)):
                    self._undo.append(undo)

            # one look at all modules for all of them
            new = {old: _function_like(old, instead) for old, instead in in_c.items()}
            self._in_c |= new
            _replace_in_modules(new, BuiltinFunctionType)

    def _is_ready(self, owner: str) -> bool:
        """Whether it is imported, and not being imported by another thread."""
        spec = getattr(sys.modules.get(owner), "__spec__", None)
        if owner in self.finder.ran or spec is None:
            return owner in sys.modules
        return not getattr(spec, "_initializing", False)

    def _functions_of_c(self) -> Iterator[tuple[Any, Any]]:
        for library in _IN_C:
            key = library, ""
            if key in self._met or not self._is_ready(library):
                continue
            self._met.add(key)
            for function in vars(sys.modules[library]).values():
                if isinstance(function, BuiltinFunctionType):
                    yield function, partial(with_true_arrays, function)


def _something_waits() -> bool:
    """Whether the program has kept a picture or an array that waits, such as in a cache: without
    what is replaced, nobody could make its pixels.
    """
    return any(
        type(each) is LazyArray or (issubclass(type(each), PIL.Image.Image) and is_lazy(each))
        for each in gc.get_objects()
    )


def _all_patches() -> Iterator[tuple[tuple[str, str], Callable[[Any], Any]]]:
    """Owner and attribute of each function that is replaced, and what takes its place, given it."""
    for step in STEPS.values():
        if step.on is not None:
            yield (step.owner, step.attribute), partial(instead_of, step)
    for patch in PATCHES:
        yield (patch.owner, patch.attribute), partial(_bound, patch.instead)


def _bound(instead: Any, function: Any) -> Any:
    return instead if isinstance(instead, (property, Method)) else bound(instead, function)


def _names_of_owners() -> set[str]:
    """The modules that have functions of the table, and the packages that they are in."""
    owners = {owner for (owner, _), _ in _all_patches()} | set(_IN_C)
    return {
        ".".join(parts[: count + 1])
        for parts in (owner.split(".") for owner in owners)
        for count in range(len(parts))
    }


# How one function is replaced. Each of these returns what undoes it.


def _replace(owner: str, attribute: str, instead: Any) -> Undo | None:
    """Replaces a function of Python or a property; None: it is none of the library's."""
    at, name = place(owner, attribute)
    function = found(owner, attribute)
    if function is None and isinstance(at, ModuleType):
        return None  # another version of the library has none
    if not isinstance(function, FunctionType) or function.__code__.co_freevars:
        return _replace_in_class(at, name, instead)
    if function.__module__.partition(".")[0] != owner.partition(".")[0]:
        return None
    if isinstance(instead, Method):
        return _replace_in_class(at, name, instead)
    return _replace_code(function, instead)


def _template(*args: Any, **options: Any) -> Any:
    return instead(*args, **options)  # type: ignore[name-defined]  # noqa: F821


def _replace_code(function: FunctionType, instead: Callable[..., Any]) -> Undo:
    """Every reference to the function runs `instead`, a global of its module: torch.compile knows
    no functions among the constants of a code.
    """
    code, signature = function.__code__, inspect.signature(function)
    name = f"_instead_of_{function.__qualname__.replace('.', '_')}"
    function.__globals__[name] = instead

    # for who reads sources, tracebacks or signatures
    kept = ("co_name", "co_qualname", "co_filename", "co_firstlineno")
    same = {name: getattr(code, name) for name in kept}
    function.__signature__ = signature  # type: ignore[attr-defined]
    _set_code(function, _template.__code__.replace(co_names=(name,), **same))

    def undo() -> None:
        _set_code(function, code)
        del function.__signature__  # type: ignore[attr-defined]
        # the global stays: another thread may be about to look for it

    return undo


def _set_code(function: FunctionType, code: CodeType) -> None:
    function.__code__ = code
    # torch.compile keeps which parameters it has
    compiler = sys.modules.get("torch._dynamo.variables.functions")
    getattr(compiler, "_spec_cache", {}).pop(function, None)


def _replace_in_class(at: Any, name: str, instead: Any) -> Undo:
    """Puts it at an attribute of a class or module, which may have had none of its own."""
    had, before = name in vars(at), vars(at).get(name)
    new: Any = instead
    if isinstance(instead, Method):
        new = instead.make(before)
    elif not isinstance(instead, property):
        new = _function_like(before, instead)
    setattr(at, name, new)
    return partial(setattr, at, name, before) if had else partial(delattr, at, name)


def _function_like(function: Any, instead: Callable[..., Any]) -> Any:
    """A function that calls `instead`; a class makes a method of it, and pickle finds its name."""

    def call(*args: Any, **options: Any) -> Any:
        return instead(*args, **options)

    return wraps(function)(call) if callable(function) else call


def _replace_in_modules(new: dict[Any, Any], kind: type) -> None:
    """Puts functions in the place of others, which are of this type, in all modules."""
    for module in list(sys.modules.values()) if new else ():
        own = getattr(module, "__dict__", None)
        if not isinstance(own, dict):
            continue
        library, _, inside = str(own.get("__name__")).partition(".")
        if library in _LEFT_ALONE and inside:
            continue
        for name, value in list(own.items()):
            if type(value) is kind and value in new:
                own[name] = new[value]


# Libraries that are imported later


class _Finder(MetaPathFinder):
    """Says when a library of the table has been imported.

    Attributes:
        watched: names of modules.
        ran: those of them that have been imported meanwhile.
    """

    def __init__(self, then: Callable[[], None]):
        self.watched: set[str] = set()
        self.ran: set[str] = set()
        self._then, self._depth = then, threading.local()

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.watched:
            return None
        others = (each for each in sys.meta_path if each is not self)
        specs = (each.find_spec(fullname, path, target) for each in others)
        spec = next((each for each in specs if each is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            # of this one module: a loader is made for each
            loader: Any = spec.loader
            loader.exec_module = partial(self._run, loader.exec_module)
        return spec

    def _run(self, run: Callable[[ModuleType], None], module: ModuleType) -> None:
        """Runs a module, and after the outermost one says so: cv2 imports itself inside."""
        depth = getattr(self._depth, "value", 0)
        self._depth.value = depth + 1
        try:
            run(module)
            self.ran.add(module.__name__)
        finally:
            self._depth.value = depth
        if not depth:
            self._then()


_PATCHES = _Patches()
