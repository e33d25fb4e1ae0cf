"""A script of scripts/ as a user runs it, but in this process: what it prints and how it ends."""

import contextlib
import io
import os
import runpy
import sys
import warnings
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from hydra.core.global_hydra import GlobalHydra

SCRIPTS = Path(__file__).parents[1] / "scripts"


class Ended(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def script(name, *arguments, cwd=None) -> Ended:
    """Runs scripts/`name`.py with this command line; environment, folder and Hydra are left as they were."""
    path, out, err = SCRIPTS / f"{name}.py", io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, COLUMNS="100"),
        mock.patch.object(sys, "argv", [str(path), *arguments]),
        mock.patch.object(sys, "path", [str(SCRIPTS), *sys.path]),
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("default")
        GlobalHydra.instance().clear()
        try:
            runpy.run_path(str(path), run_name="__main__")
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(bool(end.code))
        finally:
            GlobalHydra.instance().clear()
    return Ended(status, out.getvalue(), err.getvalue())
