"""An iterable data set in a worker, whose pictures wait.

Its samples cannot be asked for once more. If one fails while pictures wait, the data set is begun
again, with true pictures, and what it has given already is skipped.
"""

from collections.abc import Iterator
from itertools import count, islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, IterDataPipe, get_worker_info

from dali_pipes.adapters.lazy.compared import NotTheSame
from dali_pipes.adapters.lazy.file_errors import file_of
from dali_pipes.adapters.lazy.found import digest_of
from dali_pipes.adapters.lazy.parcels import end_workers
from dali_pipes.adapters.lazy.program import FEW, LazyProgram
from dali_pipes.adapters.lazy.state import eager

_MOST_SKIPPED = 10_000  # samples that are skipped when a stream is begun again


class Stream(IterableDataset[Any]):
    """Takes the place of the program's data set.

    Attributes:
        epoch: of the next `iter()`. A worker that stays counts on by itself.
    """

    def __init__(self, program: LazyProgram):
        self.program, self.epoch = program, 0
        self._next = 0  # for which workers that stay are ready

    def begin(self, inner: DataLoader[Any], epoch: int) -> None:
        """In the training process, before an epoch."""
        if epoch != self._next and self.program.seed is not None:
            end_workers(inner)  # those that stay would count on from another one
        self.epoch, self._next = epoch, epoch + 1

    def __iter__(self) -> Iterator[Any]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        worker = get_worker_info()
        return _Samples(self.program, epoch, worker.id if worker else 0)

    def __len__(self) -> int:
        return len(self.program.dataset)  # type: ignore[arg-type]


class PipeStream(Stream, IterDataPipe[Any]):
    """The same of PyTorch's data pipes: one itself, so that a DataLoader finds the program's pipe,
    which it divides among workers and seeds.
    """

    def __init__(self, program: LazyProgram):
        super().__init__(program)
        self.pipe = program.dataset


class _Samples(Iterator[Any]):
    """The samples of an epoch that one worker gives."""

    def __init__(self, program: LazyProgram, epoch: int, worker: int):
        self._program, self._where, self._places = program, (epoch, worker), count()
        self._start = program.before()
        self._given: list[int] = []  # digests of the samples so far

        self._seed(0)
        if program.checks.is_new:
            try:
                # copies that are forked now open files of their own
                program.checks.compare(self._small_batch)
            except NotTheSame as error:
                program.give_up("the first samples of the stream", error)
                program.begin()
        self._own = iter(program.dataset)

    def _small_batch(self) -> Any:
        """A batch of the first samples alone."""
        samples = []
        for place, sample in enumerate(islice(iter(self._program.dataset), FEW)):
            samples.append(sample)
            self._seed(place + 1)
        if not samples:
            return None
        return self._program.collate_fn(samples if self._program.is_batched else samples[0])

    def __next__(self) -> Any:
        program, place = self._program, next(self._places)
        program.begin()
        self._seed(place)
        if program.seed is not None:
            program.key_of_collate = program.seed, "collate", *self._where, place
        sample, error = program.attempt(self._own.__next__)
        if isinstance(error, StopIteration):
            raise error
        if error is not None:
            sample = self._begin_again(place, error)
        if len(self._given) < _MOST_SKIPPED:
            self._given.append(digest_of(sample))
        return sample

    def _seed(self, place: int) -> None:
        self._program.seed_for("stream", *self._where, place)

    def _begin_again(self, place: int, error: BaseException) -> Any:
        """The sample with true pictures, of a data set that is begun again.

        Raises:
            Exception: the program's own error; or this one, if other samples come now, or too many
                would have to be skipped.
        """
        if place >= _MOST_SKIPPED:
            raise error
        self._program.set_back(self._start, error=error)
        with eager():
            self._own = iter(self._program.dataset)
            for skipped in range(place):
                self._seed(skipped)
                sample = next(self._own, None)
                if digest_of(sample) != self._given[skipped]:
                    error.add_note(
                        f"sample {skipped} of the stream is another one when the stream is begun "
                        "again, so it could not go on with true pictures"
                    )
                    raise error
            self._seed(place)
            try:
                sample = next(self._own)
            except Exception as own:
                own.add_note(f"sample {place} of a worker's stream, file {file_of(own) or '?'}")
                raise
        what = f"the stream was begun again, and {place} samples skipped"
        self._program.give_up(what, error)
        return sample
