"""Operations and their magnitudes: the tables of torchvision.transforms.v2 0.25."""

import numpy as np

from dali_pipes.plan.augment.operations import AFFINE, BLENDS, CODE, OPS, Numbers

SIGNED = np.isin(OPS, (*AFFINE, *BLENDS))  # operations whose magnitude is negated half of the time
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
PAIR_PROBABILITIES = np.array([[probability for _, probability, _ in pair] for pair in IMAGENET_PAIRS])
PAIR_BINS = np.array([[bin for _, _, bin in pair] for pair in IMAGENET_PAIRS])


def space(bins: int, shear: float, shift: tuple[float, float], degrees: float, blend: float, bits: int) -> Numbers:
    """The magnitude of each operation in each bin, (OPS, bins); zero where an operation has none. Shifts are along x and y."""
    magnitudes = np.zeros((len(OPS), bins), np.float32)
    ranges = dict(zip(AFFINE, (shear, shear, *shift, degrees), strict=True)) | dict.fromkeys(BLENDS, blend)
    for op, largest in ranges.items():
        magnitudes[CODE[op]] = np.linspace(0, largest, bins)
    magnitudes[CODE["Posterize"]] = np.rint(8 - np.arange(bins) / ((bins - 1) / bits))
    magnitudes[CODE["Solarize"]] = np.linspace(1, 0, bins)
    return magnitudes


def classic_space(bins: int, shape: tuple[int, int]) -> Numbers:
    """That of RandAugment and AutoAugment, for images of this height and width."""
    height, width = shape
    return space(bins, shear=0.3, shift=(150 / 331 * width, 150 / 331 * height), degrees=30.0, blend=0.9, bits=4)
