"""torchvision's decoders of files and of bytes."""

import os
from contextlib import suppress
from io import BytesIO
from typing import Any

import numpy as np
import torch
from torchvision.io import ImageReadMode

from dali_pipes.adapters.lazy.headers import header_of
from dali_pipes.adapters.lazy.recipes import OPENERS, Recipe, Source
from dali_pipes.adapters.lazy.state import waits
from dali_pipes.adapters.lazy.steps.step import Original, Step, add, replace
from dali_pipes.adapters.lazy.tensors import new_tensor

_IMAGE = "torchvision.io.image"
_READ_IMAGE, _DECODE_IMAGE = Original(_IMAGE, "read_image"), Original(_IMAGE, "decode_image")


def _decode(
    function: Any,
    value: Any,
    mode: Any = ImageReadMode.UNCHANGED,
    apply_exif_orientation: Any = False,
) -> torch.Tensor:
    """`read_image` and `decode_image`."""
    if not waits("tensor"):
        return function(value, mode, apply_exif_orientation)
    mode = ImageReadMode[mode.upper()] if isinstance(mode, str) else mode
    known = mode in (ImageReadMode.RGB, ImageReadMode.UNCHANGED, ImageReadMode.GRAY)
    options = (mode.value, True) if apply_exif_orientation else (mode.value,)
    found = read_header("torchvision", value, *options) if known else None
    if found is None:
        return function(value, mode, apply_exif_orientation)

    recipe, turn = found
    (width, height), channels = recipe.size, len(recipe.mode)
    if mode != ImageReadMode.UNCHANGED:
        channels = 3 if mode == ImageReadMode.RGB else 1
    if apply_exif_orientation and turn > 1:
        recipe = recipe.then("turned", turn)
    shape, strides = (channels, height, width), (1, width * channels, channels)
    if apply_exif_orientation and turn >= 5:
        # a view with rows for columns
        shape, strides = (channels, width, height), (1, channels, width * channels)
    return new_tensor(recipe, shape, torch.uint8, strides)


def read_header(opener: str, value: Any, *options: Any) -> tuple[Recipe, int] | None:
    """A recipe for a path or for encoded bytes in a tensor or array, and EXIF's orientation.

    None: it is no plain picture, or no file that can be read.
    """
    if isinstance(value, (torch.Tensor, np.ndarray)):
        data = np.asarray(value).tobytes()
        if (header := header_of(BytesIO(data))) is None:
            return None
        source = Source.of_bytes(opener, data, *options, coding=header.coding)
        return Recipe(source, header.size, header.mode), header.turn

    if not isinstance(value, (str, os.PathLike)):
        return None
    with suppress(OSError, ValueError), open(value, "rb") as file:
        if (header := header_of(file)) is not None:
            coding = header.coding
            source = Source.of_file(opener, value, file.fileno(), *options, coding=coding)
            return Recipe(source, header.size, header.mode), header.turn
    return None


def plan_turned(row: Any, turn: int) -> None:
    row.transpose({2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}[turn])


def _open(path_or_bytes: Any, mode: int, exif: bool = False) -> torch.Tensor:
    if isinstance(path_or_bytes, str):
        return _READ_IMAGE(path_or_bytes, ImageReadMode(mode), exif)
    data = torch.frombuffer(bytearray(path_or_bytes.getvalue()), dtype=torch.uint8)
    return _DECODE_IMAGE(data, ImageReadMode(mode), exif)


OPENERS["torchvision"] = _open
replace(_IMAGE, "read_image", _decode)
replace(_IMAGE, "decode_image", _decode)
add(Step("turned", lambda value, turn: value, plan=plan_turned))  # the decoder has done it
