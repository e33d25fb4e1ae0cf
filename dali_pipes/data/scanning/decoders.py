"""Whether the decoders of all CPU loaders accept an image: they differ in what damage they overlook.

docs/inputs.md has the classes of such files. TensorFlow is not asked: it judged as torchvision does on each of them.
"""

import io
import os
from typing import Any

import numpy as np

from dali_pipes.data.scanning.stored import open_stored

FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # those that every backend decodes


# By process: a forked one has none of the threads of its parent's pipeline, and would wait for them if it used or destroyed it.
_pipelines: dict[int, Any] = {}


def load() -> None:
    """Imports the decoders, so that processes that are forked afterwards share them."""
    import torchvision.io  # noqa: F401
    from nvidia.dali import pipeline_def  # noqa: F401


def refusal(encoded: bytes, height: int, width: int, format: str) -> str | None:
    """Decodes a whole image with each of them. Returns which one refuses it and why."""
    decoders = {"Pillow": pillow, "DALI": _dali} | ({"torchvision": _torchvision} if format == "JPEG" else {})
    for name, decode in decoders.items():
        try:
            size = decode(encoded)
        except Exception as error:  # any error of a decoder means that it refuses the file
            return f"cannot be decoded by {name} ({_reason(error)})"
        if size != (height, width):
            return f"cannot be decoded by {name} (it finds {size[1]} × {size[0]} pixels, its header says {width} × {height})"
    return None


def pillow(encoded: bytes) -> tuple[int, int]:
    """Height and width; an error of almost any type if it cannot be decoded."""
    with open_stored(io.BytesIO(encoded)) as image:
        image.load()
        return image.height, image.width


def _dali(encoded: bytes) -> tuple[int, int]:
    process = os.getpid()
    pipeline = _pipelines[process] if process in _pipelines else _pipelines.setdefault(process, _pipeline())
    try:
        pipeline.feed_input("encoded", [np.frombuffer(encoded, np.uint8)])
        (images,) = pipeline.run()
    except Exception:
        del _pipelines[process]  # one that has failed once is of no more use
        raise
    height, width, _ = images.at(0).shape
    return height, width


def _torchvision(encoded: bytes) -> tuple[int, int]:
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg

    _, height, width = decode_jpeg(torch.frombuffer(bytearray(encoded), dtype=torch.uint8), mode=ImageReadMode.RGB).shape
    return height, width


def _pipeline() -> Any:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1, exec_async=False, exec_pipelined=False)
    def decoding() -> Any:
        encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
        return fn.decoders.image(encoded, output_type=types.RGB, adjust_orientation=False)

    return decoding()


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("Current pipeline")]
    return lines[-1] if lines else type(error).__name__
