"""Encodes one image."""

import io
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from PIL import Image, ImageOps

from dali_pipes.data.manifest import Manifest
from dali_pipes.data.scanning.decoders import FORMATS
from dali_pipes.data.scanning.headers import orientation_of
from dali_pipes.errors import PreparationError
from dali_pipes.tools.preparation.jpeg import orientation_tag, suits_hardware, without_metadata

EXTENSIONS = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp", "BMP": "bmp", "TIFF": "tif", "PPM": "ppm"}

LONGEST_SIDE = 65_500  # JPEG_MAX_DIMENSION of libjpeg


@dataclass(frozen=True, slots=True)
class Encoding:
    """How images are encoded.

    Attributes:
        resize: maximum length of the shorter side; None: unchanged.
        quality: of the JPEGs.
        exif: "keep" or "apply".
    """

    resize: int | None
    quality: int
    exif: str


class Encoded(NamedTuple):
    """The bytes to write.

    Attributes:
        extension: that of the true format, without a dot.
        same_pixels: the image was not encoded again.
    """

    content: bytes
    extension: str
    same_pixels: bool


class FetchError(PreparationError):
    """An image in an object store cannot be read, which says nothing about the image."""


class LeftOutError(Exception):
    """A file that cannot be used; the text is the reason."""


def encode(read: Callable[[], bytes], scanned: tuple[int, int], encoding: Encoding | None) -> Encoded:
    """Reads and decodes one image, and encodes it as `encoding` says; None: the bytes are unchanged.

    Args:
        read: gives its bytes, or raises an OSError.
        scanned: its height and width when it was scanned.

    Raises:
        LeftOutError: it cannot be read or decoded, or has changed since.
    """
    try:
        content = read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the scan has already judged what Pillow only warns about
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                if (image.height, image.width) != scanned:
                    height, width = scanned
                    mismatch = f"{image.width} × {image.height} pixels, but {width} × {height} when it was scanned"
                    raise LeftOutError(f"{mismatch}; scan again")
                image.load()
                if encoding is None:
                    return Encoded(content, EXTENSIONS[str(image.format)], True)
                return _encoded(content, image, encoding)
    except (LeftOutError, FetchError):
        raise
    except OSError as error:
        raise LeftOutError(error.strerror.lower() if error.strerror else f"cannot be decoded ({error})") from None
    except Exception as error:  # Pillow's plugins raise almost anything on broken files
        raise LeftOutError(f"cannot be decoded ({type(error).__name__}: {error})") from None


def encode_sample(source: Manifest, encoding: Encoding | None, sample_id: int) -> Encoded | str:
    """The encoded image, or the reason why there is none."""
    height, width = source.sizes[sample_id].tolist()

    def read() -> bytes:
        try:
            return source.read(sample_id).tobytes()
        except OSError as error:
            if not source.is_fetched:
                raise
            raise FetchError(f"{source.name(sample_id)}: {error}; start again when it can be read, and it continues") from None

    try:
        return encode(read, (height, width), encoding)
    except LeftOutError as error:
        return str(error)


def relative_name(source: Manifest, sample_id: int) -> str:
    """As problems of a manifest name their file."""
    return os.path.relpath(source.name(sample_id), source.root)


def _encoded(content: bytes, image: Image.Image, encoding: Encoding) -> Encoded:
    """A JPEG that is small enough and suits the hardware decoder loses only its metadata; all others are encoded."""
    orientation = orientation_of(image)
    turned = encoding.exif == "apply" and orientation > 1
    size = _smaller(image.size, encoding.resize)
    if max(size) > LONGEST_SIDE:
        raise LeftOutError(f"{size[0]} × {size[1]} pixels, and libjpeg writes {LONGEST_SIDE:,} a side at most")
    if size == image.size and not turned and suits_hardware(content):
        return Encoded(without_metadata(content, orientation), "jpg", True)
    pixels = image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")  # as loaders do: alpha and profile are dropped
    if size != image.size:
        pixels = pixels.resize(size, Image.Resampling.BILINEAR)
    if turned:
        pixels.info["exif"] = orientation_tag(orientation)
        pixels = ImageOps.exif_transpose(pixels)
    return Encoded(_jpeg(pixels, encoding.quality, b"" if turned else orientation_tag(orientation)), "jpg", False)


def _smaller(size: tuple[int, int], resize: int | None) -> tuple[int, int]:
    """The size with the shorter side at most `resize`; the longer is truncated, as torchvision's Resize does."""
    shorter = min(size)
    if resize is None or shorter <= resize:
        return size
    return size[0] * resize // shorter, size[1] * resize // shorter


def _jpeg(pixels: Image.Image, quality: int, exif: bytes) -> bytes:
    """Baseline, 4:2:0 or gray."""
    pixels.info.clear()  # Pillow would write a comment from there
    options = {"exif": exif} if exif else {}
    buffer = io.BytesIO()
    pixels.save(buffer, "JPEG", quality=quality, subsampling="4:2:0" if pixels.mode == "RGB" else -1, **options)
    return buffer.getvalue()
