"""A batch as programs use it: unpacked, by name, moved, and as a pytree."""

import copy
import pickle

import pytest
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

import dali_pipes as dp
from dali_pipes.loader.batch import Ragged


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


def with_views():
    """As the loader makes it: the images of one view come before those of the next."""
    group = torch.rand(3 * 2, 3, 4, 5)
    views = {"large": group.view(3, 2, 3, 4, 5).transpose(0, 1), "small": torch.rand(2, 1, 3, 2, 2)}
    return dp.Batch(group[:2], torch.tensor([3, 1]), torch.tensor([7, 9]), {}, views)


def move_by_lightning(batch):
    from lightning.fabric.utilities import move_data_to_device

    return move_data_to_device(batch, "meta")


MOVES = {
    "to a device": lambda batch: batch.to("meta"),
    "to its own device": lambda batch: batch.to("cpu"),
    "to a dtype": lambda batch: batch.to(torch.float16),
    "to its own dtype": lambda batch: batch.to(torch.float32),
    "to a device and a dtype": lambda batch: batch.to("meta", torch.uint8),
    "twice": lambda batch: batch.to("meta").to(torch.float16),
    "copy": copy.copy,
    "deep copy": copy.deepcopy,
    "pickle": lambda batch: pickle.loads(pickle.dumps(batch)),
    "by Lightning": move_by_lightning,
}


@pytest.mark.parametrize("name", MOVES)
def test_images_stay_a_part_of_the_first_views(name):
    batch = with_views()
    moved = MOVES[name](batch)
    first = moved.views["large"]
    assert moved.images.untyped_storage()._cdata == first.untyped_storage()._cdata
    assert moved.images.is_contiguous() and moved.images.dtype == first.dtype
    assert moved.images.shape == batch.images.shape and list(moved.views) == ["large", "small"]
    if not first.is_meta:
        moved.images.zero_()
        assert not first[:, 0].any() and first[:, 1].any()


@pytest.mark.needs_cuda
@pytest.mark.parametrize(
    "move", [dp.Batch.pin_memory, lambda batch: batch.to("cuda")], ids=["pinned", "moved"]
)
def test_images_stay_a_part_of_the_first_views_beside_a_gpu(move):
    moved = move(with_views())
    assert moved.images.data_ptr() == moved.views["large"].data_ptr()
    assert moved.images.is_contiguous() and (moved.images.is_cuda or moved.images.is_pinned())


def test_a_pickle_holds_the_images_once():
    group = torch.rand(1, 64, 3, 16, 16).transpose(0, 1)
    alone = dp.Batch(group[:, 0], torch.arange(64), torch.arange(64))
    viewed = dp.Batch(group[:, 0], torch.arange(64), torch.arange(64), {}, {"one": group})
    assert len(pickle.dumps(viewed)) < 1.1 * len(pickle.dumps(alone))


@pytest.mark.parametrize("name", MOVES)
def test_images_of_their_own_stay_apart(name):
    """As those that a batch transform has made in place of the first view."""
    batch = with_views()
    batch.images = batch.images.clone() + 1
    moved = MOVES[name](batch)
    first = moved.views["large"]
    assert moved.images.untyped_storage()._cdata != first.untyped_storage()._cdata
    assert moved.images.is_meta or torch.equal(moved.images, batch.images.to(moved.images.dtype))
