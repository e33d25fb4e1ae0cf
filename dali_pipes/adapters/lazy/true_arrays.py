"""Whether arrays may wait in a program, by its code: `why_arrays_are_true`.

A function that compares types by `is`, or catches the errors that code in C raises of what is no
true array, would do something else with what stands for one, and nobody would see it.
"""

import builtins
import dis
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from dali_pipes.adapters.lazy.reach import innermost, is_of_a_library, reach

# errors that code in C raises of what is no true array
_OF_CODE_IN_C = (TypeError, ValueError, AttributeError, RuntimeError)


def why_arrays_are_true(**roots: Any) -> str | None:
    """Why no array may wait: a function of the program's that can be reached would do something
    else with what stands for one, and nobody would see it. None: there is no such function.
    """
    kinds = [each for root in roots.values() for each in type(innermost(root)).__mro__]
    done = {vars(kind).get("__init__") for kind in kinds}  # such as where a cache may be missing
    for value, _, _, _ in reach(roots):
        if not isinstance(value, FunctionType) or value in done or is_of_a_library(value):
            continue
        code = value.__code__
        name = f"{value.__qualname__} ({Path(code.co_filename).name}:{code.co_firstlineno})"
        if _tests_types(code):
            return f"{name} asks whether type(…) is a class"
        if _catches_all(code, value.__globals__):
            return f"{name} catches errors, also those of code in C that takes true arrays only"
    return None


@lru_cache
def _tests_types(code: CodeType) -> bool:
    """Whether it compares types by `is`, or asks for subclasses."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    compares = any(
        # a constant, such as None or True, is no class
        step.opname == "IS_OP" and before.opname != "LOAD_CONST"
        for before, step in pairwise(steps)
    )
    names = {"type", "__class__"} & {*code.co_names}
    if names and (compares or "issubclass" in code.co_names):
        return True
    return any(_tests_types(each) for each in code.co_consts if isinstance(each, CodeType))


def _catches_all(code: CodeType, names: dict[str, Any]) -> bool:
    """Whether it catches an error of any kind, or of the kinds that code in C raises.

    Args:
        names: its globals.
    """
    steps = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    for at, step in enumerate(steps):
        if step.opname == "PUSH_EXC_INFO":
            # a bare `except`, or a `finally` that returns
            rest = (each.opname for each in steps[at + 1 :])
            first = next((each for each in rest if each in _ENDS), "")
            if first == "RETURN_VALUE" or steps[at + 1].opname == "POP_TOP":
                return True
        elif step.opname in _MATCHES and _may_catch(steps[at - 1], code, names):
            return True
    if not _KEEPS_ERRORS.isdisjoint((*code.co_names, *_keywords(code))):
        return True
    if any(names.get(each) is suppress for each in code.co_names):  # by another name
        return True
    if code.co_name == "__exit__" and _returns_something(steps):
        return True
    return any(_catches_all(each, names) for each in code.co_consts if isinstance(each, CodeType))


# of `except` and of `except*`
_MATCHES = frozenset({"CHECK_EXC_MATCH", "CHECK_EG_MATCH"})
# in a handler: what says whether the error goes on
_ENDS = frozenset({*_MATCHES, "RERAISE", "RETURN_VALUE"})
# functions and options that keep an error, of a future, a task or a `with`
_KEEPS_ERRORS = frozenset({"suppress", "exception", "return_exceptions"})


def _returns_something(steps: list[dis.Instruction]) -> bool:
    """Whether it may return what is true, which tells a `with` that an error is no error."""
    constants = [step.argval for step in steps if step.opname == "RETURN_CONST"]
    for before, step in pairwise(steps):
        if step.opname == "RETURN_VALUE":
            constants.append(before.argval if before.opname == "LOAD_CONST" else True)
    return any(constants)


def _may_catch(step: dis.Instruction, code: CodeType, names: dict[str, Any]) -> bool:
    """Whether the errors that this step names may be of the kinds that code in C raises."""
    if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
        found = [names.get(step.argval, getattr(builtins, step.argval, None))]
    elif step.opname == "BUILD_TUPLE" or step.opname == "LOAD_ATTR":
        # names of errors, of modules, and of others that are no errors
        found = [names.get(each, getattr(builtins, each, None)) for each in code.co_names]
        modules = [each for each in found if isinstance(each, ModuleType)]
        found += [getattr(each, name, None) for each in modules for name in code.co_names]
        found = [each for each in found if _is_of_errors(each)] or [None]
    else:
        found = [None]
    return any(not _is_of_errors(each) or _catches(each) for each in found)


def _is_of_errors(value: Any) -> bool:
    kinds = value if isinstance(value, tuple) else (value,)
    return all(isinstance(each, type) and issubclass(each, BaseException) for each in kinds)


def _catches(kinds: Any) -> bool:
    # OpenCV's is derived from Exception alone
    return any(issubclass(each, kinds) for each in _OF_CODE_IN_C) or any(
        each.__name__ == "error" for each in (kinds if isinstance(kinds, tuple) else (kinds,))
    )


def _keywords(code: CodeType) -> set[str]:
    """Names of arguments that it gives to functions."""
    names = [each for each in code.co_consts if isinstance(each, tuple)]
    return {each for name in names for each in name if isinstance(each, str)}
