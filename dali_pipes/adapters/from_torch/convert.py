"""from_torch(): makes a loader of a live DataLoader, or names the part that cannot be converted.

`Conversion.of` reads the parts: samples, order, transform, collate function. `from_torch` compares
the result with the old loader, builds the new one from it, and returns a `ConvertedLoader`, which
has the interface of a DataLoader.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch.utils.data import DataLoader, IterableDataset

from dali_pipes.adapters.from_torch.batches import SamplerOrder, batch_transform_of, read_order
from dali_pipes.adapters.from_torch.check import compare_draws, compare_pixels, random_states_kept
from dali_pipes.adapters.from_torch.reading import Reading, Step, is_of, refuse_unless
from dali_pipes.adapters.from_torch.samples import read_samples
from dali_pipes.adapters.from_torch.steps import read, read_prefetched
from dali_pipes.backends.base import BatchTransform
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.checks import LARGEST_SEED
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.loader.build import build_loader
from dali_pipes.loader.loader import Loader
from dali_pipes.loader.mistakes import RefusesMisuse, accept_shard
from dali_pipes.options import check_arguments
from dali_pipes.plan.flips import check_flips
from dali_pipes.plan.plan import Rank
from dali_pipes.plan.transforms import Transform


@accept_shard
@check_arguments({"shard": "rank=Rank(index, count)"}, seed=(0, LARGEST_SEED))
def from_torch(
    dataloader: Any,
    config: LoaderConfig | None = None,
    *,
    check: bool = True,
    rank: Rank | None = None,
    seed: int | None = None,
    device: str | torch.device = "auto",
    on_bad_sample: str = "raise",
    cache_dir: str | Path | None = None,
) -> "ConvertedLoader":
    """Returns a loader that yields `[images, labels]` as `dataloader` does.

    It has the same samples, batch size, rank and last batch, and the same distributions of order
    and transform. The objects of the DataLoader are read, and left as they are, as are all random
    states. What cannot be carried over is refused by name; nothing is left out or changed silently.
    docs/from_torch.md lists what can be carried over.

    Args:
        dataloader: a DataLoader over an ImageFolder, DatasetFolder, ImageNet or timm's
            ImageDataset, also over a Subset or ConcatDataset of them; or timm's PrefetchLoader
            around one.
        config: the backend; by default DALI, on the GPU if there is one.
        check: compare 64 samples with the old loader: pixels and labels of an evaluation,
            distributions of area, aspect ratio, position and flips of a training transform.
        rank: this process's part, for a sampler that knows no ranks; a DistributedSampler's own
            otherwise.
        seed: by default that of the DistributedSampler, of the generator, or of torch; 0 with
            `rank`.
        device, on_bad_sample: as for `build_loader`.
        cache_dir: folder in which the scan of these files is kept; by default each call reads the
            headers of all images.

    Raises:
        NotConvertibleError: a part cannot be carried over; the text names it. It is a ConfigError.
    """
    conversion = Conversion.of(dataloader, cache_dir, rank)
    config, order = config or DaliConfig(), conversion.order
    # timm's PrefetchLoader has a device, to which it moves its batches
    target = getattr(dataloader, "device", device) if device == "auto" else device
    found = conversion.compared(config, target) if check else "not checked"

    loader = build_loader(
        conversion.manifest,
        config,
        transform=conversion.transform,
        batch_size=order.batch_size,
        seed=order.seed if seed is None else seed,
        rank=order.rank,
        sampling=order.sampling,
        last_batch=order.last_batch,
        on_bad_sample=on_bad_sample,
        device=target,
        batch_transform=conversion.batch_transform,
    )
    return ConvertedLoader(loader, conversion, found)


def transform_from_torch(transform: Any, **options: Any) -> Transform:
    """Converts a transform of torchvision or timm, such as `timm.data.create_transform(…)` or
    `Weights.….transforms()`.

    Args:
        options: of the new transform, instead of what was read: dtype, memory_format, exif, ….

    Raises:
        NotConvertibleError: a step cannot be carried over. It is a ConfigError.
    """
    if isinstance(transform, type):
        raise ConfigError(
            f"transform is the class {transform.__name__}; write {transform.__name__}(…)"
        )
    if isinstance(transform, Transform):
        raise ConfigError(
            f"transform is a {type(transform).__name__} of dali_pipes already; pass it on to "
            "build_loader"
        )
    return replace(read(transform).built(lambda: None), **options)


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was read of a DataLoader, as arguments of `build_loader`.

    Attributes:
        dataset: the old data set.
        dtype: of the data set's images; a PrefetchLoader converts them later.
        live: the old steps that move pixels.
        steps: all old steps, and what carries each of them out.
    """

    dataset: Any
    dtype: torch.dtype
    manifest: Manifest
    transform: Transform
    order: SamplerOrder
    batch_transform: BatchTransform | None
    live: list[Any]
    steps: list[Step]

    @classmethod
    def of(
        cls, dataloader: Any, cache_dir: str | Path | None = None, rank: Rank | None = None
    ) -> "Conversion":
        """Reads all parts of a DataLoader.

        Raises:
            NotConvertibleError: a part cannot be carried over.
        """
        prefetch = dataloader if is_of(dataloader, "timm.data", "PrefetchLoader") else None
        loader = prefetch.loader if prefetch else dataloader
        plain = isinstance(loader, DataLoader) and type(loader).__iter__ is DataLoader.__iter__
        name = (
            f"the loader {loader.__name__ if isinstance(loader, type) else type(loader).__name__}"
        )
        plain = plain or is_of(loader, "timm.data", "MultiEpochsDataLoader")
        refuse_unless(plain, name, "it is no plain torch DataLoader", "pass on a DataLoader")

        streams, instead = (
            isinstance(loader.dataset, IterableDataset),
            "use build_loader with a folder, table or shards",
        )
        refuse_unless(not streams, "an IterableDataset", "its order is in its code", instead)

        samples = read_samples(loader.dataset)
        order = read_order(loader, len(samples.paths), rank)
        readings = [_read(part, prefetch) for part in samples.parts]
        # a collate function that mixes is tried, and draws random numbers
        with random_states_kept():
            mix, mixed = batch_transform_of(
                loader.collate_fn, order.batch_size, prefetch is not None
            )

        # late, since it reads the headers of all images
        manifest = samples.manifest(cache_dir)
        transform = _one_transform(readings, manifest)
        transform.check(manifest)
        check_flips(manifest, transform)

        places = order.arranged(len(manifest))
        arranged = manifest if places is None else manifest.subset(places)
        last = f"batches of {order.batch_size}, last_batch={order.last_batch}"
        steps = [
            *readings[0].steps,
            Step(f"sampler: {order.text}", last),
            Step(f"collate: {mixed}", "the same"),
        ]
        if loader.worker_init_fn:
            steps.append(
                Step(
                    "worker_init_fn",
                    "nothing: it is not called, and no random state is in a worker",
                )
            )

        dtype = torch.uint8 if prefetch or transform.dtype == "uint8" else torch.float32
        return cls(
            loader.dataset, dtype, arranged, transform, order, mix, readings[0].geometry, steps
        )

    def compared(self, config: LoaderConfig, device: Any) -> str:
        """Compares with the old loader, and returns what was found, in words."""
        if self.transform.training:
            return compare_draws(self.live, self.manifest, self.transform, self.order.seed)
        return compare_pixels(
            self.dataset, self.dtype, self.manifest, config, self.transform, device
        )


def _read(part: Any, prefetch: Any) -> Reading:
    """Reads a data set's transform, and what timm's PrefetchLoader does after it."""
    transform = getattr(part, "transform", None)
    given = transform is not None
    refuse_unless(
        given,
        "a data set without transform",
        "PIL images make no batch",
        "end a transform with ToTensor()",
    )
    return read_prefetched(transform, prefetch) if prefetch else read(transform)


def _one_transform(readings: list[Reading], manifest: Manifest) -> Transform:
    def uniform() -> tuple[int, int] | None:
        sizes = {tuple(size) for size in manifest.sizes.tolist()}
        return sizes.pop() if len(sizes) == 1 else None

    first, *others = (reading.built(uniform) for reading in readings)
    alike = all(other == first for other in others)
    refuse_unless(
        alike,
        "ConcatDataset",
        "its parts have different transforms",
        "give them one, or load each alone",
    )
    return first


class ConvertedLoader(RefusesMisuse):
    """A loader with the interface of a DataLoader: yields lists `[images, labels]`, one epoch for
    each `iter()`.

    Attributes:
        loader: from `build_loader`; its batches have ids as well.
        dataset: the old data set.
        batch_size: of this process.
        sampler: `sampler.set_epoch(epoch)` chooses the epoch of the next `iter()`, and
            `len(sampler)` is this process's samples.
    """

    _set_once = ("loader", "dataset", "batch_size", "sampler")

    def __init__(self, loader: Loader, conversion: Conversion, found: str):
        self.loader, self.dataset, self.batch_size = (
            loader,
            conversion.dataset,
            conversion.order.batch_size,
        )
        self.sampler = _EpochSampler(loader)
        self._steps, self._found = conversion.steps, found

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        return ([batch.images, batch.labels] for batch in self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def explain(self) -> str:
        """Says how images are decoded, what carries out each old step, and what the comparison with
        the old loader found.
        """
        lines = [f"  {step.text}\n    → {step.by}" for step in self._steps]
        return "\n".join(
            [self.loader.explain(), *lines, f"compared with the old loader: {self._found}"]
        )

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)

    def close(self) -> None:
        self.loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ConvertedLoader of {self.loader!r}"

    def __getattr__(self, name: str) -> Any:
        instead = "its options are those of .loader, and of the config it was made with"
        raise AttributeError(
            f"{name}: this loader took a DataLoader's place, but has no {name}; {instead}"
        )


class _EpochSampler:
    """The part of a sampler that training programs use: its length and `set_epoch`."""

    def __init__(self, loader: Loader):
        self._loader = loader

    def __len__(self) -> int:
        return self._loader.plan.rank_samples

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next `iter()`."""
        self._loader.set_epoch(epoch)
