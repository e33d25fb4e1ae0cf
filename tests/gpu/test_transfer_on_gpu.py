import numpy as np
import pytest
import torch
from gpu_backends import simulated

from dali_pipes.backends.base import DecodedBatch
from dali_pipes.backends.common.transfer import copy_to_torch_memory

pytestmark = pytest.mark.needs_cuda


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_memory_of_another_library_is_not_given_back_before_it_is_copied(dtype):
    """CuPy's memory here: given back, it is handed out again at once, to a stream that waits for nobody.

    DALI's would wait in a thread for the whole device; that the copies are right must not rest on it.
    """
    import cupy

    def made():
        for number in range(3):
            images = cupy.asarray(np.full((16, 3, 224, 224), number, np.float32))
            ids = cupy.asarray(np.full((16,), number, np.int64))
            yield None, (None, DecodedBatch(torch.from_dlpack(images), torch.from_dlpack(ids)))

    list(copy_to_torch_memory(made(), dtype))  # compiles, and loads the cast: the first use of a kernel waits for the device
    cupy.cuda.Device().synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(400_000_000)
        slept = torch.cuda.current_stream().record_event()
        batches = copy_to_torch_memory(made(), dtype)
        copies = [next(batches)[1] for _ in range(3)]
        assert simulated() or not slept.query(), "the copies were not late; nothing can be said"
        overwritten = [cupy.asarray(np.full((16, 3, 224, 224), np.nan, np.float32)) for _ in range(6)]
        for number, copy in enumerate(copies):
            assert (
                copy.images.dtype == dtype
                and (copy.images == number).all()
                and (copy.ids == number).all()
                and len(overwritten) == 6
            )
