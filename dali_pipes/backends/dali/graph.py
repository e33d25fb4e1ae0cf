"""The image graph: from encoded bytes to regions, and on to finished pixels.

All are plain functions of the plan's inputs and the device. `region_graph` checks the header,
decodes and turns the image upright; `image_graph` slices, resizes, crops, flips, normalizes and
erases each view of it. Where a transform augments, the graph ends with bytes, and PyTorch goes on
(pixels/finish.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, math, types
from nvidia.dali.data_node import DataNode
from torch.utils._pytree import register_dataclass

from dali_pipes.backends.dali.config import DaliOptions
from dali_pipes.backends.dali.decoding import output_dtype, preallocation
from dali_pipes.plan.transforms import Transform, views_of

# An input of the graph: feed.py's `PlanInput`, which says how the plan gives it, or the node of the
# graph that replaces it.
Input = TypeVar("Input")
_DTYPES = {
    "fp32": types.DALIDataType.FLOAT,
    "fp16": types.DALIDataType.FLOAT16,
    "uint8": types.DALIDataType.UINT8,
}
_INTERPOLATION = types.DALIDataType.INTERP_TYPE
_FILTERS: dict[str, dict[str, Any]] = {  # options of fn.resize by `Transform.interpolation`
    "bilinear": {},
    "bicubic": {"interp_type": types.DALIInterpType.INTERP_CUBIC},
    "nearest-exact": {"interp_type": types.DALIInterpType.INTERP_NN},
}
# Decoders are told not to turn an image: they read other EXIF tags than the scan does, and the plan
# is made from the scan.
_AS_STORED = {"output_type": types.DALIImageType.RGB, "adjust_orientation": False}
_MOST_LOAD = 16.0  # of a decoder that uses the JPEG engine only
ON_CPU: dict[str, Any] = _AS_STORED | {"device": "cpu"}
_WINDOW: dict[str, Any] = {"axes": [0, 1], "normalized_anchor": True, "normalized_shape": True}


@dataclass(frozen=True, slots=True)
class PlanInputs(Generic[Input]):
    """The graph's inputs for each sample; all are on the CPU.

    `PlanInputs[PlanInput]` says how the plan gives them; `PlanInputs[DataNode]` are the nodes of
    the graph.
    """

    # height and width of the stored image when it was scanned, and 0: an INT32 of shape (3,)
    source: Input
    # anchor, shape: the region to decode, (y, x) and (height, width) relative to the image's size.
    # A region that leaves the image crashes the process; a relative one stays inside, even if the
    # file has been replaced by a smaller one since the scan.
    anchor: Input
    shape: Input
    # for each decoder that uses the JPEG engine whether it decodes the image, BOOL scalars
    engines: list[Input] = field(default_factory=list)
    on_cpu: Input | None = None  # whether the CPU decodes it, a BOOL scalar; None: it decodes none
    number: Input | None = None  # of the planned batch, as `InWork` has it, INT64 scalars
    views: list["ViewInputs[Input]"] = field(default_factory=list)  # what is made of the region
    encoded: Input | None = None  # the image's encoded bytes
    # what makes a stored region upright; None: it is taken as stored
    turn: "TurnInputs[Input] | None" = None


@dataclass(frozen=True, slots=True)
class TurnInputs(Generic[Input]):
    """What EXIF's orientation means for each sample; all inputs are on the CPU.

    First rows become columns, then both axes may be mirrored.
    """

    turns: Input  # whether anything is done, a BOOL scalar
    transposes: Input  # a BOOL scalar
    flip: Input  # 1 to mirror left to right
    vertical_flip: Input  # 1 to mirror top to bottom


@dataclass(frozen=True, slots=True)
class WholeInputs(Generic[Input]):
    """The graph's inputs for each sample of one step on whole images; all are on the CPU."""

    interpolation: str
    size: Input  # height and width after the step
    # from pixels of the result to those of the image, FLOAT of shape (2, 3); None: it does not warp
    matrix: Input | None = None
    antialias: bool = True  # of a resize
    # top and left of the result in the image, negative where it pads, or in the image that is
    # extended as `extends` says; None: it does not pad, or it repeats the edges by a `matrix`
    corner: Input | None = None
    fill: tuple[int, int, int] = (0, 0, 0)  # of what comes from outside the image
    extends: str = "constant"  # with what: `fill`, or as `WholePad.padding_mode`


@dataclass(frozen=True, slots=True)
class ViewInputs(Generic[Input]):
    """The graph's inputs for each sample of one view; all are on the CPU."""

    before: list[WholeInputs[Input]] = field(default_factory=list)  # steps on whole images
    # start, size: the view's own region in what is decoded, (y, x) and (height, width); None: all
    start: Input | None = None
    size: Input | None = None
    # flip, vertical_flip: 1 to mirror left to right, top to bottom; None: never
    flip: Input | None = None
    vertical_flip: Input | None = None
    # DALI's number of the interpolation, an INT32 scalar; None: all have that of the transform
    interpolation: Input | None = None
    resize: Input | None = None  # height and width to resize to; None: the output size
    crop: Input | None = None  # top and left of the output in the resized image; None: all of it
    canvas: Input | None = None  # height and width of the output; None: those of the transform
    # erased, erased_shape: the region set to zero, (y, x) and (height, width); None: there is none
    erased: Input | None = None
    erased_shape: Input | None = None


for _each in (PlanInputs, TurnInputs, WholeInputs, ViewInputs):
    register_dataclass(_each)


@dataclass(frozen=True, slots=True)
class Decoders:
    """The options of the decoders of a graph, which work at the same time.

    Attributes:
        main: of the one that decodes what the others do not.
        engines: of those that use the JPEG engine, one for each of `PlanInputs.engines`.
    """

    main: dict[str, Any]
    engines: list[dict[str, Any]] = field(default_factory=list)


def image_graph(
    inputs: PlanInputs[DataNode],
    transform: Transform,
    decoders: Decoders,
    region: bool,
    device: str,
) -> tuple[DataNode, ...]:
    """The images of each view, (height, width, C) or (C, height, width), on `device`; C is the
    transform's `channels`.

    On a GPU the CPU reads bytes, checks headers, and decodes what nvJPEG leaves to it.

    Args:
        region: decode the planned region only, not the whole image.
        device: "cpu" or "gpu".
    """
    image = region_graph(inputs, transform, decoders, region)
    made, resized = [], image
    for place, each in enumerate(views_of(transform)):
        if place == 0 or not transform.shares_resize:
            resized = _resized_graph(image, inputs.views[place], each)
        made.append(_finished_graph(resized, inputs.views[place], each, device))
    return tuple(made)


def _resized_graph(image: DataNode, inputs: ViewInputs[DataNode], transform: Transform) -> DataNode:
    """The resized region of one view, out of decoded regions."""
    for step in inputs.before:
        image = _whole_step(image, step, transform.channels)
    if inputs.start is not None:
        image = fn.slice(image, inputs.start, inputs.size, axes=[0, 1])

    if transform.resizes:
        size = transform.shape if inputs.resize is None else inputs.resize
        filters = (
            filter_of(transform)
            if inputs.interpolation is None
            else {"interp_type": fn.reinterpret(inputs.interpolation, dtype=_INTERPOLATION)}
        )
        image = fn.resize(image, size=size, **filters)
    return image


def _finished_graph(
    image: DataNode, inputs: ViewInputs[DataNode], transform: Transform, device: str
) -> DataNode:
    """One view of resized regions, finished; arguments as for `image_graph`."""
    if inputs.crop is not None:
        shape = transform.shape if inputs.canvas is None else inputs.canvas
        image = fn.slice(
            image, start=inputs.crop, shape=shape, axes=[0, 1], out_of_bounds_policy="pad"
        )

    flip: DataNode | int = 0 if inputs.flip is None else inputs.flip
    # `normalize` flips left to right at no cost, but not top to bottom
    if inputs.vertical_flip is not None:
        image, flip = fn.flip(image, horizontal=flip, vertical=inputs.vertical_flip), 0

    return erase(
        normalize(image, flip, transform, device), inputs, _DTYPES[output_dtype(transform, device)]
    )


def _whole_step(image: DataNode, inputs: WholeInputs[DataNode], channels: int) -> DataNode:
    if inputs.corner is not None:
        # beyond the mirror images there is nothing, and black would be silently wrong
        beyond: dict[str, Any] = {"out_of_bounds_policy": "error"}
        if inputs.extends != "constant":
            image = _mirrored(image, inputs.extends)
        else:
            fill = list(map(float, inputs.fill[:channels]))
            beyond = {"out_of_bounds_policy": "pad", "fill_values": fill}
        return fn.slice(image, start=inputs.corner, shape=inputs.size, axes=[0, 1], **beyond)
    if inputs.matrix is None:
        return fn.resize(image, size=inputs.size, **_filter(inputs.interpolation, inputs.antialias))
    # without a fill, DALI repeats the edges
    around: dict[str, Any] = (
        {"fill_value": float(inputs.fill[0])} if inputs.extends == "constant" else {}
    )
    return fn.warp_affine(
        image,
        matrix=inputs.matrix,
        size=inputs.size,
        interp_type=types.DALIInterpType.INTERP_NN,
        **around,
    )


def _mirrored(image: DataNode, mode: str) -> DataNode:
    """The image between mirror images of it, along both axes; "reflect" leaves out their innermost
    row or column, which would be there twice.

    It is nine times as large until it is cut, since DALI has no padding that mirrors.
    """
    rows = fn.flip(image, horizontal=0, vertical=1)
    above, below = (rows[:-1], rows[1:]) if mode == "reflect" else (rows, rows)
    image = fn.cat(above, image, below, axis=0)
    columns = fn.flip(image, horizontal=1)
    left, right = (columns[:, :-1], columns[:, 1:]) if mode == "reflect" else (columns, columns)
    return fn.cat(left, image, right, axis=1)


def filter_of(transform: Transform) -> dict[str, Any]:
    """The options of fn.resize that choose its filter."""
    return _filter(transform.interpolation, transform.antialias)


def _filter(interpolation: str, antialias: bool) -> dict[str, Any]:
    smooth = {} if interpolation == "nearest-exact" else {"antialias": antialias}
    return _FILTERS[interpolation] | smooth


def region_graph(
    inputs: PlanInputs[DataNode], transform: Transform, decoders: Decoders, region: bool
) -> DataNode:
    """The planned regions, (height, width, C) uint8; arguments as for `image_graph`.

    The pipeline needs conditionals if `inputs.turn` is set, or if there is more than one decoder.
    """
    header = fn.peek_image_shape(inputs.encoded, adjust_orientation=False)
    encoded = _check_header(inputs.encoded, header, inputs.source)

    stored = _decode(encoded, inputs, decoders, region)
    region_of_view = gray(stored) if transform.channels == 1 else stored
    return region_of_view if inputs.turn is None else _upright(region_of_view, inputs.turn)


def gray(image: DataNode) -> DataNode:
    """(height, width, 1) uint8 of (height, width, 3), as pixels/gray.py makes it, but for one color
    in 770, whose luma is nearly halfway between two numbers: DALI's weights have three decimals.

    fn.coord_transform has all of Pillow's numbers, and takes ten times as long on a CPU.
    """
    return fn.color_space_conversion(
        image, image_type=types.DALIImageType.RGB, output_type=types.DALIImageType.GRAY
    )


def _decode(
    encoded: DataNode, inputs: PlanInputs[DataNode], decoders: Decoders, region: bool
) -> DataNode:
    """The planned regions as they are stored, of images that `_check_header` has let through."""
    window = (inputs.anchor, inputs.shape)
    if inputs.on_cpu is None:
        return _decode_apart(encoded, inputs.engines, decoders, window, region)

    if inputs.on_cpu:
        image = fn.decoders.image_slice(encoded, *window, **ON_CPU, **_WINDOW).gpu()
    else:
        image = _decode_apart(encoded, inputs.engines, decoders, window, region)
    return image


def _decode_apart(
    encoded: DataNode,
    engines: list[DataNode],
    decoders: Decoders,
    window: tuple[DataNode, DataNode],
    region: bool,
) -> DataNode:
    """The planned regions of images that the GPU decodes, each by the decoder of its route."""
    if region:
        return _decode_routed(
            encoded, engines, decoders, partial(fn.decoders.image_slice, **_WINDOW), window
        )
    image = _decode_routed(encoded, engines, decoders, fn.decoders.image, ())
    return fn.slice(image, *window, **_WINDOW)


def _decode_routed(
    encoded: DataNode,
    engines: list[DataNode],
    decoders: Decoders,
    decode: Callable[..., DataNode],
    arguments: tuple[DataNode, ...],
) -> DataNode:
    """Decodes with `decode` and these arguments; each image by the first of the engine's decoders
    that its flag names, or else by the main one.
    """
    if not engines:
        return decode(encoded, *arguments, **decoders.main)

    others = replace(decoders, engines=decoders.engines[1:])
    if engines[0]:
        image = decode(encoded, *arguments, **decoders.engines[0])
    else:
        image = _decode_routed(encoded, engines[1:], others, decode, arguments)
    return image


def _upright(image: DataNode, inputs: TurnInputs[DataNode]) -> DataNode:
    if inputs.turns:
        if inputs.transposes:
            image = fn.transpose(image, perm=[1, 0, 2], transpose_layout=False, output_layout="HWC")
        image = fn.flip(image, horizontal=inputs.flip, vertical=inputs.vertical_flip)
    return image


def decoder_options(config: DaliOptions, sizes: NDArray[np.int64], device: str) -> dict[str, Any]:
    """The options of a decoder that decodes everything; `sizes`, (N, 2), are heights and widths of
    the images.
    """
    if device == "cpu":
        return ON_CPU

    height, width = preallocation(config, sizes)
    return _AS_STORED | {
        "device": "mixed",
        "hw_decoder_load": config.engine_load,
        "jpeg_fancy_upsampling": config.jpeg_fancy_upsampling,
        "hybrid_huffman_threshold": config.hybrid_huffman_threshold,
        "preallocate_height_hint": height,
        "preallocate_width_hint": width,
        "device_memory_padding": config.device_memory_padding,
        # by default the decoder pins its threads to the CPUs near the GPU, and `cpus` may list only
        # CPUs of another NUMA node
        "affine": config.cpus in (None, "gpu"),
    }


def routed_decoders(
    options: dict[str, Any], batch_size: int, first_counts: Sequence[int]
) -> Decoders:
    """Decoders for images that have been given to them by their route.

    Args:
        options: as from `decoder_options`.
        first_counts: how many images of the first batch each of the engine's decoders gets.
    """
    main = options | {"hw_decoder_load": 0.0}
    return Decoders(main, [_only_engine(options, batch_size, each) for each in first_counts])


def _only_engine(options: dict[str, Any], batch_size: int, first_count: int) -> dict[str, Any]:
    """The options of a decoder that gives all of its images to the JPEG engine.

    nvImageCodec fixes how many images the engine takes at the decoder's first batch: the load times
    its size (0.8.0, src/image_generic_codec.h:1111, `assigned_batch_size_`). That batch may be
    small, so the load is batch_size / first_count. It also multiplies the number of images for
    which memory is allocated beforehand (hw_decoder.cpp:531), so both hints become smaller by it,
    and it has a bound: after a still smaller batch, as of a bad file that is sought, the CUDA
    decoder takes what is left.
    """
    load = min(batch_size / max(first_count, 1), _MOST_LOAD)
    height, width = options["preallocate_height_hint"], options["preallocate_width_hint"]
    return options | {
        "hw_decoder_load": load,
        "preallocate_height_hint": max(1, round(height / load)),
        "preallocate_width_hint": max(1, round(width / load)),
        # buffers for images that the engine refuses, hardly any; the main decoder has its own
        "device_memory_padding": 0,
        "host_memory_padding": 0,
    }


def normalize(image: DataNode, flip: DataNode | int, transform: Transform, device: str) -> DataNode:
    """Flip, normalization and layout in one operator; also the cast, if DALI does it well."""
    raw = transform.dtype == "uint8"
    return fn.crop_mirror_normalize(
        image,
        dtype=_DTYPES[output_dtype(transform, device)],
        output_layout="HWC" if transform.memory_format == "channels_last" else "CHW",
        mean=[0.0] * transform.channels if raw else [255 * value for value in transform.mean],
        std=[1.0] * transform.channels if raw else [255 * value for value in transform.std],
        mirror=flip,
    )


def erase(image: DataNode, inputs: ViewInputs[DataNode], dtype: types.DALIDataType) -> DataNode:
    """Sets the region to zero; `dtype` is that of the image.

    DALI's GPU operator has no float16, though the CPU's has: ERASE_SUPPORTED_TYPES in its
    dali/operators/generic/erase/erase.cu and erase.cc. Zero bits are 0 in float16 and in int16, and
    reinterpreting copies nothing (`Reshape::SetupImpl`, generic/reshape.cc).
    """
    if inputs.erased is None:
        return image

    half = dtype == types.DALIDataType.FLOAT16
    bits = fn.reinterpret(image, dtype=types.DALIDataType.INT16) if half else image
    bits = fn.erase(
        bits, anchor=inputs.erased, shape=inputs.erased_shape, axis_names="HW", fill_value=0
    )
    return fn.reinterpret(bits, dtype=dtype) if half else bits


def _check_header(encoded: DataNode, header: DataNode, source: DataNode) -> DataNode:
    """The same bytes, after a check that their header can be parsed and has the scanned size.

    Bytes that are no image make DALI's decoders crash the process. For those `peek_image_shape`
    raises an ordinary exception, and the reshapes, which copy nothing, keep the decoder from
    starting before that.

    The first reshape also fails if the image has another size than the plan was made for. Its
    extents are 1 where header and source are equal, else -1: so always in the third, where the
    header has the number of components and the source 0. DALI takes one -1 as "the rest", here the
    length, and refuses a second.

    There is a shorter way to write this, but not with fewer operators, which all run for every
    image.
    """
    extents = math.pow(types.Constant(-1), header != source)
    return fn.reshape(fn.reshape(encoded, shape=extents), shape=[-1])
