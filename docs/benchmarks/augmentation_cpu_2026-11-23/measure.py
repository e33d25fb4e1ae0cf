"""Made result.json in this folder: python docs/benchmarks/augmentation_cpu_2026-11-23/measure.py
IMAGES

For each operation, on all images at strengths drawn evenly: how far DALI's graph
(loader=dali_cpu_graph) and the functions of loader=dali_cpu and loader=torch are from torchvision's
functions when all start from the same pixels ("graph", "functions"), and how far loader=dali_cpu is
from loader=torch, whose resizing differs as well ("in all").
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from dali_pipes.backends.common.torchvision_augment import _equalize
from dali_pipes.plan.augment.operations import AFFINE, CODE, OPS, Slot
from dali_pipes.plan.augment.policies import Policy
from torchvision.transforms import v2

import dali_pipes as dp
from dali_pipes.measure.agreement import difference
from dali_pipes.system.provenance import provenance

STRENGTHS = {
    **dict.fromkeys(
        ("ShearX", "ShearY", "Brightness", "Color", "Contrast", "Sharpness"), (-0.99, 0.99)
    ),
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
        {
            "name": "ColorJitter",
            "brightness": 0.8,
            "contrast": 0.8,
            "saturation": 0.8,
            "hue": 0.2,
            "p": 0.8,
        },
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
        return np.full((len(strength), 1), CODE[self.op], np.int8), strength.astype(np.float32)[
            :, None
        ]


def first_batch(manifest, config, policies):
    transform = dp.TrainTransform(dtype="uint8", augment=policies)
    with dp.build_loader(
        manifest, config, transform=transform, batch_size=len(manifest), device="cpu"
    ) as loader:
        return (
            next(iter(loader)).images,
            loader.plan.batch(0, 0).augmentation,
            transform.augmenter.slots,
        )


def by_torchvision(image, slots, ops, magnitudes):
    """torchvision's AutoAugment applies each operation, or the function of that name; equalize has
    another definition.
    """
    for slot, code, magnitude in zip(slots, ops.tolist(), magnitudes.tolist(), strict=True):
        match OPS[code]:
            case "Hue":
                image = v2.functional.adjust_hue(image, magnitude)
            case "GaussianBlur":
                image = v2.functional.gaussian_blur(image, [slot.kernel_size] * 2, [magnitude] * 2)
            case "Equalize":
                image = _equalize(image)
            case op:
                mode = v2.InterpolationMode(slot.interpolation)
                image = v2.AutoAugment()._apply_image_or_video_transform(
                    image, op, magnitude, interpolation=mode, fill={}
                )
    return image


def alone(manifest, config, policies):
    """How far the operations alone are from torchvision's on the same pixels."""
    ours, drawn, slots = first_batch(manifest, config, policies)
    plain, _, _ = first_batch(manifest, config, [])
    each = zip(plain, [slots] * len(plain), drawn.ops, drawn.magnitudes, strict=True)
    return difference(ours.float(), torch.stack([by_torchvision(*one) for one in each]).float())


def compare(manifest, policies):
    """Of the graph alone, of the functions alone and in all: mean, p99 and max of |difference| of
    255.
    """
    graph, dali, torch_ = (
        dp.DaliConfig(device="cpu", resize="dali"),
        dp.DaliConfig(device="cpu"),
        dp.TorchConfig(num_workers=0),
    )
    whole = difference(
        *(first_batch(manifest, config, policies)[0].float() for config in (dali, torch_))
    )
    if any(policy == "RandomErasing" for policy in policies):
        return {"in all": whole}
    return {
        "graph": alone(manifest, graph, policies),
        "functions": alone(manifest, dali, policies),
        "in all": whole,
    }


def main(images):
    manifest = dp.Manifest.scan(images, progress=False)
    todo = {
        f"{op} {how}": [Only(op=op, interpolation=how)]
        for op in AFFINE
        for how in ("nearest", "bilinear")
    }
    todo |= {
        op: [Only(op=op, interpolation="nearest")] for op in OPS[1:] if op not in AFFINE
    } | POLICIES
    figures = {name: compare(manifest, policies) for name, policies in todo.items()}
    plain, _, _ = first_batch(manifest, dp.TorchConfig(num_workers=0), [])
    ours, _, _ = first_batch(
        manifest, dp.TorchConfig(num_workers=0), [Only(op="Equalize", interpolation="nearest")]
    )
    figures["Equalize, torchvision's definition"] = {
        "operation": difference(ours.float(), v2.functional.equalize(plain).float())
    }
    origin = provenance(manifest.describe(), [])
    result = {"figures": figures, **{key: origin[key] for key in ("versions", "data", "commit")}}
    Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=2) + "\n")
    for name, each in figures.items():
        print(
            f"| {name} |",
            " | ".join(
                " / ".join(f"{part[key]:.3g}" for key in ("mean", "p99", "max"))
                for part in each.values()
            ),
            "|",
        )


if __name__ == "__main__":
    main(sys.argv[1])
