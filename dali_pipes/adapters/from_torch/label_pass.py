"""Runs a data set for every sample, and notes its files and what else is in it: `pass_over`.

Nothing is decoded: openers return cheap noise, and transforms small pictures. Each sample is seen
twice, the second time in the opposite order and with other noise and random seeds. Both times it
must have the same files and values, and do what the samples of the trace did.

Samples are visited in chunks, which are all alike for a data set that may be converted: so several
processes may visit them (`_LabelPass.visit`), and a chunk that is in a file is not visited again
(label_file.py).
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dali_pipes.adapters.from_torch.label_file import LabelFile, Record
from dali_pipes.adapters.from_torch.recorder import Recorder, Seen, Trace
from dali_pipes.adapters.from_torch.recording.containers import Place, hold_the_same
from dali_pipes.adapters.from_torch.recording.random_states import seed_all, states_kept
from dali_pipes.adapters.from_torch.recording.visit import EndlessError, Opened, Supply
from dali_pipes.adapters.from_torch.refusals import (
    describe_steps,
    refuse_drawn,
    refuse_together,
    refuse_unknown_bytes,
)
from dali_pipes.adapters.from_torch.structure import first_difference
from dali_pipes.adapters.from_torch.trace import ask_more
from dali_pipes.adapters.from_torch.tracer import CHEAP_SIZES, join_masks, openers_in
from dali_pipes.adapters.transforms.reading import NotConvertibleError, refuse_unless
from dali_pipes.errors import WorkerError
from dali_pipes.system.progress import track
from dali_pipes.system.workers import map_in_order

_SHOW_AFTER_S = 2.0  # a bar for less would only flicker
# samples of a chunk, and its time, after which it is noted and a process can be stopped
_MOST, _CHUNK_S = 256, 0.25
# this long one process visits, and if the rest takes it so long, others help
_ALONE_S, _HELP_S = 1.0, 5.0
# a process that returns nothing for so long hangs, as one may that was forked beside threads
_PATIENCE_S = 60.0
# calls of `__getitems__` that are compared with samples alone, after which all are visited alone
_MOST_COMPARED = 64
_TRIED = 16  # samples of a file that are visited again


@dataclass(slots=True)
class ItemRecords:
    """What a data set has for each of some samples, in their order.

    Attributes:
        files: the files, or parts of files, that each sample opens.
        skeletons: what the data set returns for each sample, with slots in place of pictures.
    """

    files: list[tuple[Place, ...]]
    skeletons: list[Any]


def pass_over(
    recorder: Recorder,
    trace: Trace,
    indices: Sequence[Any],
    processes: int = 1,
    file: LabelFile | None = None,
) -> ItemRecords:
    """Runs the samples of these indices twice, within the recorder's block.

    Args:
        processes: how many may run at a time, if it takes long; more than one only where the data
            set can be run in forked processes.
        file: keeps what was seen, and has what an earlier call saw.

    Raises:
        NotConvertibleError: a sample differs each time, or is made in another way than others.
    """
    work = _LabelPass(recorder, trace, indices, processes, file)
    if file is None:
        return work.run()
    with file:
        return work.run()


class _LabelPass:
    """The visits of all samples.

    Attributes:
        first: what each sample had the first time.
        compared: how many samples were visited a second time, from the last one on.
    """

    def __init__(
        self,
        recorder: Recorder,
        trace: Trace,
        indices: Sequence[Any],
        processes: int,
        file: LabelFile | None,
    ):
        self._visitor = _Visitor(recorder, trace, notes_read=file is not None)
        # a shared object may have opened a file, which can be used by one process only
        self._processes = 1 if recorder.shares_objects else processes
        self._indices, self._file = indices, file
        self.first: list[Record] = []
        self.compared = 0

    def run(self) -> ItemRecords:
        count = len(self._indices)
        # so that what they are filled from is among the files that are read here
        self._visitor.empty_caches()
        self._begin()

        # closed, so that an error takes the bar away at once
        left = 2 * count - len(self.first) - self.compared
        shown = track(self._visits(), "reading labels", left, after_s=_SHOW_AFTER_S)
        with closing(shown):
            deque(shown, maxlen=0)

        if self._file:
            self._file.finish()
        return ItemRecords([files for files, _ in self.first], [each for _, each in self.first])

    def _begin(self) -> None:
        """Takes what is in the file, if the data set still has that."""
        if self._file is None:
            return
        self.first, self.compared = self._file.read(len(self._indices))
        tried = np.unique(np.linspace(0, len(self.first) - 1, _TRIED).round().astype(int))
        if self.first and not all(self._is_as_before(at) for at in tried.tolist()):
            self._file.clear()
            self.first, self.compared = [], 0

    def _is_as_before(self, at: int) -> bool:
        # any refusal comes again when the sample is visited
        try:
            files, skeleton = self._visitor.run(self._indices[at], 1)
        except NotConvertibleError:
            return False
        known = self.first[at]
        return files == known[0] and first_difference(known[1], skeleton) is None

    def _visits(self) -> Iterator[Any]:
        """Yields once for each visit."""
        count = len(self._indices)
        for records, read in self._chunks(self._read, len(self.first), count):
            self.first += records
            if self._file:
                self._file.add(records, read)
            yield from records

        # what a cache has from here on is not what the first visits left in it
        self._visitor.empty_caches()
        # in reverse, so that a sample that depends on the one before it differs
        for compared in self._chunks(self._compare, self.compared, count):
            self.compared += compared
            if self._file:
                self._file.note(self.compared)
            yield from range(compared)

    def _read(self, places: range) -> tuple[list[Record], list[str]]:
        """Visits samples, and returns what they have, and which other files were read."""
        with self._visitor.drawing_refused(11):
            records = self._visitor.run_all([self._indices[at] for at in places])
        return records, self._visitor.take_read()

    def _compare(self, places: range) -> int:
        """Visits samples again, counted from the last one."""
        last = len(self._indices) - 1
        with self._visitor.drawing_refused(12):
            for at in places:
                index, known = self._indices[last - at], self.first[last - at]
                self._visitor.compare(index, known, self._visitor.run(index, 1))
        return len(places)

    def _chunks(self, work: Callable[[range], Any], start: int, stop: int) -> Iterator[Any]:
        """Yields `work` of all places in order: in this process, and if that takes long, in several
        forked ones.
        """
        began, done = time.monotonic(), 0
        while start < stop:
            # a chunk is short for a slow data set, so that little is lost with it
            passed = time.monotonic() - began
            each = passed / done if done else _CHUNK_S
            size = max(1, min(_MOST, int(_CHUNK_S / max(each, 1e-9))))

            if self._processes > 1 and passed > _ALONE_S and each * (stop - start) > _HELP_S:
                chunks = [range(at, min(at + size, stop)) for at in range(start, stop, size)]
                made = map_in_order(
                    _InFork(work, self._visitor), chunks, self._processes, patience_s=_PATIENCE_S
                )
                try:
                    for chunk in chunks:
                        yield next(made)
                        start = chunk.stop
                except (WorkerError, OSError):
                    # it was killed or hangs, or none can be forked: this one does the rest
                    self._processes = 1
                continue

            chunk = range(start, min(start + size, stop))
            yield work(chunk)
            start, done = chunk.stop, done + len(chunk)


class _InFork:
    """Work in a forked process, on a copy of the data set that no other process has used: what it
    has opened may be used by one process only.
    """

    def __init__(self, work: Callable[[range], Any], visitor: "_Visitor"):
        self._work, self._visitor, self._process = work, visitor, os.getpid()

    def __call__(self, places: range) -> Any:
        if os.getpid() != self._process:
            self._process = os.getpid()
            self._visitor.renew_copy()
            # one may have such a file as well
            self._visitor.empty_caches()
        return self._work(places)


class _Visitor:
    """Visits samples, and compares what they do with the samples of the trace.

    Args:
        notes_read: whether `take_read` is asked which other files were read.
    """

    def __init__(self, recorder: Recorder, trace: Trace, notes_read: bool):
        self._recorder, self._trace, self._notes_read = recorder, trace, notes_read
        # what visits did that were followed back to the file and found to be right
        self._events = set(trace.events)
        self._openers = {openers_in(events) for events, _ in trace.events}
        self._supplies = [Supply(size=size, modes=trace.file_modes) for size in CHEAP_SIZES]
        self._read: set[str] = set()
        # of several samples at once: what was done for them, and how many files each opens
        self._together: dict[Any, list[int]] = {}
        self._compared = 0

    def renew_copy(self) -> None:
        self._recorder.renew_copy()

    def empty_caches(self) -> None:
        self._recorder.empty_caches()

    def take_read(self) -> list[str]:
        """The files that Python opened and folders that it listed since the last call."""
        read, self._read = self._read, set()
        return sorted(read)

    def drawing_refused(self, seed: int) -> "_DrawingRefused":
        """A block in which code may draw no random numbers."""
        return _DrawingRefused(self._recorder, self._trace.name, seed)

    def run_all(self, indices: Sequence[Any]) -> list[Record]:
        """Visits samples for the first time, and returns what each of them has: several at once, as
        a DataLoader takes them, where the data set has `__getitems__`. The second time each is
        visited alone.
        """
        records: list[Record] = []
        while len(records) < len(indices):
            few = indices[len(records) :][: self._trace.together]
            if len(few) > 1 and self._compared < _MOST_COMPARED:
                records += self._run_few(list(few))
            else:
                records += [self.run(index, 0) for index in few]
        return records

    def _run_few(self, few: list[Any]) -> list[Record]:
        try:
            together = self._recorder.see_together(few, self._supplies[0], 5)
        except NotConvertibleError:
            raise
        except (Exception, EndlessError):  # of one of them; alone, it is named
            together = []

        # nearly all do what others before them did, which was compared with each alone
        visit = together[0].visit if len(together) == len(few) else None
        done = visit and (tuple(visit.events), *(seen.ends for seen in together))
        if visit is None or done not in self._together:
            return self._compare_few(few, together, done)
        if self._notes_read:
            self._read.update(visit.read, visit.listed)

        first, records = 0, []
        for index, seen, count in zip(few, together, self._together[done], strict=True):
            opened = visit.opened[first : first + count]
            records.append((self._places(index, opened), seen.skeleton))
            first += count
        return records

    def _compare_few(self, few: list[Any], together: list[Seen], done: Any) -> list[Record]:
        """Visits samples alone, and notes whether what was done for them together is the same."""
        self._compared += 1
        alone = [self._visit(index, 0) for index in few]
        if self._recorder.are_alike(together, alone, self._trace.slots):
            self._together[done] = [len(seen.visit.opened) for seen in alone]
        return [self._record(*each) for each in zip(few, alone, strict=True)]

    def run(self, index: Any, which: int) -> Record:
        """Visits a sample, and returns its files and its skeleton.

        Args:
            which: 0 or 1, the place of the size in `CHEAP_SIZES`.
        """
        return self._record(index, self._visit(index, which))

    def _record(self, index: Any, seen: Seen) -> Record:
        return self._places(index, seen.visit.opened), seen.skeleton

    def _visit(self, index: Any, which: int) -> Seen:
        # 5 and 6 are the seeds of the trace's cheap visits, whose noise is kept
        try:
            seen = self._recorder.see(index, self._supplies[which], 5 + which, bool(which))
        except NotConvertibleError:
            raise
        except (Exception, EndlessError) as error:
            line = (str(error).strip().splitlines() or [""])[0][:100]
            raise NotConvertibleError(
                self._trace.name,
                f"sample {index} fails ({type(error).__name__}: {line})",
                "repair it, or leave it out of the data set",
            ) from error

        # nearly all samples do what one before them did: their chains are not made
        done = (tuple(seen.visit.events), seen.ends)
        if done not in self._events:
            self._check(index, seen)
            self._events.add(done)
        if self._notes_read:
            self._read.update(seen.visit.read, seen.visit.listed)
        return seen

    def _check(self, index: Any, seen: Seen) -> None:
        self._recorder.trace(seen)
        problem = next(
            (chain.problem for chains in seen.chains for chain in chains if chain.problem), ""
        )
        steps = describe_steps(seen.chains)
        refuse_unless(
            not problem and seen.does_as(self._trace.slots),
            self._trace.name,
            f"sample {index} is made in another way than others: {problem or steps}",
            "treat all samples alike, or load those that differ with a loader of their own",
        )
        join_masks(self._recorder, self._trace.name, seen)
        if (openers := openers_in(seen.visit.events)) not in self._openers:
            self._openers.add(openers)
            with states_kept():
                ask_more(self._recorder, self._trace, index)

    def _places(self, index: Any, opened: list[Opened]) -> tuple[Place, ...]:
        places = [each.path for each in opened]
        if None in places:
            refuse_unknown_bytes(self._trace.name, opened, f"what of sample {index}")
        return tuple(places)  # type: ignore[arg-type]

    def compare(self, index: Any, one: Record, other: Record) -> None:
        """Refuses a sample with other files or values the second time."""
        if one[0] != other[0] and not hold_the_same(one[0], other[0]):
            self._refuse_together(index, other)
            raise NotConvertibleError(
                self._trace.name,
                f"sample {index} opens {_names(one[0])}, and the next time {_names(other[0])}",
                "choose the files of each sample in __init__ (about 3 lines), and keep no "
                "pictures in the data set",
            )

        if (place := first_difference(one[1], other[1])) is not None:
            self._refuse_together(index, other)
            raise NotConvertibleError(
                self._trace.name,
                f"sample {index} has another value{' at ' + place if place else ''} each time: it "
                "is random, or depends on pixels, on the worker, or on what was loaded before",
                "return what it is computed from, and compute it in the collate function (about 3 "
                "lines)",
            )

    def _refuse_together(self, index: Any, other: Record) -> None:
        """Refuses a data set if a sample differs only where it was one of several."""
        if self._trace.together > 1:
            alone = self.run(index, 0)
            is_same = hold_the_same(alone[0], other[0])
            is_same &= first_difference(alone[1], other[1]) is None
            refuse_together(self._trace.name, not is_same)


class _DrawingRefused:
    """A block in which code may draw no random numbers."""

    def __init__(self, recorder: Recorder, name: str, seed: int):
        self._recorder, self._name, self._seed = recorder, name, seed

    def __enter__(self) -> None:
        seed_all(self._seed)
        self._before = self._recorder.random_states()

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        # looked at once for a whole chunk, which costs next to nothing for each sample
        if kind is None:
            refuse_drawn(self._name, self._before, self._recorder.random_states())


def _names(files: tuple[Place, ...]) -> str:
    return ", ".join(Path(str(each)).name for each in files) or "no file"
