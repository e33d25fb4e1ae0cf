"""NVIDIA DALI as a backend: the plan goes in through an ExternalSource, batches come out of a DALIGenericIterator."""

import gc
import os
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from nvidia.dali import Pipeline, fn, pipeline_def, types
from nvidia.dali.data_node import DataNode
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

from dali_pipes.backends.dali_graph import PlanInputs, image_graph
from dali_pipes.backends.transfer import to_gpu
from dali_pipes.batch import Batch
from dali_pipes.config import DaliConfig, Transform
from dali_pipes.cpus import available_cpus
from dali_pipes.manifest import Manifest
from dali_pipes.plan import Rows

# A forked child, such as a DataLoader's worker, must not collect a pipeline that it inherited as garbage: the pipeline's destructor
# waits for threads that only the parent has, forever. Frozen objects are never collected.
os.register_at_fork(after_in_child=gc.freeze)


class DaliBackend:
    """Carries out a plan with DALI, on the GPU where the batches arrive or, with `device="cpu"`, on the CPU.

    Args:
        device: where the batches arrive.
    """

    def __init__(self, manifest: Manifest, transform: Transform, config: DaliConfig, batch_size: int, device: torch.device):
        self._manifest, self._transform, self._config = manifest, transform, config
        self._batch_size, self._device = batch_size, device
        self.device_id = device.index if device.type == "cuda" and config.device != "cpu" else None
        self._pipeline: Pipeline | None = None

    def stream(self, rows: Iterator[Rows]) -> Iterator[Batch]:
        self.close()
        self._pipeline = self.pipeline(rows)
        outputs = DALIGenericIterator([self._pipeline], ["images", "ids"], last_batch_policy=LastBatchPolicy.PARTIAL)
        labels = torch.from_numpy(self._manifest.labels).to("cpu" if self.device_id is None else self._device)
        batches = (to_batch(output["images"], output["ids"], labels, self._transform) for (output,) in outputs)
        if self._device.type == "cuda" and self.device_id is None:
            return to_gpu(batches, self._device, lambda images: images)
        return batches

    def pipeline(self, rows: Iterator[Rows]) -> Pipeline:
        """A pipeline over these rows, not yet built."""
        settings = {
            "batch_size": self._batch_size,
            "num_threads": self._config.num_threads or available_cpus(),
            "device_id": self.device_id,
            "prefetch_queue_depth": self._config.prefetch_queue_depth,
        }
        return _planned_pipeline(self._manifest, self._transform, self._config, rows, **settings)

    def close(self) -> None:
        if self._pipeline:
            shut_down(self._pipeline)
        self._pipeline = None


def shut_down(pipeline: Pipeline) -> None:
    """Ends the pipeline's threads now; else they live until a traceback or a cycle that holds the pipeline is collected."""
    pipeline._shutdown()  # what Pipeline.__del__ does; tensors that were handed out stay valid


def to_batch(images: torch.Tensor, ids: torch.Tensor, labels: torch.Tensor, transform: Transform) -> Batch:
    """DALI's tensors as a Batch, without a copy, but for the cast that `normalize` leaves over; `labels` are those of all ids."""
    if transform.memory_format == "channels_last":
        images = images.permute(0, 3, 1, 2)
    if transform.dtype == "fp16" and images.dtype != torch.float16:
        images = images.half()
    return Batch(images, labels[ids], ids)


@pipeline_def
def _planned_pipeline(manifest: Manifest, transform: Transform, config: DaliConfig, rows: Iterator[Rows]) -> tuple[DataNode, ...]:
    pipeline = Pipeline.current()
    device = "cpu" if pipeline.device_id is None else "gpu"
    names = ["path", "source", "anchor", "shape", "flip", *(["resize", "crop"] if transform.crops else [])]
    *inputs, ids = plan_source(manifest, transform, rows)
    images = image_graph(PlanInputs(**dict(zip(names, inputs, strict=True))), transform, config, device)
    return images, ids if device == "cpu" else ids.gpu()


def plan_source(manifest: Manifest, transform: Transform, rows: Iterator[Rows]) -> Sequence[DataNode]:
    """The plan's inputs of the image graph, and the ids, inside a pipeline definition."""
    feed = _Feed(manifest, rows, transform.crops)
    count = len(feed.dtypes)
    return fn.external_source(source=feed, num_outputs=count, batch=True, cycle="raise", dtype=feed.dtypes, ndim=feed.ndim)


class _Feed:
    """Rows as the arrays that the ExternalSource takes, one array a batch for each input."""

    def __init__(self, manifest: Manifest, rows: Iterator[Rows], crops: bool):
        self._manifest, self._rows, self._crops = manifest, rows, crops
        t = types.DALIDataType
        self.dtypes = [t.UINT8, t.INT64, t.FLOAT, t.FLOAT, t.INT32, *([t.FLOAT, t.INT32] if crops else []), t.INT64]
        self.ndim = [1, 1, 1, 1, 0, *([1, 1] if crops else []), 0]

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        for rows in self._rows:
            geometry = rows.geometry
            window = (geometry.window.reshape(-1, 2, 2) / geometry.source[:, None]).clip(0, 1).astype(np.float32)
            crop = (geometry.resize.astype(np.float32), geometry.crop.astype(np.int32)) if self._crops else ()
            path = self._manifest.path_matrix(rows.ids)
            source = (geometry.source[:, :1] << 32) + geometry.source[:, 1:]
            yield path, source, window[:, 0].copy(), window[:, 1].copy(), geometry.flip.astype(np.int32), *crop, rows.ids
