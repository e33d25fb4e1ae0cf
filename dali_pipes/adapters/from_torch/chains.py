"""The way of a picture from its file to the sample: `chain_of` follows a match back through the
calls of transforms to the opener, or says where the way breaks off.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dali_pipes.adapters.from_torch.recording.marks import Match
from dali_pipes.adapters.from_torch.recording.masks import step_key
from dali_pipes.adapters.from_torch.recording.nesting import pictures_in
from dali_pipes.adapters.from_torch.recording.tables import Table
from dali_pipes.adapters.from_torch.recording.visit import (
    AS_STORED,
    GRAY,
    WIDE,
    Opened,
    TransformCall,
    Visit,
)
from dali_pipes.adapters.transforms.reading import Affine, OneCrop, is_of

# steps that make the same of one channel as of three equal ones
_GEOMETRY = (
    *("RandomResizedCrop", "Resize", "CenterCrop", "RandomCrop", "RandomHorizontalFlip"),
    "OneCrop",
)
# steps of torchvision that make several pictures of one, and those that v2 does to each of several
_CROPS = ("FiveCrop", "TenCrop")
_OF_EACH = (
    *("ToImage", "ToTensor", "PILToTensor", "ToPureTensor", "ToDtype", "ConvertImageDtype"),
    "Normalize",
)
# steps that move all pictures that v2 gets in one call alike
MOVED_TOGETHER = (
    *("RandomResizedCrop", "Resize", "CenterCrop", "RandomCrop"),
    *("RandomHorizontalFlip", "RandomVerticalFlip"),
)
# what a user can do about code of their own, in the order in which one would try it
INSTEAD_OF_CODE_BEFORE = (
    "if that code draws no random numbers, save what it makes once, as PNG files, and open those "
    "(about 6 lines); else keep your DataLoader"
)
_INSTEAD_OF_STORED = (
    'open images with Image.open(path).convert("RGB"), or with .convert("L") for one channel of '
    "gray"
)
_INSTEAD_OF_GRAY = (
    'give it a PIL image of one channel: convert("L"), or torchvision\'s Grayscale(1) as the first '
    "step of the transform, which makes the same pixels; and spread it in the model (2 lines)"
)


@dataclass(frozen=True, slots=True)
class Chain:
    """The way of a picture from its file to the sample.

    Attributes:
        file: the place of its file among those that a visit opens; -1 if the way does not lead back
            to a file.
        steps: the transforms in the order of their calls, and conversions between them.
        keys: the keys of the steps when they were called; equal keys mean that they did the same.
            Those of a mask also say which call of the visit it was, and as what the mask came.
        is_reversed: whether its channels are reversed, as BGR.
        is_upright: whether it is turned as its EXIF tag says.
        has_tag: whether the file has an EXIF tag that turns it.
        is_gray: whether the file is gray, and nobody converts it.
        problem: why the picture cannot be carried over; "": no reason is known.
        instead: what the user can do about the problem.
        calls: which call of the visit each step was; -1 for a conversion.
        tables: of a mask: what its values became before each step, and after the last one.
    """

    file: int
    steps: list[Any]
    keys: tuple[Any, ...]
    is_reversed: bool
    is_upright: bool
    is_gray: bool
    problem: str = ""
    instead: str = ""
    has_tag: bool = False
    calls: tuple[int, ...] = ()
    tables: tuple[Table, ...] = ()


def chain_of(match: Match, visit: Visit, makes_gray: bool = False) -> Chain:
    """Follows a picture from the sample back to its file.

    Args:
        makes_gray: whether the program converts files in colour to gray: gray ones are then, too.
    """
    if match.table is not None:
        return _mask_chain_of(match, visit)

    # in reverse order until the end
    steps: list[Any] = []
    keys: list[Any] = []
    calls: list[int] = []
    is_reversed, is_spread, has_spread, problem, instead = False, False, False, "", ""

    while True:
        # `steps[-1]` was called on the gray picture before somebody spread it to three channels:
        # steps that change colours do something else to one channel than to three equal ones
        if is_spread and steps and type(steps[-1]).__name__ not in _GEOMETRY:
            is_spread = False
        is_spread |= match.channels == "spread"
        has_spread |= match.channels == "spread"

        # conversions have their names as keys: the numbers of an Affine have rounding errors
        between = list(_conversions(match))[::-1]
        steps += between
        keys += [type(each).__name__ for each in between]
        calls += [-1] * len(between)
        is_reversed ^= match.channels == "reversed"
        source = match.mark.source
        if isinstance(source, Opened):
            break

        done, done_keys = _done_to(source, match.mark.place)
        steps += done[::-1]
        keys += done_keys[::-1]
        calls += [visit.calls.index(source)] * len(done)
        # only a step with one picture as input and one as output can be followed backwards, or
        # several crops, what is done to each of them, and a call with a picture and its masks
        is_joint = _moves_masks(source) or _does_each(source)
        before = source.inputs[match.mark.place] if is_joint else (source.inputs or [None])[0]
        is_crop = any(isinstance(step, OneCrop) for step in done)
        is_single = len(source.inputs) == 1 and (is_crop or not match.mark.place)
        if before is None or before.table or before.kind == "mask" or not (is_single or is_joint):
            problem, instead = _describe_break(source, before)
            break
        match = before

    # the first step got the file as a tensor or an array of bytes, which PILToTensor would make
    if match.kind != "pil" and not problem:
        steps.append(_to_bytes())
        keys.append("PILToTensor")
        calls.append(-1)
    file = visit.opened.index(source) if isinstance(source, Opened) else -1
    is_gray = match.channels == "one" and not is_spread
    if isinstance(source, Opened):
        # our images have one channel as soon as something makes gray of a file in colour
        if has_spread and not problem and match.mark.pixels.ndim == 3 and _has_colour(match):
            problem = "it makes three channels of one of gray"
            instead = "return one channel, and spread it in the model (1 line)"
        if match.channels == "gray" or (makes_gray and _is_one(match)):
            steps.append(_gray())
            keys.append("Grayscale")
            calls.append(-1)
            is_gray = False
    return Chain(
        file,
        steps[::-1],
        tuple(keys[::-1]),
        is_reversed,
        match.is_upright,
        is_gray,
        problem,
        instead,
        match.mark.upright is not None,
        tuple(calls[::-1]),
    )


def _has_colour(match: Match) -> bool:
    """Whether a match of a file is not that of a gray file."""
    return match.channels in ("same", "reversed", "gray")


def _is_one(match: Match) -> bool:
    """Whether a gray file shows in one channel, as a PIL image."""
    is_noise = match.channels == "same" and match.layout == "HW"
    return match.kind == "pil" and (match.channels == "one" or is_noise)


def _gray() -> Any:
    """The step that makes the same pixels as Pillow's `convert("L")` of an image."""
    from torchvision import transforms

    return _called(transforms.Grayscale(1), 'convert("L")')


def _done_to(call: TransformCall, place: int) -> tuple[list[Any], list[Any]]:
    """What a call did to the picture at this place of its result, and the keys of these steps."""
    steps, keys = list(call.steps), list[Any](call.keys)
    crops = [at for at, step in enumerate(steps) if is_of(step, "torchvision.transforms", *_CROPS)]
    if len(call.inputs) == 1 and len(crops) == 1:
        (at,) = crops
        steps[at], keys[at] = OneCrop(steps[at], place), (keys[at], place)
    return steps, keys


def _does_each(call: TransformCall) -> bool:
    """Whether a call did the same to each of several pictures, or moved them together."""
    is_whole = all(call.inputs) and len(list(pictures_in(call.outputs))) == len(call.inputs)
    names = *_OF_EACH, *MOVED_TOGETHER
    known = all(is_of(step, "torchvision.transforms", *names) for step in call.steps)
    return is_whole and len(call.inputs) > 1 and known and call.takes_all


def _moves_masks(call: TransformCall) -> bool:
    """Whether a call got one picture and its masks, and returned as many."""
    is_whole = all(call.inputs) and len(list(pictures_in(call.outputs))) == len(call.inputs)
    images = [each for each in call.inputs if each and each.table is None]
    return is_whole and len(call.inputs) > 1 and len(images) == 1


def _mask_chain_of(match: Match, visit: Visit) -> Chain:
    """Follows a mask from the sample back to its file."""
    steps, keys, calls, tables = [], [], [], [match.table]
    while isinstance(source := match.mark.source, TransformCall):
        before = source.inputs[match.mark.place]
        # `Visit._renew` makes a mask only of what came as one
        assert before is not None and before.table is not None
        steps.append(source.step)
        keys.append((step_key(source, before), visit.calls.index(source)))
        calls.append(visit.calls.index(source))
        match = before
        tables.append(match.table)

    return Chain(
        visit.opened.index(source),
        steps[::-1],
        tuple(keys[::-1]),
        False,
        False,
        False,
        calls=tuple(calls[::-1]),
        tables=tuple(each for each in tables[::-1] if each),
    )


def _describe_break(call: TransformCall, before: Match | None) -> tuple[str, str]:
    """Why a way does not lead back through this call, and what to do about it."""
    step, place = type(call.step).__name__, f" ({call.place})" if call.place else ""

    if before is not None and before.kind == "mask":
        return (
            f"{step}{place} gets the image as a tv_tensors.Mask, which is resized to the nearest "
            "pixel",
            "give it a tv_tensors.Image",
        )

    if before is not None and len(call.inputs) > 1:
        return _describe_pair(_first_of(call))

    if before is None and call.strange == WIDE:
        return (
            f"what reaches {step}{place} is {WIDE} (Pillow's mode I;16), and only those of 8 bits "
            "can be carried over",
            "Manifest.open(…, bits=16) and build_loader load such files (docs/inputs.md)",
        )

    if before is None and call.strange.startswith(AS_STORED):
        return f"what reaches {step}{place} is {call.strange}, as it is stored", _INSTEAD_OF_STORED

    if before is None or before.table:
        return (
            f"what reaches {step}{place} is not the decoded file, but {call.strange or 'another'}, "
            "made by code before it",
            _INSTEAD_OF_GRAY if call.strange in GRAY.values() else INSTEAD_OF_CODE_BEFORE,
        )

    return (
        f"{step}{place} returns several pictures of one",
        "let the data set return images of one size, such as by Resize((256, 256)), if your "
        f"evaluation may change so, and apply {step} in the collate function, which is called as "
        "it is (about 3 lines)",
    )


def _first_of(call: TransformCall) -> TransformCall:
    """The first of the calls with several pictures that one leads back to."""
    for match in call.inputs:
        source = match.mark.source if match else None
        if isinstance(source, TransformCall) and len(source.inputs) > 1:
            return _first_of(source)
    return call


def _describe_pair(call: TransformCall) -> tuple[str, str]:
    """Why a call with several pictures is not one with a picture and its mask."""
    step, place = type(call.step).__name__, f" ({call.place})" if call.place else ""
    masks = [each for each in call.inputs if each and each.kind == "mask"]
    instead = (
        "save masks as PNGs of gray of 8 bits, or with a palette, and give them to the transform "
        "as tv_tensors.Mask(np.array(mask)); with depth maps of 16 bits keep your DataLoader"
    )

    if not all(call.inputs):
        return (
            f"{step}{place} is called with the image and something else that is no whole file: "
            "code of its own has changed or computed it",
            instead,
        )
    if modes := [each.mark.source.mode for each in masks if isinstance(each.mark.source, Opened)]:
        return f"the mask that {step}{place} gets is of Pillow's mode {modes[0]}", instead
    if not call.takes_all:
        return (
            f"{step}{place} is called with {len(call.inputs)} pictures at once, and of plain "
            "tensors torchvision changes the first one only",
            "give it each as tv_tensors.Image",
        )
    return (
        f"{step}{place} is called with {len(call.inputs)} pictures at once",
        "give both to crops, resizes and flips of torchvision.transforms.v2 alone; load masks with "
        "Manifest.from_masks (docs/objects.md)",
    )


def _conversions(match: Match) -> Iterator[Any]:
    """What was done between a mark and a copy of it, as the steps that do the same, in order."""
    from torchvision import transforms

    mark = match.mark
    is_file = isinstance(mark.source, Opened)
    # `chain_of` itself adds the conversion of a file
    if not is_file and mark.is_pil and match.kind != "pil":
        yield _to_bytes()
    if not mark.is_pil and match.kind == "pil":
        yield _called(transforms.ToPILImage(), "the picture as a PIL image")

    if match.scale is None:
        return
    assert match.offset is not None
    of_bytes = mark.pixels.dtype == np.uint8
    if of_bytes:
        yield transforms.ConvertImageDtype(torch.float)
    # ConvertImageDtype has divided bytes by 255, so the rest of the scale is 255 times as large
    scale = tuple(each * 255 for each in match.scale) if of_bytes else match.scale
    if not (np.allclose(scale, 1, rtol=1e-6) and np.allclose(match.offset, 0, atol=1e-7)):
        yield Affine(tuple(round(each, 9) for each in scale), tuple(match.offset))


def _to_bytes() -> Any:
    from torchvision import transforms

    return _called(transforms.PILToTensor(), "the picture as an array or tensor")


def _called(step: Any, text: str) -> Any:
    """A step that the program does not have, with the name that tables show."""
    step.__name__ = text
    return step
