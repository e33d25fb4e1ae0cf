"""What is the same for all items of a data set whose files and values are random, seen by running
it: `trace_items` returns an `ItemTrace`, or refuses.

Items are run as `from_torch` runs samples (from_torch/trace.py), with one difference: the program
draws the same random numbers in all visits of an item, as it does when an item is run again after
a resume. Its steps are hidden from it: what they draw in a visit with true pictures is taken back.
So an item that differs depends on something else, such as pixels, a counter or a cache. In a visit
with other random numbers files and values may differ, and steps must not.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.sharedctypes import SynchronizedBase
from typing import Any

import numpy as np
import torch

from dali_pipes.adapters.every_epoch.generators import find_own_generators, seed_own
from dali_pipes.adapters.from_torch.chains import Chain
from dali_pipes.adapters.from_torch.reading import is_of, refuse_unless
from dali_pipes.adapters.from_torch.recorder import Recorder, Seen, Trace, name_of
from dali_pipes.adapters.from_torch.recording.kept import Kept
from dali_pipes.adapters.from_torch.recording.made_up import BLANK, MADE_UP, SQUARE
from dali_pipes.adapters.from_torch.recording.objects import is_a
from dali_pipes.adapters.from_torch.recording.reach import reach
from dali_pipes.adapters.from_torch.recording.visit import Supply, Visit
from dali_pipes.adapters.from_torch.refusals import is_fixed
from dali_pipes.adapters.from_torch.structure import Found, end_of, first_difference
from dali_pipes.adapters.from_torch.trace import TRUE_SAMPLES
from dali_pipes.adapters.from_torch.tracer import CHEAP_SIZES, Tracer
from dali_pipes.adapters.items.run import seed_generators, seeds_of

# items that are run with cheap noise, spread over the data set, and how often with other random
# numbers
_SURVEYED, _DRAWN = 64, 4
_ASKED = 3  # visits that show which pictures share random numbers
_SEED = 7  # of what programs draw while they are tried
_OF_PIXELS = "depends on the pixels, or on the size of the picture"


@dataclass(slots=True)
class ItemTrace:
    """What is the same for all items.

    Attributes:
        seen: what `from_torch` knows of samples.
        files: by what a cheap visit did, the file of each picture: its place among those that the
            visit opened.
        draws: for each picture the name of its random numbers; None: it has its own.
        generators: from which the data set draws, besides those that everybody shares.
        opened: the pictures of the first item, in order: paths, or bytes.
        examples: paths of pictures that were seen.
        caches_pictures: whether an `lru_cache` keeps pictures, and must be emptied after each item.
    """

    seen: Trace
    files: dict[Any, tuple[int, ...]]
    draws: list[str | None]
    generators: list[Any]
    opened: list[str | bytes]
    examples: list[str]
    caches_pictures: bool


def trace_items(
    recorder: Recorder,
    indices: Sequence[Any],
    accept: Callable[[list[Chain]], Any],
    allow_state: bool,
    name: str = "",
    instead: str = "",
) -> ItemTrace:
    """Runs items of a data set, within the recorder's block.

    Args:
        indices: those of all items.
        accept: gets the chains of the first item, and refuses steps that cannot be carried over.
        allow_state: whether the data set may keep something from item to item.
        name: of the data set, for people; "": that of the recorder's.
        instead: what to do about items that differ each time; "": as for other data sets.

    Raises:
        NotConvertibleError: items cannot be made in the same way.
    """
    count = len(indices)
    places = np.unique(np.linspace(0, count - 1, TRUE_SAMPLES).round().astype(int)).tolist()
    surveyed = np.unique(np.linspace(0, count - 1, _SURVEYED).round().astype(int)).tolist()
    some = [indices[place] for place in places]
    tracer = ItemTracer(recorder, name or name_of(recorder.dataset), allow_state)
    tracer.instead = instead or tracer.instead
    tracer.kept = Kept.of(recorder.copy)

    first = tracer.ask_gray(some[0])
    accept(first.used)
    tracer.expect_first(some[0])
    tracer.leave_out_generators([step for chain in first.used for step in chain.steps])
    for index in some:
        tracer.visit_truly(index)
    tracer.refuse_epochs(recorder.dataset)
    tracer.refuse_batches(recorder.dataset)
    tracer.refuse_shared_memory(recorder.dataset)
    tracer.refuse_state()
    caches_pictures = recorder.keeps_pictures(lambda: list(map(tracer.visit_again, some)))

    # pictures that no data set has show what depends on pixels
    for number, made_up in enumerate((*MADE_UP, *BLANK)):
        tracer.visit_made_up(some[number % len(some)], made_up)
    exif = tracer.ask_orientation(some[0])
    for index in some:
        tracer.expect_orientation(tracer.see_true(index), exif)
    modes = tracer.ask_modes(some[0])
    draws = tracer.ask_draws(some)

    # last: in cheap visits a step returns an example of what it returned in a visit before
    for index in some:
        tracer.visit_cheaply(index)
    for place in surveyed:
        for draw in range(_DRAWN):
            tracer.visit_noise(indices[place], draw)
    tracer.refuse_told_steps(first.used)

    seen = Trace(
        tracer.name,
        tracer.expected,
        first.skeleton,
        modes,
        exif,
        tracer.file_modes,
        tracer.events,
        {name for name, _, _ in tracer.kept.changed()},
    )
    opened = [_source_of(first.visit.opened[chain.file]) for chain in first.used]
    examples = [each for each in tracer.paths if each]
    return ItemTrace(
        seen,
        tracer.files,
        draws,
        tracer.generators,
        opened,
        examples,
        caches_pictures,
    )


class ItemTracer(Tracer):
    """
    Attributes:
        files, generators: as in `ItemTrace`.
        paths: of pictures that were seen, in order.
        instead: what to do about items that differ each time.
    """

    instead = (
        "let it depend on nothing but its index and random numbers that are drawn from random, "
        "numpy.random, torch, or a generator that the data set holds"
    )

    def __init__(self, recorder: Recorder, name: str, allow_state: bool):
        super().__init__(recorder, name)
        self.name, self._allow_state = name, allow_state
        self.generators = find_own_generators(recorder.dataset, [])
        self.files: dict[Any, tuple[int, ...]] = {}
        self.paths: dict[str, None] = {}
        self._draw, self._hides_draws = 0, True
        self._numbers: dict[Any, int] = {}

    def leave_out_generators(self, steps: list[Any]) -> None:
        """Leaves out the generators of transforms, from which only they draw."""
        self.generators = find_own_generators(self._recorder.dataset, steps)

    def seed(self, number: int) -> None:
        pass  # `visit` does it, which knows the item

    def visit(self, index: Any, supply: Supply, seed: int, is_in_worker: bool = False) -> Seen:
        # an item has the same random numbers in all of its visits with this draw
        number = self._numbers.setdefault(index, len(self._numbers))
        (seeds,) = seeds_of(_SEED, self._draw, np.array([number]))
        seed_generators(seeds)
        seed_own(self.generators, int(seeds[2]))
        supply = replace(supply, hides_draws=self._hides_draws, keeps_data=True)
        return super().visit(index, supply, seed, is_in_worker)

    def expect_first(self, index: Any) -> None:
        """From now on all items must be made as this one."""
        first = self.see_true(index)
        self.expected = list(zip(first.shown, first.chains, strict=True))
        # a sample may open one file twice, and only noise tells which time it was
        noise = self._see_cheaply(index, Supply(size=CHEAP_SIZES[0], modes=self.file_modes), 5)
        if _contents(noise) == _contents(first):
            self._rename_files(first, [chain.file for chain in noise.used])
            self.expected = list(zip(first.shown, first.chains, strict=True))

    def _rename_files(self, seen: Seen, files: Sequence[int]) -> None:
        """Numbers the files of pictures as `files` does, where the same file has two numbers."""
        contents, numbers = _contents(seen), iter(files)

        def rename(chain: Chain) -> Chain:
            number = next(numbers)
            known = chain.file >= 0 and number < len(contents)
            same = known and contents[chain.file] == contents[number]
            return replace(chain, file=number) if same else chain

        if len(seen.used) == len(files):
            seen.chains = [[rename(chain) for chain in chains] for chains in seen.chains]

    def _expect(self, seen: Seen, what: str) -> None:
        # a PIL image has a chain that `used` leaves out; it is refused before
        self._rename_files(seen, [chain.file for _, chains in self.expected for chain in chains])
        super()._expect(seen, what)

    def visit_truly(self, index: Any) -> None:
        """Visits an item three times with its true pictures, the last time with other random
        numbers.
        """
        seen = self.see_true(index)
        again = self.see(index, Supply(), 2, is_in_worker=True)
        if not self._allow_state:
            self._compare(
                seen,
                again,
                "differs although the random numbers are the same: it depends on what was loaded "
                "before, on the worker, on the time, or on a generator that it makes without a "
                "seed",
            )
        self._note_changes()
        self._expect(seen, f"sample {index}")
        self._expect(again, f"sample {index}")

        self._draw = 1
        try:
            other = self.see(index, Supply(), 2)
        finally:
            self._draw = 0
        self._refuse_equal_seeds(seen, other)
        self._expect(other, f"sample {index} with other random numbers")
        for one in (seen, other):
            self.paths.update(dict.fromkeys(map(_path_of, one.visit.opened)))

    def refuse_state(self) -> None:
        """Refuses a data set that keeps something from item to item, unless it may."""
        assert self.kept is not None
        names = sorted({name for name, _, _ in self.kept.changed() if name})
        refuse_unless(
            self._allow_state or not self.changed,
            self._name,
            f"it changes what it holds{f' ({chr(44).join(names)})' if names else ''} with every "
            "sample, and each process has what its own samples left there, so an epoch would not "
            "be the same with other ranks, other workers and after a resume",
            "keep nothing in __getitem__; or, if samples do not depend on it, pass "
            "allow_state=True",
        )

    def refuse_batches(self, dataset: Any) -> None:
        """Refuses a `__getitems__` of the program's own, which may look at the whole batch."""
        while dataset is not None:
            kind = type(dataset)
            own = callable(getattr(kind, "__getitems__", None)) and not is_of(
                dataset, "torch", "Subset"
            )
            refuse_unless(
                not own or is_of(dataset, "datasets"),
                self._name,
                "it has a __getitems__, which may make a sample by the others of its batch",
                "give it a __getitem__ only",
            )
            dataset = getattr(dataset, "dataset", None)

    def refuse_shared_memory(self, dataset: Any) -> None:
        """Refuses values that other processes change, such as a stage of the training."""
        shared = (SynchronizedBase, ctypes._SimpleCData, ctypes.Array)
        found = [each for each in reach([dataset]).objects.values() if is_a(each, shared)]
        refuse_unless(
            not found,
            self._name,
            "it reads a value that processes share, and samples are made ahead, before the program "
            "changes it",
            "make a loader for each value",
        )

    def visit_cheaply(self, index: Any) -> None:
        """Visits an item with cheap noise of two sizes, as the reader of items does."""
        true = self.see_true(index)
        for seed, size in enumerate(CHEAP_SIZES, 5):
            # what it keeps of a true picture would hide what it keeps of noise
            self._recorder.renew_copy()
            seen = self._see_cheaply(index, Supply(size=size, modes=self.file_modes), seed)
            self._compare(true, seen, _OF_PIXELS)
            self._note_cheap(seen)

    def visit_noise(self, index: Any, draw: int) -> None:
        """Visits an item with cheap noise of two sizes, and compares these visits."""
        self._draw, visits = draw, []
        for seed, size in enumerate(CHEAP_SIZES, 5):
            visits.append(self._see_cheaply(index, Supply(size=size, modes=self.file_modes), seed))
            self._note_cheap(visits[-1])
        if not self._allow_state:
            problem = "depends on the pixels, on the size of the picture, or on what came before"
            self._compare(visits[0], visits[1], problem)
        self._draw = 0

    def visit_again(self, index: Any) -> Any:
        """What an item does with cheap noise."""
        seen = self._see_cheaply(index, Supply(size=CHEAP_SIZES[0], modes=self.file_modes), 5)
        return done_of(seen.visit, seen.found)

    def _note_cheap(self, seen: Seen) -> None:
        done = done_of(seen.visit, seen.found)
        if done not in self.files:
            # before their numbers are changed, which belong to this visit
            files = tuple(chain.file for chain in seen.used)
            self._expect(seen, "noise")
            self.files[done] = files
            self.events.add(done[:2])

    def ask_draws(self, indices: Sequence[Any]) -> list[str | None]:
        """The names of the random numbers of each picture: pictures that share those of all their
        steps have one name.

        They come out of one call of a transform of torchvision's v2, or the program sets a random
        state to one seed before each.
        """
        # of one size, since how many random numbers a crop takes may depend on it, and larger than
        # it must be: a RandomCrop of the whole picture takes none
        made_up = SQUARE.enlarged(2 * self._ask_scale(indices[0]))
        self._hides_draws, found = False, []
        for self._draw in range(_ASKED):
            for index in indices:
                seen = self._try(index, self._made_up(self.see_true(index), made_up), SQUARE.name)
                refuse_unless(
                    seen,
                    self._name,
                    f"its transforms fail for noise of another size ({self._failure}), so nothing "
                    "shows which pictures share random numbers",
                    "resize first",
                )
                assert seen is not None, "refused above"
                found.append(self._name_draws(self._keys_of(seen)))
        self._hides_draws, self._draw = True, 0
        self._refuse_half_shared(all(each == found[0] for each in found))
        return found[0]

    def _keys_of(self, seen: Seen) -> list[frozenset[int]]:
        """What the random numbers of each picture's steps are known by."""
        groups, keys = _group_draws(seen.visit), []
        for chain in seen.used:
            each = [
                key
                for call, step in zip(chain.calls, chain.steps, strict=True)
                if call >= 0 and not is_fixed(step) and (key := groups[call]) is not None
            ]
            calls = {call for call in chain.calls if call >= 0}
            drawn = [groups[call] for call in calls if groups[call] is not None]
            refuse_unless(
                len(drawn) == len(set(drawn)),
                self._name,
                "its code sets a random state again between two steps of one picture, so that both "
                "draw the same numbers, and ours would draw others",
                "call them one after the other; or do one of them in the collate function, which "
                "is called as it is",
            )
            # to draw the same numbers is to do the same only for the same step
            same = all(
                seen.visit.calls[key].keys == seen.visit.calls[call].keys
                for call in calls
                if (key := groups[call]) is not None
            )
            self._refuse_half_shared(same)
            keys.append(frozenset(each))
        return keys

    def _name_draws(self, keys: list[frozenset[int]]) -> list[str | None]:
        names: list[str | None] = [None] * len(keys)
        for place, key in enumerate(keys):
            alike = [other for other in range(place) if key & keys[other]]
            if not alike:
                continue
            name = names[alike[0]] or f"pictures from {alike[0] + 1} on"
            # all pictures of this name, and no others, share what they draw; one may draw more
            together = {alike[0], *(at for at, own in enumerate(names[:place]) if own == name)}
            nested = all(key <= keys[other] or keys[other] <= key for other in together)
            self._refuse_half_shared(nested and set(alike) == together)
            names[alike[0]] = names[place] = name
        return names

    def _refuse_half_shared(self, holds: bool) -> None:
        refuse_unless(
            holds,
            self._name,
            "two pictures of a sample share the random numbers of some steps, and each draws "
            "others for further steps",
            "call one transform for what they share, and do what differs in the collate function, "
            "which is called as it is",
        )

    def _compare(self, one: Seen, other: Seen, problem: str) -> None:
        """Refuses an item that opens other files, or has other values, in the second visit,
        although the random numbers are the same.
        """
        same = _contents(one) == _contents(other)
        refuse_unless(same, self._name, f"which files it opens {problem}", self.instead)
        place = first_difference(one.skeleton, other.skeleton)
        refuse_unless(place is None, self._name, f"sample{place} {problem}", self.instead)

    def _refuse_unknown_bytes(self, visit: Visit) -> None:
        pass  # the reader hands over the bytes themselves

    def _refuse_shared(self, seen: Seen) -> None:
        pass  # `ask_draws` looks at it

    def _refuse_broken(self, seen: Seen) -> None:
        super()._refuse_broken(seen)
        refuse_unless(
            not any(chain.is_gray for chain in seen.used),
            self._name,
            "it does not convert a gray file to RGB, as dali_pipes does",
            'open images with Image.open(path).convert("RGB"); masks of random files cannot be '
            "carried over",
        )


def done_of(visit: Visit, found: Sequence[Found]) -> Any:
    """What a cheap visit did, in a form that tells how each picture came about: what it opened and
    called, what is in its slots, and whether its code has seeded PyTorch's random numbers.
    """
    is_seeded = torch.default_generator.initial_seed() != visit.seeded_with
    return tuple(visit.events), tuple(map(end_of, found)), is_seeded


def _contents(seen: Seen) -> list[Any]:
    return [each.path or each.data for each in seen.visit.opened]


def _path_of(opened: Any) -> str:
    return opened.path if is_a(opened.path, str) else ""


def _source_of(opened: Any) -> str | bytes:
    path = _path_of(opened)
    return path or opened.data


def _group_draws(visit: Visit) -> list[int | None]:
    """For each call of a step the first call that drew the same random numbers; None: it drew
    none.

    Of Python's, NumPy's and PyTorch's generators those count from which both have drawn.
    """
    # a step that failed is a call, and has drawn nothing
    if len(visit.drawn) != len(visit.calls):
        return list(range(len(visit.calls)))
    used = [
        {(place, old) for place, (old, new) in enumerate(zip(*each, strict=True)) if old != new}
        for each in visit.drawn
    ]
    return [
        next(at for at in range(number + 1) if used[at] & own) if own else None
        for number, own in enumerate(used)
    ]
