import pytest
import torch

from dali_pipes.training.step import STEPS_AHEAD, Readback


def test_on_the_cpu_a_number_is_there_at_once():
    readback = Readback(torch.device("cpu"))
    assert [readback.push(torch.tensor(float(step))) for step in range(3)] == [[0.0], [1.0], [2.0]]
    assert readback.drain() == []


@pytest.mark.needs_cuda
def test_on_a_gpu_it_comes_two_steps_later_and_none_is_lost():
    device = torch.device("cuda")
    readback, arrived = Readback(device), []
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(10):
            arrived.append(readback.push(torch.full((), float(step), device=device)))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert arrived == [[]] * STEPS_AHEAD + [[float(step)] for step in range(10 - STEPS_AHEAD)]
    assert readback.drain() == [8.0, 9.0]
