import os

import numpy as np
import pytest
import torch
from later import later

from dali_pipes.backends.backend import Decoded
from dali_pipes.backends.transfer import (
    MAX_PENDING_COPIES,
    copy_to_torch_memory,
    hand_over,
)

cupy = later("cupy")

pytestmark = pytest.mark.needs_cuda


SHAPE = (16, 3, 224, 224)


def made(count):
    """Batches in CuPy's memory: each holds its number."""
    for number in range(count):
        images = cupy.asarray(np.full(SHAPE, number, np.float32))
        yield None, Decoded(range(len(images)), (torch.from_dlpack(images),))


def overwrite():
    """Takes whatever memory CuPy has been given back."""
    return [cupy.asarray(np.full(SHAPE, np.nan, np.float32)) for _ in range(6)]


def assert_numbered(copies, dtype):
    for number, copy in enumerate(copies):
        assert copy.images.dtype == dtype and (copy.images == number).all()


@pytest.fixture
def late():
    """A stream whose work begins later, as the event on it says."""
    # The first use of a kernel waits for the whole device, so those that a test needs are loaded
    # before the stream sleeps.
    for dtype in (torch.float32, torch.bfloat16):
        list(copy_to_torch_memory(made(1), dtype))
    cupy.cuda.Device().synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(400_000_000)
        yield torch.cuda.current_stream().record_event()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_memory_of_another_library_is_not_given_back_before_it_is_copied(late, dtype):
    """CuPy's memory here: given back, it is handed out again at once, to a stream that waits for
    nobody.

    DALI's would wait in a thread for the whole device; that the copies are right must not rest on
    it.
    """
    batches = copy_to_torch_memory(made(3), dtype)
    copies = [next(batches) for _ in range(3)]
    assert not late.query(), "the copies were not late; nothing can be said"
    overwritten = overwrite()
    assert_numbered(copies, dtype)
    del overwritten


def test_of_more_batches_than_may_wait_the_first_is_copied_before_it_is_given_back(late):
    batches = copy_to_torch_memory(made(MAX_PENDING_COPIES + 3), torch.float32)
    copies = [next(batches) for _ in range(MAX_PENDING_COPIES)]
    assert not late.query(), "the copies were not late; nothing can be said"
    torch.cuda._sleep(400_000_000)
    copies += [next(batches) for _ in range(3)]
    overwritten = overwrite()
    assert_numbered(copies, torch.float32)
    del overwritten


def test_at_the_end_all_is_copied_before_it_is_given_back(late):
    batches = copy_to_torch_memory(made(3), torch.float32)
    copies = [next(batches) for _ in range(3)]
    assert not late.query(), "the copies were not late; nothing can be said"
    batches.close()
    overwritten = overwrite()
    assert_numbered(copies, torch.float32)
    del overwritten


def numbered(number):
    """A batch on the current stream, which holds its number."""
    images = torch.full(SHAPE, number, dtype=torch.float32, device="cuda")
    return Decoded(range(len(images)), (images,))


def test_a_batch_is_read_after_the_stream_that_makes_it_has_come_so_far():
    """The current stream has nothing else to wait for."""
    made_on, current = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(made_on):
        batch = numbered(0)
    with torch.cuda.stream(current):
        copy = numbered(0)
    torch.cuda.synchronize()
    # several times, since new kernels wait for the whole device
    was_late = False
    for number in range(1, 7):
        with torch.cuda.stream(made_on):
            torch.cuda._sleep(400_000_000)
            late = made_on.record_event()
            batch.images.fill_(number)
        with torch.cuda.stream(current):
            copy.images.copy_(hand_over(batch, made_on).images)
        was_late |= not late.query()
        torch.cuda.synchronize()
        assert (copy.images == number).all()
    if not was_late and os.environ.get("SIMULATED_GPU_POISON") == "1":
        pytest.skip("with poisoned memory no batch is late here, and why is not known")
    assert was_late, "the batch was not late; nothing can be said"


def test_memory_of_a_batch_is_not_taken_again_before_the_current_stream_has_read_it(late):
    """The stream that made it goes on at once, and would get the same memory."""
    made_on = torch.cuda.Stream()
    with torch.cuda.stream(made_on):
        batch = numbered(7)
    batch = hand_over(batch, made_on)
    copy = batch.images.clone()
    del batch
    assert not late.query(), "the copy was not late; nothing can be said"
    with torch.cuda.stream(made_on):
        others = [numbered(8) for _ in range(3)]
    torch.cuda.synchronize()
    assert (copy == 7).all()
    del others
