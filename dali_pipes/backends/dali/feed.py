"""Feeds the plan into a DALI pipeline through one ExternalSource.

`planned_inputs` says which arrays of a planned batch the image graph needs: a `PlanInput` for each
input. `plan_nodes` replaces every `PlanInput` by a node of the graph, and `_Feed` computes the
arrays batch by batch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, types
from nvidia.dali.data_node import DataNode
from nvidia.dali.pipeline import do_not_convert
from torch.utils._pytree import tree_flatten, tree_unflatten

from dali_pipes.backends.dali.graph import PlanInputs, TurnInputs, ViewInputs, WholeInputs
from dali_pipes.backends.dali.routes import CPU, Routes
from dali_pipes.backends.read_ahead import ReadAhead
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.turns import FLIPS, TRANSPOSED, VERTICAL_FLIPS
from dali_pipes.plan.plan import PlannedBatch, PlannedView
from dali_pipes.plan.steps.functions import Augment
from dali_pipes.plan.steps.warps import WholePerspective
from dali_pipes.plan.steps.whole import DrawnStep, WholePad, WholeResize, WholeStep, fill_of
from dali_pipes.plan.transforms import Transform, views_of
from dali_pipes.plan.transforms.base import RANDOM

T = TypeVar("T")
_T = types.DALIDataType
# DALI's, by the place in `INTERPOLATIONS`
_NUMBERS = np.array([int(types.INTERP_LINEAR), int(types.INTERP_CUBIC)])


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
    inputs: PlanInputs[PlanInput],
    planned: Iterator[PlannedBatch],
    read_ahead: ReadAhead | None,
) -> PlanInputs[DataNode]:
    """The inputs with a node of the graph in place of each `PlanInput`.

    All come out of one source. Call it in a pipeline definition. `read_ahead` reads images from
    shards; without it each image is a separate file, which DALI reads.
    """
    leaves, form = tree_flatten(inputs)
    every = [leaf for leaf in leaves if isinstance(leaf, PlanInput)]

    origin, *rest = fn.external_source(
        source=_Feed(planned, read_ahead, every),
        num_outputs=1 + len(every),
        batch=True,
        cycle="raise",
        dtype=[_T.UINT8, *(entry.dtype for entry in every)],
        ndim=[1, *(entry.ndim for entry in every)],
    )

    nodes = iter(rest)
    nodes_of_graph: PlanInputs[DataNode] = tree_unflatten(
        [next(nodes) if isinstance(leaf, PlanInput) else leaf for leaf in leaves], form
    )
    # mmap takes more than twice as long, and after a missing file the pipeline hangs
    encoded = origin if read_ahead else fn.io.file.read(origin, dont_use_mmap=True)
    return replace(nodes_of_graph, encoded=encoded)


class _Feed:
    """Yields planned batches in the form that the ExternalSource takes.

    First comes the path of each image's file as zero-padded bytes; with `read_ahead` a list of the
    images' own bytes, since `fn.io.file.read` reads whole files only. Then follows one array for
    each input.
    """

    def __init__(
        self,
        planned: Iterator[PlannedBatch],
        read_ahead: ReadAhead | None,
        inputs: list[PlanInput],
    ):
        self._planned, self._read_ahead = planned, read_ahead
        self._inputs = [(entry.array, types.to_numpy_type(entry.dtype)) for entry in inputs]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        if self._read_ahead:
            return (
                (encoded, *self._arrays(planned))
                for planned, encoded in self._read_ahead(self._planned)
            )
        return (
            # only a manifest has files of one image each
            (cast(Manifest, planned.images).path_matrix(planned.ids), *self._arrays(planned))
            for planned in self._planned
        )

    def _arrays(self, planned: PlannedBatch) -> Iterator[np.ndarray]:
        return (np.ascontiguousarray(array(planned), dtype) for array, dtype in self._inputs)


@do_not_convert
def planned_inputs(
    transform: Transform,
    only_decodes: bool = False,
    routes: Routes | None = None,
) -> PlanInputs[PlanInput]:
    """The inputs of the image graph; with `only_decodes` those of the region graph only.

    `routes` says which decoder takes an image; None: there is one decoder.
    """
    is_upright = transform.exif == "apply"
    inputs = _region_inputs(_stored_region if is_upright else _planned_region)
    if is_upright:
        inputs = replace(inputs, turn=_turn_inputs())
    if routes:
        inputs = _with_routes(inputs, routes)
    # one for each sample, as all inputs are, though it is the batch's
    number = PlanInput(_T.INT64, 0, lambda planned: np.full(len(planned), id(planned)))
    inputs = replace(inputs, number=number)
    if only_decodes:
        return inputs

    views = views_of(transform)
    is_part = len(views) > 1 and not transform.shares_resize
    each_view = [_view_inputs(number, view, is_part) for number, view in enumerate(views)]
    if transform.shares_resize:
        each_view[1:] = [replace(view, resize=None) for view in each_view[1:]]
    return replace(inputs, views=each_view)


def _with_routes(inputs: PlanInputs[PlanInput], routes: Routes) -> PlanInputs[PlanInput]:
    """The inputs, and which decoder takes each image."""

    @_once_a_batch
    def chosen(planned: PlannedBatch) -> NDArray[np.int8]:
        return routes.choose(planned.images, planned.ids)

    def is_for(route: int) -> PlanInput:
        return PlanInput(_T.BOOL, 0, lambda planned: chosen(planned) == route)

    engines = [is_for(1 + number) for number in range(routes.decoder_count)]
    return replace(inputs, engines=engines, on_cpu=is_for(CPU) if routes.cpu_share else None)


def _once_a_batch(function: Callable[[PlannedBatch], T]) -> Callable[[PlannedBatch], T]:
    """The function, called once for inputs that ask one after the other for the same batch."""
    last: tuple[PlannedBatch, T] | None = None

    def kept(planned: PlannedBatch) -> T:
        nonlocal last
        if (known := last) is None or known[0] is not planned:
            last = known = (planned, function(planned))
        return known[1]

    return kept


class _Region(NamedTuple):
    """The region of each image that is decoded, (N, 2) pixels each, y before x."""

    image: NDArray[np.int64]  # height and width of the image
    start: NDArray[np.int64]
    size: NDArray[np.int64]


def _planned_region(planned: PlannedBatch) -> _Region:
    """In the images that the plan is made for, stored or upright."""
    return _Region(planned.source, planned.region[:, :2], planned.region[:, 2:])


def _stored_region(planned: PlannedBatch) -> _Region:
    """In the stored images, if the plan is made for upright ones."""
    image, start, size = _planned_region(planned)
    orientations = planned.images.take_orientations(planned.ids)
    mirrored = np.stack([np.isin(orientations, flips) for flips in (VERTICAL_FLIPS, FLIPS)], axis=1)

    # the way back from upright to stored: first undo the mirroring, then swap the axes
    start = np.where(mirrored, image - start - size, start)
    transposed = np.isin(orientations, TRANSPOSED)[:, None]
    return _Region(*(np.where(transposed, pairs[:, ::-1], pairs) for pairs in (image, start, size)))


def _turn_inputs() -> TurnInputs[PlanInput]:
    """How the stored regions are turned upright."""

    def one_of(orientations: Sequence[int], dtype: types.DALIDataType) -> PlanInput:
        return PlanInput(
            dtype,
            0,
            lambda planned: np.isin(planned.images.take_orientations(planned.ids), orientations),
        )

    return TurnInputs(
        turns=one_of(range(2, 9), _T.BOOL),
        transposes=one_of(TRANSPOSED, _T.BOOL),
        flip=one_of(FLIPS, _T.INT32),
        vertical_flip=one_of(VERTICAL_FLIPS, _T.INT32),
    )


def _region_inputs(region_of: Callable[[PlannedBatch], _Region]) -> PlanInputs[PlanInput]:
    """The inputs that say which region of a stored image is decoded."""
    stored = _once_a_batch(region_of)

    def source(planned: PlannedBatch) -> NDArray[np.int64]:
        return np.pad(stored(planned).image, ((0, 0), (0, 1)))

    def relative(name: str) -> PlanInput:
        def array(planned: PlannedBatch) -> NDArray[np.float64]:
            region = stored(planned)
            # rounding to float32 must not move a region out of the image
            return (getattr(region, name) / region.image).clip(0, 1)

        return PlanInput(_T.FLOAT, 1, array)

    return PlanInputs(PlanInput(_T.INT32, 1, source), relative("start"), relative("size"))


def _view_inputs(number: int, transform: Transform, is_part: bool) -> ViewInputs[PlanInput]:
    """The inputs of one view; None for what its transform does not need.

    `is_part` says that what is decoded holds the regions of other views too.
    """

    def start(planned: PlannedBatch) -> NDArray[np.int64]:
        return planned.views[number].geometry.region_start - planned.region[:, :2]

    def of_view(
        is_needed: bool,
        dtype: types.DALIDataType,
        ndim: int,
        array: Callable[[PlannedView], np.ndarray],
    ) -> PlanInput | None:
        of_batch = PlanInput(dtype, ndim, lambda planned: array(planned.views[number]))
        return of_batch if is_needed else None

    before = getattr(transform, "before", [])
    is_cut = is_part or bool(before)
    # only if it is needed: with this input `_finished_graph` has one more operator, fn.flip
    mirrors = bool(getattr(transform, "vertical_flip", 0))
    # without a crop all images are resized to the same size, which the graph has from the transform
    crops, erases = transform.crops, transform.augmenter.erases
    resizes, pads = crops and transform.resizes, transform.pads_batches
    is_random = transform.interpolation == RANDOM

    # fn.resize takes sizes as floats, and fn.erase anchors and shapes
    return ViewInputs(
        before=[_whole_inputs(number, place, step) for place, step in enumerate(before)],
        start=PlanInput(_T.INT32, 1, start) if is_cut else None,
        size=of_view(is_cut, _T.INT32, 1, lambda view: view.geometry.region_size),
        flip=of_view(True, _T.INT32, 0, lambda view: view.geometry.flip),
        vertical_flip=of_view(mirrors, _T.INT32, 0, lambda view: view.geometry.vertical_flip),
        interpolation=of_view(is_random, _T.INT32, 0, lambda view: _NUMBERS[view.interpolations]),
        resize=of_view(resizes, _T.FLOAT, 1, lambda view: view.geometry.resize),
        crop=of_view(crops, _T.INT32, 1, lambda view: view.geometry.crop),
        canvas=of_view(
            pads, _T.INT32, 1, lambda view: np.tile(view.shape, (len(view.geometry), 1))
        ),
        erased=of_view(erases, _T.FLOAT, 1, lambda view: view.augmentation.erased[:, :2]),
        erased_shape=of_view(erases, _T.FLOAT, 1, lambda view: view.augmentation.erased[:, 2:]),
    )


def beyond_graph(step: WholeStep | Augment) -> tuple[str, str] | None:
    """What of a step on whole images DALI has no operator for, and what avoids that, if anything;
    None: there is nothing.

    DALI has no perspectives, and another cubic filter than OpenCV. Where it interpolates a warp it
    blends the edges of an image with what is around them, which Pillow does not; and what is around
    them is gray.
    """
    if isinstance(step, Augment):
        return f"the function {step.title}", ""
    if isinstance(step, WholePerspective):
        return step.name, ""
    if isinstance(step, WholePad):
        return None
    if isinstance(step, WholeResize):
        is_lacking = step.interpolation == "bicubic" and not step.antialias
        wrong = f"{step.name} with interpolation=bicubic and antialias=False"
        return (wrong, "interpolation=bilinear") if is_lacking else None

    if step.interpolation != "nearest":
        wrong = f"{step.name} with interpolation={step.interpolation}"
        return wrong, "interpolation=nearest"
    fill = fill_of(step)
    return (f"{step.name} with fill={list(fill)}", "a gray fill") if len(set(fill)) > 1 else None


def _whole_inputs(number: int, place: int, step: WholeStep) -> WholeInputs[PlanInput]:
    def drawn_of(planned: PlannedBatch) -> DrawnStep:
        return planned.views[number].before[place]

    def matrices(planned: PlannedBatch) -> NDArray[np.float64]:
        drawn = drawn_of(planned)
        moved = drawn.numbers[:, :6].reshape(-1, 2, 3)
        return np.where(drawn.happens[:, None, None], moved, np.eye(2, 3))

    # Pillow's "nearest" takes the pixel at the centre
    interpolation = step.interpolation.replace("nearest", "nearest-exact")
    size = PlanInput(_T.FLOAT, 1, lambda planned: drawn_of(planned).size)
    if isinstance(step, WholeResize):
        return WholeInputs(interpolation, size, antialias=step.antialias)
    fill = fill_of(step)
    if isinstance(step, WholePad):
        return _pad_inputs(step, size, interpolation, drawn_of)
    return WholeInputs(interpolation, size, PlanInput(_T.FLOAT, 2, matrices), fill=fill)


def _pad_inputs(
    step: WholePad,
    size: PlanInput,
    interpolation: str,
    drawn_of: Callable[[PlannedBatch], DrawnStep],
) -> WholeInputs[PlanInput]:
    mode, fill = step.padding_mode, fill_of(step)

    def corner(planned: PlannedBatch) -> NDArray[np.float64]:
        drawn = drawn_of(planned)
        outside = -drawn.numbers[:, 1::-1]
        if mode == "constant":
            return outside
        # in the image between its mirror images
        return outside + drawn.source - (mode == "reflect")

    def shift(planned: PlannedBatch) -> NDArray[np.float64]:
        left, top = drawn_of(planned).numbers[:, :2].T
        moved = np.tile(np.eye(2, 3), (len(left), 1, 1))
        moved[:, :, 2] = -np.stack([left, top], axis=1)
        return moved

    if mode == "edge":
        matrix = PlanInput(_T.FLOAT, 2, shift)
        return WholeInputs(interpolation, size, matrix, extends=mode)
    pixels = PlanInput(_T.INT32, 1, lambda planned: drawn_of(planned).size)
    start = PlanInput(_T.INT32, 1, corner)
    return WholeInputs(interpolation, pixels, corner=start, fill=fill, extends=mode)
