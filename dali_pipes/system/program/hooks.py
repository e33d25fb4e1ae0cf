"""Changes modules for a program: at once those that have been imported, the others right after
their import, before the program can use them.
"""

import importlib.abc
import os
import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any, NoReturn, Protocol

Hook = Callable[[ModuleType], None]


class Fail(Protocol):
    """Ends the program's process with a message, a traceback and an exit status."""

    def __call__(self, message: str, trace: str = "", status: int = 1) -> NoReturn: ...


def install_hooks(hooks: dict[str, Hook]) -> None:
    """Installs the hooks, each under the name of its module."""
    later = dict(hooks)
    for name in [hook for hook in later if hook in sys.modules]:
        later.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, AfterImport(later))


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module once it has been imported."""

    def __init__(self, hooks: dict[str, Hook]):
        self._hooks = hooks

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        hook = self._hooks.pop(name, None)
        if hook is None:
            return None

        # the module is found as without this finder
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec), None)

        # the hook runs when the module's code has run: before that it has no functions to change
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_then_hook(module: ModuleType) -> None:
                execute(module)
                hook(module)

            spec.loader.exec_module = execute_then_hook  # type: ignore[method-assign]
        return spec


def refuse_processes(fail: Fail) -> dict[str, Hook]:
    """Returns the hooks that refuse a program which trains in processes of its own.

    Args:
        fail: ends the program with the message.
    """
    return {
        "torch.distributed.distributed_c10d": lambda module: _refuse_groups(module, fail),
        "torch.multiprocessing.spawn": lambda module: _refuse_spawning(module, fail),
    }


def _refuse_groups(module: ModuleType, fail: Fail) -> None:
    original = module.init_process_group

    @wraps(original)
    def init_process_group(*arguments: Any, **options: Any) -> Any:
        # world_size is the fourth argument; torchrun gives it in the environment
        world = options.get("world_size", arguments[3] if len(arguments) > 3 else -1)
        if max(int(world), int(os.environ.get("WORLD_SIZE", 1))) > 1:
            fail(
                "the program trains in several processes (init_process_group); "
                "diagnose runs one: give it one device"
            )
        return original(*arguments, **options)

    places: list[Any] = [module, sys.modules["torch.distributed"]]
    for place in places:  # the package has its own name for it, if it was imported before
        if hasattr(place, "init_process_group"):
            place.init_process_group = init_process_group


def _refuse_spawning(module: ModuleType, fail: Fail) -> None:
    def refuse(*arguments: Any, **options: Any) -> NoReturn:
        fail(
            "the program trains in processes of its own (torch.multiprocessing.spawn), where "
            "its loop is not seen; give diagnose a program that trains in its main process on "
            "one device"
        )

    module.spawn = module.start_processes = refuse  # type: ignore[attr-defined]
