"""What to say when a GPU has no memory left."""

from pathlib import Path

import torch

from dali_pipes.memory import GIB


def explain(error: torch.OutOfMemoryError, snapshot: Path) -> str:
    """Who has how much of it, and what takes less. The allocator's state goes into a file for docs.pytorch.org/memory_viz."""
    free, total = torch.cuda.mem_get_info()
    reserved, used = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    torch.cuda.memory._dump_snapshot(str(snapshot))  # type: ignore[no-untyped-call]
    return (
        f"the GPU has no memory left ({str(error).split('. ')[0]}): of {total / GIB:.1f} GiB PyTorch holds {reserved / GIB:.1f}, "
        f"{used / GIB:.1f} of them in tensors; others, which are DALI, CUDA itself and other programs, "
        f"{(total - free - reserved) / GIB:.1f}; {free / GIB:.1f} are free. Take a smaller batch_size and accumulate more, "
        f"precision=bf16, or a smaller loader.prefetch_queue_depth. What PyTorch holds is in {snapshot}"
    )
