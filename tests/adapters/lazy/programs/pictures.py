"""The small pictures that the programs read, in ImageFolder layout.

`make_pictures` fills `FILES` and `FOLDER`, before a program's DataLoader is made.
"""

import os
import time
import uuid
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

CLASSES = ("ant", "bee", "cat", "dog")
GRAY_AT, PNG_EVERY, PROGRESSIVE_AT = 5, 4, 2
AGE = 1000  # seconds; a file that was written just now may be kept as bytes

FILES: list[str] = []  # sorted, as ImageFolder lists them
FOLDER = Path()


def make_pictures(folder: Path, count: int = 24) -> None:
    """JPEGs and PNGs of 96 to 120 by 84 to 112 pixels, one of them gray, some hundred KB in all."""
    global FOLDER
    FOLDER = folder
    rng = np.random.default_rng(7)
    made = []
    for at in range(count):
        picture = draw(rng, int(rng.integers(96, 121)), int(rng.integers(84, 113)))
        if at == GRAY_AT:
            picture = picture.convert("L")
        home = folder / "images" / CLASSES[at * len(CLASSES) // count]
        home.mkdir(parents=True, exist_ok=True)
        file = home / f"{at:03d}.{'png' if at % PNG_EVERY == 3 else 'jpg'}"
        options = {"quality": 90, "subsampling": at % 3, "progressive": at == PROGRESSIVE_AT}
        picture.save(file, **({} if file.suffix == ".png" else options))
        made.append(str(aged(file)))
    FILES[:] = sorted(made)


def draw(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Soft colours, an edge and grain: what a resize, a flip or a wrong row would change."""
    soft = Image.fromarray(rng.integers(0, 256, (7, 9, 3), np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    grain = rng.normal(0, 9, (height, width, 1))
    pixels = np.asarray(soft.filter(ImageFilter.GaussianBlur(1)), float) + grain
    left, top = rng.integers(0, width // 2), rng.integers(0, height // 2)
    pixels[top : top + height // 3, left : left + width // 4] = rng.integers(0, 256, 3)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def aged(file: Path | str) -> Path:
    """The file, as if it had been written a while ago."""
    os.utime(file, (time.time() - AGE,) * 2)
    return Path(file)


def fresh(suffix: str = "") -> Path:
    """A name that no file has yet, in this process or in another."""
    return FOLDER / f"{uuid.uuid4()}{suffix}"
