"""Compares the pixels that a loader's options give with those of DALI on the CPU.

decoding_check.py calls `compare` in a separate process, since a decoder may crash it.
"""

import hashlib
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dali_pipes.backends.dali.config import DaliConfig, DaliOptions
from dali_pipes.data.manifest import Manifest
from dali_pipes.loader.build import build_loader
from dali_pipes.plan.sampling import Sequential
from dali_pipes.plan.transforms import TrainTransform
from dali_pipes.system.nvml import Gpu, NoGpu

# bounds on the mean |difference| of an image, of 255
CLOSE = 1.0  # decoders round in different ways
FAR = 5.0  # another chroma upsampling makes about 2, swapped channels 16, a shift by one row 18
# a loader is measured for at least so long: NVML's counters are means over up to a second
SECONDS = 1.0


class _LoaderRun(NamedTuple):
    pixels: dict[int, NDArray[np.uint8]]  # of each image, by id
    cpu_ms: float  # CPU time per image
    bad: set[str]  # names of images that could not be decoded
    decodes: str  # how the loader decodes, in one line


def compare(
    file: str, exif: str, config: dict[str, Any], batch_size: int, device: str
) -> dict[str, Any]:
    """Returns the fields of `ComparedDecoding`, except `fallbacks`.

    Result and arguments go through JSON. `file` is a saved manifest, `config` has the options of a
    DaliConfig.
    """
    manifest, ours = Manifest.load(file), DaliConfig(**config)
    use, on_gpu = _GpuUse(device), torch.device(device).type == "cuda" and ours.device != "cpu"

    run = _run(manifest, exif, ours, batch_size, device, use)
    reference = _run(manifest, exif, DaliConfig(device="cpu"), batch_size, "cpu")

    # A mean over each image: a fault of one image must not disappear among the others. As int16,
    # since differences of uint8 would wrap around.
    good = sorted(run.pixels.keys() & reference.pixels.keys())
    differences = {
        sample_id: float(
            np.abs(run.pixels[sample_id].astype(np.int16) - reference.pixels[sample_id]).mean()
        )
        for sample_id in good
    }
    # the CPU always upsamples chroma in the fancy way
    bound = CLOSE if ours.jpeg_fancy_upsampling else FAR

    return {
        "images": len(good),
        "mean": float(np.mean(list(differences.values()))) if differences else 0.0,
        "far": {
            manifest.name(sample_id): mean
            for sample_id, mean in differences.items()
            if mean > bound
        },
        "refused": sorted(run.bad - reference.bad),
        "accepted": sorted(reference.bad - run.bad),
        "cpu_ms": run.cpu_ms,
        "cpu_ms_on_cpu": reference.cpu_ms,
        "engine_load": ours.engine_load if on_gpu else 0.0,
        "nvjpg": use.highest("nvjpg_utilization"),
        "sm": use.highest("sm_utilization"),
        "digest": hashlib.sha256(
            b"".join(run.pixels[pixel].tobytes() for pixel in sorted(run.pixels))
        ).hexdigest()[:16],
        "decodes": run.decodes,
    }


def _run(
    manifest: Manifest,
    exif: str,
    config: DaliOptions,
    batch_size: int,
    device: str,
    use: "_GpuUse | None" = None,
) -> _LoaderRun:
    """Runs a loader for one epoch to get the pixels, then for some more to measure CPU time."""
    with build_loader(
        manifest,
        config,
        # random regions, the same ones for every config: the plan does not depend on it
        transform=TrainTransform(dtype="uint8", exif=exif),
        batch_size=min(batch_size, len(manifest)),
        sampling=Sequential(),
        last_batch="partial",
        on_bad_sample="substitute",
        max_bad_fraction=1.0,
        device=device,
    ) as loader:
        pixels = {
            at: image
            for batch in loader
            for at, image in zip(batch.ids.tolist(), batch.images.cpu().numpy(), strict=True)
        }

        cpu_ms = _cpu_ms(loader, use)
        return _LoaderRun(
            pixels, cpu_ms, {name for _, name, _ in loader.bad_samples}, loader.decodes
        )


def _cpu_ms(loader: Any, use: "_GpuUse | None") -> float:
    """CPU milliseconds per image, over whole epochs. Batches are not copied to the host, since
    waiting for a copy would count as CPU time.
    """
    images, start, before = 0, time.monotonic(), time.process_time()
    while time.monotonic() < start + SECONDS:
        for batch in loader:
            images += len(batch)
            if use:
                use.sample()
    return (time.process_time() - before) / max(images, 1) * 1e3


class _GpuUse:
    """Samples how busy a GPU is; for other devices there are no figures."""

    def __init__(self, device: str):
        self._samples: list[dict[str, float | None]] = []
        self._gpu: Gpu | None = None
        if torch.device(device).type == "cuda":
            try:
                self._gpu = Gpu(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
            except NoGpu:
                self._gpu = None

    def sample(self) -> None:
        if self._gpu:
            self._samples.append(self._gpu.sample())

    def highest(self, figure: str) -> float | None:
        return max(
            (value for sample in self._samples if (value := sample[figure]) is not None),
            default=None,
        )
