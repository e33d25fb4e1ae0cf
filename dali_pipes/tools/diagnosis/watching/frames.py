"""Frames of a program: where it is, and which part of a traceback is its own.

Imports only the standard library, as answers.py and imports.py do, since a program may set
OMP_NUM_THREADS before it imports torch.
"""

import runpy
import sysconfig
import traceback
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType

_STDLIB = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_PACKAGE = str(Path(__file__).parents[3])
_INSTALLED = ("site-packages", "dist-packages")
START_FOLDER = Path.cwd()  # a program may change its working directory later


@cache
def is_library(file: str) -> bool:
    return any(folder in file for folder in _INSTALLED) or file.startswith(
        (*_STDLIB, _PACKAGE + "/", "<frozen")
    )


def program_frame(frame: FrameType | None) -> FrameType | None:
    """Returns the innermost frame that is not of an installed library; None if all of them are."""
    # code that has no file, such as exec's, is no place that a person could look at
    while frame is not None and (
        is_library(frame.f_code.co_filename) or not Path(frame.f_code.co_filename).is_file()
    ):
        frame = frame.f_back
    return frame


def place_of(frame: FrameType | None) -> str:
    """Returns "file:line" of the innermost frame that is not of an installed library.

    The file is relative to the program's first working directory; "?" if there is no frame.
    """
    found = program_frame(frame) or frame
    if found is None:
        return "?"
    file = Path(found.f_code.co_filename)
    shown = file.relative_to(START_FOLDER) if file.is_relative_to(START_FOLDER) else file
    return f"{shown}:{found.f_lineno}"


def own_traceback(error: BaseException) -> str:
    """Returns the traceback as Python would print it, without the frames that run the program."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(
        (_PACKAGE + "/", runpy.__file__, "<frozen runpy>")
    ):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))
