"""Libraries that take seconds to import, imported by the first test that uses them: collecting
tests does not wait for them.
"""

import importlib
import importlib.util

import pytest


class Later:
    def __init__(self, name):
        self._name = name

    def __getattr__(self, name):
        # pytest asks every global of a module whether it is a test
        if name.startswith("_") or "pytest" in name:
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


def later(name, needs=None):
    """The module. Without the package `needs` (by default that of `name`) the tests of the calling
    file are skipped.
    """
    package = needs or name.split(".")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}", allow_module_level=True)
    return Later(name)
