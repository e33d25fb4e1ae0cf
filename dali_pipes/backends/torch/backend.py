"""The CPU baseline: PyTorch's DataLoader with Pillow, torchvision or TorchCodec in its workers.

The DataLoader's sampler yields planned batches instead of indices, so that each worker makes a
whole batch; `_Images` is the dataset.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from dali_pipes.backends.base import EVERYTHING, WIDE, Backend, DecodedBatch, Delivery
from dali_pipes.backends.common import pillow, pixels, wide_pixels
from dali_pipes.backends.common.dataloader import end_workers, start_workers
from dali_pipes.backends.common.functions import Functions
from dali_pipes.backends.common.in_work import InWork
from dali_pipes.backends.common.transfer import Groups, finish_on_gpu
from dali_pipes.backends.common.view_writer import ViewWriter
from dali_pipes.backends.torch.config import TorchConfig
from dali_pipes.data.image_files.jpeg import decoder_of
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.reader import Reader
from dali_pipes.errors import ConfigError, Mention, OptionError
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import Transform, views_of
from dali_pipes.system.memory import Need
from dali_pipes.system.traces import span
from dali_pipes.system.workers import leave_signals_to_the_main_process

NumberedBatch = tuple[int, PlannedBatch]  # a planned batch after its number in `InWork`
# the number of the planned batch, groups of images, their erased regions
WorkerResult = tuple[int, Groups, Groups]

_SAID = {"pil": "Pillow", "torchvision": "torchvision", "torchcodec": "TorchCodec"}


class TorchBackend(Backend):
    """Carries out a plan with a DataLoader; every worker makes whole batches."""

    _config: TorchConfig
    carries_out = EVERYTHING | {WIDE}

    def _prepare(self) -> None:
        config = self._config
        # functions of normalized images run in the workers too, and wide images are no bytes
        in_worker = (
            not config.sends_bytes
            or self._manifest.has_wide
            or any(
                policy.where == "normalized"
                for view in views_of(self._transform)
                for policy in view.augmenter.functions
            )
        )
        self._normalizer = None if in_worker else pixels.Normalizer(self._transform)
        workers = self._workers = config.num_workers or 0

        # creates the path arrays before the workers are forked, so that all share one copy
        self._manifest.extent(0)
        self._images = _Images(self._manifest, self._transform, config.decoder, in_worker)
        self._sampler = _PlanSampler()
        self._iterator: Any = None

        # the DataLoader refuses these options without workers
        of_workers = (
            ("prefetch_factor", "persistent_workers", "multiprocessing_context") if workers else ()
        )
        options: dict[str, Any] = {name: getattr(config, name) for name in of_workers}
        # batch_size=None: what the sampler yields goes to the dataset as it is, a whole batch
        self._loader: DataLoader[WorkerResult] | None = DataLoader(
            self._images,
            sampler=self._sampler,
            batch_size=None,
            num_workers=workers,
            pin_memory=config.pin_memory and self._device.type == "cuda",
            worker_init_fn=leave_signals_to_the_main_process if workers else None,
            # a separate one, so that the model's random numbers do not depend on the loader
            generator=torch.Generator("cpu"),
            **options,
        )

    def explain(self) -> str:
        workers = f"in {self._workers} processes" if self._workers else "in this process"
        decoder = _SAID[self._config.decoder]
        wide = "; Pillow decodes and resizes those of 16 bits" if self._manifest.has_wide else ""
        return (
            f"PyTorch's DataLoader with {decoder} decodes whole images on the CPU, {workers}{wide}"
        )

    def stream(self, planned: Iterator[PlannedBatch]) -> Iterator[Delivery]:
        if self._loader is None:
            raise RuntimeError("the loader is closed")

        in_work = InWork(planned)
        self._sampler.numbered = ((id(batch), batch) for batch in in_work)

        # persistent workers serve the new iterator; others would go on with the old one
        if not self._loader.persistent_workers:
            self._end_workers()

        self._iterator = start_workers(self._loader)

        decoded = (
            (in_work.take(number), groups, erased) for number, groups, erased in self._iterator
        )
        if self._device.type == "cuda":
            with_ids = (
                (planned, groups, torch.from_numpy(planned.ids), erased)
                for planned, groups, erased in decoded
            )
            return finish_on_gpu(with_ids, self._device, self._finish)
        return (
            (planned, self._to_batch(planned, groups, erased))
            for planned, groups, erased in decoded
        )

    def _to_batch(self, planned: PlannedBatch, groups: Groups, erased: Groups) -> DecodedBatch:
        return DecodedBatch.of(self._finish(groups, erased), torch.from_numpy(planned.ids))

    def _finish(self, groups: Groups, erased: Groups) -> Groups:
        return tuple(map(self._normalizer, groups, erased)) if self._normalizer else tuple(groups)

    def close(self) -> None:
        self._end_workers()
        self._images.reader.close()
        self._loader = self._iterator = None

    @classmethod
    def memory_needs(
        cls, config: TorchConfig, transform: Transform, batch_size: int, sizes: NDArray[np.int64]
    ) -> Iterator[Need]:
        text, count = pixels.pixels_of(transform, batch_size)
        batch = count * (1 if config.sends_bytes else pixels.DTYPE_BYTES[transform.dtype])
        if ahead := config.concurrency.ahead:
            what = f"{ahead} batches {text} of {config.num_workers} workers"
            yield Need(what, "shm", ahead * batch, "batch_size, num_workers or prefetch_factor")
        yield Need(f"a batch {text}", "host", batch, "batch_size")

    def _end_workers(self) -> None:
        end_workers(self._iterator)


class _PlanSampler(Sampler[NumberedBatch]):
    """Gives planned batches to the DataLoader instead of indices."""

    def __init__(self) -> None:
        self.numbered: Iterator[NumberedBatch] = iter(())

    def __iter__(self) -> Iterator[NumberedBatch]:
        return self.numbered


class _Images(Dataset[WorkerResult]):
    def __init__(self, manifest: Manifest, transform: Transform, decoder: str, normalize: bool):
        self._manifest, self._transforms = manifest, views_of(transform)
        self._functions = list(map(Functions, self._transforms))
        self._decode, self.reader, self._normalize = _decoder(decoder), Reader(), normalize
        self._upright, self._channels = transform.exif == "apply", transform.channels
        self._dtype = pixels.TORCH_DTYPES[transform.dtype] if normalize else torch.uint8
        # what is normalized elsewhere keeps the layout of decoded pixels, without a transposition
        self._memory_format = (
            transform.memory_format if normalize or transform.dtype == "uint8" else "channels_last"
        )

    def __getitem__(self, numbered: NumberedBatch) -> WorkerResult:
        number, planned = numbered
        images_by_id = planned.images_in(self._manifest)
        n, form = len(planned), (self._dtype, self._memory_format, _memory)
        groups = tuple(
            pixels.empty_images(n * len(views), self._channels, views[0].shape, *form)
            for views in planned.groups
        )
        outs = [out for images in groups for out in torch.split(images, n)]
        views = list(map(ViewWriter, self._transforms, self._functions, planned.views, outs))
        orientations = (
            images_by_id.take_orientations(planned.ids).tolist() if self._upright else [1] * n
        )

        wide = images_by_id.take_wide(planned.ids) if images_by_id.has_wide else [False] * n

        # image by image: each is read and decoded once, for all of its views
        for at, sample_id in enumerate(planned.ids):
            extent = images_by_id.extent(sample_id)
            encoded = self.reader.read(extent)
            with span("decode"):
                decode = wide_pixels.read if wide[at] else self._decode
                decoded = decode(
                    encoded,
                    str(extent),
                    [view.decode_request(at) for view in views],
                    orientations[at],
                )
                for view, image in zip(views, decoded, strict=True):
                    view.write(at, image)

        erased = tuple(
            pixels.join_erased([view.augmentation.erased for view in views])
            for views in planned.groups
        )

        if self._normalize:
            for images, regions in zip(groups, erased, strict=True):
                pixels.erase(images, regions)
        return number, groups, erased


def _memory(count: int) -> torch.Tensor:
    """Uninitialized bytes; in a worker they are in shared memory.

    The main process then sees them without a copy, as it does with torch's `default_collate`.
    """
    if get_worker_info() is None:
        return torch.empty(count, dtype=torch.uint8, device="cpu")
    storage = torch.UntypedStorage._new_shared(count)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)


def _decoder(decoder: str) -> Callable[..., Iterator[np.ndarray]]:
    """The function that decodes an image; torchvision is imported only if it is used.

    torchvision takes longer to import than PyTorch.

    Raises:
        OptionError: the decoder is not installed.
    """
    if decoder == "pil":
        return pillow.read
    from dali_pipes.backends.common import jpeg_decode

    try:
        decoder_of(decoder)  # in this process, and not first in a worker
    except ConfigError as error:
        instead = ", or take ", Mention(TorchConfig, "decoder", "pil")
        raise OptionError(TorchConfig, f"decoder is {decoder}, but {error}", *instead) from None
    return partial(jpeg_decode.read, decoder)
