"""The CPU baseline: PyTorch's DataLoader with Pillow, torchvision or TorchCodec in its workers.

The DataLoader's sampler yields planned batches instead of indices, so that each worker makes a
whole batch; `_Images` is the dataset.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from dali_pipes.backends.backend import Backend, Decoded, Description, InWork
from dali_pipes.backends.needs import EVERYTHING, LOOSE, WIDE
from dali_pipes.backends.pixels import tensors
from dali_pipes.backends.pixels.decode import decode
from dali_pipes.backends.pixels.finish import View, change_views, write_views
from dali_pipes.backends.pixels.functions import say_functions
from dali_pipes.backends.pixels.wide import decode_wide_pixels
from dali_pipes.backends.torch.config import TorchConfig
from dali_pipes.backends.torch.workers import end_workers, start_workers
from dali_pipes.backends.transfer import Groups, to_gpu
from dali_pipes.data.image_files.jpeg import decoder_of
from dali_pipes.data.loose_images import NO_IMAGES, LooseImages
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.reader import Reader
from dali_pipes.errors import ConfigError, Mention, OptionError
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import Transform, views_of
from dali_pipes.system.memory import Need
from dali_pipes.system.traces import span
from dali_pipes.system.workers import leave_signals_to_the_main_process

NumberedBatch = tuple[int, PlannedBatch]  # a planned batch after its number in `InWork`
WorkerResult = tuple[int, Groups]  # the number of the planned batch, groups of images

_SAID = {"pil": "Pillow", "torchvision": "torchvision", "torchcodec": "TorchCodec"}


class TorchBackend(Backend):
    """Carries out a plan with a DataLoader; every worker makes whole batches."""

    config: TorchConfig
    makes = EVERYTHING | {WIDE, LOOSE}

    def prepare(self) -> None:
        config = self.config
        # functions of normalized images run in the workers too, and wide images are no bytes
        in_worker = (
            not config.sends_bytes
            or self.job.images.has_wide
            or any(
                policy.where == "normalized"
                for view in views_of(self.job.transform)
                for policy in view.augmenter.functions
            )
        )
        _check_decoder(config.decoder)
        self._views = [] if in_worker else list(map(View, views_of(self.job.transform)))
        workers = self._workers = config.num_workers or 0

        # creates the path arrays before the workers are forked, so that all share one copy
        self.job.images.extent(0)
        self._images = _Images(self.job.images, self.job.transform, config.decoder, not in_worker)
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
            pin_memory=config.pin_memory and self.job.device.type == "cuda",
            worker_init_fn=leave_signals_to_the_main_process if workers else None,
            # a separate one, so that the model's random numbers do not depend on the loader
            generator=torch.Generator("cpu"),
            **options,
        )

    def describe(self) -> Description:
        workers = f"in {self._workers} processes" if self._workers else "in this process"
        decoder = _SAID[self.config.decoder]
        wide = "; Pillow decodes and resizes those of 16 bits" if self.job.images.has_wide else ""
        text = (
            f"PyTorch's DataLoader with {decoder} decodes whole images on the CPU, {workers}{wide}"
        )
        return Description(text + say_functions(self.job.transform, torch.device("cpu")))

    def stream(self, planned: Iterator[PlannedBatch]) -> Iterator[Decoded]:
        if self._loader is None:
            raise RuntimeError("the loader is closed")

        in_work = InWork(planned)
        self._sampler.numbered = ((id(batch), self._for_worker(batch)) for batch in in_work)

        # persistent workers serve the new iterator; others would go on with the old one
        if not self._loader.persistent_workers:
            end_workers(self._iterator)

        self._iterator = start_workers(self._loader)

        decoded = (Decoded(in_work.take(number), groups) for number, groups in self._iterator)
        if self.job.device.type == "cuda":
            return to_gpu(decoded, self.job.device, self._normalize)
        return map(self._normalize, decoded)

    def _for_worker(self, planned: PlannedBatch) -> PlannedBatch:
        """The batch without the job's images, which each worker has and which are not sent with
        every one.
        """
        is_own = planned.images is self.job.images
        return replace(planned, images=NO_IMAGES) if is_own else planned

    def _normalize(self, batch: Decoded) -> Decoded:
        """A batch of which the workers have sent bytes, normalized; any other as it is."""
        return change_views(batch, self._views, View.normalize) if self._views else batch

    def close(self) -> None:
        end_workers(self._iterator)
        self._images.reader.close()
        self._loader = self._iterator = None

    @classmethod
    def memory_needs(
        cls, config: TorchConfig, transform: Transform, batch_size: int, sizes: NDArray[np.int64]
    ) -> Iterator[Need]:
        text, count = tensors.pixels_of(transform, batch_size)
        batch = count * (1 if config.sends_bytes else tensors.DTYPE_BYTES[transform.dtype])
        if ahead := config.concurrency.ahead:
            what = f"{ahead} batches {text} of {config.num_workers} workers"
            yield Need(what, "shm", ahead * batch, "batch_size, num_workers or prefetch_factor")
        yield Need(f"a batch {text}", "host", batch, "batch_size")


class _PlanSampler(Sampler[NumberedBatch]):
    """Gives planned batches to the DataLoader instead of indices."""

    def __init__(self) -> None:
        self.numbered: Iterator[NumberedBatch] = iter(())

    def __iter__(self) -> Iterator[NumberedBatch]:
        return self.numbered


class _Images(Dataset[WorkerResult]):
    """Makes planned batches; with `only_bytes` up to the normalization."""

    def __init__(
        self,
        images: Manifest | LooseImages,
        transform: Transform,
        decoder: str,
        only_bytes: bool,
    ):
        self._own_images, self._decoder, self.reader = images, decoder, Reader()
        self._views = [View(view, only_bytes) for view in views_of(transform)]
        self._upright, self._channels = transform.exif == "apply", transform.channels
        self._dtype = torch.uint8 if only_bytes else tensors.TORCH_DTYPES[transform.dtype]
        # what is normalized elsewhere keeps the layout of decoded pixels, without a transposition
        keeps_layout = only_bytes and transform.dtype != "uint8"
        self._memory_format = "channels_last" if keeps_layout else transform.memory_format

    def __getitem__(self, numbered: NumberedBatch) -> WorkerResult:
        number, planned = numbered
        images = planned.images if len(planned.images) else self._own_images
        n, form = len(planned), (self._dtype, self._memory_format, _memory)
        groups = tuple(
            tensors.empty_images(n * len(views), self._channels, views[0].shape, *form)
            for views in planned.groups
        )
        outs = [torch.split(out, 1) for group in groups for out in torch.split(group, n)]
        turns = images.take_orientations(planned.ids).tolist() if self._upright else [1] * n
        are_wide = images.take_wide(planned.ids) if images.has_wide else [False] * n

        # image by image: each is read and decoded once, for all of its views
        for at, sample_id in enumerate(planned.ids):
            extent = images.extent(sample_id)
            encoded = self.reader.read(extent)
            of_image = encoded, str(extent), planned.source[at], turns[at], self._channels
            with span("decode"):
                pixels = (
                    decode_wide_pixels(*of_image)
                    if are_wide[at]
                    else decode(self._decoder, *of_image)
                )
                write_views(pixels, self._views, planned, at, outs)
        return number, groups


def _memory(count: int) -> torch.Tensor:
    """Uninitialized bytes; in a worker they are in shared memory.

    The main process then sees them without a copy, as it does with torch's `default_collate`.
    """
    if get_worker_info() is None:
        return torch.empty(count, dtype=torch.uint8, device="cpu")
    storage = torch.UntypedStorage._new_shared(count)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)


def _check_decoder(decoder: str) -> None:
    """Imports the decoder in this process, and not first in a worker.

    Raises:
        OptionError: it is not installed.
    """
    if decoder == "pil":
        return
    try:
        decoder_of(decoder)
    except ConfigError as error:
        instead = ", or take ", Mention(TorchConfig, "decoder", "pil")
        raise OptionError(TorchConfig, f"decoder is {decoder}, but {error}", *instead) from None
