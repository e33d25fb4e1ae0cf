"""Finds out what the parts of a live DataLoader do: `Conversion.of`, or which of them dali_pipes
cannot carry out in the same way.

    order of samples → samples of a list, or a trace and a label pass → collate function
    → manifest → the largest and smallest samples → transform → output
"""

import dis
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

from torch.utils.data import DataLoader, IterableDataset, default_collate

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
from dali_pipes.adapters.from_torch.files import (
    find_extremes,
    find_varied,
    read_exif,
    refuse_modes,
)
from dali_pipes.adapters.from_torch.label_file import LabelFile
from dali_pipes.adapters.from_torch.label_pass import pass_over
from dali_pipes.adapters.from_torch.later import HeldState
from dali_pipes.adapters.from_torch.masks import (
    MaskReading,
    read_masks,
    refuse_other_modes,
)
from dali_pipes.adapters.from_torch.output import Output
from dali_pipes.adapters.from_torch.pairs import PairReading, read_pair, refuse_other_pairs
from dali_pipes.adapters.from_torch.pictures import make_output, refuse_pil
from dali_pipes.adapters.from_torch.recorder import Recorder, Trace
from dali_pipes.adapters.from_torch.recording.keys import freeze
from dali_pipes.adapters.from_torch.recording.objects import content, is_a, is_own
from dali_pipes.adapters.from_torch.recording.reach import is_of_program, reach
from dali_pipes.adapters.from_torch.recording.stores import stored_by
from dali_pipes.adapters.from_torch.samples import (
    DataSetSamples,
    are_pairs,
    labels_in,
    listed_samples,
    skeletons_of,
)
from dali_pipes.adapters.from_torch.trace import trace, visit_as_large, visit_more
from dali_pipes.adapters.from_torch.views import join_views
from dali_pipes.adapters.transforms.readers.timm import note_prefetch_loader
from dali_pipes.adapters.transforms.reading import (
    NotConvertibleError,
    Reading,
    Step,
    is_of,
    place_of,
    refuse_unless,
)
from dali_pipes.adapters.transforms.steps import read_steps
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.data.manifest import Manifest
from dali_pipes.loader.batch import BatchTransform
from dali_pipes.plan.flips import check_flips
from dali_pipes.plan.plan import Rank
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.cpus import available_cpus

# what may change something outside of a function
_STORES = {"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "STORE_ATTR", "STORE_SUBSCR"}


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
        refuse_other_loaders(loader)
        dataset = loader.dataset

        # a library's data set with a list of its samples needs no pass over all of them
        order = read_order(loader, count_samples(dataset), rank)
        indices = range(count_samples(dataset)) if order.indices is None else order.indices
        listed = listed_samples(dataset)
        if listed:
            _refuse_other_transforms(listed.parts)
        since_ns = None if listed else time.time_ns()

        # a worker of its own tells a worker's number of 0 from that of none
        workers = loader.num_workers and max(2, loader.num_workers)
        read = partial(_read, prefetch=prefetch)
        recorder, seen = record_steps(
            Recorder(dataset, workers),
            lambda recorder: trace(recorder, indices, order.batch_size, read),
        )

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
            is_torch = loader.collate_fn is default_collate
            refuse_pil(seen, None if is_torch else loader.collate_fn)
        masks = read_masks(seen)
        refuse_unless(
            not (masks and prefetch),
            "PrefetchLoader",
            "it takes no masks",
            "pass on the DataLoader without it",
        )

        pair = None if listed else read_pair(seen)
        refuse_unless(
            not (pair and prefetch),
            "PrefetchLoader",
            "it takes one picture of a sample",
            "pass on the DataLoader without it",
        )

        samples = _select(listed, indices) if listed else _samples_of(seen, labels, masks, pair)
        skeletons = labels.skeletons if labels else skeletons_of(seen.skeleton, samples)
        is_plain = len(seen.slots) == 1 and samples.labels is not None and are_pairs(skeletons)
        mix, mixed, own = _collate_of(loader.collate_fn, order, prefetch is not None, is_plain)
        if own is None:
            refuse_pil(seen)

        # late, since it reads the headers of all images
        manifest = samples.manifest(cache_dir, since_ns)
        refuse_modes(seen, manifest)
        if masks:
            refuse_other_modes(seen.name, list(map(str, samples.masks)), masks.mode)
        if pair:
            refuse_other_pairs(seen, manifest)

        # code that treats large or small files in another way shows itself with the extremes
        with recorder:
            extremes = find_extremes(manifest)
            # a list of labels knows nothing of pictures
            known = [skeletons[at] if labels else None for at in extremes]
            visit_more(recorder, seen, [indices[at] for at in extremes], known)

            # so does code for some sizes or labels, where others would not
            varied = find_varied(manifest, None if listed else samples.labels)
            known = [skeletons[at] if labels else None for at in varied]
            sizes = [(height, width) for height, width in manifest.sizes[varied].tolist()]
            visit_as_large(recorder, seen, [indices[at] for at in varied], known, sizes)

        readings = _read([pair.image] if pair else seen.used, prefetch)
        exif = read_exif(seen, manifest)
        views = _transforms(readings, manifest, exif)
        transform = _join(views, masks)
        if pair:
            (target,) = _read([pair.target], prefetch)
            build = partial(_transform, manifest=manifest, exif=exif)
            pair = pair.joined(transform, target, build)
        transform.check(manifest)
        check_flips(manifest, transform)

        places = order.arranged(len(manifest))
        output = make_output(
            seen,
            transform,
            views,
            masks,
            pair,
            skeletons,
            own,
            is_plain=is_plain,
            is_prefetched=prefetch is not None,
        )

        # ids are rows of the arranged manifest from here on
        if places is not None:
            manifest, output = manifest.subset(places), output.subset(places)
            indices = [indices[at] for at in places.tolist()]

        return cls(
            dataset=dataset,
            indices=indices,
            prefetched=prefetch is not None,
            collate=loader.collate_fn,
            manifest=manifest,
            transform=transform,
            views=views,
            order=order,
            output=output,
            batch_transform=mix,
            live=[(reading.geometry, reading.whole) for reading in readings],
            steps=list_steps(
                readings,
                [*(masks.steps if masks else ()), *(pair.steps if pair else ())],
                order,
                mixed,
                loader,
            ),
            facts=HeldState(dataset, sampler_of(loader), seen.moving),
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


def refuse_other_loaders(loader: Any) -> None:
    """Refuses what is no DataLoader as torch's, and an IterableDataset."""
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
    if loader.num_workers and loader.worker_init_fn:
        _refuse_worker_changes(loader.worker_init_fn)


def _refuse_worker_changes(function: Any) -> None:
    """Refuses a `worker_init_fn` that may change the data set, or a variable that the data set
    reads, since nobody calls it.
    """
    whole, function = function, getattr(function, "func", function)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    if code is None:
        return
    reached = reach([function], {"__call__"}).objects.values()
    functions = [each for each in reached if isinstance(each, FunctionType) and is_of_program(each)]
    refuse_unless(
        not any(map(_may_change, functions)) and not stored_by(whole, ("__call__", code.co_name)),
        f"worker_init_fn={code.co_qualname} ({Path(code.co_filename).name}:{code.co_firstlineno})",
        "it may change the data set in the workers, and dali_pipes has no such workers",
        "change the data set before the DataLoader is made; leave the function out if it only "
        "seeds random numbers",
    )


def _may_change(function: FunctionType) -> bool:
    """Whether a function names a data set, or changes a variable outside of it."""
    code = function.__code__
    if "dataset" in (*code.co_names, *code.co_varnames, *code.co_freevars):
        return True
    stores = [each for each in dis.get_instructions(code) if each.opname in _STORES]
    if any("GLOBAL" in each.opname or each.argval in code.co_freevars for each in stores):
        return True
    # into a library's module, such as cv2 or os.environ, anybody may store
    named = (function.__globals__.get(name) for name in code.co_names)
    held = [*named, *(content(cell) for cell in function.__closure__ or ())]
    return bool(stores) and any(
        is_a(each, (list, dict, set)) or is_own(sys.modules.get(type(each).__module__))
        for each in held
        if not is_a(each, (type, FunctionType))
    )


def _processes(loader: DataLoader[Any]) -> int:
    """How many processes may run the data set: more than one only if the user's own DataLoader
    runs it in forked workers, and prepares nothing in them.
    """
    if not forks(loader) or loader.worker_init_fn or multiprocessing.current_process().daemon:
        return 1
    return min(loader.num_workers, available_cpus())


def forks(loader: DataLoader[Any]) -> bool:
    """Whether a DataLoader has workers, which are forked."""
    # asked so that the program may still choose another method; the first one is the default
    context = loader.multiprocessing_context or multiprocessing
    method = context.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return loader.num_workers > 0 and method == "fork"


def _label_file(
    cache_dir: str | Path | None, dataset: Any, indices: Sequence[Any], seen: Trace
) -> LabelFile | None:
    """The file that keeps what a data set has for each sample; None: none does."""
    if cache_dir is None:
        return None
    # a data set that cannot be pickled, such as one with an open file, is not recognized again
    key = hash_of(dataset, indices, version("dali_pipes"))
    return None if key is None else LabelFile(cache_dir, key, seen.skeleton)


def count_samples(dataset: Any) -> int:
    """The number of samples of a data set."""
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


def _samples_of(
    seen: Trace, labels: Any, masks: MaskReading | None, pair: PairReading | None
) -> DataSetSamples:
    """The file of each sample, which all of its pictures but those of a pair must have in common,
    its mask, and class numbers if there are any.
    """
    files = {chain.file for chain in ([pair.image] if pair else seen.used)}
    refuse_unless(
        len(files) == 1,
        seen.name,
        f"its samples have pictures of {len(files)} files",
        "give two that belong together to one call of torchvision.transforms.v2, which moves them "
        "together",
    )
    place = files.pop()
    return DataSetSamples(
        [each[place] for each in labels.files],
        labels_in(labels.skeletons),
        masks=[each[masks.file] for each in labels.files] if masks else [],
        # the mask is not turned, so it is one of the picture that the data set moves with it
        annotated="upright" if seen.exif == "apply" else "stored",
        seconds=[each[pair.target.file] for each in labels.files] if pair else [],
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


def _transforms(readings: list[Reading], manifest: Manifest, exif: str) -> list[Transform]:
    """A transform for each reading."""
    return [_transform(reading, manifest, exif) for reading in readings]


def _transform(reading: Reading, manifest: Manifest, exif: str) -> Transform:
    def uniform() -> tuple[int, int] | None:
        sizes = {tuple(size) for size in manifest.sizes.tolist()}
        return sizes.pop() if len(sizes) == 1 else None

    return replace(reading.built(uniform), exif=exif)


def _join(views: list[Transform], masks: MaskReading | None) -> Transform:
    """The transform that makes all views, and moves masks along."""
    transform = join_views(views)
    transform = replace(transform, **masks.options) if masks else transform

    functions = [
        function.title
        for view in views
        for function in (*view.functions_before, *view.augmenter.functions)
    ]
    refuse_unless(
        not (masks and functions),
        ", ".join(functions),
        "it may move pixels, and the mask would not go along",
        "use dp.Augment with geometry=, Manifest.from_masks and build_loader (docs/objects.md)",
    )
    return transform


def list_steps(
    readings: list[Reading],
    beside: list[Step],
    order: SamplerOrder,
    mixed: str,
    loader: DataLoader[Any],
) -> list[Step]:
    """All old steps, and what carries each of them out.

    Args:
        beside: those of masks and of a second picture.
        mixed: the collate function in words.
    """
    last = f"batches of {order.batch_size}, last_batch={order.last_batch}"
    steps = [
        *(step for reading in _different(readings) for step in reading.steps),
        *beside,
        Step(f"sampler: {order.text}", last),
        Step(f"collate: {mixed}", "the same"),
    ]
    if loader.worker_init_fn:
        without = "nothing: it is not called, and no random state is in a worker"
        steps.append(Step("worker_init_fn", without))
    return steps


def _different(readings: list[Reading]) -> list[Reading]:
    """Each reading once, if its steps are not those of another one."""
    texts: dict[Any, Reading] = {}
    for reading in readings:
        texts.setdefault(tuple((step.text, step.by) for step in reading.steps), reading)
    return list(texts.values())


T = TypeVar("T")


def record_steps(recorder: Recorder, run: Callable[[Recorder], T]) -> tuple[Recorder, T]:
    """Runs samples of a data set with steps of the user's own as code like any other, or, where
    that can't be carried over, as steps. Returns the recorder that was used, and the result.
    """
    try:
        with recorder:
            return recorder, run(recorder)
    except NotConvertibleError as error:
        if not recorder.own_steps.were_called:
            raise
        recorder = recorder.with_own_steps()
        try:
            with recorder:
                return recorder, run(recorder)
        except NotConvertibleError as other:
            raise (other if other.steps else error) from None
