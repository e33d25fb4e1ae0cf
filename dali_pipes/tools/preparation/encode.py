"""Encodes one image as a JPEG that hardware decoders take.

encode_sample → encode: read, decode with Pillow, check against the scan
    no `Encoding`                             the bytes stay as they are
    small enough, and suits the hardware      likewise
    else                                      resized, turned if asked for, encoded (`_jpeg`)
→ EncodedImage, or the reason why the image is left out
"""

import io
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image, JpegImagePlugin

from dali_pipes.data.image_files.stored import EXIF_ORIENTATION, open_stored
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.turns import turn_picture
from dali_pipes.errors import PreparationError
from dali_pipes.tools.preparation.beside import encode_mask

EXTENSIONS = {  # by Pillow's name of the format
    "JPEG": "jpg",
    "MPO": "jpg",
    "PNG": "png",
    "WEBP": "webp",
    "BMP": "bmp",
    "TIFF": "tif",
    "PPM": "ppm",
}
LONGEST_SIDE = 65_500  # JPEG_MAX_DIMENSION of libjpeg


def suits_hardware(image: Image.Image) -> bool:
    """Whether this is a baseline JPEG, gray or YCbCr 4:2:0, which hardware decoders take.

    Args:
        image: as Pillow opened it.
    """
    if not isinstance(image, JpegImagePlugin.JpegImageFile) or image.info.get("progressive"):
        return False
    if image.mode == "L":
        return True
    # libjpeg takes components named R, G, B, or Adobe's transform 0, for RGB
    is_rgb = image.layer[0][0] == ord("R") or image.info.get("adobe_transform") == 0
    return image.mode == "RGB" and JpegImagePlugin.get_sampling(image) == 2 and not is_rgb


def orientation_tag(orientation: int) -> bytes:
    """Returns EXIF data with the orientation only; empty for 1, an upright image."""
    if orientation == 1:
        return b""
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = orientation
    return exif.tobytes()


@dataclass(frozen=True, slots=True)
class Encoding:
    """How images are encoded.

    Attributes:
        resize: the maximum length of the shorter side, in pixels; None: unchanged.
        quality: the quality of the JPEGs, 1 to 100.
        exif: "keep" or "apply" the orientation.
    """

    resize: int | None
    quality: int
    exif: str


class EncodedImage(NamedTuple):
    """The bytes to write.

    Attributes:
        extension: the extension of the true format, without a dot.
        same_pixels: whether the image was not encoded again.
        mask: the file of its mask; None: the source has none.
    """

    content: bytes
    extension: str
    same_pixels: bool
    mask: bytes | None = None


class FetchError(PreparationError):
    """An image in an object store cannot be read, which says nothing about the image."""


class LeftOutError(Exception):
    """A file that cannot be used; the text is the reason."""


def encode(
    read: Callable[[], bytes], scanned: tuple[int, int], orientation: int, encoding: Encoding | None
) -> EncodedImage:
    """Reads and decodes one image, and encodes it.

    Args:
        read: returns the image's bytes, or raises an OSError.
        scanned: the height and width that the scan found.
        orientation: the EXIF orientation that the manifest has, which loaders apply.
        encoding: None: the bytes are unchanged.

    Raises:
        LeftOutError: it cannot be read or decoded, or has changed since the scan.
        FetchError: `read` raised it.
    """
    try:
        content = read()
        with warnings.catch_warnings():
            # what Pillow only warns about was judged by the scan
            warnings.simplefilter("ignore")
            with open_stored(io.BytesIO(content)) as image:
                # the manifest's sizes, and regions planned by them, would be wrong
                if (image.height, image.width) != scanned:
                    height, width = scanned
                    mismatch = (
                        f"{image.width} × {image.height} pixels, but {width} × {height} when "
                        "it was scanned"
                    )
                    raise LeftOutError(f"{mismatch}; scan again")

                # also where the bytes are only copied: a damaged image is found by decoding it
                image.load()
                if encoding is None:
                    return EncodedImage(content, EXTENSIONS[str(image.format)], True)
                return _encode(content, image, orientation, encoding)
    except (LeftOutError, FetchError):
        raise
    except OSError as error:
        raise LeftOutError(
            error.strerror.lower() if error.strerror else f"cannot be decoded ({error})"
        ) from None
    except Exception as error:  # Pillow's plugins raise almost anything on broken files
        raise LeftOutError(f"cannot be decoded ({type(error).__name__}: {error})") from None


def encode_sample(
    source: Manifest, encoding: Encoding | None, sample_id: int
) -> EncodedImage | str:
    """Encodes one sample with its mask; returns a text, the reason, if it cannot be used."""
    height, width = source.sizes[sample_id].tolist()
    orientation = int(source.take_orientations(np.array([sample_id]))[0])

    def read() -> bytes:
        try:
            return source.read(sample_id).tobytes()
        except OSError as error:
            # a local file that cannot be read is left out, as a damaged one
            if not source.is_fetched:
                raise
            raise FetchError(
                f"{source.name(sample_id)}: {error}; start again when it can be read, and it "
                "continues"
            ) from None

    try:
        encoded = encode(read, (height, width), orientation, encoding)
    except LeftOutError as error:
        return str(error)

    turned = encoding is not None and encoding.exif == "apply"
    mask = encode_mask(source, sample_id, encoded.content, orientation if turned else 1)
    return mask if isinstance(mask, str) else encoded._replace(mask=mask)


def relative_name(source: Manifest, sample_id: int) -> str:
    """The name of a sample's file, as a manifest's problems name files."""
    return os.path.relpath(source.name(sample_id), source.root)


def _encode(
    content: bytes, image: Image.Image, orientation: int, encoding: Encoding
) -> EncodedImage:
    """Encodes an image, unless it is a JPEG that is small enough, need not be turned, and suits the
    hardware decoder.
    """
    turned = encoding.exif == "apply" and orientation > 1

    shorter = min(image.size)
    resize = min(shorter, encoding.resize or shorter)
    # the longer side is truncated, as by torchvision's Resize
    size = image.width * resize // shorter, image.height * resize // shorter

    if max(size) > LONGEST_SIDE:
        raise LeftOutError(
            f"{size[0]} × {size[1]} pixels, and libjpeg writes {LONGEST_SIDE:,} a side at most"
        )

    if size == image.size and not turned and suits_hardware(image):
        return EncodedImage(content, "jpg", True)

    # alpha and color profile are dropped, as loaders do
    pixels = image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")
    if size != image.size:
        # Pillow's filter is antialiased, as torchvision's Resize is
        pixels = pixels.resize(size, Image.Resampling.BILINEAR)
    if turned:
        pixels = turn_picture(pixels, orientation)

    return EncodedImage(
        _jpeg(pixels, encoding.quality, b"" if turned else orientation_tag(orientation)),
        "jpg",
        False,
    )


def _jpeg(pixels: Image.Image, quality: int, exif: bytes) -> bytes:
    """Encodes pixels as a baseline JPEG, 4:2:0 or gray."""
    pixels.info.clear()  # Pillow would write a comment that it finds there
    options = {"exif": exif} if exif else {}

    buffer = io.BytesIO()
    pixels.save(
        buffer,
        "JPEG",
        quality=quality,
        # -1 leaves it to libjpeg, which has no chroma to subsample in a gray image
        subsampling="4:2:0" if pixels.mode == "RGB" else -1,
        **options,
    )
    return buffer.getvalue()
