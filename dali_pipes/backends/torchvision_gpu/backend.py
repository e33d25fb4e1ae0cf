"""torchvision on the GPU: threads read the images, nvJPEG decodes whole batches.

Crop, resize and flip run image by image, on a stream of the loader's own.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torchvision.transforms.v2.functional import crop

from dali_pipes.backends.base import Backend, DecodedBatch, Delivery
from dali_pipes.backends.common import pillow as read_pil
from dali_pipes.backends.common.jpeg_decode import resize_region
from dali_pipes.backends.common.pixels import Normalizer
from dali_pipes.backends.common.read_ahead import EncodedImages, ReadAhead
from dali_pipes.backends.common.torchvision_augment import augment
from dali_pipes.backends.common.transfer import hand_over, ids_on
from dali_pipes.backends.torchvision_gpu.config import TorchvisionGpuConfig
from dali_pipes.data.image_files.jpeg import decode_on
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.system.traces import span

_FRAMES = range(0xC0, 0xC3)  # markers of baseline, extended and progressive JPEGs


class TorchvisionGpuBackend(Backend):
    """Carries out a plan with torchvision's CUDA decoder.

    On a CPU device the same code runs without CUDA, for tests.

    Batches are made on a separate stream, because of how that decoder treats memory (torchvision
    0.25, torchvision/csrc/io/image/cuda/decode_jpegs_cuda.cpp). `CUDAJpegDecoder::prepare_buffers`
    takes the images' memory from the pool of the current stream, and `decode_images` writes into it
    on the decoder's own stream. It synchronizes that stream before and after, but nothing makes it
    wait for the current one.

    PyTorch's allocator gives memory that was freed on a stream to that stream again at once: what
    comes later on the stream runs after the kernels that still read the memory. The decoder does
    not. On the stream of a training step it would write into tensors that waiting kernels have yet
    to read: a batch that was dropped, an activation, the input of the previous batch's resizes.

    The loader's own stream has a separate pool. Memory returns to it only after all readers are
    done (`record_stream`), and the stream is synchronized before each decode, so that no pending
    kernel on it reads what the decoder overwrites. This blocks the host, but no other stream.
    """

    _config: TorchvisionGpuConfig
    carries_out = frozenset({"antialias", "functions", "noise", "channels"})

    def _prepare(self) -> None:
        transform, device = self._transform, self._device
        self._refuse_views()
        self._refuse_exif()
        self._normalize = Normalizer(transform)
        self._slots = transform.augmenter.slots
        self._read_ahead = ReadAhead(
            self._manifest, self._config.num_threads or 1, self._config.prefetch
        )
        self._own_stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._own_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @property
    def engine_mix(self) -> str | None:
        return "nvJPEG of torchvision, plain upsampling"

    def explain(self) -> str:
        if self._device.type != "cuda":
            return (
                f"torchvision's decode_jpeg decodes whole images on {self._device}, then crops them"
            )
        how = "with plain chroma upsampling, so with other pixels than a CPU's (docs/pixels.md)"
        return (
            f"torchvision's decode_jpeg (nvJPEG) decodes whole images on {self._device}, "
            f"{how}, then crops them"
        )

    def stream(self, planned: Iterator[PlannedBatch]) -> Iterator[Delivery]:
        return self._read_ahead.note_failures(
            itertools.starmap(self._ready, self._read_ahead(planned))
        )

    @classmethod
    def functions_on(cls, config: Any, device: torch.device) -> torch.device:
        return device

    def _ready(self, planned: PlannedBatch, files: EncodedImages) -> Delivery:
        with span("decode"), torch.cuda.stream(self._own_stream):
            batch = self._make(planned, files)
        return planned, hand_over(batch, self._own_stream) if self._own_stream else batch

    def _make(self, planned: PlannedBatch, files: EncodedImages) -> DecodedBatch:
        images = torch.empty(
            (len(planned), self._transform.channels, *self._transform.shape),
            dtype=torch.uint8,
            device=self._device,
        )

        for_nvjpeg = [_is_for_nvjpeg(encoded) for encoded in files]
        jpegs = [
            torch.from_numpy(encoded)
            for encoded, fits in zip(files, for_nvjpeg, strict=True)
            if fits
        ]

        # no kernel may still read memory that the decoder gets: see the class
        if self._own_stream:
            self._own_stream.synchronize()
        decoded = iter(decode_on(self._device, jpegs))

        for at, fits in enumerate(for_nvjpeg):
            image = self._image(planned, at, files[at], next(decoded) if fits else None)
            images[at] = augment(
                image,
                self._slots,
                planned.augmentation.ops[at],
                planned.augmentation.magnitudes[at],
            )

        return DecodedBatch(
            self._normalize(
                images,
                torch.from_numpy(planned.augmentation.erased),
                planned.augmentation.numbers,
            ),
            ids_on(self._device, planned),
        )

    def _image(
        self, planned: PlannedBatch, at: int, encoded: np.ndarray, decoded: torch.Tensor | None
    ) -> torch.Tensor:
        """(channels, height, width) before augmentation; Pillow decodes what nvJPEG does not."""
        transform, geometry, name = (
            self._transform,
            planned.geometry.take(at),
            self._manifest.name(planned.ids[at]),
        )

        view = read_pil.View(transform, geometry, transform.shape)
        if decoded is None:
            (pixels,) = read_pil.read(encoded, name, [view])
            # a copy: a flipped image has negative strides, which from_numpy refuses
            return torch.from_numpy(pixels.copy()).permute(2, 0, 1).to(self._device)

        # torchvision's crop is black outside the image
        y, x = map(int, geometry.crop)
        image = crop(resize_region(decoded, name, view), y, x, *transform.shape)
        axes = [axis for axis, flips in ((1, geometry.vertical_flip), (2, geometry.flip)) if flips]
        return image.flip(axes) if axes else image

    def close(self) -> None:
        self._read_ahead.close()


def _is_for_nvjpeg(encoded: np.ndarray) -> bool:
    """Whether these bytes are a JPEG in color.

    nvJPEG's engine may write nothing for a gray one (dali/routes.py). The number of components is
    in the header of the frame (ITU-T T.81, B.2.2).
    """
    content = encoded.data
    if bytes(content[:3]) != b"\xff\xd8\xff":
        return False

    # after the first marker come segments: 0xFF, a marker, and the length (ITU-T T.81, B.1.1)
    at = 2
    while at + 9 < len(content):
        marker = content[at + 1]
        if marker == 0xFF:  # fills a gap
            at += 1
            continue
        # after the length (2 bytes), the precision (1), height and width (2 each)
        if marker in _FRAMES:
            return content[at + 9] != 1
        at += 2 + (content[at + 2] << 8 | content[at + 3])  # the next segment

    return True
