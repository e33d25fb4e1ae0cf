"""Promise 1 with augmentation: every operation of every backend against plain torchvision, within
the table of docs/pixels.md.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from later import later

import dali_pipes as dp
from dali_pipes.backends.common import torchvision_augment
from dali_pipes.plan.augment.operations import AFFINE, BLENDS, CODE, OPS, Slot
from dali_pipes.plan.augment.policies import Policy

v2 = later("torchvision.transforms.v2")

BACKENDS = {
    "torch": dp.TorchConfig(num_workers=0),
    "torch_device": dp.TorchConfig(num_workers=0, normalize_on="device"),
    "dali_cpu": dp.DaliConfig(device="cpu"),
    "dali_cpu_graph": dp.DaliConfig(device="cpu", resize="dali"),
    "dali_gpu": dp.DaliConfig(device="gpu"),
    "torchvision_gpu": dp.TorchvisionGpuConfig(),
}
ON_GPU = ("dali_gpu", "torchvision_gpu")
ALL = [
    pytest.param(name, marks=pytest.mark.needs_cuda) if name in ON_GPU else name
    for name in BACKENDS
]
SIZE = (96, 80)
# those behind it are timm's (tests/backends/test_timm_augmentation.py), but for the last one
OF_TORCHVISION = (*OPS[1 : OPS.index("GaussianBlur") + 1], "EqualizeInSteps")

# What is allowed of mean |difference|, and the share of values that may differ by more than one
# step of 255.
EXACT, ALMOST = (1e-9, 0.0), (0.003, 0.0)
ALLOWED = dict.fromkeys(OPS, EXACT) | dict.fromkeys((*BLENDS, "Hue", "GaussianBlur"), ALMOST)
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
class Only(Policy):
    """One operation for all images, at any strength."""

    op: str
    interpolation: str = "nearest"

    @property
    def slots(self):
        return (Slot((self.op,), self.interpolation, 9),)

    def draw(self, draws, first, size):
        low, high = STRENGTHS.get(self.op, (0, 0))
        strength = low + (high - low) * draws.uniform(first)[0]
        if self.op == "Posterize":
            strength = np.rint(strength)
        return np.full((len(strength), 1), CODE[self.op], np.int8), strength.astype(np.float32)[
            :, None
        ]


def batches(manifest, name, augment, **options):
    transform = dp.TrainTransform(**{"size": SIZE, "dtype": "uint8", "augment": augment} | options)
    with dp.build_loader(
        manifest, BACKENDS[name], transform=transform, batch_size=16, last_batch="partial"
    ) as loader:
        planned = [loader.plan.batch(0, step) for step in range(len(loader))]
        return torch.cat([batch.images.cpu() for batch in loader]), planned


def plain(image, op, magnitude, interpolation):
    """torchvision's AutoAugment does it, or its function of that name."""
    if op == "Hue":
        return v2.functional.adjust_hue(image, magnitude)
    if op == "EqualizeInSteps":
        return v2.functional.equalize(image)
    if op == "GaussianBlur":
        return v2.functional.gaussian_blur(image, [9, 9], [magnitude, magnitude])
    mode = v2.InterpolationMode(interpolation)
    return v2.AutoAugment()._apply_image_or_video_transform(
        image, op, magnitude, interpolation=mode, fill={}
    )


@pytest.mark.few
@pytest.mark.compares_pixels
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("op", "interpolation"),
    [*((op, "nearest") for op in OF_TORCHVISION), *((op, "bilinear") for op in AFFINE)],
)
def test_each_operation_is_torchvisions(real_manifest, name, op, interpolation):
    before, _ = batches(real_manifest, name, [])
    after, planned = batches(real_manifest, name, [Only(op=op, interpolation=interpolation)])
    magnitudes = np.concatenate([each.augmentation.magnitudes[:, 0] for each in planned])
    if op == "Equalize":  # OpenCV's definition; test_equalize_is_opencvs has it
        assert (before != after).any()
        return
    expected = torch.stack(
        [
            plain(*each, interpolation)
            for each in zip(before, [op] * len(before), magnitudes.tolist(), strict=True)
        ]
    )
    difference = (after.int() - expected.int()).abs().numpy()
    mean, share = COLOR_ON_GPU if (op, name) == ("Color", "dali_gpu") else ALLOWED[op]
    assert (after != before).any()
    assert difference.mean() <= mean
    assert (difference > 1).mean() <= share


@pytest.mark.few
@pytest.mark.compares_pixels
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("op", ["TranslateX", "TranslateY"])
def test_images_may_be_moved_farther_than_they_reach(real_manifest, name, op):
    """By up to 32 pixels of 16 × 12."""
    before, _ = batches(real_manifest, name, [], size=(16, 12))
    after, planned = batches(real_manifest, name, [Only(op=op)], size=(16, 12))
    magnitudes = np.concatenate([each.augmentation.magnitudes[:, 0] for each in planned])
    expected = torch.stack(
        [
            plain(image, op, magnitude, "nearest")
            for image, magnitude in zip(before, magnitudes.tolist(), strict=True)
        ]
    )
    gone = np.abs(magnitudes) >= (12 if op == "TranslateX" else 16) + 1
    assert gone.any() and not after[torch.from_numpy(gone)].any()
    assert ((after.int() - expected.int()).abs() > 1).float().mean() <= 0.001


def equalized(channel):
    """OpenCV's equalizeHist in plain Python: the darkest value goes to 0, the brightest to 255, by
    the cumulative histogram.
    """
    count = np.bincount(channel.ravel(), minlength=256)
    darkest = np.flatnonzero(count)[0]
    rest = channel.size - count[darkest]
    if not rest:
        return channel
    return np.rint((count.cumsum() - count[darkest]).clip(0) * np.float32(255 / rest)).astype(
        np.uint8
    )[channel]


@pytest.mark.compares_pixels
@pytest.mark.parametrize("name", ALL)
def test_equalize_is_opencvs(real_manifest, name):
    before, _ = batches(real_manifest, name, [])
    after, _ = batches(real_manifest, name, [Only(op="Equalize")])
    expected = np.stack([[equalized(channel) for channel in image] for image in before.numpy()])
    assert np.abs(after.numpy().astype(int) - expected).max() <= 1


def odd_images():
    """(3, H, W): of few values, dark, bright, in one color, small, and of fewer than 255 pixels."""
    rng = np.random.default_rng(0)
    for low, high, shape in [
        *((0, 256, (3, 40, 48)), (0, 256, (1, 40, 48)), (0, 256, (3, 5, 7)), (0, 256, (3, 1, 1))),
        *((0, 2, (3, 40, 48)), (250, 256, (3, 40, 48)), (0, 9, (3, 16, 16)), (7, 8, (3, 40, 48))),
        (255, 256, (3, 40, 48)),
    ]:
        yield torch.from_numpy(rng.integers(low, high, shape, np.uint8))
    yield torch.from_numpy(rng.normal(120, 9, (3, 40, 48)).clip(0, 255).astype(np.uint8))


def test_torchvisions_equalize_of_odd_images():
    equalize = torchvision_augment._equalize_in_steps
    for image in odd_images():
        assert torch.equal(equalize(image), v2.functional.equalize(image)), image.shape


def test_images_equalized_together_are_those_equalized_one_by_one(monkeypatch):
    monkeypatch.setattr(torchvision_augment, "_TOGETHER", 2)
    images = torch.stack([image for image in odd_images() if image.shape == (3, 40, 48)])
    together, chosen = images.clone(), [0, 1, 3, 4, 5]
    torchvision_augment._equalize_together(together, chosen)
    for at, image in enumerate(images):
        expected = torchvision_augment._equalize_in_steps(image) if at in chosen else image
        assert torch.equal(together[at], expected)


POLICIES = {
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
}


@pytest.mark.few
@pytest.mark.compares_pixels
@pytest.mark.parametrize("name", ALL[1:])
@pytest.mark.parametrize("policy", POLICIES)
def test_policies_make_the_same_pixels_everywhere(real_manifest, name, policy):
    """Against the torch backend: what differs is what the resize before differs in, made stronger
    by some operations.
    """
    reference, planned = batches(real_manifest, "torch", POLICIES[policy])
    other, same = batches(real_manifest, name, POLICIES[policy])
    assert all(
        np.array_equal(a.augmentation.ops, b.augmentation.ops)
        for a, b in zip(planned, same, strict=True)
    )
    difference = (other.int() - reference.int()).abs().float().numpy()
    # torchvision upsamples chroma plainly, which alone is a mean of 0.66 and a p99 of 7:
    # docs/pixels.md.
    mean, p99 = (0.9, 9) if name == "torchvision_gpu" else (0.6, 6)
    assert difference.mean() <= mean
    assert np.percentile(difference, 99) <= p99


@pytest.mark.few
@pytest.mark.compares_pixels
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "uint8"])
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
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
