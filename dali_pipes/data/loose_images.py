"""Images that are in no manifest, such as those that a data set's own code names item by item."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dali_pipes.data.image_files.headers import Header
from dali_pipes.data.reader import Extent, Reader
from dali_pipes.data.turns import turn_sizes


@dataclass(frozen=True, slots=True)
class LooseImages:
    """Images whose sizes are known, each in a file of its own or in memory.

    Backends ask them what they ask a manifest, by the place in these lists.

    Attributes:
        names: the absolute path of each file, or what messages call an image in memory.
        encoded: the bytes of each image in memory, and None for a file.
        sizes: (N, 2) int64 heights and widths in pixels, as stored.
        orientations: (N,) int8, the EXIF orientations, 1 to 8.
        jpegs: (N,) how each JPEG is coded, as `Header.jpeg` has it, in ASCII.
    """

    names: list[str]
    encoded: list[bytes | None]
    sizes: NDArray[np.int64]
    orientations: NDArray[np.int8]
    jpegs: NDArray[np.bytes_]

    @classmethod
    def of(
        cls, names: list[str], encoded: list[bytes | None], headers: Sequence[Header]
    ) -> "LooseImages":
        """Images of which these are the headers; one pixel stands for a size that is not known."""
        return cls(
            names,
            encoded,
            np.array([(each.height or 1, each.width or 1) for each in headers], np.int64),
            np.array([each.orientation for each in headers], np.int8),
            np.array([each.jpeg.encode() for each in headers], np.bytes_),
        )

    # as of a manifest: nothing belongs to these images besides
    root: ClassVar[str] = "an item"
    has_wide: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.names)

    def extent(self, number: int) -> Extent:
        """The place of one image's encoded bytes."""
        return Extent(self.names[number], data=self.encoded[number])

    def take_wide(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(N,) which of these images have 16 bits a channel: none."""
        return np.zeros(len(numbers), bool)

    def has_target(self, name: str) -> bool:
        """Whether they have targets of this name, such as boxes: never."""
        return False

    def take(self, numbers: NDArray[np.int64]) -> "LooseImages":
        """These images alone."""
        each = numbers.tolist()
        return LooseImages(
            [self.names[number] for number in each],
            [self.encoded[number] for number in each],
            self.sizes[numbers],
            self.orientations[numbers],
            self.jpegs[numbers],
        )

    def name(self, number: int) -> str:
        """The name of one image in messages."""
        return self.names[number]

    def read(self, number: int) -> NDArray[np.uint8]:
        """Reads one image's encoded bytes, or raises an OSError."""
        return Reader(keep=1).read(self.extent(number))

    def take_sizes(self, numbers: NDArray[np.int64], *, upright: bool = False) -> NDArray[np.int64]:
        """(N, 2) heights and widths in pixels, as stored or once they are turned by EXIF."""
        sizes = self.sizes[numbers]
        return turn_sizes(sizes, self.orientations[numbers]) if upright else sizes

    def take_orientations(self, numbers: NDArray[np.int64]) -> NDArray[np.int8]:
        """(N,) int8, the EXIF orientations, 1 to 8."""
        return self.orientations[numbers]

    def take_jpegs(self, numbers: NDArray[np.int64]) -> NDArray[np.bytes_]:
        """(N,) how each JPEG is coded, such as b"4:2:0"; b"" for other formats."""
        return self.jpegs[numbers]

    @property
    def some_sizes(self) -> NDArray[np.int64]:
        """(N, 2) heights and widths in pixels, for statistics."""
        return self.sizes

    @property
    def whole_files(self) -> bool:
        """Whether a library may read each image by its path alone: not those in memory."""
        return False


NO_IMAGES = LooseImages(
    [],
    [],
    np.zeros((0, 2), np.int64),
    np.zeros(0, np.int8),
    np.zeros(0, np.bytes_),
)
