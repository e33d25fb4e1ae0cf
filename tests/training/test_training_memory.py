import torch

from dali_pipes.system.memory import GIB
from dali_pipes.training.memory import explain


def test_it_is_reported_who_holds_the_memory(monkeypatch, tmp_path):
    """With a made-up GPU; tests/gpu has the real one."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 60 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 55 * GIB)
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda path: open(path, "wb").close())
    message = explain(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), tmp_path / "snapshot.pickle")
    assert "of 80.0 GiB PyTorch holds 60.0, 55.0 of them in tensors" in message
    assert "DALI, CUDA itself and other programs, 19.0" in message
    assert "batch_size" in message and (tmp_path / "snapshot.pickle").exists()
