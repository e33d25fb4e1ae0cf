"""Reads the steps of a live transform of torchvision or timm. Source code is never read.

`read` flattens the transform and passes each step to its function in `_READERS`. That function
checks that a plan can do the same at this place, notes it in the `Reading`, and returns in words
what carries the step out. A step that is unknown, or does something else, raises
NotConvertibleError.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from dali_pipes.adapters.from_torch.albumentations_steps import Alike, alike, parts_of
from dali_pipes.adapters.from_torch.own_steps import carry_out
from dali_pipes.adapters.from_torch.reading import (
    Affine,
    NotConvertibleError,
    Reading,
    Size,
    Step,
    is_of,
    refuse_unless,
)
from dali_pipes.adapters.from_torch.recording.steps import (
    is_library_code,
    is_transform_class,
)
from dali_pipes.errors import ConfigError
from dali_pipes.plan.augment import timm_ops
from dali_pipes.plan.augment.policies.timm_rand_augment import INCREASING, PLAIN, WEIGHTS
from dali_pipes.plan.transforms.base import RANDOM

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
# steps that move pixels otherwise, and those of them that a plan has on whole images only
_ONLY_WHOLE = ("RandomAffine", "RandomPerspective")
_WARPS = ("RandomRotation", *_ONLY_WHOLE)
# timm's steps that are read; its other ones do something that a plan cannot do
_OF_TIMM = (
    "RandomResizedCropAndInterpolation",
    "MaybeToTensor",
    "MaybePILToTensor",
    "RandomErasing",
    "RandAugment",
)
_EQUALIZE = (
    "; Equalize is that of OpenCV and DALI, on average 2.7 of 255 from torchvision's "
    "(docs/augmentation.md)"
)
_KEEP = "else keep your DataLoader"
_AS_OURS = (
    "put the steps in this order if your training may change so: resize and crop, flips, "
    f"augmentation, ToTensor, Normalize, RandomErasing; {_KEEP}"
)
# A step that we do not have can be left to the collate function, once images have one size. timm's
# steps take PIL images only.
_TO_COLLATE = (
    "end the transform before it with PILToTensor(), and apply it and what follows to {} in the "
    "collate function (about 4 lines), which runs in the training process, so measure"
)


def read(transform: Any) -> Reading:
    """Reads all steps of a transform.

    Raises:
        NotConvertibleError: a plan has no such step, or not at this place. If there are several
            such errors, it is the first one; its `steps` are all steps, with every refusal.
    """
    return read_steps(_flatten(transform))


def read_steps(steps: Iterable[Any]) -> Reading:
    """Reads steps one after the other, as `read` does."""
    reading, refusals = Reading(), list[NotConvertibleError]()
    flat = [each for outer in steps for each in _flatten(outer)]
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
                refusals.append(error)
                by = f"REFUSED: {error.problem}; nor can it run as it is: {reason}; {error.instead}"
        reading.steps.append(Step(_text(step), by))

    if refusals:
        refusals[0].steps = reading.steps
        raise refusals[0]
    return reading


def _count_early(steps: list[Any]) -> int:
    """How many steps there are up to the last one that a plan has on the whole image only.

    A plan's own geometry is a resize and a crop, or a crop that is resized. What moves pixels
    before that is done on the whole image, and so is what can be done there only, after a Resize.
    """
    names = [
        type(step).__name__ if is_of(step, "torchvision") or is_of(step, "timm") else ""
        for step in steps
    ]
    names = [
        _name_within(step) if name == "RandomApply" else name
        for step, name in zip(steps, names, strict=True)
    ]
    places = [at for at, name in enumerate(names) if name in _PLACING]
    last = places[-1] if places else -1
    moves = [at for at in range(last) if names[at] in (*_PLACING, *_WARPS)]

    # Resize and the crop of it are one
    crops = last >= 0 and names[last] in ("CenterCrop", "RandomCrop")
    if crops and moves and names[moves[-1]] == "Resize":
        moves.pop()

    later = [at for at in range(last + 1, len(names)) if names[at] in _ONLY_WHOLE]
    if later and all(names[at] == "Resize" for at in places):
        moves = later
    return moves[-1] + 1 if moves else 0


def _name_within(step: Any) -> str:
    """The name of the only step of a RandomApply."""
    inner = list(step.transforms)
    alone = len(inner) == 1 and is_of(inner[0], "torchvision.transforms")
    return type(inner[0]).__name__ if alone else ""


def read_prefetched(steps: Iterable[Any], loader: Any) -> Reading:
    """Reads steps and what timm's PrefetchLoader does after it: cast, normalize, erase
    (timm/data/loader.py).
    """
    reading = read_steps(steps)
    uint8 = reading.tensor and not reading.floats
    refuse_unless(
        uint8, "PrefetchLoader", "its images are not uint8", "use timm's create_transform"
    )

    kinds = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
    wrong = f"img_dtype={loader.img_dtype}"
    refuse_unless(
        loader.img_dtype in kinds, "PrefetchLoader", wrong, "use float32, float16 or bfloat16"
    )

    # the PrefetchLoader keeps them in steps of 255
    means, stds = ((each.double().flatten() / 255).tolist() for each in (loader.mean, loader.std))
    reading.floats, dtype = True, kinds[loader.img_dtype]
    reading.normalized = {"mean": tuple(means), "std": tuple(stds), "dtype": dtype}
    reading.steps.append(Step("PrefetchLoader", f"dtype={dtype}, mean and std"))

    if loader.random_erasing:
        reading.steps.append(
            Step(_text(loader.random_erasing), _erasing(reading, loader.random_erasing))
        )
    return reading


def _reader(reading: Reading, step: Any) -> Callable[[Reading, Any], str]:
    """The function that reads this step."""
    name = type(step).__name__
    if isinstance(step, Affine):
        return _affine_code
    if isinstance(step, Alike):
        _refuse_altered(step.original)
        return _READERS[name]

    # a class of the user's own may have a name of torchvision's, so its module counts too
    ours = is_of(step, "torchvision.transforms") or (is_of(step, "timm.data") and name in _OF_TIMM)
    known = name in _READERS or (reading.early and name in _WHOLE_READERS)
    if not ours or not known:
        picture = "to_pil_image(image)" if is_of(step, "timm") else "each image"
        instead = _TO_COLLATE.format(picture)
        if not (reading.crop or isinstance(reading.resize, tuple)):
            instead = f"move it behind the crop if your training may change so, then {instead}"
        raise NotConvertibleError(_text(step), "our plan has no such step", instead)

    _refuse_altered(step)
    # torchvision has a class of the same name that does something else
    own = _READERS.get(f"timm {name}") if is_of(step, "timm") else None
    return own or _reader_of(reading, name)


def _reader_of(reading: Reading, name: str) -> Callable[[Reading, Any], str]:
    early = _WHOLE_READERS.get(name) if reading.early else None
    return early or _READERS[name]


def _refuse_altered(step: Any) -> None:
    """Refuses a step of a library whose methods the program has replaced, or that has hooks."""
    own = vars(step) if hasattr(step, "__dict__") else {}
    hooks = "a hook" * any(own.get(name) for name in ("_forward_hooks", "_forward_pre_hooks"))
    methods = {
        name: getattr(member, "__func__", member)
        for kind in type(step).__mro__[::-1]
        # libraries and programs put methods of their own into torch.nn.Module
        if is_transform_class(kind)
        for name, member in vars(kind).items()
        if isinstance(getattr(member, "__func__", member), FunctionType)
    }
    replaced = [
        name
        for name, method in methods.items()
        if name in own or not (name.startswith("__") or is_library_code(method))
    ]
    what = hooks or (f"a {replaced[0]} of its own" if replaced else "")
    refuse_unless(
        not what,
        type(step).__name__,
        f"it has {what}, which may do anything",
        "write that as a transform of its own",
    )


def _flatten(transform: Any) -> Iterator[Any]:
    """Yields the single steps of nested Composes, of nn.Sequential, and of the transforms that come
    with torchvision's weights.
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
    elif not (ours and name in ("Identity", "RGB", "ToPureTensor")):
        # images are RGB and plain tensors here
        yield transform


def _text(step: Any) -> str:
    # some transforms print themselves over several lines
    text = getattr(step, "__name__", " ".join(repr(step).split()))
    return text if len(text) <= 150 else f"{type(step).__name__}(…)"


def _given(options: dict[str, Any]) -> str:
    def short(value: Any) -> Any:
        return (
            tuple(map(short, value))
            if isinstance(value, tuple)
            else round(value, 4)
            if isinstance(value, float)
            else value
        )

    return ", ".join(f"{name}={short(value)}" for name, value in options.items())


def _refuse_after(wrong: Any, step: Any, others: str, instead: str = _AS_OURS) -> None:
    problem = f"it comes after {others}, in another order of steps than ours"
    refuse_unless(not wrong, type(step).__name__, problem, instead)


def _note_geometry(reading: Reading, step: Any) -> None:
    """Checks the place of a step that moves pixels, and keeps the step for `compare_draws`."""
    _refuse_after(
        reading.floats or reading.augment or reading.erased, step, "ToTensor or augmentation"
    )
    reading.geometry.append(step)


def _read_interpolation(reading: Reading, step: Any) -> str:
    """Reads the interpolation of the plan's resize, and returns how it differs for tensors."""
    # timm's "random", one of the two with equal chances
    choices = step.interpolation
    if isinstance(choices, (tuple, list)) and not reading.tensor:
        kinds = sorted(str(getattr(mode, "value", mode)) for mode in choices)
        if kinds == ["bicubic", "bilinear"]:
            reading.interpolation = RANDOM
            return ""
    if isinstance(step, Alike):
        mode: str = vars(step)["interpolation"]
        reading.interpolation, reading.antialias = mode, False
        return ", antialias=False as OpenCV resizes"
    reading.interpolation, note = _interpolation_of(reading, step)
    return note


def _interpolation_of(reading: Reading, step: Any) -> tuple[str, str]:
    """Returns the interpolation of a resize, and how a plan's differs from it for tensors."""
    name, mode = type(step).__name__, step.interpolation
    refuse_unless(
        not isinstance(mode, (tuple, list)),
        name,
        "its interpolation is random, and not of bilinear and bicubic for PIL images",
        f"choose bilinear or bicubic if your training may change so (1 line); {_KEEP}",
    )

    kind = str(getattr(mode, "value", mode))
    # Pillow, which resizes PIL images, takes the pixel at the centre; torchvision calls that
    # nearest-exact
    if kind == "nearest" and not reading.tensor:
        kind = "nearest-exact"
    known = kind in ("bilinear", "bicubic", "nearest-exact")
    refuse_unless(known, name, f"interpolation={kind}", "choose bilinear, bicubic or nearest-exact")

    # PIL images are always antialiased; for tensors it is an option of the step
    smooth = (
        kind == "nearest-exact" or not reading.tensor or getattr(step, "antialias", True) is True
    )
    refuse_unless(
        smooth,
        name,
        "antialias=False aliases, and this plan's resize does not",
        "set antialias=True",
    )

    if not reading.tensor:
        return kind, ""
    where = "half-way between two pixels" if kind == "nearest-exact" else "in the last bits"
    return kind, f"; of PIL images, which differs from that of tensors {where}"


def _simplify_size(size: Any) -> Size:
    """Returns a size as one number if its sides are equal, else as (height, width)."""
    if isinstance(size, int):
        return size
    height, width = (int(each) for each in (size if len(size) == 2 else [size[0]] * 2))
    return height if height == width else (height, width)


def _resize(reading: Reading, step: Any) -> str:
    _note_geometry(reading, step)
    _refuse_after(
        reading.crop or reading.resize is not None, step, "a resize or a crop", "resize once, first"
    )
    _check_size(step)

    note = _read_interpolation(reading, step)
    reading.resize = _sides_of(step)
    return f"resize={reading.resize}, {reading.interpolation}{note}"


def _check_size(step: Any) -> None:
    refuse_unless(
        step.max_size is None,
        "Resize",
        "max_size leaves images of many sizes",
        "add a crop and leave max_size out",
    )
    refuse_unless(step.size is not None, "Resize", "it has no size", "give it one")


def _sides_of(step: Any) -> Size:
    """The size of a Resize: the length of the shorter side, or height and width."""
    sides = [step.size] if isinstance(step.size, int) else [int(each) for each in step.size]
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


def _crop(reading: Reading, step: Any, kind: str, **options: Any) -> str:
    """Reads what all crops have in common.

    Args:
        kind: "center", "resized" or "random", as `Reading.built` knows it.
        options: our transform's options for this kind, without the size.
    """
    _note_geometry(reading, step)
    name = type(step).__name__
    refuse_unless(
        not reading.crop,
        name,
        "it is the second crop, and our plan has one",
        f"crop once if your training may change so; {_KEEP}",
    )

    if kind == "center" and isinstance(step, Alike):
        _check_room(reading, step)
    reading.crop, reading.options = kind, {"size": _simplify_size(step.size), **options}
    return _given(reading.options)


def _check_room(reading: Reading, step: Any) -> None:
    """Checks that albumentations' CenterCrop is torchvision's, which rounds halves to even."""
    whole, name = reading.resize, "albumentations' CenterCrop"
    if not isinstance(whole, tuple):
        raise NotConvertibleError(name, "no Resize is before it", "resize to (height, width)")
    room = [before - after for before, after in zip(whole, step.size, strict=True)]
    refuse_unless(
        all(each >= 0 and each % 4 != 3 for each in room),
        name,
        f"it cuts {room} pixels off, of which it leaves the odd one at the end",
        "cut an even number of pixels off",
    )


def _center_crop(reading: Reading, step: Any) -> str:
    # before a random crop it makes no difference
    flipped = {"flip_before_crop": True} if reading.flips else {}
    return f"central crop, {_crop(reading, step, 'center', **flipped)}"


def _resized_crop(reading: Reading, step: Any) -> str:
    wrong = "it comes after a Resize, which makes two resizings, and our plan has one"
    instead = f"remove the Resize if your training may change so (1 line); {_KEEP}"
    refuse_unless(reading.resize is None, type(step).__name__, wrong, instead)

    note = _read_interpolation(reading, step)
    made = _crop(reading, step, "resized", scale=tuple(step.scale), ratio=tuple(step.ratio))
    return f"TrainTransform: {made}, {reading.interpolation}{note}"


def _random_crop(reading: Reading, step: Any) -> str:
    # what is outside of the image is black in a plan
    _check_fill(step, "RandomCrop")
    refuse_unless(
        step.padding_mode == "constant",
        "RandomCrop",
        f"padding_mode={step.padding_mode!r}",
        'use "constant", black',
    )

    padding = step.padding or 0
    if isinstance(padding, Sequence):
        padding = tuple(padding)
        # v2 keeps left, right, top, bottom (v2/_geometry.py); v1 left, top, right, bottom
        if type(step).__module__.startswith("torchvision.transforms.v2."):
            padding = padding[0], padding[2], padding[1], padding[3]
        padding = padding[0] if len(set(padding)) == 1 else padding

    # flipped first, the wider margin would be on the other side
    turned = (
        reading.flips
        and isinstance(padding, tuple)
        and len(padding) == 4
        and padding[:2] != padding[2:]
    )
    refuse_unless(
        not turned,
        "RandomCrop",
        "its padding is lopsided, and a flip comes before it",
        "flip after the crop",
    )

    made = _crop(reading, step, "random", padding=padding, pad_if_needed=bool(step.pad_if_needed))
    return f"RandomCropTransform: {made}"


def _flip(option: str) -> Callable[[Reading, Any], str]:
    def read(reading: Reading, step: Any) -> str:
        refuse_unless(
            option not in reading.flips,
            type(step).__name__,
            "it is there twice",
            "flip once, with the probability p + q - 2 p q (1 line)",
        )
        refuse_unless(
            not reading.options.get("flip_before_crop"),
            type(step).__name__,
            "it comes after CenterCrop, and the other flip before it",
            "put both on one side",
        )
        # after colours and blur it makes no difference, so these may come before it
        moved = reading.affine or reading.erased or reading.has_functions
        _refuse_after(moved, step, "an operation that moves pixels")
        reading.flips[option] = float(step.p)
        reading.geometry.append(step)
        return f"{option}={step.p}"

    return read


def _policy(reading: Reading, step: Any, name: str, **options: Any) -> str:
    """Notes a policy of `augment` with its options."""
    late = reading.floats or reading.erased or reading.has_functions
    _refuse_after(late, step, "ToTensor or RandomErasing")
    if reading.applied < 1:
        options["p"] = reading.applied * options.get("p", 1.0)
    reading.augment.append({"name": name, **options})
    # torchvision keeps the edges of PIL images sharp (docs/from_torch.md)
    edges = options.get("interpolation") == "bilinear" and not (reading.tensor or "fill" in options)
    note = (
        "; edges blend with the black around them, as torchvision's of tensors do" if edges else ""
    )
    return f"augment: {name}({_given(options)}){note}"


def _affine(step: Any) -> str:
    """Returns the interpolation of a step that rotates or shears, and checks its fill."""
    name, mode = type(step).__name__, str(getattr(step.interpolation, "value", step.interpolation))
    refuse_unless(
        mode in ("nearest", "bilinear"), name, f"interpolation={mode}", "use nearest or bilinear"
    )
    _check_fill(step, name)
    return mode


def _check_fill(step: Any, name: str) -> None:
    fill = getattr(step, "fill", None)
    # v2 has a dict of fills by type, in which that of masks says nothing about images; either
    # version may have one number for each channel
    values = (
        [each for kind, each in fill.items() if getattr(kind, "__name__", "") != "Mask"]
        if isinstance(fill, dict)
        else list(fill)
        if isinstance(fill, (list, tuple))
        else [fill]
    )

    refuse_unless(
        all(not value for value in values),
        name,
        f"fill={fill}",
        "areas from outside the image are black here: fill=0",
    )


def _auto_augment(*names: str) -> Callable[[Reading, Any], str]:
    """Returns the reader of AutoAugment or one of its successors, which have these options."""

    def read(reading: Reading, step: Any) -> str:
        mode, reading.affine = _affine(step), True

        policy = getattr(step, "policy", "imagenet")
        policy = str(getattr(policy, "value", policy))
        refuse_unless(
            policy == "imagenet", "AutoAugment", f"policy={policy}", "use that of ImageNet"
        )

        options = {name: getattr(step, name) for name in names}
        return (
            _policy(reading, step, type(step).__name__, **options, interpolation=mode) + _EQUALIZE
        )

    return read


def _color_jitter(reading: Reading, step: Any) -> str:
    found = {}
    # torchvision keeps v as [max(0, 1 - v), 1 + v]
    for name in ("brightness", "contrast", "saturation"):
        low, high = getattr(step, name) or (1.0, 1.0)
        # low is max(0, 1 - v) and high is 1 + v for one v
        fits = math.isclose(low, max(0.0, 2 - high))
        refuse_unless(
            fits,
            "ColorJitter",
            f"{name} is drawn from [{low}, {high}]",
            "ours is drawn from [max(0, 1 - v), 1 + v]",
        )
        found[name] = float(high) - 1

    low, high = step.hue or (0.0, 0.0)
    refuse_unless(
        math.isclose(low, -high),
        "ColorJitter",
        f"hue is drawn from [{low}, {high}]",
        "ours is drawn from [-hue, hue]",
    )
    # rounded, since high - 1 has the rounding error of 1 + v
    found = {
        name: round(value, 12) for name, value in (found | {"hue": float(high)}).items() if value
    }

    return (
        _policy(reading, step, "ColorJitter", **found) if found else "nothing: it changes nothing"
    )


def _grayscale(reading: Reading, step: Any) -> str:
    three = step.num_output_channels == 3
    refuse_unless(
        three,
        "Grayscale",
        "images of one channel",
        "use Grayscale(3), and a model that takes three channels",
    )
    return _policy(reading, step, "RandomGrayscale", p=1.0)


def _random_grayscale(reading: Reading, step: Any) -> str:
    return _policy(reading, step, "RandomGrayscale", p=float(step.p))


def _solarize(reading: Reading, step: Any) -> str:
    # values from the threshold on are inverted, and values are whole numbers from 0 to 255
    threshold = min(max(math.ceil(step.threshold), 0), 256)
    return _policy(reading, step, "RandomSolarize", threshold=threshold, p=float(step.p))


def _posterize(reading: Reading, step: Any) -> str:
    return _policy(reading, step, "RandomPosterize", bits=int(step.bits), p=float(step.p))


def _sharpness(reading: Reading, step: Any) -> str:
    factor = float(step.sharpness_factor)
    return _policy(reading, step, "RandomAdjustSharpness", sharpness_factor=factor, p=float(step.p))


def _alone(note: str = "") -> Callable[[Reading, Any], str]:
    """Returns the reader of an operation that has no option but its probability."""

    def read(reading: Reading, step: Any) -> str:
        return _policy(reading, step, type(step).__name__, p=float(step.p)) + note

    return read


def _blur(reading: Reading, step: Any) -> str:
    kernel = set(step.kernel_size)
    refuse_unless(
        len(kernel) == 1,
        "GaussianBlur",
        f"kernel_size={tuple(step.kernel_size)}",
        "use a square kernel",
    )

    return _policy(
        reading,
        step,
        "GaussianBlur",
        kernel_size=kernel.pop(),
        sigma=tuple(map(float, step.sigma)),
    )


def _rotation(reading: Reading, step: Any) -> str:
    low, high = step.degrees
    refuse_unless(
        low == -high,
        "RandomRotation",
        f"degrees={(low, high)}",
        "ours is drawn from [-degrees, degrees]",
    )

    plain = not step.expand and step.center is None
    refuse_unless(plain, "RandomRotation", "expand or center is set", "leave both out")
    mode, reading.affine = _affine(step), True
    return _policy(reading, step, "RandomRotation", degrees=float(high), interpolation=mode)


def _random_apply(reading: Reading, step: Any) -> str:
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
        _text(step),
        "only one step that changes colours or blurs can be applied at random",
        "apply each alone",
    )

    _refuse_altered(inner[0])
    reading.applied = float(step.p)
    try:
        return _reader_of(reading, name)(reading, inner[0])
    finally:
        reading.applied = 1.0


def _to_bytes(reading: Reading, step: Any) -> str:
    """Reads a step that makes a tensor of a PIL image, and leaves its bytes as they are."""
    reading.tensor = True
    return "images are tensors"


def _to_tensor(reading: Reading, step: Any) -> str:
    """Reads ToTensor, which leaves a tensor as it is (torchvision's v2/_deprecated.py, timm's
    data/transforms.py).
    """
    return "nothing: images are tensors already" if reading.tensor else _to_floats(reading, step)


def _to_floats(reading: Reading, step: Any) -> str:
    reading.tensor = reading.floats = True
    return "dtype=fp32, values from 0 to 1 before Normalize"


def _to_dtype(reading: Reading, step: Any) -> str:
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

    return _to_floats(reading, step)


def _normalize(reading: Reading, step: Any) -> str:
    # albumentations' takes bytes
    reading.floats |= isinstance(step, Alike)
    refuse_unless(reading.floats, "Normalize", "it comes before ToTensor", _AS_OURS)
    once = reading.normalized is None and not reading.erased
    refuse_unless(once, "Normalize", "it comes twice, or after RandomErasing", _AS_OURS)
    _refuse_after(reading.has_function_of_floats, step, "a step of floats that runs as it is")

    reading.normalized = {}
    for name in ("mean", "std"):
        values = (
            torch.as_tensor(getattr(step, name), dtype=torch.float64, device="cpu")
            .flatten()
            .tolist()
        )
        refuse_unless(
            len(values) in (1, 3),
            "Normalize",
            f"{name} has {len(values)} numbers",
            "give one for each of three colours",
        )
        reading.normalized[name] = tuple(values * (3 // len(values)))

    return _given(reading.normalized)


def _affine_code(reading: Reading, step: Affine) -> str:
    """Reads code that multiplies and adds after the transform, as a part of Normalize."""
    # an erased region is 0 in a plan's batch, and would be `add` in the old loader's
    _refuse_after(reading.erased, step, "RandomErasing")
    late = reading.floats and reading.has_functions
    _refuse_after(late, step, "a step that runs as it is")

    before = reading.normalized or {"mean": (0.0,) * 3, "std": (1.0,) * 3}
    scale, offset = (values * (3 // len(values)) for values in (step.scale, step.offset))
    rows = list(zip(before["mean"], before["std"], scale, offset, strict=True))
    refuse_unless(
        all(each > 0 for each in scale), repr(step), "it turns light to dark", "leave it out"
    )

    # (x - mean) / std × times + add is (x - (mean - add × std / times)) / (std / times)
    means = tuple(mean - add * std / times for mean, std, times, add in rows)
    # nine digits, since the numbers are fitted to values of single precision
    reading.normalized = before | {
        "mean": tuple(float(f"{each:.9g}") for each in means),
        "std": tuple(float(f"{std / times:.9g}") for _, std, times, _ in rows),
    }

    return _given(reading.normalized)


def _to_pil(reading: Reading, step: Any) -> str:
    refuse_unless(
        not reading.floats, "ToPILImage", "it comes after ToTensor", "leave both of them out"
    )
    reading.tensor = False
    return "nothing: images are resized as Pillow does"


def _erasing(reading: Reading, step: Any) -> str:
    """Reads RandomErasing of torchvision or timm (timm/data/random_erasing.py).

    Both draw the same regions, of uniform area and log aspect ratio.
    """
    # timm's RandomErasing has other names for the same options
    options: dict[str, Any]
    if is_of(step, "timm"):
        refuse_unless(
            step.num_splits < 2,
            "RandomErasing",
            f"num_splits={step.num_splits} leaves a part of each batch out",
            "set it to 0",
        )
        options = {
            "p": float(step.probability),
            "scale": (float(step.min_area), float(step.max_area)),
            # rounded, since timm keeps logarithms
            "ratio": tuple(round(math.exp(each), 12) for each in step.log_aspect_ratio),
        }
        if step.rand_color or step.per_pixel or step.max_count > 1:
            mode = "pixel" if step.per_pixel else "rand" if step.rand_color else "const"
            counts = {"min_count": int(step.min_count), "max_count": int(step.max_count)}
            return _note_erasing(reading, "TimmRandomErasing", options | {"mode": mode, **counts})
    else:
        value = step.value if isinstance(step.value, (list, tuple)) else [step.value]
        # torchvision keeps None for "random", which is noise
        options = {"p": float(step.p), "scale": tuple(map(float, step.scale))}
        options["ratio"] = tuple(round(float(each), 12) for each in step.ratio)
        if value in (["random"], [None]):
            return _note_erasing(reading, "TimmRandomErasing", options | {"mode": "pixel"})
        refuse_unless(
            all(each == 0 for each in value),
            "RandomErasing",
            "it fills with a color",
            "erase with zeros or noise",
        )

    return _note_erasing(reading, "RandomErasing", options)


def _note_erasing(reading: Reading, name: str, options: dict[str, Any]) -> str:
    reading.erased = True
    reading.augment.append({"name": name, **options})
    return f"augment: {name}({_given(options)})"


def _timm_rand_augment(reading: Reading, step: Any) -> str:
    """Reads timm's RandAugment: what its string was, which it does not keep."""
    one, reading.affine = step.ops[0], True
    numbers = {"m": one.magnitude, "n": step.num_layers, "p": one.prob, "mstd": one.magnitude_std}
    parts = [f"{name}{value:g}" for name, value in numbers.items()]
    parts += [f"mmax{one.magnitude_max}"] * bool(one.magnitude_max)
    names = tuple(each.name for each in step.ops)
    kinds = {PLAIN: "inc0", INCREASING: "inc1", tuple(WEIGHTS): "tweights"}
    refuse_unless(
        names in kinds and (step.choice_weights is None) == (kinds[names] != "tweights"),
        "timm's RandAugment",
        f"our plan does not have its operations {', '.join(names[:3])} …",
        "use timm's own sets: inc0, inc1 or tweights",
    )
    shared = ("prob", "magnitude", "magnitude_std", "magnitude_max", "hparams", "kwargs")
    alike = all(getattr(each, name) == getattr(one, name) for each in step.ops for name in shared)
    share = one.hparams.get("translate_pct", 0.45) == 0.45
    refuse_unless(
        alike and share, "timm's RandAugment", "its operations have options of their own", _KEEP
    )
    if kinds[names] == "tweights":
        total = sum(WEIGHTS.values())
        expected = [weight / total for weight in WEIGHTS.values()]
        refuse_unless(
            np.allclose(step.choice_weights, expected),
            "timm's RandAugment",
            "it has weights of its own",
            "use timm's",
        )

    options = _timm_options(one)
    config = "-".join(["rand", *parts, kinds[names]])
    return _policy(reading, step, "TimmRandAugment", config=config, **options)


def _timm_options(op: Any) -> dict[str, Any]:
    """The interpolation and the color around the image of timm's operations."""
    mode, fill = op.kwargs["resample"], tuple(op.kwargs["fillcolor"])
    several = isinstance(mode, (list, tuple))
    names = [Image.Resampling(each).name.lower() for each in (mode if several else [mode])]
    known = (
        set(names) == {"bilinear", "bicubic"} if several else names[0] in timm_ops.INTERPOLATIONS
    )
    refuse_unless(
        known, "timm's policy", f"interpolation={', '.join(names)}", "use bilinear or bicubic"
    )
    return {"interpolation": "random" if several else names[0], "fill": fill}


def _whole(reading: Reading, step: Any, **options: Any) -> str:
    """Notes a step of `before` with its options."""
    from torchvision import transforms

    wrong = reading.floats or reading.augment or reading.erased
    _refuse_after(wrong or reading.crop, step, "ToTensor, augmentation or a crop")
    name = type(step).__name__
    p = reading.applied * options.pop("p", 1.0)
    options |= {"p": p} if p < 1 or name in _OF_CHANCE else {}
    reading.before.append({"name": name, **options})
    chance = transforms.RandomApply([step], reading.applied)
    reading.whole.append(chance if reading.applied < 1 else step)
    return f"before: {name}({_given(options)}) on the whole image"


def _whole_resize(reading: Reading, step: Any) -> str:
    _check_size(step)
    kind, note = _interpolation_of(reading, step)
    size, kind = _sides_of(step), kind.removesuffix("-exact")
    reading.settled = None if isinstance(size, int) else size
    return _whole(reading, step, size=size, interpolation=kind) + note


def _whole_warp(reading: Reading, step: Any, **options: Any) -> str:
    """Reads what rotations, affine and perspective steps have in common."""
    name, mode = type(step).__name__, str(getattr(step.interpolation, "value", step.interpolation))
    known = ("nearest", "bilinear", "bicubic")
    refuse_unless(mode in known, name, f"interpolation={mode}", f"use {', '.join(known)}")
    _check_fill(step, name)
    centred = getattr(step, "center", None) is None
    refuse_unless(centred, name, "center is set", "leave it out")

    # torchvision moves tensors by another function, which blends edges with black
    edges = "and at the edges " if mode != "nearest" else ""
    note = f"; of PIL images, which differs {edges}in a few pixels from that of tensors"
    return _whole(reading, step, **options, interpolation=mode) + note * reading.tensor


def _whole_rotation(reading: Reading, step: Any) -> str:
    refuse_unless(not step.expand, "RandomRotation", "expand is set", "leave it out")
    return _whole_warp(reading, step, degrees=_floats(step.degrees))


def _whole_affine(reading: Reading, step: Any) -> str:
    options = {
        name: _floats(value)
        for name in ("translate", "scale", "shear")
        if (value := getattr(step, name)) is not None
    }
    return _whole_warp(reading, step, degrees=_floats(step.degrees), **options)


def _whole_perspective(reading: Reading, step: Any) -> str:
    scale = float(step.distortion_scale)
    return _whole_warp(reading, step, distortion_scale=scale, p=float(step.p))


def _whole_flip(reading: Reading, step: Any) -> str:
    return _whole(reading, step, p=float(step.p))


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(map(float, values))


# by the name of a step's class: those that a plan has on the whole image
_WHOLE_READERS: dict[str, Callable[[Reading, Any], str]] = {
    "RandomRotation": _whole_rotation,
    "RandomAffine": _whole_affine,
    "RandomPerspective": _whole_perspective,
    "Resize": _whole_resize,
    "RandomHorizontalFlip": _whole_flip,
    "RandomVerticalFlip": _whole_flip,
}
# those of them that have a probability of their own
_OF_CHANCE = ("RandomPerspective", "RandomHorizontalFlip", "RandomVerticalFlip")

# by the name of a step's class, which v1 and v2 mostly have in common
_READERS: dict[str, Callable[[Reading, Any], str]] = {
    "Resize": _resize,
    "CenterCrop": _center_crop,
    "RandomResizedCrop": _resized_crop,
    "RandomResizedCropAndInterpolation": _resized_crop,
    "RandomCrop": _random_crop,
    "RandomHorizontalFlip": _flip("flip"),
    "RandomVerticalFlip": _flip("vertical_flip"),
    "TrivialAugmentWide": _auto_augment("num_magnitude_bins"),
    "RandAugment": _auto_augment("num_ops", "magnitude", "num_magnitude_bins"),
    "AutoAugment": _auto_augment(),
    "timm RandAugment": _timm_rand_augment,
    "ColorJitter": _color_jitter,
    "Grayscale": _grayscale,
    "RandomGrayscale": _random_grayscale,
    "RandomSolarize": _solarize,
    "RandomPosterize": _posterize,
    "RandomInvert": _alone(),
    "RandomAutocontrast": _alone(),
    "RandomEqualize": _alone(_EQUALIZE),
    "RandomAdjustSharpness": _sharpness,
    "GaussianBlur": _blur,
    "RandomRotation": _rotation,
    "RandomApply": _random_apply,
    "ToTensor": _to_tensor,
    "MaybeToTensor": _to_tensor,
    "PILToTensor": _to_bytes,
    "MaybePILToTensor": _to_bytes,
    "ToImage": _to_bytes,
    "ToPILImage": _to_pil,
    "ToDtype": _to_dtype,
    "ConvertImageDtype": _to_dtype,
    "Normalize": _normalize,
    "RandomErasing": _erasing,
    "ToTensorV2": lambda reading, step: "images are tensors",
}
