"""DALI's own graph, outside the plan: readers.file shuffles, image_random_crop draws the crop. For comparisons, not training."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from nvidia.dali import Pipeline, fn, pipeline_def
from nvidia.dali.data_node import DataNode

from dali_pipes.backends.base import Backend, DecodedBatch
from dali_pipes.backends.config import DaliNativeConfig
from dali_pipes.backends.dali.backend import batches_of, engine_mix, explain, shut_down
from dali_pipes.backends.dali.decoding import choose
from dali_pipes.backends.dali.graph import decoder_options, normalize
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import TrainTransform, Transform


class DaliNativeBackend(Backend):
    """Batches of random samples and crops with ids; the rows of the plan are not used."""

    def __init__(
        self,
        manifest: Manifest,
        transform: Transform,
        config: DaliNativeConfig,
        batch_size: int,
        device: torch.device,
        probe: Callable[[], str] | None = None,
    ):
        if not isinstance(transform, TrainTransform):
            raise ConfigError("DaliNativeConfig supports only the training transform; use DaliConfig for evaluation")
        if transform.augmenter.policies or transform.sizes:
            raise ConfigError("DaliNativeConfig supports neither augment nor sizes; use DaliConfig")
        if not manifest.whole_files:
            raise ConfigError("DaliNativeConfig reads files of one image each, and these images are in shards; use DaliConfig")
        self._manifest, self._transform, self._config, self._batch_size = manifest, transform, config, batch_size
        self._device = device
        self._device_id = device.index if device.type == "cuda" and config.device != "cpu" else None
        self.decoding = choose(config, transform, self._device_id is not None, probe)
        self._pipeline: Pipeline | None = None

    def explain(self) -> str:
        return f"{explain(self._config, self.decoding, self._device_id)}; by DALI's own reader and random crop, outside the plan"

    @property
    def engine_mix(self) -> str | None:
        return engine_mix(self._config, self.decoding, self._batch_size) if self._device_id is not None else None

    def stream(self, rows: Iterator[PlannedBatch]) -> Iterator[DecodedBatch]:
        self.close()
        self._pipeline = self.pipeline()
        return batches_of(self._pipeline, self._transform, self._device)

    def pipeline(self) -> Pipeline:
        """Not yet built."""
        device = "cpu" if self._device_id is None else "gpu"
        return _native_pipeline(
            self._manifest,
            self._transform,
            decoder_options(self._config, self._transform, self._manifest.sizes, device),
            self.decoding.region,
            batch_size=self._batch_size,
            num_threads=self._config.num_threads,
            device_id=self._device_id,
            prefetch_queue_depth=self._config.prefetch_queue_depth,
        )

    def close(self) -> None:
        if self._pipeline:
            shut_down(self._pipeline)
        self._pipeline = None


@pipeline_def
def _native_pipeline(
    manifest: Manifest, transform: TrainTransform, decoder: dict[str, Any], region: bool
) -> tuple[DataNode, DataNode]:
    device = "cpu" if Pipeline.current().device_id is None else "gpu"
    files = [str(manifest.path(sample_id)) for sample_id in range(len(manifest))]
    encoded, ids = fn.readers.file(files=files, labels=list(range(len(files))), random_shuffle=True, read_ahead=True, name="reader")
    crop: dict[str, Any] = {"random_area": list(transform.scale), "random_aspect_ratio": list(transform.ratio), "num_attempts": 10}
    size = (transform.size, transform.size)
    if region:
        image = fn.resize(fn.decoders.image_random_crop(encoded, **crop, **decoder), size=size, antialias=True)
    else:
        image = fn.random_resized_crop(fn.decoders.image(encoded, **decoder), size=size, antialias=True, **crop)
    image = normalize(image, fn.random.coin_flip(probability=transform.flip), transform, device)
    return image, ids if device == "cpu" else ids.gpu()
