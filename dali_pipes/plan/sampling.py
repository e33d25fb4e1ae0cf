"""Which sample stands at which place of an epoch: pure functions of (seed, epoch, place), the same for any number of shards."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError, check_min, check_options, option
from dali_pipes.plan.permutation import LARGE, permuted
from dali_pipes.plan.philox import Kind, philox4x32

Int = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OrderContext:
    """What an order is made for.

    Attributes:
        global_batch_size: samples of a step over all shards.
    """

    manifest: Manifest
    seed: int
    global_batch_size: int


class Order(ABC):
    """The samples of all epochs, one after the other.

    Attributes:
        epoch_size: samples of one epoch.
        repeats: whether an epoch may hold a sample more than once, so that its random numbers are keyed by its place.
        algorithm: part of a loader's state where it is not today's stored permutation.
    """

    repeats = True
    algorithm = ""

    def __init__(self, context: OrderContext, epoch_size: int):
        self._context, self.epoch_size = context, epoch_size

    def ids(self, epoch: int, places: Int) -> Int:
        """The samples at these places of an epoch, below `epoch_size`. Each epoch goes on where the last one stopped."""
        return self._at(epoch * self.epoch_size + places)

    @abstractmethod
    def _at(self, places: Int) -> Int:
        """Likewise, of all epochs in a row."""

    def prepare(self, epoch: int) -> None:
        """Makes what the first batch of an epoch would wait for."""
        self.ids(epoch, np.arange(1))


@dataclass(kw_only=True, slots=True)
class Sampling(ABC):
    """Which samples make an epoch, and in which order.

    Attributes:
        epoch_size: samples of one epoch over all shards; None: as many as there are images. The next epoch goes on where this one
            stopped, so that a shorter epoch leaves nothing out in the long run.
    """

    epoch_size: int | None = option(None, check_min, 1)

    def __post_init__(self) -> None:
        check_options(self)

    @abstractmethod
    def order(self, context: OrderContext) -> Order: ...

    def fingerprint(self, manifest: Manifest) -> dict[str, Any]:
        """What decides the order, for a loader's state."""
        return {"kind": type(self).__name__} | ({} if self.epoch_size is None else {"epoch_size": self.epoch_size})

    def _size(self, context: OrderContext) -> int:
        return self.epoch_size or len(context.manifest)


@dataclass(kw_only=True, slots=True)
class Uniform(Sampling):
    """Every image once, in a new random order each time: what `shuffle=True` means."""

    def order(self, context: OrderContext) -> Order:
        return _UniformOrder(context, self._size(context))


class _UniformOrder(Order):
    def __init__(self, context: OrderContext, epoch_size: int):
        super().__init__(context, epoch_size)
        self._n = len(context.manifest)
        self.repeats, self.algorithm = epoch_size != self._n, "feistel" if self._n >= LARGE else ""

    def _at(self, places: Int) -> Int:
        return _passes(places, self._n, lambda number, within: permuted(self._n, self._context.seed, number, within))


@dataclass(kw_only=True, slots=True)
class Sequential(Sampling):
    """Every image once, in the manifest's order: what `shuffle=False` means."""

    def order(self, context: OrderContext) -> Order:
        return _SequentialOrder(context, self._size(context))


class _SequentialOrder(Order):
    def __init__(self, context: OrderContext, epoch_size: int):
        super().__init__(context, epoch_size)
        self.repeats = epoch_size != len(context.manifest)

    def _at(self, places: Int) -> Int:
        return places % len(self._context.manifest)


@dataclass(kw_only=True, slots=True)
class Weighted(Sampling):
    """Each draw independent of all others, with replacement: torch's WeightedRandomSampler.

    Setting up takes 8 bytes of memory for each image, a draw a binary search in them.

    Attributes:
        weights: a column of the manifest, a weight for each class by its name, or one for each image in the order of their ids.
    """

    weights: Any

    def order(self, context: OrderContext) -> Order:
        return _WeightedOrder(context, self._size(context), self._of_each(context.manifest))

    def fingerprint(self, manifest: Manifest) -> dict[str, Any]:
        digest = hashlib.sha256(np.ascontiguousarray(self._of_each(manifest)).tobytes()).hexdigest()[:16]
        return Sampling.fingerprint(self, manifest) | {"weights": digest}

    def _of_each(self, manifest: Manifest) -> NDArray[np.float64]:
        weights = _weights(manifest, self.weights)
        if weights.shape != (len(manifest),):
            raise ConfigError(f"sampling.weights: {weights.size:,} weights for {len(manifest):,} images; it takes one for each")
        if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
            raise ConfigError("sampling.weights: a weight is a number from 0 on, and one at least is above 0")
        return weights


def _weights(manifest: Manifest, given: Any) -> NDArray[np.float64]:
    ids = np.arange(len(manifest))
    if isinstance(given, str):
        columns = manifest.take_columns(ids)
        if given not in columns:
            raise ConfigError(f"sampling.weights: there is no column {given!r} of numbers; there is {', '.join(columns) or 'none'}")
        return np.asarray(columns[given], np.float64)
    if isinstance(given, Mapping):
        by_name = {str(name): float(weight) for name, weight in given.items()}
        if set(by_name) != set(manifest.classes):
            missing, unknown = set(manifest.classes) - set(by_name), set(by_name) - set(manifest.classes)
            problem = f"no weight for {sorted(missing)[0]!r}" if missing else f"there is no class {sorted(unknown)[0]!r}"
            raise ConfigError(f"sampling.weights: {problem}; give one for each class")
        return np.array([by_name[name] for name in manifest.classes])[_classes(manifest, "weights by class")]
    return np.asarray(given, np.float64)


class _WeightedOrder(Order):
    def __init__(self, context: OrderContext, epoch_size: int, weights: NDArray[np.float64]):
        super().__init__(context, epoch_size)
        self._sums = weights.cumsum()
        self._last = int(np.flatnonzero(weights)[-1])

    def _at(self, places: Int) -> Int:
        high, low, *_ = _words(self._context.seed, places, draw=0)
        share = (high * np.float64(2.0**32) + low) * np.float64(2.0**-64)
        return np.minimum(np.searchsorted(self._sums, share * self._sums[-1], side="right"), self._last)


@dataclass(kw_only=True, slots=True)
class Balanced(Sampling):
    """Each class as often: rounds of all classes in a random order, and of each class its images in turn, in a new order each time."""

    def order(self, context: OrderContext) -> Order:
        return _BalancedOrder(context, self._size(context))


class _BalancedOrder(Order):
    def __init__(self, context: OrderContext, epoch_size: int):
        super().__init__(context, epoch_size)
        self._classes = _ByClass(context, "sampling=balanced")

    def _at(self, places: Int) -> Int:
        rounds, within = np.divmod(places, self._classes.count)
        return self._classes.take(self._classes.shuffled(rounds, within), rounds)


@dataclass(kw_only=True, slots=True)
class PerClass(Sampling):
    """`classes` × `samples` in every global batch, class by class: for losses that compare images of a batch.

    An image comes twice in a batch only if its class has fewer than `samples`.

    Attributes:
        classes, samples: classes of a global batch, and images of each; their product is the global batch size.
    """

    classes: int = option(8, check_min, 1)
    samples: int = option(4, check_min, 1)

    def order(self, context: OrderContext) -> Order:
        if self.classes * self.samples != context.global_batch_size:
            raise ConfigError(
                f"sampling=per_class: {self.classes} classes × {self.samples} samples are not the global batch of "
                f"{context.global_batch_size}; set sampling.classes, sampling.samples or the batch size"
            )
        size = self._size(context)
        return _PerClassOrder(context, size - size % context.global_batch_size or context.global_batch_size, self)

    def fingerprint(self, manifest: Manifest) -> dict[str, Any]:
        return Sampling.fingerprint(self, manifest) | {"classes": self.classes, "samples": self.samples}


class _PerClassOrder(Order):
    def __init__(self, context: OrderContext, epoch_size: int, sampling: PerClass):
        super().__init__(context, epoch_size)
        self._classes, self._sampling = _ByClass(context, "sampling=per_class"), sampling
        if sampling.classes > self._classes.count:
            raise ConfigError(f"sampling.classes is {sampling.classes}, and there are {self._classes.count} classes with images")

    def _at(self, places: Int) -> Int:
        samples, batches_of_round = self._sampling.samples, self._classes.count // self._sampling.classes
        step, within = np.divmod(places, self._context.global_batch_size)
        rounds, batch = np.divmod(step, batches_of_round)
        chosen = self._classes.shuffled(rounds, batch * self._sampling.classes + within // samples)
        visits = np.maximum(self._classes.sizes[chosen] // samples, 1)  # of a class in one pass over its images
        passes, visit = np.divmod(rounds, visits)
        return self._classes.image(chosen, passes, (visit * samples + within % samples) % self._classes.sizes[chosen])


@dataclass(kw_only=True, slots=True)
class Repeated(Sampling):
    """Every image several times in a batch, each time with other random numbers: repeated augmentation (Hoffer et al., 2020).

    Attributes:
        times: how often.
        spread: put the repeats into different parts of the global batch, and so on different shards, as timm and DeiT do; otherwise
            they lie side by side.
    """

    times: int = option(3, check_min, 1)
    spread: bool = False

    def order(self, context: OrderContext) -> Order:
        if self.spread and context.global_batch_size % self.times:
            raise ConfigError(
                f"sampling.times is {self.times}, which does not divide the global batch of {context.global_batch_size}; with "
                "sampling.spread=true it must"
            )
        return _RepeatedOrder(context, self._size(context), self)

    def fingerprint(self, manifest: Manifest) -> dict[str, Any]:
        return Sampling.fingerprint(self, manifest) | {"times": self.times, "spread": self.spread}


class _RepeatedOrder(Order):
    def __init__(self, context: OrderContext, epoch_size: int, sampling: Repeated):
        super().__init__(context, epoch_size)
        self._sampling = sampling
        self.algorithm = "feistel" if len(context.manifest) >= LARGE else ""

    def _at(self, places: Int) -> Int:
        n, times = len(self._context.manifest), self._sampling.times
        image = places // times
        if self._sampling.spread:
            step, within = np.divmod(places, self._context.global_batch_size)
            images = self._context.global_batch_size // times
            image = step * images + within % images
        return _passes(image, n, lambda number, within: permuted(n, self._context.seed, number, within))


class _ByClass:
    """The images of each class that has any, in orders that are new each time they have all been taken."""

    def __init__(self, context: OrderContext, what: str):
        labels = _classes(context.manifest, what)
        self._seed = context.seed
        self._members = np.argsort(labels, kind="stable")
        counts = np.bincount(labels)
        self.sizes = counts[counts > 0]
        self.count = len(self.sizes)
        self._starts = self.sizes.cumsum() - self.sizes
        self._order, self._pass = self._members.copy(), np.full(self.count, -1)

    def shuffled(self, rounds: Int, places: Int) -> Int:
        """The classes at these places of rounds in which each comes once."""
        every, which = np.unique(rounds, return_inverse=True)
        numbers = every[:, None] * self.count + np.arange(self.count)
        high, low, *_ = _words(self._seed, numbers, draw=1)
        keys = high.astype(np.uint64) << np.uint64(32) | low
        return np.argsort(keys, axis=1, kind="stable")[which, places]

    def take(self, classes: Int, turns: Int) -> Int:
        """The image that each class gives at its turn: all of them before one comes again."""
        passes, within = np.divmod(turns, self.sizes[classes])
        return self.image(classes, passes, within)

    def image(self, classes: Int, passes: Int, within: Int) -> Int:
        """The image at a place of the `passes`-th order of its class."""
        found, left = np.empty(len(classes), np.int64), np.arange(len(classes))
        while len(left):  # the first pass that is asked of each class, then the next
            named, first = np.unique(classes[left], return_index=True)
            wanted = passes[left][first]
            self._shuffle(named[self._pass[named] != wanted], wanted[self._pass[named] != wanted])
            ready = self._pass[classes[left]] == passes[left]
            now = left[ready]
            found[now] = self._order[self._starts[classes[now]] + within[now]]
            left = left[~ready]
        return found

    def _shuffle(self, classes: Int, passes: Int) -> None:
        """Brings these classes into the order of a pass."""
        sizes = self.sizes[classes]
        places = np.arange(sizes.sum()) + np.repeat(self._starts[classes] - (sizes.cumsum() - sizes), sizes)
        keys, *_ = philox4x32((places & 0xFFFFFFFF, np.repeat(passes, sizes), 2, Kind.ORDER), self._seed)
        self._order[places] = self._members[places][np.lexsort((keys, np.repeat(np.arange(len(classes)), sizes)))]
        self._pass[classes] = passes


def _classes(manifest: Manifest, what: str) -> Int:
    """(N,) class numbers."""
    if manifest.task != "classification":
        raise ConfigError(f"{what} needs one class for each image, and the labels are for {manifest.task}")
    return manifest.take_labels(np.arange(len(manifest)))


def _passes(places: Int, n: int, take: Any) -> Int:
    """`take(number, places)` for each pass over n images that the places lie in."""
    numbers, within = np.divmod(places, n)
    found = np.empty(len(places), np.int64)
    for number in np.unique(numbers):
        here = numbers == number
        found[here] = take(int(number), within[here])
    return found


def _words(seed: int, numbers: Int, draw: int) -> NDArray[np.uint32]:
    """(4, …) random words for numbers of orders below 2**56."""
    return philox4x32((numbers & 0xFFFFFFFF, 0, draw, numbers >> 32 << 8 | Kind.ORDER), seed)
