"""load(): makes a loader of a data set whose `__getitem__` returns `Encoded` pictures."""

import pickle
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import DataLoader, IterableDataset

from dali_pipes.adapters.items.backend import ITEM, ItemsBackend, ItemWorkers, fill_values
from dali_pipes.adapters.items.bad_items import BadItems
from dali_pipes.adapters.items.run import ItemDescriber, ItemReader, ItemRunner, ItemTask
from dali_pipes.adapters.items.transform import ItemPicture, ItemTransform
from dali_pipes.backends.backend import Backend, Job
from dali_pipes.backends.config import MAX_COUNT, LoaderConfig
from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.backends.needs import refuse_needs
from dali_pipes.backends.registry import load_backend
from dali_pipes.backends.torch.workers import end_workers, start_workers
from dali_pipes.checks import LARGEST_SEED, check_choice
from dali_pipes.data.loose_images import NO_IMAGES, LooseImages
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.table.schema import SCHEMA
from dali_pipes.errors import ConfigError
from dali_pipes.loader.build import choose_backend
from dali_pipes.loader.fingerprint import fingerprint
from dali_pipes.loader.loader import Loader
from dali_pipes.loader.mistakes import DATALOADER_OPTIONS, refuse_other_kinds
from dali_pipes.loader.ranks import choose_rank, compare_ranks
from dali_pipes.options import check_arguments
from dali_pipes.plan.plan import LARGEST_BATCH, Plan, Rank
from dali_pipes.plan.sampling import Sampling, choose_sampling
from dali_pipes.plan.transforms import EvalTransform, Transform
from dali_pipes.system.modes import in_own_modes

# what a DataLoader takes, and what a loader of items has instead
_ELSEWHERE = DATALOADER_OPTIONS | {
    "sampler": "shuffle=…; items are drawn without weights",
    "sampling": "shuffle=…; items are drawn without weights",
    "collate_fn": "nothing: items are joined as default_collate does; do what is left in the loop",
    "batch_transform": "nothing: change batches in the loop",
    "worker_init_fn": "nothing: generators are seeded before each item; open files when they are "
    "first needed",
}


class ItemLoader(Loader):
    """A loader that yields what default_collate makes of items, with pictures in place of their
    `Encoded`: (N, C, H, W), or of a transform with several views a dict of (N, V, C, H, W) by name.
    """

    def __init__(self, dataset: Any, *arguments: Any):
        self._dataset = dataset
        super().__init__(*arguments)

    def _next_batch(self, epoch: int, step: int) -> Any:
        return super()._next_batch(epoch, step).targets[ITEM]

    @property
    def dataset(self) -> Any:
        """The data set whose items it loads."""
        return self._dataset

    def __repr__(self) -> str:
        return f"Item{super().__repr__()}".replace(" images, ", " items, ")


@check_arguments(
    _ELSEWHERE,
    batch_size=(1, LARGEST_BATCH),
    seed=(0, LARGEST_SEED),
    num_workers=(0, MAX_COUNT),
    prefetch_factor=(1, MAX_COUNT),
    max_bad_fraction=(0, 1),
)
@in_own_modes
def load(
    dataset: Any,
    config: LoaderConfig | None = None,
    *,
    transform: Transform | None = None,
    batch_size: int,
    seed: int = 0,
    rank: Rank | None = None,
    shuffle: bool | None = None,
    last_batch: str | None = None,
    num_workers: int = 0,
    prefetch_factor: int = 2,
    on_bad_sample: str = "raise",
    max_bad_fraction: float = 0.01,
    device: str | torch.device = "auto",
) -> ItemLoader:
    """Makes a loader of a data set whose `__getitem__` runs for every item of every epoch, and
    returns an `Encoded` wherever a picture is to be.

    An item is a structure of tuples, lists, dicts, named tuples and dataclasses, the same for all
    items. Its other values are joined as PyTorch's default_collate does. Before each item `random`,
    NumPy's global generator and PyTorch's are seeded by (seed, epoch, id), and the pictures' random
    numbers come from the plan, so an epoch is the same on every backend, with any number of ranks
    and workers, and after a resume. What a data set keeps from one item to the next, or draws from
    a generator of its own, cannot be the same again (docs/items.md).

    Args:
        dataset: with `__getitem__` and `__len__`. Files need not be known in advance.
        config: the backend that decodes, by default DALI, on the GPU if there is one; or
            TorchConfig().
        transform: of each Encoded that has none of its own.
        batch_size, seed, rank, last_batch, device: as for `build_loader`.
        shuffle: a new order each epoch; by default for training transforms only.
        num_workers: processes that run items; 0: this process does. They make no pixels: how many
            cores decode is an option of the config.
        prefetch_factor: batches of items in flight per worker.
        on_bad_sample: "raise" stops at a picture that cannot be used and names its file;
            "substitute" replaces the whole item by the next one of the data set, and lists the file
            in `bad_samples`.
        max_bad_fraction: how many files may be bad, as a share of the items.

    Raises:
        ConfigError: options cannot work, or items have no Encoded.
    """
    count = _check_dataset(dataset)
    config = DaliConfig() if config is None else config
    refuse_backend(config)
    refuse_other_kinds(rank=rank)
    if transform is not None:
        refuse_other_kinds(transform=transform)
    # own copies: what the caller sets later has no effect; replace() checks what was set until now
    config = replace(deepcopy(config))
    transform = None if transform is None else replace(deepcopy(transform))
    check_choice("on_bad_sample", on_bad_sample, ("raise", "substitute"))
    check_choice("last_batch", last_batch, (None, "partial", "drop", "pad", "even"))

    workers = ItemWorkers(num_workers, prefetch_factor)
    pictures, form, images = _describe(dataset, workers, seed)
    return build_items(
        dataset,
        count,
        config,
        pictures,
        images,
        transform=transform,
        form=form,
        batch_size=batch_size,
        seed=seed,
        rank=choose_rank(rank),
        shuffle=shuffle,
        last_batch=last_batch,
        workers=workers,
        on_bad_sample=on_bad_sample,
        max_bad_fraction=max_bad_fraction,
        device=device,
    )


def build_items(
    dataset: Any,
    count: int,
    config: LoaderConfig,
    pictures: list[ItemPicture],
    images: LooseImages,
    *,
    transform: Transform | None = None,
    form: Any = None,
    batch_size: int,
    seed: int,
    rank: Rank,
    sampling: Sampling | None = None,
    shuffle: bool | None = None,
    last_batch: str | None,
    workers: ItemWorkers,
    on_bad_sample: str,
    max_bad_fraction: float,
    device: str | torch.device,
    reader: ItemReader | None = None,
    fill: Callable[[Any, list[Any], torch.device], Any] = fill_values,
) -> ItemLoader:
    """Makes a loader of items whose pictures are known.

    Args:
        count: of the items.
        pictures, form: of every item, as of the first one; None: forms are not compared.
        images: the files of the pictures of the first item.
        reader: runs an item; None: takes the `Encoded` out of it.
        fill: puts the pictures of a batch into its values.
    """
    items = ItemTransform.of(pictures, transform)
    manifest = manifest_of(dataset, count)
    plan = Plan(
        manifest,
        items,
        batch_size,
        seed=seed,
        sampling=choose_sampling(sampling, shuffle, manifest, items.training),
        rank=rank,
        last_batch=last_batch or ("drop" if items.training else "partial"),
    )
    bad = BadItems(plan, items, on_bad_sample == "substitute", max_bad_fraction)
    most_bad = max_bad_fraction * count if bad.substitutes else None
    runner = ItemRunner(
        dataset, count, seed, items.pictures, form, transform, most_bad, reader or ItemReader()
    )

    transforms = [each.transform or cast(Transform, transform) for each in pictures]
    backend, config, target = choose_backend(config, device, *transforms)

    def build_part(part: Transform, size: int) -> Backend:
        return backend(Job(part, images, size, target), config)

    def build_backend(items: Transform) -> Backend:
        return ItemsBackend(
            Job(items, manifest, batch_size, target),
            config,
            runner=runner,
            workers=workers,
            bad=bad,
            draw_numbers=plan.draw_numbers,
            build_part=build_part,
            fill=fill,
        )

    compare_ranks(plan, fingerprint(plan, items, None))
    return ItemLoader(dataset, plan, items, build_backend, bad)


def _check_dataset(dataset: Any) -> int:
    """The number of items."""
    if isinstance(dataset, DataLoader):
        raise ConfigError("load takes a data set, and no DataLoader; pass on its .dataset")
    if isinstance(dataset, Manifest):
        raise ConfigError(
            "load takes a data set with a __getitem__ of its own; build_loader loads a Manifest"
        )
    kind = dataset if isinstance(dataset, type) else type(dataset)
    if isinstance(dataset, type):
        raise ConfigError(f"load takes a data set; write {kind.__name__}(…)")
    if isinstance(dataset, IterableDataset) or not hasattr(kind, "__getitem__"):
        raise ConfigError(
            f"{kind.__name__} has no items by number, so which ones there are, and in which order, "
            "is in its code, and no plan can resume it or divide it among ranks; give it a "
            "__getitem__ and a __len__; from_torch(…, every_epoch=True) takes a DataLoader over an "
            "IterableDataset"
        )
    try:
        count = len(dataset)
    except TypeError:
        raise ConfigError(f"{kind.__name__} has no length; give it a __len__") from None
    if not count:
        raise ConfigError(f"{kind.__name__} has no items")
    return count


def refuse_backend(config: Any) -> None:
    """Raises a ConfigError for a config that cannot load items, before one is run."""
    refuse_other_kinds(config=config)
    refuse_needs(EvalTransform(), NO_IMAGES, load_backend(config).makes, type(config))


def _describe(
    dataset: Any, workers: ItemWorkers, seed: int
) -> tuple[list[ItemPicture], Any, LooseImages]:
    """The pictures of the first item, its form, and the files of the pictures.

    A worker runs it if there are any: a data set may open files that no process shares.
    """
    task = ItemTask(0, np.zeros(1, np.int64))
    one = replace(workers, num_workers=min(workers.num_workers, 1))
    iterator = start_workers(one.dataloader(ItemDescriber(dataset, seed), [task]))
    try:
        described = next(iterator)
    finally:
        end_workers(iterator)
    if isinstance(described, ConfigError):
        raise described
    pictures, form, images = described
    # own copies, as of the transform that is given to load
    pictures = pickle.loads(pictures) if isinstance(pictures, bytes) else deepcopy(pictures)
    return (
        [
            replace(each, transform=replace(each.transform)) if each.transform else each
            for each in pictures
        ],
        form,
        images,
    )


def manifest_of(dataset: Any, count: int) -> Manifest:
    """A manifest with a row for each item, for the order of the plan; it has no images."""
    same: dict[str, Any] = {"label": 0, "height": 1, "width": 1, "orientation": 1}
    same |= {"bytes": 0, "mtime_ns": 0, "offset": 0, "file_bytes": 0, "decoded": False}
    same |= {"format": "", "jpeg": "", "member": b"", "problem": None}
    names = pa.array(map(str, range(count))).cast(SCHEMA.field("path").type)
    columns = [
        names if field.name == "path" else pa.repeat(pa.scalar(same[field.name], field.type), count)
        for field in SCHEMA
    ]
    # the class names what the rows are: a state of another data set is refused by it
    kind = type(dataset).__qualname__
    return Manifest(kind, [kind], pa.Table.from_arrays(columns, schema=SCHEMA))
