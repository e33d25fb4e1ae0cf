"""Feeds the plan into a DALI pipeline through one ExternalSource.

`planned_inputs` says which arrays of a planned batch the image graph needs: a `PlanInput` for each
input. `plan_nodes` replaces every `PlanInput` by a node of the graph, and `_Feed` computes the
arrays batch by batch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, types
from nvidia.dali.pipeline import do_not_convert
from torch.utils._pytree import tree_flatten, tree_unflatten

from dali_pipes.backends.common.read_ahead import ReadAhead
from dali_pipes.backends.dali.augment import (
    NUMBERED,
    SlotInputs,
    functions,
    parameters,
    posterize_masks,
)
from dali_pipes.backends.dali.graph import WIDTHS, PlanInputs, TurnInputs, ViewInputs
from dali_pipes.data.manifest import Manifest
from dali_pipes.plan.augment.operations import AFFINE, Slot, affine_matrices
from dali_pipes.plan.coordinates import FLIPS, TRANSPOSED, VERTICAL_FLIPS
from dali_pipes.plan.geometry import Pair
from dali_pipes.plan.plan import PlannedBatch, PlannedView
from dali_pipes.plan.transforms import Transform, views_of

_T = types.DALIDataType


@dataclass(frozen=True, slots=True)
class PlanInput:
    """One input of the graph.

    Attributes:
        dtype, ndim: for one sample.
        array: computes the values of a whole batch.
    """

    dtype: types.DALIDataType
    ndim: int
    array: Callable[[PlannedBatch], np.ndarray]


@do_not_convert  # DALI's conditionals support only a part of Python
def plan_nodes(
    manifest: Manifest,
    inputs: PlanInputs,
    planned: Iterator[PlannedBatch],
    read_ahead: ReadAhead | None,
) -> PlanInputs:
    """The inputs with a node of the graph in place of each `PlanInput`.

    All come out of one source. Call it in a pipeline definition. `read_ahead` reads images from
    shards; without it each image is a separate file, which DALI reads.
    """
    leaves, form = tree_flatten(inputs)
    every = [each for each in leaves if isinstance(each, PlanInput)]

    origin, *rest = fn.external_source(
        source=_Feed(manifest, planned, read_ahead, every),
        num_outputs=1 + len(every),
        batch=True,
        cycle="raise",
        dtype=[_T.UINT8, *(each.dtype for each in every)],
        ndim=[1, *(each.ndim for each in every)],
    )

    nodes = iter(rest)
    filled: PlanInputs = tree_unflatten(
        [next(nodes) if isinstance(each, PlanInput) else each for each in leaves], form
    )
    return replace(filled, encoded=_encoded(origin, read_ahead))


def _encoded(origin: Any, read_ahead: ReadAhead | None) -> Any:
    # mmap takes more than twice as long, and after a missing file the pipeline hangs
    return origin if read_ahead else fn.io.file.read(origin, dont_use_mmap=True)


class _Feed:
    """Yields planned batches in the form that the ExternalSource takes.

    First comes the path of each image's file as zero-padded bytes; with `read_ahead` a list of the
    images' own bytes, since `fn.io.file.read` reads whole files only. Then follows one array for
    each input.
    """

    def __init__(
        self,
        manifest: Manifest,
        planned: Iterator[PlannedBatch],
        read_ahead: ReadAhead | None,
        inputs: list[PlanInput],
    ):
        self._manifest, self._planned, self._read_ahead = manifest, planned, read_ahead
        self._inputs = [(each.array, types.to_numpy_type(each.dtype)) for each in inputs]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        if self._read_ahead:
            return (
                (encoded, *self._arrays(planned))
                for planned, encoded in self._read_ahead(self._planned)
            )
        return (
            (self._manifest.path_matrix(planned.ids), *self._arrays(planned))
            for planned in self._planned
        )

    def _arrays(self, planned: PlannedBatch) -> Iterator[np.ndarray]:
        return (np.ascontiguousarray(array(planned), dtype) for array, dtype in self._inputs)


@do_not_convert
def planned_inputs(
    manifest: Manifest, transform: Transform, only_decodes: bool = False
) -> PlanInputs:
    """The inputs of the image graph; with `only_decodes` those of the region graph only."""
    inputs = _upright_inputs(manifest) if transform.exif == "apply" else _stored_inputs()
    if only_decodes:
        return replace(
            inputs,
            number=PlanInput(_T.INT64, 0, lambda planned: np.full(len(planned), id(planned))),
        )
    views = views_of(transform)
    of_views = [_view_inputs(number, each, len(views) > 1) for number, each in enumerate(views)]
    return replace(inputs, ids=PlanInput(_T.INT64, 0, lambda planned: planned.ids), views=of_views)


def _stored_inputs() -> PlanInputs:
    """The inputs of the region graph, if the plan is made for pixels as stored."""
    return _region_inputs(
        lambda planned: (planned.geometry.source, planned.region[:, :2], planned.region[:, 2:])
    )


def _upright_inputs(manifest: Manifest) -> PlanInputs:
    """The inputs of the region graph, if the plan is made for upright pixels.

    They are the region in the stored image, and how it is turned.
    """

    def stored(
        planned: PlannedBatch,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        size, start, shape = planned.geometry.source, planned.region[:, :2], planned.region[:, 2:]
        orientations = manifest.take_orientations(planned.ids)
        mirrored = np.stack(
            [np.isin(orientations, flips) for flips in (VERTICAL_FLIPS, FLIPS)], axis=1
        )

        # the way back from upright to stored: first undo the mirroring, then swap the axes
        start = np.where(mirrored, size - start - shape, start)
        transposed = np.isin(orientations, TRANSPOSED)[:, None]
        first, second, third = (
            np.where(transposed, each[:, ::-1], each) for each in (size, start, shape)
        )
        return first, second, third

    def one_of(orientations: Sequence[int], dtype: types.DALIDataType) -> PlanInput:
        return PlanInput(
            dtype, 0, lambda planned: np.isin(manifest.take_orientations(planned.ids), orientations)
        )

    turn = TurnInputs(
        turns=one_of(range(2, 9), _T.BOOL),
        transposes=one_of(TRANSPOSED, _T.BOOL),
        flip=one_of(FLIPS, _T.INT32),
        vertical_flip=one_of(VERTICAL_FLIPS, _T.INT32),
    )
    return replace(_region_inputs(stored), turn=turn)


def _region_inputs(
    stored: Callable[
        [PlannedBatch], tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
    ],
) -> PlanInputs:
    """The inputs that say which region of a stored image is decoded.

    `stored` returns the size of the stored images, and the start and the shape of the regions, each
    (N, 2).
    """

    def source(planned: PlannedBatch) -> NDArray[np.int64]:
        size = stored(planned)[0]
        return size[:, :1] * WIDTHS + size[:, 1:]

    def relative(planned: PlannedBatch, which: int) -> NDArray[np.float64]:
        region = stored(planned)
        # rounding to float32 must not move a region out of the image
        return (region[which] / region[0]).clip(0, 1)

    return PlanInputs(
        source=PlanInput(_T.INT64, 1, source),
        anchor=PlanInput(_T.FLOAT, 1, lambda planned: relative(planned, 1)),
        shape=PlanInput(_T.FLOAT, 1, lambda planned: relative(planned, 2)),
    )


def _view_inputs(number: int, transform: Transform, is_part: bool) -> ViewInputs:
    """The inputs of one view.

    `is_part` says that the region holds those of other views too.
    """

    def view_input(
        dtype: types.DALIDataType, ndim: int, array: Callable[[PlannedView], np.ndarray]
    ) -> PlanInput:
        return PlanInput(dtype, ndim, lambda planned: array(planned.views[number]))

    def start(planned: PlannedBatch) -> NDArray[np.int64]:
        return planned.views[number].geometry.window[:, :2] - planned.region[:, :2]

    crops, erases = transform.crops, transform.augmenter.erases
    # an input that this transform does not need is falsy, and left out below
    inputs = {
        "start": is_part and PlanInput(_T.INT32, 1, start),
        "size": is_part and view_input(_T.INT32, 1, lambda view: view.geometry.window[:, 2:]),
        "flip": view_input(_T.INT32, 0, lambda view: view.geometry.flip),
        "vertical_flip": getattr(transform, "vertical_flip", 0)
        and view_input(_T.INT32, 0, lambda view: view.geometry.vertical_flip),
        "resize": crops
        and transform.resizes
        and view_input(_T.FLOAT, 1, lambda view: view.geometry.resize),
        "crop": crops and view_input(_T.INT32, 1, lambda view: view.geometry.crop),
        "canvas": transform.pads_batches
        and view_input(_T.INT32, 1, lambda view: np.tile(view.shape, (len(view.geometry), 1))),
        "erased": erases and view_input(_T.FLOAT, 1, lambda view: view.augmentation.erased[:, :2]),
        "erased_shape": erases
        and view_input(_T.FLOAT, 1, lambda view: view.augmentation.erased[:, 2:]),
    }

    slots = [
        _slot_inputs(number, place, slot, transform.shape)
        for place, slot in enumerate(transform.augmenter.slots)
    ]

    return ViewInputs(**{name: each for name, each in inputs.items() if each}, slots=slots)


def _slot_inputs(number: int, place: int, slot: Slot, shape: Pair) -> SlotInputs:
    def draws_of(planned: PlannedBatch) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        augmentation = planned.views[number].augmentation
        return augmentation.ops[:, place], augmentation.magnitudes[:, place]

    def choice_input(codes: list[int]) -> PlanInput:
        return PlanInput(_T.BOOL, 0, lambda planned: np.isin(draws_of(planned)[0], codes))

    ops, by_function = (
        set(slot.ops),
        {function: choice_input(codes) for function, codes in functions(slot).items()},
    )

    inputs = {
        "parameter": ops & set(NUMBERED)
        and PlanInput(_T.FLOAT, 0, lambda planned: parameters(*draws_of(planned))),
        "matrix": ops & set(AFFINE)
        and PlanInput(_T.FLOAT, 2, lambda planned: affine_matrices(*draws_of(planned), shape)),
        "mask": "Posterize" in ops
        and PlanInput(_T.UINT8, 0, lambda planned: posterize_masks(*draws_of(planned))),
    }
    return SlotInputs(
        slot, shape, by_function, **{name: each for name, each in inputs.items() if each}
    )
