"""Reads the second pictures of samples, which `from_torch` loads beside the first ones."""

from io import BytesIO
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_pipes.backends.common.second_pixels import move_second
from dali_pipes.data.image_files.stored import open_stored
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.reader import Reader
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import Transform


def make_second(
    manifest: Manifest, transform: Transform, reader: Reader, planned: PlannedBatch, at: int
) -> torch.Tensor:
    """(3, H, W) uint8 of the second picture of sample `at` of a batch, moved as the first one is.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is broken, or not what was scanned.
    """
    values = read_second(manifest, int(planned.ids[at]), reader)
    view = planned.views[0]
    moved = move_second(
        values, transform.interpolation, transform.antialias, view.geometry.take(at), view.shape
    )
    return torch.from_numpy(np.ascontiguousarray(moved)).permute(2, 0, 1)


def read_second(manifest: Manifest, sample_id: int, reader: Reader) -> NDArray[Any]:
    """(H, W, 3) uint8 of the second picture of a sample, as it is stored.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is broken, or of another size than the first picture.
    """
    file = manifest.second_extent(sample_id)
    ((height, width),) = manifest.take_sizes(np.array([sample_id])).tolist()
    encoded = BytesIO(reader.read(file).data)
    try:
        with open_stored(encoded) as image:
            size = image.size
            values = np.asarray(image.convert("RGB")) if size == (width, height) else None
    except Exception as error:  # Pillow's plugins raise almost anything on broken files
        raise ValueError(f"{file}: broken ({type(error).__name__}: {error})") from None
    if values is None:
        raise ValueError(f"{file}: {size[0]} × {size[1]}, and the image is {width} × {height}")
    return values
