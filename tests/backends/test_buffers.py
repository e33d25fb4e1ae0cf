"""Memory of batches is used again, and never while anybody can still see it."""

import gc

import numpy as np
import pytest
import torch

import dali_pipes as dp
from dali_pipes.backends.pixels.pool import MAX_FREE_BUFFERS, Buffers

FORMS = [
    {},
    {"dtype": "bf16"},
    {"dtype": "uint8", "memory_format": "channels_last"},
    {"size": (5, 3), "dtype": "fp16"},
]
HOLDERS = {
    "the tensor": lambda images: images,
    "a view": lambda images: images[1:2, :, 2:],
    "a transposed view": lambda images: images.permute(0, 2, 3, 1)[0],
    "a tensor that shares its storage": lambda images: torch.empty(0).set_(
        images.untyped_storage()
    ),
    "NumPy": lambda images: images.numpy(),
    "a view of NumPy": lambda images: np.asarray(images)[0, 0, ::2],
    "DLPack": torch.utils.dlpack.to_dlpack,
    "NumPy through DLPack": np.from_dlpack,
    "what autograd keeps": lambda images: (images * torch.ones(1, requires_grad=True)).grad_fn,
}


def buffers(batch_size=3, **form):
    return Buffers(dp.TrainTransform(**{"size": 8} | form), batch_size, pinned=False)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_buffer_has_the_form_of_the_transform(form):
    transform = dp.TrainTransform(**{"size": 8} | form)
    images = Buffers(transform, 3, pinned=False).take(2, transform.shape)
    assert images.shape == (2, 3, *transform.shape)
    assert images.element_size() == {"bf16": 2, "fp16": 2, "uint8": 1}.get(transform.dtype, 4)
    last = transform.memory_format == "channels_last"
    assert images.is_contiguous(
        memory_format=torch.channels_last if last else torch.contiguous_format
    )


def test_memory_that_nobody_holds_is_taken_again():
    some, seen = buffers(), set()
    for _ in range(20):
        seen.add(some.take(3, (8, 8)).data_ptr())
    assert len(seen) == 1


@pytest.mark.few
@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_is_not_taken_again_while_someone_holds_it(holder):
    some = buffers()
    images = some.take(3, (8, 8)).fill_(7)
    place = images.data_ptr()
    held = HOLDERS[holder](images)
    del images
    for _ in range(5):
        assert some.take(3, (8, 8)).fill_(9).data_ptr() != place
    del held
    gc.collect()
    assert place in {
        each.data_ptr() for each in [some.take(3, (8, 8)) for _ in range(MAX_FREE_BUFFERS)]
    }


def test_a_batch_that_is_not_full_holds_no_more_memory_than_its_images():
    """What pickles it, or saves it, writes its whole storage."""
    some = buffers()
    some.take(3, (8, 8))
    images = some.take(1, (8, 8))
    assert (
        images.untyped_storage().nbytes() == images.nbytes
        and images.data_ptr() != some.take(3, (8, 8)).data_ptr()
    )


def test_only_so_much_is_kept():
    some = buffers()
    held = [some.take(3, (8, 8)) for _ in range(3 * MAX_FREE_BUFFERS)]
    places = {each.data_ptr() for each in held}
    assert len(places) == 3 * MAX_FREE_BUFFERS
    del held
    assert len(some._free) == MAX_FREE_BUFFERS


def test_memory_outlives_the_buffers():
    some = buffers()
    images, copy = some.take(3, (8, 8)).fill_(7), torch.full((3, 3, 8, 8), 7.0)
    del some
    gc.collect()
    assert torch.equal(images, copy)


def test_a_loader_touches_no_new_memory(manifest):
    with dp.build_loader(
        manifest, dp.DaliConfig(device="cpu"), transform=dp.TrainTransform(size=32), batch_size=8
    ) as loader:
        places = [batch.images.data_ptr() for _ in range(5) for batch in loader]
    assert len(set(places)) <= MAX_FREE_BUFFERS < len(places)
