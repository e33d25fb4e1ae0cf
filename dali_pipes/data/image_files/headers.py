"""Reads image headers: format, size and orientation, before any pixel is decoded.

`read_header` takes a path, `examine` an open file; what is wrong with a file is the `problem` of
its `Header`. With verify="full" the pixels are decoded and compared too.
"""

import builtins
import hashlib
import io
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from stat import S_ISDIR as is_folder
from stat import S_ISREG as is_regular
from typing import Any, BinaryIO, NamedTuple

from PIL import Image, JpegImagePlugin

from dali_pipes.checks import check_choice, check_int, check_names, describe_value
from dali_pipes.data.image_files.decoders import FORMATS, find_refusal
from dali_pipes.data.image_files.disagreements import find_disagreement, find_missing_end
from dali_pipes.data.image_files.stored import open_any, orientation_of
from dali_pipes.data.image_files.wide import (
    WIDE_FORMATS,
    is_wide,
    more_bits_problem,
    wide_problem,
    wide_refusal,
)
from dali_pipes.data.objects import Targets
from dali_pipes.errors import ConfigError, ManifestError
from dali_pipes.options import check_options, option

# torchvision.datasets.folder.IMG_EXTENSIONS, so that sample ids are those of an ImageFolder, and
# two more extensions of JPEGs
IMAGE_EXTENSIONS = (
    ".jpg",
    ".jpeg",
    ".png",
    ".ppm",
    ".bmp",
    ".pgm",
    ".tif",
    ".tiff",
    ".webp",
    ".jfif",
    ".jpe",
)
# how many pixels an image may have by default: Pillow's own limit against decompression bombs,
# whatever Pillow is set to
MAX_PIXELS = 89_478_485
PIXEL_LIMIT = 2**31 - 1  # what the option may be
VERIFY = ("header", "full")
BITS = (8, 16)
# sampling factors of luma, horizontal and vertical, where those of chroma are 1 × 1
_CHROMA = {(1, 1): "4:4:4", (2, 1): "4:2:2", (2, 2): "4:2:0", (4, 1): "4:1:1", (1, 2): "4:4:0"}

_CONTENT_BYTES = 16  # of a digest: two of a billion images share one by chance once in 10^20 sets

# a scan does not open a pipe, since that would wait forever
NOT_REGULAR = "not a regular file (a pipe, a socket or a device); remove it"

# all plugins of Pillow, for `open_any`: loaded here once, and not in each process that is forked
Image.init()


class Header(NamedTuple):
    """The header of one file. If there is a problem, everything else may be zero or empty.

    Attributes:
        bytes, mtime_ns: size and modification time of the file; in an object store the two halves
            of a `FileVersion`.
        height, width: in pixels as stored, before any EXIF rotation.
        orientation: EXIF's, 1 to 8; 1 if there is none.
        format: Pillow's name, such as "JPEG" or "PNG"; "PNG16" or "TIFF16" with 16 bits a channel,
            which only `ScanOptions.bits` takes.
        decoded: whether the whole image was decoded.
        problem: why the file cannot be used; None: it can.
        jpeg: how a JPEG is coded, such as "4:2:0" or "4:2:0 progressive" (`describe_jpeg`); "" for
            other formats.
        content: BLAKE2b of its bytes, 16 of its own, where they were all read (verify="full"), so
            that copies are found; else b"".
    """

    bytes: int
    mtime_ns: int
    height: int = 0
    width: int = 0
    orientation: int = 1
    format: str = ""
    decoded: bool = False
    problem: str | None = None
    jpeg: str = ""
    content: builtins.bytes = b""  # `bytes` is a number here


def check_max_pixels(option: str, value: int | None) -> None:
    if value is not None:
        check_int(option, value, 1, PIXEL_LIMIT)


def check_bits(option: str, value: object) -> None:
    """Raises a ConfigError if these are no bits of a scan."""
    if type(value) is not int or value not in BITS:
        raise ConfigError(
            f"{option} is {describe_value(value)}; it takes 8, or 16 for PNG and TIFF of 16 bits a "
            "channel too"
        )


def check_targets(option: str, value: object) -> None:
    if not isinstance(value, Targets):
        raise ConfigError(
            f"{option} is {describe_value(value)}; it takes Targets(…), such as "
            "Targets(boxes='boxes', box_labels='labels')"
        )


@dataclass(frozen=True, kw_only=True)
class ScanOptions:
    """How thoroughly files are checked, and by how many processes.

    Attributes:
        verify: "header", or "full" to decode the whole image too, with the decoders of all CPU
            loaders.
        max_pixels: a larger image is a problem, found before anything is decoded; above Pillow's
            own limit, if asked.
        workers: processes that read, and for single objects in a store requests at a time; None: as
            many as help.
        progress: whether to show a progress bar.
        targets: what is read of each sample besides its label.
        with_labels: whether an image needs a label; if not, none is read.
        classes: names of the class folders, in the order of their numbers; None: all folders,
            sorted.
        bits: 16 takes PNG and TIFF of 16 bits a channel too; 8 has them as a problem.
    """

    verify: str = option("header", check_choice, VERIFY)
    max_pixels: int = option(MAX_PIXELS, check_max_pixels)
    workers: int | None = option(None, check_int, 1, 2**12)
    progress: bool = True
    targets: Targets = option(Targets, check_targets)
    # other kinds of source have no labels that could be left out
    with_labels: bool = option(
        True, kinds=("csv", "parquet", "dataset", "images"), is_refused=False
    )
    classes: Sequence[str] | None = option(None, check_names)
    bits: int = option(8, check_bits)

    def __post_init__(self) -> None:
        check_options(self)


def is_image(name: str) -> bool:
    """Whether a file of this name is one that a scan reads."""
    return name.lower().endswith(IMAGE_EXTENSIONS)


def read_header(
    path: bytes | str | os.PathLike[str],
    check: ScanOptions = ScanOptions(),
    raises: bool = False,
) -> Header:
    """Reads the header of one file. A bad file raises nothing: what is wrong is in `problem`.

    Args:
        raises: whether an error of reading the file is raised, an OSError with a number.
    """
    size, mtime_ns = 0, 0
    try:
        stat = os.stat(path)
        size, mtime_ns = stat.st_size, stat.st_mtime_ns
        # opening a folder fails at once, with an error that says what it is
        if not is_regular(stat.st_mode) and not is_folder(stat.st_mode):
            return Header(0, mtime_ns, problem=NOT_REGULAR)
        with open(path, "rb") as file:
            return examine(file, size, mtime_ns, check, raises=raises)
    except OSError as error:
        if raises:
            raise
        return Header(size, mtime_ns, problem=describe_os_error(error))


def examine(
    file: BinaryIO,
    size: int,
    mtime_ns: int,
    check: ScanOptions = ScanOptions(),
    judge: bool = True,
    raises: bool = False,
) -> Header:
    """Reads the header of an open image of `size` bytes, as `read_header` does.

    Args:
        judge: whether an image gets a problem if loaders deliver different pixels of it.
        raises: as of `read_header`.
    """
    if not size:
        return Header(0, mtime_ns, problem="empty file")

    width, height, orientation, format, jpeg, content = 0, 0, 1, "", "", b""
    try:
        with nullcontext() if _is_jpeg(file) else _ignore_warnings():
            image = open_any(file)
            (width, height), format, jpeg = image.size, image.format or "", describe_jpeg(image)
            orientation = orientation_of(image)
            takes_wide = check.bits == 16 and is_wide(image)
            problem = _find_problem(height, width, format, check.max_pixels)
            # Pillow clips such pixels, DALI scales them
            if not problem and not takes_wide and image.mode.startswith(("I", "F")):
                problem = more_bits_problem(image)
            if judge and not problem:
                problem = (
                    _find_wide_problem(image, file, size)
                    if takes_wide
                    else find_disagreement(image, file, size)
                )
            format = WIDE_FORMATS[format] if takes_wide else format

        # last, since it takes the most time, and the header may have shown a problem already
        if check.verify == "full" and not problem:
            file.seek(0)
            encoded = file.read()
            content = hashlib.blake2b(encoded, digest_size=_CONTENT_BYTES).digest()
            problem = (
                wide_refusal(io.BytesIO(encoded), height, width)
                if takes_wide
                else find_refusal(encoded, height, width, format)
            )
    except OSError as error:
        # Pillow's errors of broken files are OSErrors without a number; those of a disk have one
        if raises and error.errno is not None:
            raise
        problem = (
            "not an image, or its header is broken"
            if error.errno is None
            else describe_os_error(error)
        )
    except Image.DecompressionBombError:  # the WebP plugin asks Pillow's own limit
        problem = "more pixels than Pillow opens in this format; save it as JPEG or PNG"
    except Exception as error:  # Pillow's plugins raise almost anything on broken headers
        problem = f"broken header ({type(error).__name__}: {error})"

    return Header(
        size,
        mtime_ns,
        height,
        width,
        orientation,
        format,
        check.verify == "full",
        problem,
        jpeg,
        content,
    )


def _is_jpeg(file: BinaryIO) -> bool:
    magic = file.read(3)
    file.seek(0)
    return magic == b"\xff\xd8\xff"


@contextmanager
def _ignore_warnings() -> Iterator[None]:
    """A block without warnings about broken metadata, which no pixel depends on.

    It is not used for JPEGs, where it would take a twelfth of the time.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def describe_jpeg(image: Image.Image) -> str:
    """Returns how a JPEG is coded: its chroma subsampling in the usual notation, such as "4:2:0",
    or else "CMYK", "other" or "gray"; then " progressive" if it is; "" for other formats.

    A gray JPEG may state sampling factors other than 1 × 1, though they mean nothing in an image of
    one component: "gray 2x1". NVIDIA's JPEG engine decodes such an image wrongly
    (docs/gpu-path.md).
    """
    if not isinstance(image, JpegImagePlugin.JpegImageFile):
        return ""

    # Pillow has an id, two sampling factors and a quantization table for each component
    (_, wide, high, _), *chroma = image.layer
    if not chroma:
        colors = "gray" if wide == high == 1 else f"gray {wide}x{high}"
    elif len(chroma) == 3:
        colors = "CMYK"
    else:
        # factors of chroma other than 1 × 1 are allowed, and so rare that no decoder of a GPU has
        # been tried with them
        is_usual = all(each[1:3] == (1, 1) for each in chroma)
        colors = _CHROMA.get((wide, high), "other") if is_usual else "other"
    return colors + " progressive" * ("progressive" in image.info)


def _find_wide_problem(image: Any, file: Any, size: int) -> str | None:
    """Why an image of 16 bits cannot be used; None: it can."""
    if problem := wide_problem(image):
        return problem
    return find_missing_end(file, size) if image.format == "PNG" else None


def _find_problem(height: int, width: int, format: str, max_pixels: int) -> str | None:
    if format not in FORMATS:
        return f"{format or 'unknown'} format; convert it to one of {', '.join(FORMATS)}"
    if height < 1 or width < 1:
        return f"an image without pixels ({width} × {height})"
    if height * width > max_pixels:
        return f"more than {max_pixels:,} pixels ({width} × {height})"
    return None


def describe_os_error(error: OSError) -> str:
    """Returns an OSError of a file as text for `Header.problem`."""
    return error.strerror.lower() if error.strerror else str(error)


def fetch_error(url: str, error: OSError) -> ManifestError:
    """Returns the error of a scan that cannot read an object; it says nothing about its images."""
    return ManifestError(f"{url}: {describe_os_error(error)}; scan again when it can be read")
