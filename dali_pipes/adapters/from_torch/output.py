"""Turns our batches into what the old loader's collate function made: `Output`.

The skeleton of each sample, which is everything except its pictures, is known from the label pass.
In place of torch's default_collate the pictures of a batch are put in as they are; a collate
function of the user's own is called as it is, with the samples of the batch.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data._utils.collate import collate, default_collate, default_collate_fn_map

from dali_pipes.adapters.from_torch.recording.random_states import seed_all, states_kept
from dali_pipes.adapters.from_torch.structure import PictureSlot, fill, rebuild
from dali_pipes.loader.batch import Batch

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OutputPicture:
    """What goes into a slot.

    Attributes:
        views: where the batch has the one picture, or each of those that are stacked: the name of
            the view and the place in it. The name is "" if the batch has only one view.
        is_stacked: whether the pictures are stacked.
        is_hwc: whether the channels come last.
        kind: "tensor" or "array"; "pil" for a PIL image that the collate function does not use.
        dtype: the dtype of the pictures.
    """

    views: tuple[tuple[str, int], ...]
    is_stacked: bool
    is_hwc: bool
    kind: str
    dtype: torch.dtype

    def of(self, batch: Batch) -> torch.Tensor:
        """The pictures of a batch: (N, 3, H, W) or (N, H, W, 3), and (N, views, …) if stacked."""
        views = [batch.views[name][:, at] if name else batch.images for name, at in self.views]
        if self.is_hwc:
            views = [each.permute(0, 2, 3, 1) for each in views]
        pictures = torch.stack(views, dim=1) if self.is_stacked else views[0]
        return pictures.contiguous().to(self.dtype)


class Unused:
    """Stands for a PIL image, which does not exist, so nobody may use it."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the PIL image is not there, so there is no {name}")


@dataclass(frozen=True, slots=True)
class Output:
    """Makes the old loader's batches.

    Attributes:
        pictures: what goes into each slot, an `OutputPicture` or an `OutputMask` (masks.py).
        skeletons: the skeleton of each sample, by its id; None: batches are lists of images and
            labels.
        collate: the user's own function; None: torch's default_collate.
        is_alike: whether all skeletons have the same slots in the same places.
        on_cpu: the error of the user's function with pictures on a GPU, once it has failed with
            them; from then on it gets pictures on the CPU.
    """

    pictures: tuple[Any, ...] = ()
    skeletons: Sequence[Any] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    is_alike: bool = True
    on_cpu: list[str] = field(default_factory=list)

    def subset(self, ids: NDArray[np.int64]) -> "Output":
        """The same for these samples, whose new ids are their places in `ids`."""
        if self.skeletons is None:
            return self
        return replace(self, skeletons=[self.skeletons[at] for at in ids.tolist()])

    def __call__(self, batch: Batch, seed: tuple[int, ...] = (0,)) -> Any:
        """Makes the old loader's batch from one of ours, on the same device.

        Args:
            seed: the seed of the random numbers that the user's collate function draws.
        """
        if self.skeletons is None:
            return [batch.images, batch.labels]

        samples = [self.skeletons[at] for at in batch.ids.tolist()]
        pictures = [each.of(batch) for each in self.pictures]
        device = batch.images.device

        # default_collate, extended by slots: they become the pictures of the whole batch
        if self.collate is None and self.is_alike:
            taken = set[int]()

            def put(slots: list[PictureSlot], **_: Any) -> torch.Tensor:
                # a picture that a sample has twice is stacked twice, as there
                number, is_again = slots[0].number, slots[0].number in taken
                taken.add(number)
                return pictures[number].clone() if is_again else pictures[number]

            known = default_collate_fn_map | {PictureSlot: put}
            return _moved(collate(samples, collate_fn_map=known), device)

        # what else default_collate stacks with pictures is on the CPU
        if self.collate is not None and device.type != "cpu" and not self.on_cpu:
            try:
                return _moved(self._collated(self.collate, samples, pictures, seed), device)
            except torch.OutOfMemoryError:
                raise
            except (TypeError, RuntimeError, ValueError) as error:
                # the function was written for pictures on the CPU, such as one that calls .numpy();
                # it is tried once only
                self.on_cpu.append(str(error))
                log.warning(
                    "the collate function cannot take pictures on %s (%s); from now on it gets "
                    "them on the CPU, which costs two copies of each batch",
                    device,
                    str(error).partition("\n")[0],
                )

        pictures = [each.cpu() for each in pictures]
        function = self.collate or default_collate
        return _moved(self._collated(function, samples, pictures, seed), device)

    def _collated(
        self,
        function: Callable[[list[Any]], Any],
        samples: list[Any],
        pictures: list[torch.Tensor],
        seed: tuple[int, ...],
    ) -> Any:
        """Calls the user's collate function with whole samples."""
        # each value has the pictures of all samples for one slot
        values: list[Any] = [
            each.cpu().numpy()
            if form.kind == "array"
            else [Unused()] * len(samples)
            if form.kind == "pil"
            else each
            for each, form in zip(pictures, self.pictures, strict=True)
        ]

        filled = [
            fill(skeleton, [each[at] for each in values]) for at, skeleton in enumerate(samples)
        ]
        return call_seeded(function, filled, seed, pictures[0].device if pictures else None)


def call_seeded(
    function: Callable[[list[Any]], Any],
    samples: list[Any],
    seed: tuple[int, ...],
    device: torch.device | None = None,
) -> Any:
    """Calls a collate function; random numbers that it draws depend on the seed only.

    Args:
        device: that of the pictures, on which it may draw too.
    """
    # NumPy takes a seed of 32 bits, and SeedSequence makes one of several numbers
    with states_kept(device):
        seed_all(int(np.random.SeedSequence(seed).generate_state(1)[0]), device)
        return function(samples)


def _moved(value: Any, device: torch.device) -> Any:
    """The same batch with its tensors on a device."""
    if device.type == "cpu":
        return value

    def move(leaf: Any) -> Any:
        return leaf.to(device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf

    return rebuild(move, value)
