"""`RecordedReader`: runs the program's own `__getitem__` for the items of planned batches, and
takes the files of the pictures out of it.

    seeded → __getitem__ with cheap noise in place of pictures → which file each picture comes from

Nothing is decoded, and no step of a transform is carried out. It is used in the processes of
`ItemRunner`, which are forked from the training process, or in that one.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import get_worker_info

from dali_pipes.adapters.every_epoch.generators import seed_own
from dali_pipes.adapters.every_epoch.trace import ItemTrace
from dali_pipes.adapters.from_torch.reading import NotConvertibleError
from dali_pipes.adapters.from_torch.recorder import Recorder, Seen, get_sample
from dali_pipes.adapters.from_torch.recording.made_up import name_traits, traits_of
from dali_pipes.adapters.from_torch.recording.openers import openers_patched
from dali_pipes.adapters.from_torch.recording.steps import steps_patched
from dali_pipes.adapters.from_torch.recording.untouched import (
    find_caches,
    forget,
    generator_state,
    set_generator_state,
    states_kept,
    used,
)
from dali_pipes.adapters.from_torch.recording.visit import (
    EndlessError,
    Opened,
    Supply,
    Visit,
    note_files,
    record,
)
from dali_pipes.adapters.from_torch.structure import end_of, take_apart
from dali_pipes.adapters.from_torch.trace import CHEAP_SIZES, describe_steps, openers_in
from dali_pipes.adapters.items.encoded import Encoded
from dali_pipes.adapters.items.run import ItemReader
from dali_pipes.adapters.items.transform import ItemPicture

_SEED = 5  # of the trace's first cheap visits, whose noise is kept
_MOST_FILES = 2**16  # whose modes are known to be fine


class RecordedReader(ItemReader):
    """
    Args:
        recorder: has run the data set, and knows its steps.
        trace: what is the same for all items.
        indices: the index of each item in the data set.
        pictures: of each item.
    """

    def __init__(
        self,
        recorder: Recorder,
        trace: ItemTrace,
        indices: Sequence[Any],
        pictures: list[ItemPicture],
    ):
        self._recorder, self._trace, self._seen = recorder, trace, trace.seen
        self._indices, self._pictures = indices, pictures
        self._supply = Supply(size=CHEAP_SIZES[0], modes=trace.seen.file_modes, keeps_data=True)
        # what visits did that is known to be right, and which file each picture has then
        self._files = dict(trace.files)
        self._openers = {openers_in(events) for events, _ in trace.files}
        self._fine: set[str] = set()
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
            _FOR_EVER.enter_context(openers_patched())
            _FOR_EVER.enter_context(steps_patched(self._recorder.own_steps))

    @contextmanager
    def _patched(self) -> Iterator[None]:
        if self._process != os.getpid():
            self._find_caches()
        own = self._recorder.own_steps
        with states_kept(), self._generators_kept(), openers_patched(), steps_patched(own):
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
        self._caches = find_caches()
        self._used = used(self._caches)

    def seed(self, seeds: NDArray[np.uint32]) -> None:
        super().seed(seeds)
        if self._trace.generators:
            low, high = seeds[2:].tolist()
            seed_own(self._trace.generators, low | high << 32)

    def read(self, dataset: Any, number: int) -> tuple[Any, list[Encoded]]:
        index, recorder = self._indices[number], self._recorder
        visit = Visit(self._supply, recorder.keys, recorder.known, _SEED, recorder.containers)
        try:
            sample = record(visit, get_sample, dataset, index)
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
            )

        done = tuple(visit.events), tuple(map(end_of, found))
        files = self._files.get(done)
        if files is None:
            files = self._follow(index, Seen(visit, skeleton, found))
            self._files[done] = files
        opened = [visit.opened[file] for file in files]
        if self._seen.modes is not None:
            for each in opened:
                self._refuse_mode(index, each)
        return skeleton, [
            Encoded.of_known(_source_of(each), picture.transform, picture.draws)
            for each, picture in zip(opened, self._pictures, strict=True)
        ]

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
        # the collate function joins them in the training process, where their pictures are
        return skeletons

    def _refusal(self, index: Any, problem: str, instead: str) -> NotConvertibleError:
        return NotConvertibleError(self._seen.name, f"sample {index} {problem}", instead)


# contexts of a worker, which end with its process
_FOR_EVER = ExitStack()


def _source_of(opened: Opened) -> str | bytes:
    return opened.path if isinstance(opened.path, str) else opened.data or b""
