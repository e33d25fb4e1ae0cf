"""Pillow: methods of its images, `ImageOps` and `ImageEnhance`.

Each `form` returns None for what Pillow itself does by `copy()`, which waits too (pictures.py).
"""

from functools import partial, wraps
from operator import index
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageColor
import PIL.ImageEnhance
from PIL.Image import Resampling, Transform

from dali_pipes.adapters.lazy import arrays
from dali_pipes.adapters.lazy.pictures import (
    PLAIN,
    Size,
    adopt,
    color_of_blank,
    mark_blank,
    new_picture,
    recipe_of,
)
from dali_pipes.adapters.lazy.recipes import frozen
from dali_pipes.adapters.lazy.state import pictures_wait
from dali_pipes.adapters.lazy.steps.step import Method, NoPlace, Original, Step, add, replace

Image = PIL.Image.Image
Form = tuple[Size, str, bool, Any]  # size, mode, whether it keeps `info`, what is noted

FILTERS = {0: "nearest", 2: "bilinear", 3: "bicubic"}  # of those that the plan has
_WARPS = {Transform.AFFINE: 6, Transform.PERSPECTIVE: 8}  # how many numbers each takes


# convert


def _convert(function: Any) -> Any:
    """To RGB and L, of everything but what may warn or gives `info` another color."""

    @wraps(function)
    def convert(self: Any, mode: Any = None, *args: Any, **options: Any) -> Any:
        if mode in PLAIN and not args and not options and "transparency" not in self.info:
            recipe = recipe_of(self)
            if recipe is not None:
                # with the same mode Pillow copies it
                made = recipe if mode == self._mode else recipe.then("convert", mode)
                return new_picture(made, self._size, mode, self.info)
        return function(self, mode, *args, **options)

    return convert


# geometry


def form_crop(picture: Image, box: Any = None) -> Form | None:
    left, top, right, bottom = box
    if not type(left) is type(top) is type(right) is type(bottom) is int:
        left, top, right, bottom = map(int, map(round, box))
    width, height = right - left, bottom - top
    box = left, top, right, bottom
    if width <= 0 or height <= 0 or box == (0, 0, *picture._size):
        return None
    most = PIL.Image.MAX_IMAGE_PIXELS
    if most and width * height > most:
        return None  # Pillow raises, or warns
    return (width, height), picture._mode, True, (box,)


def make_crop(picture: Image, box: Any) -> Image:
    """`crop` without the check of sizes, which the program's own call has passed."""
    return picture._new(picture.im.crop(box))


def plan_crop(row: Any, box: Any) -> None:
    left, top, right, bottom = box
    row.crop(top, left, bottom - top, right - left)


def form_resize(
    picture: Image, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None
) -> Form | None:
    width, height = map(index, size)
    resample = Resampling.BICUBIC if resample is None else index(resample)
    # of a box the pixels beside it are mixed in
    has_place = resample in FILTERS and box is None and reducing_gap is None
    if not has_place or width < 1 or height < 1 or (width, height) == picture._size:
        return None
    return (width, height), picture._mode, True, ((width, height), int(resample))


def plan_resize(row: Any, size: Size, resample: int) -> None:
    row.resize(size[1], size[0], FILTERS[resample])


def form_transpose(picture: Image, method: Any) -> Form | None:
    method = index(method)
    if not 0 <= method <= 6:
        return None
    size = picture._size
    return size[::-1] if method in (2, 4, 5, 6) else size, picture._mode, True, (method,)


def form_transform(
    picture: Image,
    size: Any,
    method: Any,
    data: Any = None,
    resample: Any = 0,
    fill: Any = 1,
    fillcolor: Any = None,
) -> Form | None:
    width, height = map(index, size)
    method, resample = index(method), index(resample)
    numbers = tuple(map(float, data[: _WARPS[method]]))
    if len(numbers) < _WARPS[method] or resample not in FILTERS or width < 1 or height < 1:
        return None
    args = (width, height), method, numbers, resample, int(fill), frozen(fillcolor)
    return (width, height), picture.mode, True, args


def plan_transform(
    row: Any, size: Size, method: int, data: Any, resample: int, fill: int, fillcolor: Any
) -> None:
    if isinstance(fillcolor, str):
        fillcolor = PIL.ImageColor.getcolor(fillcolor, "L" if row.channels == 1 else "RGB")
    if isinstance(fillcolor, int) and row.channels == 3:
        # Pillow takes a number for its bytes (src/_imaging.c, `getink`)
        fillcolor = tuple(fillcolor.to_bytes(4, "little", signed=fillcolor < 0)[:3])
    perspective = method == Transform.PERSPECTIVE
    row.warp(size[::-1], data, FILTERS[resample], fillcolor, perspective=perspective)


def _new(original: Any, *args: Any, **options: Any) -> Any:
    """`Image.new`, into which a picture may be pasted."""
    made = original(*args, **options)
    if pictures_wait():
        mark_blank(made)
    return made


def _paste(function: Any) -> Any:
    """Of one picture into a new one, as letterboxes are made: the new one waits from then on."""

    @wraps(function)
    def paste(self: Any, im: Any, box: Any = None, mask: Any = None) -> None:
        color = color_of_blank(self)
        recipe = recipe_of(im) if color is not None and mask is None else None
        at = _corner(im, box) if recipe is not None and im.mode == self.mode else None
        if at is None:
            function(self, im, box, mask)
        else:
            recipe = recipe.then("paste", self.size, color, at)  # type: ignore[union-attr]
            adopt(self, new_picture(recipe, self.size, self.mode))

    return paste


def _corner(picture: Image, box: Any) -> Size | None:
    """Where its left upper corner is pasted; None: Pillow has to say."""
    if box is None:
        return 0, 0
    # a list Pillow would make longer
    if not isinstance(box, tuple) or not all(type(each) is int for each in box):
        return None
    left, top, *rest = box
    return (left, top) if rest in ([], [left + picture.width, top + picture.height]) else None


def make_paste(picture: Image, size: Size, color: Any, at: Size) -> Image:
    made = PIL.Image.new(picture.mode, size, color)
    made.paste(picture, at)
    return made


def plan_paste(row: Any, size: Size, color: Any, at: Size) -> None:
    right, bottom = size[0] - at[0] - row.size[1], size[1] - at[1] - row.size[0]
    if min(*at, right, bottom) < 0:
        raise NoPlace("a picture that is pasted beyond the edges of another")
    row.pad(*at, right, bottom, color)


# colors


def form_point(picture: Image, lut: Any, mode: Any = None) -> Form | None:
    """With a table of bytes."""
    if isinstance(lut, PIL.Image.ImagePointHandler) or mode is not None:
        return None
    # Pillow must not call it once more: it may draw, or count
    values = [lut(value) for value in range(256)] * len(picture.mode) if callable(lut) else lut
    try:
        table = bytes(values)  # many times faster than to round them
    except (TypeError, ValueError):
        # src/_imaging.c, `getlist`, with CLIP8
        table = bytes([min(max(round(value), 0), 255) for value in values])
    if len(table) != 256 * len(picture.mode):
        return None
    return picture.size, picture.mode, True, (table,)


def make_point(picture: Image, table: bytes) -> Image:
    return picture.point(list(table))


def plan_point(row: Any, table: bytes) -> None:
    row.look_up(np.frombuffer(table, np.uint8).reshape(-1, 256))


def form_autocontrast(
    picture: Image,
    cutoff: Any = 0,
    ignore: Any = None,
    mask: Any = None,
    preserve_tone: bool = False,
) -> Form | None:
    is_plain = ignore is None and mask is None and not cutoff and not preserve_tone
    return (picture.size, picture.mode, True, None) if is_plain else None


def make_enhanced(picture: Image, kind: str, factor: float) -> Image:
    return getattr(PIL.ImageEnhance, kind)(picture).enhance(factor)


# The classes of `ImageEnhance` look at the picture already when they are made. Of one that waits
# they keep what it is by then, `_before`, and make `degenerate`, the other picture that is mixed
# with it, when somebody asks for it.


def _start(kind: str, original: Any, self: Any, image: Any) -> None:
    """`Brightness.__init__` and the others."""
    if recipe_of(image) is None or image.mode not in PLAIN:
        original(self, image)
        return
    self.image = image
    vars(self)["_before"] = kind, image.copy(), partial(original, self)


def _enhance(original: Any, self: Any, factor: Any) -> Any:
    own = vars(self)
    is_known = "_before" in own and "degenerate" not in own and type(factor) in (int, float)
    recipe = recipe_of(self.image) if is_known else None
    # the program may have changed the picture
    if recipe is None or recipe is not recipe_of(own["_before"][1]):
        return original(self, factor)
    kind, before, _ = own["_before"]
    # `blend` takes `info` from the other picture, which is a new one but for these
    info = before.info if kind in ("Color", "Sharpness") else None
    return new_picture(recipe.then("enhance", kind, factor), before.size, before.mode, info)


def _get_degenerate(self: Any) -> Any:
    own = vars(self)
    if "degenerate" not in own and "_before" in own:
        (_, before, start), image = own["_before"], self.image
        start(before)
        self.image = image
        if own["degenerate"] is before:
            own["degenerate"] = image
    try:
        return own["degenerate"]
    except KeyError:
        raise AttributeError("degenerate") from None


def _set_degenerate(self: Any, value: Any) -> None:
    vars(self)["degenerate"] = value


def _row(name: str, form: Any, make: Any = None, plan: Any = None, on: Any = "picture") -> Step:
    """The row of a method of `Image`."""
    make = make or Original("PIL.Image", f"Image.{name}")
    return Step(name, make, form, plan, "PIL.Image", f"Image.{name}", on)


replace("PIL.Image", "fromarray", arrays.from_array)
replace("PIL.Image", "new", _new)
for kind in ("Color", "Contrast", "Brightness", "Sharpness"):
    replace("PIL.ImageEnhance", f"{kind}.__init__", partial(_start, kind))
replace("PIL.ImageEnhance", "_Enhance.enhance", _enhance)
replace("PIL.ImageEnhance", "_Enhance.degenerate", property(_get_degenerate, _set_degenerate))
add(
    _row("convert", None, plan=lambda row, mode: row.convert(mode), on=Method(_convert)),
    _row("crop", form_crop, make_crop, plan_crop),
    _row("resize", form_resize, plan=plan_resize),
    _row("transpose", form_transpose, plan=lambda row, method: row.transpose(method)),
    _row("transform", form_transform, plan=plan_transform),
    _row("paste", None, make_paste, plan_paste, Method(_paste)),
    _row("point", form_point, make_point, plan_point),
    Step("enhance", make_enhanced, plan=lambda row, kind, factor: row.operate(kind, factor - 1)),
    Step(
        "autocontrast",
        None,
        form_autocontrast,
        lambda row, *args, **options: row.operate("AutoContrast"),
        "PIL.ImageOps",
        "autocontrast",
        "picture",
    ),
    Step(
        "equalize",
        None,
        lambda picture, mask=None: form_autocontrast(picture, mask=mask),
        lambda row, mask=None: row.operate("EqualizeInSteps"),
        "PIL.ImageOps",
        "equalize",
        "picture",
    ),
)
