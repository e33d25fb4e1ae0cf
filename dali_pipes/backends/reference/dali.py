"""DALI backends for comparisons only.

They are DALI's own graph without the plan, decoding alone, and a few batches repeated.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from nvidia.dali import Pipeline, fn, pipeline_def
from nvidia.dali.data_node import DataNode

from dali_pipes.backends.base import Backend, DecodedBatch, Delivery
from dali_pipes.backends.common.in_work import InWork
from dali_pipes.backends.common.transfer import ids_on
from dali_pipes.backends.dali.backend import DaliBackend, windows_of
from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.backends.dali.graph import RESIZE, normalize
from dali_pipes.backends.reference.config import CachedConfig
from dali_pipes.backends.reference.plain import Noise
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import TrainTransform


class DaliNativeBackend(DaliBackend):
    """Batches of random samples and crops, without the plan.

    readers.file shuffles, and image_random_crop draws the crop. Ids are on the CPU, where labels
    are looked up.
    """

    _takes_the_plan = False

    def _prepare(self) -> None:
        self._refuse_views()
        if not isinstance(self._transform, TrainTransform):
            raise ConfigError(
                "DaliNativeConfig supports only the training transform; use DaliConfig for "
                "evaluation"
            )
        if (
            self._transform.augmenter.policies
            or self._transform.sizes
            or self._transform.vertical_flip
        ):
            raise ConfigError(
                "DaliNativeConfig supports neither augment nor sizes nor vertical_flip; use "
                "DaliConfig"
            )

        # boxes and masks move with the plan's crop, which this graph does not take
        if any(map(self._manifest.has_target, ("boxes", "mask"))):
            raise ConfigError(
                "DaliNativeConfig draws its crops itself, so boxes and masks cannot follow "
                "them; use DaliConfig"
            )
        if not self._manifest.whole_files:
            raise ConfigError(
                "DaliNativeConfig reads files of one image each, and these images are in "
                "shards; use DaliConfig"
            )

        super()._prepare()

    def explain(self) -> str:
        return f"{super().explain()}; by DALI's own reader and random crop, outside the plan"

    def pipeline(self, planned: Iterator[PlannedBatch], **options: Any) -> Pipeline:
        return _native_pipeline(
            self._manifest,
            self._transform,
            self._decoder,
            self.decoding.region,
            **self._settings,
            **options,
        )


@pipeline_def
def _native_pipeline(
    manifest: Manifest, transform: TrainTransform, decoder: dict[str, Any], region: bool
) -> tuple[DataNode, DataNode]:
    device = "cpu" if Pipeline.current().device_id is None else "gpu"
    files = [str(manifest.path(sample_id)) for sample_id in range(len(manifest))]
    encoded, ids = fn.readers.file(
        files=files,
        labels=list(range(len(files))),
        random_shuffle=True,
        read_ahead=True,
        name="reader",
    )

    crop: dict[str, Any] = {
        "random_area": list(transform.scale),
        "random_aspect_ratio": list(transform.ratio),
        # as torchvision's RandomResizedCrop, and so the plan
        "num_attempts": 10,
    }

    resize = RESIZE[transform.interpolation] | {"size": transform.shape}
    if region:
        image = fn.resize(fn.decoders.image_random_crop(encoded, **crop, **decoder), **resize)
    else:
        image = fn.random_resized_crop(fn.decoders.image(encoded, **decoder), **resize, **crop)

    image = normalize(image, fn.random.coin_flip(probability=transform.flip), transform, device)
    return image, ids


class DecodingBackend(DaliBackend):
    """Reads and decodes the planned images as `DaliBackend` does on the CPU, then delivers noise.

    No loader that decodes these images on the CPU can do with less.
    """

    def _prepare(self) -> None:
        super()._prepare()
        self._noise = Noise(self._transform, self._batch_size, self._device)

    def explain(self) -> str:
        return (
            f"DALI on the CPU decodes {self.decoding}; the images are dropped, and the batches "
            "are constant"
        )

    def _finished(self, pipeline: Pipeline, in_work: InWork) -> Iterator[Delivery]:
        for number, _ in windows_of(pipeline):
            planned = in_work.take(number)
            yield planned, self._noise.of(planned)


class CachedBackend(Backend):
    """Makes a few batches with DALI once, and delivers their images again and again: the headroom.

    They are the samples of the first planned batch, in several orders.
    """

    _config: CachedConfig

    def _prepare(self) -> None:
        dali = DaliConfig().on_cores()
        self._source = DaliBackend(
            self._manifest, self._transform, dali, self._batch_size, self._device, self._probe
        )
        self._refuse_padding()
        self._made: list[tuple[torch.Tensor, ...]] = []

    @property
    def engine_mix(self) -> str | None:
        return self._source.engine_mix

    def explain(self) -> str:
        return (
            f"the same {self._config.batches} batches again and again; once, "
            f"{self._source.explain()}"
        )

    def stream(self, planned: Iterator[PlannedBatch]) -> Iterator[Delivery]:
        if not self._made:
            first = next(planned)
            # the first batch is not taken away from the caller
            planned = itertools.chain([first], planned)
            # a first batch that is not full is filled up
            places = np.resize(np.arange(len(first)), self._batch_size)
            orders = [first.take(np.roll(places, shift)) for shift in range(self._config.batches)]

            # `replace` without changes: each batch must be an object of its own (`InWork`)
            made = self._source.stream(map(replace, itertools.cycle(orders)))
            self._made = [
                tuple(map(torch.clone, batch.groups))
                for _, batch in itertools.islice(made, self._config.batches)
            ]
            self._source.close()
        return self._repeat(planned)

    def _repeat(self, planned: Iterator[PlannedBatch]) -> Iterator[Delivery]:
        for each, groups in zip(planned, itertools.cycle(self._made)):
            parts = zip(groups, each.groups, strict=True)
            yield (
                each,
                DecodedBatch.of(
                    [images[: len(each) * len(views)] for images, views in parts],
                    ids_on(self._device, each),
                ),
            )

    def close(self) -> None:
        self._source.close()
        self._made = []
