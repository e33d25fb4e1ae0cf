"""The operations that an image can go through, and how strong each may be.

These are the tables of torchvision.transforms.v2 0.25.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int8]
Numbers = NDArray[np.float32]

AFFINE = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
BLENDS = ("Brightness", "Color", "Contrast", "Sharpness")
# Policies draw an operation by its place here. So a new one belongs at the end: anywhere else it
# would change what a resumed run draws.
OPS = (
    "Identity",
    *AFFINE,
    *BLENDS,
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
    "Invert",
    "Hue",
    "GaussianBlur",
    "ShiftX",
    "ShiftY",
    "SolarizeAdd",
    "EqualizeInSteps",
    "PillowColor",
    "PillowContrast",
    "PillowHue",
    "Table",
    "HsvTable",
    "OpenCvColor",
    "OpenCvContrast",
)
MOVES = (*AFFINE, "ShiftX", "ShiftY")  # operations that `affine_matrices` describes
TABLES = ("Table", "HsvTable")  # operations by `Augmentation.tables`; no policy draws them
CODE = {name: code for code, name in enumerate(OPS)}
SIGNED = np.isin(OPS, (*AFFINE, *BLENDS))  # operations whose magnitude is negated half of the time
# those that TrivialAugmentWide and RandAugment draw from
RANDOM_OPS = OPS[: OPS.index("Invert")]
RANDOM_CODES = np.arange(len(RANDOM_OPS), dtype=np.int8)
# (operation, probability, bin of ten) of AutoAugment's ImageNet policies
IMAGENET_PAIRS = (
    (("Posterize", 0.4, 8), ("Rotate", 0.6, 9)),
    (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 0)),
    (("Equalize", 0.8, 0), ("Equalize", 0.6, 0)),
    (("Posterize", 0.6, 7), ("Posterize", 0.6, 6)),
    (("Equalize", 0.4, 0), ("Solarize", 0.2, 4)),
    (("Equalize", 0.4, 0), ("Rotate", 0.8, 8)),
    (("Solarize", 0.6, 3), ("Equalize", 0.6, 0)),
    (("Posterize", 0.8, 5), ("Equalize", 1.0, 0)),
    (("Rotate", 0.2, 3), ("Solarize", 0.6, 8)),
    (("Equalize", 0.6, 0), ("Posterize", 0.4, 6)),
    (("Rotate", 0.8, 8), ("Color", 0.4, 0)),
    (("Rotate", 0.4, 9), ("Equalize", 0.6, 0)),
    (("Equalize", 0.0, 0), ("Equalize", 0.8, 0)),
    (("Invert", 0.6, 0), ("Equalize", 1.0, 0)),
    (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
    (("Rotate", 0.8, 8), ("Color", 1.0, 2)),
    (("Color", 0.8, 8), ("Solarize", 0.8, 7)),
    (("Sharpness", 0.4, 7), ("Invert", 0.6, 0)),
    (("ShearX", 0.6, 5), ("Equalize", 1.0, 0)),
    (("Color", 0.4, 0), ("Equalize", 0.6, 0)),
    (("Equalize", 0.4, 0), ("Solarize", 0.2, 4)),
    (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 0)),
    (("Invert", 0.6, 0), ("Equalize", 1.0, 0)),
    (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
    (("Equalize", 0.8, 0), ("Equalize", 0.6, 0)),
)
PAIR_CODES = np.array([[CODE[op] for op, _, _ in pair] for pair in IMAGENET_PAIRS], np.int8)
PAIR_PROBABILITIES = np.array(
    [[probability for _, probability, _ in pair] for pair in IMAGENET_PAIRS]
)
PAIR_BINS = np.array([[bin for _, _, bin in pair] for pair in IMAGENET_PAIRS])


FILTERS = ("nearest", "bilinear", "bicubic")  # by which pixels move; Pillow's
# what erased rectangles become: zeros, one normally distributed color, or such a pixel each
FILLS = ("const", "rand", "pixel")


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in the sequence of operations."""

    ops: tuple[str, ...]  # those that may occur here, besides "Identity"
    interpolation: str = "nearest"  # of the affine ones, "nearest" or "bilinear"
    kernel_size: int = 0  # of GaussianBlur, in pixels
    # the color of what affine operations have from outside the image. With it they are Pillow's,
    # which keep its edges sharp, and `interpolation` may be "bicubic" too. None: black, and edges
    # blend with it, as torchvision does of tensors.
    fill: tuple[int, int, int] | None = None


def _no_tables() -> NDArray[np.uint8]:
    return np.zeros((0, 3, 256), np.uint8)


@dataclass(frozen=True, slots=True)
class Augmentation:
    """Operations on N flipped 8-bit images, in K slots one after the other.

    Then functions of the user's change them, they are normalized, and rectangles are erased.
    """

    ops: Codes  # (N, K) indices into `OPS`
    # (N, K). Shear: a factor; translation: pixels, rounded towards zero; Rotate: degrees,
    # counter-clockwise; Brightness, Color, Contrast and Sharpness: what is added to a factor of 1;
    # as those of PillowColor, PillowContrast, OpenCvColor and OpenCvContrast, with the gray and the
    # rounding of Pillow, or of albumentations with OpenCV;
    # Posterize: bits that stay; Solarize: the threshold as a share of 255;
    # Hue, PillowHue: a share of the full circle; GaussianBlur: sigma in pixels;
    # ShiftX, ShiftY: pixels;
    # SolarizeAdd: what is added to values below 128; Table, HsvTable: the place in `tables`.
    magnitudes: Numbers
    # (N, 4) top, left, height and width of the rectangle set to zero; no height: none. Or, for R
    # rectangles that are not set to zero, (N, R, 6): the same, then the seed of the noise and one
    # of `FILLS`.
    erased: NDArray[np.int64]
    # (N, K) what each function of the user's takes (functions.py): a seed, then its draws
    numbers: NDArray[np.float64]
    # (N, M, 2, 3) for each function that moves pixels: the matrix as of `affine_matrices`
    moves: NDArray[np.float64]
    # (T, 3, 256) what becomes of each value of red, green and blue; of HsvTable, of hue, saturation
    # and value as OpenCV has them in 8 bits. Images of one channel take the first row.
    tables: NDArray[np.uint8] = field(default_factory=_no_tables)

    def take(self, places: NDArray[np.int64] | slice) -> "Augmentation":
        return Augmentation(
            self.ops[places],
            self.magnitudes[places],
            self.erased[places],
            self.numbers[places],
            self.moves[places],
            self.tables,
        )


def affine_matrices(
    ops: Codes, magnitudes: NDArray[np.floating], shape: tuple[int, int]
) -> NDArray[np.float64]:
    """(N, 2, 3) matrices from pixels of the result to pixels of the source.

    (0, 0) is the corner of the first pixel. As in torchvision, shears leave the top left corner in
    place, and rotations the centre; other operations give the identity.
    """
    matrices = np.zeros((len(ops), 2, 3))
    matrices[:, 0, 0] = matrices[:, 1, 1] = 1

    # from the result back to the source: a translation is subtracted, and torchvision truncates it
    for op, (row, column) in {"ShearX": (0, 1), "ShearY": (1, 0)}.items():
        matrices[ops == CODE[op], row, column] = magnitudes[ops == CODE[op]]
    for op, row in {"TranslateX": 0, "TranslateY": 1}.items():
        matrices[ops == CODE[op], row, 2] = -np.trunc(magnitudes[ops == CODE[op]])
    for op, row in {"ShiftX": 0, "ShiftY": 1}.items():
        matrices[ops == CODE[op], row, 2] = -magnitudes[ops == CODE[op]]

    # rotations about the centre
    turned = ops == CODE["Rotate"]
    angle = np.radians(magnitudes[turned].astype(np.float64))
    cos, sin, y, x = np.cos(angle), np.sin(angle), shape[0] / 2, shape[1] / 2
    matrices[turned, 0] = np.stack([cos, -sin, x - cos * x + sin * y], axis=1)
    matrices[turned, 1] = np.stack([sin, cos, y - sin * x - cos * y], axis=1)

    return matrices


@lru_cache(maxsize=64)
def space(
    bins: int, shear: float, shift: tuple[float, float], degrees: float, blend: float, bits: int
) -> Numbers:
    """The magnitude of each operation in each bin, (OPS, bins); zero where an operation has none.

    `shift` is along x and y, in pixels. The array is shared, and cannot be written.
    """
    magnitudes = np.zeros((len(OPS), bins), np.float32)
    ranges = dict(zip(AFFINE, (shear, shear, *shift, degrees), strict=True)) | dict.fromkeys(
        BLENDS, blend
    )

    for op, largest in ranges.items():
        magnitudes[CODE[op]] = np.linspace(0, largest, bins)
    # torchvision's own formula: bits that stay, fewer in later bins
    magnitudes[CODE["Posterize"]] = np.rint(8 - np.arange(bins) / ((bins - 1) / bits))
    magnitudes[CODE["Solarize"]] = np.linspace(1, 0, bins)

    magnitudes.flags.writeable = False
    return magnitudes


def classic_space(bins: int, shape: tuple[int, int]) -> Numbers:
    """The magnitudes of RandAugment and AutoAugment, for images of this height and width."""
    height, width = shape
    # torchvision's constants, made for images of 331 pixels
    return space(
        bins,
        shear=0.3,
        shift=(150 / 331 * width, 150 / 331 * height),
        degrees=30.0,
        blend=0.9,
        bits=4,
    )
