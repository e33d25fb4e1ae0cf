"""A JPEG made in memory, and what Pillow makes of it."""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dali_pipes.demo import draw_image
from dali_pipes.doctor.finding import Finding, failed, ok
from dali_pipes.doctor.software import SETUP

Pixels = NDArray[np.uint8]
CLOSE = 1.0  # the largest mean |difference| of two sound decoders, of 255


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


def judge(told: str, mean: float) -> Finding:
    """Whether that difference is one of two sound decoders."""
    told = f"{told}; mean |difference| from Pillow's pixels {mean:.2f} of 255"
    return ok(told) if mean <= CLOSE else failed(f"{told}, more than {CLOSE:g}", f"images would be wrong: {SETUP}")
