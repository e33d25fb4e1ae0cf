"""Batches of another library's memory: how long the originals live.
tests/gpu/test_transfer_on_gpu.py tries it on a GPU.

DALI itself would keep them long enough, and longer than is wanted: `copy_to_torch_memory` says so,
with its sources. These tests hold for an owner that gives memory back at once, and for how many
originals there are at a time.
"""

import weakref
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dali_pipes.backends.backend import Decoded
from dali_pipes.backends.transfer import MAX_PENDING_COPIES, copy_to_torch_memory


def made_of(count, originals):
    """Batches, and weak references to what they were made of."""
    for number in range(count):
        images = torch.full((2, 3, 4, 4), float(number)).contiguous(
            memory_format=torch.channels_last
        )
        originals.append(weakref.ref(images))
        ids = torch.full((2,), number, dtype=torch.int32)
        originals.append(weakref.ref(ids))
        yield {"images": images, "ids": ids}, Decoded(range(2), (images,))


def events(monkeypatch, state, still_there=lambda: True):
    """Made up, for there is no GPU; `still_there` is asked whenever one is waited for."""

    def wait():
        state.waited += 1
        assert still_there()

    event = SimpleNamespace(query=lambda: state.done, synchronize=wait, record=lambda stream: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda blocking: event)


def test_what_is_copied_is_kept_until_it_has_been_copied(monkeypatch):
    state = SimpleNamespace(done=False, waited=0)
    events(monkeypatch, state)
    originals = []
    batches = copy_to_torch_memory(made_of(6, originals), torch.float32)
    copies = [next(batches) for _ in range(4)]
    assert all(original() is not None for original in originals)
    state.done = True
    copies.append(next(batches))
    assert [original() is not None for original in originals] == [False] * 8 + [True] * 2
    for number, copy in enumerate(copies):
        assert (copy.images == number).all()
        assert copy.images.is_contiguous(memory_format=torch.channels_last)
    waited = state.waited
    batches.close()
    assert state.waited == waited + 1


def test_a_host_that_runs_ahead_waits_before_they_fill_the_memory(monkeypatch):
    state = SimpleNamespace(done=False, waited=0)
    events(monkeypatch, state, lambda: originals[2 * (state.waited - 1)]() is not None)
    originals = []
    batches = copy_to_torch_memory(made_of(3 * MAX_PENDING_COPIES, originals), torch.float32)
    for _ in range(3 * MAX_PENDING_COPIES):
        next(batches)
    alive = [original() is not None for original in originals]
    assert (
        state.waited == 2 * MAX_PENDING_COPIES
        and alive == [False] * 4 * MAX_PENDING_COPIES + [True] * 2 * MAX_PENDING_COPIES
    )


class Operations(TorchDispatchMode):
    """Those that PyTorch carries out on images."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if args and getattr(args[0], "ndim", 0) == 4:
            self.names.append(operation.overloadpacket.__name__)
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_copy_casts_in_one_pass(monkeypatch, dtype):
    events(monkeypatch, SimpleNamespace(done=True, waited=0))
    images = (torch.randn(2, 3, 8, 8) * 2).contiguous(memory_format=torch.channels_last)
    with Operations() as operations:
        (copy,) = copy_to_torch_memory(iter([(None, Decoded(range(2), (images,)))]), dtype)
    assert operations.names == ["_to_copy"]
    assert copy.images.dtype == dtype and torch.equal(copy.images, images.to(dtype))
    assert copy.images.data_ptr() != images.data_ptr() and copy.images.is_contiguous(
        memory_format=torch.channels_last
    )
