"""The program's data set and collate function in a worker, and the net below them.

    Ask ──▶ the program's samples ──▶ its collate function ──▶ Parcel

Both run as they are, while pictures wait. What fails is done once more with true pictures, from the
same random state. So an error is the program's own, or none; and if there is none, this kind of
waiting ends, in all workers. Some samples are made twice and compared (compared.py).

A collate function that looks at pixels is left to the training process, where the pictures of a
batch are made together.
"""

import copy
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Subset, get_worker_info

from dali_pipes.adapters.lazy.compared import SECONDS, Checks, NotTheSame
from dali_pipes.adapters.lazy.compiler.places import NotePlaces
from dali_pipes.adapters.lazy.dry_run import draw_as
from dali_pipes.adapters.lazy.file_errors import file_of, is_of_a_file
from dali_pipes.adapters.lazy.found import WaitingParts, true_pictures
from dali_pipes.adapters.lazy.memory import Kept, Memory
from dali_pipes.adapters.lazy.order import Ask
from dali_pipes.adapters.lazy.parcels import Before, Packed, Parcel, Told
from dali_pipes.adapters.lazy.patching import patch_for_good
from dali_pipes.adapters.lazy.random_numbers import Numbers, find_generators, own_numbers
from dali_pipes.adapters.lazy.reach import asks_for_its_worker, look
from dali_pipes.adapters.lazy.recipes import decode_dropped
from dali_pipes.adapters.lazy.state import PROCESS, eager
from dali_pipes.adapters.lazy.true_arrays import why_arrays_are_true

Call = Callable[[Callable[[], Any], list[Any]], Any]

# What does not wait any more, and what is said of it. Which kind a program does not get along with
# is not known, so with each failure it is the next of these.
_GIVEN_UP: tuple[tuple[set[str], str], ...] = (
    (set(), ""),
    ({"array"}, "no array waits"),
    ({"tensor"}, "no tensor waits"),
    ({"array", "tensor"}, "no array and no tensor waits"),
    ({"array", "tensor", "picture"}, "nothing waits"),
)
_ALL = len(_GIVEN_UP) - 1
_KEEPS = (
    "collate_fn looks at pixels, and keeps something from batch to batch; so it runs in the "
    "workers, with true pictures"
)
_ELSEWHERE = (
    "collate_fn looks at pixels, and workers have something else for it than the training process, "
    "or it asks which worker it is in; so it runs in the workers, with true pictures"
)
_DRAWS = (
    "collate_fn looks at pixels, and which random numbers it draws may depend on them; so it runs "
    "in the workers, with true pictures; with seed= it would not"
)
FEW = 4  # samples of the batch that is compared


class LazyProgram(Dataset[Any]):
    """The program's data set, collate function and worker_init_fn.

    Args:
        check: whether some samples are made twice and compared.
        substitutes: whether another sample takes the place of one that cannot be made.

    Attributes:
        told: what there is to say with the next parcel.
        places: which pictures a backend makes; None: there is none.
        has_workers: whether they make batches ahead.
        why_arrays_are_true: why no array waits; None: they may.
    """

    def __init__(self, loader: DataLoader[Any], seed: int | None, check: bool, substitutes: bool):
        self.dataset, self.collate_fn = loader.dataset, loader.collate_fn
        self._init_fn = loader.worker_init_fn
        self.is_batched = loader.batch_sampler is not None or loader.batch_size is not None
        self.seed, self.substitutes = seed, substitutes
        # of all workers: the place in `_GIVEN_UP`, whether collating is left, and whether nothing
        # waits for now
        self._flags = torch.zeros(3, dtype=torch.uint8, device="cpu")
        self.has_workers = loader.num_workers > 0
        if self.has_workers:
            self._flags.share_memory_()  # type: ignore[no-untyped-call]

        self._stage, self._is_paused = 0, False
        # in a worker: what its collate function had when it began; and whether `worker_init_fn` has
        # made the program another one than in the training process
        self._for_collating: Memory | None = None
        self._at_start: Kept | None = None
        self._is_elsewhere = False
        self._asks = asks_for_its_worker(self.collate_fn)
        self._stays = False  # collating, in this worker, which was said
        roots = {"dataset": self.dataset, "collate_fn": self.collate_fn}
        self.told, self.checks = Told(), Checks(check, loader.timeout / 4 or SECONDS, **roots)
        self.numbers: Numbers | None = None
        self.memory: Memory | None = None
        self._batches = 0
        self._first_counts: dict[str, int | float] = {}
        self.places: NotePlaces | None = None
        # of the batch that is being made; true: nothing of it waits
        self._is_true = False
        self._ask: Ask | None = None
        self._before: Before | None = None
        self.key_of_collate: tuple[Any, ...] | None = None
        self._already_said: set[str] = set()
        self.why_arrays_are_true = why_arrays_are_true(**roots)
        if self.why_arrays_are_true:
            self._flags[0] = 1

    def __getstate__(self) -> dict[str, Any]:
        # a worker that does not inherit them finds them again in its own data set
        return vars(self) | {"numbers": None, "memory": None}

    def start(self, worker: int) -> None:
        """The `worker_init_fn`."""
        PROCESS.waits, self._is_paused = True, bool(self._flags[2])
        PROCESS.forget()  # what was counted before this worker was forked
        patch_for_good()
        vars(get_worker_info())["dataset"] = self.dataset  # which the program may change here
        self._for_collating = Memory(collate_fn=self.collate_fn)
        self._at_start = self._for_collating.read()
        if self._init_fn:
            roots = {"dataset": self.dataset, "collate_fn": self.collate_fn}
            before = look(**roots)
            self._init_fn(worker)
            self._is_elsewhere = look(**roots) != before

    def begin(self) -> Numbers:
        """Reads what other workers have given up, and returns the generators, which the program
        may have made only now.
        """
        self._stage = _ALL if self._is_paused else int(self._flags[0])
        PROCESS.off, PROCESS.failed = _GIVEN_UP[self._stage][0], None
        roots = {"dataset": self.dataset, "collate_fn": self.collate_fn}
        self.numbers = self.numbers or Numbers(self.seed is not None, **roots)
        self.memory = self.memory or Memory(**roots)
        return self.numbers

    def before(self) -> Before:
        """What the program has now."""
        numbers = self.begin()
        assert self.memory is not None
        states = numbers.states() if self.seed is None else None
        return Before(states, self.memory.read(), self._is_elsewhere)

    def set_back(self, before: Before, *roots: str, error: BaseException | None = None) -> None:
        """Sets the program back.

        Args:
            roots: what will be asked once more.

        Raises:
            RuntimeError: something there cannot be set back.
        """
        assert self.numbers is not None and self.memory is not None
        if before.numbers is not None:
            self.numbers.restore(before.numbers)
        try:
            self.memory.restore(before.kept, *roots)
        except RuntimeError as impossible:
            raise impossible from error
        for path in self.memory.what_may_have_changed:
            self.say(
                f"a batch was made twice, and {path} stays as both have left it: it is shared with "
                "other processes, or too long to be copied"
            )

    def attempt(self, make: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """What a function makes while pictures wait, and the error for which it has to be made
        once more, also if the program has caught it.
        """
        made = None
        try:
            made = make()
            decode_dropped()
            error = PROCESS.failed
        except Exception as raised:
            error = PROCESS.failed or raised
        PROCESS.failed = None
        return made, error

    def find_again(self) -> None:
        """Before a batch: what the program makes in its first one is there from the second on."""
        self._batches += 1
        if self._batches in (2, 10):
            self.memory = None
            if self.seed is None:
                self.numbers = None
        self._say_what_no_seed_decides()

    def _say_what_no_seed_decides(self) -> None:
        """Says what decides samples beside the seed, as seen before and after each of the first ten
        batches: how much a worker has done before depends on the workers, and on a resume.
        """
        if self.seed is None or self._batches > 10:
            return
        numbers, counts = self.begin(), self.before().kept.counts
        # these are not seeded: from which batch on would depend on the worker
        generators = find_generators(dataset=self.dataset, collate_fn=self.collate_fn)
        known = {id(each.generator) for each in numbers.own}
        for each in generators:
            if id(each.generator) not in known and not each.is_of_albumentations:
                self.say(
                    f"{each.path} was made with the first samples, so seed= does not seed it; make "
                    "it in __init__, for equal samples with other workers and after a resume"
                )
        for path, number in counts.items():
            # what the samples made themselves, such as an entry of a cache, begins here
            first = self._first_counts.setdefault(path, number)
            if first is not number and first != number:
                self.say(
                    f"{path} has changed with the first samples; samples that depend on it are "
                    "others with other workers and after a resume"
                )

    # samples

    def __getitem__(self, ask: Ask) -> Any:
        return self.__getitems__(ask)[0]

    def __getitems__(self, ask: Ask) -> Any:
        made = self._make(ask)
        self._say_what_no_seed_decides()
        return made

    def _make(self, ask: Ask) -> Any:
        """These samples, whose pictures wait; if that fails, their pictures do not."""
        self.find_again()
        self.begin()
        self._ask, self._before, self._is_true = ask, None, self._stage == _ALL
        if self.seed is not None:
            self.key_of_collate = self.seed, "collate", ask.epoch, ask.first
        if self._is_true:  # so nothing has to be made once more
            return self._true_samples(ask)
        self._before = before = self.before()
        made, error = self.attempt(partial(self._samples_waiting, ask))
        if error is None:
            return made

        # all samples of the batch: to keep the state before each of them would cost 55 µs
        self.set_back(before, "dataset", error=error)
        with eager():
            made = self._true_samples(ask)
        self.give_up(f"sample {short(ask.indices)}", error)
        return made

    def _samples_waiting(self, ask: Ask) -> Any:
        if self.checks.is_new:
            self.checks.compare(partial(self._small_batch, ask))
        return self._samples(ask, lambda make, _: self.checks.call(make))

    def _samples(self, ask: Ask, call: Call) -> Any:
        """The samples, each with numbers that are seeded by its place.

        Args:
            call: calls a function that makes some of them, which it gets as well.
        """
        if together := self._together:
            self.seed_for("sample", ask.epoch, ask.first)
            return call(partial(together, ask.indices), ask.indices)  # it may be a batch already
        made = []
        for place, index in zip(ask.places, ask.indices, strict=True):
            self.seed_for("sample", ask.epoch, place)
            made.append(call(partial(self.dataset.__getitem__, index), [index]))
        return made

    @property
    def _together(self) -> Callable[[list[Any]], Any] | None:
        """The function of a data set that makes all samples of a batch at once."""
        together = getattr(type(self.dataset), "__getitems__", None)
        if self.seed is not None and together is getattr(Subset, "__getitems__", None):
            return None  # it asks for one after the other, and each is seeded by its own place
        return getattr(self.dataset, "__getitems__", None) if self.is_batched else None

    @property
    def makes_together(self) -> bool:
        return self._together is not None

    def _true_samples(self, ask: Ask) -> Any:
        """The samples with true pictures. One that cannot be made raises the program's own error,
        or another one of its batch takes its place.
        """
        if not self.substitutes:
            return self._samples(ask, _named)
        if self._together:
            try:
                return self._samples(ask, _named)
            except Exception:
                pass  # one by one, it is seen which sample it was

        samples, failures = list[Any](), dict[int, Exception]()
        for at, (place, index) in enumerate(zip(ask.places, ask.indices, strict=True)):
            self.seed_for("sample", ask.epoch, place)
            make = partial(self.dataset.__getitem__, index)
            if together := self._together:
                make = partial(_first_of, together, index)
            try:
                samples.append(_named(make, [index]))
            except Exception as failure:
                failures[at] = failure
                samples.append(None)
                text = f"{type(failure).__name__}: {failure}"
                self.told.bad.append((index, file_of(failure), text))
        good = [at for at in range(len(samples)) if at not in failures]
        for at, error in failures.items():
            if not good:
                raise error
            samples[at] = copy.deepcopy(samples[good[at % len(good)]])
        return samples

    def _small_batch(self, ask: Ask) -> Any:
        """The batch of the first samples alone."""
        few = ask._replace(indices=ask.indices[:FEW])
        samples = self._samples(few, lambda make, _: make())
        self.seed_for("collate", ask.epoch, ask.first)
        return self.collate_fn(samples if self.is_batched else samples[0])

    def make_again(self, ask: Ask, before: Before | None) -> Any:
        """The same batch with true pictures, in the training process."""
        if before is not None and before.is_elsewhere:
            raise RuntimeError(
                "worker_init_fn has made another program of the workers than is here, so what they "
                "could not make is not made once more; make the data set in __init__, or use the "
                "DataLoader itself"
            )
        # then the program has made nothing else since, and goes on from here
        goes_on = self.seed is None and not self.has_workers
        with own_numbers(not goes_on), eager():
            numbers = self.begin()
            now = Before(numbers.states(), self.before().kept)
            try:
                if before is not None:
                    self._say_what_is_elsewhere(before, numbers)
                    self.set_back(before, "dataset", "collate_fn")
                samples = self._true_samples(ask)
                if self.seed is not None:
                    numbers.seed(self.seed, "collate", ask.epoch, ask.first)
                return self.collate_fn(samples if self.is_batched else samples[0])
            finally:
                if not goes_on:
                    self.set_back(now)

    def _say_what_is_elsewhere(self, before: Before, numbers: Numbers) -> None:
        here = {each.path for each in numbers.own}
        for path in before.numbers[1].keys() - here if before.numbers else ():
            self.say(f"{path} is in workers only; a batch that was made once more drew without it")

    def seed_for(self, what: str, *places: Any) -> None:
        if self.seed is not None and self.numbers is not None:
            self.numbers.seed(self.seed, what, *places)

    # what waits

    def give_up(self, what: str, error: BaseException) -> None:
        """Notes that something has gone well with true pictures, which failed while they waited."""
        if is_of_a_file(error):  # it says nothing of waiting
            self.told.again += 1
            if self.seed is None and self.has_workers and get_worker_info() is None:
                self.say(
                    "a file could not be decoded when its batch was made, so the program was asked "
                    "for that batch once more; what it drew and kept then is not known in its "
                    "worker, whose later samples are those of a program that met no bad file; "
                    "with seed= each sample draws by its place"
                )
            return
        if isinstance(error, NotTheSame):
            self.give_up_all()
        elif self._flags[0] == self._stage < _ALL:  # no other worker has given it up meanwhile
            self._flags[0] = self._stage + 1
        self.say(
            f"{what}: {type(error).__name__}: {error}; with true pictures all is well, so from now "
            f"on {_GIVEN_UP[int(self._flags[0])][1]}"
        )

    def give_up_all(self) -> None:
        """Lets nothing wait."""
        self._flags[0] = _ALL

    def pause(self, on: bool) -> None:
        """Lets nothing wait for now, or again what waited before, from the batches on that workers
        begin after this.
        """
        self._flags[2] = on
        if not self.has_workers:
            self._is_paused = on

    def say(self, text: str) -> None:
        """Something that is said once."""
        if text not in self._already_said:
            self._already_said.add(text)
            self.told.said.append(text)

    # batches

    @property
    def is_late(self) -> bool:
        """Whether collating is left to the training process. While nothing waits, workers do it as
        they did before, but for samples of which one may take the place of another.
        """
        return bool(self._flags[1]) and (self.substitutes or not self._is_paused)

    def _stay(self, why: str) -> None:
        self._stays = True
        self.say(why)

    def leave_collating(self) -> None:
        self._flags[1] = 1

    def _keeps_from_collating(self, before: Before) -> bool:
        """Whether the program has other things now than before its collate function ran, such as a
        count of batches: in the training process it would have them for all workers together.
        """
        assert self.numbers is not None and self.memory is not None
        if before.numbers is not None and self.numbers.own_changed(before.numbers[1]):
            return True
        return self.memory.has_changed(before.kept)

    @property
    def _must_stay(self) -> bool:
        """Whether collating would be something else in the training process."""
        if self._asks or self._is_elsewhere:
            return True
        if self._for_collating is None or self._at_start is None:
            return False
        return self._for_collating.has_changed(self._at_start)

    def collate(self, samples: Any) -> Any:
        """The `collate_fn`: makes a parcel of a batch."""
        try:
            return self._collate(samples)
        finally:
            # between two batches: samples that wait would be looked at by a collate function
            # while nothing waits
            self._is_paused = bool(self._flags[2])

    def _collate(self, samples: Any) -> Any:
        self.begin()
        leaves = self.is_late and self.is_batched and (self.substitutes or self._stage < _ALL)
        if leaves and (late := self._left(samples)) is not None:
            return self._packed(late)
        if self._is_true:
            self._seed_collate()
            return self._packed(self._parcel(self.collate_fn(samples), samples))

        before = self.before()
        self._seed_collate()
        batch, error = self.attempt(partial(self._collate_waiting, samples, before))
        if error is None:
            return self._packed(self._parcel(batch, samples))

        self.set_back(before, "collate_fn", error=error)
        self._seed_collate()
        try:
            with eager():
                batch = self.collate_fn(WaitingParts(samples).true())
        except Exception as again:
            if PROCESS.failed is None or self._ask is None:
                raise
            # a picture that cannot be made: its sample has to be asked for once more
            parcel = self._parcel(None, samples)
            parcel.error = again
            return self._packed(parcel)
        self.give_up("collate_fn", error)
        return self._packed(self._parcel(batch, samples))

    def _seed_collate(self) -> None:
        if self.key_of_collate is not None and self.numbers is not None:
            self.numbers.seed(*self.key_of_collate)

    def _left(self, samples: Any) -> Parcel | None:
        """A parcel of samples that the training process collates, with the random numbers that this
        process would have given it; None: these are not known.
        """
        assert self.numbers is not None
        if not self.substitutes and (self._stays or self._must_stay):
            self._flags[1] = 0
            if not self._stays:
                self._stay(_ELSEWHERE)
            return None
        before = None
        if self.seed is None and get_worker_info() is not None:
            kept = self.before()
            assert kept.numbers is not None
            before = kept.numbers[0]
            is_drawn = draw_as(self.collate_fn, samples)
            keeps = self._keeps_from_collating(kept)
            if keeps or not is_drawn:
                self.set_back(kept, "collate_fn")
                if not self.substitutes:
                    self._flags[1] = 0
                self._stay(_KEEPS if keeps else _DRAWS)
                return None
        # pictures of Pillow's are made here, by many workers at once
        samples = true_pictures(samples)
        self._make_rest(samples)
        parcel = self._parcel(samples, samples)
        parcel.is_collated, parcel.before_collate = False, before
        return parcel

    def _collate_waiting(self, samples: Any, before: Before) -> Any:
        """What the program's function makes while pictures wait."""
        looks, may_leave = PROCESS.seen.total(), WaitingParts(samples).sources > 0
        batch = self.collate_fn(samples)
        is_new = self.is_batched and not self.is_late and not self._stays
        if is_new and PROCESS.seen.total() > looks:
            if self._keeps_from_collating(before):
                self._stay(_KEEPS)
            elif self._must_stay:
                self._stay(_ELSEWHERE)
            elif may_leave:
                self.leave_collating()
        self._make_rest(batch)
        return batch

    def _make_rest(self, batch: Any) -> None:
        """Makes what no backend makes."""
        if self.places:
            self.places.make_rest(WaitingParts(batch).cells, PROCESS.seen.total())
            if self.places.are_too_few and PROCESS.off != _GIVEN_UP[_ALL][0]:
                self.give_up_all()
                self.say(
                    "few pictures wait until a backend makes them, so from now on nothing waits; "
                    "explain() says why"
                )

    def _parcel(self, batch: Any, samples: Any) -> Parcel:
        told, self.told = self.told, Told()
        told.opened = PROCESS.opened
        told.seen.update(PROCESS.seen)
        told.seconds = dict(PROCESS.seconds)
        PROCESS.forget()
        told.compared, self.checks.count = self.checks.count, 0
        told.compared_seconds, self.checks.seconds = self.checks.seconds, 0.0
        if self.places:
            told.left, self.places.left = self.places.left, Counter()
        told.said += self.checks.said
        self.checks.said = []
        ask, before, self._ask, self._before = self._ask, self._before, None, None
        count = len(samples if ask is None else ask.indices) if self.is_batched else 1
        return Parcel(batch, count, ask, told, key=self.key_of_collate, before=before)

    def _packed(self, parcel: Parcel) -> Any:
        # in the training process nothing is made ahead, so the program has not changed anything
        if get_worker_info() is None:
            return parcel
        return Packed(parcel, copies=not parcel.is_collated)


def short(values: list[Any]) -> str:
    """Indices in few words."""
    return f"{values[0]!r} to {values[-1]!r}" if len(values) > 3 else str(list(values))[1:-1]


def _first_of(together: Callable[[list[Any]], Any], index: Any) -> Any:
    return together([index])[0]


def _named(make: Callable[[], Any], indices: list[Any]) -> Any:
    """Calls a function that makes samples; its error says which, and of which file."""
    try:
        return make()
    except Exception as error:
        file = file_of(error)
        error.add_note(f"sample {short(indices)}" + (f", file {file}" if file else ""))
        raise
