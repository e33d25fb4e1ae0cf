"""Reads the steps of a live transform of torchvision or timm. Source code is never read.

`read` flattens the transform and passes each step to its reader, which `_READERS` and
`_WHOLE_READERS` name (readers/). A step that is unknown, or does something else, raises
NotConvertibleError, or is carried out by itself (own_steps.py).
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from dali_pipes.adapters.transforms.own_steps import UnsizedError, carry_out
from dali_pipes.adapters.transforms.readers import geometry, policies, timm, values, whole
from dali_pipes.adapters.transforms.readers.albumentations import Alike, alike, parts_of
from dali_pipes.adapters.transforms.readers.common import StepReader, describe_step, refuse_altered
from dali_pipes.adapters.transforms.reading import (
    NotConvertibleError,
    ReadStep,
    TransformReading,
    is_of,
    refuse_unless,
)
from dali_pipes.errors import ConfigError

# steps that become one policy with a probability, which a RandomApply around them lowers
_APPLIED = (
    "ColorJitter",
    "GaussianBlur",
    "Grayscale",
    "RandomGrayscale",
    "RandomSolarize",
    "RandomPosterize",
    "RandomInvert",
    "RandomAutocontrast",
    "RandomEqualize",
    "RandomAdjustSharpness",
)
# steps that give an image its size or its place
_PLACING = (
    "Resize",
    "CenterCrop",
    "RandomCrop",
    "RandomResizedCrop",
    "RandomResizedCropAndInterpolation",
)
# steps that a plan has on whole images only
_ONLY_WHOLE = (
    *("RandomAffine", "RandomPerspective", "Pad"),
    # albumentations'
    *("LongestMaxSize", "PadIfNeeded", "RandomSizedCrop", "Resize with another kernel"),
)
# steps before the crop that a plan can do at a place of its own
_ANYWHERE = (
    *("RandomHorizontalFlip", "RandomVerticalFlip"),
    *("ToTensor", "MaybeToTensor", "PILToTensor", "MaybePILToTensor", "ToImage", "ToTensorV2"),
    *("ToPILImage", "ToDtype", "ConvertImageDtype", "Normalize"),
    "Grayscale(1)",
)
# timm's steps that are read; its other ones do something that a plan cannot do
_OF_TIMM = (
    "RandomResizedCropAndInterpolation",
    "MaybeToTensor",
    "MaybePILToTensor",
    "RandomErasing",
    "RandAugment",
)


def read(transform: Any) -> TransformReading:
    """Reads all steps of a transform.

    Raises:
        NotConvertibleError: a plan has no such step, or not at this place. If there are several
            such errors, it is the first one, but for steps that only lack a size of the images; its
            `steps` are all steps, with every refusal.
    """
    reading, refusals = TransformReading(), list[tuple[bool, NotConvertibleError]]()
    flat = list(_flatten(transform))
    # albumentations gets arrays, which are no PIL images
    reading.tensor = bool(flat) and is_of(flat[0], "albumentations")
    early = _count_early(flat)
    for place, step in enumerate(flat):
        reading.early = place < early
        before = reading.copy()
        try:
            read_as = alike(step)
            by = _reader(reading, read_as)(reading, read_as)
        except NotConvertibleError as error:
            try:
                by = carry_out(before, step)
                reading = before
            except ConfigError as reason:
                refusals.append((isinstance(reason, UnsizedError), error))
                by = (
                    f"REFUSED: {error.problem}, and the step cannot run as it is: {reason}; "
                    f"{error.instead}"
                )
        reading.steps.append(ReadStep(describe_step(step), by))

    if refusals:
        # a step that gives images their size, and isn't read, is what the others lack
        _, first = min(refusals, key=lambda refusal: refusal[0])
        first.steps = reading.steps
        raise first
    return reading


def _count_early(steps: list[Any]) -> int:
    """How many steps there are up to the last one that a plan has on the whole image only.

    A plan's own geometry is a resize and a crop, or a crop that is resized. What changes or moves
    pixels before that is done on the whole image, and so is what can be done there only, after a
    Resize.
    """
    names = list(map(_known_name, steps))
    places = [at for at, name in enumerate(names) if name in _PLACING]
    last = places[-1] if places else -1
    moves = [at for at in range(last) if names[at] not in _ANYWHERE]

    # Resize and the crop of it are one
    crops = last >= 0 and names[last] in ("CenterCrop", "RandomCrop")
    if crops and moves and names[moves[-1]] == "Resize":
        moves.pop()

    later = [at for at in range(last + 1, len(names)) if names[at] in _ONLY_WHOLE]
    if later and all(names[at] == "Resize" for at in places):
        moves = later
    return moves[-1] + 1 if moves else 0


def _known_name(step: Any) -> str:
    """The name of a step of a library, as the readers know it; "" of any other step."""
    if isinstance(step, whole.Padding):
        return "Pad"
    if is_of(step, "albumentations"):
        try:
            read_as = alike(step)
        except NotConvertibleError:
            return ""
        name = type(read_as).__name__
        other = name == "Resize" and read_as.interpolation != "bilinear"
        return "Resize with another kernel" if other else name
    if not (is_of(step, "torchvision") or is_of(step, "timm")):
        return ""
    name = type(step).__name__
    if name == "Grayscale" and step.num_output_channels == 1:
        return "Grayscale(1)"
    return _name_within(step) if name == "RandomApply" else name


def _name_within(step: Any) -> str:
    """The name of the only step of a RandomApply."""
    inner = list(step.transforms)
    alone = len(inner) == 1 and is_of(inner[0], "torchvision.transforms")
    return type(inner[0]).__name__ if alone else ""


def _reader(reading: TransformReading, step: Any) -> StepReader:
    """The function that reads this step."""
    name = type(step).__name__
    if isinstance(step, Alike):
        refuse_altered(step.original)
        return _reader_of(reading, name)
    if isinstance(step, whole.Padding):
        return whole.read_pad

    # a class of the user's own may have a name of torchvision's, so its module counts too
    ours = is_of(step, "torchvision.transforms") or (is_of(step, "timm.data") and name in _OF_TIMM)
    known = name in _READERS or (reading.early and name in _WHOLE_READERS)
    if not ours or not known:
        instead = "leave it out, or keep the DataLoader and pass it to from_torch, which runs it"
        raise NotConvertibleError(describe_step(step), "dali_pipes has no such step", instead)

    refuse_altered(step)
    # torchvision has a class of the same name that does something else
    own = _READERS.get(f"timm {name}") if is_of(step, "timm") else None
    return own or _reader_of(reading, name)


def _reader_of(reading: TransformReading, name: str) -> StepReader:
    early = _WHOLE_READERS.get(name) if reading.early else None
    return early or _READERS[name]


def _flatten(transform: Any) -> Iterator[Any]:
    """Yields the single steps of nested Composes, of nn.Sequential, and of the transforms that come
    with torchvision's weights; a crop with a padding of its own is two.
    """
    from torchvision import transforms

    name, ours = (
        type(transform).__name__,
        is_of(transform, "torchvision.transforms") or is_of(transform, "torch.nn"),
    )
    if isinstance(transform, (list, tuple)):
        raise NotConvertibleError(
            "a list of transforms", "several are applied to parts of a batch", "use one Compose"
        )

    if is_of(transform, "albumentations"):
        yield from parts_of(transform)
    elif ours and name in ("Compose", "Sequential"):
        for each in transform if isinstance(transform, nn.Sequential) else transform.transforms:
            yield from _flatten(each)
    # the transform of torchvision's weights: a module that calls functions, and has no steps
    elif ours and name == "ImageClassification":
        yield transforms.Resize(
            transform.resize_size, transform.interpolation, antialias=transform.antialias
        )
        yield transforms.CenterCrop(transform.crop_size)
        yield from (transforms.PILToTensor(), transforms.ConvertImageDtype(torch.float))
        yield transforms.Normalize(transform.mean, transform.std)
    elif ours and name == "RandomCrop":
        yield from whole.split_crop(transform)
    elif not (ours and name in ("Identity", "RGB", "ToPureTensor")):
        # images are RGB and plain tensors here
        yield transform


def _random_apply(reading: TransformReading, step: Any) -> str:
    inner, name = list(step.transforms), _name_within(step)

    own = [type(each) for each in inner if not is_of(each, "torchvision.transforms")]
    refuse_unless(
        not own,
        " and ".join(f"{kind.__module__}.{kind.__qualname__}" for kind in own),
        "it is no step of torchvision, and dali_pipes does not know what it does",
        "use torchvision's own, such as GaussianBlur(23, sigma=(0.1, 2.0)) for a Gaussian blur",
    )
    refuse_unless(
        name in (_WHOLE_READERS if reading.early else _APPLIED),
        describe_step(step),
        "only one step that changes colours or blurs can be applied at random",
        "apply each alone",
    )

    refuse_altered(inner[0])
    reading.applied = float(step.p)
    try:
        return _reader_of(reading, name)(reading, inner[0])
    finally:
        reading.applied = 1.0


# by the name of a step's class: those that a plan has on the whole image
_WHOLE_READERS: dict[str, StepReader] = {
    "RandomRotation": whole.read_rotation,
    "RandomAffine": whole.read_affine,
    "RandomPerspective": whole.read_perspective,
    "Resize": whole.read_resize,
    "SmallestMaxSize": whole.read_smallest,
    "LongestMaxSize": whole.read_longest,
    "PadIfNeeded": whole.read_pad_if_needed,
    "RandomSizedCrop": whole.read_sized_crop,
    "RandomRotate90": whole.read_turn,
    "Transpose": whole.read_turn,
    "Pad": whole.read_pad,
    "RandomHorizontalFlip": whole.read_flip,
    "RandomVerticalFlip": whole.read_flip,
}


# by the name of a step's class, which v1 and v2 mostly have in common
_READERS: dict[str, StepReader] = {
    "Resize": geometry.read_resize,
    "CenterCrop": geometry.read_center_crop,
    "RandomResizedCrop": geometry.read_resized_crop,
    "RandomResizedCropAndInterpolation": geometry.read_resized_crop,
    "RandomCrop": geometry.read_random_crop,
    "FiveCrop": geometry.refuse_crops,
    "TenCrop": geometry.refuse_crops,
    "RandomHorizontalFlip": geometry.make_flip_reader("flip"),
    "RandomVerticalFlip": geometry.make_flip_reader("vertical_flip"),
    "TrivialAugmentWide": policies.make_auto_augment_reader("num_magnitude_bins"),
    "RandAugment": policies.make_auto_augment_reader("num_ops", "magnitude", "num_magnitude_bins"),
    "AutoAugment": policies.make_auto_augment_reader(),
    "timm RandAugment": timm.read_rand_augment,
    "ColorJitter": policies.read_color_jitter,
    "Grayscale": policies.read_grayscale,
    "RandomGrayscale": policies.read_random_grayscale,
    "RandomSolarize": policies.read_solarize,
    "RandomPosterize": policies.read_posterize,
    "RandomInvert": policies.read_chance,
    "RandomAutocontrast": policies.read_chance,
    "RandomEqualize": policies.read_equalize,
    "RandomAdjustSharpness": policies.read_sharpness,
    "GaussianBlur": policies.read_blur,
    "RandomRotation": policies.read_rotation,
    "RandomApply": _random_apply,
    "ToTensor": values.read_to_tensor,
    "MaybeToTensor": values.read_to_tensor,
    "PILToTensor": values.read_to_bytes,
    "MaybePILToTensor": values.read_to_bytes,
    "ToImage": values.read_to_bytes,
    "ToPILImage": values.read_to_pil,
    "ToDtype": values.read_to_dtype,
    "ConvertImageDtype": values.read_to_dtype,
    "Normalize": values.read_normalize,
    "RandomErasing": policies.read_erasing,
    "timm RandomErasing": timm.read_erasing,
    "ToTensorV2": lambda reading, step: "images are tensors",
    "SmallestMaxSize": geometry.read_smallest_alone,
    **dict.fromkeys(
        ("LongestMaxSize", "PadIfNeeded", "RandomSizedCrop", "RandomRotate90", "Transpose"),
        whole.refuse_late,
    ),
}
