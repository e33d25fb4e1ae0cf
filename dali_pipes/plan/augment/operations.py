"""The operations that an image can go through, and how strong each may be."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int8]
Numbers = NDArray[np.float32]

AFFINE = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
BLENDS = ("Brightness", "Color", "Contrast", "Sharpness")
OPS = ("Identity", *AFFINE, *BLENDS, "Posterize", "Solarize", "AutoContrast", "Equalize", "Invert", "Hue", "GaussianBlur")
CODE = {name: code for code, name in enumerate(OPS)}


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in the sequence of operations.

    Attributes:
        ops: those that may occur here, besides "Identity".
        interpolation: of the affine ones, "nearest" or "bilinear".
        kernel_size: of GaussianBlur, in pixels.
    """

    ops: tuple[str, ...]
    interpolation: str = "nearest"
    kernel_size: int = 0


@dataclass(frozen=True, slots=True)
class Augmentation:
    """Operations on N flipped 8-bit images, in K slots one after the other, and the erased regions of the normalized images.

    Attributes:
        ops: (N, K) indices into `OPS`.
        magnitudes: (N, K). Shear: a factor; translation: pixels, rounded towards zero; Rotate: degrees, counter-clockwise;
            Brightness, Color, Contrast and Sharpness: what is added to a factor of 1; Posterize: bits that stay; Solarize: the
            threshold as a share of 255; Hue: a share of the full circle; GaussianBlur: sigma in pixels.
        erased: (N, 4) top, left, height and width of the region set to zero; no height: none.
    """

    ops: Codes
    magnitudes: Numbers
    erased: NDArray[np.int64]

    def take(self, places: NDArray[np.int64] | slice) -> "Augmentation":
        return Augmentation(*(getattr(self, each.name)[places] for each in fields(self)))


def affine_matrices(ops: Codes, magnitudes: Numbers, shape: tuple[int, int]) -> NDArray[np.float64]:
    """(N, 2, 3) matrices from pixels of the result to pixels of the source, (0, 0) being the corner of the first pixel.

    Shears leave the top left corner in place and rotations the centre, as torchvision's do; other operations give the identity.
    """
    matrices = np.zeros((len(ops), 2, 3))
    matrices[:, 0, 0] = matrices[:, 1, 1] = 1
    for op, (row, column) in {"ShearX": (0, 1), "ShearY": (1, 0)}.items():
        matrices[ops == CODE[op], row, column] = magnitudes[ops == CODE[op]]
    for op, row in {"TranslateX": 0, "TranslateY": 1}.items():
        matrices[ops == CODE[op], row, 2] = -np.trunc(magnitudes[ops == CODE[op]])
    turned = ops == CODE["Rotate"]
    angle = np.radians(magnitudes[turned].astype(np.float64))
    cos, sin, y, x = np.cos(angle), np.sin(angle), shape[0] / 2, shape[1] / 2
    matrices[turned, 0] = np.stack([cos, -sin, x - cos * x + sin * y], axis=1)
    matrices[turned, 1] = np.stack([sin, cos, y - sin * x - cos * y], axis=1)
    return matrices
