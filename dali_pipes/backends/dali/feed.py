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
from dali_pipes.backends.dali.graph import WIDTHS, PlanInputs
from dali_pipes.data.manifest import Manifest
from dali_pipes.plan.augment.operations import AFFINE, Slot, affine_matrices
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import Transform

_T = types.DALIDataType


@dataclass(frozen=True, slots=True)
class PlanInput:
    """One input of the graph: its type and dimensions for one sample, and the array of a batch."""

    dtype: types.DALIDataType
    ndim: int
    array: Callable[[PlannedBatch], np.ndarray]


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
    slots = []
    for number, slot in enumerate(transform.augmenter.slots):
        prefix = f"slot {number} "
        mine = {name.removeprefix(prefix): named.pop(name) for name in list(named) if name.startswith(prefix)}
        chosen = [mine.pop(name) for name in list(mine) if name.startswith("chosen")]
        slots.append(SlotInputs(slot, dict(zip(functions(slot), chosen, strict=True)), **mine))
    return PlanInputs(encoded, **named, slots=slots), ids


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
        geometry = rows.geometry
        return (geometry.window[:, place] / geometry.source).clip(0, 1).astype(np.float32)

    return {
        "source": PlanInput(_T.INT64, 1, lambda rows: rows.geometry.source[:, :1] * WIDTHS + rows.geometry.source[:, 1:]),
        "anchor": PlanInput(_T.FLOAT, 1, lambda rows: relative(rows, slice(0, 2))),
        "shape": PlanInput(_T.FLOAT, 1, lambda rows: relative(rows, slice(2, 4))),
    }


def image_inputs(transform: Transform) -> dict[str, PlanInput]:
    """Those of the image graph, by the names of `PlanInputs`, the slots' with their number before them, and the ids."""
    inputs = window_inputs() | {
        "flip": PlanInput(_T.INT32, 0, lambda rows: rows.geometry.flip.astype(np.int32)),
        "ids": PlanInput(_T.INT64, 0, lambda rows: rows.ids),
    }
    if getattr(transform, "vertical_flip", 0):
        inputs["vertical_flip"] = PlanInput(_T.INT32, 0, lambda rows: rows.geometry.vertical_flip.astype(np.int32))
    if transform.crops and transform.resizes:
        inputs["resize"] = PlanInput(_T.FLOAT, 1, lambda rows: rows.geometry.resize.astype(np.float32))
    if transform.crops:
        inputs["crop"] = PlanInput(_T.INT32, 1, lambda rows: rows.geometry.crop.astype(np.int32))
    if transform.augmenter.erases:
        inputs["erased"] = PlanInput(_T.FLOAT, 1, lambda rows: rows.augmentation.erased[:, :2].astype(np.float32))
        inputs["erased_shape"] = PlanInput(_T.FLOAT, 1, lambda rows: rows.augmentation.erased[:, 2:].astype(np.float32))
    for number, slot in enumerate(transform.augmenter.slots):
        inputs |= {f"slot {number} {name}": each for name, each in _slot_inputs(number, slot, transform).items()}
    return inputs


def _slot_inputs(number: int, slot: Slot, transform: Transform) -> dict[str, PlanInput]:
    """By the names of `SlotInputs`, with one `chosen` for each function."""

    def drawn(rows: PlannedBatch) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        return rows.augmentation.ops[:, number], rows.augmentation.magnitudes[:, number]

    def chosen(codes: list[int]) -> PlanInput:
        return PlanInput(_T.BOOL, 0, lambda rows: np.isin(drawn(rows)[0], codes))

    inputs = {f"chosen {place}": chosen(codes) for place, codes in enumerate(functions(slot).values())}
    if set(slot.ops) & set(NUMBERED):
        inputs["parameter"] = PlanInput(_T.FLOAT, 0, lambda rows: parameters(*drawn(rows)))
    if set(slot.ops) & set(AFFINE):
        shape = transform.shape
        inputs["matrix"] = PlanInput(_T.FLOAT, 2, lambda rows: affine_matrices(*drawn(rows), shape).astype(np.float32))
    if "Posterize" in slot.ops:
        inputs["mask"] = PlanInput(_T.UINT8, 0, lambda rows: posterize_masks(*drawn(rows)))
    return inputs
