"""Made result.json in this folder: python docs/benchmarks/augmentation_cpu_2026-11-21/measure.py IMAGES

For each operation, on all images at strengths drawn evenly: how far DALI on the CPU is from torchvision when both start from
the same pixels ("operation"), and how far loader=dali_cpu is from loader=torch, whose decoding and resizing differ as well
("in all").
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torchvision.transforms.v2.functional import equalize

import dali_pipes as dp
from dali_pipes.backends.common.torchvision_augment import augment
from dali_pipes.measure.agreement import difference
from dali_pipes.plan.augment.operations import AFFINE, CODE, OPS, Slot
from dali_pipes.plan.augment.policies import Policy
from dali_pipes.system.provenance import provenance

STRENGTHS = {
    **dict.fromkeys(("ShearX", "ShearY", "Brightness", "Color", "Contrast", "Sharpness"), (-0.99, 0.99)),
    **dict.fromkeys(("TranslateX", "TranslateY"), (-32, 32)),
    "Rotate": (-135, 135),
    "Posterize": (2, 8),
    "Solarize": (0, 1),
    "Hue": (-0.5, 0.5),
    "GaussianBlur": (0.1, 2.0),
}
POLICIES = {
    "TrivialAugmentWide": ["TrivialAugmentWide"],
    "RandAugment": ["RandAugment"],
    "AutoAugment": ["AutoAugment"],
    "SimCLR": [
        {"name": "ColorJitter", "brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2, "p": 0.8},
        {"name": "RandomGrayscale", "p": 0.2},
        {"name": "GaussianBlur", "kernel_size": 23, "p": 0.5},
    ],
    "RandomErasing": ["RandomErasing"],
    "none": [],
}


@dataclass(kw_only=True, slots=True)
class Only(Policy):
    op: str
    interpolation: str

    @property
    def slots(self):
        return (Slot((self.op,), self.interpolation, 23),)

    def draw(self, draws, first, size):
        low, high = STRENGTHS.get(self.op, (0, 0))
        strength = low + (high - low) * draws.uniform(first)[0]
        if self.op == "Posterize":
            strength = np.rint(strength)
        return np.full((len(strength), 1), CODE[self.op], np.int8), strength.astype(np.float32)[:, None]


def first_batch(manifest, config, policies):
    transform = dp.TrainTransform(dtype="uint8", augment=policies)
    with dp.build_loader(manifest, config, transform=transform, batch_size=len(manifest), device="cpu") as loader:
        return next(iter(loader)).images, loader.plan.rows(0, 0).augmentation, transform.augmenter.slots


def compare(manifest, policies):
    """(the operation alone, all in all), each mean, p99 and max of |difference| of 255."""
    dali, torch_ = dp.DaliConfig(device="cpu"), dp.TorchConfig(num_workers=0)
    ours, drawn, slots = first_batch(manifest, dali, policies)
    theirs, _, _ = first_batch(manifest, torch_, policies)
    whole = difference(ours.float(), theirs.float())
    if any(policy == "RandomErasing" for policy in policies):
        return {"in all": whole}
    plain, _, _ = first_batch(manifest, dali, [])
    expected = torch.stack([augment(*each) for each in zip(plain, [slots] * len(plain), drawn.ops, drawn.magnitudes, strict=True)])
    return {"operation": difference(ours.float(), expected.float()), "in all": whole}


def main(images):
    manifest = dp.Manifest.scan(images, progress=False)
    todo = {f"{op} {how}": [Only(op=op, interpolation=how)] for op in AFFINE for how in ("nearest", "bilinear")}
    todo |= {op: [Only(op=op, interpolation="nearest")] for op in OPS[1:] if op not in AFFINE} | POLICIES
    figures = {name: compare(manifest, policies) for name, policies in todo.items()}
    plain, _, _ = first_batch(manifest, dp.TorchConfig(num_workers=0), [])
    ours, _, _ = first_batch(manifest, dp.TorchConfig(num_workers=0), [Only(op="Equalize", interpolation="nearest")])
    figures["Equalize, torchvision's definition"] = {"operation": difference(ours.float(), equalize(plain).float())}
    origin = provenance(manifest.describe(), [])
    result = {"figures": figures, **{key: origin[key] for key in ("versions", "data", "commit")}}
    Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=2) + "\n")
    for name, each in figures.items():
        print(
            f"| {name} |",
            " | ".join(" / ".join(f"{part[key]:.3g}" for key in ("mean", "p99", "max")) for part in each.values()),
            "|",
        )


if __name__ == "__main__":
    main(sys.argv[1])
