"""What became of the images of one split."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Outcome:
    """Counts and bytes of what was written, those files included that an earlier run left.

    Attributes:
        images: written.
        same_pixels: of those, not encoded anew by this run.
        kept: of those, from an earlier run.
        bytes_before, bytes_after: of the written images, as files or shards.
        left_out: path and reason of every file that could not be used.
    """

    images: int = 0
    same_pixels: int = 0
    kept: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    left_out: list[tuple[str, str]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
