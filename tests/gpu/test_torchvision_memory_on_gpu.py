"""torchvision's decoder writes at once, on a stream that waits for no other: never into memory that
is still read.

`test_streams_on_gpu.py` and `test_lifetimes_on_gpu.py` see to the batches themselves.
"""

import numpy as np
import pytest
import torch
from gpu_backends import GPU_BACKENDS
from gpu_streams import delay, new_stream, wait_for_all

import dali_pipes as dp

pytestmark = pytest.mark.needs_cuda
VALUE = 77


@pytest.mark.parametrize("own_stream", [False, True], ids=["default stream", "another stream"])
def test_memory_that_was_just_freed_is_not_decoded_into(manifest, own_stream):
    """Tensors of the very sizes of the images to come are freed while a late kernel has yet to read
    them.

    What is taken on this stream next lies in that memory, and would be what the decoder writes
    into, were its pool the same.
    """
    with (
        dp.build_loader(
            manifest,
            GPU_BACKENDS["torchvision_on_gpu"],
            transform=dp.EvalTransform(size=96),
            batch_size=8,
        ) as loader,
        # of another priority: PyTorch has 32 streams of each, and would hand out the decoder's own
        torch.cuda.stream(new_stream(priority=-1) if own_stream else None),
    ):
        for _ in loader:
            # the decoder has all that it keeps; to give back what is too small would wait for the
            # device
            pass
        wait_for_all()
        batches = iter(loader)
        for step in range(len(loader)):
            ids = range(8 * step, min(8 * step + 8, len(manifest)))
            images = [3 * int(np.prod(manifest.sizes[each])) for each in ids]
            freed = [
                torch.full((size,), VALUE, dtype=torch.uint8, device="cuda") for size in images
            ]
            copies = [torch.empty_like(each) for each in freed]
            delay()
            late = torch.cuda.current_stream().record_event()
            for copy, each in zip(copies, freed, strict=True):
                copy.copy_(each)
            del freed, each
            batch = next(batches)
            assert not late.query(), "the copies were not late; nothing can be said"
            wait_for_all()
            assert batch.ids.tolist() == list(ids)
            assert all((copy == VALUE).all() for copy in copies), (
                f"overwritten while batch {step} was decoded"
            )


def test_an_image_is_resized_before_the_next_one_is_decoded_into_its_memory(manifest):
    """The decoder takes memory that the batch before has given back, and writes into it on a stream
    of its own: the resizes of that batch, which read it, must be done by then.
    """
    with dp.build_loader(
        manifest,
        GPU_BACKENDS["torchvision_on_gpu"],
        transform=dp.EvalTransform(size=96),
        batch_size=8,
    ) as loader:
        waited_for = [batch.images.cpu() for batch in loader]
        at_once = [batch.images for batch in loader]
        wait_for_all()
    for step, (expected, images) in enumerate(zip(waited_for, at_once, strict=True)):
        assert torch.equal(expected, images.cpu()), f"batch {step}"
