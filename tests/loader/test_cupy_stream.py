"""PyTorch's current stream handed to CuPy, as each of its versions wants it; on a GPU:
tests/gpu/test_mixing_on_gpu.py.
"""

import sys
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

import dali_pipes as dp
from dali_pipes.loader import mixing_kernels

CUDA = torch.device("cuda", 1)


class TorchStream:
    """As torch.cuda.Stream of 2.10 and 2.11."""

    cuda_stream, device_index = 4711, 1

    def __cuda_stream__(self):
        return 0, self.cuda_stream


def cupy_of(version, used):
    """CuPy's streams and devices as that major version has them; what is current within a block is
    in `used`.
    """

    @contextmanager
    def current(*what):
        used.append(what)
        yield
        used.pop()

    class Stream:
        if version >= 14:
            from_external = staticmethod(
                lambda stream: current("stream", stream.__cuda_stream__()[1])
            )

    def external(pointer, device_id):
        if version >= 14:
            raise DeprecationWarning(
                "ExternalStream is deprecated. Use Stream.from_external() instead"
            )
        assert device_id == CUDA.index
        return current("stream", pointer)

    cuda = SimpleNamespace(
        Stream=Stream, ExternalStream=external, Device=lambda index: current("device", index)
    )
    return SimpleNamespace(cuda=cuda)


@pytest.mark.parametrize("version", [13, 14])
def test_cupy_works_on_the_current_stream_of_the_device(version, monkeypatch):
    used = []
    monkeypatch.setitem(sys.modules, "cupy", cupy_of(version, used))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", TorchStream)
    with dp.cupy_stream(CUDA):
        assert used == [("device", 1), ("stream", 4711)]
    assert used == []


def test_the_installed_cupy_takes_it_without_a_warning():
    """And does not destroy it afterwards, as it does its own (cupy/cuda/stream.pyx,
    `Stream.__del__`; CuPy's pull request 9567).

    Warnings are errors in these tests, and so is what is raised by a destructor: a stream of this
    number cannot be destroyed.
    """
    assert mixing_kernels._as_cupy(TorchStream()).ptr == 4711


def test_pytorchs_streams_have_what_cupy_asks_for():
    assert hasattr(torch.cuda.Stream, "__cuda_stream__") and {"cuda_stream", "device_index"} <= set(
        dir(torch.cuda.Stream)
    )


def test_without_a_gpu_it_does_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with dp.cupy_stream(torch.device("cpu")):
        pass
