"""What cannot be carried over."""

from typing import Any

from dali_pipes.errors import ConfigError


class NotConvertibleError(ConfigError):
    """A part of a DataLoader that dali_pipes cannot carry out in the same way.

    Attributes:
        part: its name, such as "ElasticTransform".
    """

    def __init__(self, part: str, problem: str, instead: str):
        super().__init__(f"{part} cannot be carried over: {problem}; {instead}")
        self.part = part


def refuse_unless(holds: Any, part: str, problem: str, instead: str) -> None:
    if not holds:
        raise NotConvertibleError(part, problem, instead)
