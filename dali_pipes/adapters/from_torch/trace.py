"""What a data set does for a sample, seen by running it: `trace` returns a `Trace`, or refuses.

Some samples are run under recorders (recording/), twice with true pictures, then with pictures
that are made up, and with cheap noise. In all of these visits the same transforms must be called,
the picture that reaches the first one must be the decoded file, pixel for pixel, and everything
else in the sample must stay the same.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from dali_pipes.adapters.from_torch.mask_files import find_masks
from dali_pipes.adapters.from_torch.reading import (
    Affine,
    NotConvertibleError,
    place_of,
    refuse_unless,
)
from dali_pipes.adapters.from_torch.recording.containers import Containers, hold_the_same
from dali_pipes.adapters.from_torch.recording.keys import StepKeys
from dali_pipes.adapters.from_torch.recording.made_up import (
    BLANK,
    MADE_UP,
    OTHER_MODES,
    TURNED,
    MadeUp,
)
from dali_pipes.adapters.from_torch.recording.marks import Match
from dali_pipes.adapters.from_torch.recording.masks import MaskNotes, step_key
from dali_pipes.adapters.from_torch.recording.openers import openers_patched
from dali_pipes.adapters.from_torch.recording.steps import steps_patched
from dali_pipes.adapters.from_torch.recording.tables import Table
from dali_pipes.adapters.from_torch.recording.untouched import (
    STATES,
    Kept,
    find_caches,
    find_generators,
    forget,
    generator_state,
    globals_kept,
    in_worker,
    light_copy,
    random_states,
    seed_all,
    states_kept,
    used,
)
from dali_pipes.adapters.from_torch.recording.visit import (
    GRAY,
    EndlessError,
    Opened,
    Supply,
    TransformCall,
    Visit,
    note_files,
    pictures_in,
    visiting,
)
from dali_pipes.adapters.from_torch.structure import (
    Shown,
    first_difference,
    leaves,
    take_apart,
)

_TURNS_SOME = (
    "it turns some pictures upright that have an EXIF tag, and others not",
    "turn all of them, by ImageOps.exif_transpose",
)
TRUE_SAMPLES = 8  # samples that are run with their true pictures, spread over the data set
# height and width of cheap noise; values that depend on the size differ between the two
CHEAP_SIZES = (11, 14), (19, 8)
# a program that counts its calls may do something else after so many, or now and then
_LATER, _REPEATED = (10**3, 10**5, 10**7, 10**9), 400
_TOGETHER = 8  # samples that are asked of `__getitems__` at once
# Pillow's modes in which masks are stored
_MASK_MODES = ("L", "P", "1")
# steps that make the same of one channel as of three equal ones
# steps that draw nothing, so that two pictures may come out of one call
_FIXED = ("ToPILImage", "PILToTensor", "ToImage", "ToTensor", "ConvertImageDtype", "ToDtype", "RGB")
_GEOMETRY = ("RandomResizedCrop", "Resize", "CenterCrop", "RandomCrop", "RandomHorizontalFlip")


# what a user can do about code of their own, in the order in which one would try it
_INSTEAD_OF_CODE_BEFORE = (
    "if that code draws no random numbers, save what it makes once, as PNG files, and open those "
    "(about 6 lines); else keep your DataLoader"
)
_INSTEAD_OF_GRAY = (
    'open it with convert("RGB"), and make the images gray in the collate function, by '
    "torchvision.transforms.v2.functional.rgb_to_grayscale (about 3 lines); values then differ by "
    "rounding"
)
_IN_COLLATE = "in the collate function, which is called as it is"
_INTO_COLLATE = "into the collate function, which is called as it is (as many lines as it has)"


@dataclass(frozen=True, slots=True)
class Chain:
    """The way of a picture from its file to the sample.

    Attributes:
        file: the place of its file among those that a visit opens; -1 if the way does not lead back
            to a file.
        steps: the transforms in the order of their calls, and conversions between them.
        keys: the keys of the steps when they were called; equal keys mean that they did the same.
            Those of a mask also say which call of the visit it was, and as what the mask came.
        is_reversed: whether its channels are reversed, as BGR.
        is_upright: whether it is turned as its EXIF tag says.
        has_tag: whether the file has an EXIF tag that turns it.
        is_gray: whether the file is gray, and nobody converts it.
        problem: why the picture cannot be carried over; "": no reason is known.
        instead: what the user can do about the problem.
        calls: which call of the visit each step was; -1 for a conversion.
        tables: of a mask: what its values became before each step, and after the last one.
    """

    file: int
    steps: list[Any]
    keys: tuple[Any, ...]
    is_reversed: bool
    is_upright: bool
    is_gray: bool
    problem: str = ""
    instead: str = ""
    has_tag: bool = False
    calls: tuple[int, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(slots=True)
class Seen:
    """One visit of one sample, taken apart.

    Attributes:
        skeleton: what the data set returned, with a `PictureSlot` in the place of each picture.
        shown: what is in each slot.
        chains: the ways of the pictures in each slot, once `Recorder.trace` has added them.
    """

    visit: Visit
    skeleton: Any
    shown: list[Shown]
    chains: list[list[Chain]] = field(default_factory=list)

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
        return tuple(
            (
                shown.kind,
                shown.dtype,
                shown.is_stacked,
                *[
                    (
                        match.mark.number,
                        match.layout,
                        match.channels,
                        # few digits, since fitted numbers have rounding errors
                        match.scale and " ".join(f"{each:.3e}" for each in match.line),
                        match.table and match.table.key,
                    )
                    for match in shown.matches
                ],
            )
            for shown in self.shown
        )

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
        copy: the copy of the data set that is run; None outside of a block.
    """

    def __init__(self, dataset: Any, workers: int = 0):
        self.dataset, self._workers = dataset, workers
        self.keys = StepKeys()
        self.known: dict[Any, Any] = {}
        self.containers = Containers()
        self.copy: Any = None
        self.masks: MaskNotes | None = None
        self._stack = ExitStack()

    def __enter__(self) -> "Recorder":
        note_files()

        # if one of these fails, leaving the block undoes those before it
        with ExitStack() as stack:
            stack.enter_context(states_kept())
            stack.enter_context(_one_thread())
            stack.enter_context(globals_kept(self.dataset))
            stack.enter_context(openers_patched())
            stack.enter_context(steps_patched())
            self._caches = find_caches()
            self._used = used(self._caches)
            self._generators = find_generators(self.dataset)
            self.copy = light_copy(self.dataset)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        # it may have opened a file that can be open only once, such as an LMDB
        self.copy = None
        self.containers.close()
        self._stack.close()

    def see(self, index: Any, supply: Supply, seed: int, is_in_worker: bool = False) -> Seen:
        """Visits a sample. Errors of the user's code come out as they are.

        Args:
            is_in_worker: whether it is told to be in a worker, if the DataLoader has workers.
        """
        is_again = False
        while True:
            visit = Visit(supply, self.keys, self.known, seed, self.containers, self.masks)
            try:
                with visiting(visit), in_worker(self.copy, self._workers * is_in_worker):
                    sample = get_sample(self.copy, index)
                skeleton, shown = take_apart(sample, visit)
            finally:
                # no cache may keep a picture that was made up
                forgotten = forget(self._caches, self._used) if self._caches else False
                if visit.changed:
                    self._refuse_change(visit.changed)
            # If nothing was opened, a cache may have had the picture. It is empty now, and the
            # second visit opens the file, or there is none to be opened.
            if visit.opened or not forgotten or is_again:
                return Seen(visit, skeleton, shown)
            is_again = True

    def see_together(
        self, indices: list[Any], supply: Supply, seed: int
    ) -> tuple[Visit, list[tuple[Any, list[Shown]]]]:
        """Visits samples with one call of `__getitems__`; returns the visit, and of each sample
        the skeleton and what is in its slots.
        """
        visit = Visit(supply, self.keys, self.known, seed, self.containers)
        with visiting(visit):
            samples = list(self.copy.__getitems__(indices))
        return visit, [take_apart(sample, visit) for sample in samples]

    def _refuse_change(self, what: str) -> NoReturn:
        raise NotConvertibleError(
            name_of(self.dataset),
            f"it changes files: it {what}",
            "prepare the files before the training, and keep nothing in them in __getitem__",
        ) from None

    def random_states(self) -> tuple[Any, ...]:
        """The states of all random numbers, in the order of `STATES`, to be compared."""
        own = [pickle.dumps(generator_state(each)) for each in self._generators]
        return *random_states(), own

    def trace(self, seen: Seen) -> Seen:
        """Adds the chains of a visit's pictures."""
        seen.chains = [
            [chain_of(match, seen.visit) for match in shown.matches] for shown in seen.shown
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


def chain_of(match: Match, visit: Visit) -> Chain:
    """Follows a picture from the sample back to its file."""
    if match.table is not None:
        return _mask_chain_of(match, visit)

    # in reverse order until the end
    steps: list[Any] = []
    keys: list[Any] = []
    calls: list[int] = []
    is_reversed, is_spread, problem, instead = False, False, "", ""

    while True:
        # `steps[-1]` was called on the gray picture before somebody spread it to three channels:
        # steps that change colours do something else to one channel than to three equal ones
        if is_spread and steps and type(steps[-1]).__name__ not in _GEOMETRY:
            is_spread = False
        is_spread |= match.channels == "spread"

        # conversions have their names as keys: the numbers of an Affine have rounding errors
        between = list(_conversions(match))[::-1]
        steps += between
        keys += [type(each).__name__ for each in between]
        calls += [-1] * len(between)
        is_reversed ^= match.channels == "reversed"
        source = match.mark.source
        if isinstance(source, Opened):
            break

        steps += source.steps[::-1]
        keys += source.keys[::-1]
        calls += [visit.calls.index(source)] * len(source.steps)
        # only a step with one picture as input and one as output can be followed backwards, or
        # one that was called with a picture and its masks
        is_joint = _moves_masks(source)
        before = source.inputs[match.mark.place] if is_joint else (source.inputs or [None])[0]
        is_single = len(source.inputs) == 1 and not match.mark.place
        if before is None or before.table or before.kind == "mask" or not (is_single or is_joint):
            problem, instead = _describe_break(source, before)
            break
        match = before

    # the first step got the file as a tensor or an array of bytes, which PILToTensor would make
    if match.kind != "pil" and not problem:
        steps.append(_to_bytes())
        keys.append("PILToTensor")
        calls.append(-1)
    file = visit.opened.index(source) if isinstance(source, Opened) else -1
    is_gray = match.channels == "one" and not is_spread
    return Chain(
        file,
        steps[::-1],
        tuple(keys[::-1]),
        is_reversed,
        match.is_upright,
        is_gray,
        problem,
        instead,
        match.mark.upright is not None,
        tuple(calls[::-1]),
    )


def _moves_masks(call: TransformCall) -> bool:
    """Whether a call got one picture and its masks, and returned as many."""
    is_whole = all(call.inputs) and len(list(pictures_in(call.outputs))) == len(call.inputs)
    images = [each for each in call.inputs if each and each.table is None]
    return is_whole and len(call.inputs) > 1 and len(images) == 1


def _mask_chain_of(match: Match, visit: Visit) -> Chain:
    """Follows a mask from the sample back to its file."""
    steps, keys, calls, tables = [], [], [], [match.table]
    while isinstance(source := match.mark.source, TransformCall):
        before = source.inputs[match.mark.place]
        # `Visit._renew` makes a mask only of what came as one
        assert before is not None and before.table is not None
        steps.append(source.step)
        keys.append((step_key(source, before), visit.calls.index(source)))
        calls.append(visit.calls.index(source))
        match = before
        tables.append(match.table)

    return Chain(
        visit.opened.index(source),
        steps[::-1],
        tuple(keys[::-1]),
        False,
        False,
        False,
        calls=tuple(calls[::-1]),
        tables=tuple(each for each in tables[::-1] if each),
    )


def _describe_break(call: TransformCall, before: Match | None) -> tuple[str, str]:
    """Why a way does not lead back through this call, and what to do about it."""
    step, place = type(call.step).__name__, f" ({call.place})" if call.place else ""

    if before is not None and before.kind == "mask":
        return (
            f"{step}{place} gets the image as a tv_tensors.Mask, which is resized to the nearest "
            "pixel",
            "give it a tv_tensors.Image",
        )

    if before is not None and len(call.inputs) > 1:
        return _describe_pair(_first_of(call))

    if before is None or before.table:
        return (
            f"what reaches {step}{place} is not the decoded file, but {call.strange or 'another'}, "
            "made by code before it",
            _INSTEAD_OF_GRAY if call.strange == GRAY else _INSTEAD_OF_CODE_BEFORE,
        )

    return (
        f"{step}{place} returns several pictures of one",
        "let the data set return images of one size, such as by Resize((256, 256)), if your "
        f"evaluation may change so, and apply {step} in the collate function, which is called as "
        "it is (about 3 lines)",
    )


def _first_of(call: TransformCall) -> TransformCall:
    """The first of the calls with several pictures that one leads back to."""
    for match in call.inputs:
        source = match.mark.source if match else None
        if isinstance(source, TransformCall) and len(source.inputs) > 1:
            return _first_of(source)
    return call


def _describe_pair(call: TransformCall) -> tuple[str, str]:
    """Why a call with several pictures is not one with a picture and its mask."""
    step, place = type(call.step).__name__, f" ({call.place})" if call.place else ""
    masks = [each for each in call.inputs if each and each.kind == "mask"]
    instead = (
        "save masks as PNGs of gray of 8 bits, or with a palette, and give them to the transform "
        "as tv_tensors.Mask(np.array(mask)) (docs/objects.md)"
    )

    if not all(call.inputs):
        return (
            f"{step}{place} is called with the image and something else that is no whole file: "
            "code of its own has changed or computed it",
            instead,
        )
    if modes := [each.mark.source.mode for each in masks if isinstance(each.mark.source, Opened)]:
        return f"the mask that {step}{place} gets is of Pillow's mode {modes[0]}", instead
    return (
        f"{step}{place} is called with {len(call.inputs)} pictures at once",
        "use Manifest.from_masks and build_loader for masks (docs/objects.md)",
    )


def _conversions(match: Match) -> Iterator[Any]:
    """What was done between a mark and a copy of it, as the steps that do the same, in order."""
    from torchvision import transforms

    mark = match.mark
    is_file = isinstance(mark.source, Opened)
    # `chain_of` itself adds the conversion of a file
    if not is_file and mark.is_pil and match.kind != "pil":
        yield _to_bytes()
    if not mark.is_pil and match.kind == "pil":
        yield transforms.ToPILImage()

    if match.scale is None:
        return
    assert match.offset is not None
    of_bytes = mark.pixels.dtype == np.uint8
    if of_bytes:
        yield transforms.ConvertImageDtype(torch.float)
    # ConvertImageDtype has divided bytes by 255, so the rest of the scale is 255 times as large
    scale = tuple(each * 255 for each in match.scale) if of_bytes else match.scale
    if not (np.allclose(scale, 1, rtol=1e-6) and np.allclose(match.offset, 0, atol=1e-7)):
        yield Affine(tuple(round(each, 9) for each in scale), tuple(match.offset))


def _to_bytes() -> Any:
    from torchvision import transforms

    return transforms.PILToTensor()


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


def trace(
    recorder: Recorder,
    indices: Sequence[Any],
    batch_size: int,
    accept: Callable[[list[Chain]], Any] = lambda chains: None,
) -> Trace:
    """Runs samples of a data set, within the recorder's block.

    Args:
        indices: the indices of all samples, of which at most `TRUE_SAMPLES` are run.
        batch_size: samples that the DataLoader asks for at once.
        accept: gets the chains of the first sample, and refuses steps that cannot be carried over,
            before anything else is run.

    Raises:
        NotConvertibleError: the samples cannot be made in the same way.
    """
    chosen = np.unique(np.linspace(0, len(indices) - 1, TRUE_SAMPLES).round().astype(int)).tolist()
    name = name_of(recorder.dataset)
    tracer = _Tracer(recorder, name)
    before = Kept.of(recorder.copy)
    tracer.find_masks([indices[place] for place in chosen])

    first = tracer.see_true(indices[chosen[0]])
    tracer.expected = list(zip(first.shown, first.chains, strict=True))
    accept(first.used)
    for place in chosen:
        tracer.visit_truly(indices[place])
    tracer.refuse_epochs(recorder.dataset)

    # pictures that no data set has show what depends on pixels
    for number, made_up in enumerate((*MADE_UP, *BLANK)):
        tracer.visit_made_up(indices[chosen[number % len(chosen)]], made_up)
    exif = tracer.ask_orientation(indices[chosen[0]])
    for place in chosen:
        tracer.expect_orientation(tracer.see_true(indices[place]), exif)
    modes = tracer.ask_modes(indices[chosen[0]])

    # last: in cheap visits a step returns an example of what it returned in a visit before
    for place in chosen:
        tracer.visit_cheaply(indices[place])
    if batch_size > 1 and callable(getattr(recorder.copy, "__getitems__", None)):
        tracer.visit_together(indices, batch_size)
    tracer.visit_later([indices[place] for place in chosen], before)

    seen = Trace(
        name,
        tracer.expected,
        first.skeleton,
        modes,
        exif,
        tracer.file_modes,
        tracer.events,
        {name for name, _, _ in before.changed()},
        recorder.masks,
    )
    for index in tracer.others:
        ask_more(recorder, seen, index)
    return seen


def visit_more(
    recorder: Recorder, seen: Trace, indices: Sequence[Any], skeletons: Sequence[Any]
) -> None:
    """Visits further samples with their true pictures, within a recorder's block.

    Args:
        skeletons: what is known of each of these samples without its picture; None: nothing.

    Raises:
        NotConvertibleError: they are made in another way than the others.
    """
    tracer = _Tracer(recorder, seen.name)
    tracer.expected = seen.slots
    for index, skeleton in zip(indices, skeletons, strict=True):
        tracer.visit_truly(index)
        true = tracer.see_true(index)
        tracer.expect_orientation(true, seen.exif)
        refuse_unless(
            not any(chain.is_gray for chain in true.used),
            seen.name,
            f"it does not convert sample {index}, a gray file, to RGB, as dali_pipes does",
            'open images with Image.open(path).convert("RGB")',
        )
        if skeleton is not None:
            tracer.refuse_other_values(index, true, skeleton)


def openers_in(events: Sequence[Any]) -> tuple[Any, ...]:
    """Which of a visit's events are calls of openers: these begin with a name. Another opener may
    treat EXIF tags, or pictures that are not RGB, in another way.
    """
    return tuple(event for event in events if isinstance(event[0], str))


def ask_more(recorder: Recorder, seen: Trace, index: Any) -> None:
    """Asks a sample that is made in another way, such as by another opener, what the first one was
    asked with made-up files, within a recorder's block.

    Raises:
        NotConvertibleError: it treats them in another way.
    """
    tracer = _Tracer(recorder, seen.name)
    tracer.expected, tracer.file_modes = seen.slots, seen.file_modes
    tracer.visit_truly(index)
    same = tracer.ask_orientation(index) == seen.exif and tracer.ask_modes(index) == seen.modes
    refuse_unless(
        same,
        seen.name,
        f"sample {index} is opened in another way than others: EXIF tags, or pictures that are "
        "not RGB, are treated otherwise",
        "open all files in the same way",
    )


class _Tracer:
    """The visits of some samples, each compared with the first.

    Attributes:
        expected: what is in each slot of the first sample, and the chains of its pictures.
        events, file_modes: as in `Trace`.
        others: a sample for each way of opening files that is not that of the first one.
    """

    def __init__(self, recorder: Recorder, name: str):
        self._recorder, self._name = recorder, name
        self.expected: list[tuple[Shown, list[Chain]]] = []
        self.events: set[Any] = set()
        self.others: list[Any] = []
        self.file_modes: tuple[str, ...] = ()
        self._true: dict[Any, Seen] = {}
        self._first: dict[Any, Seen] = {}

    def find_masks(self, indices: Sequence[Any]) -> None:
        """Finds out which of the files that samples open are masks."""
        # nearly all data sets open one file for each sample, and are not visited once more; what
        # fails may fail because noise is no mask
        try:
            self._first = {indices[0]: self.see(indices[0], Supply(), 1)}
        except NotConvertibleError:
            self._first = {}
        if any(len(seen.visit.opened) < 2 for seen in self._first.values()):
            return
        self._first = {}
        self._recorder.masks = find_masks(self._recorder, self.see, list(indices))

    def see_true(self, index: Any) -> Seen:
        """Visits a sample with its true picture, and checks that it can be carried over at all."""
        if index in self._true:
            return self._true[index]
        # a true mask may have one value only, which tells nothing; the second visit has it
        seen = self._first.pop(index, None) or self.see(index, Supply(makes_masks=True), 1)
        self._check(seen)
        self._true[index] = seen

        # cheap noise is in colour if any sample is
        modes = tuple(opened.mode for opened in seen.visit.opened)
        if not self.file_modes or "RGB" in modes:
            self.file_modes = modes
        return seen

    def refuse_epochs(self, dataset: Any, depth: int = 0) -> None:
        """Refuses a data set that is told the epoch, whose samples may change with it."""
        refuse_unless(
            not callable(getattr(dataset, "set_epoch", None)),
            self._name,
            "it has a set_epoch, so its samples may change from epoch to epoch",
            "remove that method if they do not; else make a loader for each stage",
        )
        parts = getattr(dataset, "datasets", None) or [getattr(dataset, "dataset", None)]
        if depth < 5 and isinstance(parts, (list, tuple)):
            for part in parts:
                if isinstance(part, torch.utils.data.Dataset):
                    self.refuse_epochs(part, depth + 1)

    def visit_truly(self, index: Any) -> None:
        """Visits a sample twice with its true picture and different random seeds."""
        seen = self.see_true(index)
        again = self.see(index, Supply(), 2, is_in_worker=True)
        self._compare(
            seen,
            again,
            "differs each time: it is random, or depends on what was loaded before, or on the "
            "worker",
        )
        self._refuse_seeded(seen, again)
        self._expect(seen, f"sample {index}")
        self._expect(again, f"sample {index}")

    def visit_made_up(self, index: Any, made_up: MadeUp) -> None:
        """Visits a sample with a picture that is made up; a transform may fail for it."""
        true = self.see_true(index)
        modes = [opened.mode for opened in true.visit.opened]

        def encode(number: int) -> bytes:
            # the first file is the image; files after it may be masks, which keep their mode
            mode = modes[number] if 0 < number < len(modes) else "RGB"
            return made_up.encode(number, mode if mode in _MASK_MODES else "RGB")

        supply = Supply(self._with_masks(encode, made_up.size))
        if seen := self._try(index, supply, made_up.name):
            self._compare(true, seen, f"is another one for {made_up.name}: it depends on pixels")
            if made_up not in BLANK:
                self._expect(seen, made_up.name)

    def refuse_other_values(self, index: Any, true: Seen, skeleton: Any) -> None:
        """Refuses a sample whose values were others when its picture was cheap noise."""
        place = first_difference(true.skeleton, skeleton)
        refuse_unless(
            place is None,
            self._name,
            f"sample {index} has a value at {place or 'it'} that depends on its picture",
            "compute it from the batch in your loop",
        )

    def ask_orientation(self, index: Any) -> str:
        """Whether pictures are turned as their EXIF tag says: "apply", "ignore", or "" if a
        transform fails for the picture with a tag.
        """
        # masks are those of the stored picture, or of the upright one
        sizes = (TURNED.size, TURNED.size[::-1]) if self._recorder.masks else (TURNED.size,)
        supplies = [Supply(self._with_masks(TURNED.encode, size)) for size in sizes]
        visits = (self._try(index, supply, TURNED.name) for supply in supplies)
        seen = next((each for each in visits if each), None)
        true = self.see_true(index)
        if not seen:
            return ""
        self._compare(true, seen, f"is another one for {TURNED.name}: it depends on that")
        self._expect(seen, TURNED.name)

        # a sample of PIL images alone has no used chains
        turned = {chain.is_upright for chain in seen.used or seen.chains[0]}
        refuse_unless(len(turned) < 2, self._name, *_TURNS_SOME)
        return "apply" if turned.pop() else "ignore"

    def expect_orientation(self, seen: Seen, exif: str) -> None:
        """Refuses pictures with an EXIF tag that are turned although others are not, or the
        opposite.
        """
        for chain in seen.used:
            fits = not chain.has_tag or chain.is_upright == (exif == "apply")
            refuse_unless(fits, self._name, *_TURNS_SOME)

    def ask_modes(self, index: Any) -> list[str] | None:
        """The modes that are converted to RGB as ours are, and what else files may have in them
        (`traits_of`); None: all that were tried.
        """
        # a mode counts as not converted if one of its formats is not
        true, others = self.see_true(index), set()
        for made_up in OTHER_MODES:
            try:
                supply = Supply(self._with_masks(made_up.encode, made_up.size))
                seen = self._recorder.trace(self._recorder.see(index, supply, 4))
            except (Exception, EndlessError):  # any error of the user's code or of a transform
                others.add(made_up.trait)
                continue

            fits = seen.does_as(self.expected) and not any(
                chain.problem or chain.is_gray for chain in seen.used
            )
            # a value such as the mode is another one then
            if not fits or first_difference(true.skeleton, seen.skeleton) is not None:
                others.add(made_up.trait)

        if not others:
            return None
        return sorted({"RGB", *(each.trait for each in OTHER_MODES)} - others)

    def _with_masks(
        self, encode: Callable[[int], bytes], size: tuple[int, int]
    ) -> Callable[[int], bytes]:
        """The same made-up pictures, and made-up masks of this height and width."""
        masks = self._recorder.masks
        if masks is None:
            return encode
        return lambda number: masks.encode(number, size, 3) if masks.has(number) else encode(number)

    def visit_cheaply(self, index: Any) -> None:
        """Visits a sample with cheap noise of two sizes, as the label pass does for all samples."""
        true = self.see_true(index)

        for seed, size in enumerate(CHEAP_SIZES, 5):
            before = self._recorder.random_states()
            seen = self._see_cheaply(index, Supply(size=size, modes=self.file_modes), seed)

            # no transform is carried out here, so whatever draws is the user's own code
            refuse_drawn(self._name, before, self._recorder.random_states())
            self._compare(true, seen, "depends on the pixels, or on the size of the picture")
            self._expect(seen, "noise")
            known = {openers_in(events) for events, _ in self.events}
            if known and openers_in(seen.visit.events) not in known:
                self.others.append(index)
            self.events.add((tuple(seen.visit.events), seen.ends))

    def visit_together(self, indices: Sequence[Any], count: int) -> None:
        """Visits samples with `__getitems__`, which must do what it does for them one by one."""
        chosen = list(indices[: min(count, _TOGETHER)])
        supply = Supply(size=CHEAP_SIZES[0], modes=self.file_modes)
        alone = [self._see_cheaply(index, supply, 5) for index in chosen]
        together, samples = self._recorder.see_together(chosen, supply, 5)

        files = [each.path for seen in alone for each in seen.visit.opened]
        same = hold_the_same(files, [each.path for each in together.opened])
        same &= len(samples) == len(alone)
        first = 0
        for one, (skeleton, shown) in zip(alone, samples, strict=False):
            seen = self._recorder.trace(Seen(together, skeleton, shown))
            # the files of a sample are counted from its own first one
            seen.chains = [
                [replace(chain, file=chain.file - first) for chain in chains]
                for chains in seen.chains
            ]
            first += len(one.visit.opened)
            same &= first_difference(one.skeleton, skeleton) is None
            same &= seen.does_as(self.expected)
        refuse_unless(
            same,
            self._name,
            "its __getitems__ makes something else of a batch than of single samples",
            "move what depends on the batch into the collate function, or into batch_transform= "
            "of build_loader",
        )

    def visit_later(self, indices: Sequence[Any], before: Kept) -> None:
        """Visits samples of a data set that counts its calls as if there had been many."""
        numbers = [each for _, value, each in before.changed() if type(value) in (int, float)]
        if not numbers and not before.has_iterators:
            return

        supply = Supply(size=CHEAP_SIZES[0], modes=self.file_modes)
        for count in _LATER if numbers else ():
            for put in numbers:
                put(count)
            self._see_later(indices[0], supply)
        for number in range(_REPEATED):
            self._see_later(indices[number % len(indices)], supply)

    def _see_later(self, index: Any, supply: Supply) -> None:
        true = self.see_true(index)
        try:
            seen = self._recorder.trace(self._recorder.see(index, supply, 5))
            same = seen.does_as(self.expected)
            same &= first_difference(true.skeleton, seen.skeleton) is None
        except NotConvertibleError:
            raise
        except (Exception, EndlessError):
            same = False
        refuse_unless(
            same,
            self._name,
            "what it does depends on how often it was called",
            "remove the count; for stages of a training make a loader for each",
        )

    def _refuse_seeded(self, one: Seen, other: Seen) -> None:
        """Refuses code that seeds random numbers itself: two seeds have led to one state."""
        for before, after in zip(one.visit.drawn_from, other.visit.drawn_from, strict=False):
            refuse_unless(
                all(a != b for a, b in zip(before, after, strict=True)),
                self._name,
                "its code seeds the random numbers that transforms draw, so that each sample has "
                "the same in each epoch",
                "leave the seeds out; the seed of the loader makes a run repeatable",
            )

    def _see_cheaply(self, index: Any, supply: Supply, seed: int) -> Seen:
        try:
            return self._recorder.trace(self._recorder.see(index, supply, seed))
        except NotConvertibleError:
            raise
        except (Exception, EndlessError) as error:
            raise NotConvertibleError(
                self._name,
                f"its code fails for pictures of another size ({_short(error)})",
                "leave sizes out of it",
            ) from None

    def see(self, index: Any, supply: Supply, seed: int, is_in_worker: bool = False) -> Seen:
        """Visits a sample with its true picture; any error of its code is a refusal."""
        seed_all(seed)
        recorder = self._recorder

        try:
            seen = recorder.see(index, supply, seed, is_in_worker)
        except NotConvertibleError:
            raise
        except (Exception, EndlessError) as error:
            raise NotConvertibleError(
                self._name, f"sample {index} fails ({_short(error)})", "repair it"
            ) from error

        # what each step returned is an example of its results, for cheap visits
        for call in seen.visit.calls:
            recorder.known.setdefault(call.example, call.outputs)
        return recorder.trace(seen)

    def _try(self, index: Any, supply: Supply, what: str) -> Seen | None:
        """Visits a sample with made-up pictures; None: a transform cannot take such ones."""
        seed_all(3)
        recorder = self._recorder
        visit = None

        try:
            seen = recorder.see(index, supply, 3)
        # code that tries the next file after an error gets a picture that fails again
        except EndlessError as error:
            refuse_unless(
                error.is_after_error,
                self._name,
                f"{error} if it gets {what}, so which files it opens depends on pixels",
                "leave such files out of the data set",
            )
            return None
        except NotConvertibleError:
            raise
        except Exception as error:
            visit = error
        else:
            # the user's code has caught the error of a transform
            if seen.visit.failed_step is not None:
                return None

        # A random crop of a tiny picture fails, which says nothing about the data set. Code of the
        # user's own that fails depends on the pixels or on the size.
        if visit is not None:
            refuse_unless(
                _is_of_library(visit),
                self._name,
                f"its code fails for {what} ({_short(visit)})",
                "leave what depends on pixels out of it",
            )
            return None

        return recorder.trace(seen)

    def _check(self, seen: Seen) -> None:
        """Refuses a sample whose pictures cannot be followed back to whole files."""
        visit = seen.visit

        if not visit.opened:
            raise self._without_image(visit)
        refuse_unknown_bytes(self._name, visit.opened)

        self._refuse_lost(seen)
        self._refuse_broken(seen)

    def _without_image(self, visit: Visit) -> NotConvertibleError:
        """The error for a sample for which no image is opened."""
        # modules are read when code imports them
        read = [name for name in visit.read if not name.endswith((".py", ".pyc", ".so"))]
        where = (
            f"it reads {Path(read[-1]).name}, in a form that dali_pipes does not know"
            if read
            else "its pixels are in memory, or in a form that dali_pipes does not know"
        )
        kind = self._name.rpartition(" ")[2].lower()
        prepared = (
            f"dali-pipes prepare source={kind} archive=…"
            if kind in ("cifar10", "cifar100")
            else "as PNG or JPEG, in folders of their classes"
        )
        return NotConvertibleError(
            self._name,
            f"it opens no image: {where}",
            "keep your DataLoader if it decodes nothing, since nothing would be gained; or store "
            f"the images as files ({prepared})",
        )

    def _refuse_lost(self, seen: Seen) -> None:
        """Refuses a sample without a picture that leads back to a file."""
        visit = seen.visit
        if len({opened.path for opened in visit.opened}) > 1:
            instead = (
                "keep your DataLoader: a plan has one file for each sample, and this sample has "
                f"{len(visit.opened)}"
            )
        elif any("['boxes']" in path for path, _ in leaves(seen.skeleton)):
            instead = "use build_loader with targets.boxes, which moves boxes too (docs/objects.md)"
        elif visit.calls:
            instead = (
                "return what it returned, as a tensor (PILToTensor() makes one), and move the code "
                f"after it {_INTO_COLLATE}"
            )
        else:
            instead = (
                "write it with transforms of torchvision (docs/from_torch.md lists them), or "
                f"{_INSTEAD_OF_CODE_BEFORE}"
            )

        # the picture got lost after the last call, or after the opening if there is no call
        last = visit.calls[-1] if visit.calls else None
        refuse_unless(
            any(not shown.is_mask for shown in seen.shown),
            self._name,
            "no picture in its samples is what "
            + (
                f"{type(last.step).__name__} ({last.place}) returned: code of its own changes it "
                "after that"
                if last
                else f"{visit.opened[-1].opener} ({visit.opened[-1].place}) decoded: all pixel "
                "code is its own"
            ),
            instead,
        )

    def _refuse_broken(self, seen: Seen) -> None:
        """Refuses pictures that do not lead back to a file, whose channels are reversed, or that
        come out of one random call.
        """
        for chain in seen.used:
            refuse_unless(not chain.problem, self._name, chain.problem, chain.instead)
            refuse_unless(
                not chain.is_reversed,
                self._name,
                "its channels are in the order of OpenCV, blue, green and red",
                "convert with cv2.cvtColor(image, cv2.COLOR_BGR2RGB)",
            )
        self._refuse_shared(seen)

    def _refuse_shared(self, seen: Seen) -> None:
        """Refuses two pictures out of one call of a transform: ours would be drawn apart."""
        for one, other in combinations(seen.used, 2):
            shared = [
                seen.visit.calls[at].step for at in one.calls if at >= 0 and at in other.calls
            ]
            names = [type(step).__name__ for step in shared if type(step).__name__ not in _FIXED]
            refuse_unless(
                not names,
                self._name,
                f"two pictures of a sample come out of one call of {', '.join(names)}, and ours "
                "would be drawn apart",
                "call the transform once for each picture, or return the picture once",
            )

    def _compare(self, one: Seen, other: Seen, problem: str) -> None:
        """Refuses a sample that opens other files, or has other values, in the second visit."""
        files = [each.path for each in one.visit.opened], [each.path for each in other.visit.opened]
        refuse_unless(
            hold_the_same(*files),
            self._name,
            f"which files it opens {problem}"
            if len(files[0]) == len(files[1])
            else f"it opens {len(files[0])} files, then {len(files[1])}: it keeps pictures, or "
            "chooses files",
            "choose the files of each sample in __init__ (about 3 lines), and keep no pictures; "
            "or form pairs and triplets among the samples of a batch, by sampling=PerClass(…) of "
            "build_loader (docs/sampling.md)",
        )

        place = first_difference(one.skeleton, other.skeleton)
        # a mask that is in no slot is what code of its own made of it
        if place is not None and self._recorder.masks and not one.masks:
            problem = (
                f"is no function of the mask's values, one by one: code of its own changes it, or "
                f"{problem}"
            )
        refuse_unless(
            place is None,
            self._name,
            f"sample{place} {problem}",
            f"return what it is computed from, and compute it {_IN_COLLATE} (about 3 lines)",
        )

    def _expect(self, seen: Seen, what: str) -> None:
        """Refuses a visit in which other steps were called than for the first sample."""
        self._refuse_broken(seen)
        if seen.does_as(self.expected):
            join_masks(self._recorder, self._name, seen)
            return
        first = describe_steps([chains for _, chains in self.expected])
        here = describe_steps(seen.chains)
        difference = "with other options" if here == first else f"and not {first}"
        raise NotConvertibleError(
            self._name,
            f"what it does to {what} is something else than to the first sample: {here}, "
            f"{difference}",
            "treat all samples alike, or load those that differ with a loader of their own",
        )


def join_masks(recorder: Recorder, name: str, seen: Seen) -> None:
    """Notes what a visit did to the values of masks.

    Raises:
        NotConvertibleError: it did something else than visits before.
    """
    for slot, chain in seen.masks.items() if recorder.masks else ():
        problem = recorder.masks.join(slot, chain.tables) if recorder.masks else ""
        refuse_unless(
            not problem, name, problem, "give masks to the transform as numbers: np.array(mask)"
        )


def refuse_unknown_bytes(name: str, opened: Sequence[Opened], what: str = "what") -> None:
    """Refuses bytes that are no file, and lie in no file as they are.

    Args:
        what: "what", or which sample it is.
    """
    unknown = next((each for each in opened if each.path is None), None)
    if unknown is None:
        return
    place = f" ({unknown.place})" if unknown.place else ""
    raise NotConvertibleError(
        name,
        f"{what} {unknown.opener}{place} gets lies in no file that is open: it is unpacked by its "
        "code, or was read into memory before",
        'write each image to a file of its own (about 3 lines: Path(f"{index}.jpg").write_bytes('
        "data) for all), or to shards that dali_pipes reads (docs/shards.md)",
    )


def describe_steps(slots: Sequence[Sequence[Chain]]) -> str:
    """The transforms of each picture of some slots, for people."""
    steps = [
        ", ".join(type(step).__name__ for step in chain.steps) or "no transform"
        for chains in slots
        for chain in chains
    ]
    return "; ".join(steps) or "it returns no picture"


def refuse_drawn(name: str, before: tuple[Any, ...], after: tuple[Any, ...]) -> None:
    """Refuses code that draws random numbers outside of transforms."""
    drawn = [each for each, a, b in zip(STATES, before, after, strict=True) if a != b]
    refuse_unless(
        not drawn,
        name,
        f"code of its own draws random numbers (of {' and '.join(drawn)})",
        f"let transforms draw them, or draw them {_IN_COLLATE} (about 3 lines)",
    )


def _is_of_library(error: BaseException) -> bool:
    """Whether an error was raised within a library that the user's code called."""
    # the innermost frame is the one that raised it
    last = error.__traceback__
    while last and last.tb_next:
        last = last.tb_next
    name = last.tb_frame.f_globals.get("__name__", "") if last else ""
    return name.partition(".")[0] in (
        *("torch", "torchvision", "timm", "albumentations", "PIL", "numpy", "cv2", "albucore"),
    )


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:100] if lines else ''}"
