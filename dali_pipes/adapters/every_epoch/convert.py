"""Makes a loader of a live DataLoader whose samples are random: `convert_every_epoch`.

order → trace of some items → transforms → a loader of items (adapters/items) whose reader runs
the data set → the old collate function
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.utils.data import default_collate

from dali_pipes.adapters.every_epoch.check import compare_all_draws, compare_items
from dali_pipes.adapters.every_epoch.reader import RecordedReader
from dali_pipes.adapters.every_epoch.trace import ItemTrace, trace_items
from dali_pipes.adapters.from_torch.batches import SamplerOrder, read_order, sampler_of
from dali_pipes.adapters.from_torch.chains import Chain
from dali_pipes.adapters.from_torch.conversion import (
    count_samples,
    forks,
    list_steps,
    record_steps,
    refuse_other_loaders,
)
from dali_pipes.adapters.from_torch.later import HeldState
from dali_pipes.adapters.from_torch.output import Output, OutputPicture
from dali_pipes.adapters.from_torch.pictures import refuse_pil, refuse_rounding
from dali_pipes.adapters.from_torch.reading import (
    Reading,
    Step,
    is_of,
    refuse_unless,
)
from dali_pipes.adapters.from_torch.recorder import Recorder
from dali_pipes.adapters.from_torch.recording.containers import Containers
from dali_pipes.adapters.from_torch.steps import read_steps
from dali_pipes.adapters.from_torch.structure import PictureSlot, leaves, slots_in
from dali_pipes.adapters.items.backend import ItemWorkers
from dali_pipes.adapters.items.headers import header_of
from dali_pipes.adapters.items.load import ItemLoader, build_items, refuse_backend
from dali_pipes.adapters.items.transform import ItemPicture
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.data.loose_images import LooseImages
from dali_pipes.loader.batch import Batch
from dali_pipes.plan.plan import Rank
from dali_pipes.plan.transforms import Transform


class RecordedBatch(NamedTuple):
    """A batch of items, before the old collate function joins them.

    Attributes:
        skeletons: what each item is, with a `PictureSlot` in place of each picture.
        pictures: those of each place, (N, C, H, W).
        device: theirs.
    """

    skeletons: list[Any]
    pictures: list[torch.Tensor]
    device: torch.device


@dataclass(frozen=True, slots=True)
class EveryEpochOutput:
    """Makes the old loader's batches."""

    output: Output

    def __call__(self, batch: RecordedBatch, seed: tuple[int, ...]) -> Any:
        count = len(batch.skeletons)
        ids = torch.arange(count, dtype=torch.int64, device="cpu")
        # each picture is a view of its own, under the number of its place
        views = {str(place): each[:, None] for place, each in enumerate(batch.pictures)}
        made = Batch(batch.pictures[0], ids, ids, views=views)
        first = slots_in(batch.skeletons[0])
        is_alike = all(slots_in(each) == first for each in batch.skeletons)
        return replace(self.output, skeletons=batch.skeletons, is_alike=is_alike)(made, seed)


@dataclass(frozen=True, slots=True)
class EveryEpochConversion:
    """What a `ConvertedLoader` must know of the old loader: as of a `Conversion`."""

    dataset: Any
    order: SamplerOrder
    output: EveryEpochOutput
    steps: list[Step]
    facts: HeldState


class NoPlaces(Containers):
    """Bytes are handed over as they are, and not looked for in files."""

    def find(self, data: bytes, read: Sequence[str]) -> None:
        return None


def convert_every_epoch(
    dataloader: Any,
    config: LoaderConfig,
    *,
    check: bool,
    rank: Rank | None,
    seed: int | None,
    device: Any,
    on_bad_sample: str,
    allow_state: bool,
) -> tuple[ItemLoader, EveryEpochConversion, str]:
    """Returns the new loader, what is known of the old one, and in words how they were compared.

    Args: as for `from_torch`.

    Raises:
        NotConvertibleError: a part cannot be carried over.
    """
    _refuse_unfit(dataloader)
    refuse_backend(config)
    dataset, collate = dataloader.dataset, dataloader.collate_fn
    order = read_order(dataloader, count_samples(dataset), rank)
    indices = _arrange(dataset, order)

    # a worker of its own tells a worker's number of 0 from that of none
    workers = dataloader.num_workers and max(2, dataloader.num_workers)
    recorder, trace = record_steps(
        Recorder(dataset, workers, containers=NoPlaces()),
        lambda recorder: trace_items(recorder, indices, read, allow_state),
    )
    seen = trace.seen
    refuse_pil(seen, None if collate is default_collate else collate)
    readings = read(seen.used)
    exif = exif_of(trace)
    transforms = [replace(reading.built(lambda: None), exif=exif) for reading in readings]
    pictures = list_pictures(trace, transforms)
    output = EveryEpochOutput(output_of(trace, transforms, collate))
    reader = RecordedReader(recorder, trace, dataset, indices, pictures)

    def build(workers: ItemWorkers, **options: Any) -> ItemLoader:
        return build_items(
            dataset,
            len(indices),
            config,
            pictures,
            images_of_first(trace),
            **options,
            seed=order.seed if seed is None else seed,
            workers=workers,
            max_bad_fraction=0.01,
            device=device,
            reader=reader,
            fill=fill,
        )

    found = "not checked"
    if check:
        few = {"on_bad_sample": "raise", "rank": Rank(), "last_batch": "partial"}
        first = build(ItemWorkers(0, 2), **few, shuffle=False, batch_size=min(len(indices), 8))
        with first:
            found = compare_items(first, reader, output, dataset, indices, collate)
        live = [(reading.geometry, reading.whole) for reading in readings]
        found += compare_all_draws(trace, transforms, live)

    loader = build(
        ItemWorkers(
            dataloader.num_workers,
            dataloader.prefetch_factor or 2,
            dataloader.multiprocessing_context,
        ),
        batch_size=order.batch_size,
        rank=order.rank,
        sampling=order.sampling,
        last_batch=order.last_batch,
        on_bad_sample=on_bad_sample,
    )
    name = getattr(collate, "__qualname__", type(collate).__name__)
    conversion = EveryEpochConversion(
        dataset,
        order,
        output,
        list_steps(readings, [], order, name, dataloader),
        HeldState(dataset, sampler_of(dataloader), seen.moving),
    )
    return loader, conversion, found


def fill(skeletons: Any, pictures: list[Any], device: torch.device) -> RecordedBatch:
    # what a worker has run comes as bytes
    known = pickle.loads(skeletons) if isinstance(skeletons, bytes) else skeletons
    return RecordedBatch(known, pictures, device)


def _refuse_unfit(loader: Any) -> None:
    refuse_unless(
        not is_of(loader, "timm.data", "PrefetchLoader"),
        "PrefetchLoader",
        "with every_epoch=True nothing is normalized after the collate function",
        "pass on its .loader, and normalize in the transform",
    )
    refuse_other_loaders(loader)
    refuse_unless(
        not loader.num_workers or forks(loader),
        "a DataLoader whose workers are not forked",
        "what from_torch has seen of the data set cannot be sent to them",
        "use multiprocessing_context='fork', or num_workers=0",
    )


def _arrange(dataset: Any, order: SamplerOrder) -> Sequence[Any]:
    """The index in the data set of each item of the plan."""
    indices = range(count_samples(dataset)) if order.indices is None else order.indices
    places = order.arranged(len(indices))
    return indices if places is None else [indices[at] for at in places.tolist()]


def read(chains: list[Chain]) -> list[Reading]:
    return [read_steps(chain.steps) for chain in chains]


def exif_of(trace: ItemTrace) -> str:
    """Whether pictures are turned as their EXIF tag says: files come that nobody has seen yet."""
    refuse_unless(
        trace.seen.exif,
        trace.seen.name,
        "its transforms fail for a made-up picture with an EXIF tag, so nothing shows whether "
        "pictures are turned as the tag says",
        "resize before what needs larger pictures, or others",
    )
    return trace.seen.exif


def list_pictures(trace: ItemTrace, transforms: list[Transform]) -> list[ItemPicture]:
    """The pictures of an item, in the order of their slots; a stack has several in one slot."""
    where = {
        leaf.number: path
        for path, leaf in leaves(trace.seen.skeleton)
        if isinstance(leaf, PictureSlot)
    }
    places = [where[at] for at, (_, chains) in enumerate(trace.seen.slots) for _ in chains]
    return [
        ItemPicture(place, transform, draws)
        for place, transform, draws in zip(places, transforms, trace.draws, strict=True)
    ]


def output_of(trace: ItemTrace, transforms: list[Transform], collate: Any) -> Output:
    """Makes the old loader's batches out of pictures and skeletons."""
    numbers, slots = iter(range(len(transforms))), []
    for shown, chains in trace.seen.slots:
        own = [next(numbers) for _ in chains]
        dtype = getattr(torch, shown.dtype.removeprefix("torch."))
        refuse_rounding(trace.seen.name, dtype, transforms[own[0]])
        slots.append(
            OutputPicture(
                tuple((str(number), 0) for number in own),
                shown.is_stacked,
                shown.matches[0].layout == "HWC",
                shown.kind,
                dtype,
            )
        )
    return Output(tuple(slots), (), None if collate is default_collate else collate)


def images_of_first(trace: ItemTrace) -> LooseImages:
    """The files of the first item's pictures."""
    headers = [header_of(source) for source in trace.opened]
    return LooseImages.of(
        [each if isinstance(each, str) else f"{len(each):,} bytes" for each in trace.opened],
        [each if isinstance(each, bytes) else None for each in trace.opened],
        headers,
    )
