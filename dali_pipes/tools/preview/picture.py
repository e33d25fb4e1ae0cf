"""The picture of a batch: a tile for each image, drawn by torchvision.

The mask, boxes and keypoints are over the first view; the classes and the text of an image are
below.
"""

import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from torch.nn.functional import pad
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2.functional import resize
from torchvision.utils import (
    draw_bounding_boxes,
    draw_keypoints,
    draw_segmentation_masks,
    save_image,
)

from dali_pipes.backends.pixels.tensors import to_steps
from dali_pipes.loader.batch import Batch, Ragged
from dali_pipes.plan.transforms import Transform

SHOWN, SHOWN_WITH_VIEWS, COLUMNS, GAP = 24, 8, 6, 4
LARGEST = 480  # pixels of a view's longer side
LINE = 16  # pixels of height of a line of text
_MIN_SIDE_WITH_NAMES = 128  # an image whose shorter side has fewer pixels has no room for names
_LETTER = 7  # pixels of width, about
_MOST_LINES = 4
_CAPTION = 96  # pixels of width that a line of text has at least
_FONT = {
    "font": str(Path(mpl.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")),
    "font_size": 12,
}
_COLORS = (  # of the classes in turn: Tableau's ten colors
    *("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd"),
    *("#8c564b", "#e377c2", "#17becf", "#bcbd22", "#7f7f7f"),
)


def save_picture(batch: Batch, transform: Transform, classes: list[str], file: Path) -> None:
    """Draws the first images of a batch; images larger than `LARGEST` are made smaller.

    Each class has a color. A mask's value 0 is not drawn, and its `ignore_index` is gray. Unknown
    keypoints are left out. If there are views, each image has a row of them.

    Args:
        classes: the names; none if the labels are numbers to predict.
    """
    batch = batch.to("cpu")
    shown = min(SHOWN_WITH_VIEWS if batch.views else SHOWN, len(batch))
    rows = [_draw_image(batch, place, transform, classes) for place in range(shown)]
    tiles = [tile for row in rows for tile in row]
    # those of a grid have one size
    height, width = (max(tile.shape[side] for tile in tiles) for side in (1, 2))
    tiles = [_extend(tile, height, width) / 255 for tile in tiles]
    columns = len(rows[0]) if len(rows[0]) > 1 else COLUMNS
    save_image(tiles, file, nrow=columns, padding=GAP, pad_value=1)


def _draw_image(
    batch: Batch, place: int, transform: Transform, names: list[str]
) -> list[torch.Tensor]:
    """Returns the tiles of an image, (3, H, W) uint8: its views."""
    views = [view for views in batch.views.values() for view in views[place]]
    tiles = [to_steps(view, transform) for view in views or [batch.images[place]]]
    first, *others = (
        _shrink(tile.round().clamp(0, 255).to(torch.uint8).expand(3, -1, -1)) for tile in tiles
    )

    mask = batch.targets.get("mask")
    if isinstance(mask, torch.Tensor) and mask.ndim == 3:
        first = _draw_mask(first, mask[place].int(), transform.ignore_index, names)
    boxes = batch.targets.get("boxes")
    if isinstance(boxes, Ragged) and boxes.lengths[place]:
        scale = first.shape[-1] / tiles[0].shape[-1]
        first = _draw_objects(first, batch, place, scale, names)

    # classes of objects and of pixels are drawn on the image
    is_drawn = "boxes" in batch.targets or "mask" in batch.targets
    texts = [] if is_drawn else [_name_label(batch.labels[place], names)]
    texts += [batch.text[place]] if "text" in batch else []
    return [_write_below(first, texts), *others]


def _draw_mask(
    image: torch.Tensor, mask: torch.Tensor, ignored: int, names: list[str]
) -> torch.Tensor:
    small = _shrink(mask[None], InterpolationMode.NEAREST_EXACT)[0]
    present = sorted({*small.flatten().tolist()} - {0})
    for value in present:
        color = "#808080" if value == ignored else _color(value)
        image = draw_segmentation_masks(image, small == value, 0.55, color)

    named, places = [value for value in present if value != ignored], []
    for value in named:
        # a pixel of the class itself, since the middle of a ring is not in it
        pixels = (small == value).nonzero()
        y, x = pixels[len(pixels) // 2].tolist()
        x = max(0, min(x, image.shape[2] - _LETTER * (len(_name(value, names)) + 1)))
        places.append([x, y, x, y])
    return _draw_boxes(image, places, named, names, width=1)


def _draw_objects(
    image: torch.Tensor, batch: Batch, place: int, scale: float, names: list[str]
) -> torch.Tensor:
    """Draws masks, boxes with names, and keypoints.

    Args:
        scale: the factor from the pixels of the coordinates to those of `image`.
    """
    labels = batch["box_labels"][place].tolist()
    if "masks" in batch.targets:
        for mask, label in zip(batch["masks"][place], labels, strict=True):
            small = _shrink(mask[None], InterpolationMode.NEAREST_EXACT)[0]
            image = draw_segmentation_masks(image, small, 0.55, _color(label))
    boxes = (batch["boxes"][place] * scale).tolist()
    image = _draw_boxes(image, boxes, labels, names, width=2)
    if "keypoints" in batch.targets:
        for points, label in zip(batch["keypoints"][place][:, None], labels, strict=True):
            known = points[..., 2] > 0
            image = draw_keypoints(
                image, points[..., :2] * scale, colors=_color(label), visibility=known
            )
    return image


def _draw_boxes(
    image: torch.Tensor, boxes: list[Any], labels: list[int], names: list[str], width: int
) -> torch.Tensor:
    if not boxes:
        return image
    texts = [_name(label, names) for label in labels]
    return draw_bounding_boxes(
        image,
        torch.tensor(boxes),
        texts if min(image.shape[1:]) >= _MIN_SIDE_WITH_NAMES else None,
        [_color(label) for label in labels],
        width=width,
        fill_labels=True,
        **_FONT,
    )


def _write_below(image: torch.Tensor, texts: list[str]) -> torch.Tensor:
    _, height, width = image.shape
    room = max(width, _CAPTION)
    lines = [
        line
        for text in texts
        for line in textwrap.wrap(text, room // _LETTER, max_lines=_MOST_LINES, placeholder=" …")
    ]
    if not lines:
        return image
    below = height + LINE * len(lines) + GAP
    return draw_bounding_boxes(
        _extend(image, below, room),
        torch.tensor([[0, height, room - 1, below - 1]]),
        ["\n".join(lines)],
        "white",
        label_colors="black",
        **_FONT,
    )


def _extend(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """White at the right and below."""
    return pad(image, (0, width - image.shape[2], 0, height - image.shape[1]), value=255)


def _shrink(
    pixels: torch.Tensor, how: InterpolationMode = InterpolationMode.BILINEAR
) -> torch.Tensor:
    scale = min(1.0, LARGEST / max(pixels.shape[1:]))
    smaller: torch.Tensor = resize(pixels, [round(side * scale) for side in pixels.shape[1:]], how)
    return smaller


def _name_label(label: torch.Tensor, names: list[str]) -> str:
    """Returns the names of an image's classes; "" if it has none, or its label is a number to
    predict.
    """
    if not names:
        return ""
    if label.ndim == 0:
        return _name(int(label), names) if label >= 0 else ""
    return ", ".join(_name(number, names) for number in label.nonzero().flatten().tolist())


def _name(label: int, names: list[str]) -> str:
    return names[label] if label < len(names) else str(label)


def _color(label: int) -> str:
    return _COLORS[label % len(_COLORS)]
