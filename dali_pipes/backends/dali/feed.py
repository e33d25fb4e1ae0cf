"""Feeds the plan into a DALI pipeline: one array per batch for each input of the image graph, through one ExternalSource."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, types
from nvidia.dali.data_node import DataNode
from nvidia.dali.pipeline import do_not_convert

from dali_pipes.backends.common.read_ahead import ReadAhead
from dali_pipes.backends.dali.augment import NUMBERED, SlotInputs, functions, parameters, posterize_masks
from dali_pipes.backends.dali.graph import WIDTHS, PlanInputs, ViewInputs
from dali_pipes.data.manifest import Manifest
from dali_pipes.plan.augment.operations import AFFINE, Slot, affine_matrices
from dali_pipes.plan.plan import PlannedBatch, PlannedView
from dali_pipes.plan.transforms import Transform, views_of

_T = types.DALIDataType


@dataclass(frozen=True, slots=True)
class PlanInput:
    """One input of the graph: its type and dimensions for one sample, and the array of a batch."""

    dtype: types.DALIDataType
    ndim: int
    array: Callable[[PlannedBatch], np.ndarray]


@dataclass(frozen=True, slots=True)
class ViewInput:
    """As `PlanInput`, with the array of a batch's view."""

    dtype: types.DALIDataType
    ndim: int
    array: Callable[[PlannedView, PlannedBatch], np.ndarray]


@do_not_convert  # DALI's conditionals support only a part of Python
def plan_inputs(
    manifest: Manifest, transform: Transform, rows: Iterator[PlannedBatch], read_ahead: ReadAhead | None
) -> tuple[PlanInputs, DataNode]:
    """The inputs of the image graph, and the ids; to be called in a pipeline definition.

    Args:
        read_ahead: reads images from shards; None: each is a separate file, which DALI reads.
    """
    named = plan_source(manifest, image_inputs(transform), rows, read_ahead)
    encoded, ids = _encoded(named, read_ahead), named.pop("ids")
    views = [_view_nodes(_taken(named, f"view {number} "), each) for number, each in enumerate(views_of(transform))]
    return PlanInputs(encoded, **named, views=views), ids


def _view_nodes(named: dict[str, DataNode], transform: Transform) -> ViewInputs:
    slots = []
    for number, slot in enumerate(transform.augmenter.slots):
        mine = _taken(named, f"slot {number} ")
        chosen = list(_taken(mine, "chosen ").values())
        slots.append(SlotInputs(slot, dict(zip(functions(slot), chosen, strict=True)), **mine))
    return ViewInputs(**named, slots=slots)


def _taken(named: dict[str, DataNode], prefix: str) -> dict[str, DataNode]:
    """Those whose names begin so, by the rest of their names, out of `named`."""
    return {name.removeprefix(prefix): named.pop(name) for name in list(named) if name.startswith(prefix)}


@do_not_convert
def window_plan_inputs(manifest: Manifest, rows: Iterator[PlannedBatch], read_ahead: ReadAhead | None) -> PlanInputs:
    """The inputs of the window graph; as `plan_inputs`."""
    named = plan_source(manifest, window_inputs(), rows, read_ahead)
    return PlanInputs(_encoded(named, read_ahead), **named)


def plan_source(
    manifest: Manifest, inputs: dict[str, PlanInput], rows: Iterator[PlannedBatch], read_ahead: ReadAhead | None = None
) -> dict[str, DataNode]:
    """These inputs and "origin" by name, out of one source; to be called in a pipeline definition.

    "origin" is the path of each image's file as zero-padded bytes, or with `read_ahead` the image's own bytes: `fn.io.file.read`
    reads whole files only.
    """
    every = list(inputs.values())
    nodes = fn.external_source(
        source=_Feed(manifest, rows, read_ahead, every),
        num_outputs=1 + len(every),
        batch=True,
        cycle="raise",
        dtype=[_T.UINT8, *(each.dtype for each in every)],
        ndim=[1, *(each.ndim for each in every)],
    )
    return dict(zip(["origin", *inputs], nodes, strict=True))


def _encoded(named: dict[str, DataNode], read_ahead: ReadAhead | None) -> DataNode:
    origin = named.pop("origin")
    return origin if read_ahead else fn.io.file.read(origin, dont_use_mmap=True)


class _Feed:
    """A planned batch as the ExternalSource takes it: one array for each input; for encoded images a list of arrays."""

    def __init__(self, manifest: Manifest, rows: Iterator[PlannedBatch], read_ahead: ReadAhead | None, inputs: list[PlanInput]):
        self._manifest, self._rows, self._read_ahead, self._inputs = manifest, rows, read_ahead, inputs

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        if self._read_ahead:
            return ((encoded, *self._arrays(rows)) for rows, encoded in self._read_ahead(self._rows))
        return ((self._manifest.path_matrix(rows.ids), *self._arrays(rows)) for rows in self._rows)

    def _arrays(self, rows: PlannedBatch) -> Iterator[np.ndarray]:
        return (np.ascontiguousarray(each.array(rows)) for each in self._inputs)


def window_inputs() -> dict[str, PlanInput]:
    """Those of the window graph, by the names of `PlanInputs`, except the encoded image."""

    def relative(rows: PlannedBatch, place: slice) -> NDArray[np.float32]:
        return (rows.region[:, place] / rows.geometry.source).clip(0, 1).astype(np.float32)

    return {
        "source": PlanInput(_T.INT64, 1, lambda rows: rows.geometry.source[:, :1] * WIDTHS + rows.geometry.source[:, 1:]),
        "anchor": PlanInput(_T.FLOAT, 1, lambda rows: relative(rows, slice(0, 2))),
        "shape": PlanInput(_T.FLOAT, 1, lambda rows: relative(rows, slice(2, 4))),
    }


def image_inputs(transform: Transform) -> dict[str, PlanInput]:
    """Those of the image graph: of the window graph, the ids, and those of `ViewInputs` with the view's number before them."""
    inputs, views = window_inputs() | {"ids": PlanInput(_T.INT64, 0, lambda rows: rows.ids)}, views_of(transform)
    for number, each in enumerate(views):
        of_view = _view_inputs(each) | (_part_inputs() if len(views) > 1 else {})
        inputs |= {f"view {number} {name}": _of_view(number, one) for name, one in of_view.items()}
    return inputs


def _of_view(number: int, one: ViewInput) -> PlanInput:
    return PlanInput(one.dtype, one.ndim, lambda rows: one.array(rows.views[number], rows))


def _part_inputs() -> dict[str, ViewInput]:
    return {
        "start": ViewInput(_T.INT32, 1, lambda view, rows: (view.geometry.window[:, :2] - rows.region[:, :2]).astype(np.int32)),
        "size": ViewInput(_T.INT32, 1, lambda view, rows: view.geometry.window[:, 2:].astype(np.int32)),
    }


def _view_inputs(transform: Transform) -> dict[str, ViewInput]:
    """By the names of `ViewInputs`, the slots' with their number before them."""
    inputs = {"flip": ViewInput(_T.INT32, 0, lambda view, _: view.geometry.flip.astype(np.int32))}
    if getattr(transform, "vertical_flip", 0):
        inputs["vertical_flip"] = ViewInput(_T.INT32, 0, lambda view, _: view.geometry.vertical_flip.astype(np.int32))
    if transform.crops and transform.resizes:
        inputs["resize"] = ViewInput(_T.FLOAT, 1, lambda view, _: view.geometry.resize.astype(np.float32))
    if transform.crops:
        inputs["crop"] = ViewInput(_T.INT32, 1, lambda view, _: view.geometry.crop.astype(np.int32))
    if transform.pads_batches:
        inputs["canvas"] = ViewInput(_T.INT32, 1, lambda view, _: np.tile(np.array(view.shape, np.int32), (len(view.geometry), 1)))
    if transform.augmenter.erases:
        inputs["erased"] = ViewInput(_T.FLOAT, 1, lambda view, _: view.augmentation.erased[:, :2].astype(np.float32))
        inputs["erased_shape"] = ViewInput(_T.FLOAT, 1, lambda view, _: view.augmentation.erased[:, 2:].astype(np.float32))
    for number, slot in enumerate(transform.augmenter.slots):
        inputs |= {f"slot {number} {name}": each for name, each in _slot_inputs(number, slot, transform).items()}
    return inputs


def _slot_inputs(number: int, slot: Slot, transform: Transform) -> dict[str, ViewInput]:
    """By the names of `SlotInputs`, with one `chosen` for each function."""

    def drawn(view: PlannedView) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        return view.augmentation.ops[:, number], view.augmentation.magnitudes[:, number]

    def chosen(codes: list[int]) -> ViewInput:
        return ViewInput(_T.BOOL, 0, lambda view, _: np.isin(drawn(view)[0], codes))

    inputs = {f"chosen {place}": chosen(codes) for place, codes in enumerate(functions(slot).values())}
    if set(slot.ops) & set(NUMBERED):
        inputs["parameter"] = ViewInput(_T.FLOAT, 0, lambda view, _: parameters(*drawn(view)))
    if set(slot.ops) & set(AFFINE):
        shape = transform.shape
        inputs["matrix"] = ViewInput(_T.FLOAT, 2, lambda view, _: affine_matrices(*drawn(view), shape).astype(np.float32))
    if "Posterize" in slot.ops:
        inputs["mask"] = ViewInput(_T.UINT8, 0, lambda view, _: posterize_masks(*drawn(view)))
    return inputs
