"""Which sample is in which batch, with which crop, flip and augmentation.

It is a pure function of (seed, epoch, step, rank). The sampling gives the order of an epoch's ids;
`_places` takes this rank's slice of a step; the transform draws geometry and augmentation for these
ids (`_draw`). `Plan.batch` plans one step, `Plan.iter_from` all from one step on.
"""

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ParamSpec, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import LARGEST_SEED, check_choice, check_int
from dali_pipes.data.loose_images import LooseImages
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.objects import Objects
from dali_pipes.errors import ConfigError, OptionError, SmallDataError
from dali_pipes.options import check_arguments, check_options
from dali_pipes.plan.coordinates import turn_upright
from dali_pipes.plan.draws import LARGEST_EPOCH, Draws, Kind
from dali_pipes.plan.geometry import Geometry, Pair
from dali_pipes.plan.order import Order
from dali_pipes.plan.sampling import Sampling, Uniform, Windows, parse_sampling
from dali_pipes.plan.steps.operations import Augmentation
from dali_pipes.plan.steps.whole import DrawnStep
from dali_pipes.plan.transforms import Transform
from dali_pipes.plan.windows import Lanes, LanesError

P = ParamSpec("P")
R = TypeVar("R")

LARGEST_BATCH = 2**24
RANK_ARGUMENT = "rank=Rank(index, count), or Rank.from_env() under torchrun"
# The variables of a process's rank and of their number, as launchers set them. srun's come last: in
# an allocation of SLURM, srun may start mpirun's one process on each machine, which starts ranks.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),  # torchrun, Ray, Accelerate
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI's mpirun
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),  # MVAPICH2's
    ("PMI_RANK", "PMI_SIZE"),  # that of MPICH and of Intel MPI
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),  # flux run
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun
)
_PLANNING_CHUNK = 1024  # samples, over which NumPy's cost per call is spread


@dataclass(frozen=True, slots=True)
class Rank:
    """This process's part of every global batch.

    Attributes:
        index: from 0 to count - 1.
        count: how many processes share the data.
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        check_options(self)
        if not 0 <= self.index < self.count:
            raise ConfigError(
                f"rank {self.index} of {self.count} does not exist; the index runs from 0 to "
                "count - 1"
            )

    @classmethod
    def from_env(cls) -> Self:
        """The rank and world size of this process, from the environment.

        torchrun sets RANK and WORLD_SIZE, srun sets SLURM_PROCID and SLURM_STEP_NUM_TASKS, mpirun
        and flux their own; without them it is rank 0 of 1. A SLURM batch script is one process: it
        has SLURM_NTASKS, but only srun starts that many.

        Raises:
            ConfigError: the variables are no rank and number of ranks.
        """
        for index, count in _LAUNCHERS:
            if index in os.environ and count in os.environ:
                try:
                    return cls(int(os.environ[index]), int(os.environ[count]))
                except ValueError:
                    variables = f"{index}={os.environ[index]} and {count}={os.environ[count]}"
                    raise ConfigError(
                        f"{variables} in the environment are not a rank and a world size"
                    ) from None
        return cls()


@dataclass(frozen=True, slots=True)
class PlannedView:
    """What is made of N images in one view."""

    geometry: Geometry  # regions, sizes, crops and flips, of images as `before` leaves them
    augmentation: Augmentation  # further operations on the pixels
    shape: Pair  # height and width of what is made, equal for all of a batch
    before: tuple[DrawnStep, ...] = ()  # steps on whole images
    # (N,) the place of each image's interpolation in `INTERPOLATIONS`; None: that of the transform
    interpolations: NDArray[np.int8] | None = None

    def take(self, places: NDArray[np.int64] | slice) -> "PlannedView":
        return PlannedView(
            self.geometry.take(places),
            self.augmentation.take(places),
            self.shape,
            tuple(step.take(places) for step in self.before),
            None if self.interpolations is None else self.interpolations[places],
        )

    @property
    def source(self) -> NDArray[np.int64]:
        """(N, 2) height and width of the images as they are decoded."""
        return self.before[0].source if self.before else self.geometry.source

    @property
    def region(self) -> NDArray[np.int64]:
        """(N, 4) top, left, height, width of what is decoded of the images."""
        if not self.before:
            return self.geometry.region
        return np.concatenate([np.zeros_like(self.source), self.source], axis=1)


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """What one rank does in one step with N samples."""

    epoch: int
    step: int
    ids: NDArray[np.int64]  # (N,) int64
    # what is made of each image, once for each view of the transform's `groups`
    groups: tuple[tuple[PlannedView, ...], ...]
    images: Manifest | LooseImages  # that `ids` number

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def views(self) -> tuple[PlannedView, ...]:
        """All views of `groups`."""
        if len(self.groups) == 1:  # it is asked for with every image
            return self.groups[0]
        return tuple(view for group in self.groups for view in group)

    @property
    def geometry(self) -> Geometry:
        """The geometry of the first view."""
        return self.groups[0][0].geometry

    @property
    def source(self) -> NDArray[np.int64]:
        """(N, 2) height and width of the images as they are decoded."""
        return self.groups[0][0].source

    @property
    def augmentation(self) -> Augmentation:
        """The augmentation of the first view."""
        return self.groups[0][0].augmentation

    @property
    def shape(self) -> Pair:
        """Height and width of the first view."""
        return self.groups[0][0].shape

    @property
    def region(self) -> NDArray[np.int64]:
        """(N, 4) top, left, height, width of the smallest regions that hold those of all views."""
        # an image is decoded once for all of its views
        regions = [view.region for view in self.views]
        if len(regions) == 1:
            return regions[0]
        start = np.min([region[:, :2] for region in regions], axis=0)
        end = np.max([region[:, :2] + region[:, 2:] for region in regions], axis=0)
        return np.concatenate([start, end - start], axis=1)

    def take(self, places: NDArray[np.int64] | slice) -> Self:
        """The same step with some of its samples, in the order of `places`."""
        groups = tuple(tuple(view.take(places) for view in group) for group in self.groups)
        return replace(self, ids=self.ids[places], groups=groups)


@dataclass(frozen=True)
class Plan:
    """The planned batches of every step of every epoch.

    A global step takes the next `batch_size * rank.count` ids of the epoch's order, and rank r its
    r-th slice, so the global batches do not depend on the number of ranks as long as their size is
    the same.

    Attributes:
        batch_size: samples a rank takes per step.
        sampling: which samples an epoch has, and in which order.
        last_batch: what happens to samples that do not fill a global batch. "partial" delivers
            them, spread evenly over the ranks; "drop" leaves them out; "pad" fills the batch up
            from the start of the epoch's order; "even" does so only until all ranks have equally
            many, as DistributedSampler does.

    Raises:
        ConfigError: there is no usable image, or options, images and ranks do not fit together.
        SmallDataError: the images do not fill one global batch, and last_batch is "drop".
    """

    manifest: Manifest
    transform: Transform
    batch_size: int
    seed: int = 0
    sampling: Sampling = field(default_factory=Uniform)
    rank: Rank = Rank()
    last_batch: str = "drop"

    def __post_init__(self) -> None:
        check_options(self)
        if not len(self.manifest):
            raise ConfigError(
                f"{self.manifest.root}: no usable image; Manifest.problems lists what is wrong"
            )

        check_int("batch_size", self.batch_size, 1, LARGEST_BATCH)
        # the dataclass is frozen; what the sampling leaves to the machine is decided here, once
        object.__setattr__(self, "sampling", parse_sampling(self.sampling).on_machine())
        if not 0 <= self.seed <= LARGEST_SEED:
            raise ConfigError(f"seed is {self.seed}; it must lie between 0 and 2**64 - 1")
        check_choice("last_batch", self.last_batch, ("partial", "drop", "pad", "even"))

        # makes the orders of all epochs, so that a sampling that does not fit is refused now
        for lanes in self.all_lanes:
            if lanes:
                try:
                    lanes.check_ranks(self.rank.count)
                except LanesError as error:
                    raise OptionError(Windows, str(error)) from None

        n, batch = self.epoch_size, self.global_batch_size
        if self.last_batch == "drop" and n < batch:
            raise SmallDataError(self.manifest.root, n, self.batch_size, self.rank.count)

    @property
    def global_batch_size(self) -> int:
        return self.batch_size * self.rank.count

    @cached_property
    def epoch_size(self) -> int:
        """Samples of one epoch over all ranks, as the sampling gives them."""
        return self._order(0).epoch_size

    @property
    def epoch_samples(self) -> int:
        """Samples of one epoch over all ranks after `last_batch` has dropped or repeated some."""
        n, batch, ranks = self.epoch_size, self.global_batch_size, self.rank.count
        kinds = {
            "partial": n,
            "drop": n // batch * batch,
            "pad": -(-n // batch) * batch,
            "even": -(-n // ranks) * ranks,
        }
        return kinds[self.last_batch]

    @property
    def steps(self) -> int:
        """Global steps of one epoch."""
        return -(-self.epoch_samples // self.global_batch_size)

    def __len__(self) -> int:
        """Steps of one epoch in which this rank has a sample."""
        return -(-self.rank_samples // self.batch_size)

    @property
    def rank_samples(self) -> int:
        """Samples of one epoch on this rank."""
        full, rest = divmod(self.epoch_samples, self.global_batch_size)
        index, count = self.rank.index, self.rank.count
        # the part of the last, smaller global batch is cut as `_places` cuts it
        return full * self.batch_size + rest * (index + 1) // count - rest * index // count

    @check_arguments(epoch=(0, LARGEST_EPOCH))
    def order(self, epoch: int) -> NDArray[np.int64]:
        """All ids of one epoch, over all ranks, in the order in which they are delivered."""
        return self._order(epoch).ids(epoch, np.arange(self.epoch_size))

    @check_arguments(epoch=(0, LARGEST_EPOCH))
    def make_order(self, epoch: int) -> None:
        """Makes what the first batch of this epoch would wait for: the stored permutation, or the
        passes over the shards, which are cached. It may run in a thread.
        """
        self._order(epoch).ids(epoch, np.arange(1))

    @check_arguments(epoch=(0, LARGEST_EPOCH), step=(0, 2**48))
    def batch(self, epoch: int, step: int, bad: NDArray[np.int64] | None = None) -> PlannedBatch:
        """One step of this rank; `bad` as for `iter_from`.

        Of a last global batch that is too small for all ranks, a rank may have no sample.

        Raises:
            ConfigError: an epoch has no such step.
        """
        self._refuse_beyond(step, self.steps)
        return next(self._plan(epoch, range(step, step + 1), bad))

    @check_arguments(epoch=(0, LARGEST_EPOCH))
    def lanes(self, epoch: int) -> Lanes | None:
        """Which lane reads which shards when; None: any sample may come at any time."""
        return self._order(epoch).lanes

    @property
    def all_lanes(self) -> list[Lanes | None]:
        """The lanes of all epochs."""
        return [order.lanes for order in self._orders.values()]

    def batch_offset(self, step: int) -> int:
        """The index in the epoch's order of this rank's first sample of a step.

        Raises:
            ConfigError: this rank has no sample in such a step.
        """
        self._refuse_beyond(step, len(self))
        return int(self._places(step)[0])

    @check_arguments(epoch=(0, LARGEST_EPOCH), step=(0, 2**48))
    def iter_from(
        self, epoch: int = 0, step: int = 0, bad: NDArray[np.int64] | None = None
    ) -> Iterator[PlannedBatch]:
        """Endless planned batches from one step on, across epochs.

        Several steps are planned at once, which costs less. `bad` are ids that the sampling
        replaces by others, if it has a way to.

        Args:
            step: that of the next batch; after the last one of an epoch, the next epoch begins.

        Raises:
            ConfigError: the epoch has no such step, or this rank has no sample in any.
        """
        if step > self.steps:
            self._refuse_beyond(step, self.steps)
        if not len(self):
            self._refuse_beyond(step, 0)
        return self._iterate(epoch, step, bad)

    def _iterate(
        self, epoch: int, step: int, bad: NDArray[np.int64] | None
    ) -> Iterator[PlannedBatch]:
        ahead = max(1, _PLANNING_CHUNK // self.batch_size)
        while True:
            for start in range(step, len(self), ahead):
                yield from self._plan(epoch, range(start, min(start + ahead, len(self))), bad)
            epoch, step = epoch + 1, 0

    def _plan(
        self, epoch: int, steps: range, bad: NDArray[np.int64] | None = None
    ) -> Iterator[PlannedBatch]:
        each_step = [self._places(step) for step in steps]
        order, places = self._order(epoch), np.concatenate(each_step)
        # "pad" and "even" go on beyond the epoch's end, with samples from its start
        ids = order.ids(epoch, places % self.epoch_size, bad)

        sizes = self.manifest.take_sizes(ids, upright=self.transform.exif == "apply")
        # A sample that the order repeats gets other random numbers each time. What "pad" and "even"
        # repeat of an order without repeats gets the same ones again.
        numbers, kind = (places, Kind.PLACE) if order.repeats else (ids, Kind.SAMPLE)

        groups = self.transform.at(epoch).groups
        objects = (
            self.objects(ids)
            if any(view.crops_around_boxes for group in groups for view in group)
            else None
        )

        views = itertools.count()  # numbers the views over all groups
        planned = [
            [
                _draw(view, sizes, objects, Draws(self.seed, epoch, numbers, kind, next(views)))
                for view in group
            ]
            for group in groups
        ]

        # cut into steps again
        start = 0
        for step, places in zip(steps, each_step, strict=True):
            rows = slice(start, start + len(places))
            yield PlannedBatch(
                epoch,
                step,
                ids[rows],
                tuple(tuple(_view(drawn, rows) for drawn in group) for group in planned),
                self.manifest,
            )
            start += len(places)

    def objects(self, ids: NDArray[np.int64]) -> Objects | None:
        """The objects of these samples, in pixels of the images as they are planned.

        They are turned upright if the transform turns the images.
        """
        objects = self.manifest.take_objects(ids)
        if objects is None or self.transform.exif != "apply":
            return objects
        sizes = self.manifest.take_sizes(ids, upright=True)
        return turn_upright(
            objects, self.manifest.take_orientations(ids), sizes, self.manifest.facts.keypoints
        )

    def _order(self, epoch: int) -> Order:
        return self._orders[max(since for since in self._orders if since <= epoch)]

    @cached_property
    def sampling_state(self) -> dict[str, Any]:
        """What decides the order, for a loader's state."""
        return self.sampling.state(self.manifest)

    @cached_property
    def _orders(self) -> dict[int, Order]:
        return self.sampling.orders(self.manifest, self.seed, self.global_batch_size)

    def _refuse_beyond(self, step: int, steps: int) -> None:
        if not 0 <= step < steps:
            there = f"they run from 0 to {steps - 1}" if steps else "it has no sample in any"
            of = (
                f"rank {self.rank.index} of {self.rank.count}" if steps < self.steps else "an epoch"
            )
            raise ConfigError(f"step is {step}, and {of} has {steps:,} steps; {there}")

    def _places(self, step: int) -> NDArray[np.int64]:
        """The slice of the epoch's order that holds this rank's samples of one step."""
        start = step * self.global_batch_size
        size = min(self.global_batch_size, self.epoch_samples - start)
        index, count = self.rank.index, self.rank.count
        # Each rank begins where the one before it ends. The parts of a smaller last batch differ by
        # one sample at most.
        return np.arange(start + size * index // count, start + size * (index + 1) // count)


# one view of the samples of several steps
Drawn = tuple[Transform, PlannedView]


def _draw(
    transform: Transform, sizes: NDArray[np.int64], objects: Objects | None, draws: Draws
) -> Drawn:
    before = transform.draw_before(sizes, draws)
    sizes = before[-1].size if before else sizes
    geometry = (
        transform.geometry(sizes, draws)
        if objects is None
        else transform.geometry_around(sizes, objects, draws)
    )
    augmentation = transform.augmenter.draw(draws, len(sizes), transform.shape)
    interpolations = transform.draw_interpolations(draws)
    view = PlannedView(geometry, augmentation, transform.shape, before, interpolations)
    return transform, view


def _view(drawn: Drawn, rows: slice) -> PlannedView:
    """The view in one step."""
    transform, view = drawn
    view = view.take(rows)
    geometry, shape = transform.place_in_batch(view.geometry)
    return replace(view, geometry=geometry, shape=shape)
