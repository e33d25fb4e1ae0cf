"""The visits of some samples, each compared with the first: each method of `Tracer` asks a question
about what a data set does, and refuses some answers.
"""

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dali_pipes.adapters.from_torch.chains import INSTEAD_OF_CODE_BEFORE, Chain
from dali_pipes.adapters.from_torch.mask_files import find_masks
from dali_pipes.adapters.from_torch.recorder import Recorder, Seen
from dali_pipes.adapters.from_torch.recording.containers import hold_the_same
from dali_pipes.adapters.from_torch.recording.kept import Kept
from dali_pipes.adapters.from_torch.recording.keys import compared_in
from dali_pipes.adapters.from_torch.recording.made_up import (
    BLANK,
    OTHER_MODES,
    SQUARE,
    TURNED,
    MadeUp,
)
from dali_pipes.adapters.from_torch.recording.random_states import seed_all
from dali_pipes.adapters.from_torch.recording.reach import find_read
from dali_pipes.adapters.from_torch.recording.stores import stored_by
from dali_pipes.adapters.from_torch.recording.visit import EndlessError, Supply, Visit
from dali_pipes.adapters.from_torch.refusals import (
    IN_COLLATE,
    INTO_COLLATE,
    describe_error,
    describe_steps,
    is_fixed,
    is_of_library,
    refuse_drawn,
    refuse_together,
    refuse_unknown_bytes,
)
from dali_pipes.adapters.from_torch.structure import (
    Shown,
    first_difference,
    leaves,
)
from dali_pipes.adapters.transforms.own_steps import step_name
from dali_pipes.adapters.transforms.reading import (
    NotConvertibleError,
    Step,
    refuse_unless,
)

_TURNS_SOME = (
    "it turns some pictures upright that have an EXIF tag, and others not",
    "turn all of them, by ImageOps.exif_transpose",
)
# height and width of cheap noise; values that depend on the size differ between the two
CHEAP_SIZES = (11, 14), (19, 8)
_SCALES = (1, 2, 4, 8, 16, 32)  # of made-up pictures
# a program that counts its calls may do something else after so many, or now and then
_LATER, _REPEATED = (10**3, 10**5, 10**7, 10**9), 400
# samples that are asked of `__getitems__` at once, neighbours, and such as lie apart
TOGETHER, _TOGETHER_APART = 8, 32
# Pillow's modes in which masks are stored
_MASK_MODES = ("L", "P", "1")


def openers_in(events: Sequence[Any]) -> tuple[Any, ...]:
    """Which of a visit's events are calls of openers: these begin with a name. Another opener may
    treat EXIF tags, or pictures that are not RGB, in another way.
    """
    return tuple(event for event in events if isinstance(event[0], str))


class Tracer:
    """The visits of some samples, each compared with the first.

    Attributes:
        expected: what is in each slot of the first sample, and the chains of its pictures.
        events, file_modes: as in `Trace`.
        others: a sample for each way of opening files that is not that of the first one.
        kept: what the program's objects held before; None: it is not asked for.
        changed: where something in them is another one after each visit, as in `Kept.changed_at`.
    """

    def __init__(self, recorder: Recorder, name: str):
        self._recorder, self._name = recorder, name
        self.expected: list[tuple[Shown, list[Chain]]] = []
        self.events: set[Any] = set()
        self.others: list[Any] = []
        self.file_modes: tuple[str, ...] = ()
        self.kept: Kept | None = None
        self.changed: set[tuple[int, str]] = set()
        self._now: dict[tuple[int, str], Any] | None = None
        self._scale: int | None = None
        self._failure = ""  # the last one of a transform, for people
        self._true: dict[Any, Seen] = {}
        self._first: dict[Any, Seen] = {}

    def seed(self, number: int) -> None:
        """Seeds the random numbers that code may draw in the next visit."""
        seed_all(number)

    def visit(self, index: Any, supply: Supply, seed: int, is_in_worker: bool = False) -> Seen:
        """Visits a sample; errors of its code come out as they are."""
        return self._recorder.see(index, supply, seed, is_in_worker)

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

    def ask_gray(self, index: Any) -> Seen:
        """Visits a sample, and finds out whether the program converts files in colour to gray."""
        true = self.see_true(index)
        seen: Seen | None = true
        # a gray file doesn't show it
        if any(chain.is_gray for chain in true.used):
            larger = SQUARE.enlarged(self._ask_scale(index))
            seen = self._try(index, self._made_up(true, larger), larger.name)
        if seen and any("Grayscale" in chain.keys for chain in seen.used):
            self._recorder.makes_gray = True
            self._recorder.trace(true)
        return true

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
        self._note_changes()
        self._expect(seen, f"sample {index}")
        self._expect(again, f"sample {index}")

    def _note_changes(self) -> None:
        """Notes what has another value than after the visit before."""
        if not self.kept:
            return
        before, self._now = self._now, self.kept.changed_at()
        if before is None:
            return
        for place in self._now.keys() | before.keys():
            values = before.get(place, before), self._now.get(place, before)
            # Python's own note of the warnings that a module has given
            if place[1] == "__warningregistry__":
                continue
            if first_difference(*values) is not None:
                self.changed.add(place)

    def refuse_told_steps(self, chains: Sequence[Chain]) -> None:
        """Refuses steps that read what the data set's code sets for each sample: ours are called
        without it.
        """
        # by identity: a dataclass cannot be hashed
        steps = {id(step): step for chain in chains for step in chain.steps}
        # a step may hold an object that the data set has, and its copy a copy
        stored = stored_by(self._recorder.copy) | stored_by(self._recorder.dataset)
        for step in steps.values():
            # what a step holds itself is compared for each sample
            held = compared_in(step) if stored else set()
            changed = self.changed | {(at, name) for at, name in stored if at not in held}
            if not changed or (name := find_read([step], changed)) is None:
                continue
            error = NotConvertibleError(
                step_name(step),
                f"it reads {name}, which the data set changes from sample to sample",
                "set it in __init__ alone if it is the same for all samples, such as a table that "
                "the first one reads; else let the data set return it, and do the step in the "
                "collate function, which is called as it is; or keep your DataLoader",
            )
            error.steps = [Step(step_name(step), f"REFUSED: {error.problem}")]
            raise error

    def visit_made_up(self, index: Any, made_up: MadeUp) -> None:
        """Visits a sample with a picture that is made up; a transform may fail for it."""
        true = self.see_true(index)
        larger = made_up.enlarged(self._ask_scale(index))
        if seen := self._try(index, self._made_up(true, larger), made_up.name):
            self._compare(true, seen, f"is another one for {made_up.name}: it depends on pixels")
            if made_up not in BLANK:
                self._expect(seen, made_up.name)

    def _made_up(self, true: Seen, made_up: MadeUp) -> Supply:
        """Made-up pictures for the files that a sample opens."""
        modes = [opened.mode for opened in true.visit.opened]

        def encode(number: int) -> bytes:
            # the first file is the image; files after it may be masks, which keep their mode
            mode = modes[number] if 0 < number < len(modes) else "RGB"
            return made_up.encode(number, mode if mode in _MASK_MODES else "RGB")

        return Supply(self._with_masks(encode, made_up.size))

    def _ask_scale(self, index: Any) -> int:
        """How much larger made-up pictures must be for the transforms: a RandomCrop(288) fails for
        smaller ones, and would show nothing.
        """
        if self._scale is None:
            true = self.see_true(index)
            sizes = (SQUARE.enlarged(scale) for scale in _SCALES)
            taken = (
                each.scale
                for each in sizes
                if self._try(index, self._made_up(true, each), each.name)
            )
            self._scale = next(taken, None)
            # without them nothing would show what depends on pixels
            refuse_unless(
                self._scale,
                self._name,
                f"its transforms fail for noise of {SQUARE.size[0]} to "
                f"{SQUARE.size[0] * _SCALES[-1]:,} pixels a side ({self._failure}), so nothing "
                "shows what in it depends on pixels",
                "resize before what needs larger pictures, or others",
            )
            assert self._scale is not None, "refused above"
        return self._scale

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
        made_up = TURNED.enlarged(self._ask_scale(index))
        sizes = (made_up.size, made_up.size[::-1]) if self._recorder.masks else (made_up.size,)
        supplies = [Supply(self._with_masks(made_up.encode, size)) for size in sizes]
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
        true, others, scale = self.see_true(index), set(), self._ask_scale(index)
        for made_up in (each.enlarged(scale) for each in OTHER_MODES):
            try:
                supply = Supply(self._with_masks(made_up.encode, made_up.size))
                self.seed(4)
                seen = self._recorder.trace(self.visit(index, supply, 4))
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

    def ask_caches(self, indices: Sequence[Any]) -> None:
        """Finds out whether caches of the program keep pictures, so that they must be emptied after
        each visit.
        """
        self.seed(5)
        before = self._recorder.random_states()
        self._recorder.keeps_pictures(lambda: list(map(self._visit_again, indices)))
        refuse_drawn(self._name, before, self._recorder.random_states())

    def _visit_again(self, index: Any) -> Any:
        """What a visit with cheap noise does."""
        seen = self._see_cheaply(index, Supply(size=CHEAP_SIZES[0], modes=self.file_modes), 5)
        return tuple(seen.visit.events), seen.ends

    def visit_cheaply(self, index: Any) -> None:
        """Visits a sample with cheap noise of two sizes, as the label pass does for all samples."""
        true = self.see_true(index)

        for seed, size in enumerate(CHEAP_SIZES, 5):
            self.seed(seed)
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

    def visit_as_large(self, index: Any, skeleton: Any, supply: Supply) -> None:
        """Visits a sample with noise as large as its picture."""
        seen = self._see_cheaply(index, supply, 5)
        self._expect(seen, f"sample {index}")
        if skeleton is not None:
            self.refuse_other_values(index, seen, skeleton)

    def visit_together(self, indices: Sequence[Any], count: int) -> None:
        """Visits samples with `__getitems__`, which must do what it does for them one by one."""
        few = list(indices[: min(count, TOGETHER)])
        # neighbours often have one label, which shows nothing of code that sorts by it; so a batch
        # of samples from all over, in no order, is asked for as well
        most = min(count, _TOGETHER_APART // max(1, len(self.file_modes)), len(indices))
        apart = np.linspace(0, len(indices) - 1, most).round().astype(int)
        mixed = np.random.default_rng(0).permutation(apart).tolist()
        for each in (few, [indices[place] for place in mixed]):
            self._visit_together(each)

    def _visit_together(self, few: list[Any]) -> None:
        supply = Supply(size=CHEAP_SIZES[0], modes=self.file_modes)
        alone = [self._see_cheaply(index, supply, 5) for index in few]
        together = self._recorder.see_together(few, supply, 5)

        refuse_together(self._name, self._recorder.are_alike(together, alone, self.expected))

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
            seen = self._recorder.trace(self.visit(index, supply, 5))
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
        """Refuses code that sets random states itself: two seeds have led to one state, or two
        transforms draw from one.
        """
        self._refuse_equal_seeds(one, other)
        self._refuse_states_set_again(one)

    def _refuse_equal_seeds(self, one: Seen, other: Seen) -> None:
        for (before, _), (after, _) in zip(one.visit.drawn, other.visit.drawn, strict=False):
            refuse_unless(
                all(a != b for a, b in zip(before, after, strict=True)),
                self._name,
                "its code seeds the random numbers that transforms draw, so that each sample has "
                "the same in each epoch",
                "leave the seeds out; the seed of the loader makes a run repeatable",
            )

    def _refuse_states_set_again(self, one: Seen) -> None:
        # of `random`, NumPy and torch, those from which some transform has drawn
        used: set[tuple[int, Any]] = set()
        for before, after in one.visit.drawn:
            refuse_unless(
                used.isdisjoint(enumerate(before)),
                self._name,
                "its code sets a random state again, so that two transforms draw the same numbers, "
                "and ours would draw others",
                "call one transform with both, as torchvision.transforms.v2 can with a mask",
            )
            used |= {
                (place, state)
                for place, (state, later) in enumerate(zip(before, after, strict=True))
                if state != later
            }

    def _see_cheaply(self, index: Any, supply: Supply, seed: int) -> Seen:
        try:
            return self._recorder.trace(self.visit(index, supply, seed))
        except NotConvertibleError:
            raise
        except (Exception, EndlessError) as error:
            raise NotConvertibleError(
                self._name,
                f"its code fails for pictures of another size ({describe_error(error)})",
                "leave sizes out of it",
            ) from None

    def see(self, index: Any, supply: Supply, seed: int, is_in_worker: bool = False) -> Seen:
        """Visits a sample with its true picture; any error of its code is a refusal."""
        self.seed(seed)
        recorder = self._recorder

        try:
            seen = self.visit(index, supply, seed, is_in_worker)
        except NotConvertibleError:
            raise
        except (Exception, EndlessError) as error:
            raise NotConvertibleError(
                self._name, f"sample {index} fails ({describe_error(error)})", "repair it"
            ) from error

        # what each step returned is an example of its results, for cheap visits
        for call in seen.visit.calls:
            recorder.known.setdefault(call.example, call.outputs)
        return recorder.trace(seen)

    def _try(self, index: Any, supply: Supply, what: str) -> Seen | None:
        """Visits a sample with made-up pictures; None: a transform cannot take such ones."""
        self.seed(3)
        recorder = self._recorder
        visit = None

        try:
            seen = self.visit(index, supply, 3)
        # code that tries the next file after an error gets a picture that fails again
        except EndlessError as error:
            refuse_unless(
                error.is_after_error,
                self._name,
                f"{error} if it gets {what}, so which files it opens depends on pixels",
                "leave such files out of the data set",
            )
            self._failure = str(error)
            return None
        except NotConvertibleError:
            raise
        except Exception as error:
            visit = error
        else:
            # the user's code has caught the error of a transform
            if seen.visit.failed_step is not None:
                self._failure = f"in {type(seen.visit.failed_step).__name__}"
                return None

        # A random crop of a tiny picture fails, which says nothing about the data set. Code of the
        # user's own that fails depends on the pixels or on the size.
        if visit is not None:
            refuse_unless(
                is_of_library(visit),
                self._name,
                f"its code fails for {what} ({describe_error(visit)})",
                "leave what depends on pixels out of it",
            )
            self._failure = describe_error(visit)
            return None

        return recorder.trace(seen)

    def _check(self, seen: Seen) -> None:
        """Refuses a sample whose pictures cannot be followed back to whole files."""
        visit = seen.visit

        if not visit.opened:
            raise self._without_image(visit)
        self._refuse_unknown_bytes(visit)

        self._refuse_lost(seen)
        self._refuse_broken(seen)

    def _refuse_unknown_bytes(self, visit: Visit) -> None:
        refuse_unknown_bytes(self._name, visit.opened)

    def _without_image(self, visit: Visit) -> NotConvertibleError:
        """The error for a sample for which no image is opened."""
        # modules are read when code imports them
        read = [name for name in visit.read if not name.endswith((".py", ".pyc", ".so"))]
        where = (
            f"it reads {Path(read[-1]).name}, in a form that dali_pipes does not know"
            if read
            else "its pixels are in memory, or in a form that dali_pipes does not know"
        )
        return NotConvertibleError(
            self._name,
            f"it opens no image: {where}",
            "keep your DataLoader if it decodes nothing, since nothing would be gained; or store "
            "the images as files (as PNG or JPEG, in folders of their classes)",
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
                f"after it {INTO_COLLATE}"
            )
        else:
            instead = (
                "write it with transforms of torchvision (docs/from_torch.md lists them), or "
                f"{INSTEAD_OF_CODE_BEFORE}"
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
            # pairs.py carries these over, or says why not
            if len(seen.used) == 2 and one.file != other.file:
                continue
            shared = [
                step
                for at in dict.fromkeys(one.calls)
                if at >= 0 and at in other.calls
                for step in seen.visit.calls[at].steps
            ]
            names = [type(step).__name__ for step in shared if not is_fixed(step)]
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
            "choose the files of each sample in __init__ (about 3 lines), and keep no pictures; or "
            "form pairs and triplets among the samples of a batch, by sampling=PerClass(…) of "
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
            f"return what it is computed from, and compute it {IN_COLLATE} (about 3 lines)",
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
