"""from_torch(): makes a loader of a live DataLoader, or names the part that cannot be converted.

`Conversion.of` finds out what the parts do: samples, order, transform, collate function.
`from_torch` compares the result with the old loader, builds the new one from it, and returns a
`ConvertedLoader`, which has the interface of a DataLoader.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset

from dali_pipes.adapters.from_torch.batches import (
    SamplerOrder,
    batch_transform_of,
    read_order,
    sampler_of,
)
from dali_pipes.adapters.from_torch.chains import Chain
from dali_pipes.adapters.from_torch.check.batches import compare_batches
from dali_pipes.adapters.from_torch.check.common import random_states_kept
from dali_pipes.adapters.from_torch.check.draws import compare_draws
from dali_pipes.adapters.from_torch.data_state import hash_of
from dali_pipes.adapters.from_torch.label_file import LabelFile
from dali_pipes.adapters.from_torch.label_pass import pass_over
from dali_pipes.adapters.from_torch.later import HeldState
from dali_pipes.adapters.from_torch.masks import (
    MaskReading,
    OutputMask,
    read_masks,
    refuse_other_modes,
)
from dali_pipes.adapters.from_torch.output import Output, OutputPicture
from dali_pipes.adapters.from_torch.readers.timm import note_prefetch_loader
from dali_pipes.adapters.from_torch.reading import (
    NotConvertibleError,
    Reading,
    Step,
    is_of,
    place_of,
    refuse_unless,
)
from dali_pipes.adapters.from_torch.recorder import Recorder, Trace
from dali_pipes.adapters.from_torch.recording.keys import freeze
from dali_pipes.adapters.from_torch.recording.made_up import name_traits, traits_of
from dali_pipes.adapters.from_torch.samples import (
    DataSetSamples,
    are_pairs,
    labels_in,
    listed_samples,
    skeletons_of,
)
from dali_pipes.adapters.from_torch.steps import read, read_steps
from dali_pipes.adapters.from_torch.trace import trace, visit_more
from dali_pipes.adapters.from_torch.views import join_views, view_places
from dali_pipes.backends.base import Batch, BatchTransform
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.checks import LARGEST_SEED
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.reader import Reader
from dali_pipes.errors import ConfigError
from dali_pipes.loader.build import build_loader
from dali_pipes.loader.loader import Loader
from dali_pipes.loader.mistakes import RefusesMisuse
from dali_pipes.options import check_arguments
from dali_pipes.plan.flips import check_flips
from dali_pipes.plan.plan import Rank, accept_shard
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.cpus import available_cpus


@accept_shard
@check_arguments(seed=(0, LARGEST_SEED))
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
    """Returns a loader that yields what `dataloader` yields.

    It has the same samples, batch size, rank and last batch, the same structure of batches, and the
    same distributions of order and transform. The data set is run for a few samples with true and
    with made-up pictures, and once more for all samples without decoding any, to see which files it
    opens and which transforms it calls. It is left as it was, as are all random states. What cannot
    be carried over is refused by name; nothing is left out or changed silently. docs/from_torch.md
    lists what can be carried over.

    Args:
        dataloader: a DataLoader whose data set opens one image file for each sample, or timm's
            PrefetchLoader around one.
        config: the backend; by default DALI, on the GPU if there is one.
        check: compare 64 samples with the old loader: pixels and labels of an evaluation,
            distributions of area, aspect ratio, position and flips of a training transform.
        rank: this process's part, for a sampler that knows no ranks; a DistributedSampler's own
            otherwise.
        seed: by default that of the DistributedSampler, of the generator, or of torch; 0 with
            `rank`.
        device, on_bad_sample: as for `build_loader`.
        cache_dir: folder in which the scan of these files is kept, and what the data set returned
            for each sample; by default each call reads the headers of all images and runs the data
            set for all samples. A call that is stopped goes on there the next time.

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
        options: options of the new transform that replace what was read: dtype, memory_format,
            exif, ….

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
    """What was seen of a DataLoader, as arguments of `build_loader`.

    Attributes:
        dataset: the old data set.
        indices: the index of each sample of `manifest` in the old data set.
        prefetched: whether timm's PrefetchLoader normalizes the images.
        collate: the old collate function.
        manifest: the files, in the order in which a plan must have them (`SamplerOrder.arranged`).
        transform: does what the old steps do; a ViewsTransform for several pictures of a file.
        views: one transform for each picture of a sample.
        output: makes the old loader's batches.
        batch_transform: mixes batches as the old collate function does; None: it mixes nothing.
        live: the old steps that move pixels, for each view; apart from them those before the crop.
        steps: all old steps, and what carries each of them out.
        facts: what the data set and its sampler held.
    """

    dataset: Any
    indices: Sequence[Any]
    prefetched: bool
    collate: Any
    manifest: Manifest
    transform: Transform
    views: list[Transform]
    order: SamplerOrder
    output: Output
    batch_transform: BatchTransform | None
    live: list[tuple[list[Any], list[Any]]]
    steps: list[Step]
    facts: HeldState

    @classmethod
    def of(
        cls, dataloader: Any, cache_dir: str | Path | None = None, rank: Rank | None = None
    ) -> "Conversion":
        """Finds out what all parts of a DataLoader do; what costs little comes first.

        Args:
            cache_dir, rank: as for `from_torch`.

        Raises:
            NotConvertibleError: a part cannot be carried over.
        """
        prefetch = dataloader if is_of(dataloader, "timm.data", "PrefetchLoader") else None
        loader = prefetch.loader if prefetch else dataloader
        _refuse_other_loaders(loader)
        dataset = loader.dataset

        # a library's data set with a list of its samples needs no pass over all of them
        order = read_order(loader, _count(dataset), rank)
        indices = range(_count(dataset)) if order.indices is None else order.indices
        listed = listed_samples(dataset)
        if listed:
            _refuse_other_transforms(listed.parts)
        since_ns = None if listed else time.time_ns()
        # a worker of its own tells a worker's number of 0 from that of none
        workers = loader.num_workers and max(2, loader.num_workers)
        read = partial(_read, prefetch=prefetch)
        recorder, seen = _trace_steps(dataset, workers, indices, order.batch_size, read)
        labels = None
        with recorder:
            if not listed:
                # what is learned of masks stays in this process, and is of all samples
                file = None if seen.masks else _label_file(cache_dir, dataset, indices, seen)
                processes = 1 if seen.masks else _processes(loader)
                labels = pass_over(recorder, seen, indices, processes, file)

        # PIL images may be in a sample beside other pictures, if the collate function leaves them
        # out; this is decided below
        if not seen.used:
            _refuse_pil(seen)
        masks = read_masks(seen)
        refuse_unless(
            not (masks and prefetch),
            "PrefetchLoader",
            "it takes no masks",
            "pass on the DataLoader without it",
        )
        samples = _select(listed, indices) if listed else _samples_of(seen, labels, masks)
        skeletons = labels.skeletons if labels else skeletons_of(seen.skeleton, samples)
        is_plain = len(seen.slots) == 1 and samples.labels is not None and are_pairs(skeletons)
        mix, mixed, own = _collate_of(loader.collate_fn, order, prefetch is not None, is_plain)
        if own is None:
            _refuse_pil(seen)

        # late, since it reads the headers of all images
        manifest = samples.manifest(cache_dir, since_ns)
        _refuse_modes(seen, manifest)
        if masks:
            refuse_other_modes(seen.name, list(map(str, samples.masks)), masks.mode)

        # code that treats large or small files in another way shows itself with the extremes
        with recorder:
            extremes = _extremes(manifest)
            # a list of labels knows nothing of pictures
            known = [skeletons[at] if labels else None for at in extremes]
            visit_more(recorder, seen, [indices[at] for at in extremes], known)

        readings = _read(seen.used, prefetch)
        exif = _exif_of(seen, manifest)
        views = _transforms(readings, manifest, exif)
        transform = views[0] if len(views) == 1 else join_views(views)
        transform = replace(transform, **masks.options) if masks else transform
        functions = [function.title for view in views for function in view.augmenter.functions]
        refuse_unless(
            not (masks and functions),
            ", ".join(functions),
            "it may move pixels, and the mask would not go along",
            "use dp.Augment with geometry=, Manifest.from_masks and build_loader (docs/objects.md)",
        )
        transform.check(manifest)
        check_flips(manifest, transform)

        # what differs from a list of images and labels is made from the skeletons
        places = order.arranged(len(manifest))
        arranged = manifest if places is None else manifest.subset(places)
        pictures = _pictures(seen, views, prefetch is not None, masks)
        output = Output()
        if own or not (is_plain and (prefetch or _equals_ours(pictures[0], transform))):
            output = Output(pictures, skeletons, own)
        if any(shown.kind == "pil" for shown, _ in seen.slots):
            _try_output(output, seen, transform)

        # ids are rows of the arranged manifest from here on
        if places is not None:
            output = output.subset(places)
            indices = [indices[at] for at in places.tolist()]

        last = f"batches of {order.batch_size}, last_batch={order.last_batch}"
        steps = [
            *(step for reading in _different(readings) for step in reading.steps),
            *(masks.steps if masks else ()),
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
        live = [(reading.geometry, reading.whole) for reading in readings]
        return cls(
            dataset,
            indices,
            prefetch is not None,
            loader.collate_fn,
            arranged,
            transform,
            views,
            order,
            output,
            mix,
            live,
            steps,
            HeldState(dataset, sampler_of(loader), seen.moving),
        )

    @property
    def unmeasured(self) -> str:
        """What `from_torch` does after `build_loader`, and an A/B of loaders leaves out, in words;
        "": nothing.
        """
        if self.batch_transform:
            return "its mixing"
        if self.output.collate:
            return "its collate function"
        is_plain = self.output.skeletons is None
        return "" if is_plain else "what its samples hold besides the picture"

    def compared(self, config: LoaderConfig, device: Any) -> str:
        """Compares with the old loader, and returns what was found, in words."""
        found = compare_batches(self, config, device)
        if not self.transform.training:
            return found

        # views that are made by the same steps are compared once
        different = {
            repr(live): (live, view) for live, view in zip(self.live, self.views, strict=True)
        }
        draws = [
            compare_draws(live, self.manifest, view, self.order.seed, before)
            for (live, before), view in different.values()
        ]
        return "; ".join(draws)


def _read(chains: list[Chain], prefetch: Any) -> list[Reading]:
    """Reads the steps of each picture, and those of timm's PrefetchLoader, if there is one."""
    readings = []
    for chain in chains:
        readings.append(reading := read_steps(chain.steps))
        if prefetch:
            note_prefetch_loader(reading, prefetch)
    return readings


def _refuse_other_loaders(loader: Any) -> None:
    kind = loader if isinstance(loader, type) else type(loader)
    refuse_unless(
        isinstance(loader, DataLoader),
        f"the loader {kind.__name__}",
        "it is no torch DataLoader",
        "pass on a torch.utils.data.DataLoader",
    )
    # a subclass with such methods of its own may do anything to batches
    for method in ("__iter__", "_get_iterator"):
        own = getattr(kind, method) is not getattr(DataLoader, method) or method in vars(loader)
        refuse_unless(
            not own or is_of(loader, "timm.data", "MultiEpochsDataLoader"),
            f"the loader {place_of(kind, method)}",
            f"it has its own {method}, which may do anything to samples and batches",
            "make a torch.utils.data.DataLoader with the same arguments if it only loads them in "
            "its own way (1 line); move what it does to a batch into the collate function",
        )

    refuse_unless(
        not isinstance(loader.dataset, IterableDataset),
        f"an IterableDataset, {place_of(type(loader.dataset), '__iter__')},",
        "which samples there are, and in which order, is in its code",
        "use Manifest.open and build_loader, which read folders, tables, and shards such as those "
        "of WebDataset (docs/shards.md)",
    )


def _processes(loader: DataLoader[Any]) -> int:
    """How many processes may run the data set: more than one only if the user's own DataLoader
    runs it in forked workers, and prepares nothing in them.
    """
    # asked so that the program may still choose another method; the first one is the default
    context = loader.multiprocessing_context or multiprocessing
    method = context.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    is_forked = loader.num_workers > 0 and method == "fork"
    if not is_forked or loader.worker_init_fn or multiprocessing.current_process().daemon:
        return 1
    return min(loader.num_workers, available_cpus())


def _label_file(
    cache_dir: str | Path | None, dataset: Any, indices: Sequence[Any], seen: Trace
) -> LabelFile | None:
    """The file that keeps what a data set has for each sample; None: none does."""
    if cache_dir is None:
        return None
    # a data set that cannot be pickled, such as one with an open file, is not recognized again
    key = hash_of(dataset, indices, version("dali_pipes"))
    return None if key is None else LabelFile(cache_dir, key, seen.skeleton)


def _count(dataset: Any) -> int:
    try:
        return len(dataset)
    except TypeError:
        raise NotConvertibleError(
            f"the data set {type(dataset).__name__}", "it has no length", "give it a __len__"
        ) from None


def _refuse_other_transforms(parts: list[Any]) -> None:
    # listed samples are not run one by one, so a part with another transform would go unseen
    keys = {freeze(getattr(part, "transform", None)) for part in parts}
    refuse_unless(
        len(keys) < 2,
        "ConcatDataset",
        "its parts have different transforms",
        "give them one, or load each alone",
    )


def _select(listed: DataSetSamples, indices: Sequence[int]) -> DataSetSamples:
    # a range means all samples, in order
    if isinstance(indices, range) or listed.labels is None:
        return listed
    return DataSetSamples(
        [listed.paths[at] for at in indices], [listed.labels[at] for at in indices], listed.parts
    )


def _samples_of(seen: Trace, labels: Any, masks: MaskReading | None) -> DataSetSamples:
    """The file of each sample, which all of its pictures must have in common, its mask, and class
    numbers if there are any.
    """
    files = {chain.file for chain in seen.used}
    refuse_unless(
        len(files) == 1,
        seen.name,
        f"its samples have pictures of {len(files)} files",
        "make a data set for each of these files, convert a DataLoader of each with the same "
        f"seed=, and loop over zip of the {len(files)} loaders (about 8 lines)",
    )
    place = files.pop()
    return DataSetSamples(
        [each[place] for each in labels.files],
        labels_in(labels.skeletons),
        masks=[each[masks.file] for each in labels.files] if masks else [],
        # the mask is not turned, so it is one of the picture that the data set moves with it
        annotated="upright" if seen.exif == "apply" else "stored",
    )


def _collate_of(
    collate: Any, order: SamplerOrder, is_prefetched: bool, is_plain: bool
) -> tuple[BatchTransform | None, str, Any]:
    """Finds out what a collate function does.

    Returns:
        What mixes batches (None: nothing), the function in words, and the function itself if it
        has to be called as it is.
    """
    name = getattr(collate, "__qualname__", type(collate).__name__)

    # a collate function that mixes is tried, and draws random numbers
    with random_states_kept():
        try:
            mix, text = batch_transform_of(collate, order.batch_size, is_prefetched)
        except NotConvertibleError:
            # the PrefetchLoader normalizes after the collate function, our transform before it
            if is_prefetched:
                raise
            return None, f"{name}, as it is", collate

    refuse_unless(
        mix is None or is_plain,
        text,
        "it mixes images and labels, and the samples have more",
        "return an image and a class number",
    )
    return mix, text, None


def _try_output(output: Output, seen: Trace, transform: Transform) -> None:
    """Refuses a collate function that uses PIL images, which do not exist in our batches."""
    # two black images are enough: `Unused` raises an error as soon as it is used
    count = min(2, len(output.skeletons or ()))
    ids = torch.arange(count, dtype=torch.int64, device="cpu")
    images = torch.zeros((count, 3, *transform.shape), dtype=torch.float32, device="cpu")
    masks = torch.zeros((count, *transform.shape), dtype=torch.int64, device="cpu")
    try:
        output(Batch(images, ids, ids, {"mask": masks}))
    except Exception:  # any error of a function that we do not know
        _refuse_pil(seen)


def _refuse_pil(seen: Trace) -> None:
    """Refuses samples that have a PIL image in them."""
    for shown, chains in seen.slots:
        steps = [step for chain in chains for step in chain.steps]
        refuse_unless(
            shown.kind != "pil",
            "the transform" if steps else "a data set without transform",
            "it ends in PIL images" if steps else "PIL images make no batch",
            "end it with ToTensor(), or PILToTensor() for bytes"
            if steps
            else "end a transform with ToTensor()",
        )


def _refuse_modes(seen: Trace, manifest: Manifest) -> None:
    """Refuses files in modes that the data set does not convert to RGB."""
    if seen.modes is None:
        return

    # the manifest does not hold Pillow's modes, so each file is opened, and none is decoded
    reader = Reader()
    for sample in range(len(manifest)):
        place = manifest.extent(sample)
        file = BytesIO(reader.read(place).tobytes()) if place.member else place.file
        with Image.open(file) as image:
            others = traits_of(image) - set(seen.modes)
        refuse_unless(
            not others,
            seen.name,
            f"{place} has {name_traits(others)}, and it does not make of it what dali_pipes does, "
            'which is Image.open(path).convert("RGB")',
            "open images like that",
        )


_OF_RARE = 8  # samples of a kind of files that most data sets have few of


def _extremes(manifest: Manifest) -> list[int]:
    """Samples with the smallest and largest files, sides, areas and aspect ratios, and one with
    each format: rules for such ones show in them.
    """
    height, width = manifest.sizes.T.astype(float)
    table = manifest.samples
    quantities = [height, width, height * width, width / height, table["bytes"].to_numpy()]

    extremes = {int(at) for each in quantities for at in (each.argmin(), each.argmax())}
    # and one of the most frequent size, which a program may take for a special one
    _, first, count = np.unique(manifest.sizes, axis=0, return_index=True, return_counts=True)
    extremes.add(int(first[count.argmax()]))
    for name in ("format", "subsampling", "orientation"):
        values = table[name].to_numpy()
        extremes |= {int(np.flatnonzero(values == each)[0]) for each in set(values.tolist())}

    # files whose EXIF tag, or whose mode, a program may leave as it is for some of the samples; a
    # file that is no JPEG may be of any mode
    orientation, subsampling = (table[name].to_numpy() for name in ("orientation", "subsampling"))
    for rare in (orientation > 1, subsampling == "gray", subsampling == ""):
        if len(places := np.flatnonzero(rare)):
            spread = np.linspace(0, len(places) - 1, _OF_RARE).round().astype(int)
            extremes |= set(places[spread].tolist())
    return sorted(extremes)


def _exif_of(seen: Trace, manifest: Manifest) -> str:
    """Whether pictures are turned upright; "ignore" if none would be."""
    # without a file that has a tag both options do the same
    ids = np.arange(len(manifest))
    if seen.exif == "apply" and (manifest.take_orientations(ids) > 1).any():
        return "apply"
    return "ignore"


def _different(readings: list[Reading]) -> list[Reading]:
    """Each reading once, if its steps are not those of another one."""
    texts: dict[Any, Reading] = {}
    for reading in readings:
        texts.setdefault(tuple((step.text, step.by) for step in reading.steps), reading)
    return list(texts.values())


def _transforms(readings: list[Reading], manifest: Manifest, exif: str) -> list[Transform]:
    """A transform for each reading."""

    def uniform() -> tuple[int, int] | None:
        sizes = {tuple(size) for size in manifest.sizes.tolist()}
        return sizes.pop() if len(sizes) == 1 else None

    return [replace(reading.built(uniform), exif=exif) for reading in readings]


def _trace_steps(
    dataset: Any, workers: int, indices: Any, batch_size: int, read: Callable[..., Any]
) -> tuple[Recorder, Trace]:
    """The trace of a data set, with steps of the user's own as code like any other, or, where that
    can't be carried over, as steps.
    """
    recorder = Recorder(dataset, workers)
    try:
        with recorder:
            return recorder, trace(recorder, indices, batch_size, read)
    except NotConvertibleError as error:
        if not recorder.own_steps.were_called:
            raise
        recorder = Recorder(dataset, workers, own_steps=True)
        try:
            with recorder:
                return recorder, trace(recorder, indices, batch_size, read)
        except NotConvertibleError as other:
            raise (other if other.steps else error) from None


def _pictures(
    seen: Trace, views: list[Transform], is_prefetched: bool, masks: MaskReading | None
) -> tuple[OutputPicture | OutputMask, ...]:
    """What goes into each slot of a sample."""
    # views are in the order of the chains, with PIL images and masks left out
    places = iter(zip(view_places(views), views, strict=True))
    pictures: list[OutputPicture | OutputMask] = []
    for slot, (shown, chains) in enumerate(seen.slots):
        if shown.is_mask and masks:
            pictures.append(masks.output(slot, shown))
            continue
        if shown.kind == "pil":
            pictures.append(OutputPicture((("", 0),), False, False, "pil", torch.float32))
            continue

        of_slot = [next(places) for _ in chains]
        dtype = getattr(torch, shown.dtype.removeprefix("torch."))
        made = torch.uint8 if of_slot[0][1].dtype == "uint8" else torch.float32
        size = (3, *of_slot[0][1].shape)

        # converted to integers, our floats would lose what is behind the point
        refuse_unless(
            is_prefetched or dtype.is_floating_point or not made.is_floating_point,
            seen.name,
            f"its images are {dtype} of {size}, and ours {made} of {size}",
            "end the transform with ToTensor()",
        )

        # below a PrefetchLoader the data set has uint8, and what comes out is as our transform's
        pictures.append(
            OutputPicture(
                tuple(place for place, _ in of_slot),
                shown.is_stacked,
                shown.matches[0].layout == "HWC",
                shown.kind,
                made if is_prefetched else dtype,
            )
        )
    return tuple(pictures)


def _equals_ours(picture: OutputPicture | OutputMask, transform: Transform) -> bool:
    """Whether the pictures of our batches are those of the old loader without any change."""
    if isinstance(picture, OutputMask):
        return False
    made = torch.uint8 if transform.dtype == "uint8" else torch.float32
    return not picture.is_hwc and not picture.is_stacked and picture.dtype == made


class ConvertedLoader(RefusesMisuse):
    """A loader with the interface of a DataLoader: yields what the old loader's collate function
    made, one epoch for each `iter()`.

    Attributes:
        loader: from `build_loader`; its batches have ids as well.
        dataset: the old data set.
        batch_size: images of a full batch of this process.
        sampler: `sampler.set_epoch(epoch)` chooses the epoch of the next `iter()`, and
            `len(sampler)` is this process's samples.
        batch_sampler: the same for batches.
    """

    _set_once = ("loader", "dataset", "batch_size", "sampler", "batch_sampler")

    def __init__(self, loader: Loader, conversion: Conversion, found: str):
        self.loader, self.dataset, self.batch_size = (
            loader,
            conversion.dataset,
            conversion.order.batch_size,
        )
        self.sampler, self.batch_sampler = _EpochSampler(loader), _EpochBatchSampler(loader)
        self._output = conversion.output
        self._steps, self._found = conversion.steps, found
        self._facts = conversion.facts

    def __iter__(self) -> Iterator[Any]:
        self._facts.refuse_changes()
        # begins the epoch at once, as the loader does
        return self._batches(iter(self.loader))

    def _batches(self, epoch: Any) -> Iterator[Any]:
        # seeded by the place, so that a resumed loader draws the same numbers for the same batch
        seed = self.loader.plan.seed
        for batch in epoch:
            yield self._output(batch, (seed, epoch.epoch, epoch.step))

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
        # only called for attributes that do not exist: a program may ask for those of a DataLoader
        instead = "its options are those of .loader, and of the config it was made with"
        raise AttributeError(
            f"{name}: this loader took a DataLoader's place, but has no {name}; {instead}"
        )


class _EpochSampler:
    """The part of a sampler that training programs use: its length and `set_epoch`."""

    _loader: Loader

    def __init__(self, loader: Loader):
        object.__setattr__(self, "_loader", loader)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"{name}: this sampler took that of a DataLoader's place, and has only set_epoch; "
            "change the DataLoader's own sampler, and call from_torch again"
        )

    def __len__(self) -> int:
        return self._loader.plan.rank_samples

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next `iter()`."""
        self._loader.set_epoch(epoch)


class _EpochBatchSampler(_EpochSampler):
    """The same part of a batch sampler."""

    def __len__(self) -> int:
        return len(self._loader)
