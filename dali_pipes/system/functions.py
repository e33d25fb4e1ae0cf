"""Functions that users name on the command line."""

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from dali_pipes.errors import ConfigError


def named_function(name: str) -> Callable[..., Any]:
    """The function "module:name" without arguments, of a module that is installed or lies in the working directory.

    ConfigError is raised if there is none; errors of the module itself are its own.
    """
    module, _, function = name.partition(":")
    if not module or not function:
        raise ConfigError(f"{name!r} names no function; write module:function, such as my_train:make_loader for my_train.py here")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.split(".")[0] and error.name != module:
            raise
        meant = f"; write {module.removesuffix('.py')}:{function}" if module.endswith(".py") else ""
        raise ConfigError(f"{name}: there is no module {module} in {here}, and none is installed{meant}") from None
    if not callable(getattr(found, function, None)):
        raise ConfigError(f"{name}: {found.__file__} has no function {function}")
    made = getattr(found, function)
    try:
        inspect.signature(made).bind()
    except TypeError as error:
        raise ConfigError(f"{name} is called without arguments ({error}); give them defaults") from None
    return made
