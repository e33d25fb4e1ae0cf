"""What the simulated GPU counts, for tests that run on it."""

import ctypes

COUNTS = ("launches", "copies", "allocations", "waits", "jpeg_engine", "jpeg_cuda", "refused")


def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def count(what: str) -> int:
    """Since the process began; `what` is one of COUNTS: images, of the JPEG engine and of the CUDA
    decoder; launches that a device would refuse.
    """
    function = _library().simulated_count
    function.restype = ctypes.c_long
    return int(function(COUNTS.index(what)))


def of_this_thread() -> tuple[int, int]:
    """How many tasks it queued, and in how many calls it waited for a whole stream or device."""
    queued, waited = _library().simulated_queued_here, _library().simulated_waited_here
    queued.restype = waited.restype = ctypes.c_long
    return int(queued()), int(waited())


def parameter_bytes() -> list[int]:
    """The size of each parameter of the kernel that this thread launched last through the driver,
    as its machine code has it.
    """
    sizes = (ctypes.c_int * 16)()
    return list(sizes[: _library().simulated_parameters(sizes)])


def forget() -> None:
    """Gives freed memory, which is kept poisoned for a while, back to the system."""
    _library().simulated_forget()
