"""What workers send for each batch: `Parcels(loader, seed, epoch, skipped)`."""

import pickle
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from dali_pipes.adapters.lazy.memory import Kept
from dali_pipes.adapters.lazy.order import Ask
from dali_pipes.adapters.lazy.random_numbers import States, own_numbers, seed_shared
from dali_pipes.adapters.lazy.state import PROCESS, Look, sending, waiting
from dali_pipes.errors import ConfigError

_LOST_WITHIN_S = 1.0  # from the end of its connections until a killed process has ended


@dataclass
class Told:
    """What a worker has to say since it last said something.

    Attributes:
        opened: how many pictures were opened that wait.
        seen: where pixels were made because the program looked at them: how often, and the seconds
            of CPU that it took.
        compared: how many samples and batches were made twice, and the seconds that it took.
        again: how many batches were made once more, since a file could not be read.
        left: how many pictures a worker made that have no place in the plan, by reason.
        said: what the user should know, in words.
        bad: index, file and error of each sample in whose place another one came.
    """

    opened: int = 0
    seen: Counter[Look] = field(default_factory=Counter)
    seconds: dict[Look, float] = field(default_factory=dict)
    compared: int = 0
    compared_seconds: float = 0.0
    again: int = 0
    left: Counter[str] = field(default_factory=Counter)
    said: list[str] = field(default_factory=list)
    bad: list[tuple[Any, str, str]] = field(default_factory=list)


class Before(NamedTuple):
    """What a program had before something was made.

    Attributes:
        numbers: of all of its generators; None: a seed decides them.
        is_elsewhere: whether `worker_init_fn` has made it another program than that of the training
            process.
    """

    numbers: tuple[States, dict[str, Any]] | None
    kept: Kept
    is_elsewhere: bool = False


@dataclass
class Parcel:
    """What a worker sends for a batch.

    Attributes:
        batch: what the program made; without `is_collated` the samples for its collate function.
        count: how many samples it has.
        ask: which samples were wanted; None: the next ones of a stream.
        key: by which the collate function's random numbers are seeded; None: they are not.
        before: what the program kept before the samples, and its random numbers, if no seed decides
            those.
        before_collate: the same before the collate function, if it did not run here.
        error: of a picture that could not be made: the training process is to ask once more.
        raised: what the program raised in the place of a batch.
    """

    batch: Any
    count: int
    ask: Ask | None
    told: Told
    is_collated: bool = True
    key: tuple[Any, ...] | None = None
    before: Before | None = None
    before_collate: States | None = None
    error: Exception | None = None
    raised: Exception | None = None


def end_workers(inner: DataLoader[Any]) -> None:
    """Ends workers that stay from epoch to epoch, whoever else has their iterator: Lightning keeps
    what is set on a DataLoader.
    """
    iterator, inner._iterator = inner._iterator, None
    if isinstance(iterator, _MultiProcessingDataLoaderIter):
        iterator._shutdown_workers()


class Packed:
    """A parcel on its way. It is pickled before the program goes on, which may change what is in
    it, and unpickled as it arrives, since a worker that ends takes shared memory along.

    Args:
        copies: whether all is copied; otherwise tensors are in shared memory from now on.
    """

    def __init__(self, parcel: Parcel, copies: bool):
        with sending():
            dump = pickle.dumps if copies else ForkingPickler.dumps
            self._data = bytes(dump(vars(parcel)))

    def __reduce__(self) -> Any:
        return _unpack, (self._data,)


def _unpack(data: bytes) -> Parcel:
    return Parcel(**pickle.loads(data))


class Parcels(Iterator[Parcel]):
    """What the workers send in an epoch; without workers, what the program makes here.

    It knows no loader, so that a loader that is dropped ends at once.

    Args:
        skipped: samples at its start that are left out.
    """

    def __init__(self, inner: DataLoader[Any], seed: int | None, epoch: int, skipped: int):
        self._is_here, self._seed = not inner.num_workers, seed
        self._left_to_skip, self._inner = skipped, inner
        if self._is_here:  # whatever else this process has looked at
            PROCESS.forget()
        with self._as_program(seed is not None):
            if seed is not None:
                seed_shared(seed, "workers", epoch)
            self._iterator: Iterator[Any] | None = iter(inner)

    @contextmanager
    def _as_program(self, has_own_numbers: bool) -> Iterator[None]:
        # a worker that is forked in it would inherit what is said of this thread
        here = waiting(True) if self._is_here else nullcontext()
        with here, own_numbers(has_own_numbers):
            yield

    def __next__(self) -> Parcel:
        while (iterator := self._iterator) is not None:
            with self._as_program(self._is_here and self._seed is not None):
                try:
                    parcel = self._next(iterator)
                except (StopIteration, ConfigError):
                    raise
                except Exception as error:  # after which a DataLoader goes on
                    return Parcel(None, 0, None, Told(), raised=error)
            if not self._left_to_skip:
                return parcel
            if parcel.count > self._left_to_skip:
                raise ConfigError(
                    "the stream has batches of other sizes than when its state was made; resume "
                    "with the batch size and the workers of then"
                )
            self._left_to_skip -= parcel.count
        raise StopIteration

    def _next(self, iterator: Iterator[Any]) -> Parcel:
        wrong: BaseException | None = None
        try:
            parcel = next(iterator)
            if isinstance(parcel, Parcel):
                return parcel
        except (TypeError, AttributeError) as error:
            if type(self._inner).__iter__ is DataLoader.__iter__:
                raise
            wrong = error
        except (ConnectionError, EOFError) as error:
            _raise_if_lost(iterator, error)
            raise
        raise ConfigError(
            f"{type(self._inner).__name__} changes its batches, or takes them from elsewhere; pass "
            "on a plain DataLoader, and change the batches of the lazy loader"
        ) from wrong

    def close(self) -> None:
        self._iterator = None


def _raise_if_lost(iterator: Iterator[Any], error: Exception) -> None:
    """Says that a worker is lost where its shared memory cannot be fetched: the connection to a
    worker that is being killed breaks before its process has ended, and a DataLoader that looks for
    it then finds it alive and raises what came of the connection.

    Raises:
        RuntimeError: a worker is lost, in the words of a DataLoader.
    """
    if not isinstance(iterator, _MultiProcessingDataLoaderIter):
        return
    workers = [worker for worker in iterator._workers if worker.exitcode != 0]
    ended = wait([worker.sentinel for worker in workers], _LOST_WITHIN_S)
    for worker in workers:
        if worker.sentinel in ended:  # its last file is closed, a moment before it has an exit code
            worker.join()
    if lost := [worker.pid for worker in workers if worker.exitcode]:
        pids = ", ".join(map(str, lost))
        raise RuntimeError(f"DataLoader worker (pid(s) {pids}) exited unexpectedly") from error
