"""Arguments of `Manifest`'s class methods in the texts of errors, as Python and as a command line
write them.

The command line has them as options of its group `data` (config.py).
"""

from typing import Any, TypeAlias

from dali_pipes.errors import Spelling

Text: TypeAlias = tuple[str | Spelling, ...]


def argument(name: str, value: Any = ...) -> Spelling:
    """Returns encoding='latin-1', which is data.encoding=latin-1; without a value only the name."""
    if value is ...:
        return Spelling(f"{name}=", f"data.{name}=")
    # Hydra strips blanks around a value
    plain = f"'{value}'" if str(value).isspace() else value
    return Spelling(f"{name}={value!r}", f"data.{name}={plain}")


def no_labels() -> Spelling:
    """Returns how a source is opened without labels; a command line calls the option otherwise."""
    return Spelling("with_labels=False", "data.labels=false")
