"""Made result.json in this folder: python docs/benchmarks/pixels_cpu_2026-11-23/measure.py
IMAGES
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from dali_pipes.backends.common.pixels import to_steps

import dali_pipes as dp
from dali_pipes.measure.agreement import difference
from dali_pipes.system.provenance import provenance

LOADERS = {
    "torch": dp.TorchConfig(),
    "torch_torchvision": dp.TorchConfig(decoder="torchvision"),
    "dali_cpu": dp.DaliConfig(device="cpu"),
    "dali_cpu_graph": dp.DaliConfig(device="cpu", resize="dali"),
    "tfdata": dp.TfDataConfig(),
}
SIZES = (32, 96, 224, 288)
TRANSFORMS = {f"train {size}": dp.TrainTransform(size=size) for size in SIZES}
TRANSFORMS |= {
    f"eval {size}": dp.EvalTransform(size=size, resize=size * 256 // 224) for size in SIZES
}
TRANSFORMS |= {
    f"{interpolation} {name}": make(interpolation)
    for interpolation in ("bilinear", "bicubic", "nearest-exact")
    for name, make in {
        "train 224": lambda each: dp.TrainTransform(interpolation=each),
        "eval 224": lambda each: dp.EvalTransform(interpolation=each),
        "train 96 x 160": lambda each: dp.TrainTransform(size=(96, 160), interpolation=each),
        "Resize((224, 224))": lambda each: dp.EvalTransform(resize=(224, 224), interpolation=each),
    }.items()
} | {
    "RandomCrop(128) as stored": dp.RandomCropTransform(size=128, pad_if_needed=True),
    "CenterCrop(224) as stored": dp.EvalTransform(resize=None),
}


def first_images(manifest, config, transform):
    with dp.build_loader(
        manifest, config, transform=transform, batch_size=len(manifest), shuffle=True, device="cpu"
    ) as loader:
        batch = next(iter(loader))
    return batch.ids, to_steps(batch.images, transform)


def measure(manifest, transform):
    found = {name: first_images(manifest, config, transform) for name, config in LOADERS.items()}
    ids, reference = found.pop("torch")
    arms = {}
    for name, (other_ids, images) in found.items():
        arms[name] = difference(images, reference) | {"same_ids": torch.equal(ids, other_ids)}
    return {"images": len(ids), "reference": "torch", "arms": arms}


def main(images):
    manifest = dp.Manifest.scan(images, progress=False)
    origin = provenance(manifest.describe(), [])
    result = {
        name: {
            "agreement": measure(manifest, transform),
            "transform": {"kind": type(transform).__name__, **asdict(transform)},
            **{key: origin[key] for key in ("versions", "data", "commit")},
        }
        for name, transform in TRANSFORMS.items()
    }
    Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=2) + "\n")
    for name, each in result.items():
        for arm, figures in each["agreement"]["arms"].items():
            print(name, arm, *(f"{figures[key]:.3f}" for key in ("mean", "p99", "max")))


if __name__ == "__main__":
    main(sys.argv[1])
