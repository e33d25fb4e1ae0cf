import weakref
from types import SimpleNamespace

import torch

import dali_pipes as dp
from dali_pipes.backends.transfer import taken_over


def test_what_was_taken_over_is_kept_until_it_has_been_copied(monkeypatch):
    """No GPU: the stream's events are made up."""
    state = SimpleNamespace(done=False, waited=0)

    def wait():
        state.waited += 1

    event = SimpleNamespace(query=lambda: state.done, synchronize=wait)
    stream = SimpleNamespace(record_event=lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    originals = []

    def made():
        for number in range(6):
            images = torch.full((2, 3, 4, 4), float(number)).contiguous(memory_format=torch.channels_last)
            originals.append(weakref.ref(images))
            ids = torch.full((2,), number, dtype=torch.int32)  # as DALI's own reader has them: the batch holds others
            originals.append(weakref.ref(ids))
            yield {"images": images, "ids": ids}, dp.Batch(images, torch.arange(2), ids.long())

    batches = taken_over(made())
    copies = [next(batches) for _ in range(4)]
    assert all(original() is not None for original in originals)
    state.done = True
    copies.append(next(batches))
    assert [original() is not None for original in originals] == [False] * 8 + [True] * 2
    for number, copy in enumerate(copies):
        assert (copy.images == number).all() and copy.ids.tolist() == [number] * 2
        assert copy.images.is_contiguous(memory_format=torch.channels_last)
    batches.close()
    assert state.waited == 1
