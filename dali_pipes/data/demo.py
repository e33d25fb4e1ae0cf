"""A demo set of drawn images: JPEGs with ImageNet's sizes and compression, and classes that a small
network can learn.

Each class is a pattern that fills the image, so that a random crop shows it too. Colors and scale
are random, and the noise over it has a spectrum that falls as 1/f, as that of natural images does
(Field 1987, doi:10.1364/JOSAA.4.002379). A left-right flip keeps the class.

`make_demo_set` writes the set, and `make_named_set` that of a configuration that names it.
"""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

from dali_pipes.data.config import DataConfig
from dali_pipes.errors import ManifestError
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.locks import locked
from dali_pipes.system.progress import track
from dali_pipes.system.workers import map_in_order

_MARK = ".demo-set"  # a file with the arguments that a complete set was made with
_UNFINISHED = "unfinished"
_SPLITS = ("train", "val")

Field = NDArray[np.float32]

# Each takes the position within one tile, u and v in [-1, 1), and returns values in [0, 1].
PATTERNS: dict[str, Callable[[Field, Field], Field]] = {
    "checkers": lambda u, v: (u * v > 0).astype(np.float32),
    "columns": lambda u, v: (np.abs(u) < 0.5).astype(np.float32),
    "crosses": lambda u, v: ((np.abs(u) < 0.25) | (np.abs(v) < 0.25)).astype(np.float32),
    "diamonds": lambda u, v: (np.abs(u) + np.abs(v) < 0.8).astype(np.float32),
    "discs": lambda u, v: (np.hypot(u, v) < 0.7).astype(np.float32),
    "frames": lambda u, v: (np.abs(np.maximum(np.abs(u), np.abs(v)) - 0.6) < 0.15).astype(
        np.float32
    ),
    "rings": lambda u, v: (np.abs(np.hypot(u, v) - 0.6) < 0.15).astype(np.float32),
    "rows": lambda u, v: (np.abs(v) < 0.5).astype(np.float32),
    "stars": lambda u, v: (np.sqrt(np.abs(u)) + np.sqrt(np.abs(v)) < 0.95).astype(np.float32),
    "triangles": lambda u, v: ((v > -0.7) & (np.abs(u) < (0.7 - v) / 2)).astype(np.float32),
}


def make_named_set(data: DataConfig, split: str) -> None:
    """Makes the demo set if the images of a split are to be its own, and none is there.

    The command line does so before a job starts. Opening images makes nothing.

    Raises:
        ManifestError: the folder holds a train or val folder that is not the demo set's.
    """
    # the user may have named other images for this split
    if not data.demo or data.source(split) != f"{data.root}/{split}":
        return

    mark = Path(str(data.root), _MARK)
    # a set of another size, which `make_demo_set` made there, is as good
    if not mark.exists() or mark.read_text() == _UNFINISHED:
        make_demo_set(str(data.root))


def make_demo_set(out: str | Path, train: int = 1000, val: int = 200, seed: int = 0) -> Path:
    """Writes `out`/train and `out`/val with 10 class folders each, on all cores.

    Does nothing if the set is there already.

    Args:
        train, val: number of images, spread evenly over the classes.

    Two calls with the same arguments write the same bytes.

    Raises:
        ManifestError: `out` holds a train or val folder that this function did not make.
    """
    out = Path(out)
    with prepare_set(out, f"train={train} val={val} seed={seed}") as missing:
        if missing:
            for folder in (out / split / name for split in _SPLITS for name in PATTERNS):
                folder.mkdir(parents=True)
            counts = {"train": train, "val": val}
            tasks = [(split, number) for split in _SPLITS for number in range(counts[split])]
            written = map_in_order(partial(_write, out, seed), tasks, available_cpus(), chunk=8)
            for _ in track(written, "making demo images", len(tasks)):
                pass
    return out


@contextmanager
def prepare_set(out: Path, description: str) -> Iterator[bool]:
    """Yields whether a demo set has to be written into `out`.

    What an incomplete or a different demo set left there is deleted before.

    Args:
        description: what the mark holds once the set is complete.

    Raises:
        ManifestError: a folder of the set is there, and the mark is not.
    """
    out.mkdir(parents=True, exist_ok=True)
    # each rank of a job starts by making the set
    with locked(out / f"{_MARK}.lock"):
        done = out / _MARK
        if done.exists() and done.read_text() == description:
            yield False
            return

        for path in (out / split for split in _SPLITS):
            if path.exists() and not done.exists():
                raise ManifestError(
                    f"{path} exists and is not a demo set; choose another folder, nothing was "
                    "changed"
                )
            shutil.rmtree(path, ignore_errors=True)

        # a run that is killed leaves this text, and the next one starts anew
        done.write_text(_UNFINISHED)
        print(f"making a demo set in {out}, once", file=sys.stderr)

        yield True
        done.write_text(description)


def _write(out: Path, seed: int, task: tuple[str, int]) -> None:
    split, number = task
    # a generator for each image, so that the bytes do not depend on which process draws it
    rng = np.random.default_rng([seed, split == "val", number])
    name = sorted(PATTERNS)[number % len(PATTERNS)]
    image = Image.fromarray(draw_image(name, rng))

    kind = rng.random()
    options: dict[str, Any] = {
        "quality": int(rng.integers(80, 96)),
        "subsampling": "4:2:0" if rng.random() < 0.85 else "4:4:4",
    }

    # a few of the rarer forms: gray, progressive, turned by the EXIF tag
    if kind < 0.02:
        image = image.convert("L")
        del options["subsampling"]
    elif kind < 0.04:
        options["progressive"] = True
        # Pillow's buffer has one byte a pixel, and saving fails where noise needs more
        ImageFile.MAXBLOCK = 4 * image.width * image.height
    elif kind < 0.06:
        exif = Image.Exif()
        # the tag Orientation
        exif[0x0112] = int(rng.integers(2, 9))
        options["exif"] = exif

    image.save(out / split / name / f"{name}_{number:05d}.jpg", **options)


def draw_image(name: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draws one image of a class, (H, W, 3)."""
    height, width = _size(rng)

    # tiles of random size and phase, turned a little
    tile = rng.uniform(40, 110)
    angle = rng.uniform(-0.12, 0.12)
    y, x = np.mgrid[:height, :width].astype(np.float32)
    u = (x * np.cos(angle) - y * np.sin(angle)) / tile + rng.random()
    v = (x * np.sin(angle) + y * np.cos(angle)) / tile + rng.random()
    pattern = PATTERNS[name](2 * (u % 1) - 1, 2 * (v % 1) - 1)[..., None]

    # two colors, and noise over them: on all scales (1/f), and of single pixels
    dark, light = rng.uniform(20, 130, 3), rng.uniform(110, 235, 3)
    image = dark + (light - dark) * pattern
    image = (
        image
        + _one_over_f(height, width, rng) * rng.uniform(15, 40)
        + rng.normal(0, rng.uniform(2, 20), (height, width, 3))
    )

    return image.clip(0, 255).astype(np.uint8)


def _size(rng: np.random.Generator) -> tuple[int, int]:
    """Height and width in pixels: most have a longer side of 500, as in ImageNet; others vary."""
    long = 500 if rng.random() < 0.75 else int(np.clip(rng.lognormal(np.log(500), 0.45), 130, 1600))
    # 2:3 and 3:4, the shapes of most cameras' pictures, are the most frequent ones
    short = int(long * rng.choice([0.667, 0.75, rng.uniform(0.5, 1)], p=[0.35, 0.4, 0.25]))
    return (short, long) if rng.random() < 0.72 else (long, short)


def _one_over_f(height: int, width: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Noise whose spectrum falls as 1/f, (height, width, 3), of unit variance and mostly gray."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    # no constant part, and no division by zero
    frequency[0, 0] = np.inf
    layers = [
        np.fft.irfft2(np.fft.rfft2(rng.normal(size=(height, width))) / frequency, (height, width))
        for _ in range(2)
    ]
    gray, tint = (layer / layer.std() for layer in layers)
    return gray[..., None] + 0.3 * tint[..., None] * rng.uniform(-1, 1, 3)
