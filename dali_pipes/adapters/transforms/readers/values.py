"""Reads steps that change how values are stored: tensors, floats, Normalize."""

from typing import Any

import torch

from dali_pipes.adapters.transforms.readers.albumentations import Alike
from dali_pipes.adapters.transforms.readers.common import AS_OURS, describe_options, refuse_after
from dali_pipes.adapters.transforms.reading import TransformReading, refuse_unless


def read_to_bytes(reading: TransformReading, step: Any) -> str:
    """Reads a step that makes a tensor of a PIL image, and leaves its bytes as they are."""
    reading.tensor = True
    return "images are tensors"


def read_to_tensor(reading: TransformReading, step: Any) -> str:
    """Reads ToTensor, which leaves a tensor as it is (torchvision's v2/_deprecated.py, timm's
    data/transforms.py).
    """
    return "nothing: images are tensors already" if reading.tensor else _note_floats(reading, step)


def _note_floats(reading: TransformReading, step: Any) -> str:
    reading.tensor = reading.floats = True
    return "dtype=fp32, values from 0 to 1 before Normalize"


def read_to_dtype(reading: TransformReading, step: Any) -> str:
    """Reads ToDtype and ConvertImageDtype."""
    kind, name = step.dtype, type(step).__name__
    if isinstance(kind, dict):
        # by the type of what is converted, which masks have too; None leaves it as it is
        kinds = {getattr(key, "__name__", key): each for key, each in kind.items()}
        kind = kinds.get("Image", kinds.get("others"))
        if kind is None:
            return "nothing: it converts no images"
    refuse_unless(
        reading.tensor,
        name,
        "it leaves PIL images as they are",
        "put ToImage() or PILToTensor() before it",
    )

    if kind == torch.uint8 and not reading.floats:
        return "dtype=uint8"
    refuse_unless(
        kind == torch.float32,
        name,
        f"it converts to {kind}",
        "convert to float32, and set dtype in the transform later",
    )
    refuse_unless(
        getattr(step, "scale", True),
        name,
        "scale=False keeps values from 0 to 255 as floats",
        "set scale=True",
    )

    return _note_floats(reading, step)


def read_normalize(reading: TransformReading, step: Any) -> str:
    # albumentations' takes bytes
    reading.floats |= isinstance(step, Alike)
    refuse_unless(reading.floats, "Normalize", "it comes before ToTensor", AS_OURS)
    once = reading.normalized is None and not reading.erased
    refuse_unless(once, "Normalize", "it comes twice, or after RandomErasing", AS_OURS)
    refuse_after(reading.has_function_of_floats, step, "a step of floats that runs as it is")

    reading.normalized = {}
    for name in ("mean", "std"):
        values = (
            torch.as_tensor(getattr(step, name), dtype=torch.float64, device="cpu")
            .flatten()
            .tolist()
        )
        refuse_unless(
            len(values) in (1, reading.channels),
            "Normalize",
            f"{name} has {len(values)} numbers",
            "give one for each of three colours" if reading.channels == 3 else "give one, for gray",
        )
        reading.normalized[name] = tuple(values * (reading.channels // len(values)))

    return describe_options(reading.normalized)


def read_to_pil(reading: TransformReading, step: Any) -> str:
    refuse_unless(
        not reading.floats, "ToPILImage", "it comes after ToTensor", "leave both of them out"
    )
    reading.tensor = False
    return "nothing: images are resized as Pillow does"
