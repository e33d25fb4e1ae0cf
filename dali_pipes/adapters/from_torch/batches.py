"""Reads how a live DataLoader makes batches.

`read_order` reads its sampler: order, seed, rank, batch size and last batch. `batch_transform_of`
reads its collate function: torch's own, or one that mixes batches after it. Both raise
NotConvertibleError for anything that a plan cannot do in the same way.
"""

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from dali_pipes.adapters.from_torch.check.common import random_states_kept
from dali_pipes.adapters.from_torch.orders import read_program_order
from dali_pipes.adapters.transforms.reading import NotConvertibleError, is_of, refuse_unless
from dali_pipes.loader.batch import BatchTransform
from dali_pipes.loader.mixing import CutMix, MixUp, RandomChoice
from dali_pipes.plan.plan import Rank
from dali_pipes.plan.sampling import Repeated, Sampling, Sequential, Uniform, Weighted

# the names by which a function may refer to torch's default_collate
_COLLATES = ("torch", "utils", "data", "dataloader", "_utils", "collate", "default_collate")


@dataclass(frozen=True, slots=True)
class SamplerOrder:
    """How the samples of a DataLoader are ordered, shared by ranks and cut into batches.

    Attributes:
        text: the sampler, for people.
        batch_size: samples of a batch on one rank.
        sampling, seed, rank, last_batch: as for `build_loader`.
        indices: the samples that the sampler draws from; None: all.
    """

    text: str
    batch_size: int
    sampling: Sampling
    seed: int
    rank: Rank
    last_batch: str
    indices: list[int] | None = None

    def arranged(self, count: int) -> NDArray[np.int64] | None:
        """Returns the order (n,) int64 in which `count` samples must be stored; None: as they are.

        Without shuffling, a rank of a plan takes a slice of each global batch, and a rank of a
        DistributedSampler takes every n-th sample. In the returned order the former gets the
        samples of the latter.
        """
        ranks = self.rank.count
        if not isinstance(self.sampling, Sequential) or ranks == 1:
            return None

        # like the sampler, repeat the first samples until all ranks have equally many
        places = (
            np.arange(-(-count // ranks) * ranks) if self.last_batch != "drop" else np.arange(count)
        )

        # global batches; the samples after the last whole one make a smaller batch
        whole = len(places) // (ranks * self.batch_size) * ranks * self.batch_size
        steps = (
            np.split(places, range(ranks * self.batch_size, whole + 1, ranks * self.batch_size))
            if whole
            else [places]
        )

        # within a global batch, put the samples of each rank together
        dealt = [
            step.reshape(-1, ranks).T.ravel() if len(step) % ranks == 0 else step for step in steps
        ]
        return np.concatenate(dealt) % count


def read_order(loader: DataLoader[Any], count: int, rank: Rank | None = None) -> SamplerOrder:
    """Reads the sampler and the batch sampler of a DataLoader.

    Args:
        count: samples of the data set.
        rank: this process's, for a sampler that knows no ranks.

    Raises:
        NotConvertibleError: the order is one that a plan cannot have.
    """
    batches = _batch_sampler_of(loader)
    refuse_unless(
        batches is not None,
        "batch_size=None",
        "the data set makes batches of its own",
        "let it return single samples, and use batch_size (about 2 lines)",
    )
    # a class that is not known is run, to see what it does
    if type(batches) is not BatchSampler or not _is_known(batches.sampler):
        return _read_program(batches, count, rank, loader.dataset)

    # its samples become a manifest of their own, of which all are drawn
    indices = None
    if type(batches.sampler) is SubsetRandomSampler:
        indices = [int(each) for each in batches.sampler.indices]
        within = all(0 <= each < count for each in indices)
        refuse_unless(within, "SubsetRandomSampler", "it has other indices", "make it anew")
        count = len(indices)

    # a sampler of another data set would draw indices that do not exist, or leave samples out
    drawn_from = (
        range(count)
        if indices is not None
        else getattr(
            batches.sampler, "data_source", getattr(batches.sampler, "dataset", range(count))
        )
    )
    what = f"the sampler {type(batches.sampler).__name__}"
    refuse_unless(
        len(drawn_from) == count,
        what,
        f"it is one of {len(drawn_from)} samples, and there are {count}",
        "make it anew",
    )

    sampling, seed, own, text, even = _read_sampler(batches.sampler, loader)
    count = sampling.epoch_size or count

    # the sampler leaves out what it cannot share evenly, also where the DataLoader keeps the rest
    kept = count // own.count * own.count if own and even == "drop" else count
    if kept < count and not batches.drop_last:
        shuffled = isinstance(sampling, Uniform)
        # fewer samples than ranks are refused below: there is no batch
        sampling = Uniform(epoch_size=kept) if shuffled and kept else sampling
        indices = None if shuffled else list(range(kept))
        text += f", {count - kept} of {count:,} left out{' in turn' * shuffled}"
        count = kept

    # Lightning and Accelerate give ranks to the sampler of a DataLoader later, but not to ours
    if own is None:
        started, among = Rank.from_env().count, "a sampler without ranks among"
        every = "pass rank=dp.Rank.from_env() to share them, or rank=dp.Rank() to load all on each"
        refuse_unless(
            rank or started == 1,
            f"{among} {started} processes",
            "each would load all samples",
            every,
        )
        own = rank or Rank()
        # torch's seed differs from rank to rank
        seed, even = (0, "pad") if own.count > 1 else (seed, "")

    drop, ranks = bool(batches.drop_last), own.count

    # `some`: there is a batch at all; `whole`: repeats fill the batches of an epoch
    some = -(-count // ranks) >= batches.batch_size or not drop
    whole = drop or not isinstance(sampling, Repeated) or count % (ranks * batches.batch_size) == 0
    refuse_unless(
        whole,
        f"{text}, {count} samples an epoch",
        "our epochs of repeats are whole batches",
        "use drop_last=True",
    )
    refuse_unless(
        count and some,
        f"{count} samples",
        f"they make no batch of {batches.batch_size}",
        "use a smaller batch_size",
    )

    if drop and even == "pad" and -(-count // ranks) % batches.batch_size == 0:
        last = "pad"  # the DistributedSampler's own padding fills the last global batch
    else:
        # "even" repeats samples until all ranks have equally many, as a DistributedSampler does
        last = "drop" if drop else "even" if count % ranks else "partial"
    return SamplerOrder(text, batches.batch_size, sampling, seed % 2**64, own, last, indices)


def _is_known(sampler: Any) -> bool:
    """Whether a sampler's class says what its order is."""
    kinds = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
    of_timm = ("OrderedDistributedSampler", "RepeatAugSampler")
    return type(sampler) in (*kinds, DistributedSampler) or is_of(sampler, "timm.data", *of_timm)


def _read_program(batches: Any, count: int, rank: Rank | None, dataset: Any) -> SamplerOrder:
    """Reads a batch sampler of the user's own, or a sampler of the user's own in torch's."""
    is_of_torch = type(batches) is BatchSampler
    sampler = batches.sampler if is_of_torch else batches
    sampling, size, text = read_program_order(sampler, count, dataset)

    # which samples other processes take is known to it alone
    name = sampling.runner.name
    refuse_unless(
        rank is None and Rank.from_env().count == 1,
        f"{name} in several processes",
        "what the others load is in its code",
        "use a DistributedSampler, or build_loader with rank=",
    )
    if is_of_torch:
        size = batches.batch_size
    elif size is None:
        raise NotConvertibleError(name, "it gives single samples", "use it as sampler=")
    last = "drop" if is_of_torch and batches.drop_last else "partial"
    refuse_unless(
        last == "partial" or (sampling.epoch_size or 0) >= size,
        f"{sampling.epoch_size} samples",
        f"they make no batch of {size}",
        "use a smaller batch_size",
    )
    return SamplerOrder(text, size, sampling, torch.initial_seed() % 2**64, Rank(), last)


def _batch_sampler_of(loader: DataLoader[Any]) -> Any:
    batches: Any = loader.batch_sampler
    # timm's MultiEpochsDataLoader wraps the batch sampler in it
    is_wrapped = is_of(batches, "timm.data", "_RepeatSampler")
    return getattr(batches, "sampler", batches) if is_wrapped else batches


def sampler_of(loader: DataLoader[Any]) -> Any:
    """The sampler of a DataLoader; None: it is one of a program, of which a copy is run."""
    sampler = getattr(_batch_sampler_of(loader), "sampler", None)
    return sampler if _is_known(sampler) else None


def _read_sampler(
    sampler: Any, loader: DataLoader[Any]
) -> tuple[Sampling, int, Rank | None, str, str]:
    """Reads a sampler.

    Returns:
        The sampling of a plan, the seed, the sampler's rank (None if it knows no ranks), what it is
        in words, and how it gives all ranks equally many samples: "pad", "drop" or "".
    """
    kind, generator = (
        type(sampler),
        getattr(sampler, "generator", None) or getattr(loader, "generator", None),
    )
    seed = generator.initial_seed() if generator else torch.initial_seed()

    if kind is SequentialSampler:
        return Sequential(), seed, None, "in order", ""

    if kind is RandomSampler and sampler.replacement:
        weights = [1.0] * len(sampler.data_source)
        sampling = Weighted(weights=weights, epoch_size=sampler.num_samples)
        return sampling, seed, None, f"{sampler.num_samples:,} draws, with replacement", ""

    if kind is RandomSampler:
        plain = sampler.num_samples == len(sampler.data_source)
        refuse_unless(
            plain,
            "RandomSampler",
            "it draws another number of samples",
            "draw each once",
        )
        return Uniform(), seed, None, "a permutation each epoch", ""

    if kind is SubsetRandomSampler:
        text = f"a permutation of {len(sampler.indices):,} samples each epoch"
        return Uniform(), seed, None, text, ""

    if kind is WeightedRandomSampler:
        refuse_unless(
            sampler.replacement,
            "WeightedRandomSampler",
            "it draws without replacement",
            "use replacement=True",
        )
        sampling = Weighted(weights=sampler.weights.tolist(), epoch_size=sampler.num_samples)
        return (
            sampling,
            seed,
            None,
            f"{sampler.num_samples:,} draws by weights, with replacement",
            "",
        )

    if is_of(sampler, "timm.data", "RepeatAugSampler"):
        return _read_repeat_aug(sampler)

    assert is_of(sampler, "timm.data", "OrderedDistributedSampler") or kind is DistributedSampler
    shuffle = bool(kind is DistributedSampler and sampler.shuffle)
    text = (
        f"{'a permutation each epoch' if shuffle else 'in order'}, rank {sampler.rank} of "
        f"{sampler.num_replicas}"
    )
    even = "drop" if getattr(sampler, "drop_last", False) else "pad"
    rank = Rank(sampler.rank, sampler.num_replicas)
    return Uniform() if shuffle else Sequential(), getattr(sampler, "seed", 0), rank, text, even


def _read_repeat_aug(sampler: Any) -> tuple[Sampling, int, Rank, str, str]:
    """Reads timm's RepeatAugSampler.

    It begins a new permutation each epoch, of which the epoch sees only some images; a plan
    continues with the other images first.
    """
    name, times = "timm's RepeatAugSampler", sampler.num_repeats
    refuse_unless(sampler.shuffle, name, "it does not shuffle", "use shuffle=True")
    refuse_unless(times == int(times), name, f"num_repeats is {times}", "use a whole number")

    ranks = sampler.num_replicas
    sampling = Repeated(
        times=int(times), spread=True, epoch_size=sampler.num_selected_samples * ranks
    )
    text = f"{int(times)} repeats of each image, rank {sampler.rank} of {ranks}"
    return sampling, 0, Rank(sampler.rank, ranks), text, "pad"


def batch_transform_of(
    collate: Any, batch_size: int, prefetched: bool
) -> tuple[BatchTransform | None, str]:
    """Returns what a collate function does to a batch after torch's default_collate, and says it in
    words.

    A function counts as `mix(*default_collate(samples))`, where mix is one of torchvision's, if it
    refers to nothing else and does exactly that to a batch of noise, with which it is called.

    Args:
        prefetched: whether timm's PrefetchLoader follows; timm's collate function then makes the
            bytes that it takes.

    Raises:
        NotConvertibleError: the function may do something else.
    """
    name = f"collate_fn={getattr(collate, '__qualname__', type(collate).__name__)}"
    if collate is default_collate or (
        prefetched and name.endswith("=fast_collate") and collate.__module__ == "timm.data.loader"
    ):
        return None, "torch's default_collate"

    mix = _find_mix(collate)
    instead = "use torch's default one, and batch_transform= of build_loader"
    refuse_unless(
        mix and _does_only(collate, mix, batch_size), name, "it may do anything to a batch", instead
    )

    ours = _convert_mix(mix)
    return ours, repr(ours)


def _find_mix(function: Any) -> Any:
    """Returns the MixUp, CutMix or RandomChoice that a function refers to; None if there is not
    exactly one, or if it refers to anything else than default_collate.
    """
    if not inspect.isfunction(function) or function.__defaults__ or function.__kwdefaults__:
        return None

    # defaults would be values that getclosurevars does not list
    used = inspect.getclosurevars(function)
    named = {**used.nonlocals, **used.globals}
    mixes = [
        each
        for each in named.values()
        if is_of(each, "torchvision.transforms", "MixUp", "CutMix", "RandomChoice")
    ]
    others = [
        each
        for each in named.values()
        if not any(each is known for known in (*mixes, default_collate, torch))
    ]

    # it names nothing but the mix, torch and default_collate; unbound names are attributes
    plain = not (others or used.builtins) and used.unbound <= set(_COLLATES)
    return mixes[0] if len(mixes) == 1 and plain else None


def _does_only(collate: Any, mix: Any, batch_size: int) -> bool:
    """Whether a collate function does to a batch of noise what default_collate and mix do."""
    # as many classes as the mix expects, for its labels
    classes = next(
        (
            each.num_classes
            for each in getattr(mix, "transforms", [mix])
            if getattr(each, "num_classes", 0)
        ),
        2,
    )

    samples = [
        (torch.randn(3, 8, 8, dtype=torch.float32, device="cpu"), number % classes)
        for number in range(batch_size)
    ]

    found = []
    for function in (collate, lambda batch: mix(*default_collate(batch))):
        # both draw the same numbers, so equal functions give equal batches
        with random_states_kept():
            try:
                found.append(function(list(samples)))
            except Exception:  # any error of a function that we do not know
                return False

    ours, theirs = found
    return len(ours) == 2 and all(
        torch.equal(one, other) for one, other in zip(ours, theirs, strict=True)
    )


def _convert_mix(mix: Any) -> BatchTransform:
    kind = type(mix).__name__
    if is_of(mix, "torchvision.transforms", "RandomChoice"):
        # None, in torchvision's v1, means equal ones
        probabilities = [1] if mix.p is None else mix.p
        refuse_unless(
            len(set(probabilities)) == 1, kind, f"its probabilities are {mix.p}", "ours are equal"
        )
        return RandomChoice([_convert_mix(transform) for transform in mix.transforms])

    # a program's own class may have the name of one of torchvision's
    refuse_unless(
        is_of(mix, "torchvision.transforms", "MixUp", "CutMix"),
        kind,
        "no such batch transform",
        "use torchvision's MixUp and CutMix",
    )
    return (MixUp if kind == "MixUp" else CutMix)(alpha=mix.alpha, num_classes=mix.num_classes)
