"""The GPUs of the processes that are measured."""

import os
from collections.abc import Iterable

import torch

from dali_pipes.system.nvml import FIGURES, Gpu, NoGpu


def gpu_of(index: int, corun: int) -> str | None:
    """The GPU of one of several jobs, as far as there are enough; None: it sees all GPUs."""
    count = torch.cuda.device_count()
    if corun == 1 or not count:
        return None

    # the processes see the GPUs that this one may use, and no others
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    return visible[index % count]


def find_gpus(uuids: Iterable[str | None]) -> tuple[list[Gpu], dict[str, str]]:
    """The GPUs that the jobs use, and the figures that they cannot give, with the reason."""
    gpus, missing = [], dict[str, str]()
    for uuid in sorted({uuid for uuid in uuids if uuid}):
        try:
            gpus.append(Gpu(uuid))
        except NoGpu as error:
            missing |= dict.fromkeys(FIGURES, str(error))
    return gpus, missing
