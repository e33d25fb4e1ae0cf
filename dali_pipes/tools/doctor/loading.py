"""Decoding with a loader's own options on this GPU, compared with the CPU's pixels image by image."""

import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from dali_pipes.backends.config import DaliConfig
from dali_pipes.backends.dali.decoding import ways_out
from dali_pipes.data.manifest import Manifest
from dali_pipes.loader.decode_probe import Probed, probe, try_regions
from dali_pipes.plan.transforms import TrainTransform
from dali_pipes.system.child import ChildError
from dali_pipes.tools.doctor.images import make_images
from dali_pipes.tools.doctor.report import Finding, failed, ok, warning


def made_images(loader: DaliConfig, batch_size: int, limit_s: float, device: torch.device) -> Finding:
    """Generated images of every kind."""
    with tempfile.TemporaryDirectory() as folder:
        make_images(Path(folder))
        return images_of(Manifest.scan(folder, progress=False), loader, batch_size, limit_s, device)


def images_of(manifest: Manifest, loader: DaliConfig, batch_size: int, limit_s: float, device: torch.device) -> Finding:
    """At most `decode_probe.IMAGES` images, spread over the manifest, in a process that may crash or hang.

    With decode=probe the actual decoding is judged: regions, or whole images if regions fail.
    """
    if loader.decode == "probe":
        wrong = try_regions(manifest, "ignore", loader, batch_size, device)
        loader = replace(loader, decode="whole" if wrong else "force_region")
    try:
        return judge(probe(manifest, "ignore", loader, batch_size, device, limit_s), loader)
    except ChildError as error:
        return failed(str(error), remedy(loader))


def judge(probed: Probed, loader: DaliConfig) -> Finding:
    if faults := probed.faults():
        return failed("; ".join([*faults, figures(probed)]), remedy(loader))
    if doubts := probed.doubts():
        return warning("; ".join([figures(probed), *doubts]), "dali-pipes scan verify=full names the damaged images of a data set")
    return ok(figures(probed))


def remedy(loader: DaliConfig) -> str:
    return ", or ".join([*ways_out(loader, TrainTransform()), "loader=dali_cpu, which needs no GPU"])


def figures(probed: Probed) -> str:
    used = [f"{name} up to {use:.0%}" for name, use in (("JPEG engines", probed.nvjpg), ("SM", probed.sm)) if use is not None]
    return "; ".join(
        [
            f"{probed.images} images, mean |difference| from the CPU's pixels {probed.mean:.2f} of 255",
            f"{probed.cpu_ms:.2f} CPU-ms an image, a loader on the CPU {probed.cpu_ms_on_cpu:.2f}",
            *used,
            probed.decodes,
        ]
    )
