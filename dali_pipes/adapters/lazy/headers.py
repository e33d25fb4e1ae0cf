"""What the header of a plain JPEG or PNG says, as Pillow reads it.

A plain one has 8 bits, in gray or in colors, without transparency and of one frame. Of all others,
and of whatever is unusual, it is None, and the program's decoder decides.
"""

import struct
from typing import Any, BinaryIO, NamedTuple

from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from dali_pipes.adapters.lazy.pictures import PLAIN, coding_of, stored_mode

_ORIENTATION, _SHORT = 0x0112, 3
_EXIF = b"Exif\0\0"  # before EXIF data in a JPEG


class PictureHeader(NamedTuple):
    """Of one picture.

    Attributes:
        size: width and height, as they are stored.
        mode: "RGB" or "L".
        turn: EXIF's orientation, from 1 to 8.
        coding: as of `Source`.
    """

    size: tuple[int, int]
    mode: str
    turn: int = 1
    coding: str = ""


def header_of(file: BinaryIO) -> PictureHeader | None:
    """The header of a file that is open, at its start. None: it is no plain picture."""
    is_jpeg = file.read(2) == b"\xff\xd8"
    file.seek(0)
    try:
        picture: Any = JpegImageFile(file) if is_jpeg else PngImageFile(file)
        mode = stored_mode(picture)
        if mode not in PLAIN:
            return None
        if is_jpeg:
            turn = _orientation(picture.applist)
            return PictureHeader(picture.size, mode, turn, coding_of(picture)) if turn else None
        is_plain = picture.get_format_mimetype() == "image/png" and "exif" not in picture.info
        return PictureHeader(picture.size, mode) if is_plain else None
    except Exception:  # Pillow raises almost anything of broken headers
        return None


def _orientation(segments: list[tuple[str, bytes]]) -> int:
    """EXIF's orientation, 1 if there is none. 0: libraries read it in their own ways."""
    found = [data for name, data in segments if name == "APP1" and data.startswith(_EXIF)]
    if len(found) != 1:
        return 0 if found else 1
    tiff = found[0].removeprefix(_EXIF)
    order = {b"II*\0": "<", b"MM\0*": ">"}[tiff[:4]]
    (at,) = struct.unpack_from(f"{order}I", tiff, 4)
    (count,) = struct.unpack_from(f"{order}H", tiff, at)
    for entry in range(at + 2, at + 2 + 12 * count, 12):
        tag, kind, numbers, value = struct.unpack_from(f"{order}HHIH", tiff, entry)
        if tag == _ORIENTATION:
            return value if (kind, numbers) == (_SHORT, 1) and 1 <= value <= 8 else 0
    return 1
