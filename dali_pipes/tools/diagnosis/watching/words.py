"""Which program the words of a command line start: dali-pipes diagnose -- train.py ARGS.

`read_program` reads them, and refuses what cannot be watched with what to write instead.
"""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dali_pipes.errors import ConfigError

_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "horovodrun")
_LAUNCHER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
)
_WRAPPERS = (
    "uv",
    "poetry",
    "conda",
    "env",
    "nohup",
    "nice",
    "time",
    "taskset",
    "numactl",
    "sudo",
    "bash",
    "sh",
    "jupyter",
)
_WITH_VALUE = ("-W", "-X")  # options of python
_START = "dali-pipes diagnose --"
_CALL = "dali_pipes.diagnose(loader, step)"  # in a notebook


@dataclass(frozen=True, slots=True)
class Program:
    """What a user would start with `python`.

    Attributes:
        words: the file or the module, and its arguments.
        is_module: whether it is a module.
        flags: options of python itself.
    """

    words: list[str]
    is_module: bool = False
    flags: tuple[str, ...] = ()


def say(text: str) -> None:
    print(f"diagnose: {text}", file=sys.stderr, flush=True)


def read_program(words: Sequence[str]) -> Program:
    """Returns the program that these words of a command line start, with or without `python` in
    front.

    Raises:
        ConfigError: it is no program that can be watched.
    """
    rest, flags = list(words), list[str]()
    if rest and re.fullmatch(r"i?python(\d+(\.\d+)*)?", Path(rest[0]).name):
        _note_interpreter(rest.pop(0))
        while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
            flags += [rest.pop(0) for _ in range(2 if rest[0] in _WITH_VALUE else 1)]

    is_module = rest[:1] == ["-m"]
    rest = rest[1:] if is_module else rest
    if not rest:
        raise ConfigError(f"-- is followed by no program; write {_START} train.py ARGS")

    _refuse_others(rest, is_module)
    # a command of an environment, such as `yolo`, is a Python program as well
    if not is_module and not Path(rest[0]).exists() and (script := _console_script(rest[0])):
        rest[0] = script

    if (
        not is_module
        and not Path(rest[0]).is_file()
        and not (Path(rest[0]) / "__main__.py").is_file()
    ):
        raise ConfigError(
            f"{rest[0]}: no such file; after -- comes a Python program and its arguments"
        )
    return Program(rest, is_module, tuple(flags))


def _refuse_others(rest: list[str], is_module: bool) -> None:
    """Raises ConfigError for programs that cannot be watched, by their name, with what to write
    instead.
    """
    name = Path(rest[0])
    script = next((place for place, word in enumerate(rest) if word.endswith(".py")), None)
    instead = f"{_START} {' '.join(rest[script:]) if script else 'train.py ARGS'}"

    if name.name in _LAUNCHERS or (is_module and rest[0] in _LAUNCHER_MODULES):
        why = "starts several processes, of which diagnose cannot watch the loops"
        raise ConfigError(
            f"{name.name} {why}; give the program itself, which then trains in one process on "
            f"one device: {instead}"
        )

    if name.suffix == ".ipynb":
        raise ConfigError(
            f"{name}: a notebook; in it, call {_CALL}, or export it (jupyter nbconvert)"
        )
    if name.suffix == ".ipy":
        raise ConfigError(
            f"{name}: IPython's own syntax; in IPython, call {_CALL}, or make it a .py"
        )
    if name.suffix in (".sh", ".bash"):
        raise ConfigError(
            f"{name}: a shell script; give the Python program that it starts: {instead}"
        )

    if rest[0] in ("-c", "-"):
        raise ConfigError(
            f"a program without a file cannot be diagnosed; write it into one: {_START} train.py "
            "ARGS"
        )
    if name.name in _WRAPPERS and not is_module and not name.is_file():
        raise ConfigError(
            f"{name}: it starts other programs; put it in front of dali-pipes and give the "
            f"program itself: {instead}"
        )

    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ConfigError(
            "WORLD_SIZE is set: a process of several; start diagnose without torchrun or srun"
        )


def _note_interpreter(python: str) -> None:
    """Says so if the program will run in another environment than these words name: programs run
    in this process's Python.
    """
    found = shutil.which(python)
    if found and Path(found).parent.resolve() != (Path(sys.prefix) / "bin").resolve():
        say(f"it runs with {sys.executable}, where dali_pipes is installed, and not with {found}")


def _console_script(name: str) -> str | None:
    """Returns the Python program behind an installed command such as `yolo`; None if it is none."""
    found = shutil.which(name)
    if not found:
        return None

    with open(found, "rb") as file:
        first = file.readline(200)
    # such a command is a text with the interpreter in its first line
    return found if first.startswith(b"#!") and b"python" in first else None
