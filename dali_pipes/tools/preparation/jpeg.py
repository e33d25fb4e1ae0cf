"""The structure of a JPEG file: whether a hardware decoder takes it, and the file without its metadata. No pixel is touched.

Markers and segments are those of ITU-T T.81, annex B; the decoder is known to accept baseline JPEG only, with one scan.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from PIL import Image

from dali_pipes.data.scanning.headers import EXIF_ORIENTATION

_START = b"\xff\xd8"
_BASELINE, _SCAN, _END, _COMMENT = 0xC0, 0xDA, 0xD9, 0xFE
_JFIF, _EXIF, _ADOBE = 0xE0, 0xE1, 0xEE
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_METADATA = {*range(0xE0, 0xF0), _COMMENT} - {_JFIF, _ADOBE}  # the remaining ones define the color space
_GRAY, _COLOR = (0x11,), (0x22, 0x11, 0x11)  # sampling factors; color is 4:2:0
_AFTER_SCAN = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")  # anything but a stuffed byte or a restart marker ends the coded data


class Segment(NamedTuple):
    """One segment: its marker's second byte, what it holds (of a scan: only its header), and all of its bytes."""

    marker: int
    payload: bytes
    whole: bytes


def segments(content: bytes) -> Iterator[Segment]:
    """From after the start of the image to its end; anything after that is dropped.

    Raises:
        ValueError: it does not consist of segments.
    """
    at = len(_START)
    while True:
        if content[at : at + 1] != b"\xff":
            raise ValueError(f"no marker at byte {at}")
        while content[at + 1 : at + 2] == b"\xff":  # fill bytes
            at += 1
        marker = content[at + 1 : at + 2]
        if marker == bytes([_END]):
            yield Segment(_END, b"", content[at : at + 2])
            return
        length = int.from_bytes(content[at + 2 : at + 4], "big")
        end = header_end = at + 2 + length
        if length < 2 or end > len(content):
            raise ValueError(f"a segment at byte {at} leaves the file")
        if marker[0] == _SCAN:
            after = _AFTER_SCAN.search(content, header_end)
            if after is None:
                raise ValueError("the image has no end")
            end = after.start()
        yield Segment(marker[0], content[at + 4 : header_end], content[at:end])
        at = end


def suits_hardware(content: bytes) -> bool:
    """Whether this is a baseline JPEG of one scan, gray or YCbCr 4:2:0, with 8 bits."""
    try:
        parts = list(segments(content))
    except ValueError:
        return False
    frames = [part for part in parts if part.marker in _FRAMES]
    scans = sum(part.marker == _SCAN for part in parts)
    if [frame.marker for frame in frames] != [_BASELINE] or scans != 1 or frames[0].payload[:1] != b"\x08":
        return False
    components = frames[0].payload[6:]
    is_rgb = components[::3] == b"RGB" or any(part.marker == _ADOBE and part.payload[11:12] == b"\0" for part in parts)
    sampling = tuple(components[1::3])
    return sampling == _GRAY or (sampling == _COLOR and not is_rgb)


def without_metadata(content: bytes, orientation: int = 1) -> bytes:
    """The same image without EXIF, color profile, comments, thumbnails and whatever follows its end.

    Args:
        orientation: EXIF's, kept as the only tag if it is not 1.

    Raises:
        ValueError: it is not made of segments.
    """
    kept = [part for part in segments(content) if not _is_metadata(part)]
    tag = orientation_tag(orientation)
    exif = b"\xff\xe1" + (len(tag) + 2).to_bytes(2, "big") + tag if tag else b""
    first = 1 if kept[0].marker == _JFIF else 0  # JFIF has to come first of all
    return b"".join([_START, *(part.whole for part in kept[:first]), exif, *(part.whole for part in kept[first:])])


def orientation_tag(orientation: int) -> bytes:
    """EXIF data of nothing else; empty for 1, an upright image."""
    if orientation == 1:
        return b""
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = orientation
    return exif.tobytes()


def _is_metadata(part: Segment) -> bool:
    return part.marker in _METADATA or (part.marker == _JFIF and not part.payload.startswith(b"JFIF\0"))
