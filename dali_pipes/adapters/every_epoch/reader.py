"""`RecordedReader`: runs the program's own `__getitem__` for the items of planned batches, and
takes the files of the pictures out of it.

    seeded → __getitem__ with cheap noise in place of pictures → which file each picture comes from

Nothing is decoded, and no step of a transform is carried out. It is used in the processes of
`ItemRunner`, which are forked from the training process, or in that one.
"""

import os
import pickle
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import get_worker_info

from dali_pipes.adapters.every_epoch.generators import seed_own
from dali_pipes.adapters.every_epoch.trace import ItemTrace, done_of
from dali_pipes.adapters.from_torch.reading import NotConvertibleError
from dali_pipes.adapters.from_torch.recorder import Recorder, Seen, get_sample
from dali_pipes.adapters.from_torch.recording.active_visit import note_files, record
from dali_pipes.adapters.from_torch.recording.light_copy import light_copy
from dali_pipes.adapters.from_torch.recording.lru_caches import find_caches, forget, used
from dali_pipes.adapters.from_torch.recording.made_up import name_traits, traits_of
from dali_pipes.adapters.from_torch.recording.openers import openers_patched
from dali_pipes.adapters.from_torch.recording.random_states import (
    generator_state,
    set_generator_state,
    states_kept,
)
from dali_pipes.adapters.from_torch.recording.steps import steps_patched
from dali_pipes.adapters.from_torch.recording.visit import EndlessError, Opened, Supply, Visit
from dali_pipes.adapters.from_torch.refusals import describe_steps
from dali_pipes.adapters.from_torch.structure import Found, take_apart
from dali_pipes.adapters.from_torch.tracer import CHEAP_SIZES, openers_in
from dali_pipes.adapters.items.encoded import Encoded
from dali_pipes.adapters.items.headers import header_of
from dali_pipes.adapters.items.run import ItemReader
from dali_pipes.adapters.items.transform import ItemPicture

_SEED = 5  # of the trace's first cheap visits, whose noise is kept
_STRICT_TRIES = 100  # of sizes
_MOST_FILES = 2**16  # whose modes are known to be fine


class RecordedReader(ItemReader):
    """
    Args:
        recorder: has run the data set, and knows its steps.
        trace: what is the same for all items.
        dataset: the program's.
        indices: the index of each item in the data set.
        pictures: of each item.
    """

    def __init__(
        self,
        recorder: Recorder,
        trace: ItemTrace,
        dataset: Any,
        indices: Sequence[Any],
        pictures: list[ItemPicture],
    ):
        self._recorder, self._trace, self._seen = recorder, trace, trace.seen
        self._dataset, self._indices, self._pictures = dataset, indices, pictures
        self._supply = Supply(size=CHEAP_SIZES[0], modes=trace.seen.file_modes, keeps_data=True)
        # what visits did that is known to be right, and which file each picture has then
        self._files = dict(trace.files)
        self._openers = {openers_in(events) for events, *_ in trace.files}
        self._seeds_itself = {is_seeded for *_, is_seeded in trace.files}
        self._fine: set[str] = set()
        # the smallest and the largest height and width that were tried with noise as large
        self._tried, self._tries = np.array([[2**62, 2**62], [0, 0]]), 0
        self._noise_number = 0
        self._process = -1
        self._caches: list[Any] = []
        self._used: dict[int, tuple[int, int]] = {}

    def block(self) -> AbstractContextManager[Any]:
        # a worker does nothing else: there the functions stay patched
        if get_worker_info():
            self._begin_in_worker()
            return nullcontext()
        return self._patched()

    def _begin_in_worker(self) -> None:
        if self._process != os.getpid():
            self._find_caches()
            # as in the program's own workers
            vars(get_worker_info())["dataset"] = self._dataset
            _FOR_EVER.enter_context(openers_patched())
            _FOR_EVER.enter_context(steps_patched(self._recorder.own_steps))

    @contextmanager
    def _patched(self) -> Iterator[None]:
        if self._process != os.getpid():
            self._find_caches()
        own = self._recorder.own_steps
        # the functions, and the random states, belong to the whole process
        kept = _ONE_AT_A_TIME, states_kept(), self._generators_kept()
        with ExitStack() as stack:
            for each in (*kept, openers_patched(), steps_patched(own)):
                stack.enter_context(each)
            yield

    @contextmanager
    def _generators_kept(self) -> Iterator[None]:
        before = [generator_state(each) for each in self._trace.generators]
        try:
            yield
        finally:
            for each, state in zip(self._trace.generators, before, strict=True):
                set_generator_state(each, state)

    def _find_caches(self) -> None:
        note_files()
        self._process = os.getpid()
        # In this process the program's own data set stays as it is: what it keeps from sample to
        # sample would come from noise. A worker has a copy that nobody else sees.
        if not get_worker_info():
            self._copy = light_copy(self._dataset)
        self._caches = find_caches() if self._trace.caches_pictures else []
        self._used = used(self._caches)

    def seed(self, seeds: NDArray[np.uint32]) -> None:
        super().seed(seeds)
        self._seeds = seeds
        if self._trace.generators:
            low, high = seeds[2:].tolist()
            seed_own(self._trace.generators, low | high << 32)

    def read(self, dataset: Any, number: int) -> tuple[Any, list[Encoded]]:
        dataset = dataset if get_worker_info() else self._copy
        return self._read(dataset, self._indices[number], self._supply)

    def _read(self, dataset: Any, index: Any, supply: Supply) -> tuple[Any, list[Encoded]]:
        visit, skeleton, found = self._visit(dataset, index, supply)
        done = done_of(visit, found)
        files = self._files.get(done)
        if files is None:
            self._refuse_other_seeds(index, done)
            files = self._follow(index, Seen(visit, skeleton, found))
            self._files[done] = files

        opened = [visit.opened[file] for file in files]
        for each in opened:
            self._try_size(dataset, index, each, done)
            if self._seen.modes is not None:
                self._refuse_mode(index, each)
        return skeleton, [
            Encoded.of_known(_source_of(each), picture.transform, picture.draws)
            for each, picture in zip(opened, self._pictures, strict=True)
        ]

    def _get(self, dataset: Any, index: Any) -> Any:
        return get_sample(dataset, index)

    def _visit(self, dataset: Any, index: Any, supply: Supply) -> tuple[Visit, Any, list[Found]]:
        """Runs an item, and takes it apart."""
        recorder = self._recorder
        visit = Visit(
            supply,
            recorder.keys,
            recorder.known,
            _SEED,
            recorder.containers,
            noise_number=self._noise_number,
        )
        try:
            sample = record(visit, self._get, dataset, index)
            skeleton, found = take_apart(sample, visit)
        except EndlessError as error:
            raise self._refusal(index, str(error), "choose its files in another way") from None
        finally:
            # no cache may keep a picture that is none
            if self._caches:
                forget(self._caches, self._used)
            if visit.changed:
                raise self._refusal(
                    index,
                    f"changes files: it {visit.changed}",
                    "prepare the files before the training",
                ) from None
        return visit, skeleton, found

    def _try_size(self, dataset: Any, index: Any, opened: Opened, done: Any) -> None:
        """Runs an item once more with noise as large as its picture, if that is larger or smaller
        than all before: code for pictures of some sizes shows itself so.

        Raises:
            NotConvertibleError: the item does something else then.
        """
        if (size := self._new_size(opened)) is None:
            return
        self.seed(self._seeds)
        visit, _, found = self._visit(dataset, index, replace(self._supply, size=size))
        if done_of(visit, found) != done:
            height, width = size
            raise self._refusal(
                index,
                f"has a picture of {width} × {height} pixels, and is made in another way than with "
                "a small one",
                "treat all samples alike",
            )

    def _new_size(self, opened: Opened) -> tuple[int, int] | None:
        """The height and width of a picture that is larger or smaller than all before, for which
        noise as large is to be tried; None: it is not.
        """
        header = header_of(_source_of(opened))
        size = np.array([header.height, header.width])
        # files may be in the order of their sizes: after many, in steps of a tenth
        slack = 1.0 if self._tries < _STRICT_TRIES else 1.1
        is_new = (size * slack < self._tried[0]) | (size > self._tried[1] * slack)
        if header.problem or not is_new.any():
            return None
        self._tries += 1
        self._tried = np.stack([np.minimum(self._tried[0], size), np.maximum(self._tried[1], size)])
        return header.height, header.width

    def _refuse_other_seeds(self, index: Any, done: Any) -> None:
        """Refuses an item whose pictures may share random numbers where those of others do not."""
        *_, is_seeded = done
        if is_seeded not in self._seeds_itself:
            raise self._refusal(
                index,
                f"{'seeds' if is_seeded else 'does not seed'} PyTorch's random numbers, and others "
                f"{'do not' if is_seeded else 'do'}",
                "treat all samples alike",
            )

    def _follow(self, index: Any, seen: Seen) -> tuple[int, ...]:
        """The file of each picture of an item that did something that none did before.

        Raises:
            NotConvertibleError: it is made in another way than others.
        """
        self._recorder.trace(seen)
        problem = next(
            (chain.problem for chains in seen.chains for chain in chains if chain.problem), ""
        )
        if problem or not seen.does_as(self._seen.slots):
            raise self._refusal(
                index,
                f"is made in another way than others: {problem or describe_steps(seen.chains)}",
                "treat all samples alike, or load those that differ with a loader of their own",
            )
        if openers_in(seen.visit.events) not in self._openers and not self._are_alike(seen):
            raise self._refusal(
                index,
                "is opened in another way than others, which may treat EXIF tags, or pictures "
                "that are not RGB, otherwise",
                "open all files in the same way",
            )
        return tuple(chain.file for chain in seen.used)

    def _are_alike(self, seen: Seen) -> bool:
        """Whether each file is opened as one of those that were tried."""
        known = {each for events in self._openers for each in events}
        return set(openers_in(seen.visit.events)) <= known

    def _refuse_mode(self, index: Any, opened: Opened) -> None:
        """Refuses a file in a mode that the data set does not convert to RGB."""
        source = _source_of(opened)
        if isinstance(source, str) and source in self._fine:
            return
        try:
            with Image.open(BytesIO(source) if isinstance(source, bytes) else source) as image:
                others = traits_of(image) - set(self._seen.modes or ())
        except Exception:  # a bad file, which is named where its header is read
            return
        if others:
            raise self._refusal(
                index,
                f"opens {source if isinstance(source, str) else 'bytes'} with "
                f"{name_traits(others)}, and does not make of it what dali_pipes does, which is "
                'Image.open(path).convert("RGB")',
                "open images like that",
            )
        if isinstance(source, str) and len(self._fine) < _MOST_FILES:
            self._fine.add(source)

    def join(self, skeletons: list[Any], ids: NDArray[np.int64]) -> Any:
        # The collate function joins them in the training process, where their pictures are. A
        # queue of PyTorch's would send each tensor in shared memory, with a descriptor.
        return dump(skeletons) if get_worker_info() else skeletons

    def _refusal(self, index: Any, problem: str, instead: str) -> NotConvertibleError:
        return NotConvertibleError(self._seen.name, f"sample {index} {problem}", instead)


# a block of a training process; other threads may have loaders of their own
_ONE_AT_A_TIME = threading.RLock()
# contexts of a worker, which end with its process
_FOR_EVER = ExitStack()


class _ByValue(pickle.Pickler):
    """Pickles tensors as arrays, by value."""

    def reducer_override(self, value: Any) -> Any:
        is_plain = (
            type(value) is torch.Tensor
            and value.device.type == "cpu"
            and value.layout is torch.strided
            and value.dtype is not torch.bfloat16
            and not value.requires_grad
        )
        return (_tensor_of, (value.numpy(),)) if is_plain else NotImplemented


def _tensor_of(array: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(array.copy() if not array.flags.writeable else array)


def dump(value: Any) -> bytes:
    """Pickles by value: what is in it goes through a queue as it is."""
    file = BytesIO()
    _ByValue(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def _source_of(opened: Opened) -> str | bytes:
    return opened.path if isinstance(opened.path, str) else opened.data or b""
