"""Which file made a batch fail. Backends cannot tell: DALI's errors name no file, or another one."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dali_pipes.cpus import available_cpus
from dali_pipes.headers import read_header
from dali_pipes.manifest import Manifest


def find_bad(manifest: Manifest, ids: NDArray[np.int64]) -> dict[int, str]:
    """The reason for each of these samples that cannot be delivered as it was scanned, found by decoding them one by one."""
    with ThreadPoolExecutor(available_cpus()) as pool:
        reasons = pool.map(lambda sample_id: _problem(manifest, sample_id), ids.tolist())
        return {sample_id: reason for sample_id, reason in zip(ids.tolist(), reasons, strict=True) if reason}


def _problem(manifest: Manifest, sample_id: int) -> str | None:
    path = manifest.path(sample_id)
    header = read_header(path)
    if header.problem:
        return header.problem
    height, width = manifest.sizes[sample_id]
    if (header.height, header.width) != (height, width):
        return f"{header.width} × {header.height} pixels, but {width} × {height} when it was scanned"
    try:
        with Image.open(path) as image:
            image.load()
    except Exception as error:  # whatever the decoder says, this file is the one
        return f"cannot be decoded ({error})"
    return None
