"""Reads steps that change how values are stored: tensors, floats, Normalize."""

from typing import Any

import torch

from dali_pipes.adapters.transforms.reading import (
    Alike,
    TransformReading,
    describe_options,
    refuse_unless,
)


def read_to_bytes(reading: TransformReading, step: Any) -> str:
    """Reads a step that makes a tensor of a PIL image, and leaves its bytes as they are."""
    reading.tensor = True
    return "images are tensors"


def read_to_tensor(reading: TransformReading, step: Any) -> str:
    """Reads ToTensor, which leaves a tensor as it is (torchvision's v2/_deprecated.py, timm's
    data/transforms.py).
    """
    return "nothing: images are tensors already" if reading.tensor else _note_floats(reading)


def _note_floats(reading: TransformReading) -> str:
    reading.tensor = reading.floats = True
    return "dtype=fp32, values from 0 to 1 before Normalize"


def read_to_dtype(reading: TransformReading, step: Any) -> str:
    """Reads ToDtype and ConvertImageDtype."""
    kind = step.dtype
    if isinstance(kind, dict):
        # by the type of what is converted, which masks have too; None leaves it as it is
        kinds = {getattr(key, "__name__", key): each for key, each in kind.items()}
        kind = kinds.get("Image", kinds.get("others"))
        if kind is None:
            return "nothing: it converts no images"

    instead = "put ToImage() or PILToTensor() before it"
    refuse_unless(reading.tensor, step, "it leaves PIL images as they are", instead)
    if kind == torch.uint8 and not reading.floats:
        return "dtype=uint8"
    instead = "convert to float32, and set dtype in the transform later"
    refuse_unless(kind == torch.float32, step, f"it converts to {kind}", instead)
    problem = "scale=False keeps values from 0 to 255 as floats"
    refuse_unless(getattr(step, "scale", True), step, problem, "set scale=True")
    return _note_floats(reading)


def read_normalize(reading: TransformReading, step: Any) -> str:
    # albumentations' takes bytes
    reading.floats |= isinstance(step, Alike)
    refuse_unless(reading.floats, step, "it comes before ToTensor")
    once = reading.normalized is None and not reading.erased
    refuse_unless(once, step, "it comes twice, or after RandomErasing")

    reading.normalized = {}
    for name in ("mean", "std"):
        values = torch.as_tensor(getattr(step, name), dtype=torch.float64, device="cpu")
        numbers = values.flatten().tolist()
        problem = f"{name} has {len(numbers)} numbers"
        instead = f"give one for each of {reading.channels} colours"
        refuse_unless(len(numbers) in (1, reading.channels), step, problem, instead)
        reading.normalized[name] = tuple(numbers * (reading.channels // len(numbers)))
    return describe_options(reading.normalized)


def read_to_pil(reading: TransformReading, step: Any) -> str:
    refuse_unless(not reading.floats, step, "it comes after ToTensor", "leave both of them out")
    reading.tensor = False
    return "nothing: images are resized as Pillow does"
