"""DALI without the plan: its own reader shuffles, and its decoder draws the crops.

Against the arm of `DaliConfig` that decodes alike, it shows what the plan costs.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from nvidia.dali import Pipeline, fn, pipeline_def
from nvidia.dali.data_node import DataNode

from dali_pipes.backends.base import Batch, DecodedBatch
from dali_pipes.backends.common.in_work import InWork
from dali_pipes.backends.common.transfer import copy_to
from dali_pipes.backends.dali.backend import DaliBackend
from dali_pipes.backends.dali.config import DaliConfig, DaliOptions
from dali_pipes.backends.dali.graph import filter_of, gray, normalize
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ChoiceError, Mention
from dali_pipes.measure.arms.unplanned import UnplannedLoader, arrival_device
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import TrainTransform, Transform


class NativeLoader(UnplannedLoader):
    """The batches of `DaliNativeBackend`, with the labels of their images."""

    def __init__(
        self, manifest: Manifest, config: DaliOptions, transform: Transform, batch_size: int
    ):
        super().__init__(len(manifest), batch_size)
        config, self._device = config.on_cores(), arrival_device(config)
        self._manifest = manifest
        self._backend = DaliNativeBackend(manifest, transform, config, batch_size, self._device)

    @property
    def decodes(self) -> str:
        return self._backend.explain()

    def _batches(self) -> Iterator[Batch]:
        # no planned batches go in; the reader shuffles and repeats without end
        for _, batch in self._backend.stream(iter(())):
            labels = self._manifest.take_labels(batch.ids.cpu().numpy())
            yield Batch(
                batch.images,
                copy_to(self._device, torch.from_numpy(np.ascontiguousarray(labels))),
                batch.ids.to(self._device, non_blocking=True),
            )

    def close(self) -> None:
        self._backend.close()


class DaliNativeBackend(DaliBackend):
    """DALI's own graph: readers.file shuffles, and image_random_crop draws the crop.

    Its batches belong to no planned ones.
    """

    carries_out = frozenset({"antialias", "channels"})

    def _prepare(self) -> None:
        self._refuse_views()
        owner, planned = type(self._config), Mention(DaliConfig)
        if not isinstance(self._transform, TrainTransform):
            raise ChoiceError(
                owner, "supports only ", Mention(TrainTransform), "; use ", planned, " for others"
            )
        if (
            self._transform.augmenter.policies
            or self._transform.sizes
            or self._transform.vertical_flip
        ):
            raise ChoiceError(
                owner, "supports neither augment nor sizes nor vertical_flip; use ", planned
            )

        # boxes and masks move with the plan's crop, which this graph does not take
        if self._manifest.has_target("boxes") or self._manifest.has_target("mask"):
            raise ChoiceError(
                owner,
                "draws its crops itself, so boxes and masks cannot follow them; use ",
                planned,
            )
        if not self._manifest.whole_files:
            raise ChoiceError(
                owner,
                "reads files of one image each, and these images are in shards; use ",
                planned,
            )

        super()._prepare()

    def explain(self) -> str:
        return f"{super().explain()}; by DALI's own reader and random crop, outside the plan"

    def _with_plan(self, batch: DecodedBatch, in_work: InWork) -> Any:
        return None, batch

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
    # a file's label is its id, by which the real labels are found
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

    # the decoder draws the crop of a region; else the resize draws it from the whole image
    resize = filter_of(transform) | {"size": transform.shape}
    decode = fn.decoders.image_random_crop if region else fn.decoders.image
    image = decode(encoded, **(crop if region else {}), **decoder)
    image = gray(image) if transform.channels == 1 else image
    image = (
        fn.resize(image, **resize) if region else fn.random_resized_crop(image, **resize, **crop)
    )

    image = normalize(image, fn.random.coin_flip(probability=transform.flip), transform, device)
    return image, ids
