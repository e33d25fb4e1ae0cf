"""torchvision on the GPU: threads read the images, nvJPEG decodes whole batches, crop, resize and flip run image by image."""

from collections.abc import Iterator

import numpy as np
import torch
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms.v2.functional import crop
from torchvision.transforms.v2.functional import resize as resize_image

from dali_pipes.augment.with_torchvision import augment
from dali_pipes.backends import read_pil
from dali_pipes.backends.pixels import Normalizer
from dali_pipes.backends.read_ahead import Encoded, ReadAhead
from dali_pipes.backends.synthetic import on_device
from dali_pipes.batch import Batch
from dali_pipes.config import TorchvisionGpuConfig
from dali_pipes.cpus import available_cpus
from dali_pipes.errors import ConfigError
from dali_pipes.manifest import Manifest
from dali_pipes.plan import Rows
from dali_pipes.transforms import Transform


class TorchvisionGpuBackend:
    """Carries out a plan with torchvision's CUDA decoder. On a CPU device the same code runs without CUDA, for tests.

    Args:
        device: where the images are decoded and the batches arrive.
    """

    engine_mix = "nvJPEG of torchvision"

    def __init__(self, manifest: Manifest, transform: Transform, config: TorchvisionGpuConfig, device: torch.device):
        if transform.exif == "apply":
            raise ConfigError("loader=torchvision_gpu takes pixels as stored; transform.exif=apply needs loader=dali or torch")
        self._manifest, self._size, self._device = manifest, transform.size, device
        self._normalize = Normalizer(transform)
        self._slots = transform.augmenter.slots
        self._read_ahead = ReadAhead(manifest, config.num_threads or available_cpus(), config.prefetch)

    def explain(self) -> str:
        return f"torchvision's decode_jpeg (nvJPEG) decodes whole images on {self._device}, then crops them"

    def stream(self, rows: Iterator[Rows]) -> Iterator[Batch]:
        return self._read_ahead.explained(self._make(row, encoded) for row, encoded in self._read_ahead(rows))

    def _make(self, rows: Rows, files: Encoded) -> Batch:
        images = torch.empty((len(rows), 3, self._size, self._size), dtype=torch.uint8, device=self._device)
        is_jpeg = [encoded[:3].tobytes() == b"\xff\xd8\xff" for encoded in files]
        jpegs = [torch.from_numpy(encoded) for encoded, jpeg in zip(files, is_jpeg, strict=True) if jpeg]
        decoded = iter(decode_jpeg(jpegs, mode=ImageReadMode.RGB, device=self._device) if jpegs else [])
        for at, jpeg in enumerate(is_jpeg):
            image = self._resized(rows, at, next(decoded)) if jpeg else self._with_pillow(rows, at, files[at])
            image = image.flip(2) if rows.geometry.flip[at] else image
            images[at] = augment(image, self._slots, rows.augmentation.ops[at], rows.augmentation.magnitudes[at])
        return Batch(self._normalize(images, torch.from_numpy(rows.augmentation.erased)), *on_device(rows, self._device))

    def _resized(self, rows: Rows, at: int, image: torch.Tensor) -> torch.Tensor:
        geometry = rows.geometry
        read_pil.check_size(self._manifest.name(rows.ids[at]), geometry.source[at], image.shape[1], image.shape[2])
        top, left, height, width = map(int, geometry.window[at])
        image = image[:, top : top + height, left : left + width]
        image = resize_image(image, [int(side) for side in geometry.resize[at]], antialias=True)
        y, x = map(int, geometry.crop[at])
        return crop(image, y, x, self._size, self._size)

    def _with_pillow(self, rows: Rows, at: int, encoded: np.ndarray) -> torch.Tensor:
        geometry, name = rows.geometry, self._manifest.name(rows.ids[at])
        planned = geometry.source[at], geometry.window[at], geometry.resize[at], geometry.crop[at]
        pixels = read_pil.read(encoded, name, self._size, False, *planned)
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1).to(self._device)

    def close(self) -> None:
        self._read_ahead.close()
