"""timm's policies on the backends: equal pixels and equal noise."""

import numpy as np
import pytest
import torch
from PIL import Image
from reference import Reference, read_batch

import dali_pipes as dp
from dali_pipes.backends.pixels.warps import augment_mask
from dali_pipes.errors import ConfigError
from dali_pipes.plan.steps.operations import CODE, Slot

POLICIES = [
    {"name": "TimmRandAugment", "fill": [124, 116, 104], "interpolation": "random"},
    {"name": "TimmRandomErasing", "p": 0.9, "max_count": 2},
]


# no library's normalization, so that a default in its place is seen
NORMALIZED = {"mean": (0.4, 0.5, 0.3), "std": (0.2, 0.3, 0.25)}


def loaded(folder, config, transform):
    """The images of the first batches, and the planned batches."""
    manifest = dp.Manifest.scan(folder, progress=False)
    with dp.build_loader(manifest, config, transform=transform, batch_size=4, seed=2) as loader:
        made = torch.cat([batch.images.cpu() for batch in loader])
        return made, manifest, [loader.plan.batch(0, step) for step in range(len(loader))]


def images(folder, config, *policies, **options):
    transform = dp.TrainTransform(size=40, augment=list(policies), **options)
    return loaded(folder, config, transform)[0].float()


def differences(folder, config, kind, *policies, **options):
    """From timm's own functions and torchvision, in steps of 255."""
    reference = Reference.of(kind, size=40, augment=list(policies), **options)
    made, manifest, planned = loaded(folder, config, reference.transform)
    expected = [reference(each, read_batch(manifest, each))[0] for each in planned]
    return reference.steps(made, torch.cat(expected))


@pytest.mark.parametrize(
    "config",
    [
        dp.TorchConfig(num_workers=0),
        dp.TorchConfig(num_workers=0, decoder="torchvision", normalize_on="device"),
        dp.DaliConfig(device="cpu", num_threads=2),
    ],
    ids=["torch", "torch_device", "dali_cpu"],
)
def test_policies_are_timms(photograph_folder, config):
    """Within one step of each operation that moves pixels or colors; noise is equal."""
    difference = differences(photograph_folder, config, dp.TrainTransform, *POLICIES, **NORMALIZED)
    assert difference.mean() <= 0.25 and np.percentile(difference, 99) <= 2.001


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_erased_pixels_are_normally_distributed(photograph_folder, dtype):
    whole = {"name": "TimmRandomErasing", "p": 1.0, "scale": [0.5, 0.6], "ratio": [0.9, 1.1]}
    config = dp.TorchConfig(num_workers=0)
    made = images(photograph_folder, config, whole, dtype=dtype)
    plain = images(photograph_folder, config, dtype=dtype)
    noise = made[made != plain]
    assert abs(float(noise.mean())) < 0.02 and abs(float(noise.std()) - 1) < 0.02
    # another color in each image, and one in all of its pixels
    made = images(photograph_folder, config, whole | {"mode": "rand"}, dtype=dtype)
    colors = [
        image[0][image[0] != before[0]].unique() for image, before in zip(made, plain, strict=True)
    ]
    assert all(len(each) == 1 for each in colors) and len(torch.cat(colors).unique()) > 20


OF_GRAPH = {"resize": "dali", "num_threads": 2}


@pytest.mark.few
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "uint8"])
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_what_the_graph_of_dali_lacks_is_made_after_it(photograph_folder, dtype, memory_format):
    """Single images: what follows on the same image is made after it too."""
    augment = [
        {"name": "AutoAugment", "equalize": "torchvision"},
        POLICIES[0],
        *POLICIES[1:] * (dtype != "uint8"),
    ]
    # crops without a resize, in which backends differ
    difference = differences(
        photograph_folder,
        dp.DaliConfig(device="cpu", **OF_GRAPH),
        dp.RandomCropTransform,
        *augment,
        pad_if_needed=True,
        dtype=dtype,
        memory_format=memory_format,
        **NORMALIZED,
    )
    # an operation more on a difference of one step makes two of it, and bf16 half a step more
    assert (difference > 2.5).mean() < 0.002


def test_dali_says_that_pytorch_augments_after_its_graph(photograph_folder):
    manifest = dp.Manifest.scan(photograph_folder, progress=False)
    augment = [{"name": "AutoAugment", "equalize": "torchvision"}, *POLICIES]
    for resize, is_after in {"dali": True, "torch": False}.items():
        config = dp.DaliConfig(device="cpu", resize=resize, num_threads=1)
        transform = dp.TrainTransform(size=40, augment=augment)
        with dp.build_loader(manifest, config, transform=transform, batch_size=4) as loader:
            said = loader.explain()
        words = "after its graph, PyTorch augments and normalizes on cpu"
        assert (words in said) == is_after


def test_bytes_take_no_noise(photograph_folder):
    with pytest.raises(ConfigError, match="dtype is uint8, and TimmRandomErasing fills normalized"):
        images(photograph_folder, dp.TorchConfig(num_workers=0), POLICIES[1], dtype="uint8")


# how timm moves an image, and our operation
TIMM_MOVES = {
    "Rotate": ("rotate", 1, (-30, 30)),
    "ShearX": ("shear_x", 1, (-0.3, 0.3)),
    "ShearY": ("shear_y", 1, (-0.3, 0.3)),
    "ShiftX": ("translate_x_abs", -1, (-20, 20)),
    "ShiftY": ("translate_y_abs", -1, (-20, 20)),
}


@pytest.mark.parametrize("op", TIMM_MOVES)
@pytest.mark.parametrize(("dtype", "outside"), [("uint8", 255), ("int32", 65535), ("int16", -1)])
def test_a_mask_moves_as_timm_moves_it(op, dtype, outside):
    from timm.data import auto_augment

    name, sign, between = TIMM_MOVES[op]
    rng = np.random.default_rng(0)
    for size in ((40, 40), (33, 57), (224, 224)):
        classes = rng.integers(0, 200, size).astype(dtype)
        picture = Image.fromarray(classes if dtype == "uint8" else classes.astype(np.int32))
        for interpolation in ("bilinear", "bicubic"):
            # in float32, as the plan has them
            magnitude = float(np.float32(rng.uniform(*between)))
            theirs = getattr(auto_augment, name)(
                picture, sign * magnitude, resample=Image.Resampling.NEAREST, fillcolor=outside
            )
            slot = Slot((op,), interpolation=interpolation, fill=(124, 116, 104))
            codes, magnitudes = np.array([CODE[op]]), np.array([magnitude])
            ours = augment_mask(
                torch.from_numpy(classes), (slot,), codes, magnitudes, np.zeros((0, 2, 3)), outside
            ).numpy()
            assert ours.dtype == classes.dtype and (ours != classes).any()
            assert np.array_equal(ours, np.asarray(theirs))
