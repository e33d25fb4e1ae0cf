"""Image files whose orientation is stated in every way that decoders know, or believe they know."""

import io
import struct
import zlib
from collections.abc import Callable

import numpy as np
from odd_inputs import photo
from PIL import Image

TAG = 0x0112


def exif(orientation: int, kind: int = 3, order: str = "<") -> bytes:
    """EXIF with that tag only, as a SHORT (3) or LONG (4) of either byte order."""
    value = (
        struct.pack(order + "HH", orientation, 0)
        if kind == 3
        else struct.pack(order + "I", orientation)
    )
    start = b"II*\0" if order == "<" else b"MM\0*"
    return b"Exif\0\0" + start + struct.pack(order + "IHHHI", 8, 1, TAG, kind, 1) + value + bytes(4)


def xmp(orientation: int) -> bytes:
    return (
        b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF '
        b'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description '
        b'xmlns:tiff="http://ns.adobe.com/tiff/1.0/" '
        b'tiff:Orientation="%d"/></rdf:RDF></x:xmpmeta>' % orientation
    )


def segment(body: bytes) -> bytes:
    return b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body


def encoded(form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    photo().save(buffer, form, **options)
    return buffer.getvalue()


def jpeg(*segments: bytes) -> bytes:
    content = encoded("JPEG", quality=95, subsampling=0)
    return content[:2] + b"".join(map(segment, segments)) + content[2:]


def png(orientation: int, late: bool = False, start: bytes = b"") -> bytes:
    content, body = encoded("PNG"), start + exif(orientation)[6:]
    chunk = (
        struct.pack(">I", len(body))
        + b"eXIf"
        + body
        + struct.pack(">I", zlib.crc32(b"eXIf" + body))
    )
    place = content.index(b"IEND") - 4 if late else content.index(b"IDAT") - 4
    return content[:place] + chunk + content[place:]


def tiff(orientation: int, compression: str | None = None, kind: int = 3) -> bytes:
    content = bytearray(encoded("TIFF", compression=compression, tiffinfo={TAG: orientation}))
    place = content.index(struct.pack("<HHI", TAG, 3, 1))
    content[place : place + 12] = struct.pack("<HHII", TAG, kind, 1, orientation)
    return bytes(content)


def tiff_with_xmp(orientation: int) -> bytes:
    return encoded("TIFF", tiffinfo={700: xmp(orientation)})


def webp(orientation: int, lossless: bool) -> bytes:
    """DALI does not skip the padding of a chunk of odd length before EXIF: the noise makes it
    even.
    """
    for quality in range(100, 60, -1):
        content = encoded(
            "WEBP",
            lossless=lossless,
            quality=quality,
            method=quality % 7,
            exif=exif(orientation)[6:],
        )
        if struct.unpack("<I", content[34:38])[0] % 2 == 0:
            return content
    raise AssertionError("no file of even length")


NO_TAG = b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0"
XMP = b"http://ns.adobe.com/xap/1.0/\0"
# By name: the file that states an orientation, and the orientation that a scan finds.
WAYS: dict[str, tuple[Callable[[int], bytes], Callable[[int], int]]] = {
    "JPEG, EXIF": (lambda number: jpeg(exif(number)), lambda number: number),
    "JPEG, EXIF of the other byte order": (
        lambda number: jpeg(exif(number, order=">")),
        lambda number: number,
    ),
    "JPEG, EXIF with a LONG": (lambda number: jpeg(exif(number, 4)), lambda number: number),
    "JPEG, EXIF with a LONG of the other byte order": (
        lambda number: jpeg(exif(number, 4, ">")),
        lambda number: number,
    ),
    "JPEG, XMP only": (lambda number: jpeg(XMP + xmp(number)), lambda number: 1),
    "JPEG, EXIF without the tag, and XMP": (
        lambda number: jpeg(NO_TAG, XMP + xmp(number)),
        lambda number: 1,
    ),
    "JPEG, XMP before another EXIF": (
        lambda number: jpeg(XMP + xmp(3), exif(number)),
        lambda number: number,
    ),
    "JPEG, two EXIF segments": (
        lambda number: jpeg(exif(number), exif(9 - number)),
        lambda number: number,
    ),
    "JPEG, a second EXIF segment": (lambda number: jpeg(NO_TAG, exif(number)), lambda number: 1),
    "PNG, eXIf": (png, lambda number: number),
    "PNG, eXIf after the pixels": (lambda number: png(number, late=True), lambda number: 1),
    "PNG, eXIf that begins as in a JPEG": (
        lambda number: png(number, start=b"Exif\0\0"),
        lambda number: number,
    ),
    "TIFF": (tiff, lambda number: number),
    "TIFF with JPEG": (lambda number: tiff(number, "jpeg"), lambda number: number),
    "TIFF with LZW": (lambda number: tiff(number, "tiff_lzw"), lambda number: number),
    "TIFF with Deflate": (lambda number: tiff(number, "tiff_adobe_deflate"), lambda number: number),
    "TIFF with a LONG": (lambda number: tiff(number, kind=4), lambda number: number),
    "WebP, lossy": (lambda number: webp(number, lossless=False), lambda number: number),
    "WebP, lossless": (lambda number: webp(number, lossless=True), lambda number: number),
    "TIFF, XMP only": (tiff_with_xmp, lambda number: 1),
}


def upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """By the words of the EXIF standard: which side of the scene the stored first row and first
    column are.
    """
    turns = {
        1: lambda a: a,
        2: np.fliplr,  # top, right
        3: lambda a: np.rot90(a, 2),  # bottom, right
        4: np.flipud,  # bottom, left
        5: lambda a: np.swapaxes(a, 0, 1),  # left, top
        6: lambda a: np.rot90(a, -1),  # right, top
        7: lambda a: np.rot90(np.swapaxes(a, 0, 1), 2),  # right, bottom
        8: np.rot90,  # left, bottom
    }
    return turns[orientation](pixels)


def stored() -> np.ndarray:
    return np.asarray(photo().convert("RGB"))


def turned(pixels: np.ndarray, orientation: int) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(upright(pixels, orientation)))
