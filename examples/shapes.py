"""Draws a small set to try the examples with: discs, squares and triangles on noise, with boxes and
captions in COCO's form, and masks.

python examples/shapes.py data/shapes
"""

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

CLASSES = ["disc", "square", "triangle"]
COLORS = ["blue", "green", "pink", "purple", "red", "yellow"]


def draw(rng):
    """An image, its mask of classes (0 is the ground), and the color, class and box of each shape.

    A shape has a column of the image for itself, so none covers another.
    """
    image = Image.fromarray(rng.integers(90, 150, (240, 320, 3), dtype=np.uint8))
    mask, found = Image.new("L", image.size), []
    count = int(rng.integers(1, 4))
    for place, color in enumerate(rng.permutation(COLORS)[:count]):
        wide, name = 320 // count, str(rng.choice(CLASSES))
        radius = int(rng.integers(20, min(wide // 2, 70)))
        x = place * wide + int(rng.integers(radius, wide - radius + 1))
        y = int(rng.integers(radius, 240 - radius))
        box = (x - radius, y - radius, x + radius - 1, y + radius - 1)
        corners = [(x, box[1]), (box[2], box[3]), (box[0], box[3])]
        for drawn, ink in ((image, str(color)), (mask, CLASSES.index(name) + 1)):
            pen = ImageDraw.Draw(drawn)
            if name == "disc":
                pen.ellipse(box, ink)
            elif name == "square":
                pen.rectangle(box, ink)
            else:
                pen.polygon(corners, ink)
        found.append((str(color), name, [box[0], box[1], 2 * radius, 2 * radius]))
    return image, mask, found


def make(folder, train=400, val=100):
    folder = Path(folder)
    categories = [{"id": number, "name": name} for number, name in enumerate(CLASSES, 1)]
    for seed, (split, count) in enumerate({"train": train, "val": val}.items()):
        images, objects, captions = [], [], []
        for kind in ("images", "masks"):
            (folder / kind / split).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            image, mask, found = draw(np.random.default_rng([seed, number]))
            name = f"{number:05d}"
            image.save(folder / f"images/{split}/{name}.jpg", quality=90)
            mask.save(folder / f"masks/{split}/{name}.png")
            images.append({"id": number, "file_name": f"{name}.jpg", "width": 320, "height": 240})
            for _, kind, box in found:
                of = {"id": len(objects) + 1, "image_id": number, "iscrowd": 0}
                objects.append(of | {"category_id": CLASSES.index(kind) + 1, "bbox": box})
            text = " left of ".join(f"a {color} {kind}" for color, kind, _ in found)
            captions.append({"id": number, "image_id": number, "caption": text})
        content = {"images": images, "annotations": objects, "categories": categories}
        (folder / f"{split}.json").write_text(json.dumps(content))
        content = {"images": images, "annotations": captions}
        (folder / f"captions_{split}.json").write_text(json.dumps(content))
    return folder


if __name__ == "__main__":
    print(make(sys.argv[1]))
