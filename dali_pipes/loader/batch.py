"""What a loader yields: a `Batch` of images, labels and targets. `Ragged` holds values whose number
differs from image to image.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch.utils._pytree import register_dataclass, tree_map_only

from dali_pipes.checks import describe_value
from dali_pipes.errors import ConfigError
from dali_pipes.options import check_arguments
from dali_pipes.plan.draws import BatchDraws


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


register_dataclass(Ragged)
register_dataclass(Batch)


# Makes a new batch from a finished one, on the current stream. It must not write into the tensors
# it is given: some loaders deliver the same images again. If it has a method `check(manifest)`, the
# loader calls that when it is built, to ask whether it fits the images.
BatchTransform = Callable[[Batch, BatchDraws], Batch]
