"""JPEGs as the decoders of torchvision and TorchCodec decode them: for a scan, which compares
decoders, and for the loaders that decode by them.

`decoder_of(name)` imports a decoder, or says what is missing. Neither turns images by EXIF.
"""

import contextlib
from collections.abc import Callable, Sequence
from functools import cache

import torch

from dali_pipes.errors import ConfigError

JpegDecoder = Callable[[torch.Tensor], torch.Tensor]


@cache
def decoder_of(name: str) -> JpegDecoder:
    """The function of "torchvision" or "torchcodec" that decodes a JPEG.

    It takes the bytes as uint8, and returns (3, height, width) uint8 in RGB.

    Raises:
        ConfigError: the package is missing, or has no decoder for JPEGs.
    """
    return _torchvision() if name == "torchvision" else _torchcodec()


def decode_on(device: torch.device, jpegs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Images decoded by torchvision, by nvJPEG if the device is a GPU."""
    if device.type == "cpu":
        return list(map(decoder_of("torchvision"), jpegs))
    return torch.ops.image.decode_jpegs_cuda(list(jpegs), _rgb(), device) if jpegs else []


def fastest_decoder() -> str:
    """The decoder that takes the least CPU time for the same pixels: of TorchCodec if it is
    installed, else of torchvision, else "pil" (docs/measured.md).
    """
    for name in ("torchcodec", "torchvision"):
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
            "decoder is torchvision, but this torchvision has no JPEG decoder; take "
            "decoder='torchcodec' or decoder='pil', or a build of torchvision with libjpeg"
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
            f"decoder is torchcodec, which needs TorchCodec 0.16 or newer ({reason}); with PyTorch "
            "2.11 or newer pip install 'dali_pipes[torchcodec]', or take decoder='torchvision' or "
            "decoder='pil'"
        ) from None
    return lambda encoded: decode_jpeg(encoded, mode="RGB")
