"""Promise 1 with augmentation: every operation and policy of every backend against plain
torchvision and OpenCV, within what docs/augmentation.md says.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from reference import Reference, operate, read_batch

import dali_pipes as dp
from dali_pipes.plan.plan import Plan
from dali_pipes.plan.steps.operations import AFFINE, BLENDS, CODE, OPS, Slot
from dali_pipes.plan.steps.policies import Policy

BACKENDS = {
    "torch": dp.TorchConfig(num_workers=0),
    "torch_device": dp.TorchConfig(num_workers=0, normalize_on="device"),
    "dali_cpu": dp.DaliConfig(device="cpu"),
    "dali_cpu_graph": dp.DaliConfig(device="cpu", resize="dali"),
    "dali_gpu": dp.DaliConfig(device="gpu"),
}
ALL = [
    pytest.param(name, marks=pytest.mark.needs_cuda) if name == "dali_gpu" else name
    for name in BACKENDS
]
SIZE = (96, 80)
# those behind it are timm's (tests/backends/test_timm_augmentation.py), but for the last one
OF_TORCHVISION = (*OPS[1 : OPS.index("GaussianBlur") + 1], "EqualizeInSteps")

# What an operation may add of mean |difference|, and the share of values that may then differ by
# more than one step of 255.
EXACT, ALMOST = (1e-9, 0.0), (0.003, 0.0)
ALLOWED = dict.fromkeys(OPS, EXACT) | dict.fromkeys((*BLENDS, "Hue", "GaussianBlur"), ALMOST)
# OpenCV's own way to round
ALLOWED["Equalize"] = (0.5, 0.0)
# by DALI's kernels on a GPU: 0.0089 on an H200 (docs/benchmarks/gpu_h200_2026-11-27_graph)
COLOR_ON_GPU = (0.012, 0.0)
# a neighbouring pixel where the place lies half-way between two
ALLOWED |= dict.fromkeys(AFFINE, (0.05, 0.001))
STRENGTHS = {
    **dict.fromkeys(
        ("ShearX", "ShearY", "Brightness", "Color", "Contrast", "Sharpness"), (-0.99, 0.99)
    ),
    **dict.fromkeys(("TranslateX", "TranslateY"), (-32, 32)),
    "Rotate": (-180, 180),
    "Posterize": (2, 8),
    "Solarize": (0, 1),
    "Hue": (-0.5, 0.5),
    "GaussianBlur": (0.1, 2.0),
}


@dataclass(kw_only=True, slots=True)
class InTurn(Policy):
    """Each of these operations in turn, on one image after the other, at any strength."""

    ops: tuple[str, ...]
    interpolation: str = "nearest"

    @property
    def slots(self):
        return (Slot(self.ops, self.interpolation, 9),)

    def draw(self, draws, first, size):
        share = draws.uniform(first)[0]
        ops = [self.ops[place % len(self.ops)] for place in range(len(share))]
        low, high = np.array([STRENGTHS.get(op, (0, 0)) for op in ops]).T
        strength = low + (high - low) * share
        strength = np.where(np.array(ops) == "Posterize", np.rint(strength), strength)
        codes = np.array([CODE[op] for op in ops], np.int8)
        return codes[:, None], strength.astype(np.float32)[:, None]


def batches(manifest, name, augment, epochs=1, **options):
    """The images of some epochs, and the planned batches."""
    transform = dp.TrainTransform(**{"size": SIZE, "dtype": "uint8", "augment": augment} | options)
    with dp.build_loader(
        manifest, BACKENDS[name], transform=transform, batch_size=37, last_batch="partial"
    ) as loader:
        steps = [(epoch, step) for epoch in range(epochs) for step in range(len(loader))]
        made = [batch.images.cpu() for _ in range(epochs) for batch in loader]
        return torch.cat(made), [loader.plan.batch(*step) for step in steps]


def augmented(images, planned, slot):
    """uint8 images after the planned operation of each, and its name."""
    codes = np.concatenate([each.augmentation.ops[:, 0] for each in planned])
    ops = np.array(OPS)[codes]
    strengths = np.concatenate([each.augmentation.magnitudes[:, 0] for each in planned])
    each_image = zip(images, ops.tolist(), strengths.tolist(), strict=True)
    return torch.stack([operate(*each, slot) for each in each_image]), ops


@pytest.mark.few
@pytest.mark.compares_pixels
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_each_operation_is_torchvisions(real_manifest, name, interpolation):
    """On what the same loader makes without it, so that the resize has no part in it."""
    before, _ = batches(real_manifest, name, [], epochs=2)
    policy = InTurn(ops=OF_TORCHVISION, interpolation=interpolation)
    after, planned = batches(real_manifest, name, [policy], epochs=2)
    expected, ops = augmented(before, planned, policy.slots[0])
    difference = (after.int() - expected.int()).abs().numpy()
    for op in OF_TORCHVISION:
        images = ops == op
        mean, share = COLOR_ON_GPU if (op, name) == ("Color", "dali_gpu") else ALLOWED[op]
        assert (after[images] != before[images]).any(), op
        assert difference[images].mean() <= mean, op
        assert (difference[images] > 1).mean() <= share, op


@pytest.mark.few
@pytest.mark.compares_pixels
@pytest.mark.parametrize("name", ALL)
def test_images_may_be_moved_farther_than_they_reach(real_manifest, name):
    """By up to 32 pixels of 16 × 12."""
    policy = InTurn(ops=("TranslateX", "TranslateY"))
    before, _ = batches(real_manifest, name, [], size=(16, 12))
    after, planned = batches(real_manifest, name, [policy], size=(16, 12))
    expected, ops = augmented(before, planned, policy.slots[0])
    strengths = np.concatenate([each.augmentation.magnitudes[:, 0] for each in planned])
    gone = np.abs(strengths) >= np.where(ops == "TranslateX", 12, 16) + 1
    assert set(ops[gone]) == set(policy.ops) and not after[torch.from_numpy(gone)].any()
    assert ((after.int() - expected.int()).abs() > 1).float().mean() <= 0.001


_POLICIES = {
    "TrivialAugmentWide": ["TrivialAugmentWide"],
    "RandAugment": [{"name": "RandAugment", "interpolation": "bilinear"}],
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
        {"name": "GaussianBlur", "kernel_size": 9, "p": 0.5},
    ],
    "one operation each": ["RandomInvert", "RandomAutocontrast", "RandomAdjustSharpness"],
    "steps of values": [
        {"name": "RandomPosterize", "p": 0.2},
        {"name": "RandomEqualize", "p": 0.2},
    ],
    "torchvision's Equalize": [{"name": "AutoAugment", "equalize": "torchvision"}],
    "rotation": [{"name": "RandomRotation", "degrees": 15, "interpolation": "bilinear"}],
    "erased": ["RandomInvert", {"name": "RandomErasing", "p": 0.7}],
}
# no library's normalization, so that a default in its place is seen
NORMALIZED = {"mean": (0.4, 0.5, 0.3), "std": (0.2, 0.3, 0.25)}
POLICIES = {
    name: Reference.of(dp.TrainTransform, size=SIZE, augment=augment, **NORMALIZED)
    for name, augment in _POLICIES.items()
}


@cache
def by_reference(manifest, policy):
    """The images of an epoch by the reference, and its planned batches."""
    reference = POLICIES[policy]
    plan = Plan(manifest, reference.transform, 37, last_batch="partial")
    planned = [plan.batch(0, step) for step in range(len(plan))]
    return torch.cat([reference(each, read_batch(manifest, each))[0] for each in planned]), planned


@pytest.mark.few
@pytest.mark.compares_pixels
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("policy", POLICIES)
def test_policies_make_the_pixels_of_plain_torchvision(real_manifest, name, policy):
    """What differs is what the resize before differs in, made stronger by some operations."""
    expected, planned = by_reference(real_manifest, policy)
    reference = POLICIES[policy]
    with dp.build_loader(
        real_manifest,
        BACKENDS[name],
        transform=reference.transform,
        batch_size=37,
        last_batch="partial",
    ) as loader:
        made = list(loader)
    ids = [each.ids.tolist() for each in planned]
    assert [batch.ids.tolist() for batch in made] == ids
    difference = reference.steps(torch.cat([batch.images.cpu() for batch in made]), expected)
    mean, p99 = (0.003, 0.01) if name in ("torch", "torch_device") else (0.6, 6)
    assert difference.mean() <= mean
    assert np.percentile(difference, 99) <= p99


@pytest.mark.few
@pytest.mark.compares_pixels
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("dtype", "memory_format"),
    [
        ("fp32", "contiguous"),
        ("fp16", "channels_last"),
        ("bf16", "contiguous"),
        ("uint8", "channels_last"),
    ],
)
def test_erased_regions_are_zero_and_the_rest_is_untouched(manifest, name, dtype, memory_format):
    form = {"dtype": dtype, "memory_format": memory_format, "size": 48}
    whole, _ = batches(manifest, name, [], **form)
    erased, planned = batches(manifest, name, [{"name": "RandomErasing", "p": 0.7}], **form)
    regions = np.concatenate([each.augmentation.erased for each in planned])
    assert (regions[:, 2] > 0).any() and (regions[:, 2] == 0).any()
    for before, after, (top, left, height, width) in zip(
        whole, erased, regions.tolist(), strict=True
    ):
        before[:, top : top + height, left : left + width] = 0
        assert torch.equal(before, after)
