from types import SimpleNamespace

import torch

from dali_pipes.system.memory import GIB
from dali_pipes.training.network.memory import explain


def test_it_is_reported_who_holds_the_memory(monkeypatch, tmp_path):
    """With a made-up GPU, of whose memory DALI gives 2 GiB back; tests/gpu has the real one."""
    import nvidia.dali.backend

    free = [1 * GIB]
    monkeypatch.setattr(
        nvidia.dali.backend, "ReleaseUnusedMemory", lambda: free.append(free.pop() + 2 * GIB)
    )
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[0], 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 60 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 55 * GIB)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="of no GPU")
    )
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda path: open(path, "wb").close())
    message = explain(
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"),
        tmp_path / "snapshot.pickle",
    )
    assert "of 80.0 GiB PyTorch holds 60.0, 55.0 of them in tensors" in message
    assert (
        "DALI, CUDA itself and other programs, 19.0; DALI kept 2.0 of them for later; 1.0 are free"
    ) in message
    assert "batch_size" in message and (tmp_path / "snapshot.pickle").exists()
