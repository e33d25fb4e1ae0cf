"""Runs a program in this process, as `python` would."""

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path


def run_program(words: Sequence[str], is_module: bool) -> None:
    """Runs a file, a folder or a module with its arguments; errors come out as they are.

    Args:
        words: the file or the module, and its arguments.
    """
    program, *_ = sys.argv[:] = [*words]
    if is_module:
        # as `python -m` does
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return

    # as `python FILE` does; run_path does so itself for a folder
    if not Path(program).is_dir():
        sys.path.insert(0, str(Path(program).resolve().parent))
    runpy.run_path(str(Path(program).absolute()), run_name="__main__")
