"""What a sample has besides its image and its label, as members of a shard: a text, a mask, and
columns of its own.
"""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dali_pipes.data.manifest import Manifest
from dali_pipes.data.reader import Reader
from dali_pipes.data.scanning.masks import mask_problem
from dali_pipes.data.scanning.stored import open_stored
from dali_pipes.errors import ConfigError, PreparationError
from dali_pipes.plan.coordinates import turned

TEXT, MASK, COLUMNS = "txt", "mask.png", "json"  # not .png, by which a mask would be a second image
_TARGETS = ("text", "mask")
_LONGEST_TEXT = 2**20  # bytes, of which a scan reads no more


def kept_beside(source: Manifest) -> list[str]:
    """ "text", "mask", and the names of columns, as far as a manifest has them."""
    has_mask = source.has_target("mask") or source.has_target("mask_bytes")
    there = {"text": source.has_target("text"), "mask": has_mask}
    return [name for name in _TARGETS if there[name]] + list(source.columns)


def without(source: Manifest, drop: list[str]) -> Manifest:
    """The same images without some of what `kept_beside` names.

    Raises:
        ConfigError: it has none of that name.
    """
    there = kept_beside(source)
    if unknown := [name for name in drop if name not in there]:
        raise ConfigError(
            f"drop names {unknown[0]}, and besides labels {source.root} has "
            f"{', '.join(there) or 'nothing'}"
        )
    return source.without_columns(drop) if drop else source


def usage(source: Manifest) -> str:
    """The options by which what is beside the images is read again."""
    there = kept_beside(source)
    options = [f"data.targets.text=.{TEXT}"] * ("text" in there) + [
        f"data.targets.mask=.{MASK}"
    ] * ("mask" in there)
    pairs = ", ".join(f"{value}: {number}" for value, number in source.mask_values.becomes.items())
    return " ".join(["", *options, *([f"'data.targets.mask_values={{{pairs}}}'"] if pairs else [])])


class Beside:
    """The members of the samples of one manifest, but for masks, which change with their image."""

    def __init__(self, source: Manifest):
        self._source, self._has_text = source, source.has_target("text")
        self._columns = {name: source.columns[name] for name in source.columns}

    def members(self, sample_id: int) -> dict[str, bytes]:
        """By their extension.

        Raises:
            PreparationError: a text that no scan would read.
        """
        found: dict[str, bytes] = {}
        if self._has_text:
            found[TEXT] = _as_member(self._source.take_texts("text", np.array([sample_id]))[0])
            if len(found[TEXT]) > _LONGEST_TEXT:
                name, size = self._source.name(sample_id), len(found[TEXT])
                raise PreparationError(
                    f"{name}: its text has {size:,} bytes, and shards keep {_LONGEST_TEXT:,}; "
                    "shorten it"
                )
        if self._columns:
            values = {name: _plain(column[sample_id]) for name, column in self._columns.items()}
            found[COLUMNS] = json.dumps(values, ensure_ascii=False).encode(errors="surrogatepass")
        return found

    def sizes(self) -> list[list[int]]:
        """Of each sample the bytes of its members; a mask's are those of the source."""
        sizes = [
            [len(each) for each in self.members(sample_id).values()]
            for sample_id in range(len(self._source))
        ]
        if "mask" in kept_beside(self._source):
            for sample_id, some in enumerate(sizes):
                extent = self._source.mask_extent(sample_id)
                some.append((extent.length or Path(extent.file).stat().st_size) if extent else 0)
        return sizes


def _as_member(text: str) -> bytes:
    """A scan takes one line end off."""
    return (
        text + ("\r\n" if text.endswith("\r") else "\n" if text.endswith("\n") else "")
    ).encode()


def _plain(value: Any) -> Any:
    if hasattr(value, "as_py"):
        return value.as_py()
    return value.tolist() if hasattr(value, "tolist") else value


def encode_mask(
    source: Manifest, sample_id: int, image: bytes, orientation: int
) -> bytes | str | None:
    """A sample's mask, resized and turned as its image was; a text: why it cannot be used; None:
    the source has no masks.

    Args:
        image: as it was encoded.
        orientation: EXIF's, by which it was turned; 1: it was not.
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
    if orientation == 1 and to == (height, width):
        return data
    return _resized(data, orientation, to)


def _resized(data: bytes, orientation: int, to: tuple[int, int]) -> bytes:
    """Each of its values is one that was there: that of the nearest pixel."""
    with open_stored(io.BytesIO(data)) as mask:
        values, palette = np.asarray(mask), mask.palette
    values = turned(values.astype(np.uint8) if values.dtype == bool else values, orientation)
    rows, columns = map(_nearest, values.shape, to)
    made = Image.fromarray(np.ascontiguousarray(values[rows[:, None], columns]))
    if palette:
        made.putpalette(palette)
    file = io.BytesIO()
    made.save(file, "PNG")
    return file.getvalue()


def _nearest(length: int, to: int) -> NDArray[np.int64]:
    return (2 * np.arange(to) + 1) * length // (2 * to)
