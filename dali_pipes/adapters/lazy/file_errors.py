"""Which errors are of a file, and of which one."""

from collections.abc import Iterator
from types import CodeType
from typing import Any

from dali_pipes.adapters.lazy.recipes import Source


def is_of_a_file(error: BaseException) -> bool:
    """Whether it comes from reading or decoding an encoded picture, and not from what waits."""
    if isinstance(error, OSError):
        return True
    return any(
        code is Source.open.__code__ or code.co_filename.endswith(_DECODERS)
        for code, _ in _frames(error)
    )


_DECODERS = ("PIL/ImageFile.py", "PIL/JpegImagePlugin.py", "PIL/PngImagePlugin.py")


def file_of(error: BaseException) -> str:
    """The file that an error is about; "" if it does not say."""
    if name := getattr(error, "filename", None):
        return str(name)
    for _, names in reversed([*_frames(error)]):
        for each in map(names.get, ("filename", "path", "fp", "self")):
            name = each if isinstance(each, str) else getattr(each, "filename", None)
            if isinstance(name, str) and name:
                return name
    return ""


def _frames(error: BaseException) -> Iterator[tuple[CodeType, dict[str, Any]]]:
    trace = error.__traceback__
    while trace:
        yield trace.tb_frame.f_code, trace.tb_frame.f_locals
        trace = trace.tb_next
