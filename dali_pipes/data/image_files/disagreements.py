"""Tells from the header, without decoding, which images decoders turn into different pixels, or
only some of them read.

For PNM, BMP and TIFF the kinds of pixels are listed on which Pillow and DALI were found equal;
everything else is refused, so that a kind that nobody has tried does not pass. docs/inputs.md has a
line for each; `scan verify=full` compares pixels.
"""

import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

from PIL import Image, TiffImagePlugin

from dali_pipes.data.image_files.stored import EXIF_ORIENTATION
from dali_pipes.data.image_files.wide import (
    FILL_ORDER,
    MEANING,
    PLANAR,
    SAMPLE_FORMAT,
    more_bits_problem,
    numbers_of,
)

# Pillow's names for the layout of pixels in a file (raw modes), by the decoder that it uses.
_BMP = {"raw": {"BGR", "BGRX", "BGRA", "RGBA", "P", "P;4", "P;1", "L", "1"}, "bmp_rle": {"P"}}
_PNM = {"raw": {"RGB", "L", "1;I"}}
_TIFF = {"raw": {"RGB", "RGB;R", "RGBA", "RGBX", "RGBXX", "RGBAX", "L", "L;I", "P", "P;4", "CMYK"}}
_TIFF["libtiff"] = _TIFF["raw"] | {"1", "1;I"}
_TIFF_COMPRESSIONS = (
    "raw",
    "tiff_ccitt",
    "group3",
    "group4",
    "tiff_lzw",
    "jpeg",
    "tiff_adobe_deflate",
    "packbits",
    "zstd",
)
_TIFF_TURNED = (1, 2, 3)  # meanings of pixels: gray, RGB, palette
_COLOR_MAP = 320  # a tag of a TIFF
_HAS_EXIF = 8  # flag of a WebP
AS_PNG = "save it as PNG, with 8 bits a channel"
AS_RGB = "save it as RGB, or as PNG"
AS_JPEG = "save it again as an ordinary JPEG"


def find_disagreement(image: Image.Image, file: BinaryIO, size: int) -> str | None:
    """Returns why loaders would deliver different pixels of an image, and what to do; None: they
    would not.

    Args:
        size: bytes of the file.
    """
    if image.format == "JPEG":  # first, since most files are JPEGs
        return _check_jpeg(image)

    decoder, raw_mode = _pixels(image)
    if image.format in ("PNG", "TIFF") and (";16" in raw_mode or ";12" in raw_mode):
        # Pillow drops the lower bits, DALI rounds
        return more_bits_problem(image)

    match image.format:
        case "PNG":
            return find_missing_end(file, size)
        case "WEBP":
            return (
                None
                if _finds_exif(file)
                else ("WebP that DALI cannot read, for the place of its EXIF; save it without EXIF")
            )
        case "PPM":
            return _check_kind(
                _PNM, decoder, raw_mode, "PNM of text, or with another maximum than 255"
            )
        case "BMP":
            return _check_kind(
                _BMP,
                decoder,
                raw_mode,
                f"BMP of a kind that decoders read differently ({raw_mode})",
            )
        case "TIFF":
            return _check_tiff(image, decoder, raw_mode)
    return None


def _check_jpeg(image: Any) -> str | None:
    info = image.info
    # libjpeg ignores a marker that is too short to have a transform, and Pillow does not
    if image.mode == "CMYK" and "adobe_transform" not in info:
        return f"CMYK JPEG without Adobe's marker, whose colors may be inverted; {AS_RGB}"
    is_rgb = image.mode == "RGB" and stores_rgb(image)
    return f"JPEG that stores RGB, which nvJPEG takes for YCbCr; {AS_JPEG}" if is_rgb else None


def stores_rgb(image: Any) -> bool:
    """Whether a JPEG of three components stores red, green and blue, and not YCbCr.

    libjpeg decides by Adobe's marker, or else by the names of the components
    (default_decompress_parms in jdapimin.c). nvJPEG always takes them for YCbCr: on an H100 the
    pixels were off by 44 of 255 (docs/gpu-path.md).
    """
    info = image.info
    if "jfif" in info:
        return False
    if "adobe_transform" in info:
        return bool(info["adobe_transform"] == 0)
    return bytes(part[0] for part in image.layer) == b"RGB"


def _pixels(image: Image.Image) -> tuple[str, str]:
    """Returns Pillow's decoder and its raw mode; both are empty if the plugin decodes by itself
    (WebP).
    """
    tiles = getattr(image, "tile", [])
    if not tiles:
        return "", ""

    decoder, options = tiles[0][0], tiles[0][3]
    # Pillow reads text, and pixels with another maximum than 255, by this decoder
    if decoder == "ppm":
        return decoder, f"{options[0]}, of {options[1]}"

    raw_mode = options[0] if isinstance(options, tuple) else options
    if decoder == "bmp_rle" and options[1]:  # run lengths of 4 bits a pixel
        return "bmp_rle4", str(raw_mode)
    return decoder, str(raw_mode or image.mode)


def _check_kind(known: dict[str, set[str]], decoder: str, raw_mode: str, what: str) -> str | None:
    return None if raw_mode in known.get(decoder, ()) else f"{what}; {AS_PNG}"


def _check_tiff(image: Image.Image, decoder: str, raw_mode: str) -> str | None:
    assert isinstance(image, TiffImagePlugin.TiffImageFile)
    compression, tags = str(image.info.get("compression")), image.tag_v2

    if compression not in _TIFF_COMPRESSIONS:
        return f"TIFF compressed by {compression}; save it with LZW, or as PNG"
    if raw_mode == "RGBa":
        return "TIFF with colors multiplied by alpha; save it as PNG"
    if tags.get(PLANAR, 1) != 1:
        return f"TIFF with its channels one after the other (planar); {AS_PNG}"

    # 1: unsigned integers; others are signed, or floats
    if set(numbers_of(tags.get(SAMPLE_FORMAT, (1,)))) - {1}:
        return f"TIFF with signed numbers; {AS_PNG}"

    # 257 = 65535 / 255: such an entry is an 8-bit color exactly, others need rounding
    if image.mode == "P" and any(value % 257 for value in tags.get(_COLOR_MAP, ())):
        return "TIFF with a palette of 16 bits, which decoders round differently; save it as PNG"

    unknown = _check_kind(
        _TIFF,
        decoder,
        raw_mode,
        f"TIFF of a kind that decoders read differently ({raw_mode}, {compression})",
    )
    return unknown or (
        _check_turned_tiff(image, f"{raw_mode}, {compression}")
        if tags.get(EXIF_ORIENTATION, 1) != 1
        else None
    )


def _check_turned_tiff(image: TiffImagePlugin.TiffImageFile, kind: str) -> str | None:
    """Returns why a turned TIFF is refused; None: it is not.

    DALI's reader of TIFFs gives what it cannot read, also what is damaged, to OpenCV, which turns
    pixels by their tag. Where that swaps the sides, it writes beyond its memory, which ends the
    process.
    """
    tags = image.tag_v2
    if tags.get(MEANING) not in _TIFF_TURNED or tags.get(FILL_ORDER, 1) != 1:
        return f"turned TIFF of a kind that DALI turns by itself ({kind}); {AS_RGB}"

    # Damage shows only when the image is decoded.
    try:
        image.load()
    except Exception as error:  # any error of the decoder means that it is damaged
        return f"cannot be decoded by Pillow ({error})"
    return None


def find_missing_end(file: BinaryIO, size: int) -> str | None:
    """Returns that a PNG lacks its last chunk, IEND; None: it has it.

    It is usually in the last twelve bytes, which saves looking at each chunk.
    """
    file.seek(max(0, size - 12))
    last = file.read(12)
    if last[4:8] == b"IEND" or any(name == b"IEND" for name in _png_chunks(file)):
        return None
    return "PNG without its end (IEND); copy it again, or save it again"


def _png_chunks(file: BinaryIO) -> Iterator[bytes]:
    # after the eight bytes that every PNG starts with; a chunk is length, name, data, checksum
    start = 8
    while True:
        file.seek(start)
        head = file.read(8)
        if len(head) < 8:
            return
        yield head[4:]
        start += 12 + int(struct.unpack(">I", head[:4])[0])


def _finds_exif(file: BinaryIO) -> bool:
    """Whether DALI's reader (nvImageCodec 0.9), which skips no padding, arrives at the EXIF that
    the header of a WebP announces.
    """
    # The chunk VP8X comes after RIFF's header of 12 bytes. It has 18: name, length, flags, and the
    # size of the picture.
    file.seek(12)
    head = file.read(18)
    if head[:4] != b"VP8X" or not head[8] & _HAS_EXIF:
        return True

    # RIFF pads a chunk of an odd size by one byte; like that reader, this loop does not skip it.
    start = 30
    while True:
        file.seek(start)
        head = file.read(8)
        if len(head) < 8:
            return False
        if head[:4] == b"EXIF":
            return True
        start += 8 + struct.unpack("<I", head[4:])[0]
