"""DALI's own graph, outside the plan: readers.file shuffles, image_random_crop draws the crop. A yardstick, not for training."""

from collections.abc import Iterator

import torch
from nvidia.dali import Pipeline, fn, pipeline_def
from nvidia.dali.data_node import DataNode

from dali_pipes.backends.dali import batches_of, shut_down
from dali_pipes.backends.dali_graph import decoder_options, normalize
from dali_pipes.batch import Batch
from dali_pipes.config import DaliNativeConfig
from dali_pipes.cpus import available_cpus
from dali_pipes.errors import ConfigError
from dali_pipes.manifest import Manifest
from dali_pipes.plan import Rows
from dali_pipes.transforms import TrainTransform, Transform


class DaliNativeBackend:
    """Batches of random samples and crops with ids; the rows of the plan are not looked at."""

    def __init__(self, manifest: Manifest, transform: Transform, config: DaliNativeConfig, batch_size: int, device: torch.device):
        if not isinstance(transform, TrainTransform):
            raise ConfigError("loader=dali_native knows only the training transform; use loader=dali for evaluation")
        if transform.augmenter.policies or transform.sizes:
            raise ConfigError("loader=dali_native knows neither transform.augment nor transform.sizes; use loader=dali")
        if not manifest.whole_files:
            raise ConfigError(
                "loader=dali_native reads files of one image each, and these lie in shards; use loader=dali or dali_cpu"
            )
        self._manifest, self._transform, self._config, self._batch_size = manifest, transform, config, batch_size
        self._device = device
        self._device_id = device.index if device.type == "cuda" and config.device != "cpu" else None
        self._pipeline: Pipeline | None = None

    def stream(self, rows: Iterator[Rows]) -> Iterator[Batch]:
        self.close()
        self._pipeline = _native_pipeline(
            self._manifest,
            self._transform,
            self._config,
            batch_size=self._batch_size,
            num_threads=self._config.num_threads or available_cpus(),
            device_id=self._device_id,
            prefetch_queue_depth=self._config.prefetch_queue_depth,
        )
        return batches_of(self._pipeline, self._manifest, self._transform, self._device)

    def close(self) -> None:
        if self._pipeline:
            shut_down(self._pipeline)
        self._pipeline = None


@pipeline_def
def _native_pipeline(manifest: Manifest, transform: TrainTransform, config: DaliNativeConfig) -> tuple[DataNode, DataNode]:
    device = "cpu" if Pipeline.current().device_id is None else "gpu"
    files = [str(manifest.path(sample_id)) for sample_id in range(len(manifest))]
    encoded, ids = fn.readers.file(files=files, labels=list(range(len(files))), random_shuffle=True, read_ahead=True, name="reader")
    image = fn.decoders.image_random_crop(
        encoded,
        random_area=list(transform.scale),
        random_aspect_ratio=list(transform.ratio),
        num_attempts=10,
        **decoder_options(config, transform, device),
    )
    image = fn.resize(image, size=(transform.size, transform.size), antialias=True)
    image = normalize(image, fn.random.coin_flip(probability=transform.flip), transform, device)
    return image, ids if device == "cpu" else ids.gpu()
