import pytest
import torch
from gpu_backends import simulated
from simulated_gpu.device import of_this_thread

from dali_pipes.training.step import STEPS_AHEAD, Readback


def test_on_the_cpu_a_number_is_there_at_once():
    readback = Readback(torch.device("cpu"))
    assert [readback.push(torch.tensor(float(step))) for step in range(3)] == [[0.0], [1.0], [2.0]]
    assert readback.drain() == []


def waits_of_this_thread():
    """For whole streams; only the simulated GPU counts them."""
    return of_this_thread()[1] if simulated() else 0


@pytest.mark.needs_cuda
def test_on_a_gpu_it_comes_two_steps_later_and_none_is_lost():
    device = torch.device("cuda")
    readback, arrived = Readback(device), []
    waits = waits_of_this_thread()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(10):
            arrived.append(readback.push(torch.full((), float(step), device=device)))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert waits_of_this_thread() == waits  # PyTorch does not see a wait for pageable memory
    assert arrived == [[]] * STEPS_AHEAD + [[float(step)] for step in range(10 - STEPS_AHEAD)]
    assert readback.drain() == [8.0, 9.0]
