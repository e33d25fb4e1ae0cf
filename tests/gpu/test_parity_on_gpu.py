"""Promise 1 on a GPU: how far its pixels are from Pillow's, and from DALI's on the CPU, in steps of
1/255.

With OUT=FOLDER the figures are also written there, into parity.jsonl: docs/pixels.md has those of
an H100.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from figures import tell
from gpu_backends import needs_cuda

import dali_pipes as dp
from dali_pipes.backends.pixels.tensors import to_steps
from dali_pipes.measure.agreement import NVJPEG, PLAIN_UPSAMPLING, PixelBound, difference

SIDES = {
    "torch": dp.TorchConfig(num_workers=0),
    "dali_cpu": dp.DaliConfig(device="cpu"),
    "dali_cpu_whole": dp.DaliConfig(device="cpu", decode="whole"),
    "dali_gpu": dp.DaliConfig(device="gpu"),
    "dali_gpu_regions": dp.DaliConfig(device="gpu", decode="region", jpeg_fancy_upsampling=False),
    "dali_gpu_engines_only": dp.DaliConfig(device="gpu", hw_decoder_load=1.0),
    "dali_gpu_no_engines": dp.DaliConfig(device="gpu", hw_decoder_load=0.0),
}
REFERENCES = ("torch", "dali_cpu")
TRANSFORMS = {
    "train": dp.TrainTransform(),
    "eval": dp.EvalTransform(),
    "padded": dp.RandomCropTransform(size=96, resize=(96, 96), padding=12),
    "bicubic": dp.TrainTransform(size=(96, 128), interpolation="bicubic", vertical_flip=0.5),
    "nearest neighbours": dp.TrainTransform(interpolation="nearest-exact"),
    "as stored": dp.RandomCropTransform(size=(96, 128), padding=20, pad_if_needed=True),
}
MOST_IMAGES = 256
ROUNDING = 0.001  # the normalization is undone in float32

every_transform = pytest.mark.parametrize("transform", TRANSFORMS)


def limits(side):
    """Of the mean and the 99th percentile."""
    config = SIDES[side]
    if not config.fancy_upsampling:
        mean, p99 = PLAIN_UPSAMPLING
    else:
        mean, p99 = NVJPEG if config.decodes_on == "gpu" else PixelBound(0.25, 2)
    return mean, p99 + ROUNDING


@pytest.fixture(scope="module")
def images(real_manifest):
    return real_manifest.subset(np.arange(min(len(real_manifest), MOST_IMAGES)))


def delivered(manifest, config, transform):
    """Ids, and pixels from 0 to 255, of one epoch."""
    with dp.build_loader(
        manifest, config, transform=transform, batch_size=16, last_batch="partial"
    ) as loader:
        batches = [(batch.ids.cpu(), to_steps(batch.images.cpu(), transform)) for batch in loader]
    ids, pixels = zip(*batches, strict=True)
    return torch.cat(ids), torch.cat(pixels)


@lru_cache(maxsize=len(REFERENCES) * len(TRANSFORMS))
def reference_of(manifest, side, transform):
    return delivered(manifest, SIDES[side], TRANSFORMS[transform])


def compare(manifest, side, transform, fancy=True):
    """The mean, p99 and max of |difference| to each of the references that is not the side
    itself.
    """
    config = SIDES[side] if fancy else replace(SIDES[side], jpeg_fancy_upsampling=False)
    ids, pixels = delivered(manifest, config, TRANSFORMS[transform])
    found = {}
    for other in REFERENCES:
        if other != side:
            same_ids, expected = reference_of(manifest, other, transform)
            assert torch.equal(ids, same_ids)
            found[other] = difference(pixels, expected)
            tell(
                "parity",
                transform=transform,
                side=side,
                other=other,
                fancy=fancy,
                images=len(ids),
                **found[other],
            )
    return found


@pytest.mark.few
@pytest.mark.compares_pixels
@every_transform
@pytest.mark.parametrize(
    "side",
    [
        "dali_cpu",
        "dali_cpu_whole",
        *needs_cuda("dali_gpu", "dali_gpu_regions", "dali_gpu_engines_only", "dali_gpu_no_engines"),
    ],
)
def test_the_same_pixels_as_the_others(images, transform, side):
    mean, p99 = limits(side)
    for other, found in compare(images, side, transform).items():
        assert found["mean"] <= mean and found["p99"] <= p99, f"{side} and {other}: {found}"


@pytest.mark.few
@pytest.mark.compares_pixels
@every_transform
@pytest.mark.parametrize("side", ["dali_cpu_whole", *needs_cuda("dali_gpu")])
def test_without_fancy_upsampling_they_are_no_closer(images, transform, side):
    """By the 99th percentile: in the mean nvJPEG's rounding weighs more. On the CPU the option does
    nothing.
    """
    plain = compare(images, side, transform, fancy=False)
    for other, fancy in compare(images, side, transform).items():
        assert plain[other]["p99"] >= fancy["p99"] - ROUNDING, (
            f"{side} and {other}: {plain[other]}, with fancy upsampling {fancy}"
        )
