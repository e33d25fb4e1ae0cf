"""Made result.json in this folder: python
docs/benchmarks/chroma_upsampling_cpu_2026-11-22/measure.py IMAGES

What loader.jpeg_fancy_upsampling=false does to the pixels: libjpeg-turbo's plain upsampling, which
repeats each chroma sample as nvJPEG does by default, against its fancy one. TensorFlow gives access
to both; all else is equal.
"""

import functools
import json
import sys
from dataclasses import asdict
from pathlib import Path

import tensorflow as tf
import torch
from dali_pipes.backends.common.pixels import to_steps
from PIL import Image, JpegImagePlugin

import dali_pipes as dp
from dali_pipes.measure.agreement import difference
from dali_pipes.system.provenance import provenance

TRANSFORMS = {"train": dp.TrainTransform(), "eval": dp.EvalTransform()}
DECODE = tf.io.decode_and_crop_jpeg


def pixels(manifest, transform, fancy):
    def decode(*args, fancy_upscaling, **options):
        return DECODE(*args, fancy_upscaling=fancy, **options)

    tf.io.decode_and_crop_jpeg = functools.wraps(DECODE)(decode)
    options = {
        "transform": transform,
        "batch_size": len(manifest),
        "shuffle": False,
        "device": "cpu",
    }
    with dp.build_loader(manifest, dp.TfDataConfig(), **options) as loader:
        batch = next(iter(loader))
    return batch.ids, to_steps(batch.images, transform)


def subsampled(path):
    with Image.open(path) as image:
        return isinstance(image, JpegImagePlugin.JpegImageFile) and JpegImagePlugin.get_sampling(
            image
        ) in (1, 2)


def main(images):
    manifest = dp.Manifest.scan(images, progress=False)
    origin, result = provenance(manifest.describe(), []), {}
    for name, transform in TRANSFORMS.items():
        (ids, fancy), (_, plain) = (pixels(manifest, transform, each) for each in (True, False))
        some = torch.tensor([subsampled(manifest.path(int(each))) for each in ids])
        result[name] = {
            "images": len(ids),
            "chroma_subsampled": int(some.sum()),
            "plain_against_fancy": difference(plain, fancy),
            "of_those_subsampled": difference(plain[some], fancy[some]),
            "transform": {"kind": type(transform).__name__, **asdict(transform)},
            **{key: origin[key] for key in ("versions", "data", "commit")},
        }
        for images in ("plain_against_fancy", "of_those_subsampled"):
            print(
                name,
                images,
                *(f"{result[name][images][key]:.3f}" for key in ("mean", "p99", "max")),
            )
    Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
