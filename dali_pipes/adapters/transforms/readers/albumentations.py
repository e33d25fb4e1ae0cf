"""The steps of albumentations in the words of torchvision, which the readers know.

`parts_of` takes a Compose apart, and `alike` makes of a step one that has the name and attributes
of torchvision's, or raises a NotConvertibleError. OpenCV's numbers for interpolations are in
`_INTERPOLATIONS`, since OpenCV itself is not needed here.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dali_pipes.adapters.transforms.reading import Alike, is_of, refuse_unless

_INTERPOLATIONS = {0: "nearest", 1: "bilinear", 2: "bicubic", 3: "area", 4: "lanczos"}
# of OpenCV, as the padding modes of torchvision and NumPy
_BORDERS = {0: "constant", 1: "edge", 2: "symmetric", 4: "reflect"}
_COMPOSES = ("Compose", "Sequential")
# what these attributes may be, for each step that has them
_EXPECTED = {
    "area_for_downscale": (None,),
    "pad_if_needed": (False,),
    "normalization": ("standard",),
    "max_pixel_value": (255,),
    "max_value": (255, None),
    "max_size_hw": (None,),
    "position": ("center",),
}


def parts_of(whole: Any) -> Iterator[Any]:
    """Yields the single steps of albumentations' Compose that is always applied, and any other step
    as it is.
    """
    if type(whole).__name__ not in _COMPOSES:
        yield whole
        return

    moved = [kind for kind in ("bboxes", "keypoints") if kind in getattr(whole, "processors", {})]
    instead = "use build_loader (docs/objects.md)"
    refuse_unless(not moved, whole, f"it moves {' and '.join(moved)}", instead)
    # applied at random, it is one step
    if whole.p != 1:
        yield whole
        return
    for part in whole.transforms:
        yield from parts_of(part)


def alike(step: Any) -> Any:
    """Makes of a step of albumentations one like torchvision's; other steps stay as they are."""
    if not is_of(step, "albumentations"):
        return step

    # 1.x has other attributes
    version = sys.modules["albumentations"].__version__
    problem = f"albumentations {version} is installed, and 2.0.8 and later are read"
    instead = "pip install 'albumentations>=2.0.8'"
    refuse_unless(int(version.partition(".")[0]) >= 2, step, problem, instead)

    own = type(step).__name__
    if own in _FLIPS:
        return Alike(step, _FLIPS[own], p=step.p)
    problem = f"applied with p={step.p}, it leaves images of several sizes or ranges"
    refuse_unless(step.p == 1 or own not in (*_ROWS, *_COMPOSES), step, problem, "set p=1")
    refuse_unless(own in _ROWS, step, "dali_pipes has no such step")
    for attribute, expected in _EXPECTED.items():
        value = getattr(step, attribute, expected[0])
        refuse_unless(value in expected, step, f"{attribute}={value}", f"use {expected[0]}")

    name, options = _ROWS[own]
    made = Alike(step, name, **options(step))
    if hasattr(step, "interpolation"):
        kind = _INTERPOLATIONS.get(step.interpolation, "another")
        instead = "use cv2.INTER_LINEAR, albumentations' default"
        refuse_unless(kind in ("bilinear", "bicubic"), step, f"interpolation={kind}", instead)
        vars(made)["interpolation"] = kind
        # on whole images only
        if (name, kind) == ("Resize", "bicubic"):
            made.name = "Resize of OpenCV, bicubic"
    return made


def _one_side(step: Any) -> dict[str, Any]:
    size = step.max_size
    refuse_unless(isinstance(size, int), step, f"max_size={size}", "give it one max_size")
    return {"size": size}


def _sides(step: Any) -> dict[str, Any]:
    return {"size": (step.height, step.width)}


def _pad_if_needed(step: Any) -> dict[str, Any]:
    size, mode = (step.min_height, step.min_width), _BORDERS.get(step.border_mode)
    problem = f"min_height={size[0]}, min_width={size[1]}, border_mode={step.border_mode}"
    instead = "give it a min_height and a min_width, and another border than WRAP"
    refuse_unless(all(size) and mode, step, problem, instead)

    numbers = step.fill if isinstance(step.fill, (list, tuple)) else [step.fill]
    known = all(each in range(256) for each in numbers) and len(numbers) in (1, 3)
    instead = "use one number from 0 to 255, or three"
    refuse_unless(known, step, f"fill={step.fill}", instead)
    fill = tuple(map(int, numbers)) * (3 // len(numbers))
    return {"size": size, "padding_mode": mode, "fill": fill}


# by the name of a step's class: torchvision's name, or its own, and the attributes for its reader
_FLIPS = {"HorizontalFlip": "RandomHorizontalFlip", "VerticalFlip": "RandomVerticalFlip"}
_ROWS: dict[str, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    "Resize": ("Resize", lambda step: _sides(step) | {"max_size": None}),
    "SmallestMaxSize": ("SmallestMaxSize", _one_side),
    "LongestMaxSize": ("LongestMaxSize", _one_side),
    "PadIfNeeded": ("PadIfNeeded", _pad_if_needed),
    "RandomResizedCrop": (
        "RandomResizedCrop",
        lambda step: {"size": step.size, "scale": step.scale, "ratio": step.ratio},
    ),
    "CenterCrop": ("CenterCrop", _sides),
    "RandomCrop": (
        "RandomCrop",
        lambda step: (
            _sides(step)
            | {"padding": 0, "pad_if_needed": False, "padding_mode": "constant", "fill": 0}
        ),
    ),
    "Normalize": ("Normalize", lambda step: {"mean": step.mean, "std": step.std}),
    "ToFloat": ("ToDtype", lambda step: {"dtype": torch.float32, "scale": True}),
    "ToTensorV2": ("ToTensorV2", lambda step: {}),
}
