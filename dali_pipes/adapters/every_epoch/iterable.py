"""Makes a loader of a live DataLoader over an IterableDataset: `convert_iterable`.

trace of the first samples → transforms → a backend for the files that the iterator names → the old
collate function
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, cast

import torch
from torch.utils.data import IterDataPipe, default_collate

from dali_pipes.adapters.every_epoch.check import compare_all_draws
from dali_pipes.adapters.every_epoch.convert import (
    EveryEpochConversion,
    EveryEpochOutput,
    NoPlaces,
    exif_of,
    fill,
    images_of_first,
    list_pictures,
    output_of,
    read,
)
from dali_pipes.adapters.every_epoch.iterable_loader import (
    BadPictures,
    IterableLoader,
    IteratedBackend,
    IteratedPlan,
)
from dali_pipes.adapters.every_epoch.iterated import (
    IteratedItems,
    IteratedReader,
    IteratedWorkers,
    SamplesByPlace,
)
from dali_pipes.adapters.every_epoch.trace import ItemTrace, trace_items
from dali_pipes.adapters.from_torch.batches import SamplerOrder
from dali_pipes.adapters.from_torch.check.batches import compare_values, refuse_other_forms
from dali_pipes.adapters.from_torch.conversion import list_steps, record_steps, refuse_other_loaders
from dali_pipes.adapters.from_torch.later import HeldState
from dali_pipes.adapters.from_torch.output import call_seeded
from dali_pipes.adapters.from_torch.pictures import refuse_pil
from dali_pipes.adapters.from_torch.reading import (
    NotConvertibleError,
    Reading,
    Step,
    place_of,
    refuse_unless,
)
from dali_pipes.adapters.from_torch.recorder import Recorder
from dali_pipes.adapters.from_torch.recording.kept import Kept
from dali_pipes.adapters.from_torch.recording.light_copy import light_copy
from dali_pipes.adapters.from_torch.structure import first_difference, leaves
from dali_pipes.adapters.items.load import manifest_of, refuse_backend
from dali_pipes.adapters.items.skeletons import find_difference
from dali_pipes.adapters.items.transform import ItemPicture, ItemTransform
from dali_pipes.backends.backend import Backend, Job
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.errors import ConfigError
from dali_pipes.loader.build import choose_backend
from dali_pipes.plan.plan import Rank
from dali_pipes.plan.sampling import Sequential
from dali_pipes.plan.transforms import Transform

_SEEN = 8  # samples of the first worker that are run
_ORDER_INSTEAD = (
    "draw the order from random, numpy.random, torch, or a generator that the data set holds or "
    "makes with a seed, as by shuffle(1000, rng=random.Random(0)) of WebDataset"
)


class _NoFiles(NoPlaces):
    """Bytes are no file's either: a buffer holds those of files that were read long before, and the
    file that was read last may be as long by chance.
    """

    def has_size(self, file: str, size: int) -> bool:
        return False


def convert_iterable(
    dataloader: Any,
    config: LoaderConfig,
    *,
    check: bool,
    rank: Rank | None,
    seed: int | None,
    device: Any,
    on_bad_sample: str,
    allow_state: bool,
) -> tuple[IterableLoader, EveryEpochConversion, str]:
    """As `convert_every_epoch`, of a DataLoader over an IterableDataset."""
    dataset, collate = dataloader.dataset, dataloader.collate_fn
    name = f"the IterableDataset {place_of(type(dataset), '__iter__')}"
    _refuse_unfit(dataloader, name, on_bad_sample)
    refuse_backend(config)
    workers = _workers_of(dataloader)

    by_place = SamplesByPlace(dataset, workers.num_workers)
    places, moving = _try_iterator(by_place, name, dataloader, allow_state)
    recorder, trace = record_steps(
        Recorder(by_place, containers=_NoFiles()),
        lambda recorder: trace_items(recorder, places, read, allow_state, name, _ORDER_INSTEAD),
    )
    refuse_pil(trace.seen, None if collate is default_collate else collate)
    readings = read(trace.seen.used)
    exif = exif_of(trace)
    transforms = [replace(reading.built(lambda: None), exif=exif) for reading in readings]
    pictures = list_pictures(trace, transforms)
    output = EveryEpochOutput(output_of(trace, transforms, collate))

    generator = dataloader.generator
    own_seed = generator.initial_seed() if generator else torch.initial_seed()
    plan = IteratedPlan(
        workers.batch_size, own_seed % 2**64 if seed is None else seed, rank or Rank.from_env()
    )
    reader = IteratedReader(recorder, trace, dataset, places, pictures)
    about = {
        "batch size": plan.batch_size,
        "drop_last": workers.drop_last,
        "workers": workers.num_workers,
        "seed": plan.seed,
        "rank": [plan.rank.index, plan.rank.count],
        "transform": repr([(each.place, each.transform, each.draws) for each in pictures]),
    }

    def build(workers: IteratedWorkers) -> IterableLoader:
        items, bad = IteratedItems(dataset, reader, plan.seed), BadPictures()
        backend = _backend_of(items, pictures, trace, config, plan, workers, bad, device)
        generator = workers.generator
        return IterableLoader(plan, backend, generator, bad, partial(len, dataloader), about)

    found = "not checked"
    if check:
        with build(replace(workers, persistent=False)) as first:
            found = _compare(first, workers, plan, output, dataset, collate, readings)
        live = [(reading.geometry, reading.whole) for reading in readings]
        found += compare_all_draws(trace, transforms, live)

    order = SamplerOrder(
        "the order of its own iterator, which decides which samples there are",
        plan.batch_size,
        Sequential(),
        plan.seed,
        plan.rank,
        "drop" if workers.drop_last else "partial",
    )
    collated = getattr(collate, "__qualname__", type(collate).__name__)
    steps = [*list_steps(readings, [], order, collated, dataloader), *_own_steps(dataloader)]
    facts = HeldState(dataset, None, {*trace.seen.moving, *moving, *_set_by_epoch(dataset)})
    return build(workers), EveryEpochConversion(dataset, order, output, steps, facts), found


def _refuse_unfit(loader: Any, name: str, on_bad_sample: str) -> None:
    refuse_unless(
        not isinstance(loader.dataset, IterDataPipe),
        name,
        "it is a data pipe, which PyTorch seeds and shards in its own way",
        "write an IterableDataset, or a data set with __getitem__ and __len__",
    )
    refuse_other_loaders(loader, iterates=True)
    refuse_unless(
        loader.batch_size is not None,
        "batch_size=None",
        "the data set makes batches of its own",
        "let it yield single samples, and use batch_size (about 2 lines)",
    )
    refuse_unless(
        on_bad_sample == "raise",
        "on_bad_sample='substitute'",
        "which sample comes next is in the iterator's code",
        "leave bad files out there, or give the data set a __getitem__ and a __len__",
    )


def _workers_of(loader: Any) -> IteratedWorkers:
    context = loader.multiprocessing_context
    context = context if isinstance(context, str | None) else context.get_start_method()
    refuse_unless(
        context in (None, "fork"),
        "a DataLoader whose workers are not forked",
        "what from_torch has seen of the data set cannot be sent to them",
        "use multiprocessing_context='fork'",
    )
    return IteratedWorkers(
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
        # it is never run in this process, whose functions would have to be patched for long
        num_workers=max(1, loader.num_workers),
        prefetch_factor=loader.prefetch_factor or 2,
        persistent=loader.persistent_workers,
        timeout=loader.timeout,
        context="fork",
        worker_init_fn=loader.worker_init_fn if loader.num_workers else None,
        generator=torch.Generator("cpu"),
    )


def _try_iterator(
    by_place: SamplesByPlace, name: str, loader: Any, allow_state: bool
) -> tuple[range, set[str]]:
    """The places of samples that are to be traced, and the attributes that iterating changes."""
    recorder = Recorder(by_place)
    # a block of its own: random states, and what iterating changes in modules, are put back
    with recorder:
        try:
            forms, again = recorder.copy.forms(_SEEN), recorder.copy.forms(_SEEN)
        except ConfigError:
            raise
        except Exception as error:
            raise NotConvertibleError(
                name, f"its iterator fails ({type(error).__name__}: {error})", "repair it"
            ) from error
        copied = light_copy(by_place.iterated)
        kept = Kept.of(copied)
        next(iter(copied), None)
        moving = {name for name, _, _ in kept.changed() if name}
        kept.restore()

    refuse_unless(
        forms and len(again) == len(forms),
        name,
        f"its iterator yields {len(forms)} samples of at most {_SEEN}, and {len(again)} the second "
        "time"
        if forms
        else "its iterator yields no sample",
        "let each call of __iter__ begin anew, and yield something",
    )
    if loader.collate_fn is default_collate:
        _refuse_other_forms(forms, name)

    refuse_unless(
        allow_state or loader.num_workers or not moving,
        name,
        f"iterating changes what it holds ({', '.join(sorted(moving))}), and its iterator runs in "
        "a process of its own, from the same state in each epoch",
        "keep it in variables of __iter__, with a set_epoch that the program calls for what "
        "changes from epoch to epoch; or, if samples do not depend on it, pass allow_state=True",
    )
    return range(len(forms)), moving


def _refuse_other_forms(forms: list[Any], name: str) -> None:
    """Refuses samples that torch's default_collate cannot join."""
    for at, form in enumerate(forms):
        if difference := find_difference(forms[0], form):
            place, first, other = difference
            raise NotConvertibleError(
                name,
                f"sample {at} has {other} at {place or 'the sample itself'}, and the first one had "
                f"{first}",
                "yield samples of one structure, or join them in a collate function of your own, "
                "which is called as it is",
            )


def _set_by_epoch(dataset: Any) -> set[str]:
    """The attributes that a `set_epoch` of the data set sets: workers that begin later see them."""
    copied = light_copy(dataset)
    if not callable(getattr(copied, "set_epoch", None)):
        return set()
    before = dict(vars(copied))
    copied.set_epoch(10**6 + 1)
    return {name for name, value in vars(copied).items() if before.get(name, before) is not value}


def _backend_of(
    items: IteratedItems,
    pictures: list[ItemPicture],
    trace: ItemTrace,
    config: LoaderConfig,
    plan: IteratedPlan,
    workers: IteratedWorkers,
    bad: BadPictures,
    device: Any,
) -> Callable[[], IteratedBackend]:
    """Returns what makes the backend of an `IterableLoader`."""
    transforms = [cast(Transform, each.transform) for each in pictures]
    backend, config, target = choose_backend(config, device, *transforms)
    images = images_of_first(trace)

    def build_part(part: Transform, size: int) -> Backend:
        return backend(Job(part, images, size, target), config)

    manifest, transform = manifest_of(items.dataset, 1), ItemTransform.of(pictures, None)
    return partial(
        IteratedBackend,
        Job(transform, manifest, plan.batch_size, target),
        config,
        runner=items,
        workers=workers,
        bad=bad,
        draw_numbers=plan.draw_numbers,
        build_part=build_part,
        fill=fill,
    )


def _compare(
    loader: IterableLoader,
    workers: IteratedWorkers,
    plan: IteratedPlan,
    output: EveryEpochOutput,
    dataset: Any,
    collate: Any,
    readings: list[Reading],
) -> str:
    """Compares first batches with those of the program's own DataLoader, in workers with the same
    random numbers.

    Raises:
        NotConvertibleError: something differs, or pixels by more than rounding.
    """
    # one of each worker, and so many that workers which yield the same samples show themselves
    most = workers.num_workers * max(1, -(-8 // plan.batch_size))
    epoch: Any = iter(loader)
    batches = list(islice(epoch, most))
    refuse_unless(
        batches,
        f"the IterableDataset {type(dataset).__name__}",
        "its workers yield no batch",
        "use a smaller batch_size, or fewer workers",
    )
    pictures = [each.cpu() for each in batches[0].pictures]
    first = batches[0]._replace(pictures=pictures, device=torch.device("cpu"))
    seed = (plan.seed, 0, 1)
    ours = leaves(output(first, seed))

    def take() -> Any:
        workers.generator.manual_seed(plan.worker_seed(0))
        theirs = replace(workers, persistent=False).like_theirs(dataset, collate_fn=_as_list)
        return next(iter(theirs))

    count, samples = len(first.skeletons), take()
    old = leaves(call_seeded(light_copy(collate), samples, seed))
    refuse_other_forms(old, ours)
    if any(reading.built(lambda: None).training for reading in readings):
        return f"{count} samples make batches of the same structure"
    try:
        return compare_values(old, ours, count)
    except NotConvertibleError:
        if first_difference(samples, take()) is None:
            raise
        return (
            f"{count} samples make batches of the same structure; their order is another one each "
            "time"
        )


def _as_list(samples: list[Any]) -> list[Any]:
    return samples


def _own_steps(loader: Any) -> list[Step]:
    """What is the data set's own, and what cannot be promised of it."""
    count = max(1, loader.num_workers)
    kind = "persistent " if loader.persistent_workers else ""
    return [
        Step(
            "order, length, and which samples a worker and a rank have: of its own __iter__",
            f"the same code, in {count} {kind}process{'es' * (count > 1)}: what it yields twice or "
            "not at all comes twice or not at all",
        ),
        Step(
            "resume in mid-epoch: it has none",
            "the iterator is run from the start of the epoch, without decoding; other samples than "
            "then are an error",
        ),
    ]
