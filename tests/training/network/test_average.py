"""The average of the weights: its arithmetic, its saved state, and that it never makes the host
wait for the GPU.
"""

import copy

import pytest
import torch
from host_waits import GPU, waits_of
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from dali_pipes.training.network.average import WeightAverage, averaged_weights


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))


def change(module):
    """Weights and buffers as a step of training leaves them; an integer buffer counts its steps."""
    with torch.no_grad():
        for value in module.state_dict().values():
            value += 1 if value.dtype == torch.int64 else torch.rand_like(value)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.needs_cuda)])
def test_it_is_the_average_that_pytorch_makes(device):
    module = network().to(device)
    ours = WeightAverage(module, 0.9)
    theirs = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for _ in range(40):
        change(module)
        ours.update(module)
        theirs.update_parameters(module)
    assert ours.updates == 40
    floats = {name for name, value in module.state_dict().items() if value.is_floating_point()}
    found, expected = ours.module.state_dict(), averaged_weights(theirs.state_dict())
    assert floats and all(torch.equal(found[name], expected[name]) for name in floats)


def test_a_count_is_that_of_the_network():
    """PyTorch averages integer buffers too, and cuts each to an integer: num_batches_tracked stands
    at 30 after 40 steps.
    """
    module = network()
    average = WeightAverage(module, 0.9)
    for _ in range(40):
        change(module)
        average.update(module)
    assert average.module[1].num_batches_tracked == module[1].num_batches_tracked == 40


def test_the_first_update_takes_the_weights_as_they_are():
    module = network()
    average = WeightAverage(module, 0.9)
    change(module)
    average.update(module)
    assert all(map(torch.equal, average.module.state_dict().values(), module.state_dict().values()))


def test_no_update_waits_for_the_gpu(monkeypatch):
    module = network().to(GPU)
    average = WeightAverage(module, 0.9)
    assert waits_of(lambda: [average.update(module) for _ in range(3)], monkeypatch) == []


def test_an_average_of_pytorch_would_be_seen_to_wait(monkeypatch):
    module = network().to(GPU)
    average = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    assert waits_of(lambda: [average.update_parameters(module) for _ in range(3)], monkeypatch)


def test_what_version_0_2_saved_is_read():
    module = network()
    saved = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for _ in range(3):
        change(module)
        saved.update_parameters(module)
    average = WeightAverage(network(), 0.9)
    average.load_state_dict(copy.deepcopy(saved.state_dict()))
    assert average.updates == 3
    assert all(
        map(torch.equal, average.module.state_dict().values(), saved.module.state_dict().values())
    )
    assert average.state_dict().keys() == saved.state_dict().keys()
    change(module)
    average.update(module)
    saved.update_parameters(module)
    assert torch.equal(average.module[0].weight, saved.module[0].weight)
