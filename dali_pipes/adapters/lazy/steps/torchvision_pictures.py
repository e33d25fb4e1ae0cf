"""torchvision's functions of Pillow's pictures."""

from typing import Any

import PIL.Image
import torch

from dali_pipes.adapters.lazy import arrays
from dali_pipes.adapters.lazy.pictures import PLAIN, LazyPicture
from dali_pipes.adapters.lazy.recipes import Recipe
from dali_pipes.adapters.lazy.state import waits
from dali_pipes.adapters.lazy.steps.step import Original, Step, add, replace
from dali_pipes.adapters.lazy.tensors import LazyTensor, new_tensor

PIL_TO_TENSOR = Original("torchvision.transforms.functional", "pil_to_tensor")


def form_hue(picture: LazyPicture, hue_factor: float) -> Any:
    return (picture.size, "RGB") if picture.mode == "RGB" and -0.5 <= hue_factor <= 0.5 else None


def form_gray(picture: LazyPicture, num_output_channels: int) -> Any:
    return (picture.size, "RGB") if picture.mode == "RGB" and num_output_channels == 3 else None


def sides_of(padding: Any) -> list[int]:
    """Left, top, right and bottom."""
    sides = [padding] if isinstance(padding, int) else list(padding)
    return sides if len(sides) == 4 else sides * (4 // len(sides))


def form_pad(
    picture: LazyPicture, padding: Any, fill: Any = 0, padding_mode: str = "constant"
) -> Any:
    sides = [padding] if isinstance(padding, int) else list(padding)
    if len(sides) not in (1, 2, 4) or min(sides) < 0:
        return None
    left, top, right, bottom = sides_of(padding)
    return (picture.width + left + right, picture.height + top + bottom), picture.mode


def plan_pad(row: Any, padding: Any, fill: Any = 0, padding_mode: str = "constant") -> None:
    row.pad(*sides_of(padding), fill, padding_mode)


def _to_tensor(original: Any, picture: Any, scaled: bool) -> Any:
    if (
        type(picture) is not LazyPicture
        or not picture.is_lazy
        or picture.mode not in PLAIN
        or not waits("tensor")
    ):
        return original(picture)
    (width, height), channels = picture.size, len(picture.getbands())
    if scaled:
        dtype = torch.get_default_dtype()
        recipe = picture._recipe.then("to_tensor", dtype)
        return new_tensor(recipe, (channels, height, width), dtype)
    strides = (1, width * channels, channels)  # torchvision leaves the channels last
    recipe = picture._recipe.then("pil_to_tensor")
    return new_tensor(recipe, (channels, height, width), torch.uint8, strides)


def make_tensor(picture: PIL.Image.Image, dtype: torch.dtype) -> torch.Tensor:
    """`F.to_tensor`, whatever PyTorch's default type is where it is carried out."""
    return PIL_TO_TENSOR(picture).contiguous().to(dtype).div(255)


def _to_picture(original: Any, value: Any, mode: Any = None) -> Any:
    rgb = (
        isinstance(value, LazyTensor)
        and value.waits
        and value.sides[:1] == (3,)
        and value.dtype == torch.uint8
        and not value.lead
    )
    if rgb and mode in (None, "RGB") and isinstance(value.rows[0], Recipe):
        return LazyPicture(value.rows[0].then("to_pil_image"), tuple(value.shape[:0:-1]), "RGB", {})
    return original(value, mode)


def plan_to_tensor(row: Any, dtype: torch.dtype) -> None:
    row.become("tensor", "CHW")
    row.cast(dtype)
    row.scale_by(1 / 255)


_F = "torchvision.transforms.functional"
_F_PIL = "torchvision.transforms._functional_pil"
replace(_F, "to_tensor", lambda original, pic: _to_tensor(original, pic, True))
replace(_F, "pil_to_tensor", lambda original, pic: _to_tensor(original, pic, False))
replace(_F, "to_pil_image", _to_picture)
replace(_F, "_Image_fromarray", arrays.from_array)
add(
    Step("to_tensor", make_tensor, plan=plan_to_tensor),
    Step("pil_to_tensor", PIL_TO_TENSOR, plan=lambda row: row.become("tensor", "CHW")),
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
        plan=lambda row, num_output_channels: row.operate("Color", -1),
        owner=_F_PIL,
        attribute="to_grayscale",
        on="picture",
    ),
    Step("pad", form=form_pad, plan=plan_pad, owner=_F_PIL, attribute="pad", on="picture"),
)
