"""The pixels of a loader's options against those of DALI on the CPU; called by decode_probe in a process of its own."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_pipes.config import DaliConfig
from dali_pipes.decode_probe import CLOSE, FAR
from dali_pipes.loader import Loader, build_loader
from dali_pipes.manifest import Manifest
from dali_pipes.nvml import Gpu, NoGpu
from dali_pipes.transforms import TrainTransform


def compare(file: str, exif: str, config: dict[str, Any], batch_size: int, device: str) -> dict[str, Any]:
    """What `decode_probe.Probed` holds, but for `fallbacks`.

    Args:
        file: a saved manifest.
        config: of a DaliConfig.
    """
    manifest, ours = Manifest.load(file), DaliConfig(**config)
    use = _Use(device)
    pixels, cpu_ms, refused = _decoded(manifest, exif, ours, batch_size, device, use)
    expected, cpu_ms_on_cpu, bad = _decoded(manifest, exif, DaliConfig(device="cpu"), batch_size, "cpu")
    good = sorted(pixels.keys() & expected.keys())
    apart = {each: float(np.abs(pixels[each].astype(np.int16) - expected[each]).mean()) for each in good}
    bound = CLOSE if ours.jpeg_fancy_upsampling else FAR
    return {
        "images": len(good),
        "mean": float(np.mean(list(apart.values()))) if apart else 0.0,
        "far": {manifest.name(each): mean for each, mean in apart.items() if mean > bound},
        "refused": sorted(refused - bad),
        "accepted": sorted(bad - refused),
        "cpu_ms": cpu_ms,
        "cpu_ms_on_cpu": cpu_ms_on_cpu,
        "nvjpg": use.highest("nvjpg_utilization"),
        "sm": use.highest("sm_utilization"),
    }


def _decoded(
    manifest: Manifest, exif: str, config: DaliConfig, batch_size: int, device: str, use: "_Use | None" = None
) -> tuple[dict[int, NDArray[np.uint8]], float, set[str]]:
    """Pixels by id, CPU-ms an image in the second epoch, and the names of images that could not be decoded."""
    transform = TrainTransform(dtype="uint8", exif=exif)
    with build_loader(
        manifest,
        config,
        transform=transform,
        batch_size=min(batch_size, len(manifest)),
        shuffle=False,
        last_batch="partial",
        on_bad_sample="substitute",
        max_bad_fraction=1.0,
        device=device,
    ) as loader:
        pixels = dict(_by_id(loader))
        before = time.process_time()
        again = dict(_by_id(loader, use))
        cpu_ms = (time.process_time() - before) / max(len(again), 1) * 1e3
        return pixels, cpu_ms, {name for _, name, _ in loader.bad_samples}


def _by_id(loader: Loader, use: "_Use | None" = None) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    for batch in loader:
        yield from zip(batch.ids.tolist(), batch.images.cpu().numpy(), strict=True)
        if use:
            use.sample()


class _Use:
    """How busy a GPU has been; a device that is none has no figures."""

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
        return max((value for each in self._samples if (value := each[figure]) is not None), default=None)
