"""The JPEG engines (NVJPG) while a loader runs, by their counter; nothing else proves that they are
used.

With OUT=FOLDER what the counter said is also written there, into engines.jsonl.
"""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from figures import tell
from PIL import Image

import dali_pipes as dp
from dali_pipes.system.nvml import Gpu
from dali_pipes.tools.doctor.decode import highest_use, jpeg_engines
from dali_pipes.tools.doctor.machine import uuid

needs_engines = [pytest.mark.needs_cuda, pytest.mark.gpu_pixels, pytest.mark.alone]
STIR = 0.01  # utilization above this is no noise


@pytest.fixture(scope="module")
def gpu():
    finding = jpeg_engines()
    if not finding.found.startswith("used"):
        pytest.skip(f"JPEG engines: {finding.found}")
    return SimpleNamespace(sample=Gpu(uuid()).sample, fancy=finding.status == "ok")


@pytest.fixture(scope="module")
def baseline(real_manifest):
    """The images that the engines can decode: JPEGs that are not progressive."""

    def suits(path):
        with Image.open(path) as image:
            return image.format == "JPEG" and "progressive" not in image.info

    return real_manifest.subset(
        np.flatnonzero([suits(real_manifest.path(number)) for number in range(len(real_manifest))])
    )


def use_during(gpu, manifest, config, seconds):
    """The highest use of the engines while a loader delivers, once what went before has left the
    average.
    """
    options = {
        "transform": dp.TrainTransform(dtype="uint8"),
        "batch_size": 64,
        "last_batch": "partial",
    }
    with dp.build_loader(manifest, config, **options) as loader:
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        highest_use(gpu, lambda: next(batches), seconds / 2)
        return highest_use(gpu, lambda: next(batches), seconds)


@pytest.mark.parametrize(
    "decode", [pytest.param(decode, marks=needs_engines) for decode in ("auto", "whole")]
)
@pytest.mark.parametrize("load", [1.0, None, 0.0])
def test_a_loader_uses_the_engines_as_reported(gpu, baseline, decode, load):
    """Fancy upsampling if the engines have it. Whether they take regions (decode=auto) is reported;
    whole images they must.
    """
    config = dp.DaliConfig(
        device="gpu", hw_decoder_load=load, decode=decode, jpeg_fancy_upsampling=gpu.fancy
    )
    use = use_during(gpu, baseline, config, 2)
    tell("engines", decode=decode, hw_decoder_load=load, fancy=gpu.fancy, highest_use=use)
    uses_engine = config.engine_load > 0
    assert (use > STIR) == uses_engine or (decode == "auto" and uses_engine)


def test_the_highest_use_is_that_of_the_second_look(baseline):
    uses = iter([0.9, *[0.1] * 50])
    stub = SimpleNamespace(sample=lambda: {"nvjpg_utilization": next(uses)})
    assert use_during(stub, baseline, dp.DaliConfig(device="cpu"), 0.1) == 0.1
