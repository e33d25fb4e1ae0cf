"""The steps of albumentations in the words of torchvision, which the readers of `steps` know.

`parts_of` takes a Compose apart, and `alike` makes of a step one that has the name and attributes
of torchvision's, or raises a NotConvertibleError. OpenCV's numbers for interpolations are in
`_INTERPOLATIONS`, since OpenCV itself is not needed here.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dali_pipes.adapters.transforms.reading import NotConvertibleError, is_of, refuse_unless

_INTERPOLATIONS = {0: "nearest", 1: "bilinear", 2: "bicubic", 3: "area", 4: "lanczos"}
# of OpenCV, as the padding modes of torchvision and NumPy
_BORDERS = {0: "constant", 1: "edge", 2: "symmetric", 4: "reflect"}
_WHOLES = ("Compose", "Sequential")


class Alike:
    """A step of albumentations as one of torchvision; subclasses have the name of that one.

    Attributes:
        original: albumentations' step.
    """

    def __init__(self, original: Any, **options: Any):
        self.original = original
        self.__dict__.update(options)


def parts_of(whole: Any) -> Iterator[Any]:
    """Yields the single steps of albumentations' Compose that is always applied, and any other step
    as it is.
    """
    if type(whole).__name__ not in _WHOLES:
        yield whole
        return

    _refuse_old(whole)
    name = f"albumentations' {type(whole).__name__}"
    moved = [kind for kind in ("bboxes", "keypoints") if kind in getattr(whole, "processors", {})]
    refuse_unless(
        not moved, name, f"it moves {' and '.join(moved)}", "use build_loader (docs/objects.md)"
    )
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

    _refuse_old(step)
    name = type(step).__name__
    if name in _WHOLES:
        _always(step)
    if name not in _READERS:
        raise NotConvertibleError(
            f"albumentations' {name}",
            "dali_pipes has no such step",
            "write the same with steps of torchvision or albumentations that docs/steps.md "
            "lists, as far as there are such (1 line); pixels then differ as those of the two do",
        )
    return _READERS[name](step)


def _refuse_old(step: Any) -> None:
    # 1.x has other attributes, and draws of global random states
    version = sys.modules["albumentations"].__version__ if is_of(step, "albumentations") else "2"
    refuse_unless(
        int(version.partition(".")[0]) >= 2,
        f"albumentations' {type(step).__name__}",
        f"albumentations {version} is installed, and 2.0.8 and later are read",
        "pip install 'albumentations>=2.0.8'",
    )


def _like(name: str, step: Any, **options: Any) -> Alike:
    # a class of torchvision's name, by which the readers know it and errors name it
    kind: type[Alike] = type(name, (Alike,), {})
    return kind(step, **options)


def _always(step: Any) -> None:
    refuse_unless(
        step.p == 1,
        f"albumentations' {type(step).__name__}",
        f"it is applied with p={step.p}, so images have several sizes or ranges",
        "set p=1",
    )


def _interpolation(step: Any, *more: str) -> str:
    """The interpolation of a step: bilinear, or one of `more`."""
    name, kind = type(step).__name__, _INTERPOLATIONS.get(step.interpolation, "another")
    area = getattr(step, "area_for_downscale", None)
    refuse_unless(
        kind in ("bilinear", *more) and not area,
        f"albumentations' {name}",
        f"interpolation={kind}" + (f", area_for_downscale={area}" if area else ""),
        "use cv2.INTER_LINEAR, albumentations' default",
    )
    return kind


def _resize(step: Any) -> Alike:
    _always(step)
    size, kind = [step.height, step.width], _interpolation(step, "bicubic")
    return _like("Resize", step, size=size, max_size=None, interpolation=kind)


def _one_side(step: Any) -> Alike:
    _always(step)
    name, kind = type(step).__name__, _interpolation(step, "bicubic")
    refuse_unless(
        isinstance(step.max_size, int),
        f"albumentations' {name}",
        f"max_size={step.max_size}, max_size_hw={step.max_size_hw}",
        "give it one max_size",
    )
    return _like(name, step, size=step.max_size, max_size=None, interpolation=kind)


def _pad_if_needed(step: Any) -> Alike:
    _always(step)
    name, mode = "albumentations' PadIfNeeded", _BORDERS.get(step.border_mode)
    plain = step.position == "center" and step.min_height and step.min_width and mode
    refuse_unless(
        plain,
        name,
        f"position={step.position}, min_height={step.min_height}, min_width={step.min_width}, "
        f"border_mode={step.border_mode}",
        "give it a min_height and a min_width, position='center' and another border than WRAP",
    )
    numbers = step.fill if isinstance(step.fill, (list, tuple)) else [step.fill]
    whole = all(each in range(256) for each in numbers) and len(numbers) in (1, 3)
    refuse_unless(whole, name, f"fill={step.fill}", "use one number from 0 to 255, or three")
    fill = tuple(map(int, numbers)) * (3 // len(numbers))
    size = (step.min_height, step.min_width)
    return _like("PadIfNeeded", step, size=size, padding_mode=mode, fill=fill)


def _sized_crop(step: Any) -> Alike:
    _always(step)
    options = {"size": step.size, "min_max_height": tuple(step.min_max_height)}
    options |= {"w2h_ratio": float(step.w2h_ratio)}
    return _like("RandomSizedCrop", step, interpolation=_interpolation(step, "bicubic"), **options)


def _resized_crop(step: Any) -> Alike:
    _always(step)
    options = {"size": step.size, "scale": step.scale, "ratio": step.ratio}
    return _like("RandomResizedCrop", step, interpolation=_interpolation(step), **options)


def _center_crop(step: Any) -> Alike:
    _always(step)
    _without_padding(step)
    return _like("CenterCrop", step, size=(step.height, step.width))


def _random_crop(step: Any) -> Alike:
    _always(step)
    _without_padding(step)
    options = {"padding": None, "pad_if_needed": False, "padding_mode": "constant", "fill": 0}
    return _like("RandomCrop", step, size=(step.height, step.width), **options)


def _without_padding(step: Any) -> None:
    name = f"albumentations' {type(step).__name__}"
    refuse_unless(not step.pad_if_needed, name, "pad_if_needed is set", "leave it out")


def _with_chance(name: str) -> Callable[[Any], Alike]:
    return lambda step: _like(name, step, p=step.p)


def _normalize(step: Any) -> Alike:
    _always(step)
    plain = step.normalization == "standard" and step.max_pixel_value == 255
    refuse_unless(
        plain,
        "albumentations' Normalize",
        f"normalization={step.normalization}, max_pixel_value={step.max_pixel_value}",
        "use standard, and 255",
    )
    return _like("Normalize", step, mean=step.mean, std=step.std)


def _to_float(step: Any) -> Alike:
    _always(step)
    whole = step.max_value in (None, 255)
    refuse_unless(whole, "albumentations' ToFloat", f"max_value={step.max_value}", "use 255")
    return _like("ToDtype", step, dtype=torch.float32, scale=True)


def _to_tensor(step: Any) -> Alike:
    _always(step)
    return _like("ToTensorV2", step)


# by the name of a step's class
_READERS: dict[str, Callable[[Any], Alike]] = {
    "Resize": _resize,
    "SmallestMaxSize": _one_side,
    "LongestMaxSize": _one_side,
    "PadIfNeeded": _pad_if_needed,
    "RandomSizedCrop": _sized_crop,
    "RandomResizedCrop": _resized_crop,
    "CenterCrop": _center_crop,
    "RandomCrop": _random_crop,
    "HorizontalFlip": _with_chance("RandomHorizontalFlip"),
    "VerticalFlip": _with_chance("RandomVerticalFlip"),
    "RandomRotate90": _with_chance("RandomRotate90"),
    "Transpose": _with_chance("Transpose"),
    "Normalize": _normalize,
    "ToFloat": _to_float,
    "ToTensorV2": _to_tensor,
}
