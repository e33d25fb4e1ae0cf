"""Frames of a program that is watched: which loop it is in, and whether it has just left one.

Imports only the standard library, since a program may set OMP_NUM_THREADS before it imports torch.
"""

import dis
import sys
from pathlib import Path
from types import CodeType, FrameType

from dali_pipes.tools.diagnosis.watching.frames import is_library

_WATCHING = str(Path(__file__).with_name("watching"))  # the code that runs the program


def _is_ours(file: str) -> bool:
    return file == __file__ or file.startswith(_WATCHING + "/")


def breaking_frame() -> FrameType | None:
    """Returns the frame of the program that is just dropping an iterator, as `break` and `return`
    do; else None.

    An exception that leaves the loop is at another opcode.
    """
    frame: FrameType | None = sys._getframe(1)
    # frames of dali_pipes and of libraries, such as tqdm's generator, are above the program's own
    while frame is not None and (
        _is_ours(frame.f_code.co_filename) or "site-packages" in frame.f_code.co_filename
    ):
        frame = frame.f_back

    # by the opcodes that drop a loop's iterator, which differ between versions of Python
    if frame is None or dis.opname[frame.f_code.co_code[frame.f_lasti]] not in (
        "POP_TOP",
        "POP_ITER",
        "END_FOR",
    ):
        return None
    return frame


def enclosing_loop(
    frame: FrameType, asked_at: tuple[CodeType, int] | None
) -> tuple[FrameType, int, int] | None:
    """Returns the loop of the program around the one that asked for batches at `asked_at`: its
    frame, and its first and last instruction. None if there is none.
    """
    here: FrameType | None = frame
    # the innermost loop there is the one that is being left
    depth = 1 if asked_at and asked_at[0] is frame.f_code else 0

    while here is not None and not (
        _is_ours(here.f_code.co_filename) and here.f_code.co_name == "main"
    ):
        # the frame is past its loop by now: where it asked for batches is still inside
        at = asked_at[1] if depth and asked_at else here.f_lasti
        around = [] if is_library(here.f_code.co_filename) else loops_around(here.f_code, at)
        if len(around) > depth:
            return here, *around[depth]
        here, depth = here.f_back, 0
    return None


def loops_around(code: CodeType, offset: int) -> list[tuple[int, int]]:
    """Returns the first and last instruction of each loop around an instruction, the innermost
    first, as its jumps back show them.
    """
    ends: dict[int, int] = {}
    for instruction in dis.get_instructions(code):
        # JUMP_BACKWARD_NO_INTERRUPT is that of `yield from` and `await`, no loop of the source
        if "BACKWARD" in instruction.opname and "NO_INT" not in instruction.opname:
            ends[instruction.argval] = max(instruction.offset, ends.get(instruction.argval, 0))
    return sorted(
        ((first, last) for first, last in ends.items() if first <= offset <= last), reverse=True
    )
