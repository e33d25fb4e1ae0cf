"""Rows as planned batches, and the transform of the backend that carries them out.

Rows of one `RowKind` can be in one planned batch. A `Room` says for which operations and steps on
whole images a backend was made; a row whose own are a part of these, in their order, has a place.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from io import BytesIO
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from PIL import Image

from dali_pipes.adapters.lazy.compiler.row import Numbers, Operation, Pair, Row, Whole
from dali_pipes.adapters.lazy.recipes import Recipe, Source
from dali_pipes.adapters.lazy.steps.step import NoPlace
from dali_pipes.data.loose_images import LooseImages
from dali_pipes.plan.geometry import Geometry
from dali_pipes.plan.plan import PlannedBatch, PlannedView
from dali_pipes.plan.steps.operations import CODE, MOVES, Augmentation, Slot
from dali_pipes.plan.steps.policies import Policy
from dali_pipes.plan.steps.whole import DrawnStep
from dali_pipes.plan.transforms import Transform

# of a backend: operations one after the other, and steps on whole images
MOST_SLOTS, MOST_STEPS = 16, 8


class RowKind(NamedTuple):
    """What the rows of one planned batch have in common.

    Attributes:
        shape: height and width of the result.
        channels: 1 or 3, of what a backend makes.
        takes_first: as of `Row`; then there is one channel in the end.
        axes, form, dtype, is_bgr: as of `Row`.
        scale, plus: as of `Row`, of red, green and blue; None: pixels stay whole numbers.
        interpolation, antialias: of the resize; "": there is none.
        has_steps: whether whole images are changed before they are resized.
    """

    shape: Pair
    channels: int
    takes_first: bool
    axes: str
    form: str
    dtype: torch.dtype
    is_bgr: bool
    scale: Numbers | None
    plus: Numbers
    interpolation: str
    antialias: bool
    has_steps: bool


_NO_NUMBERS: tuple[None, Numbers] = (None, (0.0,) * 3)


def kind_of(row: Row) -> RowKind:
    """
    Raises:
        NoPlace: no backend has the numbers by which its values are scaled.
    """
    channels = 3 if row.takes_first else row.channels
    scale, plus = _NO_NUMBERS
    if row.scale is not None:
        scale, plus = _numbers(row.scale, row.plus, channels, row.is_bgr)
    return RowKind(
        row.size,
        channels,
        row.takes_first,
        row.axes,
        row.form,
        row.dtype,
        row.is_bgr,
        scale,
        plus,
        row.interpolation,
        row.antialias,
        bool(row.steps),
    )


@lru_cache(maxsize=256)
def _numbers(
    scale: Numbers, plus: Numbers, channels: int, is_bgr: bool
) -> tuple[Numbers | None, Numbers]:
    """The numbers of red, green and blue."""
    if scale == (255.0,) * 3 and plus == (0.0,) * 3:
        return _NO_NUMBERS  # pixels from 0 to 255, of another dtype
    scale, plus = scale[:channels], plus[:channels]
    # the bounds of `Transform.mean` and `std`
    for by, more in zip(scale, plus, strict=True):
        if not (1e-4 <= by <= 1e4 and abs(more / by) <= 10):
            raise NoPlace(f"values × {by:g} + {more:g}")
    return (scale[::-1], plus[::-1]) if is_bgr else (scale, plus)


@dataclass(kw_only=True, slots=True)
class Noted(Policy):
    """Slots for operations that were noted; nothing is drawn."""

    name: str = "Noted"
    noted: tuple[Slot, ...] = ()

    @property
    def slots(self) -> tuple[Slot, ...]:
        return self.noted

    def draw(self, draws: Any, first: int, shape: Any) -> Any:
        raise RuntimeError("nothing is drawn: the program has drawn")


@dataclass(kw_only=True, slots=True)
class NotedTransform(Transform):
    """What the batches of a backend have in common; the rest is in the planned batches.

    Attributes:
        before: something for each step on whole images. Which steps these are a planned batch says.
        augment: slots for the operations.
    """

    before: list[Any] = field(default_factory=list)
    augment: list[Any] = field(default_factory=list)
    # a backend gives each image the flip that it is planned to have, if there may be any
    vertical_flip: ClassVar[float] = 0.5

    def geometry(self, source: Any, draws: Any) -> Geometry:
        raise RuntimeError("nothing is drawn: the program has drawn")


class Room(NamedTuple):
    """For which operations and steps on whole images a backend is made, in their order."""

    slots: list[Slot]
    steps: list[tuple[Any, ...]]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Room":
        """A room for all of these rows, but for those with too much."""
        made = cls([], [])
        # those that have most come first, since others often fit in between
        for row in sorted(rows, key=lambda row: -len(row.operations) - len(row.steps)):
            slots, steps = [each.slot for each in row.operations], [each.key for each in row.steps]
            if not made.has(row):
                if len(made.slots) + len(slots) <= MOST_SLOTS:
                    made.slots.extend(slots)
                if len(made.steps) + len(steps) <= MOST_STEPS:
                    made.steps.extend(steps)
        return made

    def has(self, row: Row) -> bool:
        """Whether each of its operations and steps has a place."""
        return self.places_of(row) is not None

    def places_of(self, row: Row) -> tuple[list[int], list[int]] | None:
        """The places of its operations and of its steps, in order; None: there are too few."""
        slots = _find(row.operations, self.slots, _carries_out)
        steps = _find(row.steps, self.steps, lambda key, step: key == step.key)
        return None if slots is None or steps is None else (slots, steps)


def _find(own: Sequence[Any], there: Sequence[Any], fits: Callable[..., bool]) -> list[int] | None:
    places, at = [], 0
    for each in own:
        while at < len(there) and not fits(there[at], each):
            at += 1
        if at == len(there):
            return None
        places.append(at)
        at += 1
    return places


def _carries_out(slot: Slot, operation: Operation) -> bool:
    """Whether it carries the operation out as its own slot does."""
    op, own = operation.op, operation.slot
    if slot is own:
        return True
    if op in MOVES:
        return slot.interpolation == own.interpolation and slot.fill == own.fill
    return op != "GaussianBlur" or slot.kernel_size == own.kernel_size


def transform_of(kind: RowKind, room: Room) -> NotedTransform:
    """The transform of a backend for rows of this kind."""
    numbers: dict[str, Any] = {"dtype": "uint8"}
    if kind.scale is not None:
        numbers = {
            "dtype": "fp32",
            "mean": tuple(-plus / by for by, plus in zip(kind.scale, kind.plus, strict=True)),
            "std": tuple(1 / by for by in kind.scale),
        }
    slots = tuple(room.slots)
    if kind.channels == 1:
        # backends try all operations of their slots, and a gray image has no hue
        slots = tuple(
            replace(slot, ops=tuple(op for op in slot.ops if op != "Hue")) for slot in slots
        )
    return NotedTransform(
        size=kind.shape,
        interpolation=kind.interpolation or "bilinear",
        antialias=kind.antialias,
        channels=kind.channels,
        memory_format="channels_last" if kind.axes == "HWC" else "contiguous",
        before=[None] * len(room.steps),
        augment=[Noted(noted=slots)] if slots else [],
        **numbers,
    )


def images_of(recipes: Sequence[Recipe]) -> LooseImages:
    """The encoded images of these recipes."""
    count = len(recipes)
    return LooseImages(
        [recipe.source.path or "a picture in memory" for recipe in recipes],
        [recipe.source.data for recipe in recipes],
        np.array([recipe.size[::-1] for recipe in recipes], np.int64),
        # pixels are taken as they are stored: what turns them is noted
        np.ones(count, np.int8),
        np.array([recipe.source.coding.encode() for recipe in recipes]),
    )


def plan_batch(kind: RowKind, room: Room, rows: Sequence[Row], images: LooseImages) -> PlannedBatch:
    """The planned batch of these rows of these images, for all of which there is room."""
    count, slots = len(rows), len(room.slots)
    places = [room.places_of(row) or ((), ()) for row in rows]
    steps, sizes = _plan_steps(room, [steps for _, steps in places], rows, images.sizes)

    ops = np.zeros((count, slots), np.int8)
    # not float32, as of what is drawn: 0.4 - 1 + 1 would be below 0.4, and be cut to other pixels
    magnitudes: Any = np.zeros((count, slots))
    tables: list[Any] = []
    for at, (row, (own, _)) in enumerate(zip(rows, places, strict=True)):
        for place, (op, magnitude, _, table) in zip(own, row.operations, strict=True):
            ops[at, place], magnitudes[at, place] = CODE[op], magnitude
            if table is not None:
                magnitudes[at, place] = len(tables)
                tables.append(table)
    nothing = np.zeros((count, 4), np.int64), np.zeros((count, 0)), np.zeros((count, 0, 2, 3))

    # one array of all numbers: NumPy's cost is by the call
    numbers = np.array(
        [
            (*row.region, *(row.resized or row.region[2:]), *(row.corner or (0, 0)), *row.mirrored)
            for row in rows
        ],
        np.int64,
    )
    flips = numbers[:, 8:].astype(bool)
    geometry = Geometry(
        sizes, numbers[:, :4], numbers[:, 4:6], numbers[:, 6:8], flips[:, 0], flips[:, 1]
    )
    looked_up = [np.stack(tables)] if tables else []
    augmentation = Augmentation(ops, magnitudes, *nothing, *looked_up)
    view = PlannedView(geometry, augmentation, kind.shape, tuple(steps))
    return PlannedBatch(0, 0, np.arange(count), ((view,),), images)


def _plan_steps(
    room: Room, places: Sequence[Sequence[int]], rows: Sequence[Row], sizes: np.ndarray
) -> tuple[list[DrawnStep], np.ndarray]:
    """The steps on whole images, and the sizes after them."""
    columns: list[dict[int, Whole]] = [
        dict(zip(each, row.steps, strict=True)) for each, row in zip(places, rows, strict=True)
    ]
    drawn = []
    for at, (kind, interpolation, fill, mode) in enumerate(room.steps):
        own = [column.get(at) for column in columns]
        after = [
            step.size if step else size for step, size in zip(own, sizes.tolist(), strict=True)
        ]
        drawn.append(
            DrawnStep(
                kind,
                interpolation,
                sizes,
                np.array(after, np.int64),
                np.array([step is not None for step in own]),
                np.array([step.numbers if step else (0.0,) * 8 for step in own]),
                fill,
                mode,
            )
        )
        sizes = drawn[-1].size
    return drawn, sizes


def plan_filler(kind: RowKind, room: Room) -> PlannedBatch:
    """A batch of one small picture, which pushes the batches before it through a backend."""
    row = Row((8, 8), kind.channels, kind.axes, kind.form)
    row.resized = kind.shape
    source = Source("pillow", (), None, _small_picture(kind.channels), None)
    return plan_batch(kind, room, [row], images_of([Recipe(source, (8, 8), "RGB")]))


@lru_cache
def _small_picture(channels: int) -> bytes:
    file = BytesIO()
    Image.new("RGB" if channels == 3 else "L", (8, 8)).save(file, "JPEG")
    return file.getvalue()


def finish(images: torch.Tensor, kind: RowKind, rows: Sequence[Row]) -> torch.Tensor:
    """What a backend has made of these rows, with the dtype, the channels and the dimensions that
    the program gave them.
    """
    if images.dtype != kind.dtype:
        images = images.to(kind.dtype)
    if kind.takes_first:
        images = images[:, :1]
    if kind.is_bgr:
        images = images.flip(1)
    for image, row in zip(images, rows, strict=True):
        for top, left, height, width, value in row.erased:
            if isinstance(value, tuple):
                value = torch.tensor(value, dtype=torch.float32, device="cpu").view(-1, 1, 1)
            if isinstance(value, torch.Tensor):
                # three equal channels may stand for one
                value = (value[: len(image)] if value.ndim == 3 else value).to(image.device)
            image[:, top : top + height, left : left + width] = value
    if kind.axes == "HW":
        return images[:, 0]
    # the backend has made them in this layout
    return images.permute(0, 2, 3, 1).contiguous() if kind.axes == "HWC" else images.contiguous()


def as_noted(made: torch.Tensor, kind: RowKind) -> Any:
    """Some of these as the array or the tensor that the program had."""
    return made if kind.form == "tensor" else made.cpu().numpy()
