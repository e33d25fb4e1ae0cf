"""What a loader yields, and what a backend must do to yield it.

A loader gives its planned batches to `Backend.stream`, which yields a `Delivery` for each: the
planned batch, and a `DecodedBatch` with its images and ids on the device. The loader adds labels
and targets and yields a `Batch`. A new backend is a subclass of `Backend` with an entry in
`registry.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import register_dataclass, tree_map_only

from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.backends.torch.config import TorchConfig
from dali_pipes.checks import describe_value
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ChoiceError, ConfigError, Mention
from dali_pipes.options import check_arguments
from dali_pipes.plan.philox import BatchDraws
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import Transform, views_of
from dali_pipes.plan.transforms.base import RANDOM
from dali_pipes.system.memory import Need

# the backends that make every view, size and turn of images
_UNIVERSAL = (Mention(DaliConfig), " or ", Mention(TorchConfig))


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """The images that a backend made of N samples, on one device and ready on the current stream.

    The loader adds labels and targets.

    Attributes:
        images: of the first of the transform's `groups`: (V × N, C, H, W) for V views, all images
            of one view before those of the next; C is the transform's `channels`.
        ids: as in `Batch`.
        others: the images of the other groups, in the same form.
        targets: what the backend itself knows of these samples besides, by name.
    """

    images: torch.Tensor
    ids: torch.Tensor
    others: tuple[torch.Tensor, ...] = ()
    targets: dict[str, Any] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[torch.Tensor, ...]:
        return self.images, *self.others

    @classmethod
    def of(cls, groups: Sequence[torch.Tensor], ids: torch.Tensor) -> Self:
        return cls(groups[0], ids, tuple(groups[1:]))

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(slots=True)
class Ragged:
    """Values whose number differs from sample to sample, such as boxes.

    `ragged[i]` holds the values of sample i, and `list(ragged)` those of all samples.

    Attributes:
        values: (M, …) the values of all samples, one sample after the other.
        lengths: how many values each of the N samples has.
    """

    values: torch.Tensor
    lengths: list[int]

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.split(self.values, self.lengths))

    def __getitem__(self, place: int) -> torch.Tensor:
        # as in a list, negative places count from the end, and those beyond it are an IndexError
        place = range(len(self.lengths))[place]
        start = sum(self.lengths[:place])
        return self.values[start : start + self.lengths[place]]

    @property
    def offsets(self) -> torch.Tensor:
        """(N + 1,) int64 on the CPU: the start of each sample in `values`, then their number."""
        # a program may have set another default device
        return torch.tensor([0, *self.lengths], dtype=torch.int64, device="cpu").cumsum(0)


@dataclass(slots=True)
class Batch:
    """N images on one device, ready to use on the current stream.

    It unpacks into `images, labels`, as a DataLoader's batch does; `batch["labels"]` takes a field
    or a target by its name. It is a pytree node, so that `torch.utils._pytree` and what is built on
    it reach its tensors.

    Attributes:
        images: (N, C, H, W), float32, float16, bfloat16 or uint8, contiguous or channels_last; C is
            3, or 1 with channels=1.
        labels: (N,) int64 class numbers; (N, C) float32 for several classes each, or mixed ones;
            (N,) or (N, K) float32 numbers.
        ids: (N,) int64 sample ids; `manifest.name(id)` names the file.
        targets: what else belongs to these samples, by name: `manifest.columns` of numbers, (N,) or
            (N, K); boxes, masks and text (docs/objects.md).
        views: if the transform makes several views of each image: maps each name to its V views,
            (N, V, C, H, W); `images` is the first view.
    """

    images: torch.Tensor
    labels: torch.Tensor
    ids: torch.Tensor
    targets: dict[str, Any] = field(default_factory=dict)
    views: dict[str, torch.Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter((self.images, self.labels))

    def __getitem__(self, name: str | int) -> Any:
        """A field or a target by its name; 0 and 1 are the images and the labels.

        Raises:
            KeyError: there is none of this name.
        """
        if name not in self:
            raise KeyError(
                f"a batch has no {name!r}; it has "
                f"{', '.join(name for name in self._named if isinstance(name, str))}"
            )
        return self._named[name]

    def __contains__(self, name: object) -> bool:
        return name in self._named

    @property
    def text(self) -> list[str]:
        """A text for each image, such as its caption.

        Raises:
            KeyError: the manifest has no text.
        """
        return self["text"]

    @property
    def sizes(self) -> torch.Tensor:
        """(N, 2) int64 height and width of each image within the padded batch.

        An image begins at the top left corner.

        Raises:
            KeyError: the transform makes all images of one size.
        """
        return self["sizes"]

    @property
    def _named(self) -> dict[Any, Any]:
        return {
            # by position too, as the list that a DataLoader yields
            0: self.images,
            1: self.labels,
            "images": self.images,
            "labels": self.labels,
            "ids": self.ids,
            **self.targets,
        }

    @check_arguments()
    def to(
        self,
        device: str | torch.device | torch.dtype | None = None,
        dtype: torch.dtype | None = None,
        non_blocking: bool = False,
    ) -> Self:
        """The same batch with its tensors on `device`, and its images cast to `dtype`.

        As in `Tensor.to`, the dtype may come first. Only images and views are cast: class numbers,
        boxes and masks mean something else in another dtype.
        """
        # `batch.to(torch.float16)`: the only argument may be either
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        if not isinstance(dtype, torch.dtype | None):
            raise ConfigError(
                f"dtype is {describe_value(dtype)}; it takes one of PyTorch's, such as "
                "torch.float16"
            )

        batch = (
            self
            if device is None
            else self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))
        )

        if dtype is None:
            return batch

        views = {name: view.to(dtype) for name, view in batch.views.items()}
        images = _first_of(views) if batch._has_images_in_views else batch.images.to(dtype)
        return replace(batch, images=images, views=views)

    def pin_memory(self) -> Self:
        """The same batch in page-locked memory."""
        return self._each(torch.Tensor.pin_memory)

    def _each(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        if not self._has_images_in_views:
            return tree_map_only(torch.Tensor, function, self)

        rest = self.labels, self.ids, self.targets, self.views
        labels, ids, targets, views = tree_map_only(torch.Tensor, function, rest)
        return type(self)(_first_of(views), labels, ids, targets, views)

    @property
    def _has_images_in_views(self) -> bool:
        """Whether `images` shares its memory with the first view, as the loader makes it. What
        moves a batch keeps it so, and copies these images once.
        """
        if not self.views:
            return False
        first, second = (
            (each.untyped_storage()._cdata, each.storage_offset(), each.shape, each.stride())
            for each in (self.images, _first_of(self.views))
        )
        return first == second

    def __reduce__(self) -> tuple[Any, ...]:
        # pickle keeps the bytes of each tensor, also of those that share their memory
        images = None if self._has_images_in_views else self.images
        return _rebuild, (type(self), images, self.labels, self.ids, self.targets, self.views)

    def __repr__(self) -> str:
        shape, dtype = tuple(self.images.shape), str(self.images.dtype).removeprefix("torch.")
        labels = "labels" if self.labels.ndim == 1 else f"labels={tuple(self.labels.shape)}"
        targets = f", targets {', '.join(self.targets)}" if self.targets else ""
        return (
            f"Batch(images={shape} {dtype} on {self.images.device}, {labels} and ids "
            f"({len(self)},){targets})"
        )


def _first_of(views: dict[str, torch.Tensor]) -> torch.Tensor:
    """(N, C, H, W): the first view of the first group."""
    return next(iter(views.values()))[:, 0]


def _rebuild(
    kind: type[Batch],
    images: torch.Tensor | None,
    labels: torch.Tensor,
    ids: torch.Tensor,
    targets: dict[str, Any],
    views: dict[str, torch.Tensor],
) -> Batch:
    """A batch out of a pickle; images None: they are in the views."""
    return kind(_first_of(views) if images is None else images, labels, ids, targets, views)


# a planned batch and what was made of it
Delivery = tuple[PlannedBatch, DecodedBatch]

register_dataclass(Ragged)
register_dataclass(Batch)


# Makes a new batch from a finished one, on the current stream. It must not write into the tensors
# it is given: some loaders deliver the same images again. If it has a method `check(manifest)`, the
# loader calls that when it is built, to ask whether it fits the images.
BatchTransform = Callable[[Batch, BatchDraws], Batch]


# what a backend may carry out: steps on whole images, a random interpolation, a resize without
# antialiasing, functions of the user's, erased rectangles of noise, and images of one channel
EVERYTHING = frozenset({"before", "interpolation", "antialias", "functions", "noise", "channels"})
# and, of the images themselves, 16 bits a channel
WIDE = "wide"


class Backend(ABC):
    """One way to carry out a plan. A subclass creates what it needs once in `_prepare`.

    Args:
        config: its options, with the number of cores set.
        batch_size: images of a full batch.
        device: where the batches arrive.

    Attributes:
        carries_out: what it makes of a transform besides a crop, a resize, flips and the operations
            of `augment`, by the names of `EVERYTHING` and `WIDE`. The rest is refused by name, so
            that a backend that is older than an option does not leave it out without a word.

    Raises:
        ConfigError: this backend cannot do what is asked for.
    """

    carries_out: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        manifest: Manifest,
        transform: Transform,
        config: Any,
        batch_size: int,
        device: torch.device,
    ):
        self._manifest, self._transform, self._config = (
            manifest,
            transform,
            config.on_device(device),
        )
        self._batch_size, self._device = batch_size, device
        self._refuse_undeclared()
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None: ...

    def __repr__(self) -> str:
        return f"{type(self._config).__name__} on {self._device}"

    def _refuse_augment(self) -> None:
        """For a backend that changes no pixels after the flip."""
        if self._transform.augmenter.policies:
            raise ChoiceError(type(self._config), "does not support augment; use ", *_UNIVERSAL)

    def _refuse_undeclared(self) -> None:
        """Refuses what the transform asks for and `carries_out` does not name."""
        views, transform = views_of(self._transform), type(self._transform)
        plain = any(view.resizes and not view.antialias for view in views)
        random = any(view.interpolation == RANDOM for view in views)
        functions = any(view.augmenter.functions for view in views)
        fills = any(view.augmenter.fills for view in views)
        gray = any(view.channels == 1 for view in views)

        wanted: dict[str, tuple[bool, Any]] = {
            "before": (any(view.has_steps_before for view in views), "before"),
            "interpolation": (random, Mention(transform, "interpolation", RANDOM)),
            "antialias": (plain, Mention(transform, "antialias", False)),
            "functions": (functions, "functions in augment"),
            "noise": (fills, "TimmRandomErasing"),
            "channels": (gray, Mention(transform, "channels", 1)),
        }
        for name, (is_wanted, text) in wanted.items():
            if is_wanted and name not in self.carries_out:
                problem = ("does not support ", text, "; use ", *_UNIVERSAL)
                raise ChoiceError(type(self._config), *problem)

        if WIDE not in self.carries_out:
            self._refuse_wide()

    def _refuse_wide(self) -> None:
        """Refuses images of 16 bits a channel."""
        if self._manifest.has_wide:
            raise ChoiceError(
                type(self._config),
                "does not decode images of 16 bits a channel, which the manifest has; read the "
                "images without bits=16, or use ",
                Mention(TorchConfig),
            )

    def _refuse_padding(self) -> None:
        """For a backend whose batches all have one size."""
        self._refuse(self._transform.pads_batches, "images of one size", "does not")

    def _refuse_views(self) -> None:
        """For a backend that makes one view of each image, all of one size."""
        self._refuse_padding()
        self._refuse(len(views_of(self._transform)) > 1, "one view of each image", "more")

    def _refuse_exif(self) -> None:
        """For a backend that takes pixels as stored."""
        if self._transform.exif == "apply":
            option = Mention(type(self._transform), "exif", "apply")
            problem = ("takes pixels as stored; ", option, " needs ", *_UNIVERSAL)
            raise ChoiceError(type(self._config), *problem)

    def _refuse(self, wanted: bool, made: str, other: str) -> None:
        if wanted:
            transform = Mention(type(self._transform))
            problem = (f"makes {made}, and ", transform, f" {other}; use ", *_UNIVERSAL)
            raise ChoiceError(type(self._config), *problem)

    @property
    def engine_mix(self) -> str | None:
        """What makes the pixels, if their last bits can depend on the batch size; else None."""
        return None

    @property
    def own_gpu(self) -> torch.device | None:
        """The GPU on which it holds memory of its own besides PyTorch's; None if there is none."""
        return None

    @abstractmethod
    def explain(self) -> str:
        """How images will be decoded and why, in one line."""

    def explain_functions(self) -> str:
        """Where the functions of the user's run, in a few words; "" if there are none."""
        views = views_of(self._transform)
        whole = [
            f"{policy.title} (whole images)" for view in views for policy in view.functions_before
        ]
        titles = [
            f"{policy.title} ({'batches' if policy.per == 'batch' else 'image by image'}"
            f"{', in no thread of the loader' if policy.draws_from_globals else ''})"
            for view in views
            for policy in view.augmenter.functions
        ]
        # what runs before the crop runs where images are decoded
        by_device: dict[str, list[str]] = {"cpu": whole} if whole else {}
        if titles:
            device = str(self.functions_on(self._config, self._device))
            by_device[device] = by_device.get(device, []) + titles
        return "; ".join(
            f"functions of yours on {device}{' with the interpreter lock' * (device == 'cpu')}: "
            f"{', '.join(names)}"
            for device, names in by_device.items()
        )

    @abstractmethod
    def stream(self, planned: Iterator[PlannedBatch]) -> Iterator[Delivery]:
        """Yields each of these batches with its images, in this order, and ends the previous
        stream.

        Every planned batch must be a separate object, since a backend recognizes it by its identity
        when its images arrive (`InWork`).
        """

    def close(self) -> None:  # noqa: B027  nothing to end
        """Ends all threads and processes; harmless when called twice."""

    @classmethod
    def functions_on(cls, config: Any, device: torch.device) -> torch.device:
        """Where the functions of the user's in `augment` run, if batches arrive on `device`.

        Args:
            config: as for `memory_needs`.
        """
        return torch.device("cpu")

    @classmethod
    def memory_needs(
        cls, config: Any, transform: Transform, batch_size: int, sizes: NDArray[np.int64]
    ) -> Iterator[Need]:
        """The memory that is certain to be needed for images of `sizes`, (N, 2) heights and widths.

        It counts batches made ahead, and images while they are decoded.

        Args:
            config: as a backend has it: with the number of cores set, and decided for a device.
        """
        return iter(())
