"""The file that `loader=tuned_HOST` reads."""

import os
import platform
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.registry import entry_of
from dali_pipes.errors import ConfigError
from dali_pipes.system.files import replacing, to_yaml


def tuned_file(into: str, host: str | None) -> Path:
    """Where the file goes. In its name everything but letters, digits, - and _ becomes _.

    Raises:
        ConfigError: it cannot be written there.
    """
    folder = Path(into).absolute()
    closest = next(each for each in (folder, *folder.parents) if each.exists())  # the rest is made with the file
    if not closest.is_dir() or not os.access(closest, os.W_OK):
        raise ConfigError(f"into={folder}: {closest} is no folder, or it cannot be written to; give another folder")
    name = re.sub(r"[^A-Za-z0-9_-]", "_", host or platform.node())
    if not name.strip("_"):
        raise ConfigError("this machine has no name to use in a file name; give one, host=NAME")
    return folder / f"tuned_{name}.yaml"


def write(file: Path, loader: LoaderConfig, comments: Sequence[str]) -> None:
    """Replaces the file as a whole, with every option of the loader and with `comments`, one line each."""
    text = "".join(f"# {' '.join(line.split())}\n" for line in comments)
    text += f"defaults:\n  - {entry_of(loader).name}_schema\n  - _self_\n\n{to_yaml(loader)}"
    with replacing(file) as aside:
        aside.write_text(text)


def command_line(overrides: Sequence[str]) -> str:
    return f"dali-pipes tune {shlex.join(overrides)}"
