"""A batch is whole on the stream that asked for it, and stays so until that stream has read it:
PyTorch's rules for its tensors.

Why that holds, by the sources, for what is made on a GPU outside PyTorch:
- DALI: its iterator asks for a batch with `share_outputs()`, which waits on the host until the
  batch is finished (plugin/base_iterator.py:403 in 2.4.0, :406 in 2.2.0; executor2/exec2.cc,
  `PopOutputs`). PyTorch's `from_dlpack` passes the current stream, which waits too, and the copy is
  made on it, by PyTorch, into PyTorch's memory: `backends/transfer.py`,
  `copy_to_torch_memory`. DALI's own memory is freed by a thread that has waited for the whole
  device.

On the CPU the same loops run without streams.
"""

import pytest
import torch
from gpu_backends import GPU_BACKENDS, makes_pixels, needs_cuda
from gpu_streams import Crowd, delay, new_stream, wait_for_all

import dali_pipes as dp

EPOCHS = 3
CONFIGS = {"dali_cpu": dp.DaliConfig(device="cpu"), **GPU_BACKENDS}
ON_GPU = needs_cuda("dali_gpu", "dali_gpu_regions", "torch_to_gpu", "dali_cpu_to_gpu")
every_loader = pytest.mark.parametrize("name", ["dali_cpu", *ON_GPU])


def build(manifest, name, **options):
    return dp.build_loader(
        manifest, CONFIGS[name], transform=dp.TrainTransform(size=128), batch_size=8, **options
    )


def read(batch, name):
    """Copies, made by the current stream when it comes to it."""
    images = (batch.images.clone(),) if makes_pixels(name) else ()
    return *images, batch.labels.clone(), batch.ids.clone()


@pytest.fixture
def expected(manifest, name):
    """The same epochs, each batch read before the next is asked for."""
    found = []
    with build(manifest, name) as loader:
        for _ in range(EPOCHS):
            for batch in loader:
                found.append(read(batch, name))
                wait_for_all()
    return found


def assert_equal(found, expected):
    wait_for_all()
    assert len(found) == len(expected) > 0
    wrong = [
        step
        for step, (one, other) in enumerate(zip(found, expected, strict=True))
        if not all(torch.equal(*pair) for pair in zip(one, other, strict=True))
    ]
    assert not wrong, f"of {len(expected)} batches these are not whole: {wrong}"


@every_loader
def test_a_batch_is_whole_on_the_stream_that_asked_for_it(manifest, name, expected):
    """Whatever the loader does elsewhere comes too late, unless this stream is made to wait for
    it.
    """
    found, keep_the_others_busy = [], Crowd()
    with build(manifest, name) as loader, torch.cuda.stream(new_stream(priority=-1)):
        for _ in range(EPOCHS):
            keep_the_others_busy()
            for batch in loader:
                found.append(read(batch, name))
                keep_the_others_busy()
    assert_equal(found, expected)


@every_loader
def test_a_batch_that_was_dropped_is_whole_when_it_is_read_at_last(manifest, name, expected):
    """The reads are queued ever later behind the loader, which meanwhile makes new batches in
    whatever memory is free.
    """
    found = []
    with build(manifest, name) as loader:
        for _ in range(EPOCHS):
            for batch in loader:
                delay()
                found.append(read(batch, name))
                del batch
        wait_for_all()
    assert_equal(found, expected)


@every_loader
def test_closing_the_loader_does_not_take_a_batch_from_the_stream_that_reads_it(
    manifest, name, expected
):
    found = []
    for _ in range(EPOCHS):
        with build(manifest, name) as loader:
            batch = next(iter(loader))
            delay()
            found.append(read(batch, name))
            del batch
    assert_equal(found, expected[:1] * EPOCHS)


@every_loader
def test_a_batch_can_be_read_on_another_stream_that_waits(manifest, name, expected):
    one, other = new_stream(), new_stream()
    with build(manifest, name) as loader:
        with torch.cuda.stream(one):
            delay()
            batches = [batch for _ in range(EPOCHS) for batch in loader]
        if other:
            other.wait_stream(one)
        with torch.cuda.stream(other):
            found = [read(batch, name) for batch in batches]
        assert_equal(found, expected)
