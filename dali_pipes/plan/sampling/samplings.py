"""The samplings, each with the order of its epochs.

Without groups: `Sequential`, `Uniform`, `Repeated`. By classes: `Balanced`, `PerClass`, `Weighted`.
Of several sources: `Mixture`. One after the other: `Schedule`. Of shards, a few at a time:
`Windows`; `plan/windows.py` cuts them into lanes and windows.
"""

import hashlib
import math
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import check_int, check_number
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.shards.copies import cache_bytes
from dali_pipes.data.table.samples import Shards
from dali_pipes.errors import ChoiceError, ConfigError, Mention, OptionError
from dali_pipes.options import check_options, option
from dali_pipes.plan.draws import Kind, permute, random_permutation
from dali_pipes.plan.order import PERIOD, GroupPosition, Groups, Order, Shares, draw_by_weight
from dali_pipes.plan.sampling.base import MAX_SAMPLES, Int, Sampling, classes_of, parse_sampling
from dali_pipes.plan.windows import Lanes, LanesError, describe_multiples
from dali_pipes.system.nodes import nodes_of_run


@dataclass(kw_only=True, slots=True)
class Sequential(Sampling):
    """Every image once, in the manifest's order: what `shuffle=False` means."""

    takes_mixtures: ClassVar[bool] = True

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        n, size = len(manifest), self._size(manifest)
        return Order(size, lambda places: places % n, repeats=size != n)


# Images from which on no permutation is stored: to make one of 10 million takes 1.4 s
# (docs/sampling.md), and the time grows with the number of images.
LARGE = 2**24


@dataclass(kw_only=True, slots=True)
class Uniform(Sampling):
    """Every image once, in a new random order each time: what `shuffle=True` means.

    From 2**24 images on the order is a keyed bijection, of which a step costs what its batch costs;
    below it is stored.
    """

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        n, size = len(manifest), self._size(manifest)
        # that of this epoch and, since it is made meanwhile, that of the next one; they are let go
        # with the plan
        stored = lru_cache(maxsize=2)(partial(random_permutation, n, seed))

        def at(places: Int) -> Int:
            numbers, within = np.divmod(places, n)
            if n >= LARGE:
                return permute(n, within, seed, Kind.IMAGES, numbers)

            ids = np.empty(len(places), np.int64)
            for number in np.unique(numbers).tolist():
                here = numbers == number
                ids[here] = stored(number)[within[here]]
            return ids

        # an epoch of another size may have the end of one permutation and the start of the next
        return Order(size, at, repeats=size != n)

    def state(self, manifest: Manifest) -> dict[str, Any]:
        return Sampling.state(self, manifest) | (
            {"permutation": "Feistel"} if len(manifest) >= LARGE else {}
        )


@dataclass(kw_only=True, slots=True)
class Repeated(Sampling):
    """Each image several times in a batch, each time with other random numbers: repeated
    augmentation (Hoffer et al., "Augment your batch", CVPR 2020). An epoch has as many samples as
    there are images, so it sees 1/times of them; the next epoch goes on with the others.

    Attributes:
        times: how often.
        spread: the repeats are in different parts of the global batch, and so on different ranks,
            as with DeiT's and timm's RepeatAugSampler; otherwise they are side by side.
    """

    times: int = option(3, check_int, 1, MAX_SAMPLES)
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
            return permute(n, place, seed, Kind.IMAGES, number)

        return Order(self._size(manifest, batch if self.spread else 1), at)


@dataclass(kw_only=True, slots=True)
class Balanced(Sampling):
    """Each class as often as any other. The classes come in rounds, each in a random order, and all
    images of a class come before one comes again.
    """

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        groups = Groups(classes_of(manifest, Balanced), seed)

        def locate(places: Int) -> GroupPosition:
            rounds, within = np.divmod(places, len(groups))
            return groups.locate_turn(
                permute(len(groups), within, seed, Kind.GROUPS, rounds), rounds
            )

        # a batch touches at most batch // classes + 2 rounds, and a class comes once in each
        return groups.order(
            self._size(manifest), locate, apart=global_batch_size // len(groups) + 2
        )


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

    classes: int = option(8, check_int, 1, MAX_SAMPLES)
    samples: int = option(4, check_int, 1, MAX_SAMPLES)

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        if self.classes * self.samples != global_batch_size:
            raise OptionError(
                PerClass,
                f"classes: {self.classes} classes × {self.samples} samples are not the global "
                f"batch of {global_batch_size}; set classes, samples or the batch size",
            )

        groups = Groups(classes_of(manifest, PerClass), seed)
        if self.classes > len(groups):
            raise OptionError(
                PerClass,
                f"classes is {self.classes}, and there are {len(groups)} classes with images",
            )

        # how often a class comes until all of its images have come
        visits = np.maximum(groups.sizes // self.samples, 1)

        def locate(places: Int) -> GroupPosition:
            step, within = np.divmod(places, global_batch_size)

            # rounds of all classes in a random order, `classes` of them in a batch; those that fill
            # no batch at the end of a round are left out of it
            rounds, batch = np.divmod(step, len(groups) // self.classes)
            group = permute(
                len(groups),
                batch * self.classes + within // self.samples,
                seed,
                Kind.GROUPS,
                rounds,
            )

            # the remainder repeats the images of a class that has fewer than `samples`
            number, visit = np.divmod(rounds, visits[group])
            return GroupPosition(
                group, number, (visit * self.samples + within % self.samples) % groups.sizes[group]
            )

        return groups.order(self._size(manifest, global_batch_size), locate, apart=self.samples)


@dataclass(kw_only=True, slots=True)
class Weighted(Sampling):
    """Each draw independent of all others, with replacement: torch's WeightedRandomSampler.

    It keeps 8 bytes of memory for each image; a draw is a binary search in them.

    Attributes:
        weights: a column of the manifest, a weight for each class by its name, or one for each
            image in the order of their ids.
    """

    # as it is: `check_options` would make a list of Python's numbers of an array with one per image
    weights: Any = field(default=None, metadata={"as_is": True})

    def __post_init__(self) -> None:
        check_options(self)
        if self.weights is None:
            raise OptionError(
                type(self),
                "weights is missing; it takes a column, a weight for each class by its name, or a "
                "number for each image",
            )

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        return Order(self._size(manifest), draw_by_weight(self._weights_of_images(manifest), seed))

    def state(self, manifest: Manifest) -> dict[str, Any]:
        digest = hashlib.sha256(self._weights_of_images(manifest).tobytes()).hexdigest()[:16]
        return Sampling.state(self, manifest) | {"weights": digest}

    def _weights_of_images(self, manifest: Manifest) -> NDArray[np.float64]:
        weights = _read_weights(manifest, self.weights)

        if weights.shape != (len(manifest),):
            raise OptionError(
                Weighted,
                f"weights has {weights.size:,} weights for {len(manifest):,} images; it takes one "
                "for each",
            )
        if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
            raise OptionError(
                Weighted,
                "weights: a weight is a number from 0 on, and one at least is above 0",
            )

        return weights


def _read_weights(manifest: Manifest, value: Any) -> NDArray[np.float64]:
    ids = np.arange(len(manifest))
    if isinstance(value, str):
        columns = manifest.take_columns(ids)
        if value not in columns:
            raise OptionError(
                Weighted,
                f"weights: there is no column {value!r} of numbers; there is "
                f"{', '.join(columns) or 'none'}",
            )
        return _to_floats(columns[value])

    if isinstance(value, Mapping):
        by_name = dict(zip(map(str, value), _to_floats(list(value.values())), strict=True))
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
            raise OptionError(Weighted, f"weights: {problem}; give one for each class")

        return np.array([by_name[name] for name in manifest.classes])[
            classes_of(manifest, Weighted, "by class ")
        ]

    return _to_floats(value)


def _to_floats(values: Any) -> NDArray[np.float64]:
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise OptionError(Weighted, f"weights are no numbers: {error}") from None


_PROPORTIONAL = 2**12  # samples in which a proportional mixture has its shares


@dataclass(kw_only=True, slots=True)
class Mixture(Sampling):
    """What `Manifest.mix` says: shares of several sources, each of which has its own epochs."""

    takes_mixtures: ClassVar[bool] = True

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        mixture = manifest.facts.mixture
        if mixture is None:
            raise ChoiceError(Mixture, "is for the images of Manifest.mix, and these are not of it")

        stratified = mixture.mode == "stratified"
        shares = _mixed_shares(manifest, global_batch_size if stratified else _PROPORTIONAL, seed)
        groups = Groups(manifest.columns["source"], seed)

        size = self._size(manifest, global_batch_size if stratified else 1)
        return groups.order(
            size,
            lambda places: groups.locate_turn(*shares.turns(places)),
            apart=int(shares.most.max()),
        )

    def state(self, manifest: Manifest) -> dict[str, Any]:
        state = Sampling.state(self, manifest)
        mixture = manifest.facts.mixture
        return state | ({"mode": mixture.mode, "shares": mixture.shares} if mixture else {})


def _mixed_shares(manifest: Manifest, window: int, seed: int) -> Shares:
    """The shares of a mixture in windows of so many samples."""
    mixture = manifest.facts.mixture
    assert mixture
    names, numbers = list(mixture.shares), np.array(list(mixture.shares.values()))

    if missing := sorted(set(range(len(names))) - set(manifest.columns["source"].tolist())):
        raise ConfigError(
            f"the source {names[missing[0]]!r} of the mixture has no image; leave it out"
        )

    # `Shares` rounds to 1 / PERIOD of a sample, so a smaller share may be rounded to nothing
    shares = Shares(numbers, window, seed)
    if not shares.in_period.all():
        name = names[int(shares.in_period.argmin())]
        raise ConfigError(
            f"the share of {name!r} is rounded to nothing: sources have whole numbers of every "
            f"{PERIOD * window:,} samples; give it more, or leave it out"
        )

    return shares


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
        # an epoch may be text: JSON has only strings as keys
        phases = {
            int(epoch): sampling
            for epoch, sampling in self.schedule.items()
            if str(epoch).isdecimal()
        }
        if 0 not in phases or len(phases) < len(self.schedule):
            raise OptionError(
                Schedule,
                f"schedule is {self.schedule}; it takes epochs and samplings, and begins with "
                "that of epoch 0, such as ",
                Mention(Schedule, "schedule", {0: "balanced", 10: "uniform"}),
            )

        self.schedule = {epoch: self._parse_phase(phases[epoch]) for epoch in sorted(phases)}

    def _parse_phase(self, value: Any) -> Sampling:
        sampling = parse_sampling(value)
        if isinstance(sampling, Schedule):
            raise OptionError(
                Schedule, "schedule has a schedule within a schedule; put all epochs into one"
            )
        return (
            sampling
            if sampling.epoch_size or not self.epoch_size
            else replace(sampling, epoch_size=self.epoch_size)
        )

    def on_machine(self) -> Self:
        phases = {since: phase.on_machine() for since, phase in self.schedule.items()}
        return replace(self, schedule=phases)

    def explain(self) -> str:
        explained = {since: phase.explain() for since, phase in self.schedule.items()}
        return "; ".join(
            f"from epoch {since} on {text}" for since, text in explained.items() if text
        )

    def orders(self, manifest: Manifest, seed: int, global_batch_size: int) -> dict[int, Order]:
        orders: dict[int, Order] = {}
        states = {since: phase.state(manifest) for since, phase in self.schedule.items()}
        for since, phase in self.schedule.items():
            # phases that are alike share an order, and so the memory that it needs
            alike = (orders[epoch] for epoch in orders if states[epoch] == states[since])
            orders[since] = next(alike, None) or phase.order(manifest, seed, global_batch_size)

        # a plan has one epoch size, that of epoch 0
        sizes = {since: order.epoch_size for since, order in orders.items()}
        if len(set(sizes.values())) > 1:
            raise OptionError(
                Schedule,
                f"schedule has epochs of different sizes, {sizes}; set epoch_size to a multiple "
                f"of the global batch of {global_batch_size}",
            )

        return orders

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        return self.orders(manifest, seed, global_batch_size)[0]

    def state(self, manifest: Manifest) -> dict[str, Any]:
        return {"kind": "Schedule"} | {
            str(since): phase.state(manifest) for since, phase in self.schedule.items()
        }


def choose_sampling(
    value: Any, shuffle: bool | None, manifest: Manifest, training: bool
) -> Sampling:
    """The sampling of a loader.

    It is what `sampling=` says, or else what `shuffle` or the kind of transform implies.

    Args:
        value: of `sampling=`.

    Raises:
        ConfigError: `value` contradicts `shuffle`, or does not fit a mixture.
    """
    implied = (
        Sequential()
        if not (training if shuffle is None else shuffle)
        else Mixture()
        if manifest.facts.mixture
        else Uniform()
    )
    if value is None:
        return implied

    sampling = parse_sampling(value)
    if shuffle is not None and type(sampling) is not type(implied):
        raise ConfigError(
            f"shuffle={shuffle} and the sampling {type(sampling).__name__} are both given and say "
            "different things"
        )

    if manifest.facts.mixture and not sampling.takes_mixtures:
        raise ChoiceError(
            type(sampling),
            "does not fit images of Manifest.mix, whose shares say what is drawn; join them with "
            "Manifest.concat instead, or leave sampling out",
        )

    return sampling


@dataclass(kw_only=True, slots=True)
class Windows(Sampling):
    """Every image once, in an order that needs a few shards at a time, for shards that do not all
    fit onto a machine.

    The shards are dealt to lanes in a new random order each epoch; a lane reads window after window
    of whole shards, permutes the samples of each, and has its own share of every global batch.

    Attributes:
        lanes: how many; the ranks divide them, or are divided by them. None: one for each machine
            of the run.
        window_gb: 10**9 bytes of shards that a window of a lane has at most. None: half of what the
            machine's cache of copies may hold for the lane, so that it holds the next window too.
        times: how often an image comes, side by side, as `Repeated` has them.
    """

    lanes: int | None = option(None, check_int, 1, 2**16)
    window_gb: float | None = option(None, check_number, 1e-6, 1e6)
    times: int = option(1, check_int, 1, MAX_SAMPLES)

    def on_machine(self) -> Self:
        nodes, decided = nodes_of_run() or 1, copy(self)
        decided.lanes = self.lanes or nodes
        # half of the cache, since it also holds the next window of each of the machine's lanes
        here = math.ceil(decided.lanes / nodes)
        decided.window_gb = self.window_gb or cache_bytes() // (2 * here) / 1e9
        return decided

    def explain(self) -> str:
        decided = self.on_machine()
        return f"lanes={decided.lanes}, each with windows of {decided.window_gb:.10g} GB of shards"

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        try:
            return self.on_machine()._order(manifest, seed, global_batch_size)
        except LanesError as error:
            raise OptionError(Windows, str(error)) from None

    def _order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        assert self.lanes and self.window_gb
        if global_batch_size % self.times:
            fits = describe_multiples(global_batch_size, self.times * self.lanes)
            raise OptionError(
                Windows,
                f"times={self.times} does not divide a global batch of {global_batch_size}; "
                f"{fits} would do",
            )

        shards, window = _shards(manifest), round(self.window_gb * 1e9)

        # lanes and windows order single images; the `times` repeats of one are made in `at`
        size = self._size(manifest, 1 if self.times == 1 else global_batch_size)
        cut = (self.lanes, window, global_batch_size // self.times, size // self.times, seed)
        lanes = Lanes(np.bincount(shards.numbers), shards.bytes, *cut)
        # only if the images of a shard are not side by side in the manifest
        apart = (np.diff(shards.numbers) < 0).any()
        members = np.argsort(shards.numbers, kind="stable") if apart else None

        def at(places: Int) -> Int:
            numbers = lanes.at(places // self.times)
            return numbers if members is None else members[numbers]

        return Order(size, at, repeats=self.times > 1 or size != len(manifest), lanes=lanes)

    def state(self, manifest: Manifest) -> dict[str, Any]:
        digest = hashlib.sha256(_shards(manifest).bytes.tobytes()).hexdigest()[:16]
        state = {"algorithm": "line of shards, Feistel", "shard_sizes": digest}
        return Sampling.state(self.on_machine(), manifest) | state


def _shards(manifest: Manifest) -> Shards:
    shards = manifest.shards
    # a file of one image counts as a shard of 0 bytes
    if not shards.bytes.all():
        raise ChoiceError(
            Windows,
            f"is for shards, and {manifest.root} has images that are files of their own; pack "
            "them by `dali-pipes prepare to=shards`, or leave sampling out",
        )
    return shards
