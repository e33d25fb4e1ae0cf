"""What tries to make lazy pictures silently wrong, and how it is judged.

A trap is a data set's `__getitem__`, as a function of the paths of two pictures, or a function that
makes a DataLoader. It runs as ever and with lazy pictures, from equal random states:

    equal    the same batches, or the same error
    said     the same batches, and a warning that something did not wait
    loud     an error that the program itself does not have
    WRONG    other batches
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torchvision.transforms.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from programs.pictures import FILES
from programs.running import compare, epochs_of

SIZE = 48
COUNT, LATER_COUNT, LATER_AT = 6, 12, 7  # samples; the one that alone is a trap
MEAN = 1.0  # of 255: how far pixels of a backend may be from the program's

TRAPS: dict[str, "Trap"] = {}


@dataclass(frozen=True)
class Trap:
    """
    Attributes:
        make: a DataLoader; of one whose trap may be in a later sample only, it takes which.
        item: whether there is such a one.
        loop: yields the batches of a loader, as the program's training loop asks for them.
        raises: whether the program ends with an error of its own.
    """

    name: str
    make: Callable[..., Any]
    item: bool
    loop: Callable[[Any], Iterator[Any]]
    raises: bool


@dataclass(frozen=True)
class Outcome:
    kind: str
    text: str
    waited: int


def trap(
    function: Any = None,
    /,
    *,
    name: str = "",
    workers: int = 0,
    epochs: int = 1,
    raises: bool = False,
    **options: Any,
) -> Any:
    """Registers `__getitem__(path, other path)`."""

    def register(item: Any) -> Any:
        make = partial(_make_loader, item, workers, options)
        _add(Trap(name or item.__name__, make, True, partial(epochs_of, epochs=epochs), raises))
        return item

    return register(function) if function else register


def collate_trap(item: Any, **options: Any) -> Any:
    """Registers a collate function of what `item` makes."""

    def register(collate: Any) -> Any:
        trap(item, name=collate.__name__, collate_fn=collate, **options)
        return collate

    return register


def loader_trap(function: Any = None, /, *, epochs: int = 1, raises: bool = False) -> Any:
    """Registers a function that makes a DataLoader."""

    def register(make: Any) -> Any:
        _add(Trap(make.__name__, make, False, partial(epochs_of, epochs=epochs), raises))
        return make

    return register(function) if function else register


def loop_trap(make: Callable[[], Any], name: str = "") -> Any:
    """Registers how a training loop uses the DataLoader that is made."""

    def register(loop: Any) -> Any:
        _add(Trap(name or loop.__name__, make, False, loop, False))
        return loop

    return register


def dataset_trap(*, epochs: int = 1, **options: Any) -> Any:
    """Registers `__getitem__(self, at)` of a data set."""

    def register(item: Any) -> Any:
        kind = type(item.__name__, (Pairs,), {"__getitem__": item})
        loop = partial(epochs_of, epochs=epochs)
        _add(Trap(item.__name__, lambda: pairs(kind(None), **options), False, loop, False))
        return item

    return register


def _add(made: Trap) -> None:
    if made.name in TRAPS:
        raise ValueError(f"two traps are called {made.name}")
    TRAPS[made.name] = made


def judge(which: Trap, later: bool = False, **options: Any) -> Outcome:
    """
    Args:
        later: one sample in the middle is the trap, when nobody checks any more.
        options: of the lazy loader.
    """
    make = partial(which.make, LATER_AT) if later else which.make
    found = compare(make, which.loop, raises=which.raises, **options)
    old, new = found.old, found.new
    difference = found.difference
    if not difference and found.mean > MEAN:
        difference = f"mean {found.mean:.2f}, most {found.most:.0f}"
    said = [each for each in new.warnings if each not in old.warnings]
    if not difference:
        return Outcome("said" if said else "equal", said[0] if said else old.error, new.waited)
    if new.error and new.error != old.error:
        return Outcome("loud", f"{new.error}\n{new.trace}", new.waited)
    return Outcome("WRONG", f"{difference}; {'; '.join(said) or 'without a word'}", new.waited)


# Data sets


class Pairs(Dataset):
    """Samples that a trap makes of two pictures; all, or one in the middle of plain ones."""

    def __init__(self, item: Any, only: int | None = None):
        self.item, self.only, self.files = item, only, list(FILES)

    def __len__(self) -> int:
        return COUNT if self.only is None else LATER_COUNT

    def __getitem__(self, at: int) -> Any:
        if self.only is not None and at != self.only:
            return tensor(self.files[at]), array(self.files[at + 1])
        return self.item(self.files[at], self.files[at + 1])


def pairs(item: Any, batch_size: int | None = 3, **options: Any) -> DataLoader:
    """A DataLoader of `__getitem__(path, other path)`, or of a data set."""
    dataset = item if isinstance(item, Dataset) else Pairs(item)
    return DataLoader(dataset, batch_size=batch_size, **options)


def _make_loader(item: Any, workers: int, options: Any, only: int | None = None) -> DataLoader:
    given = {"batch_size": 3, "num_workers": workers} | options
    if only is not None and given["batch_size"]:
        given["batch_size"] = 1  # samples of different structures
    return DataLoader(Pairs(item, only), **given)


def small(path: Any) -> Image.Image:
    return Image.open(path).convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)


def tensor(path: Any) -> torch.Tensor:
    return F.to_tensor(small(path))


def array(path: Any) -> np.ndarray:
    return np.array(small(path))
