"""torchvision on the GPU: threads read the files, nvJPEG decodes whole batches, crop, resize and flip run image by image."""

import itertools
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms.v2.functional import crop
from torchvision.transforms.v2.functional import resize as resize_image

from dali_pipes.augment.with_torchvision import augment
from dali_pipes.backends import read_pil
from dali_pipes.backends.pixels import Normalizer
from dali_pipes.backends.synthetic import on_device
from dali_pipes.batch import Batch
from dali_pipes.config import TorchvisionGpuConfig, Transform
from dali_pipes.cpus import available_cpus
from dali_pipes.errors import ConfigError
from dali_pipes.manifest import Manifest
from dali_pipes.plan import Rows


class TorchvisionGpuBackend:
    """Carries out a plan with torchvision's CUDA decoder. On a CPU device the same code runs without CUDA, for tests.

    Args:
        device: where the images are decoded and the batches arrive.
    """

    def __init__(self, manifest: Manifest, transform: Transform, config: TorchvisionGpuConfig, device: torch.device):
        if transform.exif == "apply":
            raise ConfigError("loader=torchvision_gpu takes pixels as stored; transform.exif=apply needs loader=dali or torch")
        self._manifest, self._size, self._device = manifest, transform.size, device
        self._normalize = Normalizer(transform)
        self._slots = transform.augmenter.slots
        self._readers = ThreadPoolExecutor(config.num_threads or available_cpus())
        self._prefetch = config.prefetch

    def stream(self, rows: Iterator[Rows]) -> Iterator[Batch]:
        return (self._make(row, [each.result() for each in files]) for row, files in self._read_ahead(rows))

    def _read_ahead(self, rows: Iterator[Rows]) -> Iterator[tuple[Rows, list[Future[np.ndarray]]]]:
        ahead: deque[tuple[Rows, list[Future[np.ndarray]]]] = deque()
        try:
            for row in rows:
                ahead.append((row, [self._readers.submit(np.fromfile, self._manifest.path(each), np.uint8) for each in row.ids]))
                if len(ahead) > self._prefetch:
                    yield ahead.popleft()
            yield from ahead
        finally:
            for file in itertools.chain.from_iterable(files for _, files in ahead):
                file.cancel()

    def _make(self, rows: Rows, files: list[np.ndarray]) -> Batch:
        images = torch.empty((len(rows), 3, self._size, self._size), dtype=torch.uint8, device=self._device)
        is_jpeg = [encoded[:3].tobytes() == b"\xff\xd8\xff" for encoded in files]
        jpegs = [torch.from_numpy(encoded) for encoded, jpeg in zip(files, is_jpeg, strict=True) if jpeg]
        decoded = iter(decode_jpeg(jpegs, mode=ImageReadMode.RGB, device=self._device) if jpegs else [])
        for at, jpeg in enumerate(is_jpeg):
            image = self._resized(rows, at, next(decoded)) if jpeg else self._with_pillow(rows, at)
            image = image.flip(2) if rows.geometry.flip[at] else image
            images[at] = augment(image, self._slots, rows.augmentation.ops[at], rows.augmentation.magnitudes[at])
        return Batch(self._normalize(images, torch.from_numpy(rows.augmentation.erased)), *on_device(rows, self._device))

    def _resized(self, rows: Rows, at: int, image: torch.Tensor) -> torch.Tensor:
        geometry = rows.geometry
        read_pil.check_size(str(self._manifest.path(rows.ids[at])), geometry.source[at], image.shape[1], image.shape[2])
        top, left, height, width = map(int, geometry.window[at])
        image = image[:, top : top + height, left : left + width]
        image = resize_image(image, [int(side) for side in geometry.resize[at]], antialias=True)
        y, x = map(int, geometry.crop[at])
        return crop(image, y, x, self._size, self._size)

    def _with_pillow(self, rows: Rows, at: int) -> torch.Tensor:
        geometry, path = rows.geometry, str(self._manifest.path(rows.ids[at]))
        pixels = read_pil.read(
            path, self._size, False, geometry.source[at], geometry.window[at], geometry.resize[at], geometry.crop[at]
        )
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1).to(self._device)

    def close(self) -> None:
        self._readers.shutdown(cancel_futures=True)
