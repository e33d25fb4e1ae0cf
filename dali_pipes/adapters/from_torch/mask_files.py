"""Which of the files that a data set opens for a sample are masks: `find_masks`.

A mask is gray, has a palette, or is black and white, in all samples, and its image is in colour in
one of them. If images are gray too, a mask is what reaches a transform as a `tv_tensors.Mask`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from dali_pipes.adapters.from_torch.recording.marks import Pixels
from dali_pipes.adapters.from_torch.recording.masks import MASK_MODES, MaskFile, MaskNotes
from dali_pipes.adapters.from_torch.recording.random_states import seed_all
from dali_pipes.adapters.from_torch.recording.visit import EndlessError, Opened, Supply, Visit

_ALL = {"1": 2}  # how many values a mask may have, by its mode; 256 in others


def find_masks(
    recorder: Any, see: Callable[[Any, Supply, int], Any], indices: list[Any]
) -> MaskNotes | None:
    """What is known of the masks that samples have beside their images; None: they have none.

    Args:
        recorder: a `Recorder`, within its block.
        see: visits a sample, and refuses it if its code fails.
        indices: of the samples that are looked at; the first one was seen to open several files, or
            to fail.
    """
    # any file may be a mask, so that code behind a transform gets values that a mask has
    recorder.masks = MaskNotes(None)
    visits: list[Visit] = []
    for index in indices:
        visits.append(see(index, Supply(), 1).visit)
        if len(visits[-1].opened) < 2:
            break

    places = _mask_places(visits) if len(visits) == len(indices) else []
    recorder.masks = None
    if not places:
        return None
    seen = {
        place: np.unique(np.concatenate([_values_of(visit, place) for visit in visits]))
        for place in places
    }
    modes = {place: visits[0].opened[place].mode for place in places}
    return _with_values(recorder, indices[0], modes, seen)


def _mask_places(visits: list[Visit]) -> list[int]:
    """The places of masks among the files that a visit opens."""
    if {len(visit.opened) for visit in visits} in ({0}, {1}):
        return []
    if len({len(visit.opened) for visit in visits}) > 1:
        return []
    modes = [[opened.mode for opened in visit.opened] for visit in visits]
    plain = [at for at, of_file in enumerate(zip(*modes, strict=True)) if _are_masks(of_file)]
    spread, as_masks = _used_as(visits[0])
    if len(plain) == len(modes[0]):
        return sorted(as_masks)
    # a gray photo that is made one in colour is no mask
    return [at for at in plain if at not in spread or at in as_masks]


def _are_masks(modes: tuple[str, ...]) -> bool:
    return all(mode in MASK_MODES for mode in modes)


def _used_as(visit: Visit) -> tuple[set[int], set[int]]:
    """Which files reach a step in three channels, and which as a `tv_tensors.Mask`."""
    spread, as_masks = set(), set()
    for call in visit.calls:
        for match in call.inputs:
            if match and match.table and isinstance(source := match.mark.source, Opened):
                place = visit.opened.index(source)
                if match.kind == "mask":
                    as_masks.add(place)
                elif match.table.results.shape[1] == 3:
                    spread.add(place)
    return spread, as_masks


def _values_of(visit: Visit, place: int) -> Pixels:
    """The values of a true mask."""
    with Image.open(visit.opened[place].source) as image:
        return np.unique(np.asarray(image).astype(np.uint8))


def _with_values(
    recorder: Any, index: Any, modes: dict[int, str], seen: dict[int, Pixels]
) -> MaskNotes:
    """Masks of as many values as the user's code takes: a table of 20 classes has no 21st.

    Args:
        modes: Pillow's modes of masks, by their place.
        seen: the values of some true masks.
    """

    def notes(count: int) -> MaskNotes:
        return MaskNotes(
            {
                place: MaskFile(mode, _joined(min(count, _ALL.get(mode, 256)), seen[place]))
                for place, mode in modes.items()
            }
        )

    def works(count: int) -> bool:
        recorder.masks = notes(count)
        seed_all(1)
        try:
            recorder.see(index, Supply(makes_masks=True), 1)
        except (Exception, EndlessError):  # any error of the user's code
            return False
        finally:
            recorder.masks = None
        return True

    count = 256 if works(256) else _largest(works, 256)
    # new notes: what was tried may have left values in the others that the code does not take
    return notes(count)


def _joined(count: int, values: Any = ()) -> Pixels:
    """The values that were seen, and all below `count`; at least two."""
    joined = np.unique(np.append(np.arange(count), values)).astype(np.uint8)
    return joined if len(joined) > 1 else np.append(joined, joined[-1] ^ 1).astype(np.uint8)


def _largest(works: Callable[[int], bool], end: int) -> int:
    """The largest number below `end` that works, by bisection; 0 if none does."""
    low, high = 0, end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if works(middle) else (low, middle)
    return low
