"""Decodes a whole image with the decoders of all CPU loaders and compares their pixels, for `scan
verify=full`: `find_refusal` returns which decoder refuses it or decodes it differently.

docs/inputs.md lists the kinds of files on which decoders differ.
"""

import io
import os
import warnings
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.data.image_files.stored import open_stored
from dali_pipes.errors import ConfigError

FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # formats that every backend decodes
# of 255, by which the mean of a part of an image may differ, as in tests/backends/test_contract.py
TOLERANCE = 0.25
PARTS = 16  # along each side; each part is compared by itself
COMPARED = 2**22  # pixels at most; of a larger image only every n-th line is compared


class _Decoder:
    """DALI's decoder, one for each process.

    Threads take turns: with two images in a pipeline one thread would get the other's pixels.
    """

    def __init__(self) -> None:
        self._turn, self._pipeline = Lock(), None

    def decode(self, encoded: bytes) -> NDArray[np.uint8]:
        with self._turn:
            self._pipeline = pipeline = self._pipeline or _pipeline()
            try:
                pipeline.feed_input("encoded", [np.frombuffer(encoded, np.uint8)])
                (images,) = pipeline.run()
            except Exception:
                self._pipeline = None  # a pipeline that has failed once is of no more use
                raise
            # a copy, since the next run uses the same memory
            return np.array(images.at(0))


# One for each process: a forked process has none of the threads of its parent's pipeline, and would
# wait for them if it used or destroyed that pipeline.
_decoders: dict[int, _Decoder] = {}


def import_decoders() -> None:
    """Imports the decoders, so that processes that are forked afterwards share them.

    Raises:
        ConfigError: DALI is not installed.
    """
    import torchvision.io  # noqa: F401

    try:
        from nvidia.dali import pipeline_def  # noqa: F401
    except ImportError as error:
        from dali_pipes.system.cuda import install_cuda  # with PyTorch, which a scan leaves out

        raise ConfigError(
            f"verify=full compares DALI's decoder with the others, and DALI is missing ({error}): "
            f"{install_cuda()}, or take verify=header"
        ) from None


def find_refusal(encoded: bytes, height: int, width: int, format: str) -> str | None:
    """Decodes a whole image with each decoder.

    Returns which one refuses it and why, or decodes it differently from Pillow; None: all agree.
    """
    decoders = {"Pillow": _pillow, "DALI": _dali} | (
        # the loaders that use torchvision decode all other formats by Pillow
        {"torchvision": _torchvision} if format == "JPEG" else {}
    )
    reference = None
    for name, decode in decoders.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about broken metadata, which no pixel depends on
                pixels = decode(encoded)
        except Exception as error:  # any error of a decoder means that it refuses the file
            return f"cannot be decoded by {name} ({_reason(error)})"

        if pixels.shape[:2] != (height, width):
            size = f"{pixels.shape[1]} × {pixels.shape[0]}"
            return (
                f"cannot be decoded by {name} (it finds {size} pixels, its header says "
                f"{width} × {height})"
            )

        compared = _sample_lines(pixels)
        if reference is None:
            reference = compared
        elif (mean := largest_difference(reference, compared)) > TOLERANCE:
            return (
                f"decoded differently by Pillow and {name} (mean {mean:.1f} of 255); save it as PNG"
            )
    return None


def decode_size(encoded: bytes) -> tuple[int, int]:
    """Returns height and width; raises almost any error if the image cannot be decoded."""
    with open_stored(io.BytesIO(encoded)) as image:
        image.load()
        return image.height, image.width


def largest_difference(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    """Returns the mean |difference| of the part of the image where it is largest.

    Both images are (H, W, 3). Parts are compared, since loaders crop: the whole would hide one bad
    corner.
    """
    if np.array_equal(one, other):
        return 0.0
    lines = np.abs(one.astype(np.int16) - other).mean(axis=2)
    parts = [
        part for band in np.array_split(lines, min(PARTS, len(lines))) for part in _columns(band)
    ]
    return float(max(part.mean() for part in parts))


def _columns(band: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    return np.array_split(band, min(PARTS, band.shape[1]), axis=1)


def _sample_lines(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns the pixels that are compared, as a copy: all of a usual image, every n-th line of a
    large one.
    """
    step = -(-pixels.shape[0] * pixels.shape[1] // COMPARED)
    return pixels[::step].copy()


def _pillow(encoded: bytes) -> NDArray[np.uint8]:
    with open_stored(io.BytesIO(encoded)) as image:
        image.load()
        return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _dali(encoded: bytes) -> NDArray[np.uint8]:
    return _decoders.setdefault(os.getpid(), _Decoder()).decode(encoded)


def _torchvision(encoded: bytes) -> NDArray[np.uint8]:
    import torch

    from dali_pipes.data.image_files.jpeg import decoder_of

    # PyTorch warns of a buffer that it cannot write to, as bytes are
    pixels = decoder_of("torchvision")(torch.frombuffer(bytearray(encoded), dtype=torch.uint8))
    return np.asarray(pixels.permute(1, 2, 0))


def _pipeline() -> Any:
    from nvidia.dali import fn, pipeline_def, types

    # synchronous, with one image inside: what comes out belongs to what was fed last
    @pipeline_def(
        batch_size=1,
        num_threads=1,
        device_id=None,
        prefetch_queue_depth=1,
        exec_async=False,
        exec_pipelined=False,
    )
    def decoding() -> Any:
        encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
        return fn.decoders.image(encoded, output_type=types.RGB, adjust_orientation=False)

    return decoding()


def _reason(error: Exception) -> str:
    lines = [
        line.strip()
        for line in str(error).splitlines()
        # DALI ends an error by saying that the pipeline cannot be used any more
        if line.strip() and not line.startswith("Current pipeline")
    ]
    return lines[-1] if lines else type(error).__name__
