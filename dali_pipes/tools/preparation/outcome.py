"""Counts and sizes of the written images of one split."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Outcome:
    """Counts and bytes of the written files, including those of an earlier run.

    Attributes:
        images: number of written images.
        same_pixels: those of them that this run did not encode.
        kept: those of them from an earlier run.
        bytes_before, bytes_after: of the written images, as files or shards.
        left_out: path and reason of every file that could not be used.
        difference: of the pixels before and after (difference.py), if they were compared.
    """

    images: int = 0
    same_pixels: int = 0
    kept: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    left_out: list[tuple[str, str]] = field(default_factory=list)
    difference: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
