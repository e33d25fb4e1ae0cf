"""Pillow: methods of its images, `ImageOps` and `ImageEnhance`."""

from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageEnhance

from dali_pipes.adapters.lazy import arrays, pictures
from dali_pipes.adapters.lazy.pictures import PLAIN, LazyPicture
from dali_pipes.adapters.lazy.recipes import OPENERS
from dali_pipes.adapters.lazy.steps.step import NoPlace, Original, Step, add, replace

FILTERS = {0: "nearest", 2: "bilinear", 3: "bicubic"}


def make_draft(picture: Any, mode: str | None, size: Any) -> Any:
    picture.draft(mode, size)
    return picture


def plan_crop(row: Any, box: Any) -> None:
    left, top, right, bottom = box
    row.crop(top, left, bottom - top, right - left)


def plan_resize(row: Any, size: Any, resample: int, box: Any = None, gap: Any = None) -> None:
    if box is not None or gap is not None or resample not in FILTERS:
        raise NoPlace("a resize with a box, a gap or another filter")
    row.resize(size[1], size[0], FILTERS[resample])


def plan_transform(
    row: Any, size: Any, method: int, numbers: Any, resample: int, fill: int, color: Any
) -> None:
    row.warp(tuple(size)[::-1], numbers, FILTERS[resample], color, perspective=method != 0)


def plan_point(row: Any, table: bytes) -> None:
    values = np.frombuffer(table, np.uint8).reshape(-1, 256)
    one, at = values[0], np.arange(256)
    if (values != one).any():
        raise NoPlace("a table for each channel")
    for bits in range(9):
        if (one == (at & ~((1 << (8 - bits)) - 1) & 255)).all():
            return row.operate("Posterize", bits)
    for threshold in range(257):
        if (one == np.where(at < threshold, at, 255 - at)).all():
            return row.operate("Solarize", (threshold - 0.5) / 255)
    added = int(one[0])
    if (one == np.where(at < 128, np.minimum(at + added, 255), at)).all():
        return row.operate("SolarizeAdd", added)
    raise NoPlace("a table of values")


def plan_autocontrast(row: Any, cutoff: Any = 0, **options: Any) -> None:
    if cutoff or options:
        raise NoPlace("autocontrast with options")
    row.operate("AutoContrast")


def form_same(picture: LazyPicture, *_: Any, **__: Any) -> Any:
    return picture.size, picture.mode, True


class _Enhancing:
    """Pillow's `ImageEnhance`: its classes look at the picture already when they are made."""

    @staticmethod
    def start(kind: str, original: Any, self: Any, image: Any) -> None:
        self.image = image
        if type(image) is LazyPicture and image.is_lazy and image.mode in PLAIN:
            # a copy, since the program may still change the picture
            self.waiting = kind, image.copy(), original
        else:
            original(self, image)

    @staticmethod
    def enhance(original: Any, self: Any, factor: float) -> Any:
        if "degenerate" in vars(self):
            return original(self, factor)
        kind, picture, start = self.waiting
        image = self.image
        if picture.is_lazy and image.is_lazy and factor != 1:
            keeps = kind in ("Color", "Sharpness")
            return picture.then(picture.size, picture.mode, keeps, "enhance", kind, factor)
        start(self, picture)
        self.image = image
        return original(self, factor)


OPENERS["pillow"] = Original("PIL.Image", "open")
replace("PIL.Image", "open", pictures.opened)
replace("PIL.Image", "fromarray", arrays.from_array)
for kind in ("Color", "Contrast", "Brightness", "Sharpness"):
    replace(
        "PIL.ImageEnhance",
        f"{kind}.__init__",
        lambda *args, kind=kind: _Enhancing.start(kind, *args),
    )
replace("PIL.ImageEnhance", "_Enhance.enhance", _Enhancing.enhance)
add(
    Step("draft", make_draft),
    Step("convert", PIL.Image.Image.convert, plan=lambda row, mode: row.convert(mode)),
    Step("crop", PIL.Image.Image.crop, plan=plan_crop),
    Step("resize", PIL.Image.Image.resize, plan=plan_resize),
    Step("transpose", PIL.Image.Image.transpose, plan=lambda row, method: row.transpose(method)),
    Step("transform", PIL.Image.Image.transform, plan=plan_transform),
    Step("point", lambda picture, table: picture.point(list(table)), plan=plan_point),
    Step("filter", PIL.Image.Image.filter),
    Step(
        "enhance",
        lambda picture, kind, factor: getattr(PIL.ImageEnhance, kind)(picture).enhance(factor),
        plan=lambda row, kind, factor: row.operate(kind, factor - 1),
    ),
    Step(
        "autocontrast",
        form=form_same,
        plan=plan_autocontrast,
        owner="PIL.ImageOps",
        attribute="autocontrast",
        on="picture",
    ),
    Step(
        "equalize",
        form=form_same,
        plan=lambda row, mask=None: row.operate("EqualizeInSteps"),
        owner="PIL.ImageOps",
        attribute="equalize",
        on="picture",
    ),
)
