"""Runs a data set for one sample under recorders: `Recorder` returns what was `Seen`, and a `Trace`
is what is known of all samples.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import torch

from dali_pipes.adapters.from_torch.chains import Chain, chain_of
from dali_pipes.adapters.from_torch.recording.active_visit import note_files, record
from dali_pipes.adapters.from_torch.recording.containers import Containers, hold_the_same
from dali_pipes.adapters.from_torch.recording.kept import find_generators, globals_kept
from dali_pipes.adapters.from_torch.recording.keys import StepKeys
from dali_pipes.adapters.from_torch.recording.lru_caches import find_caches, forget, used
from dali_pipes.adapters.from_torch.recording.masks import MaskNotes
from dali_pipes.adapters.from_torch.recording.openers import openers_patched
from dali_pipes.adapters.from_torch.recording.random_states import (
    generator_state,
    random_states,
    states_kept,
)
from dali_pipes.adapters.from_torch.recording.reach import copy_data
from dali_pipes.adapters.from_torch.recording.steps import OwnSteps, steps_patched
from dali_pipes.adapters.from_torch.recording.visit import Supply, Visit
from dali_pipes.adapters.from_torch.recording.worker_info import in_worker
from dali_pipes.adapters.from_torch.structure import (
    Found,
    Shown,
    end_of,
    first_difference,
    show,
    take_apart,
)
from dali_pipes.adapters.transforms.reading import Affine, NotConvertibleError, place_of


@dataclass(slots=True, eq=False)
class Seen:
    """One visit of one sample, taken apart.

    Attributes:
        skeleton: what the data set returned, with a `PictureSlot` in the place of each picture.
        found: what is in each slot.
        chains: the ways of the pictures in each slot, once `Recorder.trace` has added them.
    """

    visit: Visit
    skeleton: Any
    found: Sequence[Found]
    chains: Sequence[list[Chain]] = ()

    @property
    def shown(self) -> list[Shown]:
        """What is in each slot, in full."""
        return list(map(show, self.found))

    @property
    def used(self) -> list[Chain]:
        """The chains of all pictures that are neither PIL images nor masks."""
        return [
            chain
            for shown, chains in zip(self.shown, self.chains, strict=True)
            for chain in chains
            if shown.kind != "pil" and not shown.is_mask
        ]

    @property
    def masks(self) -> dict[int, Chain]:
        """The chains of masks, by their slot."""
        pairs = enumerate(zip(self.shown, self.chains, strict=True))
        return {slot: chains[0] for slot, (shown, chains) in pairs if shown.is_mask}

    @property
    def ends(self) -> tuple[Any, ...]:
        """Which mark each slot shows, and how. This is cheaper than `signature`, since it needs no
        chains.
        """
        return tuple(map(end_of, self.found))

    def does_as(self, slots: list[tuple[Shown, list[Chain]]]) -> bool:
        """Whether its pictures come about in the same way as those of another visit."""
        other = Seen(self.visit, None, [each for each, _ in slots], [each for _, each in slots])
        if self.signature() != other.signature():
            return False

        # A key says that there is an Affine, and not which one: its numbers are fitted to the
        # values of each visit, and have rounding errors. The chains of PIL images may differ in
        # length, because the signature leaves them out.
        pairs = [
            (one, two)
            for ours, theirs in zip(self.chains, other.chains, strict=True)
            for chain, known in zip(ours, theirs, strict=True)
            for one, two in zip(chain.steps, known.steps, strict=False)
            if isinstance(one, Affine) and isinstance(two, Affine)
        ]

        return all(
            np.allclose(one.scale, two.scale, rtol=1e-3)
            and np.allclose(one.offset, two.offset, rtol=1e-3, atol=1e-3)
            for one, two in pairs
        )

    def signature(self) -> Any:
        """What must be the same in all visits. PIL images are left out, because a collate function
        must not use them.
        """
        return tuple(
            "pil"
            if shown.kind == "pil"
            else (
                shown.kind,
                shown.dtype,
                shown.is_stacked,
                tuple((chain.file, chain.is_reversed, chain.keys) for chain in chains),
                shown.matches[0].layout,
                shown.is_mask and chains[0].tables[-1].results.shape[1],
            )
            for shown, chains in zip(self.shown, self.chains, strict=True)
        )


@dataclass(slots=True)
class Trace:
    """What a data set does, as far as some samples and made-up pictures show it.

    Attributes:
        name: the data set's name, with file and line of its code, for people.
        slots: what is in each slot, and the chains of its pictures.
        skeleton: the skeleton of the first sample.
        modes: Pillow's modes of files that are converted to RGB as ours are; None: all are.
        exif: "apply", "ignore", or "" if no picture with an EXIF tag could be tried.
        file_modes: Pillow's modes of the files that one sample opens, a sample in colour if there
            is one; cheap noise has these modes.
        events: what the cheap visits did, to be compared with that of other samples.
        moving: the names of attributes that the data set's own code changes.
        together: samples that the label pass may ask of `__getitems__` at once; 1: it has none, or
            there are masks.
        masks: what is known of the masks among the files; None: there are none.
    """

    name: str
    slots: list[tuple[Shown, list[Chain]]]
    skeleton: Any
    modes: list[str] | None
    exif: str
    file_modes: tuple[str, ...]
    events: set[Any]
    moving: set[str]
    together: int = 1
    masks: MaskNotes | None = None

    @property
    def used(self) -> list[Chain]:
        """The chains of all pictures that are neither PIL images nor masks."""
        return [
            chain
            for shown, chains in self.slots
            for chain in chains
            if shown.kind != "pil" and not shown.is_mask
        ]


class Recorder:
    """Runs a data set under recorders, on a copy of the user's objects.

    Use it as a context manager: in the block the openers and steps are patched. It may be entered
    more than once, and then makes a new copy each time.

    Attributes:
        keys: the keys of all steps that were called so far.
        known: by the key of a step, an example of what it returns.
        containers: files that hold many pictures.
        masks: what is known of the masks among the files; None: there are none.
        own_steps: the steps of the user's own in a Compose.
        copy: the copy of the data set that is run; None outside of a block.
        makes_gray: whether the program converts files in colour to gray.
        shares_objects: whether it shares an object with the user's data set, or is this one.
    """

    def __init__(
        self,
        dataset: Any,
        workers: int = 0,
        own_steps: bool = False,
        containers: Containers | None = None,
    ):
        self.dataset, self._workers = dataset, workers
        self.own_steps = OwnSteps(own_steps)
        self.keys = StepKeys()
        self.known: dict[Any, Any] = {}
        self.containers = containers or Containers()
        self.copy: Any = None
        self.makes_gray = self.shares_objects = False
        self.masks: MaskNotes | None = None
        # caches in which no picture was found, which are not emptied after each visit
        self._tables: set[Any] = set()
        self._stack = ExitStack()

    def with_own_steps(self) -> "Recorder":
        """A new recorder that tells of steps of the user's own as of those of libraries."""
        return Recorder(self.dataset, self._workers, True, self.containers)

    def __enter__(self) -> "Recorder":
        note_files()

        # if one of these fails, leaving the block undoes those before it
        with ExitStack() as stack:
            stack.enter_context(states_kept())
            stack.enter_context(_one_thread())
            self._kept = stack.enter_context(globals_kept(self.dataset))
            stack.enter_context(openers_patched())
            stack.enter_context(steps_patched(self.own_steps))
            self._found = find_caches()
            self._caches = [each for each in self._found if each not in self._tables]
            self._used = used(self._found)
            self._generators = find_generators(self.dataset)
            self.renew_copy()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        # it may have opened a file that can be open only once, such as an LMDB
        self.copy = None
        self.empty_caches()
        self.containers.close()
        self._stack.close()

    def renew_copy(self) -> None:
        """Makes the copy anew, within the block."""
        self.copy, self.shares_objects = copy_data(self.dataset, self._kept)

    def see(self, index: Any, supply: Supply, seed: int, is_in_worker: bool = False) -> Seen:
        """Visits a sample. Errors of the user's code come out as they are.

        Args:
            is_in_worker: whether it is told to be in a worker, if the DataLoader has workers.
        """
        is_again = False
        while True:
            visit = Visit(supply, self.keys, self.known, seed, self.containers, self.masks)
            try:
                if is_in_worker and self._workers:
                    with in_worker(self.copy, self._workers):
                        sample = record(visit, get_sample, self.copy, index)
                else:
                    sample = record(visit, get_sample, self.copy, index)
                skeleton, found = take_apart(sample, visit)
            finally:
                # no cache may keep a picture that was made up
                forgotten = forget(self._caches, self._used) if self._caches else False
                if visit.changed:
                    self._refuse_change(visit.changed)
            # If nothing was opened, a cache may have had the picture, also one in which none was
            # found. It is empty now, and the second visit opens the file, or there is none to be
            # opened.
            if not (visit.opened or forgotten) and self._tables:
                self._tables, self._caches = set(), self._found
                forgotten = self.empty_caches()
            if visit.opened or not forgotten or is_again:
                return Seen(visit, skeleton, found)
            is_again = True

    def see_together(self, indices: list[Any], supply: Supply, seed: int) -> list[Seen]:
        """Visits samples with one call of `__getitems__`; returns each of them, all of one visit.
        Errors of the user's code come out as they are.
        """
        visit = Visit(supply, self.keys, self.known, seed, self.containers)
        try:
            samples = record(visit, lambda: list(self.copy.__getitems__(indices)))
            return [Seen(visit, *take_apart(sample, visit)) for sample in samples]
        finally:
            if self._caches:
                forget(self._caches, self._used)
            if visit.changed:
                self._refuse_change(visit.changed)

    def are_alike(
        self, together: list[Seen], alone: list[Seen], slots: list[tuple[Shown, list[Chain]]]
    ) -> bool:
        """Whether samples of one visit open the same files one after the other, and have the same
        values, as when each is visited alone, and their pictures come about as in these slots.
        """
        files = [each.path for seen in alone for each in seen.visit.opened]
        opened = [each.path for seen in together[:1] for each in seen.visit.opened]
        same = len(together) == len(alone) and hold_the_same(files, opened)

        first = 0
        for one, seen in zip(alone, together, strict=False):
            # the files of a sample are counted from its own first one
            chains = self.trace(seen).chains
            seen.chains = [[replace(x, file=x.file - first) for x in each] for each in chains]
            first += len(one.visit.opened)
            same &= first_difference(one.skeleton, seen.skeleton) is None
            same &= seen.does_as(slots)
        return same

    def _refuse_change(self, what: str) -> NoReturn:
        raise NotConvertibleError(
            name_of(self.dataset),
            f"it changes files: it {what}",
            "prepare the files before the training, and keep nothing in them in __getitem__",
        ) from None

    def keeps_pictures(self, run: Callable[[], Any]) -> bool:
        """Whether `run` does something else the second time, if no cache is emptied: then one keeps
        pictures. If none does, they are emptied no more after each visit, also in later blocks,
        since a table may take long to be read.
        """
        caches, self._caches = self._caches, []
        if not caches:
            return False

        first = run()
        # such as for a picture that the first run has closed
        with suppress(NotConvertibleError):
            if run() == first:
                self._tables = set(caches)
                return False

        self._caches = caches
        self.empty_caches()
        return True

    def empty_caches(self) -> bool:
        """Empties the caches that were asked since the block began, or since this was called last;
        returns whether there are any.
        """
        return forget(self._found, self._used)

    def random_states(self) -> tuple[Any, ...]:
        """The states of all random numbers, in the order of `STATES`, to be compared."""
        own = [pickle.dumps(generator_state(each)) for each in self._generators]
        return *random_states(), own

    def trace(self, seen: Seen) -> Seen:
        """Adds the chains of a visit's pictures."""
        seen.chains = [
            [chain_of(match, seen.visit, self.makes_gray) for match in shown.matches]
            for shown in seen.shown
        ]
        return seen


def get_sample(dataset: Any, index: Any) -> Any:
    """A sample of a data set, taken as PyTorch's `_MapDatasetFetcher` takes it
    (torch/utils/data/_utils/fetch.py).
    """
    if callable(getattr(dataset, "__getitems__", None)):
        return dataset.__getitems__([index])[0]
    return dataset[index]


@contextmanager
def _one_thread() -> Iterator[None]:
    # the pictures are small, so threads would only cost time
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def name_of(dataset: Any) -> str:
    """The name of the user's own data set, with the place of its code, for people."""
    # a Subset says nothing to the user; the data set inside it does
    inner = dataset
    for _ in range(5):
        part = getattr(inner, "dataset", None)
        own = type(inner).__module__.partition(".")[0] not in ("torch", "torchvision")
        if own or not isinstance(part, torch.utils.data.Dataset):
            break
        inner = part

    # the place of a library's code would help nobody
    kind = type(inner)
    if kind.__module__.partition(".")[0] in ("torch", "torchvision", "timm", "datasets"):
        return f"the data set {kind.__name__}"
    return f"the data set {place_of(kind, '__getitem__')}"
