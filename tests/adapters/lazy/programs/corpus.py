"""Training and evaluation programs as their authors write them, for equal batches.

A program is a function that makes a DataLoader, with classes that look like those of programs and
not like ours. They are registered by pillow_programs, array_programs and store_programs.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFilter
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from programs import pictures
from programs.pictures import CLASSES, FILES, aged
from programs.running import Comparison, compare, epochs_of

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
TO_TENSOR = [T.ToTensor(), T.Normalize(MEAN, STD)]

PROGRAMS: dict[str, "Program"] = {}


@dataclass(frozen=True)
class Program:
    """
    Attributes:
        make: a DataLoader.
        epochs: of a training program two, so that crops of the second are others.
        needs: modules that may be missing.
        quick: belongs to the fast tests.
        wraps: it is no DataLoader, but has one, so that `from_torch` must say who makes pictures.
    """

    name: str
    make: Callable[[], Any]
    epochs: int
    needs: tuple[str, ...]
    quick: bool
    wraps: bool

    def compare(self, workers: int = 0, **options: Any) -> Comparison:
        """The program as ever, and with lazy pictures; `options` of `running.compare`."""

        def make() -> Any:
            loader = self.make()
            inner = loader.loader if self.wraps else loader
            if workers:
                vars(inner).update(num_workers=workers, prefetch_factor=2)
            return loader

        return compare(make, partial(epochs_of, epochs=self.epochs), **options)

    @property
    def missing(self) -> list[str]:
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


def program(
    kind: str, *needs: str, quick: bool = False, wraps: bool = False
) -> Callable[[Any], Any]:
    """Registers a function that makes a DataLoader, to "train" or to "eval"."""

    def register(make: Any) -> Any:
        epochs = {"train": 2, "eval": 1}[kind]
        PROGRAMS[make.__name__] = Program(make.__name__, make, epochs, needs, quick, wraps)
        return make

    return register


class Rows(Dataset):
    """What most data sets of programs begin with."""

    transform: Any = None

    def __init__(self, rows: Any, transform: Any = None):
        self.rows, self.transform = rows, transform or self.transform

    def __len__(self) -> int:
        return len(self.rows)


def training(dataset: Any, **options: Any) -> DataLoader:
    return DataLoader(dataset, **{"batch_size": 4, "shuffle": True} | options)


def evaluating(dataset: Any, **options: Any) -> DataLoader:
    return DataLoader(dataset, **{"batch_size": 5} | options)


def root() -> Path:
    return pictures.FOLDER / "images"


def table() -> list[tuple[str, int]]:
    """Paths and labels."""
    return [(file, CLASSES.index(Path(file).parent.name)) for file in FILES]


def colour() -> list[tuple[str, int]]:
    """For programs that do not convert to RGB."""
    return [(file, label) for file, label in table() if Image.open(file).mode == "RGB"]


def scratch(name: str, fill: Callable[[Path], None]) -> Path:
    """A folder of files of a while ago, which `fill` makes once."""
    folder = pictures.FOLDER / name
    if not folder.exists():
        folder.mkdir()
        fill(folder)
        for file in folder.rglob("*"):
            aged(file)
    return folder


def masks() -> dict[str, str]:
    """A PNG of the classes 0, 1 and 2 for each picture, by its brightness."""
    folder = scratch("masks", partial(_fill_masks, draw=_classes_of))
    return {file: str(folder / f"{Path(file).stem}.png") for file in FILES}


def depths() -> dict[str, str]:
    """A PNG of 16 bits for each picture."""
    folder = scratch("depths", partial(_fill_masks, draw=_depth_of))
    return {file: str(folder / f"{Path(file).stem}.png") for file in FILES}


def _fill_masks(folder: Path, draw: Callable[[np.ndarray], np.ndarray]) -> None:
    for file in FILES:
        smooth = Image.open(file).convert("L").filter(ImageFilter.GaussianBlur(4))
        Image.fromarray(draw(np.asarray(smooth))).save(folder / f"{Path(file).stem}.png")


def _classes_of(smooth: np.ndarray) -> np.ndarray:
    return np.uint8(smooth > 100) + np.uint8(smooth > 150)


def _depth_of(smooth: np.ndarray) -> np.ndarray:
    return smooth.astype(np.uint16) * 30 + 500
