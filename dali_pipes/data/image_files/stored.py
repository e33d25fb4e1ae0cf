"""Opens images as they are stored, and reads the orientation that turns them upright: one reader,
whose result every loader takes from the manifest.

What counts is the tag 0x0112 in the first directory of EXIF: in the first EXIF segment of a JPEG,
in a PNG's eXIf chunk before its pixels, in a WebP's EXIF chunk; in a TIFF the tag of the image
itself. Everything else that may state an orientation (XMP, a second EXIF segment, EXIF after the
pixels, ImageMagick's text chunks) is not read: decoders differ on it, so none of them is asked.

Images that are cut off are refused when they are decoded, whatever the program has told Pillow.
"""

import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from typing import Any, BinaryIO

from PIL import (
    BmpImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

EXIF_ORIENTATION = 0x0112
_EXIF = b"Exif\0\0"  # before EXIF data in a JPEG
_INTEGERS = {3: "H", 4: "I"}  # TIFF's types SHORT and LONG, as struct's formats
_WIDTH, _LENGTH = 256, 257  # tags of a TIFF


class StoredTiff(TiffImagePlugin.TiffImageFile):
    """A TIFF as it is stored.

    Pillow's own class turns it by its tags when it is loaded, and states the size of the turned
    image.
    """

    def _setup(self) -> None:
        super()._setup()
        self._size = int(self.tag_v2[_WIDTH]), int(self.tag_v2[_LENGTH])

    def load_prepare(self) -> None:
        # without this, Pillow's class would compare the size with its own limit of pixels
        if getattr(self, "_im", None) is None:
            self.im = Image.new(self.mode, self._size).im
        ImageFile.ImageFile.load_prepare(self)

    def load_end(self) -> None:
        """Leaves the pixels as they are."""


class StoredPng(PngImagePlugin.PngImageFile):
    """A PNG whose texts nobody asks for.

    Pillow refuses an image whose texts are longer than its limit, though no pixel depends on them.
    """

    def __init__(self, file: BinaryIO):
        try:
            super().__init__(file)
        except ValueError as error:
            if not _is_of_texts(error):
                raise
            file.seek(0)
            super().__init__(_without_texts(file))

    def load_end(self) -> None:
        """Reads what comes after the pixels, which are decoded."""
        try:
            super().load_end()
        except ValueError as error:
            if not _is_of_texts(error):
                raise


def _is_of_texts(error: ValueError) -> bool:
    return "MAX_TEXT_CHUNK" in str(error) or "text chunks" in str(error)


def _without_texts(file: BinaryIO) -> BytesIO:
    """The file without its chunks of text: each is a length, a name, content and a checksum."""
    kept = [file.read(8)]
    while len(head := file.read(8)) == 8:
        content = file.read(int.from_bytes(head[:4], "big") + 4)
        if head[4:] not in (b"tEXt", b"zTXt", b"iTXt"):
            kept += [head, content]
    return BytesIO(b"".join(kept))


# the first bytes of a file, three at most; JPEGs are recognized before
_PLUGINS: dict[bytes, type[ImageFile.ImageFile]] = {
    b"\x89PN": StoredPng,
    b"RIF": WebPImagePlugin.WebPImageFile,
    b"BM": BmpImagePlugin.BmpImageFile,
    b"II": StoredTiff,
    b"MM": StoredTiff,
    b"P": PpmImagePlugin.PpmImageFile,
}


def open_stored(file: BinaryIO) -> ImageFile.ImageFile:
    """Opens an image in Pillow, before its pixels are decoded.

    Pillow's limit on pixels is not asked: a scan has its own, `max_pixels`. Naming the plugin saves
    Pillow's search through all of them, a third of the time of a header.

    Raises:
        UnidentifiedImageError: not every loader decodes the format. A broken header raises an error
            of almost any type.
    """
    if _is_lenient():
        with _only_whole_images():
            return _load_whole(_open(file))
    return _open(file)


def _open(file: BinaryIO) -> ImageFile.ImageFile:
    file.seek(0)
    magic = file.read(3)
    file.seek(0)
    if magic == b"\xff\xd8\xff":
        return JpegImagePlugin.JpegImageFile(file)

    plugin = next((plugin for start, plugin in _PLUGINS.items() if magic.startswith(start)), None)
    try:
        if plugin:
            return plugin(file)
    except (SyntaxError, IndexError, TypeError, struct.error):  # those that Image.open passes over
        pass
    raise UnidentifiedImageError("not an image, or its header is broken")


def open_any(file: BinaryIO) -> Image.Image:
    """Opens an image like `open_stored`, and one of any other format that Pillow knows, to name
    it.
    """
    try:
        return open_stored(file)
    except UnidentifiedImageError:
        file.seek(0)
        return Image.open(file)


def orientation_of(image: Image.Image) -> int:
    """Returns EXIF's orientation, 1–8, of an image of `open_stored`; 1 if there is none, or none
    that is valid.
    """
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        value = image.tag_v2.get(EXIF_ORIENTATION)
    else:
        exif = image.info.get("exif")
        value = _tag(exif) if isinstance(exif, bytes) else None
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _tag(exif: bytes) -> int | None:
    """Returns the orientation in the first directory of EXIF data; None: there is none.

    Corrupt EXIF raises nothing, since the pixels are usable.
    """
    data = exif
    # a PNG and a WebP should not have this prefix, and some writers write it all the same
    while data.startswith(_EXIF):
        data = data.removeprefix(_EXIF)

    order = {b"II*\0": "<", b"MM\0*": ">"}.get(data[:4])
    if order is None:
        return None

    # TIFF's format: the offset of a directory, the number of its entries, and 12 bytes for each.
    try:
        (start,) = struct.unpack_from(order + "I", data, 4)
        (count,) = struct.unpack_from(order + "H", data, start)
        for place in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind, values = struct.unpack_from(order + "HHI", data, place)
            if tag == EXIF_ORIENTATION:
                return _number(order, kind, values, data, place + 8)
    except struct.error:
        pass
    return None


def _number(order: str, kind: int, values: int, data: bytes, place: int) -> Any:
    return (
        struct.unpack_from(order + _INTEGERS[kind], data, place)[0]
        if kind in _INTEGERS and values == 1
        else None
    )


# A program may have set `ImageFile.LOAD_TRUNCATED_IMAGES` for its own images. With that flag
# Pillow fills what is missing with gray. No other decoder does so, and a batch would depend on the
# loader.
_lock = threading.Lock()
_depth, _program_value = 0, False  # blocks in all threads, and the value that the program had set


def _is_lenient() -> bool:
    """Whether the program has set the flag."""
    return bool(ImageFile.LOAD_TRUNCATED_IMAGES) or _depth > 0


@contextmanager
def _only_whole_images() -> Iterator[None]:
    """A block in which Pillow refuses truncated images.

    The flag belongs to the process: it is put back when no thread is inside.
    """
    global _depth, _program_value

    with _lock:
        # only the first one inside sees the program's own value
        if not _depth:
            _program_value, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, False
        _depth += 1

    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if not _depth:
                ImageFile.LOAD_TRUNCATED_IMAGES = _program_value


def _load_whole(image: ImageFile.ImageFile) -> ImageFile.ImageFile:
    """Returns the same image, which refuses to be decoded if it is truncated."""
    # Pillow decodes when the pixels are first asked for, after the block of `open_stored` has ended
    image.load = partial(_load, image)  # type: ignore[method-assign]
    return image


def _load(image: ImageFile.ImageFile) -> Any:
    with _only_whole_images():
        pixels = type(image).load(image)
    image.__dict__.pop("load", None)  # it refers to the image, which would keep itself alive
    return pixels
