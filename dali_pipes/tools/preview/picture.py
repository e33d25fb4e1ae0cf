"""The picture of a batch: a tile (`_tile`) for each image, with all of its views.

The mask, boxes and keypoints are over the first view; further images are beside it, and the text of
an image is below.
"""

import textwrap
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw

from dali_pipes.backends.base import Batch, Ragged
from dali_pipes.backends.common.pixels import to_steps
from dali_pipes.plan.transforms import Transform
from dali_pipes.tools.drawing.fonts import Fonts, find_fonts

SHOWN, SHOWN_WITH_VIEWS, COLUMNS, GAP = 24, 8, 6, 4
LARGEST = 480  # pixels of a view's longer side
_MIN_SIDE_WITH_NAMES = 128  # an image whose shorter side has fewer pixels has no room for names
_FONT_SIZE, _LINE, _MOST_LINES = 12, 16, 4
_ASCENT = 12  # from the top of a line to the foot of its letters
_CAPTION = 96  # pixels of width that the name of a class has at least
_COLORS = (  # of the classes in turn: Tableau's ten colors
    *("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd"),
    *("#8c564b", "#e377c2", "#17becf", "#bcbd22", "#7f7f7f"),
)


def draw(batch: Batch, transform: Transform, classes: list[str]) -> Image.Image:
    """Draws the first images of a batch; images larger than `LARGEST` are made smaller.

    Each class has a color. A mask's value 0 is not drawn, and its `ignore_index` is gray. Hidden
    keypoints are empty circles, and unknown keypoints are left out. If there are views, each image
    has a row of them, and the objects are drawn on the first view. The classes of an image stand
    below it. A class has its number where no installed font has the letters of its name.

    Args:
        classes: the names; none if the labels are numbers to predict.
    """
    fonts = find_fonts([*classes, *(batch.text if "text" in batch else [])])
    names = fonts.name(classes)
    shown, columns = (SHOWN_WITH_VIEWS, 1) if batch.views else (SHOWN, COLUMNS)
    batch = batch.to("cpu")
    tiles = [
        _tile(batch, place, transform, names, fonts) for place in range(min(shown, len(batch)))
    ]

    width, rows = (
        max(tile.width for tile in tiles) + GAP,
        [tiles[at : at + columns] for at in range(0, len(tiles), columns)],
    )
    tops = np.cumsum([0, *(max(tile.height for tile in row) + GAP for row in rows)]).tolist()
    picture = Image.new("RGB", (min(columns, len(tiles)) * width - GAP, tops[-1] - GAP), "white")

    for top, row in zip(tops, rows, strict=False):
        for column, tile in enumerate(row):
            picture.paste(tile, (column * width, top))

    return picture


def _tile(
    batch: Batch, place: int, transform: Transform, names: list[str], fonts: Fonts
) -> Image.Image:
    views = [view for views in batch.views.values() for view in views[place]] or [
        batch.images[place]
    ]
    images = [_picture(view, transform) for view in views]
    # columns of numbers and masks have fewer dimensions
    images += [
        _stretched(values[place])
        for values in batch.targets.values()
        if isinstance(values, torch.Tensor) and values.ndim == 4
    ]

    objects = {
        name: values[place].numpy()
        for name, values in batch.targets.items()
        if isinstance(values, Ragged)
    }

    mask = batch.targets.get("mask")
    if isinstance(mask, torch.Tensor) and mask.ndim == 3:
        values = mask[place].int().numpy()
        _draw_mask(images[0], values, transform.ignore_index, names, fonts)
    if "boxes" in objects:
        _draw_objects(images[0], images[0].width / views[0].shape[-1], objects, names, fonts)

    lefts = np.cumsum([0, *(image.width + GAP for image in images)]).tolist()
    width = lefts[-1] - GAP
    lines = []
    # classes of objects and of pixels are drawn on the image
    is_drawn = "boxes" in objects or "mask" in batch.targets
    if not is_drawn and (named := _name_label(batch.labels[place], names)):
        width = max(width, _CAPTION)
        lines = [_fit(named, width - 4, fonts)]
    if "text" in batch:
        # about seven pixels for a letter
        text = fonts.readable(batch.text[place])
        wrapped = textwrap.wrap(text, max(width // 7, 8), max_lines=_MOST_LINES, placeholder=" …")
        lines += [_fit(line, width - 4, fonts) for line in wrapped]

    height = max(image.height for image in images)
    tile = Image.new("RGB", (width, height + _LINE * len(lines)), "white")

    for left, image in zip(lefts, images, strict=False):
        tile.paste(image, (left, 0))
    for number, line in enumerate(lines):
        _write(ImageDraw.Draw(tile), (2, height + _LINE * number), line, "black", fonts)

    return tile


def _picture(image: torch.Tensor, transform: Transform) -> Image.Image:
    pixels = to_steps(image, transform).round().clamp(0, 255).to(torch.uint8)
    # in colors, since classes and boxes are drawn on it
    return _thumbnail(pixels.expand(3, -1, -1))


def _stretched(values: torch.Tensor) -> Image.Image:
    """A further image, from black for its lowest value to white for its highest."""
    values = values.to(torch.float32).nan_to_num(0.0, 0.0, 0.0)
    low, high = values.min(), values.max()
    pixels = (values - low) * (255 / (high - low).clamp(min=1e-12))
    return _thumbnail(pixels.round().to(torch.uint8).expand(3, -1, -1))


def _thumbnail(pixels: torch.Tensor) -> Image.Image:
    """A picture of (3, H, W) uint8, `LARGEST` pixels high and wide at most."""
    picture = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    picture.thumbnail((LARGEST, LARGEST))
    return picture


def _draw_mask(
    image: Image.Image, mask: NDArray[Any], ignored: int, names: list[str], fonts: Fonts
) -> None:
    """Draws a mask of classes (H, W): each in its color, with its name.

    The name is at the pixel of the class that is nearest to the median of its pixels.
    """
    # the nearest pixel, since values between two classes are another class
    small = np.asarray(Image.fromarray(mask).resize(image.size, Image.Resampling.NEAREST))
    present = [value for value in np.unique(small).tolist() if value]

    for value in present:
        _cover(image, small == value, "#808080" if value == ignored else _color(value))
    for value in present:
        if value != ignored:
            # a pixel of the class itself: the middle of a ring is not in it
            pixels = np.argwhere(small == value)
            top, left = pixels[
                np.abs(pixels - np.median(pixels, axis=0)).sum(axis=1).argmin()
            ].tolist()
            place = (left - _LINE, top - _LINE // 2)
            _label(image, place, _name(value, names), _color(value), fonts)


def _draw_objects(
    image: Image.Image,
    scale: float,
    objects: dict[str, NDArray[Any]],
    names: list[str],
    fonts: Fonts,
) -> None:
    """Draws masks, boxes with names, and keypoints.

    Args:
        scale: the factor from the pixels of the coordinates to those of `image`.
    """
    labels = objects["box_labels"].tolist()
    for mask, label in zip(objects.get("masks", []), labels, strict=False):
        _cover(
            image,
            np.asarray(Image.fromarray(mask).resize(image.size, Image.Resampling.NEAREST)),
            _color(label),
        )

    drawn = ImageDraw.Draw(image)
    boxes = list(zip((objects["boxes"] * scale).tolist(), labels, strict=True))
    for box, label in boxes:
        drawn.rectangle(box, outline=_color(label), width=2)
    # names after all boxes, so that no line crosses them
    for box, label in boxes:
        place = (box[0], box[1] - _LINE + 2)
        _label(image, place, _name(label, names), _color(label), fonts)

    for points, label in zip(objects.get("keypoints", []), labels, strict=False):
        for x, y, visibility in points.tolist():
            if visibility:
                drawn.circle(
                    (x * scale, y * scale),
                    2.5,
                    _color(label) if visibility > 1 else None,
                    "white",
                    1,
                )


def _cover(image: Image.Image, where: NDArray[np.bool_], color: str) -> None:
    image.paste(
        Image.blend(image, Image.new("RGB", image.size, color), 0.55), mask=Image.fromarray(where)
    )


def _label(
    image: Image.Image, place: tuple[float, float], text: str, color: str, fonts: Fonts
) -> None:
    """Writes text on a ground of this color, at `place` or as near as the image has room.

    A small image gets no text.
    """
    if min(image.size) < _MIN_SIDE_WITH_NAMES:
        return

    drawn, width = ImageDraw.Draw(image), int(_width(text, fonts)) + 5
    left = max(0, min(round(place[0]), image.width - width))
    top = max(0, min(round(place[1]), image.height - _LINE))
    drawn.rectangle((left, top, left + width - 1, top + _LINE - 2), color)
    _write(drawn, (left + 2, top), text, _ink(color), fonts)


def _write(
    drawn: ImageDraw.ImageDraw, place: tuple[float, float], text: str, ink: str, fonts: Fonts
) -> None:
    left, top = place
    for piece, font in fonts.pieces(text, _FONT_SIZE):
        # each font at the same line, which is below the top of its letters by its own height
        drawn.text((left, top + _ASCENT), piece, ink, font, anchor="ls")
        left += font.getlength(piece)


def _width(text: str, fonts: Fonts) -> float:
    return sum(font.getlength(piece) for piece, font in fonts.pieces(text, _FONT_SIZE))


def _ink(color: str) -> str:
    """Returns black or white, whichever has more contrast to this color: 4.5 to 1 or more."""
    parts = np.array(ImageColor.getrgb(color)[:3]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    return "black" if (luminance + 0.05) ** 2 > 0.05 * 1.05 else "white"


def _name_label(label: torch.Tensor, names: list[str]) -> str:
    """Returns the names of an image's classes; "" if it has none, or its label is a number to
    predict.
    """
    if not names:
        return ""
    if label.ndim == 0:
        return _name(int(label), names) if label >= 0 else ""
    return ", ".join(_name(number, names) for number in label.nonzero().flatten().tolist())


def _fit(text: str, width: int, fonts: Fonts) -> str:
    """Leaves out the middle of a text that would be wider than this."""
    kept, shown = len(text), text
    while _width(shown, fonts) > width and kept:
        kept -= 1
        shown = f"{text[: kept - kept // 2].rstrip()}…{text[len(text) - kept // 2 :].lstrip()}"
    return shown


def _name(label: int, names: list[str]) -> str:
    return names[label] if label < len(names) else str(label)


def _color(label: int) -> str:
    return _COLORS[label % len(_COLORS)]
