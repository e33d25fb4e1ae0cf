"""A part of the work, for one of several processes that need not know of each other."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from dali_pipes.errors import ConfigError

T = TypeVar("T")
MERGE = "merge"


@dataclass(frozen=True, slots=True)
class Part:
    """
    Attributes:
        index, count: it is the index-th of so many, from 0.
        merges: it is what comes after all of them.
    """

    index: int = 0
    count: int = 1
    merges: bool = False

    @classmethod
    def read(cls, text: str) -> "Part":
        """
        Raises:
            ConfigError: neither such as 2/8 nor "merge".
        """
        if text == MERGE:
            return cls(merges=True)
        numbers = re.fullmatch(r"(\d+)/(\d+)", text)
        if not numbers or not 1 <= int(numbers[1]) <= int(numbers[2]):
            raise ConfigError(f"part is {text}; it takes 1/8 to 8/8 for eight processes, and merge when all of them have ended")
        return cls(int(numbers[1]) - 1, int(numbers[2]))

    @property
    def name(self) -> str:
        return "" if self.merges else f"-{self.index + 1}-of-{self.count}"

    def of(self, items: Sequence[T]) -> Sequence[T]:
        return items[self.index :: self.count]
