"""TensorFlow's tf.data on the CPU: from_generator feeds the plan, a parallel map makes the images.

The dataset is made of single samples, which TensorFlow joins into batches; each carries the number
of its planned batch, so that the batch is found again when it comes out.
"""

import contextlib
import os
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from dali_pipes.backends.base import Backend, DecodedBatch, Delivery
from dali_pipes.backends.common import pillow as read_pil
from dali_pipes.backends.common.gray import HALF, WEIGHTS
from dali_pipes.backends.common.in_work import InWork
from dali_pipes.backends.common.transfer import to_gpu
from dali_pipes.backends.tfdata.config import TfDataConfig
from dali_pipes.data.reader import Reader
from dali_pipes.plan.geometry import Geometry
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import DTYPES


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Silences stderr while TensorFlow is imported.

    TensorFlow prints its settings there before it reads any log level.
    """
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
with _without_stderr():
    import tensorflow as tf

# otherwise TensorFlow allocates all of a GPU's memory
tf.config.set_visible_devices([], "GPU")

# The rows of a `Geometry` as one array. A row has four numbers; shorter ones end with zeros.
_ROWS = 5
_SOURCE, _REGION, _RESIZE, _CROP, _FLIPS = range(_ROWS)  # flips: top to bottom, left to right
_SAMPLE = {
    "number": tf.TensorSpec((None,), tf.int64),  # of the planned batch, as `InWork` has it
    "source": tf.TensorSpec((None,), tf.int64),  # the id of the image
    "path": tf.TensorSpec((None,), tf.string),
    "geometry": tf.TensorSpec((None, _ROWS, 4), tf.int32),
}


class TfDataBackend(Backend):
    """Carries out a plan with AUTOTUNE's parallelism and prefetching.

    JPEGs are decoded by TensorFlow (accurate DCT, fancy upsampling), other formats by Pillow.
    """

    _config: TfDataConfig
    carries_out = frozenset({"antialias", "channels"})

    def _prepare(self) -> None:
        self._refuse_views()
        self._refuse_augment()
        self._refuse_exif()
        self._reader = Reader()
        # height, width, channels
        self._form = (*self._transform.shape, self._transform.channels)
        self._iterator: list[Any] = []
        # also when the interpreter exits; `_next` says why
        self._close = weakref.finalize(self, self._iterator.clear)

    def explain(self) -> str:
        return (
            "TensorFlow's tf.data decodes planned regions only, on the CPU with "
            f"{self._config.num_threads} threads"
        )

    def stream(self, planned: Iterator[PlannedBatch]) -> Iterator[Delivery]:
        if not self._close.alive:
            raise RuntimeError("the loader is closed")

        in_work = InWork(planned)
        # deterministic: a batch must hold the samples of one step, in order
        dataset = (
            tf.data.Dataset.from_generator(
                lambda: map(self._samples, in_work), output_signature=_SAMPLE
            )
            .unbatch()
            .map(self._make, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
            .batch(self._batch_size, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
            .prefetch(tf.data.AUTOTUNE)
        )

        options = tf.data.Options()
        options.threading.private_threadpool_size = self._config.num_threads
        self._iterator[:] = [iter(dataset.with_options(options))]

        batches = (self._to_batch(arrays, in_work) for arrays in iter(self._next, None))
        return to_gpu(batches, self._device) if self._device.type == "cuda" else batches

    def _next(self) -> tuple[Any, Any] | None:
        """The next batch's arrays; None at the end.

        Nothing that leaves here may hold TensorFlow's iterator, not even a stored traceback: if it
        is still alive when the interpreter exits, its destructor waits forever for one of its
        threads, which can no longer get the GIL.
        """
        try:
            return next(self._iterator[0], None)
        except tf.errors.OpError as error:
            # raised after this block, since otherwise it would hold the traceback of `error`
            failed = RuntimeError(error.message)
        except BaseException as interrupt:
            traceback.clear_frames(interrupt.__traceback__)
            raise
        raise failed

    def _samples(self, planned: PlannedBatch) -> dict[str, Any]:
        """The samples of one step, filled up to a full batch with its first sample.

        `Dataset.batch` counts samples, so a short step would be filled with those of the next one.
        `_to_batch` cuts the filling off.
        """
        places = np.zeros(self._batch_size, np.int64)
        places[: len(planned)] = np.arange(len(planned))

        geometry = planned.geometry
        numbers = np.zeros((len(planned), _ROWS, 4), np.int32)
        numbers[:, _SOURCE, :2] = geometry.source
        numbers[:, _REGION] = geometry.region
        numbers[:, _RESIZE, :2] = geometry.resize
        numbers[:, _CROP, :2] = geometry.crop
        numbers[:, _FLIPS, 0], numbers[:, _FLIPS, 1] = geometry.vertical_flip, geometry.flip

        padded = self._manifest.path_matrix(planned.ids)
        paths = padded.view(f"S{padded.shape[1]}")[places, 0]
        number = np.full(self._batch_size, id(planned))

        return {
            "number": number,
            "source": planned.ids[places],
            "path": paths,
            "geometry": numbers[places],
        }

    def _make(self, sample: dict[str, Any]) -> tuple[Any, Any]:
        geometry = sample["geometry"]
        encoded = (
            tf.io.read_file(sample["path"])
            if self._manifest.whole_files
            else self._read_part(sample["source"])
        )

        image = tf.cond(
            tf.strings.substr(encoded, 0, 3) == b"\xff\xd8\xff",
            lambda: self._decode_jpeg(encoded, geometry),
            lambda: self._with_pillow(encoded, sample["path"], geometry),
        )

        return self._normalize(image), sample["number"]

    def _decode_jpeg(self, encoded: Any, geometry: Any) -> Any:
        """(height, width, channels) float32 from 0 to 255.

        The values are whole numbers, as the resize of every other backend gives.
        """
        transform = self._transform
        scanned = tf.debugging.assert_equal(
            tf.io.extract_jpeg_shape(encoded)[:2],
            geometry[_SOURCE, :2],
            "the size differs from the scan; scan again",
        )

        with tf.control_dependencies([scanned]):
            image = tf.io.decode_and_crop_jpeg(
                encoded,
                geometry[_REGION],
                channels=3,
                # TensorFlow's default DCT is faster and gives other pixels (docs/pixels.md)
                dct_method="INTEGER_ACCURATE",
                fancy_upscaling=True,
            )

        if transform.channels == 1:
            image = _gray(image)
        if transform.resizes:
            # TensorFlow's "nearest" is what PyTorch calls "nearest-exact"
            method = transform.interpolation.removesuffix("-exact")
            smooth = transform.antialias
            image = tf.image.resize(image, geometry[_RESIZE, :2], method, antialias=smooth)
        if transform.crops:
            image = self._crop(image, geometry[_CROP, :2])

        # the axes to reverse: `_FLIPS` has them in the order of the image's axes
        image = tf.reverse(image, tf.where(geometry[_FLIPS, :2] == 1)[:, 0])
        image = tf.ensure_shape(tf.cast(image, tf.float32), self._form)
        return tf.round(tf.clip_by_value(image, 0, 255))  # bicubic filters overshoot

    def _crop(self, image: Any, start: Any) -> Any:
        """The crop from (top, left) on; areas outside the image are black."""
        size, shape = tf.shape(image)[:2], tf.constant(self._transform.shape)
        inside = tf.clip_by_value(start, 0, size), tf.clip_by_value(start + shape, 0, size)
        before = tf.clip_by_value(-start, 0, shape)
        padding = tf.stack([before, shape - before - (inside[1] - inside[0])], axis=1)
        image = image[inside[0][0] : inside[1][0], inside[0][1] : inside[1][1]]
        return tf.pad(image, tf.concat([padding, [[0, 0]]], axis=0))

    def _read_part(self, sample_id: Any) -> Any:
        """The encoded bytes of an image in a shard.

        TensorFlow reads files from their start only, so a part of a file is read by `Reader`,
        without the GIL.
        """

        def read(number: np.ndarray) -> bytes:
            return self._reader.read(self._manifest.extent(int(number))).tobytes()

        return tf.ensure_shape(tf.numpy_function(read, [sample_id], tf.string), ())

    def _with_pillow(self, encoded: Any, name: Any, geometry: Any) -> Any:
        def read(encoded: bytes, name: bytes, numbers: np.ndarray) -> np.ndarray:
            planned = Geometry(
                source=numbers[_SOURCE, :2],
                region=numbers[_REGION],
                resize=numbers[_RESIZE, :2],
                crop=numbers[_CROP, :2],
                flip=numbers[_FLIPS, 1],
                vertical_flip=numbers[_FLIPS, 0],
            )
            view = read_pil.View(self._transform, planned, self._transform.shape)
            (pixels,) = read_pil.read(np.frombuffer(encoded, np.uint8), os.fsdecode(name), [view])
            return pixels.astype(np.float32)

        return tf.ensure_shape(
            tf.numpy_function(read, [encoded, name, geometry], tf.float32),
            self._form,
        )

    def _normalize(self, image: Any) -> Any:
        transform = self._transform
        if transform.dtype == "uint8":
            image = tf.cast(image, tf.uint8)
        else:
            # constants of the whole shape: TensorFlow broadcasts few numbers slowly
            mean, std = (
                255 * np.broadcast_to(np.array(values, np.float32), self._form)
                for values in (transform.mean, transform.std)
            )
            image = tf.cast((image - mean) * (1 / std), tf.as_dtype(DTYPES[transform.dtype]))

        return (
            image if transform.memory_format == "channels_last" else tf.transpose(image, (2, 0, 1))
        )

    def _to_batch(self, arrays: tuple[Any, Any], in_work: InWork) -> Delivery:
        images, numbers = (from_dlpack(tf.experimental.dlpack.to_dlpack(array)) for array in arrays)
        if self._transform.memory_format == "channels_last":
            images = images.permute(0, 3, 1, 2)
        planned = in_work.take(int(numbers[0]))
        return planned, DecodedBatch(images[: len(planned)], torch.from_numpy(planned.ids))

    def close(self) -> None:
        self._close()
        self._reader.close()


def _gray(image: Any) -> Any:
    """(height, width, 1) uint8 of (height, width, 3), as common/gray.py makes it."""
    luma = tf.reduce_sum(tf.cast(image, tf.int32) * WEIGHTS, axis=-1, keepdims=True) + HALF
    return tf.cast(tf.bitwise.right_shift(luma, 16), tf.uint8)
