"""`ItemsBackend`: runs the items of planned batches, and has other backends make their pictures.

    planned ids → items (run.py) → planned pictures → a backend for each transform → joined

Pictures with equal transforms are one planned batch: all N of one place, then all N of the next.
Their random numbers are keyed by (seed, epoch, id, view), where the views of an item are counted
over all of its pictures.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from dali_pipes.adapters.from_torch.structure import PictureSlot
from dali_pipes.adapters.items.bad_items import PictureError
from dali_pipes.adapters.items.run import BadPicture, ItemBatch, ItemTask
from dali_pipes.adapters.items.skeletons import rebuild
from dali_pipes.adapters.items.transform import ItemTransform, are_alike
from dali_pipes.backends.backend import Backend, Decoded, Description, Job
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.needs import EVERYTHING
from dali_pipes.backends.torch.workers import end_workers, start_workers
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.plan.philox import Draws, Kind
from dali_pipes.plan.plan import PlannedBatch, plan_loose
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.workers import leave_signals_to_the_main_process

ITEM = "item"  # the name of the items among the targets of a batch


@dataclass(frozen=True, slots=True)
class ItemWorkers:
    """How items are run.

    Attributes:
        num_workers, prefetch_factor, multiprocessing_context: as of a DataLoader.
    """

    num_workers: int
    prefetch_factor: int
    multiprocessing_context: Any = None

    def dataloader(self, dataset: Any, tasks: Any) -> "DataLoader[Any]":
        """A DataLoader that gives these tasks to a data set."""
        options: dict[str, Any] = (
            {
                "prefetch_factor": self.prefetch_factor,
                "multiprocessing_context": self.multiprocessing_context,
                "persistent_workers": True,
                "worker_init_fn": leave_signals_to_the_main_process,
            }
            if self.num_workers
            else {}
        )
        return DataLoader(
            dataset,
            sampler=tasks,
            batch_size=None,
            num_workers=self.num_workers,
            collate_fn=_as_it_is,
            # a separate one, so that the model's random numbers do not depend on the loader
            generator=torch.Generator("cpu"),
            **options,
        )


class RunsItems(Protocol):
    """Runs items of a data set."""

    @property
    def dataset(self) -> Any: ...
    @property
    def seed(self) -> int: ...


class MakesDataLoader(Protocol):
    """Where items are run."""

    @property
    def num_workers(self) -> int: ...
    def dataloader(self, dataset: Any, tasks: Any) -> "DataLoader[Any]": ...


class NotesBad(Protocol):
    """Knows which pictures are bad."""

    @property
    def keys(self) -> frozenset[str]: ...
    def note(self, bad: list[BadPicture], epoch: int, step: int, count: int) -> None: ...


class PicturePart(NamedTuple):
    """The pictures that one backend makes: their places among those of an item."""

    transform: Transform
    places: list[int]
    backend: Backend


class _PlannedItems(NamedTuple):
    """A planned batch of items that were run, and what each part is to make of them."""

    planned: PlannedBatch
    ids: NDArray[np.int64]
    values: Any
    pictures: list[PlannedBatch]


class ItemsBackend(Backend):
    """
    Args:
        runner: runs the items.
        workers: where it does so.
        bad: the bad pictures that are known.
        draw_numbers: as of the plan.
        build_part: makes the backend of a transform for batches of some size.
        fill: puts the pictures of a batch into its values.
    """

    _when: ClassVar[str] = "for every item of every epoch"

    makes = EVERYTHING

    def __init__(
        self,
        job: Job,
        config: LoaderConfig,
        *,
        runner: RunsItems,
        workers: MakesDataLoader,
        bad: NotesBad,
        draw_numbers: Callable[[int, int, NDArray[np.int64]], tuple[NDArray[np.int64], Kind]],
        build_part: Callable[[Transform, int], Backend],
        fill: Callable[[Any, list[Any], torch.device], Any],
    ):
        self._runner, self._workers = runner, workers
        self._bad, self._build_part, self._fill = bad, build_part, fill
        self._draw_numbers = draw_numbers
        super().__init__(job, config)

    def prepare(self) -> None:
        places: list[tuple[Transform, list[int]]] = []
        for place, picture in enumerate(self._items.pictures):
            transform = cast(Transform, picture.transform)
            known = next((own for other, own in places if are_alike(other, transform)), None)
            if known is None:
                places.append((transform, known := []))
            known.append(place)

        self._parts = [
            PicturePart(transform, own, self._build_part(transform, self.job.batch_size * len(own)))
            for transform, own in places
        ]
        self._tasks, self._iterator = _Tasks(), cast(Any, None)
        self._loader: DataLoader[ItemBatch] | None = self._workers.dataloader(
            self._runner, self._tasks
        )

    @property
    def _items(self) -> ItemTransform:
        return cast(ItemTransform, self.job.transform)

    @property
    def dataset(self) -> Any:
        """The data set whose items are run."""
        return self._runner.dataset

    def backend_of(self, part: int) -> Backend:
        """The backend that makes the pictures of a part."""
        return self._parts[part].backend

    def describe(self) -> Description:
        count = self._workers.num_workers
        where = f"in {count} processes" if count else "in this process"
        parts = [part.backend.describe() for part in self._parts]
        made = dict.fromkeys(part.text for part in parts)
        kind = type(self._runner.dataset).__name__
        return Description(
            f"{kind} is run {self._when}, {where}; {'; '.join(made)}",
            "; ".join(filter(None, dict.fromkeys(part.pixels for part in parts))) or None,
            parts[0].gpu,
        )

    def stream(self, planned: Iterator[PlannedBatch]) -> Iterator[Decoded]:
        if self._loader is None:
            raise RuntimeError("the loader is closed")

        asked: deque[PlannedBatch] = deque()
        batches = self._run(self._loader, planned, asked)
        errors: list[Exception] = []
        items = _until_error(self._plan_items(batches, asked), errors)
        # each backend takes planned batches as far ahead as it wants; all in this thread
        *each_part, delivered = itertools.tee(items, len(self._parts) + 1)
        streams = [
            part.backend.stream(map(partial(_pictures_of, number), own))
            for number, (part, own) in enumerate(zip(self._parts, each_part, strict=True))
        ]
        return self._deliver(delivered, streams, errors)

    def _run(
        self,
        loader: "DataLoader[ItemBatch]",
        planned: Iterator[PlannedBatch],
        asked: deque[PlannedBatch],
    ) -> Iterator[ItemBatch]:
        """The items of each planned batch, which goes to `asked` before."""
        self._tasks.each = self._list_tasks(planned, asked, self._bad.keys)
        # persistent workers serve the new iterator
        self._iterator = start_workers(loader)
        return cast(Iterator[ItemBatch], self._iterator)

    def _list_tasks(
        self, planned: Iterator[PlannedBatch], asked: deque[PlannedBatch], bad: frozenset[str]
    ) -> Iterator[ItemTask]:
        for batch in planned:
            asked.append(batch)
            numbers, _ = self._draw_numbers(batch.epoch, batch.step, batch.ids)
            yield ItemTask(batch.epoch, batch.ids, bad, numbers)

    def _plan_items(
        self, batches: Iterator[ItemBatch], asked: deque[PlannedBatch]
    ) -> Iterator[_PlannedItems]:
        for batch in batches:
            planned = asked.popleft()
            count = len(planned) * len(self._items.pictures)
            self._bad.note(batch.bad, planned.epoch, planned.step, count)
            if batch.error:
                raise batch.error
            self._refuse_unequal_sizes(batch)
            pictures = [self._plan_part(part, batch, planned) for part in self._parts]
            yield _PlannedItems(planned, batch.ids, batch.values, pictures)

    def _plan_part(
        self, part: PicturePart, batch: ItemBatch, planned: PlannedBatch
    ) -> PlannedBatch:
        n, first_views = len(planned), self._items.first_views
        numbers = np.concatenate([np.arange(place * n, (place + 1) * n) for place in part.places])
        keys, kind = self._draw_numbers(planned.epoch, planned.step, planned.ids)
        keys = np.tile(keys, len(part.places))
        # of their sizes, such as a crop that is larger than an image
        part.transform.check(cast(Manifest, batch.images.take(numbers)))
        first = np.repeat([first_views[place] for place in part.places], n)

        def draws(view: int) -> Draws:
            return Draws(self._runner.seed, planned.epoch, keys, kind, first + view)

        return plan_loose(batch.images, numbers, part.transform, draws, planned.epoch, planned.step)

    def _refuse_unequal_sizes(self, batch: ItemBatch) -> None:
        """Refuses pictures of one item that have the same draws and other sizes.

        A crop of one is none of the other.
        """
        n = len(batch.ids)
        first: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        for place, picture in enumerate(self._items.pictures):
            if picture.draws is None:
                continue
            turns = cast(Transform, picture.transform).exif == "apply"
            own = np.arange(place * n, (place + 1) * n)
            sizes = batch.images.take_sizes(own, upright=turns)
            other, expected = first.setdefault(picture.draws, (own, sizes))
            for at in np.flatnonzero((sizes != expected).any(axis=1))[:1].tolist():
                names = [batch.images.name(int(numbers[at])) for numbers in (other, own)]
                each = [f"{width} × {height}" for height, width in (expected[at], sizes[at])]
                raise ConfigError(
                    f"item {batch.ids[at]}: pictures with draws={picture.draws!r} must have "
                    f"equal sizes, and {names[0]} has {each[0]} pixels, {names[1]} {each[1]}; "
                    "resize the files, or leave out draws"
                )

    def _deliver(
        self,
        batches: Iterator[_PlannedItems],
        streams: list[Iterator[Decoded]],
        errors: list[Exception],
    ) -> Iterator[Decoded]:
        for planned, ids, values, pictures in batches:
            made: list[Any] = [None] * len(self._items.pictures)
            for number, (part, stream) in enumerate(zip(self._parts, streams, strict=True)):
                decoded = _next(stream, pictures[number], ids, number)
                for at, place in enumerate(part.places):
                    made[place] = _take_place(decoded, part, at, len(planned))

            target = {ITEM: self._fill(values, made, self.job.device)}
            first = made[0] if isinstance(made[0], torch.Tensor) else next(iter(made[0].values()))
            yield Decoded(planned, (first,), target)

        # after what came before it is delivered
        if errors:
            raise errors[0]

    def close(self) -> None:
        for part in self._parts:
            part.backend.close()
        end_workers(self._iterator)
        self._loader = self._iterator = None


class _Tasks:
    """The sampler of the DataLoader: gives it tasks instead of indices."""

    def __init__(self) -> None:
        self.each: Iterator[ItemTask] = iter(())

    def __iter__(self) -> Iterator[ItemTask]:
        return self.each


def _until_error(
    batches: Iterator[_PlannedItems], errors: list[Exception]
) -> Iterator[_PlannedItems]:
    """The same batches; an error ends them and goes into `errors`.

    Raised here, it would meet libraries that take planned batches ahead (loader/work.py).
    """
    try:
        yield from batches
    except Exception as error:
        errors.append(error)


def _pictures_of(part: int, items: _PlannedItems) -> PlannedBatch:
    return items.pictures[part]


def _next(
    stream: Iterator[Decoded], pictures: PlannedBatch, ids: NDArray[np.int64], part: int
) -> Decoded:
    """The next batch of a part, which must be these pictures of the items `ids`."""
    try:
        decoded = next(stream)
    except StopIteration:
        raise RuntimeError("the backend of the pictures ended before the plan did") from None
    except ConfigError:  # says nothing about a file
        raise
    except Exception as error:
        raise PictureError(pictures, ids, part) from error
    if decoded.planned is not pictures:
        step = decoded.planned.step
        raise RuntimeError(f"the backend made the pictures of step {step} out of turn")
    return decoded


def _take_place(decoded: Decoded, part: PicturePart, at: int, count: int) -> Any:
    """The pictures of one place: (N, C, H, W), or of several views as `Batch.views`."""
    groups = [
        images.view(-1, len(part.places), count, *images.shape[1:])[:, at]
        for images in decoded.groups
    ]
    names = part.transform.view_names
    if not names:
        return groups[0][0]
    return {name: group.transpose(0, 1) for name, group in zip(names, groups, strict=True)}


def fill_values(values: Any, pictures: list[Any], device: torch.device) -> Any:
    """The collated items with pictures in their slots, on this device."""

    def fill(value: Any) -> Any:
        if isinstance(value, PictureSlot):
            return pictures[value.number]
        if isinstance(value, torch.Tensor):
            return value.to(device, non_blocking=True)
        return value

    return rebuild(fill, values)


def _as_it_is(value: Any) -> Any:
    return value
