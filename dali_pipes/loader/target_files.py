"""Reads the files that targets lie in: masks, and the second pictures of `from_torch`."""

from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.data.image_files.masks import mask_problem
from dali_pipes.data.image_files.stored import open_stored
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.reader import Reader

Values = NDArray[Any]


def read_mask(
    manifest: Manifest, sample_id: int, reader: Reader, ignore_index: int
) -> Values | None:
    """(H, W) uint8 or int32 of the mask of a sample, as it is stored; None: it has none.

    Args:
        ignore_index: a value that need not be a class.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is broken, of another size than its image, or has values of no class.
    """
    if (file := manifest.mask_extent(sample_id)) is None:
        return None

    # a file that was replaced since the scan is found by its header, before it is decoded
    encoded = BytesIO(reader.read(file).data)
    if why := mask_problem(encoded, *manifest.mask_size(sample_id), "header"):
        raise ValueError(f"{file}: {why}")
    try:
        values = manifest.mask_values.decode(encoded)
    except Exception as error:  # Pillow's plugins raise almost anything on broken files
        raise ValueError(f"{file}: broken ({type(error).__name__}: {error})") from None
    if why := manifest.mask_values.problem_of(values, len(manifest.classes), [ignore_index]):
        raise ValueError(f"{file}: {why}")
    return values


def read_second(manifest: Manifest, sample_id: int, reader: Reader) -> Values:
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
    except Exception as error:  # as of masks
        raise ValueError(f"{file}: broken ({type(error).__name__}: {error})") from None
    if values is None:
        raise ValueError(f"{file}: {size[0]} × {size[1]}, and the image is {width} × {height}")
    return values
