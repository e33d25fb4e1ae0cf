"""Images that nobody decodes, for arms that deliver no real ones."""

import torch

from dali_pipes.backends.backend import Decoded
from dali_pipes.backends.pixels.tensors import MEMORY_FORMATS, TORCH_DTYPES
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import Transform


class Noise:
    """Batches of the transform's views, dtype and memory format, always of the same noise."""

    def __init__(self, transform: Transform, batch_size: int, device: torch.device):
        self._groups = [
            _noise(group[0], batch_size * len(group), device) for group in transform.groups
        ]

    def of(self, planned: PlannedBatch) -> Decoded:
        """Returns the batch for a planned one: as many images of its sizes, cut out of noise."""
        # a progressive transform has smaller images in some epochs
        parts = zip(self._groups, planned.groups, strict=True)
        groups = tuple(
            images[: len(planned) * len(views), :, : views[0].shape[0], : views[0].shape[1]]
            for images, views in parts
        )
        return Decoded(planned, groups)


def _noise(transform: Transform, count: int, device: torch.device) -> torch.Tensor:
    """(count, channels, H, W) noise of the transform's largest shape."""
    shape = (count, transform.channels, *transform.shape)
    # a separate generator: the program's own random numbers stay as they are
    steps = torch.randint(
        0,
        256,
        shape,
        generator=torch.Generator("cpu").manual_seed(0),
        dtype=torch.uint8,
        device="cpu",
    )

    # from -1 to 1, which is about the range of normalized images
    images = (
        steps if transform.dtype == "uint8" else steps.to(TORCH_DTYPES[transform.dtype]) / 128 - 1
    )
    return images.to(device, memory_format=MEMORY_FORMATS[transform.memory_format])
