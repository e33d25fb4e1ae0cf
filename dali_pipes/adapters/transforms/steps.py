"""Reads the steps of a live transform of torchvision, timm or albumentations. Source code is never
read.

`read` flattens the transform and passes each step to its reader, which `_READERS` and
`_WHOLE_READERS` name (readers/). A step that is unknown, or does something else, raises
NotConvertibleError.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dali_pipes.adapters.transforms.readers import geometry, policies, timm, values, whole
from dali_pipes.adapters.transforms.readers.albumentations import alike, parts_of
from dali_pipes.adapters.transforms.reading import (
    KEEP,
    Alike,
    NotConvertibleError,
    ReadStep,
    StepReader,
    TransformReading,
    find_alteration,
    is_of,
    refuse_unless,
    title,
)


def read(transform: Any) -> TransformReading:
    """Reads all steps of a transform.

    Raises:
        NotConvertibleError: a plan has no such step, or not at this place. If there are several
            such errors, it is the first one; its `steps` are all steps, with every refusal.
    """
    reading, refusals = TransformReading(), list[NotConvertibleError]()
    parts = list(map(_name, _flatten(transform)))
    # albumentations gets arrays, which are no PIL images
    reading.tensor = bool(parts) and is_of(parts[0].step, "albumentations")
    early = _count_early([part.name for part in parts])
    for place, part in enumerate(parts):
        try:
            by = _read_part(reading, part, place < early)
        except NotConvertibleError as error:
            refusals.append(error)
            by = f"REFUSED: {error.problem}; {error.instead}"
        reading.steps.append(ReadStep(_describe(part.step), by))

    if refusals:
        refusals[0].steps = reading.steps
        raise refusals[0]
    return reading


@dataclass(frozen=True, slots=True)
class _Part:
    """
    Attributes:
        step: as the transform has it.
        name: by which the tables know it; "": they do not.
        read_as: what its reader gets.
        applied: the probability of a RandomApply around it.
        error: why it cannot be read.
    """

    step: Any
    name: str
    read_as: Any
    applied: float = 1.0
    error: NotConvertibleError | None = None


def _name(step: Any) -> _Part:
    """Finds the name of a step."""
    try:
        read_as = alike(step)
    except NotConvertibleError as error:
        return _Part(step, "", step, error=error)
    if isinstance(read_as, Alike):
        return _Part(step, read_as.name, read_as)

    # a class of the user's own may have a name of torchvision's, so its module counts too
    name = type(step).__name__
    if is_of(step, "timm.data"):
        return _Part(step, f"timm {name}", step)
    if not is_of(step, "torchvision.transforms"):
        return _Part(step, "", step)
    if name == "RandomApply" and len(step.transforms) == 1 and not find_alteration(step):
        (inner,) = step.transforms
        known = is_of(inner, "torchvision.transforms")
        return _Part(step, _full_name(inner) if known else "", inner, float(step.p))
    return _Part(step, _full_name(step), step)


def _full_name(step: Any) -> str:
    one = is_of(step, "torchvision.transforms", "Grayscale") and step.num_output_channels == 1
    return "Grayscale(1)" if one else type(step).__name__


def _count_early(names: list[str]) -> int:
    """How many steps there are up to the last one that a plan has on the whole image only.

    A plan's own geometry is a resize and a crop, or a crop that is resized. What moves pixels
    before that is done on the whole image, and so is what can be done there only, after a Resize.
    """
    places = [at for at, name in enumerate(names) if name in _PLACING]
    last = places[-1] if places else -1
    moves = [at for at in range(last) if names[at] in _WHOLE_READERS and names[at] not in _FLIPS]
    # Resize and the crop of it are one
    if moves and names[last] in ("CenterCrop", "RandomCrop") and names[moves[-1]] == "Resize":
        moves.pop()

    later = [at for at in range(last + 1, len(names)) if names[at] in _ONLY_WHOLE]
    if later and all(names[at] == "Resize" for at in places):
        moves = later
    return moves[-1] + 1 if moves else 0


def _read_part(reading: TransformReading, part: _Part, early: bool) -> str:
    if part.error:
        raise part.error

    is_whole = early and part.name in _WHOLE_READERS
    reader = _WHOLE_READERS[part.name] if is_whole else _READERS.get(part.name)
    can_be_applied = part.step is part.read_as or is_whole or part.name in _COLOURS
    if not reader or not (can_be_applied or isinstance(part.read_as, Alike)):
        name = title(part.step) if part.name else _describe(part.step)
        instead = _INSTEAD.get(part.name, KEEP)
        raise NotConvertibleError(name, "dali_pipes has no such step here", instead)

    what = find_alteration(part.step) or find_alteration(part.read_as)
    refuse_unless(not what, part.step, f"it has {what}, which may do anything")
    reading.applied = part.applied
    return reader(reading, part.read_as)


def _describe(step: Any) -> str:
    # some transforms print themselves over several lines
    text = getattr(step, "__name__", " ".join(repr(step).split()))
    return text if len(text) <= 150 else f"{type(step).__name__}(…)"


def _flatten(transform: Any) -> Iterator[Any]:
    """Yields the single steps of nested Composes, of nn.Sequential, and of the transforms that come
    with torchvision's weights; a crop with a padding of its own is two.
    """
    from torchvision import transforms

    name = type(transform).__name__
    ours = is_of(transform, "torchvision.transforms") or is_of(transform, "torch.nn")
    problem = "several are applied to parts of a batch"
    is_list = isinstance(transform, (list, tuple))
    refuse_unless(not is_list, "a list of transforms", problem, "use one Compose")

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
        yield from _split_crop(transform)
    elif not (ours and name in ("Identity", "RGB", "ToPureTensor")):
        # images are RGB and plain tensors here
        yield transform


def _split_crop(step: Any) -> list[Any]:
    """A RandomCrop as its padding and its crop, if it pads with anything but black."""
    from torchvision import transforms

    try:
        if step.pad_if_needed or not step.padding or whole.is_black(step) or find_alteration(step):
            return [step]
        padding, fill = whole.read_padding(step), whole.read_fill(step)
    except NotConvertibleError:
        # its reader refuses it as well
        return [step]
    return [transforms.Pad(padding, fill, step.padding_mode), transforms.RandomCrop(step.size)]


# Names of steps: of their classes, which v1 and v2 mostly have in common

# steps that give an image its size or its place
_PLACING = (
    *("Resize", "CenterCrop", "RandomCrop", "RandomResizedCrop"),
    "timm RandomResizedCropAndInterpolation",
)
_FLIPS = ("RandomHorizontalFlip", "RandomVerticalFlip")
# steps that a plan has on whole images only
_ONLY_WHOLE = (
    *("RandomAffine", "RandomPerspective", "Pad"),
    *("LongestMaxSize", "PadIfNeeded", "Resize of OpenCV, bicubic"),
)
_WHOLE_READERS: dict[str, StepReader] = {
    "RandomRotation": whole.read_rotation,
    "RandomAffine": whole.read_affine,
    "RandomPerspective": whole.read_perspective,
    "Resize": whole.read_resize,
    "Resize of OpenCV, bicubic": whole.make_resize_reader(),
    "SmallestMaxSize": whole.make_resize_reader(rounding="nearest"),
    "LongestMaxSize": whole.make_resize_reader(rounding="nearest", side="longer"),
    "PadIfNeeded": whole.read_pad_if_needed,
    "Pad": whole.read_pad,
    **dict.fromkeys(_FLIPS, whole.read_flip),
}
# those that become one policy with a probability, which a RandomApply around them lowers
_COLOURS: dict[str, StepReader] = {
    "ColorJitter": policies.read_color_jitter,
    "Grayscale": policies.read_gray_colours,
    "RandomGrayscale": policies.read_random_grayscale,
    "RandomSolarize": policies.read_solarize,
    "RandomPosterize": policies.make_reader("bits", "p"),
    "RandomInvert": policies.make_reader("p"),
    "RandomAutocontrast": policies.make_reader("p"),
    "RandomEqualize": policies.make_reader("p", equalize="torchvision"),
    "RandomAdjustSharpness": policies.make_reader("sharpness_factor", "p"),
    "GaussianBlur": policies.read_blur,
}
_READERS: dict[str, StepReader] = {
    "Resize": geometry.read_resize,
    "CenterCrop": geometry.read_center_crop,
    "RandomResizedCrop": geometry.read_resized_crop,
    "timm RandomResizedCropAndInterpolation": geometry.read_resized_crop,
    "RandomCrop": geometry.read_random_crop,
    "RandomHorizontalFlip": geometry.make_flip_reader("flip"),
    "RandomVerticalFlip": geometry.make_flip_reader("vertical_flip"),
    **_COLOURS,
    "Grayscale(1)": policies.read_one_channel,
    "RandomRotation": policies.read_rotation,
    "TrivialAugmentWide": policies.make_auto_augment_reader("num_magnitude_bins"),
    "RandAugment": policies.make_auto_augment_reader("num_ops", "magnitude", "num_magnitude_bins"),
    "AutoAugment": policies.make_auto_augment_reader(),
    "timm RandAugment": timm.read_rand_augment,
    "RandomErasing": policies.read_erasing,
    "timm RandomErasing": timm.read_erasing,
    **dict.fromkeys(("ToTensor", "timm MaybeToTensor"), values.read_to_tensor),
    **dict.fromkeys(
        ("PILToTensor", "timm MaybePILToTensor", "ToImage", "ToTensorV2"), values.read_to_bytes
    ),
    "ToPILImage": values.read_to_pil,
    **dict.fromkeys(("ToDtype", "ConvertImageDtype"), values.read_to_dtype),
    "Normalize": values.read_normalize,
}
_INSTEAD = dict.fromkeys(("FiveCrop", "TenCrop"), "use dp.TenCropTransform")
