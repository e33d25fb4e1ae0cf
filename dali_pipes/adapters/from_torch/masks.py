"""Masks that are moved with their image: `read_masks` says how a manifest and a transform make the
same ones, or refuses.

A mask is moved by the same call as its image, or by steps that do the same to it each time, such as
`Resize(96)` and `Resize(96, NEAREST)`. What becomes of its values is known as a table
(recording/tables.py), by which `OutputMask` makes the old loader's masks of those of a batch.
`compare_masks` compares them with the old ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from PIL import Image

from dali_pipes.adapters.from_torch.chains import Chain
from dali_pipes.adapters.from_torch.recorder import Trace
from dali_pipes.adapters.from_torch.recording.marks import to_array
from dali_pipes.adapters.from_torch.recording.masks import MOVING, MaskNotes
from dali_pipes.adapters.from_torch.recording.tables import Table
from dali_pipes.adapters.from_torch.structure import PictureSlot, Shown, leaves
from dali_pipes.adapters.transforms.reading import (
    NotConvertibleError,
    Step,
    is_of,
    refuse_unless,
)
from dali_pipes.adapters.transforms.steps import read_steps
from dali_pipes.loader.batch import Batch

_RESIZING = ("Resize", "RandomResizedCrop")
_SAME_EACH_TIME = ("Resize", "CenterCrop")
_FLIPS = ("RandomHorizontalFlip", "RandomVerticalFlip")
# steps whose result may have pixels from outside the image
_PADDING = ("CenterCrop", "RandomCrop", "RandomRotation")
# steps that leave every pixel of an image where it is; what is not listed here may move some
STILL = (
    *("ToTensor", "PILToTensor", "ToImage", "ToDtype", "ConvertImageDtype", "ToPILImage"),
    *("MaybeToTensor", "MaybePILToTensor", "ToPureTensor", "Identity", "RGB", "Normalize"),
    *("ColorJitter", "Grayscale", "RandomGrayscale", "GaussianBlur", "RandomErasing", "Affine"),
)
_JOINT = "give both to one call: transform(image, tv_tensors.Mask(mask))"
# what a batch has outside of the image, if no value of a mask will do: masks of 8 bits end at 255
_OUTSIDE = 256


@dataclass(frozen=True)
class OutputMask:
    """A mask that goes into a slot.

    Attributes:
        table: what each stored value becomes.
        layout: "HW", "CHW" or "HWC".
        kind: "tensor" or "array".
        dtype: the dtype of the masks.
    """

    table: Table
    layout: str
    kind: str
    dtype: torch.dtype

    def of(self, batch: Batch) -> torch.Tensor:
        """The masks of a batch, as `layout` says.

        Raises:
            NotConvertibleError: a mask has a value of which nothing is known.
        """
        stored = batch["mask"]
        results, known = (each.to(stored.device, non_blocking=True) for each in self._lookup)
        # the answer has to come from the device, so it is asked only if it can be no
        if not self._knows_all and not bool(known[stored].all()):
            _refuse_values(batch, stored, known)

        made = results[stored]
        if self.layout == "HW":
            return made[..., 0].contiguous()
        return (made.permute(0, 3, 1, 2) if self.layout == "CHW" else made).contiguous()

    @cached_property
    def _lookup(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(257, C) results by stored value, and which of them are known."""
        numbers = torch.from_numpy(self.table.values.astype(np.int64))
        shape = _OUTSIDE + 1, self.table.results.shape[1]
        results = torch.zeros(shape, dtype=self.dtype, device="cpu")
        results[numbers] = torch.from_numpy(self.table.results.copy()).to(self.dtype)

        known = torch.zeros(_OUTSIDE + 1, dtype=torch.bool, device="cpu")
        known[numbers] = True
        return results, known

    @cached_property
    def _knows_all(self) -> bool:
        return bool(self._lookup[1].all())


def _refuse_values(batch: Batch, stored: torch.Tensor, known: torch.Tensor) -> None:
    """Raises the error for the first mask that has an unknown value."""
    unknown = ~known[stored]
    at = int(unknown.flatten(1).any(dim=1).nonzero()[0])
    value = int(stored[at][unknown[at]][0])
    what = "a part outside of its image" if value == _OUTSIDE else f"the value {value}"
    raise NotConvertibleError(
        f"the mask of sample {int(batch.ids[at])} in loader.manifest",
        f"it has {what}, which your code did not take when from_torch ran it",
        "repair the mask, or have your code take all values from 0 to 255",
    )


@dataclass(frozen=True, slots=True)
class MaskReading:
    """What was read of a data set's masks.

    Attributes:
        file: the place of the mask among the files that a sample opens.
        mode: Pillow's mode of the masks.
        options: those of a transform that moves masks in the same way.
        tables: what the stored values become, by the slot.
        steps: the old steps of masks, and what carries them out.
    """

    file: int
    mode: str
    options: dict[str, Any]
    tables: dict[int, Table]
    steps: list[Step]

    def output(self, slot: int, shown: Shown) -> OutputMask:
        """What goes into a slot that shows a mask."""
        dtype = getattr(torch, shown.dtype.removeprefix("torch."))
        return OutputMask(self.tables[slot], shown.matches[0].layout, shown.kind, dtype)


def read_masks(seen: Trace) -> MaskReading | None:
    """Reads the masks in a data set's samples; None: there are none.

    Raises:
        NotConvertibleError: they are moved in another way than a plan moves masks.
    """
    chains = {slot: of_slot[0] for slot, (shown, of_slot) in enumerate(seen.slots) if shown.is_mask}
    if not chains or seen.masks is None:
        return None
    _refuse_forms(seen, chains)

    # a step that no plan has is named before masks are looked at
    image = seen.used[0]
    read_steps(image.steps)
    moves = {slot: _Move.of(seen, image, slot, chain) for slot, chain in chains.items()}
    first = next(iter(moves.values()))
    refuse_unless(
        all(each.options == first.options for each in moves.values()),
        seen.name,
        "the masks of a sample are resized or filled in several ways",
        "treat them alike",
    )

    file = next(iter(chains.values())).file
    steps = {each.step.text: each.step for each in moves.values()}
    tables = {slot: each.table for slot, each in moves.items()}
    mode = seen.masks.file(file).mode
    return MaskReading(file, mode, first.options, tables, list(steps.values()))


def _refuse_forms(seen: Trace, chains: dict[int, Chain]) -> None:
    """Refuses samples that have more than an image and one mask."""
    count, files = len(seen.used), {chain.file for chain in chains.values()}
    refuse_unless(
        count == 1,
        seen.name,
        f"its samples have {count} pictures beside a mask, and a mask follows one picture",
        "load each picture with a loader of its own",
    )
    refuse_unless(
        len(files) == 1,
        seen.name,
        f"its samples have masks of {len(files)} files, and an image has one mask here",
        "join them to one file of class numbers",
    )
    stacked = any(shown.is_mask and shown.is_stacked for shown, _ in seen.slots)
    refuse_unless(not stacked, seen.name, "its masks are stacked", "return each alone")


@dataclass(frozen=True, slots=True)
class _Move:
    """How the mask of one slot is moved: options of a transform, what its stored values become, and
    its steps.
    """

    options: dict[str, Any]
    table: Table
    step: Step

    @classmethod
    def of(cls, seen: Trace, image: Chain, slot: int, mask: Chain) -> "_Move":
        """Compares the steps of a mask with those of its image.

        Raises:
            NotConvertibleError: a plan does not move the mask with the image.
        """
        assert seen.masks is not None
        values = _MaskTables(seen.masks, slot, mask)
        _refuse_foreign(seen.name, mask, values)
        _refuse_apart(seen.name, image, mask)
        _refuse_early_flips(mask)

        options: dict[str, Any] = {}
        resizes = [at for at in _moving(mask) if _name(mask.steps[at]) in _RESIZING]
        ways = {_interpolation(mask.steps[at], _kind(mask, at)) for at in resizes}
        refuse_unless(len(ways) < 2, seen.name, "it resizes masks in two ways", "resize them once")
        if ways:
            options["mask_interpolation"] = ways.pop()

        table = values.through(0, len(mask.steps))
        pads = [at for at in _moving(mask) if _name(mask.steps[at]) in _PADDING]
        if pads:
            options["ignore_index"], table = _filled(seen.name, mask, pads, values, table)

        text = ", ".join(_text(step) for step in mask.steps) or "as it is stored"
        by = "".join(f", {name}={value}" for name, value in options.items())
        return cls(options, table, Step(f"mask: {text}", f"masks that follow the image{by}"))


@dataclass(frozen=True, slots=True)
class _MaskTables:
    """What becomes of the values of the mask of one slot, between any two of its steps."""

    notes: MaskNotes
    slot: int
    mask: Chain

    def of_step(self, at: int) -> Table | None:
        """What a step does to values that it leaves in their places; None: they differ by more than
        the value.
        """
        return self.notes.steps.get(self.mask.keys[at][0])

    def through(self, first: int, end: int) -> Table:
        """From what code gives to the first of these steps, to what it makes of the results of the
        last one.
        """
        table = self.notes.shown[self.slot, first]
        for at in range(first, end):
            if at not in _moving(self.mask) and (step := self.of_step(at)):
                table = table.then(step)
            table = table.then(self.notes.shown[self.slot, at + 1])
        return table


def _name(step: Any) -> str:
    return type(step).__name__


def _text(step: Any) -> str:
    return " ".join(repr(step).split())


def _moving(mask: Chain) -> list[int]:
    """The places of a mask's steps that move pixels."""
    return [at for at, step in enumerate(mask.steps) if _name(step) in MOVING]


def _kind(mask: Chain, at: int) -> str:
    """As what a mask came to a step: `Match.kind`."""
    (_, kind), _ = mask.keys[at]
    return str(kind)


def _refuse_foreign(name: str, mask: Chain, values: _MaskTables) -> None:
    """Refuses steps of other libraries, and those that do not leave values what they are."""
    moving = _moving(mask)
    for at, step in enumerate(mask.steps):
        refuse_unless(
            is_of(step, "torchvision.transforms"),
            name,
            f"{_name(step)}, a class of {type(step).__module__}, is applied to the mask",
            "use steps of torchvision.transforms.v2 for masks",
        )
        refuse_unless(
            at in moving or values.of_step(at) is not None,
            name,
            f"{_text(step)} moves pixels of the mask, or changes them at random",
            "leave it out for masks",
        )


def _refuse_apart(name: str, image: Chain, mask: Chain) -> None:
    """Refuses a mask that does not go where its image goes."""
    of_image = [at for at, step in enumerate(image.steps) if _name(step) not in STILL]
    for one, other in zip_longest(of_image, _moving(mask)):
        if one is None or other is None:
            step = image.steps[one] if other is None else mask.steps[other]
            moved = "the image and not its mask" if other is None else "the mask and not its image"
            raise NotConvertibleError(name, f"{_name(step)} moves {moved}", _JOINT)

        ours, theirs, kind = image.steps[one], mask.steps[other], _kind(mask, other)
        is_joint = image.calls[one] == mask.calls[other]
        # v2 moves a plain tensor only if it is the first picture of the call, and arrays never
        refuse_unless(
            kind in ("mask", "pil") if is_joint else kind != "array",
            name,
            f"torchvision's {_name(theirs)} leaves a mask as it is that is a plain tensor or an "
            "array",
            _JOINT,
        )
        if is_joint:
            continue

        refuse_unless(
            _name(ours) == _name(theirs) and _sizes(ours) == _sizes(theirs),
            name,
            f"{_text(ours)} moves the image, and {_text(theirs)} its mask",
            _JOINT,
        )
        refuse_unless(
            _name(ours) in _SAME_EACH_TIME,
            name,
            f"{_name(ours)} draws once for the image and once more for its mask",
            _JOINT,
        )


def _sizes(step: Any) -> Any:
    size = getattr(step, "size", None)
    sides = list(size) if isinstance(size, Sequence) else [size]
    return sides, getattr(step, "max_size", None)


def _refuse_early_flips(mask: Chain) -> None:
    """Refuses a flip before a resize: pixels to the left of a place are taken before the flip, and
    those to its right after it.
    """
    names = [_name(step) for step in mask.steps]
    for at, name in enumerate(names):
        later = [each for each in names[at:] if each in _RESIZING]
        refuse_unless(
            name not in _FLIPS or not later,
            f"{name} before {''.join(later[:1])}",
            "masks are resized to the nearest pixel, which is another one after a flip",
            "flip after it, which makes no other difference",
        )


def _interpolation(step: Any, kind: str) -> str:
    """How a step resizes a mask that comes as this kind, as `mask_interpolation` says it."""
    # torchvision's v2 resizes masks to the nearest pixel, whatever the step says
    if kind == "mask":
        return "nearest"
    way = str(getattr(step.interpolation, "value", step.interpolation))
    refuse_unless(
        way in ("nearest", "nearest-exact"),
        _name(step),
        f"it resizes the mask with interpolation={way}, which blends class numbers",
        "give it the mask as tv_tensors.Mask, or set interpolation=NEAREST for masks",
    )
    return "pillow" if kind == "pil" else way


def _filled(
    name: str, mask: Chain, pads: list[int], values: _MaskTables, table: Table
) -> tuple[int, Table]:
    """The value that pixels outside of the image have in a batch, and the table with this value."""
    fills = [_fill(name, mask.steps[at], _kind(mask, at)) for at in pads]
    refuse_unless(
        len(set(fills)) == 1, name, f"masks are filled with {fills}", "use one fill for masks"
    )

    # a stored value that is the fill by then, or else one that no mask has
    before = values.notes.shown[values.slot, 0] if not pads[0] else values.through(0, pads[0])
    stored = before.values[before.results[:, 0] == fills[0]]
    if len(stored):
        return int(stored[0]), table
    after = values.notes.shown[values.slot, pads[0] + 1]
    if pads[0] + 1 < len(mask.steps):
        after = values.through(pads[0] + 1, len(mask.steps))
    made = after.results[after.values == fills[0]]
    numbers = np.append(table.values.astype(np.int64), [_OUTSIDE] * len(made))
    return _OUTSIDE, Table(numbers, np.concatenate([table.results, made]))


def _fill(name: str, step: Any, kind: str) -> int:
    """The value with which a step fills a mask of this kind outside of the image."""
    fill = getattr(step, "fill", None)
    if isinstance(fill, dict):
        from torchvision import tv_tensors

        default = fill.get("others")
        fill = fill.get(tv_tensors.Mask, default) if kind == "mask" else default
    if isinstance(fill, (list, tuple)) and len(set(fill)) == 1:
        fill = fill[0]
    refuse_unless(
        fill is None or (isinstance(fill, (int, float)) and fill == int(fill)),
        name,
        f"{_name(step)} fills masks with {fill}",
        "use one whole number",
    )
    return int(fill or 0)


def refuse_other_modes(name: str, paths: Sequence[str], mode: str) -> None:
    """Refuses masks that Pillow opens in another mode: what becomes of their values is not known.

    Args:
        mode: that of the masks that were run.
    """
    for path in paths:
        with Image.open(path) as image:
            other = image.mode
        refuse_unless(
            other == mode,
            name,
            f"the mask {path} is of Pillow's mode {other}, and others are of mode {mode}",
            "save all of them in one mode",
        )


def masks_in(samples: Sequence[Any], output: Any) -> dict[int, list[Any]]:
    """The masks of the old samples as arrays, by their slot.

    Args:
        output: the `Output` of these samples.
    """
    slots = [at for at, each in enumerate(output.pictures) if isinstance(each, OutputMask)]
    masks: dict[int, list[Any]] = {slot: [] for slot in slots}
    for skeleton, sample in zip(output.skeletons if slots else (), samples, strict=bool(slots)):
        for (_, leaf), (_, value) in zip(leaves(skeleton), leaves(sample), strict=False):
            if isinstance(leaf, PictureSlot) and leaf.number in masks:
                masks[leaf.number].append(to_array(value).copy())
    return masks


def compare_masks(masks: dict[int, list[Any]], output: Any, batch: Batch) -> str:
    """Compares the masks of a batch with the old ones, whose values must be equal.

    Args:
        masks: as `masks_in` returns them.
        output: the `Output` of these samples.

    Returns:
        How many masks are equal, in words; "" if there are none.
    """
    for slot, of_slot in masks.items():
        made = output.pictures[slot].of(batch).numpy()
        for old, new in zip(of_slot, made, strict=True):
            share = np.mean(old != new) if old.shape == new.shape else 1.0
            refuse_unless(
                not share,
                "the data set",
                f"its masks differ from ours in {share:.2%} of their pixels",
                "compare both loaders' batches, and report it with the transform",
            )
    count = sum(map(len, masks.values()))
    return f", and {count} masks are equal" if count else ""
