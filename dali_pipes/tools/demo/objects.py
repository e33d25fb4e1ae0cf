"""Makes pictures of colored shapes with boxes, keypoints, outlines, masks and captions.

These are exact, since the shapes are painted: `draw_objects` paints a picture, `_write` saves it,
and `_write_json` collects what all pictures show in files of COCO's form.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dali_pipes.data.demo import PATTERNS, draw_image, make_images, prepare_set

SHAPES = {
    "cross": PATTERNS["crosses"],
    "disc": PATTERNS["discs"],
    "square": lambda u, v: np.maximum(np.abs(u), np.abs(v)) < 0.8,
    "star": PATTERNS["stars"],
    "triangle": PATTERNS["triangles"],
}
COLORS = {
    "blue": (45, 80, 225),
    "green": (35, 165, 70),
    "orange": (240, 130, 25),
    "purple": (150, 50, 190),
    "red": (220, 35, 45),
    "yellow": (240, 215, 40),
}
KEYPOINTS = ["left", "top", "right", "bottom"]
_TILT = 0.25  # radians
_REACH = 1.1  # how far a shape of radius 1 with this tilt extends from its centre
# the share of a new shape that may cover earlier ones; it covers no larger share of them, since
# shapes get smaller
_MOST_COVERED = 0.25
_TRIES = 20  # places that are tried for a shape before it is left out

Bool = NDArray[np.bool_]
Entry = dict[str, Any]


class Picture(NamedTuple):
    """An image of shapes, each painted over those before it.

    Attributes:
        pixels: (H, W, 3) uint8.
        names, colors: the class and the color of each shape.
        shapes: (H, W) bool each, including what later shapes cover.
        visible: (H, W) uint8: 0 is the ground, else the number of the shape that is seen, from 1.
    """

    pixels: NDArray[np.uint8]
    names: list[str]
    colors: list[str]
    shapes: list[Bool]
    visible: NDArray[np.uint8]


def make_demo_objects(out: str | Path, train: int = 400, val: int = 100, seed: int = 0) -> Path:
    """Writes pictures of one to five shapes, and what they show, on all cores.

    Does nothing if they exist already. Two calls with the same arguments write the same bytes. For
    each split, such as train:

        images/train/00000.jpg    the pictures
        masks/train/00000.png     8-bit: 0 is the ground, class number + 1 the shape that is seen
        train.json                COCO's form: boxes, areas, outlines, keypoints of whole shapes
        captions_train.json       COCO's form: "a red disc left of a blue star"

    Args:
        train, val: the number of images.

    Returns:
        `out`.

    Raises:
        ManifestError: `out` holds a folder images or masks that this function did not make.
    """
    out, splits = Path(out), ("train", "val")
    files = [f"{kind}{split}.json" for kind in ("", "captions_") for split in splits]

    with prepare_set(
        out, ".demo-objects", ["images", "masks", *files], f"train={train} val={val} seed={seed}"
    ) as missing:
        if missing:
            for folder in (out / kind / split for kind in ("images", "masks") for split in splits):
                folder.mkdir(parents=True)
            made = make_images(partial(_write, out, seed), train, val)
            _write_json(out, "train", made[:train])
            _write_json(out, "val", made[train:])
    return out


def draw_objects(rng: np.random.Generator) -> Picture:
    """Paints a picture with one to five shapes of different colors."""
    pixels = _ground(rng)
    height, width, shorter = *pixels.shape[:2], min(pixels.shape[:2])
    colors = rng.permutation(sorted(COLORS)).tolist()
    picture = Picture(pixels, [], [], [], np.zeros((height, width), np.uint8))

    # large shapes first, so that no shape covers much of another
    for radius in sorted(rng.uniform(0.1, 0.3, rng.integers(1, 6)) * shorter, reverse=True):
        name, color = str(rng.choice(sorted(SHAPES))), colors.pop()

        for _ in range(_TRIES):
            shape = _shape(name, radius, height, width, rng)
            if (picture.visible[shape] > 0).mean() <= _MOST_COVERED:
                _paint(picture, name, color, shape, rng)
                break

    return picture


def _ground(rng: np.random.Generator) -> NDArray[np.uint8]:
    """The background (H, W, 3): an image of the demo set, made pale and almost gray."""
    image = draw_image(str(rng.choice(["checkers", "columns", "rows"])), rng).astype(np.float32)
    gray = image.mean(axis=2, keepdims=True)
    return (110 + 0.45 * (gray - 110) + 0.2 * (image - gray)).clip(0, 255).astype(np.uint8)


def _shape(name: str, radius: float, height: int, width: int, rng: np.random.Generator) -> Bool:
    """A shape (H, W), at a random place, completely inside the image; `radius` is in pixels."""
    reach = _REACH * radius + 1
    left, top, tilt = (
        rng.uniform(reach, width - reach),
        rng.uniform(reach, height - reach),
        rng.uniform(-_TILT, _TILT),
    )

    # pixel centres in a system in which the shape is upright and has radius 1
    y, x = (
        np.mgrid[:height, :width].astype(np.float32) + 0.5 - np.array([top, left])[:, None, None]
    ) / radius
    u, v = x * np.cos(tilt) - y * np.sin(tilt), x * np.sin(tilt) + y * np.cos(tilt)
    # cut off, since the formula of a cross gives its arms no end
    return (SHAPES[name](u, v) > 0) & (np.maximum(np.abs(u), np.abs(v)) < 0.85)


def _paint(picture: Picture, name: str, color: str, shape: Bool, rng: np.random.Generator) -> None:
    picture.names.append(name)
    picture.colors.append(color)
    picture.shapes.append(shape)
    picture.visible[shape] = len(picture.shapes)
    picture.pixels[shape] = (COLORS[color] + rng.normal(0, 8, (shape.sum(), 3))).clip(0, 255)


def caption(picture: Picture) -> str:
    """Describes a picture, such as "a red disc left of a blue star, and a green cross".

    Only the first two shapes have a relation.
    """
    shapes = [f"{color} {name}" for color, name in zip(picture.colors, picture.names, strict=True)]
    several = [f"{'an' if shape.startswith('o') else 'a'} {shape}" for shape in shapes]

    if len(several) == 1:
        return several[0]

    (top, left), (other_top, other_left) = (
        np.argwhere(shape).mean(axis=0) for shape in picture.shapes[:2]
    )

    if abs(left - other_left) > abs(top - other_top):
        place = "left of" if left < other_left else "right of"
    else:
        place = "above" if top < other_top else "below"

    return ", and ".join([f"{several[0]} {place} {several[1]}", *several[2:]])


def _write(out: Path, seed: int, task: tuple[str, int]) -> tuple[Entry, list[Entry], str]:
    """Paints and saves one picture and its mask.

    Returns:
        the image, its objects and its caption, for COCO's files.
    """
    split, number = task
    # numbers of its own for each picture, which processes make in any order
    picture = draw_objects(np.random.default_rng([seed, split == "val", number]))
    classes = [sorted(SHAPES).index(name) + 1 for name in picture.names]

    Image.fromarray(picture.pixels).save(out / f"images/{split}/{number:05d}.jpg", quality=90)
    Image.fromarray(np.array([0, *classes], np.uint8)[picture.visible]).save(
        out / f"masks/{split}/{number:05d}.png"
    )

    height, width = picture.visible.shape
    objects = [
        {"category_id": shape, **_annotation(picture, place)} for place, shape in enumerate(classes)
    ]

    return (
        {"file_name": f"{number:05d}.jpg", "height": height, "width": width},
        objects,
        caption(picture),
    )


def _annotation(picture: Picture, place: int) -> Entry:
    """COCO's fields of one shape.

    A keypoint is the middle one of the shape's outermost pixels on one side; it is hidden if
    another shape covers it.
    """
    shape = picture.shapes[place]
    rows, columns = np.nonzero(shape)
    left, top, right, bottom = (
        int(edge) for edge in (columns.min(), rows.min(), columns.max(), rows.max())
    )

    points = [
        *(
            (left, int(np.median(rows[columns == left]))),
            (int(np.median(columns[rows == top])), top),
        ),
        *(
            (right, int(np.median(rows[columns == right]))),
            (int(np.median(columns[rows == bottom])), bottom),
        ),
    ]
    # COCO's visibility: 2 is seen, 1 is hidden
    seen = [2 if picture.visible[y, x] == place + 1 else 1 for x, y in points]

    return {
        "bbox": [left, top, right + 1 - left, bottom + 1 - top],
        "area": len(rows),
        "iscrowd": 0,
        "segmentation": {"size": list(shape.shape), "counts": _run_lengths(shape)},
        "keypoints": [
            number
            for (x, y), visibility in zip(points, seen, strict=True)
            for number in (x, y, visibility)
        ],
        "num_keypoints": len(points),
    }


def _run_lengths(shape: Bool) -> list[int]:
    """COCO's run lengths: column by column, alternately outside and inside the shape."""
    pixels = np.concatenate([[False], shape.T.ravel()])
    ends = np.append(np.flatnonzero(pixels[1:] != pixels[:-1]), shape.size)
    return np.diff(ends, prepend=0).tolist()


def _write_json(out: Path, split: str, made: list[tuple[Entry, list[Entry], str]]) -> None:
    images = [{"id": number, **image} for number, (image, _, _) in enumerate(made, 1)]

    objects = [
        {"image_id": number, **object_}
        for number, (_, several, _) in enumerate(made, 1)
        for object_ in several
    ]
    objects = [{"id": number, **object_} for number, object_ in enumerate(objects, 1)]

    categories = [
        {"id": number, "name": name, "keypoints": KEYPOINTS}
        for number, name in enumerate(sorted(SHAPES), 1)
    ]
    captions = [
        {"id": number, "image_id": number, "caption": text}
        for number, (_, _, text) in enumerate(made, 1)
    ]

    contents = {split: {"images": images, "annotations": objects, "categories": categories}}
    contents[f"captions_{split}"] = {"images": images, "annotations": captions}

    for name, content in contents.items():
        (out / f"{name}.json").write_text(json.dumps(content, separators=(",", ":")))
