"""Runs a data set for every sample, and notes its files and what else is in it: `pass_over`.

Nothing is decoded: openers return cheap noise, and transforms small pictures. Each sample is seen
twice, the second time in the opposite order and with other noise and random seeds. Both times it
must have the same files and values, and do what the samples of the trace did.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dali_pipes.adapters.from_torch.reading import NotConvertibleError, refuse_unless
from dali_pipes.adapters.from_torch.recording.containers import Place, hold_the_same
from dali_pipes.adapters.from_torch.recording.untouched import random_states, seed_all
from dali_pipes.adapters.from_torch.recording.visit import EndlessError, Supply
from dali_pipes.adapters.from_torch.structure import first_difference
from dali_pipes.adapters.from_torch.trace import (
    CHEAP_SIZES,
    Recorder,
    Seen,
    Trace,
    describe_steps,
    join_masks,
    refuse_drawn,
    refuse_unknown_bytes,
)
from dali_pipes.system.progress import track

# samples between two steps of the progress bar, and the fewest for which there is one: fewer take
# less than two seconds
_CHUNK, _MANY = 256, 10_000


@dataclass(slots=True)
class ItemRecords:
    """What a data set has for each of some samples, in their order.

    Attributes:
        files: the files, or parts of files, that each sample opens.
        skeletons: what the data set returns for each sample, with slots in place of pictures.
    """

    files: list[tuple[Place, ...]]
    skeletons: list[Any]


def pass_over(recorder: Recorder, trace: Trace, indices: Sequence[Any]) -> ItemRecords:
    """Runs the samples of these indices twice, within the recorder's block.

    Raises:
        NotConvertibleError: a sample differs each time, or is made in another way than others.
    """
    # random numbers are looked at once for all samples, which costs nothing for each
    runner = _Visitor(recorder, trace)
    first = []
    for chunk in _shown(indices, "reading labels"):
        first += [runner.run(index, 0) for index in chunk]
    runner.refuse_drawn()

    # in reverse, so that a sample that depends on the one before it differs
    known = reversed(first)
    for chunk in _shown(indices[::-1], "comparing labels"):
        for index in chunk:
            runner.compare(index, next(known), runner.run(index, 1))
    runner.refuse_drawn()
    return ItemRecords([files for files, _ in first], [skeleton for _, skeleton in first])


def _shown(indices: Sequence[Any], what: str) -> Iterator[Sequence[Any]]:
    """The indices in chunks, with a progress bar: a step of the bar costs as much as a sample."""
    chunks = [indices[at : at + _CHUNK] for at in range(0, len(indices), _CHUNK)]
    return track(chunks, what, len(chunks), len(indices) > _MANY)


class _Visitor:
    """The visits of all samples, each compared with the samples of the trace."""

    def __init__(self, recorder: Recorder, trace: Trace):
        self._recorder, self._trace = recorder, trace
        # what visits did that were followed back to the file and found to be right
        self._events = set(trace.events)
        self._supplies = [Supply(size=size, modes=trace.file_modes) for size in CHEAP_SIZES]
        seed_all(11)
        self._states = random_states()

    def run(self, index: Any, which: int) -> tuple[tuple[Place, ...], Any]:
        """Visits a sample, and returns its files and its skeleton.

        Args:
            which: 0 or 1, the place of the size in `CHEAP_SIZES`.
        """
        # 5 and 6 are the seeds of the trace's cheap visits, whose noise is kept
        try:
            seen = self._recorder.see(index, self._supplies[which], 5 + which)
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
        return self._files(index, seen), seen.skeleton

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

    def _files(self, index: Any, seen: Seen) -> tuple[Place, ...]:
        opened = seen.visit.opened
        refuse_unknown_bytes(self._trace.name, opened, f"what of sample {index}")
        return tuple([each.path for each in opened if each.path is not None])

    def compare(self, index: Any, one: tuple[Any, Any], other: tuple[Any, Any]) -> None:
        """Refuses a sample with other files or values the second time."""
        refuse_unless(
            one[0] == other[0] or hold_the_same(one[0], other[0]),
            self._trace.name,
            f"sample {index} opens {_names(one[0])}, and the next time {_names(other[0])}",
            "choose the files of each sample in __init__ (about 3 lines), and keep no pictures in "
            "the data set",
        )

        if (place := first_difference(one[1], other[1])) is not None:
            raise NotConvertibleError(
                self._trace.name,
                f"sample {index} has another value{' at ' + place if place else ''} each time: it "
                "is random, or depends on pixels, or on what was loaded before",
                "return what it is computed from, and compute it in the collate function (about 3 "
                "lines)",
            )

    def refuse_drawn(self) -> None:
        """Refuses code that has drawn random numbers since the last call, and seeds anew."""
        after = random_states()
        refuse_drawn(self._trace.name, self._states, after)
        # other seeds for the second time
        seed_all(12)
        self._states = random_states()


def _names(files: tuple[Place, ...]) -> str:
    return ", ".join(Path(str(each)).name for each in files) or "no file"
