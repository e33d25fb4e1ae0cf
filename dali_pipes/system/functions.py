"""Imports functions that users name as module:function."""

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from dali_pipes.errors import ConfigError


def import_function(
    name: str,
    arguments: Sequence[str] = (),
    optional: Iterable[str] = (),
    instead: str = "let it take these",
) -> Callable[..., Any]:
    """Returns the function "module:name" of a module that Python finds, or that is in the working
    directory.

    The working directory is the last place that is searched, and stays one for modules if this one
    is there. A path, such as ./my_train.py:name, means the module in that file; its folder is then
    the first place.

    Args:
        arguments: what it will be called with, by position.
        optional: what it will be called with too, by name, if it takes it.
        instead: what to do about a function that cannot be called with these, for the error.

    Raises:
        ConfigError: there is no such function, or it cannot be called so. Errors
            of the module itself come out as they are.
    """
    module, _, function = name.partition(":")
    if not module or not function:
        raise ConfigError(
            f"{name!r} names no function; write module:function, such as my_code:my_function "
            "for my_code.py here"
        )

    # a path gives the folder to import from, and the name of the module
    # Path.expanduser raises for an unknown user, and this leaves ~name as it is
    file = Path(os.path.expanduser(module))  # noqa: PTH111
    folder = Path.cwd()
    if is_path := "/" in module or (module.endswith(".py") and file.is_file()):
        if not file.is_file():
            raise ConfigError(f"{name}: there is no file {file.absolute()}")
        if not file.name.endswith(".py") or "." in file.stem:
            raise ConfigError(
                f"{name}: {file.name} cannot be imported; its name must be that of a "
                "Python module, such as my_train.py"
            )
        folder, module = file.resolve().parent, file.stem
    elif module.startswith("."):
        raise ConfigError(
            f"{name}: a module is named from the top, so without the dot at its start"
        )

    try:
        imported = _import(module, str(folder), first=is_path)
    except ModuleNotFoundError as error:
        if not _is_missing(module, error):
            raise
        # a package of this name was found elsewhere, and has no such module
        package = sys.modules.get(module.partition(".")[0])
        if place := getattr(package, "__file__", None):
            raise ConfigError(f"{name}: there is no module {module} in {place}") from None
        meant = f"; write {module.removesuffix('.py')}:{function}" if module.endswith(".py") else ""
        raise ConfigError(
            f"{name}: there is no module {module} in {folder}, and none is installed{meant}"
        ) from None
    # a module that is built into Python has no file, and neither has a folder without __init__.py
    origin = getattr(imported, "__file__", None)
    where = origin or f"the module {module}"
    # another module of this name was imported before, or is built into Python
    if is_path and not (origin and file.samefile(origin)):
        raise ConfigError(f"{name}: the name {module} is taken by {where}; rename your file")

    loaded: Any = imported
    for part in function.split("."):  # of a class, such as Noise.add
        loaded = getattr(loaded, part, None)
    if not callable(loaded):
        raise ConfigError(f"{name}: {where} has no function {function}")

    passed = list(arguments)
    try:
        signature = inspect.signature(loaded)
        named = [each for each in optional if each in signature.parameters]
        passed += named
        signature.bind(*arguments, **dict.fromkeys(named))
    except TypeError as error:
        given = f"as {function}({', '.join(passed)})" if passed else "without arguments"
        advice = instead if passed else "give them defaults"
        raise ConfigError(f"{name} is called {given} ({error}); {advice}") from None
    except ValueError:  # functions in C may have no signature
        pass
    return loaded


def _import(module: str, folder: str, first: bool) -> ModuleType:
    """Imports a module from a folder if this comes first, or if the module is nowhere else."""
    if first and folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if folder in sys.path or not _is_missing(module, error):
            raise

    # at the end, so that nothing there hides a module that the program imports later
    sys.path.append(folder)
    try:
        return import_module(module)
    except BaseException:
        sys.path.remove(folder)
        raise


def _is_missing(module: str, error: ModuleNotFoundError) -> bool:
    """Returns whether the module itself is missing, and not one that it imports."""
    return f"{module}.".startswith(f"{error.name}.")
