"""Reads the files that masks lie in."""

from io import BytesIO
from typing import Any

from numpy.typing import NDArray

from dali_pipes.data.image_files.masks import mask_problem
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
