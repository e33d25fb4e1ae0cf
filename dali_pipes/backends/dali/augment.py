"""The operations of the plan in a DALI graph, each applied to the samples of a batch that drew it.

The arithmetic is that of torchvision's functions for 8-bit tensors, so that both give the same
pixels. What DALI has no operator for is left to PyTorch, after the graph (`left_to_torch`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, math, types
from nvidia.dali.data_node import DataNode
from nvidia.dali.pipeline import do_not_convert
from torch.utils._pytree import register_dataclass

from dali_pipes.plan.augment.operations import AFFINE, BLENDS, CODE, MOVES, Codes, Numbers, Slot
from dali_pipes.plan.geometry import Pair

# An input of the graph: feed.py's `PlanInput`, which says how the plan gives it, or the node of the
# graph that replaces it.
Input = TypeVar("Input")
_U8, _FLOAT = types.DALIDataType.UINT8, types.DALIDataType.FLOAT
# operations that take a number (`parameters`)
NUMBERED = (*BLENDS, "Solarize", "Invert", "Hue", "GaussianBlur")
_GRAY = [0.2989, 0.587, 0.114]  # weights of red, green and blue in torchvision's rgb_to_grayscale
# not -0.5, which would leave whole numbers to the rounding of ties
_FLOOR = -0.4998  # turns DALI's saturating cast, which rounds, into torchvision's, which truncates


@dataclass(frozen=True, slots=True)
class SlotInputs(Generic[Input]):
    """The graph's inputs for each sample's operation in one slot; all are on the CPU.

    An input that no operation of the slot needs is None.
    """

    slot: Slot
    shape: Pair  # height and width of the images
    channels: int
    # for each function of `functions(slot)` whether it is this sample's, a BOOL scalar
    is_of_sample: dict["Function", Input]
    parameter: Input | None = None  # the number of an operation of `NUMBERED`, a FLOAT scalar
    matrix: Input | None = None  # of the affine operations, FLOAT of shape (2, 3)
    mask: Input | None = None  # the bits that Posterize keeps, a UINT8 scalar


register_dataclass(SlotInputs)
NodesOfSlot = SlotInputs[DataNode]
Function = Callable[[DataNode, NodesOfSlot], DataNode]


def augment(image: DataNode, slots: list[NodesOfSlot]) -> DataNode:
    """Images of (height, width, C) uint8 after one operation from each slot.

    Call it where DALI's conditionals are enabled.
    """
    for inputs in slots:
        for function, is_of_sample in inputs.is_of_sample.items():
            # DALI makes a branch of the graph of this `if`. The functions have no such branch, and
            # DALI could convert only a part of Python.
            if is_of_sample:
                image = do_not_convert(function)(image, inputs)
    return image


def lacking(slots: Iterable[Slot]) -> list[str]:
    """What the graph cannot do of these slots, in words."""
    missing = {_name_lacking(op, slot) for slot in slots for op in slot.ops if _lacks(op, slot)}
    return sorted(missing)


def ops_of_graph(slot: Slot) -> list[str]:
    """The operations of this slot that the graph does."""
    return [op for op in slot.ops if not _lacks(op, slot)]


def left_to_torch(slots: Sequence[Slot], ops: Codes) -> NDArray[np.bool_]:
    """(N, K) which of these operations, (N, K), PyTorch does after the graph: those that the graph
    lacks, and whatever follows them on the same image.
    """
    lacks = [
        np.isin(ops[:, place], [CODE[op] for op in slot.ops if _lacks(op, slot)])
        for place, slot in enumerate(slots)
    ]
    return np.logical_or.accumulate(np.stack(lacks, axis=1), axis=1)


def _lacks(op: str, slot: Slot) -> bool:
    """Whether DALI has no operator for this; it warps as torchvision does tensors, and with a
    `fill` the edges are Pillow's.
    """
    return op not in _FUNCTIONS or (op in AFFINE and slot.fill is not None)


def _name_lacking(op: str, slot: Slot) -> str:
    if op == "EqualizeInSteps":
        return "torchvision's Equalize"
    return f"Pillow's {op}" if slot.fill is not None and op in MOVES else op


def functions(slot: Slot) -> dict[Function, list[int]]:
    """The functions for the operations of this slot, with the operation codes that each handles."""
    codes: dict[Function, list[int]] = {}
    for op in ops_of_graph(slot):
        codes.setdefault(_FUNCTIONS[op], []).append(CODE[op])
    return codes


def parameters(ops: Codes, magnitudes: Numbers) -> Numbers:
    """(N,) magnitudes in the graph's units.

    These are factors, thresholds from 0 to 255, hues in sixths of the circle, and sigmas.
    """
    number = magnitudes.copy()
    number[np.isin(ops, [CODE[op] for op in BLENDS])] += 1
    number[ops == CODE["Solarize"]] *= 255
    number[ops == CODE["Invert"]] = 0  # all pixels are at or above this threshold
    number[ops == CODE["Hue"]] *= 6
    return number


def posterize_masks(ops: Codes, magnitudes: Numbers) -> NDArray[np.uint8]:
    """(N,) bit masks of what Posterize keeps; other operations keep all bits."""
    bits = np.where(ops == CODE["Posterize"], magnitudes, 8)
    return (256 - 2.0 ** (8 - bits)).astype(np.uint8)


def _affine(image: DataNode, inputs: NodesOfSlot) -> DataNode:
    interpolation = (
        types.INTERP_NN if inputs.slot.interpolation == "nearest" else types.INTERP_LINEAR
    )
    return fn.warp_affine(image, matrix=inputs.matrix, fill_value=0, interp_type=interpolation)


def _contrast(image: DataNode, inputs: NodesOfSlot) -> DataNode:
    gray = image if inputs.channels == 1 else _gray(image)
    mean = fn.reductions.mean(gray, axes=[0, 1], keep_dims=True)
    return _blend(image, mean, inputs.parameter)


def _color(image: DataNode, inputs: NodesOfSlot) -> DataNode:
    # torchvision leaves images of one channel as they are
    return image if inputs.channels == 1 else _blend(image, _gray(image), inputs.parameter)


def _sharpness(image: DataNode, inputs: NodesOfSlot) -> DataNode:
    # torchvision leaves such images as they are
    if min(inputs.shape) < 3:
        return image

    kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / np.float32(13)
    inside = np.zeros((*inputs.shape, 1), np.float32)
    inside[1:-1, 1:-1] = 1  # the outermost pixels stay unchanged

    smooth = fn.filter(image, types.Constant(kernel, device=image.device))
    inner = types.Constant(inside, device=image.device)

    share = inner - inner * inputs.parameter
    return _floor(image * (1.0 - share) + smooth * share)


def _solarize(image: DataNode, inputs: NodesOfSlot) -> DataNode:
    return image ^ fn.cast((image >= inputs.parameter) * 255, dtype=_U8)


def _autocontrast(image: DataNode, inputs: NodesOfSlot) -> DataNode:
    darkest = fn.cast(fn.reductions.min(image, axes=[0, 1], keep_dims=True), dtype=_FLOAT)
    brightest = fn.cast(fn.reductions.max(image, axes=[0, 1], keep_dims=True), dtype=_FLOAT)
    # 1 in a channel of one value only: its pixels stay, and nothing is divided by 0
    flat = fn.cast(darkest == brightest, dtype=_FLOAT)
    scale = (brightest - darkest) * np.float32(1 / 255) + flat
    return fn.cast(math.floor((image - darkest * (1.0 - flat)) / scale), dtype=_U8)


def _hue(image: DataNode, inputs: NodesOfSlot) -> DataNode:
    """HSV's hue shifted by a share of the full circle; the other two channels stay."""
    color = fn.cast(image, dtype=_FLOAT) * np.float32(1 / 255)
    red, green, blue = (color[:, :, channel : channel + 1] for channel in range(3))

    value = math.max(math.max(red, green), blue)
    chroma = value - math.min(math.min(red, green), blue)
    divisor = chroma + fn.cast(chroma == 0.0, dtype=_FLOAT)

    # the hue in sixths of the circle: red is at 0, green at 2, blue at 4
    is_red = fn.cast(value == red, dtype=_FLOAT)
    is_green = fn.cast(value == green, dtype=_FLOAT) * (1.0 - is_red)
    is_blue = 1.0 - is_red - is_green
    difference = is_red * (green - blue) + is_green * (blue - red) + is_blue * (red - green)
    # 6 more, the full circle, so that no sum is negative
    sixths = difference / divisor + (2.0 * is_green + 4.0 * is_blue + 6.0) + inputs.parameter

    # back to red, green and blue, with n = 5, 3 and 1: value - chroma · max(0, min(k, 4 - k, 1)),
    # where k is hue + n modulo 6
    channels = []
    for offset in (5.0, 3.0, 1.0):
        place = sixths + offset
        place = place - math.floor(place * (1 / 6)) * 6.0
        channels.append(value - chroma * math.clamp(math.min(place, 4.0 - place), 0.0, 1.0))

    # torchvision scales back by 255.999 and truncates
    return fn.cast(fn.cat(*channels, axis=2) * 255.999 + _FLOOR, dtype=_U8)


def _blend(image: DataNode, other: DataNode, share: DataNode) -> DataNode:
    return _floor(image * share + (other - other * share))


def _gray(image: DataNode) -> DataNode:
    return fn.coord_transform(image, M=_GRAY, T=[_FLOOR], dtype=_U8)


def _floor(image: DataNode) -> DataNode:
    return fn.cast(image + _FLOOR, dtype=_U8)


_FUNCTIONS: dict[str, Function] = {
    **dict.fromkeys(AFFINE, _affine),
    "Brightness": lambda image, inputs: _floor(image * inputs.parameter),
    "Color": _color,
    "Contrast": _contrast,
    "Sharpness": _sharpness,
    "Posterize": lambda image, inputs: image & inputs.mask,
    "Solarize": _solarize,
    "Invert": _solarize,
    "AutoContrast": _autocontrast,
    "Equalize": lambda image, inputs: fn.equalize(image),
    "Hue": _hue,
    "GaussianBlur": lambda image, inputs: fn.gaussian_blur(
        image, sigma=inputs.parameter, window_size=inputs.slot.kernel_size
    ),
}
