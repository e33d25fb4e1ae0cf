"""Changes modules for a program: at once those that have been imported, the others right after
their import, before the program can use them.
"""

import importlib.abc
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

Hook = Callable[[ModuleType], None]


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
