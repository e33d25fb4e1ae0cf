"""DALI without the plan: its own reader shuffles, and its decoder draws the crops.

Against the arm of `DaliConfig` that decodes alike, it shows what the plan costs.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from nvidia.dali import Pipeline, fn, pipeline_def
from nvidia.dali.data_node import DataNode

from dali_pipes.backends.backend import Decoded, Description, InWork, Job
from dali_pipes.backends.dali.backend import DaliBackend
from dali_pipes.backends.dali.config import DaliConfig, DaliOptions
from dali_pipes.backends.dali.graph import filter_of, gray, normalize
from dali_pipes.backends.transfer import Groups, copy_to
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ChoiceError, Mention
from dali_pipes.loader.batch import Batch
from dali_pipes.measure.arms.unplanned import UnplannedLoader, arrival_device
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import TrainTransform, Transform


class NativeLoader(UnplannedLoader):
    """The batches of `DaliNativeBackend`, with the labels of their images."""

    def __init__(
        self, manifest: Manifest, config: DaliOptions, transform: Transform, batch_size: int
    ):
        super().__init__(-(-len(manifest) // batch_size))
        config, self._device = config.on_cores(), arrival_device(config)
        self._manifest = manifest
        job = Job(transform, manifest, batch_size, self._device)
        self._backend = DaliNativeBackend(job, config)

    @property
    def decodes(self) -> str:
        return self._backend.describe().text

    def _batches(self) -> Iterator[Batch]:
        # no planned batches go in; the reader shuffles and repeats without end
        for batch in self._backend.stream(iter(())):
            ids = batch.planned.ids
            labels = np.ascontiguousarray(self._manifest.take_labels(ids))
            numbers = [copy_to(self._device, torch.from_numpy(each)) for each in (labels, ids)]
            yield Batch(batch.images, numbers[0], numbers[1])

    def close(self) -> None:
        self._backend.close()


class DaliNativeBackend(DaliBackend):
    """DALI's own graph: readers.file shuffles, and image_random_crop draws the crop.

    Its batches belong to no planned ones.
    """

    makes = frozenset({"antialias", "channels"})

    def prepare(self) -> None:
        owner, planned = type(self.config), Mention(DaliConfig)
        # the views of ViewsTransform, which extends it, are not what this graph makes
        if type(self.job.transform) is not TrainTransform:
            raise ChoiceError(
                owner, "supports only ", Mention(TrainTransform), "; use ", planned, " for others"
            )
        if self.job.transform.sizes or self.job.transform.vertical_flip:
            raise ChoiceError(owner, "supports neither sizes nor vertical_flip; use ", planned)

        # boxes and masks move with the plan's crop, which this graph does not take
        if self.job.images.has_target("boxes") or self.job.images.has_target("mask"):
            raise ChoiceError(
                owner,
                "draws its crops itself, so boxes and masks cannot follow them; use ",
                planned,
            )
        if not self.job.images.whole_files:
            raise ChoiceError(
                owner,
                "reads files of one image each, and these images are in shards; use ",
                planned,
            )

        super().prepare()

    def describe(self) -> Description:
        described = super().describe()
        how = "by DALI's own reader and random crop, outside the plan"
        return described._replace(text=f"{described.text}; {how}")

    def _pair(self, groups: Groups, last: torch.Tensor, in_work: InWork) -> Decoded:
        # a planned batch of these ids, of which only they are asked for
        ids = last.flatten().long().numpy()
        return Decoded(PlannedBatch(0, 0, ids, (), self.job.images), groups)

    def pipeline(self, planned: Iterator[PlannedBatch], **options: Any) -> Pipeline:
        return _native_pipeline(
            self.job.images,
            self.job.transform,
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
