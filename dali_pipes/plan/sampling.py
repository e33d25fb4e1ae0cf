"""Samplings: which samples make an epoch, and in which order.

A sampling holds the options; its `order` makes an `Order` for one manifest, seed and global batch
size, which turns places into ids. `SAMPLINGS` has their names, `named` makes one from a name or a
mapping, and `chosen` is the sampling of a loader. docs/sampling.md compares them.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.data.image_table import Shards
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.shards.copies import cache_bytes
from dali_pipes.errors import (
    ConfigError,
    OptionError,
    Options,
    check_choice,
    check_if_given,
    check_int,
    check_number,
    check_options,
    option,
)
from dali_pipes.plan.mixed_windows import MixedLanes, MixedShards
from dali_pipes.plan.order import Groups, Order, Seat, Shares, weighted
from dali_pipes.plan.permutation import bijection, stored
from dali_pipes.plan.philox import Kind
from dali_pipes.plan.windows import PlainLanes, near
from dali_pipes.system.nodes import nodes_of_run

Int = NDArray[np.int64]
LARGE = 2**24  # images from which on no permutation is stored
_MOST_SAMPLES = 2**48  # of an epoch; places of 64 bits count samples over many epochs
_PROPORTIONAL = 2**12  # samples in which a proportional mixture has its shares


@dataclass(kw_only=True, slots=True)
class Sampling(Options, ABC):
    """Which samples make an epoch, and in which order; the base of all samplings.

    Attributes:
        epoch_size: samples of one epoch over all ranks; None: as many as there are images. The
            next epoch goes on where this one stopped, so that a shorter epoch leaves nothing out in
            the long run.
    """

    epoch_size: int | None = option(None, check_if_given, check_int, 1, _MOST_SAMPLES)

    def __post_init__(self) -> None:
        check_options(self)

    @abstractmethod
    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        """The order for these images, this seed and this global batch size.

        Raises:
            ConfigError: these images or batches cannot be sampled in this way.
        """

    def orders(self, manifest: Manifest, seed: int, global_batch_size: int) -> dict[int, Order]:
        """The orders by the epoch from which on each holds."""
        return {0: self.order(manifest, seed, global_batch_size)}

    def state(self, manifest: Manifest) -> dict[str, Any]:
        """What decides the order, for a loader's state."""
        given = {"kind": type(self).__name__} | {
            name: getattr(self, name) for name in self.__dataclass_fields__
        }
        return {name: value for name, value in given.items() if value is not None}

    def _size(self, manifest: Manifest, whole: int = 1) -> int:
        """Samples of an epoch, a multiple of `whole`: for samplings with whole batches only."""
        return max((self.epoch_size or len(manifest)) // whole, 1) * whole


@dataclass(kw_only=True, slots=True)
class Uniform(Sampling):
    """Every image once, in a new random order each time: what `shuffle=True` means.

    From 2**24 images on the order is a keyed bijection, of which a step costs what its batch costs;
    below it is stored.
    """

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        n, size = len(manifest), self._size(manifest)

        def at(places: Int) -> Int:
            numbers, within = np.divmod(places, n)
            if n >= LARGE:
                return bijection(n, within, seed, Kind.IMAGES, numbers)

            found = np.empty(len(places), np.int64)
            for number in np.unique(numbers).tolist():
                here = numbers == number
                found[here] = stored(n, seed, number)[within[here]]
            return found

        return Order(size, at, repeats=size != n)

    def state(self, manifest: Manifest) -> dict[str, Any]:
        return Sampling.state(self, manifest) | (
            {"permutation": "Feistel"} if len(manifest) >= LARGE else {}
        )


@dataclass(kw_only=True, slots=True)
class Sequential(Sampling):
    """Every image once, in the manifest's order: what `shuffle=False` means."""

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        n, size = len(manifest), self._size(manifest)
        return Order(size, lambda places: places % n, repeats=size != n)


@dataclass(kw_only=True, slots=True)
class Weighted(Sampling):
    """Each draw independent of all others, with replacement: torch's WeightedRandomSampler.

    It keeps 8 bytes of memory for each image; a draw is a binary search in them.

    Attributes:
        weights: a column of the manifest, a weight for each class by its name, or one for each
            image in the order of their ids.
    """

    weights: Any = field(default=None, metadata={"as_is": True})

    def __post_init__(self) -> None:
        check_options(self)
        if self.weights is None:
            raise OptionError(
                type(self),
                (
                    "weights is missing; it takes a column, {class: weight}, or a number for each "
                    "image"
                ),
            )

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        return Order(self._size(manifest), weighted(self._of_each(manifest), seed))

    def state(self, manifest: Manifest) -> dict[str, Any]:
        digest = hashlib.sha256(self._of_each(manifest).tobytes()).hexdigest()[:16]
        return Sampling.state(self, manifest) | {"weights": digest}

    def _of_each(self, manifest: Manifest) -> NDArray[np.float64]:
        weights = _weights(manifest, self.weights)
        if weights.shape != (len(manifest),):
            raise ConfigError(
                f"sampling.weights: {weights.size:,} weights for {len(manifest):,} images; it "
                "takes one for each"
            )
        if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
            raise ConfigError(
                "sampling.weights: a weight is a number from 0 on, and one at least is above 0"
            )
        return weights


@dataclass(kw_only=True, slots=True)
class Balanced(Sampling):
    """Each class as often: rounds of all classes in a random order, and of each class all its
    images before one comes again.
    """

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        groups = Groups(_classes(manifest, "sampling=balanced"), seed)

        def seats(places: Int) -> Seat:
            rounds, within = np.divmod(places, len(groups))
            return groups.in_turn(bijection(len(groups), within, seed, Kind.GROUPS, rounds), rounds)

        return groups.order(self._size(manifest), seats, apart=global_batch_size // len(groups) + 2)


@dataclass(kw_only=True, slots=True)
class PerClass(Sampling):
    """`classes` × `samples` in every global batch, class by class: for losses that compare images
    of a batch.

    An image comes twice in a batch only if its class has fewer than `samples`. An epoch is whole
    batches.

    Attributes:
        classes, samples: classes of a global batch, and images of each; their product is the global
            batch size.
    """

    classes: int = option(8, check_int, 1, _MOST_SAMPLES)
    samples: int = option(4, check_int, 1, _MOST_SAMPLES)

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        if self.classes * self.samples != global_batch_size:
            raise ConfigError(
                f"sampling=per_class: {self.classes} classes × {self.samples} samples are "
                "not the global batch of "
                f"{global_batch_size}; set sampling.classes, sampling.samples or the batch size"
            )

        groups = Groups(_classes(manifest, "sampling=per_class"), seed)
        if self.classes > len(groups):
            raise ConfigError(
                f"sampling.classes is {self.classes}, and there are {len(groups)} classes with "
                "images"
            )

        # how often a class comes until all of its images have come
        visits = np.maximum(groups.sizes // self.samples, 1)

        def seats(places: Int) -> Seat:
            step, within = np.divmod(places, global_batch_size)

            # rounds of all classes in a random order, `classes` of them in a batch
            rounds, batch = np.divmod(step, len(groups) // self.classes)
            group = bijection(
                len(groups),
                batch * self.classes + within // self.samples,
                seed,
                Kind.GROUPS,
                rounds,
            )

            number, visit = np.divmod(rounds, visits[group])
            return Seat(
                group, number, (visit * self.samples + within % self.samples) % groups.sizes[group]
            )

        return groups.order(self._size(manifest, global_batch_size), seats, apart=self.samples)


@dataclass(kw_only=True, slots=True)
class Repeated(Sampling):
    """Each image several times in a batch, each time with other random numbers: repeated
    augmentation (Hoffer et al., "Augment your batch", CVPR 2020). An epoch has as many samples as
    there are images, so that it sees 1/times of them; the next goes on.

    Attributes:
        times: how often.
        spread: the repeats lie in different parts of the global batch, and so on different shards,
            as DeiT's and timm's RepeatAugSampler has them; otherwise they lie side by side.
    """

    times: int = option(3, check_int, 1, _MOST_SAMPLES)
    spread: bool = False

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        n, times, batch = len(manifest), self.times, global_batch_size
        # with `spread` the batch's places in the order 0, times, 2 · times, …, 1, times + 1, …
        dealt = (
            np.argsort(np.arange(batch) % times, kind="stable") if self.spread else np.arange(batch)
        )

        def at(places: Int) -> Int:
            step, within = np.divmod(places, batch)
            number, place = np.divmod((step * batch + dealt[within]) // times, n)
            return bijection(n, place, seed, Kind.IMAGES, number)

        return Order(self._size(manifest, batch if self.spread else 1), at)


@dataclass(kw_only=True, slots=True)
class Mixture(Sampling):
    """What `Manifest.mix` says: shares of several sources, of which each has its own epochs."""

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        mixture = manifest.mixture
        if mixture is None:
            raise ConfigError(
                "sampling=mixture is for the images of Manifest.mix, and these are not"
            )

        stratified = mixture.mode == "stratified"
        shares = _mixed_shares(manifest, global_batch_size if stratified else _PROPORTIONAL, seed)
        groups = Groups(manifest.columns["source"], seed)

        size = self._size(manifest, global_batch_size if stratified else 1)
        return groups.order(
            size, lambda places: groups.in_turn(*shares.turns(places)), apart=int(shares.most.max())
        )

    def state(self, manifest: Manifest) -> dict[str, Any]:
        return Sampling.state(self, manifest) | _mixture_state(manifest)


@dataclass(kw_only=True, slots=True)
class Schedule(Sampling):
    """One sampling after the other.

    Attributes:
        schedule: maps an epoch to the sampling from then on, the first to that of epoch 0: {0:
            "balanced", 10: "uniform"}; with options it is {"name": "weighted", "weights": "loss"},
            or a Sampling. All have epochs of the same size.
    """

    schedule: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_options(self)
        given = {
            int(epoch): sampling
            for epoch, sampling in self.schedule.items()
            if str(epoch).isdecimal()
        }
        if 0 not in given or len(given) < len(self.schedule):
            raise ConfigError(
                f"sampling.schedule is {self.schedule}; it takes epochs and samplings, and "
                "begins with that of epoch 0, such as "
                "{0: balanced, 10: uniform}"
            )

        self.schedule = {epoch: self._phase(given[epoch]) for epoch in sorted(given)}

    def _phase(self, given: Any) -> Sampling:
        sampling = named(given)
        if isinstance(sampling, Schedule):
            raise ConfigError(
                "sampling.schedule: a schedule within a schedule; put all epochs into one"
            )
        return (
            sampling
            if sampling.epoch_size or not self.epoch_size
            else replace(sampling, epoch_size=self.epoch_size)
        )

    def orders(self, manifest: Manifest, seed: int, global_batch_size: int) -> dict[int, Order]:
        orders = {
            since: each.order(manifest, seed, global_batch_size)
            for since, each in self.schedule.items()
        }

        sizes = {since: each.epoch_size for since, each in orders.items()}
        if len(set(sizes.values())) > 1:
            multiple = (
                f"set sampling.epoch_size to a multiple of the global batch of {global_batch_size}"
            )
            raise ConfigError(
                f"sampling.schedule has epochs of different sizes, {sizes}; {multiple}"
            )

        return orders

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        return self.orders(manifest, seed, global_batch_size)[0]

    def state(self, manifest: Manifest) -> dict[str, Any]:
        return {"kind": "Schedule"} | {
            str(since): each.state(manifest) for since, each in self.schedule.items()
        }


@dataclass(kw_only=True, slots=True)
class Windows(Sampling):
    """Every image once, in an order that needs a few shards at a time, for shards that do not all
    fit onto a machine.

    The shards are dealt to lanes in a new random order each epoch; a lane reads window after window
    of whole shards, permutes the samples of each, and has its own share of every global batch. Of a
    stratified `Manifest.mix` each source has windows of its own.

    Attributes:
        lanes: how many; the ranks divide them, or are divided by them. None: one for each machine
            of the run.
        window_gb: 10**9 bytes of shards that a window of a lane has at most. None: half of what the
            machine's cache of copies may hold for the lane, so that it holds the next window too.
        times: how often an image comes, side by side, as `Repeated` has them.
    """

    lanes: int | None = option(None, check_if_given, check_int, 1, 2**16)
    window_gb: float | None = option(None, check_if_given, check_number, 1e-6, 1e6)
    times: int = option(1, check_int, 1, _MOST_SAMPLES)

    def __post_init__(self) -> None:
        check_options(self)
        nodes = nodes_of_run() or 1
        self.lanes = self.lanes or nodes

        self.window_gb = (
            self.window_gb or cache_bytes() // (2 * math.ceil(self.lanes / nodes)) / 1e9
        )

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        assert self.lanes and self.window_gb
        if global_batch_size % self.times:
            fits = near(global_batch_size, self.times * self.lanes)
            raise ConfigError(
                f"sampling.times={self.times} does not divide a global batch of "
                f"{global_batch_size}; {fits} would do"
            )

        shards, window = _shards(manifest), round(self.window_gb * 1e9)
        if manifest.mixture:
            return self._mixed(manifest, shards, window, global_batch_size, seed)

        size = self._size(manifest, 1 if self.times == 1 else global_batch_size)
        cut = (self.lanes, window, global_batch_size // self.times, size // self.times, seed)
        lanes = PlainLanes(np.bincount(shards.numbers), shards.bytes, *cut)
        # only if the images of a shard are not side by side in the manifest
        apart = (np.diff(shards.numbers) < 0).any()
        members = np.argsort(shards.numbers, kind="stable") if apart else None

        def at(places: Int) -> Int:
            found = lanes.at(places // self.times)
            return found if members is None else members[found]

        return Order(size, at, repeats=self.times > 1 or size != len(manifest), lanes=lanes)

    def _mixed(
        self, manifest: Manifest, shards: Shards, window: int, global_batch_size: int, seed: int
    ) -> Order:
        mixture, batch = manifest.mixture, global_batch_size // self.times
        assert mixture and self.lanes
        if mixture.mode != "stratified":
            raise ConfigError(
                "sampling=windows is for stratified mixtures, and this one is proportional; "
                "leave its `mode` out"
            )

        shares, size = (
            _mixed_shares(manifest, max(batch // self.lanes, 1), seed),
            self._size(manifest, global_batch_size),
        )
        source = manifest.columns["source"]
        of_each = (np.flatnonzero(source == number) for number in range(len(mixture.shares)))
        each = [MixedShards(ids, shards.numbers[ids], shards.bytes) for ids in of_each]

        lanes = MixedLanes(each, shares, self.lanes, window, batch, size // global_batch_size, seed)
        return Order(size, lambda places: lanes.at(places // self.times), lanes=lanes)

    def state(self, manifest: Manifest) -> dict[str, Any]:
        digest = hashlib.sha256(_shards(manifest).bytes.tobytes()).hexdigest()[:16]
        state = {"algorithm": "line of shards, Feistel", "shard_sizes": digest}
        return Sampling.state(self, manifest) | state | _mixture_state(manifest)


SAMPLINGS: dict[str, type[Sampling]] = {
    "uniform": Uniform,
    "sequential": Sequential,
    "weighted": Weighted,
    "balanced": Balanced,
    "per_class": PerClass,
    "repeated": Repeated,
    "mixture": Mixture,
    "schedule": Schedule,
    "windows": Windows,
}


def named(given: Any) -> Sampling:
    """A sampling by its name, by {"name": …} with its options, or as it is.

    Raises:
        ConfigError: there is no such sampling or option.
    """
    if isinstance(given, Sampling):
        return given

    options = dict(given) if isinstance(given, Mapping) else {"name": given}
    name = options.pop("name", None)
    check_choice("sampling", name, tuple(SAMPLINGS))
    try:
        return SAMPLINGS[name](**options)
    except TypeError as error:
        known = ", ".join(SAMPLINGS[name].__dataclass_fields__)
        raise ConfigError(
            # Python's own message begins with the name of the class
            f"sampling {name}: {str(error).split('__init__() ')[-1]}; its options are {known}"
        ) from None


def chosen(given: Any, shuffle: bool | None, manifest: Manifest, training: bool) -> Sampling:
    """The sampling of a loader.

    It is `given`, or else what `shuffle` or the kind of transform implies.

    Raises:
        ConfigError: `given` contradicts `shuffle`, or does not fit a mixture.
    """
    implied = (
        Sequential()
        if not (training if shuffle is None else shuffle)
        else Mixture()
        if manifest.mixture
        else Uniform()
    )
    if given is None:
        return implied

    sampling = named(given)
    if shuffle is not None and type(sampling) is not type(implied):
        raise ConfigError(
            f"shuffle={shuffle} and sampling={type(sampling).__name__} are both given and say "
            "different things"
        )

    if manifest.mixture and not isinstance(sampling, (Mixture, Sequential, Windows)):
        raise ConfigError(
            f"sampling={type(sampling).__name__} on images of Manifest.mix, whose shares "
            "say what is drawn; join them with "
            "Manifest.concat instead, or leave sampling out"
        )

    return sampling


def _mixed_shares(manifest: Manifest, window: int, seed: int) -> Shares:
    """The shares of a mixture in windows of so many samples."""
    assert manifest.mixture
    names, numbers = list(manifest.mixture.shares), np.array(list(manifest.mixture.shares.values()))

    if missing := sorted(set(range(len(names))) - set(manifest.columns["source"].tolist())):
        raise ConfigError(
            f"the source {names[missing[0]]!r} of the mixture has no image; leave it out"
        )

    shares = Shares(numbers, window, seed)
    if not shares.in_period.all():
        name = names[int(shares.in_period.argmin())]
        raise ConfigError(
            f"the share of {name!r} is less than a sample in 512 batches; give it more, or "
            "leave it out"
        )

    return shares


def _mixture_state(manifest: Manifest) -> dict[str, Any]:
    return (
        {"mode": manifest.mixture.mode, "shares": manifest.mixture.shares}
        if manifest.mixture
        else {}
    )


def _shards(manifest: Manifest) -> Shards:
    shards = manifest.shards
    if not shards.bytes.all():
        raise ConfigError(
            f"sampling=windows is for shards, and {manifest.root} has images that are "
            "files of their own; pack them by `dali-pipes "
            "prepare to=shards`, or leave sampling out"
        )
    return shards


def _weights(manifest: Manifest, given: Any) -> NDArray[np.float64]:
    ids = np.arange(len(manifest))
    if isinstance(given, str):
        columns = manifest.take_columns(ids)
        if given not in columns:
            raise ConfigError(
                f"sampling.weights: there is no column {given!r} of numbers; there is "
                f"{', '.join(columns) or 'none'}"
            )
        return _floats(columns[given])

    if isinstance(given, Mapping):
        by_name = dict(zip(map(str, given), _floats(list(given.values())), strict=True))
        if set(by_name) != set(manifest.classes):
            missing, unknown = (
                set(manifest.classes) - set(by_name),
                set(by_name) - set(manifest.classes),
            )

            problem = (
                f"no weight for {sorted(missing)[0]!r}"
                if missing
                else f"there is no class {sorted(unknown)[0]!r}"
            )
            raise ConfigError(f"sampling.weights: {problem}; give one for each class")

        return np.array([by_name[name] for name in manifest.classes])[
            _classes(manifest, "weights by class")
        ]

    return _floats(given)


def _floats(values: Any) -> NDArray[np.float64]:
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"sampling.weights are no numbers: {error}") from None


def _classes(manifest: Manifest, what: str) -> Int:
    """(n,) class numbers."""
    if manifest.task != "classification":
        raise ConfigError(
            f"{what} needs one class for each image, and the labels are for {manifest.task}"
        )
    return manifest.take_labels(np.arange(len(manifest)))
