"""Turns what a sample has besides its image and its label into members of a shard.

That is a text, a mask, and columns of a table. `Beside` makes the members except the mask, which
`encode_mask` resizes and turns as its image was.
"""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dali_pipes.data.image_files.masks import mask_problem
from dali_pipes.data.image_files.stored import open_stored
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.reader import Reader
from dali_pipes.data.shards.tar import MASK_EXTENSION
from dali_pipes.data.turns import turn_array
from dali_pipes.errors import ConfigError, PreparationError

# not .png, by which a mask would be a second image
TEXT, MASK, COLUMNS = "txt", MASK_EXTENSION.removeprefix("."), "json"
_TARGETS = ("text", "mask")
_LONGEST_TEXT = 2**20  # bytes; a scan reads no longer text


def kept_beside(source: Manifest) -> list[str]:
    """Names what the manifest has besides labels: "text", "mask", and its columns."""
    has_mask = source.has_target("mask") or source.has_target("mask_bytes")
    there = {"text": source.has_target("text"), "mask": has_mask}
    named = [name for name in _TARGETS if there[name]]
    return named + list(source.columns)


def without(source: Manifest, drop: list[str]) -> Manifest:
    """Returns the same images without some of what `kept_beside` names.

    Raises:
        ConfigError: the manifest has nothing of that name.
    """
    there = kept_beside(source)
    if unknown := [name for name in drop if name not in there]:
        raise ConfigError(
            f"drop names {unknown[0]}, and besides labels {source.root} has "
            f"{', '.join(there) or 'nothing'}"
        )
    return source.without_columns(drop) if drop else source


def usage(source: Manifest) -> str:
    """Returns the options that read texts and masks from the shards, each after a space."""
    there = kept_beside(source)
    options = [f"data.targets.text=.{TEXT}"] * ("text" in there) + [
        f"data.targets.mask=.{MASK}"
    ] * ("mask" in there)

    pairs = ", ".join(
        f"{value}: {number}" for value, number in source.facts.mask_values.replacements.items()
    )
    return " ".join(["", *options, *([f"'data.targets.mask_values={{{pairs}}}'"] if pairs else [])])


class Beside:
    """Makes the members of samples, except masks, which change with their image."""

    def __init__(self, source: Manifest):
        self._source, self._has_text = source, source.has_target("text")
        self._columns = {name: source.columns[name] for name in source.columns}

    def members(self, sample_id: int) -> dict[str, bytes]:
        """Returns the members of one sample, by extension.

        Raises:
            PreparationError: its text is longer than a scan reads.
        """
        members: dict[str, bytes] = {}
        if self._has_text:
            members[TEXT] = _as_member(self._source.take_texts("text", np.array([sample_id]))[0])
            if len(members[TEXT]) > _LONGEST_TEXT:
                name, size = self._source.name(sample_id), len(members[TEXT])
                raise PreparationError(
                    f"{name}: its text has {size:,} bytes, and shards keep {_LONGEST_TEXT:,}; "
                    "shorten it"
                )

        if self._columns:
            values = {name: _plain(column[sample_id]) for name, column in self._columns.items()}
            # a lone surrogate in a text is kept, which UTF-8 alone would refuse
            members[COLUMNS] = json.dumps(values, ensure_ascii=False).encode(errors="surrogatepass")

        return members

    def sizes(self) -> list[list[int]]:
        """The sizes in bytes of each sample's members; a mask's is its size in the source."""
        sizes = [
            [len(member) for member in self.members(sample_id).values()]
            for sample_id in range(len(self._source))
        ]

        if "mask" in kept_beside(self._source):
            for sample_id, some in enumerate(sizes):
                extent = self._source.mask_extent(sample_id)
                some.append((extent.length or Path(extent.file).stat().st_size) if extent else 0)
        return sizes


def _as_member(text: str) -> bytes:
    """Encodes a text so that a scan, which removes one line end, reads the same text."""
    return (
        text + ("\r\n" if text.endswith("\r") else "\n" if text.endswith("\n") else "")
    ).encode()


def _plain(value: Any) -> Any:
    # numbers of a column are NumPy's, and everything else is Arrow's: JSON takes neither
    if hasattr(value, "as_py"):
        return value.as_py()
    return value.tolist() if hasattr(value, "tolist") else value


def encode_mask(
    source: Manifest, sample_id: int, image: bytes, orientation: int
) -> bytes | str | None:
    """Resizes and turns a sample's mask as its image was.

    Args:
        image: the encoded image.
        orientation: the EXIF orientation that was applied to the image; 1: none.

    Returns:
        the mask's file; or, as a text, why it cannot be used; None: the source has no masks.
    """
    if "mask" not in kept_beside(source):
        return None

    if (extent := source.mask_extent(sample_id)) is None:
        return "it has no mask, and others have"

    try:
        data = Reader(keep=1).read(extent).tobytes()
    except OSError as error:
        return f"its mask {extent}: {error.strerror.lower() if error.strerror else error}"

    height, width = source.take_sizes(np.array([sample_id]))[0].tolist()
    if why := mask_problem(io.BytesIO(data), height, width, "full"):
        return f"its mask {extent}: {why}"

    with open_stored(io.BytesIO(image)) as written:
        to = written.height, written.width
    # the source's file, so that its bytes stay the same
    if orientation == 1 and to == (height, width):
        return data
    return _resize_mask(data, orientation, to)


def _resize_mask(data: bytes, orientation: int, to: tuple[int, int]) -> bytes:
    """Turns a mask and resizes it to (H, W) by nearest neighbor, so that no new value appears."""
    with open_stored(io.BytesIO(data)) as mask:
        values, palette = np.asarray(mask), mask.palette
    values = turn_array(values.astype(np.uint8) if values.dtype == bool else values, orientation)

    rows, columns = map(_nearest, values.shape, to)
    made = Image.fromarray(np.ascontiguousarray(values[rows[:, None], columns]))

    if palette:
        made.putpalette(palette)

    file = io.BytesIO()
    made.save(file, "PNG")
    return file.getvalue()


def _nearest(length: int, to: int) -> NDArray[np.int64]:
    # the pixel whose centre is nearest, in integers
    return (2 * np.arange(to) + 1) * length // (2 * to)
