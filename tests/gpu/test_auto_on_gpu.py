"""Loaders that change their backend while they train, between the CPU and the GPU."""

import gc
import threading
from functools import partial

import pytest
import torch
from lazy_programs import Pictures, batches_of, make_pictures
from lazy_programs import loader_of as loader_of_torch
from left_processes import children, wait_for_end
from switches import decide, switch_every

import dali_pipes as dp
from dali_pipes.backends.auto.choices import list_choices
from dali_pipes.system.gpu_memory import release_unused

pytestmark = pytest.mark.needs_cuda
DEVICE = torch.device("cuda", 0)


def loader_of(manifest, config=None):
    config = config or dp.AutoConfig(num_threads=2)
    transform = dp.TrainTransform(size=48)
    return dp.build_loader(manifest, config, transform=transform, batch_size=4, seed=5)


def epochs_of(loader, count):
    found = []
    for _ in range(count):
        found += [(batch.ids.tolist(), batch.labels.tolist()) for batch in loader]
    return found


@pytest.mark.parametrize("batches", [1, 4])
def test_a_switch_loses_and_repeats_no_sample(manifest, monkeypatch, batches):
    with loader_of(manifest, dp.TorchConfig(num_workers=1)) as fixed:
        expected = epochs_of(fixed, 4)
    switch_every(monkeypatch, batches)
    with loader_of(manifest) as loader:
        assert epochs_of(loader, 4) == expected
        assert len(loader._work._backend._parts) == 4  # on the GPU in two ways, DALI and torch


def test_the_step_clock_counts_where_the_gpu_has_nothing_to_do(manifest, monkeypatch):
    steps = []
    with loader_of(manifest) as loader:
        choosing = loader._work._backend.chooser.choosing
        monkeypatch.setattr(choosing, "add", lambda step: steps.append(step) or choosing.current)
        epochs_of(loader, 2)
        torch.cuda.synchronize()
    assert len(steps) == 16  # but for the first of each epoch
    assert all(step.waited >= 0 for step in steps)
    assert sum(step.waited for step in steps) <= 1.1 * sum(step.period for step in steps)
    # events are read when they have happened, so that none is left for long
    assert sum(step.waited > 0 for step in steps) >= 10


@pytest.mark.parametrize("winner", [0, 2])
def test_what_lost_gives_all_back(manifest, monkeypatch, winner):
    """Memory of the GPU, threads and processes."""
    names = [choice.name for choice in list_choices(2, DEVICE)]
    release_unused()
    gc.collect()
    before = children()
    threads, free = threading.active_count(), torch.cuda.mem_get_info()[0]
    with loader_of(manifest) as loader:
        switch_every(monkeypatch, 3)
        epochs_of(loader, 4)
        assert len(loader._work._backend._parts) == len(names)
        decide(monkeypatch, winner)
        epochs_of(loader, 2)
        assert list(loader._work._backend._parts) == [names[winner]]
        if "GPU" not in names[winner]:
            torch.cuda.empty_cache()
            # but for batches that PyTorch still holds
            assert torch.cuda.mem_get_info()[0] >= free - torch.cuda.memory_reserved()
    assert threading.active_count() <= threads
    wait_for_end(before)


def test_a_program_whose_pictures_are_made_here_and_there(monkeypatch, tmp_path):
    files = make_pictures(tmp_path)
    make = partial(loader_of_torch, Pictures(files), num_workers=1, shuffle=True)
    expected = batches_of(make(), 4)
    switch_every(monkeypatch, 2)
    # a simulated GPU makes no pixels that could be compared
    with dp.from_torch(make(), check=False) as loader:
        found = batches_of(loader, 4)
        names = [choice.name for choice in loader._maker.chooser.choices]
        assert len(names) == 3 and not loader._maker.chooser.choosing.why
        assert 0 < loader.waited < 80
    for (batch, *states), (their_batch, *their_states) in zip(found, expected, strict=True):
        assert states == their_states and batch[0].device == DEVICE
        assert all(
            torch.equal(one.cpu(), other)
            for one, other in zip(batch[1:], their_batch[1:], strict=True)
        )
