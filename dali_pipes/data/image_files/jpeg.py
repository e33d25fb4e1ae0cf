"""JPEGs as the decoders of torchvision and TorchCodec decode them: for a scan, which compares
decoders, and for the loaders that decode by them.

`decoder_of(name)` imports a decoder, or says what is missing. Neither turns images by EXIF.
"""

import contextlib
import re
from collections.abc import Callable
from functools import cache

import torch

from dali_pipes.errors import ConfigError

JpegDecoder = Callable[[torch.Tensor], torch.Tensor]
# The marker of an EXIF segment, its length, and how its content begins. TorchCodec looks at the
# TIFF header six bytes on, and not at the name before it.
_EXIF = re.compile(rb"\xff(\xe1)..(?:Exif|.{6}(?:II\*\0|MM\0\*))", re.DOTALL)
_UNUSED = 0xEF  # the marker of a segment that decoders skip


@cache
def decoder_of(name: str) -> JpegDecoder:
    """The function of "torchvision" or "torchcodec" that decodes a JPEG.

    It takes the bytes as uint8, and returns (3, height, width) uint8 in RGB.

    Raises:
        ConfigError: the package is missing, or has no decoder for JPEGs.
    """
    return _torchvision() if name == "torchvision" else _torchcodec()


def fastest_decoder() -> str:
    """The decoder that takes the least CPU time for the same pixels (docs/measured.md): torchvision
    as long as it has one, else TorchCodec, else "pil".
    """
    for name in ("torchvision", "torchcodec"):
        with contextlib.suppress(ConfigError):
            decoder_of(name)
            return name
    return "pil"


def _torchvision() -> JpegDecoder:
    # The operator behind torchvision.io.decode_jpeg, which from 0.29 on warns at every call that it
    # will be removed: that is for this package to act on, and not for its users to read.
    mode = _rgb()
    try:
        decode = torch.ops.image.decode_jpeg.default
    except AttributeError:
        raise ConfigError(
            "this torchvision has no JPEG decoder; install a build of it with libjpeg"
        ) from None
    return lambda encoded: decode(encoded, mode)


def _rgb() -> int:
    """torchvision's number for RGB; this loads its operators."""
    from torchvision.io import ImageReadMode

    return int(ImageReadMode.RGB.value)


def _torchcodec() -> JpegDecoder:
    try:
        from torchcodec.decoders import decode_jpeg
    # a build for another PyTorch raises a RuntimeError or an OSError
    except (ImportError, OSError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"TorchCodec 0.16 or newer is missing ({reason}); with PyTorch 2.11 or newer pip "
            "install 'dali_pipes[torchcodec]'"
        ) from None
    return lambda encoded: decode_jpeg(_without_exif(encoded), mode="RGB")


def _without_exif(encoded: torch.Tensor) -> torch.Tensor:
    """The same JPEG whose EXIF segments are not marked as such; the same tensor if there are none.

    TorchCodec 0.17 turns images by EXIF and has no option for it. Here the manifest says how an
    image is turned.
    """
    marks = [mark.start(1) for mark in _EXIF.finditer(encoded.numpy().data)]
    if marks:
        encoded = encoded.clone()
        encoded[marks] = _UNUSED
    return encoded
