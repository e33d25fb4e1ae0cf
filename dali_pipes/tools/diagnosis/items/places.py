"""Names the place where a sample of the stack fell, as a person would say it.

`name_place` is what others call. Its rules, the first that fits: Pillow's late decoding, the
innermost transform of a library, the first function of a library that the user's line calls, a loop
of the user's, the line itself.
"""

import dis
import itertools
import linecache
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from dali_pipes.tools.diagnosis.items.sampler import Entry, StackSampler
from dali_pipes.tools.diagnosis.watching.frames import is_library

_PLUMBING = (
    "torch.nn.modules.module",
    "torch.utils._contextlib",
    "torch.utils.data",
    "contextlib",
    "functools",
)
# what others have put around each call or allocation: modes of PyTorch, callbacks of the collector
_AROUND = ("torch.utils._device", "torch.overrides", "hypothesis", "nvidia.dali._utils.hacks")
_TEXT = {"loadtxt", "genfromtxt", "fromstring", "read_csv", "literal_eval", "safe_load"}
_TEXT_MODULES = {
    "json",
    "orjson",
    "ujson",
    "csv",
    "yaml",
    "toml",
    "tomllib",
}  # not pickle's loads()
# the last three are those of torchvision's image folders, which open and decode
_DECODERS = {
    *("imread", "imdecode", "decode_jpeg", "decode_image", "read_image"),
    *("default_loader", "pil_loader", "accimage_loader"),
}
_NETWORK = {
    "requests",
    "urllib",
    "urllib3",
    "http",
    "socket",
    "ssl",
    "boto3",
    "botocore",
    "s3fs",
    "aiohttp",
}
_TRANSFORMS = {"torchvision", "albumentations", "monai", "kornia", "torchaudio"}
_ALIASES = {"numpy": "np", "pandas": "pd"}


@dataclass(frozen=True, slots=True)
class Place:
    """The place where a sample fell; see `ItemPart`.

    Attributes:
        loop: the code that a Python loop is in; None if it is no loop.
    """

    name: str
    where: str
    text: str
    kind: str
    loop: CodeType | None = None


def name_place(stack: tuple[Entry, ...], sampler: StackSampler, collates: bool) -> Place:
    while len(stack) > 1 and _module(stack[-1][0], sampler).startswith(_AROUND):
        stack = stack[:-1]

    own = [place for place, (code, _, _) in enumerate(stack) if not is_library(code.co_filename)]
    # collating is named by what PyTorch's collate function calls, whatever that calls in turn
    if collates and not own:
        stack = (
            tuple(
                itertools.takewhile(
                    lambda entry: _module(entry[0], sampler).startswith("torch.utils.data"), stack
                )
            )
            or stack
        )

    last = own[-1] if own else -1
    code, offset, _ = stack[last]
    line = _lines(code).get(offset, code.co_firstlineno)
    loop = _loop(code, offset) if own else None
    where, text = ("", "") if not own else _where(code, line)

    below = [
        entry for entry in stack[last + 1 :] if not _module(entry[0], sampler).startswith(_PLUMBING)
    ]

    # Pillow decodes when the pixels are first needed, which may be in any of its functions
    for outer, _, _ in below:
        if _module(outer, sampler).startswith("PIL.ImageFile") and outer.co_name == "load":
            first = next(code for code, _, _ in below if _module(code, sampler).startswith("PIL."))
            return Place(f"decoding ({_public(first, sampler)})", where, text, "decode")

    # the innermost step of a library of transforms
    if step := next(
        (
            sampler.objects[owner]
            for _, _, owner in reversed(below)
            if owner and _is_step(sampler.objects[owner])
        ),
        None,
    ):
        return Place(type(step).__name__, where, text, "transform")

    # else the first function of a library that the user's line calls
    if below:
        first = next(
            (code for code, _, _ in below if not code.co_name.startswith("__")), below[0][0]
        )
        name = _public(first, sampler)
        if collates and not own:
            return Place(f"collating ({name})", where, text, "collate")
        return Place(name, where, text, _kind(name, _module(first, sampler)))

    # else the line itself: a call into C, or Python code
    called = _called(code, offset)

    if not own:
        name = (
            called if called and not _is_small(called) else code.co_qualname.split(".<locals>")[0]
        )
        return Place(
            f"collating ({name})" if collates else name,
            where,
            text,
            "collate" if collates else "other",
        )

    if loop is not None and (called is None or _is_small(called)):
        name = next(
            part for part in reversed(code.co_qualname.split(".")) if not part.startswith("<")
        )
        return Place(f"a Python loop in {name}()", *_where(code, loop), "python_loop", code)
    return Place(called or f"{code.co_name}()", where, text, _kind(called or "", ""))


def _is_step(transform: Any) -> bool:
    # a composition's time belongs to its steps
    composes = isinstance(getattr(transform, "transforms", None), (list, tuple)) or isinstance(
        transform, torch.nn.Sequential
    )
    return not composes and type(transform).__module__.split(".")[0] in _TRANSFORMS


def _module(code: CodeType, sampler: StackSampler) -> str:
    return str(sampler.globals[code].get("__name__", ""))


def _public(code: CodeType, sampler: StackSampler) -> str:
    """Returns the name that a person would use: numpy.lib._npyio_impl.loadtxt is np.loadtxt.

    It takes the shortest module that has a thing of this name.
    """
    words, steps = (
        code.co_qualname.split(".<locals>")[0].split("."),
        _module(code, sampler).split("."),
    )

    for length in range(1, len(steps) + 1):
        module = sys.modules.get(".".join(steps[:length]))
        if module is not None and words[0] in vars(module):
            steps = steps[:length]
            break
    # a function of the same name as its module
    if steps[-1] == words[0]:
        words = words[1:]
    return ".".join([_ALIASES.get(steps[0], steps[0]), *steps[1:], *words])


def _kind(name: str, module: str) -> str:
    last, top = name.rsplit(".", 1)[-1], (module or name).split(".")[0]
    if name in ("time.sleep", "sleep") or top in _NETWORK:
        return "wait"
    if last in _TEXT or top in _TEXT_MODULES:
        return "text_parsing"

    if last in _DECODERS:
        return "decode"
    # before the modules below, since PIL.Image.open decodes nothing yet
    if name in ("open", "np.load", "PIL.Image.open", "torch.load") or last in (
        "read",
        "read_bytes",
        "read_text",
    ):
        return "open"

    if top in _TRANSFORMS or top in ("cv2", "PIL") or name.startswith("scipy.ndimage"):
        return "transform"
    return "other"


@cache
def _lines(code: CodeType) -> dict[int, int]:
    # an instruction takes two bytes
    return {
        2 * place: position[0]
        for place, position in enumerate(code.co_positions())
        if position[0] is not None
    }


@cache
def _loop(code: CodeType, offset: int) -> int | None:
    """Returns the first line of the outermost loop around an instruction; None if there is none.

    Jumps back show the loops, so it works without a source.
    """
    # JUMP_BACKWARD_NO_INTERRUPT belongs to `yield from` and `await`, not to a loop of the source
    ranges = [
        (instruction.argval, instruction.offset)
        for instruction in dis.get_instructions(code)
        if "BACKWARD" in instruction.opname and "NO_INT" not in instruction.opname
    ]
    # a loop that yields goes from item to item; that of a generator expression is inside one item
    yields = [
        instruction.offset
        for instruction in dis.get_instructions(code)
        if instruction.opname == "YIELD_VALUE" and code.co_name != "<genexpr>"
    ]
    around = [
        (a, b)
        for a, b in ranges
        if a <= offset <= b and not any(a <= place <= b for place in yields)
    ]

    if not around:
        return None
    first, end = min(around)
    return min(line for at, line in _lines(code).items() if first <= at <= end)


@cache
def _called(code: CodeType, offset: int) -> str | None:
    """Returns the function that this instruction calls, as its source has it; None if it is no
    call, or has no source.
    """
    opcode = code.co_code[offset] if offset >= 0 else 0
    if not dis.opname[opcode].startswith(("CALL", "PRECALL")):
        return None

    line, _, column, _ = list(code.co_positions())[offset // 2]
    if line is None or column is None:
        return None
    # co_positions counts columns in bytes of UTF-8
    source = linecache.getline(code.co_filename, line).encode()[column:].decode(errors="ignore")
    return source.split("(", 1)[0].strip()[:40] or None


def _is_small(called: str) -> bool:
    """Whether it is a builtin or a built-in type's method; in a loop its time is the loop's."""
    last = called.rsplit(".", 1)[-1]
    return called in _BUILTINS or any(hasattr(type_, last) for type_ in (str, list, dict, set))


# opening a file is a place of its own, which `_kind` knows
_BUILTINS = set(Counter(__builtins__ if isinstance(__builtins__, dict) else vars(__builtins__))) - {
    "open"
}


def _where(code: CodeType, line: int) -> tuple[str, str]:
    file = Path(code.co_filename)
    # a cell's file has a made-up name
    if "ipykernel_" in code.co_filename or code.co_filename.startswith("<ipython"):
        name = "notebook cell"
    else:
        name = str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else file.name
    return f"{name}:{line}", linecache.getline(code.co_filename, line).strip()[:100]
