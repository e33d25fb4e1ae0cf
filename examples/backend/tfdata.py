"""A backend of your own: TensorFlow's tf.data decodes what dali_pipes has planned.

python examples/backend/tfdata.py IMAGES

loads an epoch of the images below a folder. CONTRIBUTING.md, "A new backend", says what a backend
must do. Of each JPEG, tf.data decodes only the region that the plan needs, in `num_threads`
threads; Pillow decodes other formats. `write_views` then resizes, crops, flips, augments and
normalizes. Pixels equal those of `dp.TorchConfig(decoder="torchvision")` bit for bit, except for
steps of 1 or 2 in the rare JPEGs of 4:4:0. The order, labels, a resume and bad files are the
loader's business, and need no line here.
"""

import os
import sys
import time
from collections import deque
from dataclasses import dataclass
from itertools import chain, islice

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow reads it when it is imported

import numpy as np
import tensorflow as tf
import torch

import dali_pipes as dp
from dali_pipes.backends.backend import Backend, Decoded, Description
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.needs import EVERYTHING
from dali_pipes.backends.pixels.decode import decode
from dali_pipes.backends.pixels.finish import DecodedTensor, View, write_views
from dali_pipes.checks import check_int
from dali_pipes.options import option
from dali_pipes.plan.transforms import views_of

tf.config.set_visible_devices([], "GPU")  # or it would take all of the GPU's memory


@dataclass(kw_only=True, slots=True)
class TfDataConfig(LoaderConfig):
    """TensorFlow's tf.data on the CPU.

    Attributes:
        num_threads: images that are decoded at the same time; None: one on each core that this
            process may use.
    """

    name = "tfdata"
    backend = f"{__name__}:TfDataBackend"

    num_threads: int | None = option(None, check_int, 1)


class TfDataBackend(Backend):
    makes = EVERYTHING - {"exif"}  # all that `write_views` makes; TensorFlow turns no image upright

    def prepare(self):
        self._views = [View(view) for view in views_of(self.job.transform)]
        self._stream = None

    def describe(self):
        return Description(f"tf.data decodes regions on the CPU, {self.config.num_threads} at once")

    def stream(self, planned):
        self.close()
        self._stream = self._decode(planned)
        return self._stream

    def close(self):
        if self._stream:
            self._stream.close()  # ends tf.data's iterator in it, and so its threads

    def _decode(self, planned):
        """Image after image, without a pause between batches; yields batches of them."""
        inside = deque()  # the batches whose images tf.data works on

        def read():
            for batch in planned:
                inside.append(batch)
                for number, *sizes in zip(batch.ids, batch.source, regions_of(batch), strict=True):
                    yield batch.images.read(number).tobytes(), *sizes

        form = [tf.TensorSpec((), tf.string), *(tf.TensorSpec(n, tf.int64) for n in (2, 4))]
        images = tf.data.Dataset.from_generator(read, output_signature=tuple(form))
        images = images.map(decode_jpeg, self.config.num_threads, deterministic=True)
        images = iter(images.prefetch(self.job.batch_size))
        for first in images:
            batch = inside.popleft()
            yield self._finish(batch, chain([first], islice(images, len(batch) - 1)))

    def _finish(self, batch, images):
        count, channels, regions = len(batch), self.job.transform.channels, regions_of(batch)
        empty = self._views[0].empty
        groups = [empty(count * len(group), group[0].shape) for group in batch.groups]
        outs = [out.split(1) for group in groups for out in group.split(count)]

        for at, (encoded, region) in enumerate(images):
            if len(region):
                tensor = torch.from_dlpack(tf.experimental.dlpack.to_dlpack(region))
                pixels, origin = DecodedTensor(tensor, channels), regions[at, :2]
            else:
                of_image = batch.images.name(batch.ids[at]), batch.source[at]
                encoded = np.frombuffer(encoded.numpy(), np.uint8)
                pixels, origin = decode("pil", encoded, *of_image, channels=channels), (0, 0)
            write_views(pixels, self._views, batch, at, outs, origin)
        return Decoded(batch, tuple(group.to(self.job.device) for group in groups))


def regions_of(batch):
    """(N, 4) what is decoded: the planned regions, and a column more on either side, since libjpeg
    smooths colors with what it decodes, which is otherwise not the whole neighborhood.
    """
    top, left, height, width = batch.region.T
    start, end = np.maximum(left - 1, 0), np.minimum(left + width + 1, batch.source[:, 1])
    return np.stack([top, start, height, end - start], axis=1)


def decode_jpeg(encoded, size, region):
    """The file, and the pixels of its region, (height, width, 3); none if it is no JPEG."""

    def decode_region():
        # a file that was replaced since the scan would be cropped in the wrong place
        tf.debugging.assert_equal(tf.image.extract_jpeg_shape(encoded, tf.int64)[:2], size)
        # as libjpeg decodes by default, and not as TensorFlow does
        as_libjpeg = {"fancy_upscaling": True, "dct_method": "INTEGER_ACCURATE"}
        window = tf.cast(region, tf.int32)
        return tf.io.decode_and_crop_jpeg(encoded, window, channels=3, **as_libjpeg)

    is_jpeg = tf.strings.substr(encoded, 0, 3) == b"\xff\xd8\xff"
    return encoded, tf.cond(is_jpeg, decode_region, lambda: tf.zeros((0, 0, 3), tf.uint8))


def main(folder, **options):
    manifest, config = dp.Manifest.open(folder, with_labels=False), TfDataConfig(**options)
    given = {"transform": dp.TrainTransform(), "batch_size": 64, "last_batch": "partial"}
    start = time.perf_counter()
    with dp.build_loader(manifest, config, **given) as loader:
        images = sum(len(batch) for batch in loader)
    print(f"{images:,} images, {images / (time.perf_counter() - start):,.0f} per second")


if __name__ == "__main__":
    main(*sys.argv[1:])
