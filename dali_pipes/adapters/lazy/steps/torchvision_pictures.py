"""torchvision's functions of Pillow's pictures, and those between pictures and tensors."""

from typing import Any

import PIL.Image
import torch

from dali_pipes.adapters.lazy import arrays
from dali_pipes.adapters.lazy.pictures import PLAIN, new_picture, recipe_of
from dali_pipes.adapters.lazy.recipes import Recipe
from dali_pipes.adapters.lazy.state import waits
from dali_pipes.adapters.lazy.steps.step import Original, Step, add, replace
from dali_pipes.adapters.lazy.tensors import new_tensor, waiting_tensor

Image = PIL.Image.Image
Form = tuple[tuple[int, int], str, bool, Any]  # as of pillow.py

_F = "torchvision.transforms.functional"
_F_PIL = "torchvision.transforms._functional_pil"
_PIL_TO_TENSOR = Original(_F, "pil_to_tensor")


# pictures. Those that NumPy has made in between have an empty `info`.


def form_hue(picture: Image, hue_factor: float) -> Form | None:
    if picture.mode != "RGB" or not -0.5 <= hue_factor <= 0.5:
        return None
    return picture.size, "RGB", False, None


def form_gray(picture: Image, num_output_channels: int) -> Form | None:
    return (picture.size, "RGB", False, None) if num_output_channels == 3 else None


def plan_gray(row: Any, num_output_channels: int) -> None:
    if row.channels == 1:
        row.convert("RGB")
    else:
        row.operate("Color", -1)


def form_pad(
    picture: Image, padding: Any, fill: Any = 0, padding_mode: str = "constant"
) -> Form | None:
    left, top, right, bottom = sides_of(padding)
    if min(left, top, right, bottom) < 0 or "transparency" in picture.info:
        return None
    if padding_mode == "constant":
        channels = len(picture.mode)
        if isinstance(fill, (tuple, list)) and len(fill) not in (1, channels):
            return None
    elif padding_mode not in ("edge", "reflect", "symmetric"):
        return None
    size = picture.width + left + right, picture.height + top + bottom
    return size, picture.mode, False, None


def plan_pad(row: Any, padding: Any, fill: Any = 0, padding_mode: str = "constant") -> None:
    row.pad(*sides_of(padding), fill, padding_mode)


def sides_of(padding: Any) -> tuple[int, int, int, int]:
    """Left, top, right and bottom."""
    sides = [padding] if isinstance(padding, int) else list(padding)
    left, top, right, bottom = sides if len(sides) == 4 else sides * (4 // len(sides))
    return left, top, right, bottom


# between pictures and tensors


def _to_tensor(original: Any, pic: Any) -> Any:
    """`to_tensor`: values from 0 to 1 of PyTorch's default type."""
    recipe, shape = _recipe_and_shape(pic)
    if recipe is None:
        return original(pic)
    dtype = torch.get_default_dtype()
    return new_tensor(recipe.then("to_tensor", dtype), shape, dtype)


def _pil_to_tensor(original: Any, pic: Any) -> Any:
    """`pil_to_tensor`: bytes, of which torchvision leaves the channels last in memory."""
    recipe, shape = _recipe_and_shape(pic)
    if recipe is None:
        return original(pic)
    channels, _, width = shape
    strides = (1, width * channels, channels)
    return new_tensor(recipe.then("pil_to_tensor"), shape, torch.uint8, strides)


def _recipe_and_shape(pic: Any) -> tuple[Recipe | None, tuple[int, ...]]:
    """Of a tensor of a picture; None: it does not wait."""
    if not isinstance(pic, Image) or pic.mode not in PLAIN or not waits("tensor"):
        return None, ()
    return recipe_of(pic), (len(pic.mode), pic.height, pic.width)


def make_tensor(picture: Image, dtype: torch.dtype) -> torch.Tensor:
    """`F.to_tensor`, whatever PyTorch's default type is where it is carried out."""
    return _PIL_TO_TENSOR(picture).contiguous().to(dtype).div(255)


def plan_to_tensor(row: Any, dtype: torch.dtype) -> None:
    row.become("tensor", "CHW")
    row.cast(dtype)
    row.scale_by(1 / 255)


def _to_picture(original: Any, pic: Any, mode: Any = None) -> Any:
    """`to_pil_image` of bytes with three channels, with which v1's blur of pictures ends."""
    tensor = waiting_tensor(pic)
    if tensor is None or mode not in (None, "RGB") or not waits("picture"):
        return original(pic, mode)
    is_rgb = tensor.sides[:1] == (3,) and tensor.dtype == torch.uint8 and not tensor.lead
    if not is_rgb or not isinstance(recipe := tensor.rows[0], Recipe):
        return original(pic, mode)
    height, width = pic.shape[1:]
    return new_picture(recipe.then("to_pil_image"), (width, height), "RGB")


replace(_F, "to_tensor", _to_tensor)
replace(_F, "to_pil_image", _to_picture)
replace(_F, "pil_to_tensor", _pil_to_tensor)
replace(_F, "_Image_fromarray", arrays.from_array)
add(
    Step("to_tensor", make_tensor, plan=plan_to_tensor),
    Step("pil_to_tensor", _PIL_TO_TENSOR, plan=lambda row: row.become("tensor", "CHW")),
    Step(
        "to_pil_image", Original(_F, "to_pil_image"), plan=lambda row: row.become("picture", "HWC")
    ),
    Step(
        "hue",
        form=form_hue,
        plan=lambda row, hue_factor: row.operate("Hue", hue_factor),
        owner=_F_PIL,
        attribute="adjust_hue",
        on="picture",
    ),
    Step(
        "gray",
        form=form_gray,
        plan=plan_gray,
        owner=_F_PIL,
        attribute="to_grayscale",
        on="picture",
    ),
    Step("pad", form=form_pad, plan=plan_pad, owner=_F_PIL, attribute="pad", on="picture"),
)
