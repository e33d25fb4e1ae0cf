"""Errors in the words of a command line: those whose text names what only Python has, and proposals
for options with a wrong name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from dali_pipes.backends.registry import list_backends
from dali_pipes.errors import DaliPipesError, NoGpuError, SmallDataError


def in_options(error: DaliPipesError, job: str) -> str:
    """Returns the error's text, with options as they are written on a command line.

    Args:
        job: the name of the job.
    """
    if isinstance(error, NoGpuError) and error.of_loader:
        return (
            "this loader needs a GPU, and PyTorch sees none here; choose loader=dali_cpu "
            "or loader=torch, or check the driver "
            f"(nvidia-smi). PyTorch says: {error.reason}"
        )

    if isinstance(error, SmallDataError):
        ranks = f" on {error.ranks} ranks" if error.ranks > 1 else ""
        return (
            f"{error.root}: {error.images} images do not fill one batch of "
            f"{error.batch}{ranks}, and {job} leaves out what fills "
            "none; set batch_size (with accumulate=1) to "
            f"{max(1, error.images // error.ranks)} at most"
        )

    return str(error)


def nested_options(name: str, config: Mapping[Any, Any]) -> list[str]:
    """Returns the full names of the options with this name, such as data.train for train; else the
    one that another loader has.
    """
    if found := list(dict.fromkeys(_places(name, config))):
        return found

    others = [
        each
        for each, entry in list_backends().items()
        if name in [field.name for field in fields(entry.config)]
    ]
    return [f"loader.{name} of loader={others[0]}"] if others and "loader" in config else []


def _places(name: str, config: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    for each, value in config.items():
        each = "ARM" if prefix == "loaders." else each  # there are many, most with the same options
        if prefix and str(each) == name:
            yield f"{prefix}{each}"
        if isinstance(value, Mapping):
            yield from _places(name, value, f"{prefix}{each}.")
