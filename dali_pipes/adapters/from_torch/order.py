"""The order, the shard and the batches of a live DataLoader."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from dali_pipes.adapters.from_torch.reading import NotConvertibleError, is_of, refuse_unless
from dali_pipes.plan.plan import Shard
from dali_pipes.plan.sampling import Repeated, Sampling, Sequential, Uniform, Weighted


@dataclass(frozen=True, slots=True)
class Order:
    """
    Attributes:
        text: the sampler, for people.
        last_batch: as for `build_loader`.
    """

    text: str
    batch_size: int
    sampling: Sampling
    seed: int
    shard: Shard
    last_batch: str

    def arranged(self, count: int) -> NDArray[np.int64] | None:
        """How a data set of so many samples must be arranged so that our shards, which are slices, get the samples of a
        DistributedSampler that does not shuffle, which are every so-manieth, in its order; None: as it is.
        """
        shards = self.shard.count
        if not isinstance(self.sampling, Sequential) or shards == 1:
            return None
        places = np.arange(-(-count // shards) * shards) if self.last_batch != "drop" else np.arange(count)
        whole = len(places) // (shards * self.batch_size) * shards * self.batch_size
        steps = np.split(places, range(shards * self.batch_size, whole + 1, shards * self.batch_size)) if whole else [places]
        dealt = [step.reshape(-1, shards).T.ravel() if len(step) % shards == 0 else step for step in steps]
        return np.concatenate(dealt) % count


def order_of(loader: DataLoader[Any], count: int, shard: Shard | None = None) -> Order:
    """
    Args:
        count: samples of the data set.
        shard: what the sampler would give this process if it were a DistributedSampler.
    """
    batches: Any = loader.batch_sampler
    batches = getattr(batches, "sampler", batches) if type(batches).__name__ == "_RepeatSampler" else batches
    plain = type(batches) is BatchSampler
    name = f"the batch_sampler {type(batches).__name__}" if batches is not None else "batch_size=None"
    refuse_unless(plain, name, "it makes batches of its own", "use batch_size, sampler and drop_last")
    drawn_from = getattr(batches.sampler, "data_source", getattr(batches.sampler, "dataset", range(count)))
    what = f"the sampler {type(batches.sampler).__name__}"
    refuse_unless(len(drawn_from) == count, what, f"it is one of {len(drawn_from)} samples, and there are {count}", "make it anew")
    sampling, seed, own, text, even = _sampler(batches.sampler, loader)
    count = sampling.epoch_size or count
    if own is None:
        ranks, among = Shard.from_env().count, "a sampler without ranks among"
        every = "pass shard=dp.Shard.from_env() to share them, or shard=dp.Shard() to load all on each"
        refuse_unless(shard or ranks == 1, f"{among} {ranks} processes", "each would load all samples", every)
        own = shard or Shard()
        seed, even = (0, "pad") if own.count > 1 else (seed, "")  # torch's seed differs from rank to rank
    drop, shards = bool(batches.drop_last), own.count
    some = -(-count // shards) >= batches.batch_size or not drop
    whole = drop or not isinstance(sampling, Repeated) or count % (shards * batches.batch_size) == 0
    refuse_unless(whole, f"{text}, {count} samples an epoch", "our epochs of repeats are whole batches", "use drop_last=True")
    refuse_unless(count and some, f"{count} samples", f"they make no batch of {batches.batch_size}", "use a smaller batch_size")
    if drop and even == "pad" and -(-count // shards) % batches.batch_size == 0:
        last = "pad"  # the DistributedSampler's own padding fills the last global batch
    elif not drop and even == "drop" and count % shards:
        instead = "give the DataLoader drop_last=True too, or the sampler drop_last=False"
        raise NotConvertibleError("DistributedSampler(drop_last=True)", "our plan drops whole batches only", instead)
    else:
        last = "drop" if drop else "even" if count % shards else "partial"
    return Order(text, batches.batch_size, sampling, seed % 2**64, own, last)


def _sampler(sampler: Any, loader: DataLoader[Any]) -> tuple[Sampling, int, Shard | None, str, str]:
    """Ours, its seed and shard if it has one, what it is, and what a DistributedSampler does to make ranks even."""
    kind, generator = type(sampler), getattr(sampler, "generator", None) or getattr(loader, "generator", None)
    seed = generator.initial_seed() if generator else torch.initial_seed()
    if kind is SequentialSampler:
        return Sequential(), seed, None, "in order", ""
    if kind is RandomSampler:
        plain = not sampler.replacement and sampler.num_samples == len(sampler.data_source)
        refuse_unless(plain, "RandomSampler", "it draws with replacement or another number of samples", "draw each once")
        return Uniform(), seed, None, "a permutation each epoch", ""
    if kind is WeightedRandomSampler:
        refuse_unless(sampler.replacement, "WeightedRandomSampler", "it draws without replacement", "use replacement=True")
        sampling = Weighted(weights=sampler.weights.tolist(), epoch_size=sampler.num_samples)
        return sampling, seed, None, f"{sampler.num_samples:,} draws by weights, with replacement", ""
    if is_of(sampler, "timm.data", "RepeatAugSampler"):
        return _repeated(sampler)
    if kind is DistributedSampler or is_of(sampler, "timm.data", "OrderedDistributedSampler"):
        shuffle = bool(kind is DistributedSampler and sampler.shuffle)
        text = f"{'a permutation each epoch' if shuffle else 'in order'}, rank {sampler.rank} of {sampler.num_replicas}"
        even = "drop" if getattr(sampler, "drop_last", False) else "pad"
        shard = Shard(sampler.rank, sampler.num_replicas)
        return Uniform() if shuffle else Sequential(), getattr(sampler, "seed", 0), shard, text, even
    known = "RandomSampler, SequentialSampler, WeightedRandomSampler or DistributedSampler"
    raise NotConvertibleError(f"the sampler {kind.__name__}", "our plan has no such order", f"use {known}")


def _repeated(sampler: Any) -> tuple[Sampling, int, Shard, str, str]:
    """timm begins a new permutation each epoch, of which an epoch sees only some images; ours goes on with the others first."""
    name, times = "timm's RepeatAugSampler", sampler.num_repeats
    refuse_unless(sampler.shuffle, name, "it does not shuffle", "use shuffle=True")
    refuse_unless(times == int(times), name, f"num_repeats is {times}", "use a whole number")
    ranks = sampler.num_replicas
    sampling = Repeated(times=int(times), spread=True, epoch_size=sampler.num_selected_samples * ranks)
    text = f"{int(times)} repeats of each image, rank {sampler.rank} of {ranks}"
    return sampling, 0, Shard(sampler.rank, ranks), text, "pad"
