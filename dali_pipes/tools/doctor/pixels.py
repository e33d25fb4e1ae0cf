"""A JPEG made in memory, and Pillow's pixels of it."""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dali_pipes.data.demo import draw_image
from dali_pipes.tools.doctor.finding import Finding, failed, ok, warning
from dali_pipes.tools.doctor.software import SETUP

Pixels = NDArray[np.uint8]
# mean |difference| of 255, on the JPEG below
CLOSE = 1.0  # rounding
FAR = 5.0  # another chroma upsampling makes about 2, swapped channels 16, a shift by one row 18


def make_jpeg() -> tuple[bytes, Pixels]:
    """A baseline JPEG (4:2:0, quality 90) and its pixels as Pillow decodes them, (H, W, 3); the same every time."""
    file = io.BytesIO()
    Image.fromarray(draw_image("rings", np.random.default_rng(0))).save(file, "JPEG", quality=90, subsampling="4:2:0")
    return file.getvalue(), np.asarray(Image.open(file))


def difference(pixels: NDArray, expected: Pixels) -> float:
    """Mean |difference| in steps of 1/255; infinite if the shapes differ."""
    if pixels.shape != expected.shape:
        return float("inf")
    return float(np.abs(pixels.astype(np.int16) - expected).mean())


def judge(what: str, mean: float) -> Finding:
    """Whether that difference is rounding of two correct decoders, another chroma upsampling, or a fault."""
    what = f"{what}; mean |difference| from Pillow's pixels {mean:.2f} of 255"
    if mean <= CLOSE:
        return ok(what)
    if mean <= FAR:
        return warning(f"{what}, as with another chroma upsampling", "loader.hw_decoder_load=0 may avoid that; docs/pixels.md")
    return failed(what, f"images would be wrong: {SETUP}")
