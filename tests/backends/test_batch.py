"""A batch as programs use it: unpacked, by name, moved, and as a pytree."""

import copy

import pytest
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

import dali_pipes as dp
from dali_pipes.backends.base import Ragged


@pytest.fixture
def batch():
    return dp.Batch(
        torch.zeros(2, 3, 4, 5),
        torch.tensor([3, 1]),
        torch.tensor([7, 9]),
        {"age": torch.tensor([30, 40])},
    )


def test_unpacks_into_images_and_labels(batch):
    images, labels = batch
    assert images is batch.images and labels is batch.labels
    assert len(batch) == 2, "the images, not the parts"


def test_names(batch):
    assert batch["images"] is batch.images and batch["ids"] is batch.ids
    assert batch["age"].tolist() == [30, 40] and "age" in batch and "ages" not in batch
    assert batch[0] is batch.images and batch[1] is batch.labels
    with pytest.raises(KeyError, match="no 'ages'; it has images, labels, ids, age"):
        batch["ages"]


def test_is_moved_as_a_whole(batch):
    moved = batch.to("meta", non_blocking=True)
    assert all(
        each.device.type == "meta"
        for each in (moved.images, moved.labels, moved.ids, moved.targets["age"])
    )
    assert batch.images.device.type == "cpu", "the old one is as it was"


@pytest.mark.needs_cuda
def test_page_locked(batch):
    pinned = batch.pin_memory()
    assert (
        pinned.images.is_pinned()
        and pinned.labels.is_pinned()
        and pinned.targets["age"].is_pinned()
    )


def test_is_a_pytree(batch):
    leaves, spec = tree_flatten(batch)
    assert len(leaves) == 4 and all(isinstance(each, torch.Tensor) for each in leaves)
    again = tree_unflatten(leaves, spec)
    assert isinstance(again, dp.Batch) and again.targets["age"] is batch.targets["age"]
    assert tree_map(lambda each: each + 1, batch).ids.tolist() == [8, 10]


def test_lightning_reaches_its_tensors(batch):
    """Version 0.1's was frozen, which Lightning refuses."""
    doubled = apply_to_collection(batch, torch.Tensor, lambda each: 2 * each)
    assert (
        isinstance(doubled, dp.Batch)
        and doubled.labels.tolist() == [6, 2]
        and batch.labels.tolist() == [3, 1]
    )
    assert copy.copy(batch).images is batch.images


@pytest.mark.parametrize(
    "how", [(torch.float16,), ("cpu", torch.float16)], ids=["dtype", "device and dtype"]
)
def test_another_dtype_is_that_of_the_images(how):
    labels, boxes = torch.tensor([1, 300]), Ragged(torch.rand(3, 4), [1, 2])
    images, view = torch.rand(2, 3, 4, 4), torch.rand(2, 2, 3, 4, 4)
    batch = dp.Batch(
        images, labels, torch.tensor([5, 70_000]), {"boxes": boxes}, {"small": view}
    ).to(*how)
    assert batch.images.dtype == batch.views["small"].dtype == torch.float16
    assert torch.equal(batch.images, images.half()) and torch.equal(
        batch.views["small"], view.half()
    )
    assert batch.labels.tolist() == [1, 300] and batch.ids.tolist() == [5, 70_000]
    assert batch["boxes"].values.dtype == torch.float32
