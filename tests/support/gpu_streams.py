"""PyTorch's streams where there is a GPU, and nothing where there is none, so that the same test
runs on both.

What is made late here shows an order that is missing elsewhere. CUDA orders nothing between streams
but by events and waits on the host. PyTorch's allocator gives memory that was freed to the stream
that it was taken on, at once unless `record_stream` named others. DALI gives back what it exported
by DLPack after a wait for the whole device (2.2.0 and 2.4.0, dltensor.cc, DLTensorGraveyard).
"""

import torch
from gpu_backends import simulated

LATE = 200_000_000  # cycles: 0.1 s at 2 GHz


def new_stream(priority=0):
    """None, on which `torch.cuda.stream` and the functions below do nothing, where there is no
    GPU.
    """
    return torch.cuda.Stream(priority=priority) if torch.cuda.is_available() else None


def delay(stream=None):
    """What is queued on this stream from now on, by default the current one, starts 0.1 s later."""
    if torch.cuda.is_available():
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LATE)


def wait_for_all():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Crowd:
    """Work on every other stream: the default one is late, and copies and multiplications wait in
    front of those of a loader.
    """

    def __init__(self):
        if torch.cuda.is_available():
            self._streams = new_stream(), new_stream()
            # A simulated one does late what is queued, however little it is.
            size, side = (2**10, 8) if simulated() else (2**28, 8192)
            self._host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            self._device = torch.empty(size, dtype=torch.uint8, device="cuda")
            self._matrix = torch.ones(side, side, dtype=torch.float16, device="cuda")
            self._product = self._matrix @ self._matrix
            wait_for_all()

    def __call__(self):
        if torch.cuda.is_available():
            copies, products = self._streams
            delay(torch.cuda.default_stream())
            with torch.cuda.stream(copies):
                self._device.copy_(self._host, non_blocking=True)
            with torch.cuda.stream(products):
                for _ in range(20):
                    torch.mm(self._matrix, self._matrix, out=self._product)
