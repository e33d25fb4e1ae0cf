"""Tests DALI, and through it the hardware JPEG engines, on a generated JPEG.

The checks run in a child process, since a broken library may crash it.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from nvidia.dali import Pipeline, __version__, fn, pipeline_def, types
from nvidia.dali.data_node import DataNode

from dali_pipes.system.nvml import Gpu
from dali_pipes.tools.doctor.decoding_check import IDLE_BELOW
from dali_pipes.tools.doctor.images import difference, judge, make_jpeg
from dali_pipes.tools.doctor.machine import uuid
from dali_pipes.tools.doctor.report import Finding, ok, warning

BATCH = 64
SECONDS = 1.2  # how long the JPEG engines are watched while DALI decodes


def dali_on_cpu() -> Finding:
    """Builds and runs a CPU pipeline, and compares its pixels with Pillow's."""
    encoded, expected = make_jpeg()
    (images,) = _pipeline(encoded, 1, None).run()
    return judge(
        f"DALI {__version__}, a CPU pipeline ran", difference(np.asarray(images[0]), expected)
    )


def jpeg_engines() -> Finding:
    """Whether DALI uses the hardware JPEG engines.

    The only proof is that their counter moves while baseline JPEGs are decoded with
    hw_decoder_load=1.
    """
    gpu, encoded = Gpu(uuid()), make_jpeg()[0]

    idle = highest_use(gpu, lambda: time.sleep(0.05), SECONDS / 4)
    if idle is None:
        reason = gpu.missing.get("nvjpg_utilization", "NVML gives no reason")
        return warning(
            f"unknown: their use cannot be read ({reason})",
            "compare loader.hw_decoder_load=0 and 1 with dali-pipes benchmark",
        )

    # the counter is the whole GPU's, not this process's
    if idle > IDLE_BELOW:
        return warning(
            f"unknown: another process keeps them {idle:.0%} busy",
            "run this again when it has ended",
        )

    # with fancy upsampling first, the default; the engines of some machines work only without it
    for fancy in (True, False):
        pipeline = _pipeline(encoded, BATCH, 0, hw_decoder_load=1.0, jpeg_fancy_upsampling=fancy)
        busy = highest_use(gpu, pipeline.run, SECONDS) or 0.0
        if busy > IDLE_BELOW:
            break

    if busy <= IDLE_BELOW:
        return warning(
            (f"not used: their counter stayed at {busy:.0%} while DALI decoded baseline JPEGs"),
            _why_not(),
        )

    if not fancy:
        return warning(
            f"used up to {busy:.0%}, but only without jpeg_fancy_upsampling",
            (
                "loader.jpeg_fancy_upsampling=false uses them, with other pixels; otherwise "
                "loader.hw_decoder_load=0"
            ),
        )

    return ok(f"used up to {busy:.0%} while DALI decoded baseline JPEGs")


def highest_use(gpu: Gpu, work: Callable[[], Any], seconds: float) -> float | None:
    """The highest utilization of the JPEG engines, 0 to 1, while `work` is called again and again.

    None if it cannot be read.
    """
    start = look = time.monotonic()
    seen = []

    while look - start < seconds:
        # the counter is read ten times a second, without a pause in the decoding
        while time.monotonic() - look < 0.1:
            work()
        look = time.monotonic()
        seen.append(gpu.sample()["nvjpg_utilization"])
    return max((use for use in seen if use is not None), default=None)


def _why_not() -> str:
    capabilities = os.environ.get("NVIDIA_DRIVER_CAPABILITIES")
    without = "DALI then decodes on the multiprocessors: loader.hw_decoder_load=0"
    if capabilities is None:
        return (
            "this GPU has none, or a container was started without "
            f"NVIDIA_DRIVER_CAPABILITIES=compute,utility,video. {without}"
        )

    # the driver gives a container its JPEG engines with the capability "video" only
    if {"video", "all"} & set(capabilities.split(",")):
        return f"this GPU has none. {without}"

    return (
        f"NVIDIA_DRIVER_CAPABILITIES is {capabilities!r}; start the container with "
        f"compute,utility,video. {without}"
    )


def _pipeline(encoded: bytes, batch_size: int, device_id: int | None, **tuned: Any) -> Pipeline:
    """Builds a pipeline that decodes the same JPEG again and again; on the CPU without a device."""
    options = (
        {"device": "cpu"}
        if device_id is None
        else {"device": "mixed", "jpeg_fancy_upsampling": True} | tuned
    )

    pipeline = _decoding(
        encoded, options, batch_size=batch_size, num_threads=2, device_id=device_id
    )
    pipeline.build()
    return pipeline


@pipeline_def
def _decoding(encoded: bytes, options: dict[str, Any]) -> DataNode:
    batch = [np.frombuffer(encoded, np.uint8)] * Pipeline.current().max_batch_size
    source = fn.external_source(source=lambda: batch, dtype=types.DALIDataType.UINT8, ndim=1)
    return fn.decoders.image(source, output_type=types.DALIImageType.RGB, **options)
