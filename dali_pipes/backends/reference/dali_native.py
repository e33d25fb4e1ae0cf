"""DALI's own graph, outside the plan: readers.file shuffles, image_random_crop draws the crop. For comparisons, not training."""

from collections.abc import Iterator
from typing import Any

from nvidia.dali import Pipeline, fn, pipeline_def
from nvidia.dali.data_node import DataNode

from dali_pipes.backends.dali.backend import DaliBackend
from dali_pipes.backends.dali.graph import RESIZE, normalize
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import TrainTransform


class DaliNativeBackend(DaliBackend):
    """Batches of random samples and crops; the rows of the plan are not used. Ids are on the CPU, where labels are looked up."""

    def _prepare(self) -> None:
        self._refuse_views()
        if not isinstance(self._transform, TrainTransform):
            raise ConfigError("DaliNativeConfig supports only the training transform; use DaliConfig for evaluation")
        if self._transform.augmenter.policies or self._transform.sizes or self._transform.vertical_flip:
            raise ConfigError("DaliNativeConfig supports neither augment nor sizes nor vertical_flip; use DaliConfig")
        if any(map(self._manifest.has_target, ("boxes", "mask"))):
            raise ConfigError("DaliNativeConfig draws its crops itself, so boxes and masks cannot follow them; use DaliConfig")
        if not self._manifest.whole_files:
            raise ConfigError("DaliNativeConfig reads files of one image each, and these images are in shards; use DaliConfig")
        super()._prepare()

    def explain(self) -> str:
        return f"{super().explain()}; by DALI's own reader and random crop, outside the plan"

    def pipeline(self, rows: Iterator[PlannedBatch], **options: Any) -> Pipeline:
        return _native_pipeline(self._manifest, self._transform, self._decoder, self.decoding.region, **self._settings, **options)


@pipeline_def
def _native_pipeline(
    manifest: Manifest, transform: TrainTransform, decoder: dict[str, Any], region: bool
) -> tuple[DataNode, DataNode]:
    device = "cpu" if Pipeline.current().device_id is None else "gpu"
    files = [str(manifest.path(sample_id)) for sample_id in range(len(manifest))]
    encoded, ids = fn.readers.file(files=files, labels=list(range(len(files))), random_shuffle=True, read_ahead=True, name="reader")
    crop: dict[str, Any] = {"random_area": list(transform.scale), "random_aspect_ratio": list(transform.ratio), "num_attempts": 10}
    resize = RESIZE[transform.interpolation] | {"size": transform.shape}
    if region:
        image = fn.resize(fn.decoders.image_random_crop(encoded, **crop, **decoder), **resize)
    else:
        image = fn.random_resized_crop(fn.decoders.image(encoded, **decoder), **resize, **crop)
    image = normalize(image, fn.random.coin_flip(probability=transform.flip), transform, device)
    return image, ids
