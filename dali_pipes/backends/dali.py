"""NVIDIA DALI as a backend: the plan goes in through an ExternalSource, batches come out of a DALIGenericIterator."""

import gc
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from nvidia.dali import Pipeline, fn, pipeline_def, types
from nvidia.dali.data_node import DataNode
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

from dali_pipes.backends.dali_graph import PlanInputs, image_graph
from dali_pipes.backends.read_ahead import Encoded, ReadAhead
from dali_pipes.backends.transfer import to_gpu
from dali_pipes.batch import Batch
from dali_pipes.config import DaliConfig, Transform
from dali_pipes.cpus import available_cpus
from dali_pipes.manifest import Manifest
from dali_pipes.plan import Rows

READ_AHEAD = 2  # batches out of shards, before DALI asks for them

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
        self._read_ahead: ReadAhead | None = None

    def stream(self, rows: Iterator[Rows]) -> Iterator[Batch]:
        self.close()
        self._pipeline = self.pipeline(rows)
        outputs = DALIGenericIterator([self._pipeline], ["images", "ids"], last_batch_policy=LastBatchPolicy.PARTIAL)
        labels = torch.from_numpy(self._manifest.labels).to("cpu" if self.device_id is None else self._device)
        batches: Iterator[Batch] = (to_batch(output["images"], output["ids"], labels, self._transform) for (output,) in outputs)
        if self._device.type == "cuda" and self.device_id is None:
            batches = to_gpu(batches, self._device, lambda images: images)
        return self._read_ahead.explained(batches) if self._read_ahead else batches

    def pipeline(self, rows: Iterator[Rows]) -> Pipeline:
        """A pipeline over these rows, not yet built."""
        settings = {
            "batch_size": self._batch_size,
            "num_threads": self._config.num_threads or available_cpus(),
            "device_id": self.device_id,
            "prefetch_queue_depth": self._config.prefetch_queue_depth,
        }
        if not self._manifest.whole_files:
            self._read_ahead = ReadAhead(self._manifest, self._config.read_threads, READ_AHEAD)
        return _planned_pipeline(self._manifest, self._transform, self._config, rows, self._read_ahead, **settings)

    def close(self) -> None:
        if self._pipeline:
            shut_down(self._pipeline)
        if self._read_ahead:
            self._read_ahead.close()
        self._pipeline = self._read_ahead = None


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
def _planned_pipeline(
    manifest: Manifest, transform: Transform, config: DaliConfig, rows: Iterator[Rows], read_ahead: ReadAhead | None
) -> tuple[DataNode, ...]:
    pipeline = Pipeline.current()
    device = "cpu" if pipeline.device_id is None else "gpu"
    names = ["source", "anchor", "shape", "flip", *(["resize", "crop"] if transform.crops else [])]
    origin, *inputs, ids = plan_source(manifest, transform, rows, read_ahead)
    encoded = origin if read_ahead else fn.io.file.read(origin, dont_use_mmap=True)
    images = image_graph(PlanInputs(encoded, **dict(zip(names, inputs, strict=True))), transform, config, device)
    return images, ids if device == "cpu" else ids.gpu()


def plan_source(
    manifest: Manifest, transform: Transform, rows: Iterator[Rows], read_ahead: ReadAhead | None = None
) -> Sequence[DataNode]:
    """The plan's inputs of the image graph, and the ids, inside a pipeline definition.

    The first is the path of each image's file as zero-padded bytes, or with `read_ahead`, which reads images out of shards, the
    image's own bytes: `fn.io.file.read` reads whole files only.
    """
    feed = _Feed(manifest, rows, transform.crops, read_ahead)
    count = len(feed.dtypes)
    return fn.external_source(source=feed, num_outputs=count, batch=True, cycle="raise", dtype=feed.dtypes, ndim=feed.ndim)


class _Feed:
    """Rows as what the ExternalSource takes: for each input one array a batch; for encoded images a list of arrays."""

    def __init__(self, manifest: Manifest, rows: Iterator[Rows], crops: bool, read_ahead: ReadAhead | None):
        self._manifest, self._rows, self._crops, self._read_ahead = manifest, rows, crops, read_ahead
        t = types.DALIDataType
        self.dtypes = [t.UINT8, t.INT64, t.FLOAT, t.FLOAT, t.INT32, *([t.FLOAT, t.INT32] if crops else []), t.INT64]
        self.ndim = [1, 1, 1, 1, 0, *([1, 1] if crops else []), 0]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        if self._read_ahead:
            return (self._arrays(rows, encoded) for rows, encoded in self._read_ahead(self._rows))
        return (self._arrays(rows, self._manifest.path_matrix(rows.ids)) for rows in self._rows)

    def _arrays(self, rows: Rows, origin: np.ndarray | Encoded) -> tuple[Any, ...]:
        geometry = rows.geometry
        window = (geometry.window.reshape(-1, 2, 2) / geometry.source[:, None]).clip(0, 1).astype(np.float32)
        crop = (geometry.resize.astype(np.float32), geometry.crop.astype(np.int32)) if self._crops else ()
        source = (geometry.source[:, :1] << 32) + geometry.source[:, 1:]
        return origin, source, window[:, 0].copy(), window[:, 1].copy(), geometry.flip.astype(np.int32), *crop, rows.ids
