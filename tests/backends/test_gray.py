"""Images of one channel: the same gray on every backend, and what torchvision makes of a PIL image
by Grayscale(1).
"""

from functools import cache

import numpy as np
import pytest
import torch
from later import later
from nvidia.dali import fn, pipeline_def, types
from PIL import Image
from reference import Reference, read_batch

import dali_pipes as dp
from dali_pipes.backends.dali.graph import gray
from dali_pipes.backends.pixels.gray import gray_of
from dali_pipes.backends.pixels.tensors import to_steps
from dali_pipes.errors import OptionError
from dali_pipes.plan.plan import Plan

v2 = later("torchvision.transforms.v2")

ONE = {"channels": 1, "mean": [0.45], "std": [0.22]}
BACKENDS = {
    "torch_pil": dp.TorchConfig(num_workers=0),
    "torch_torchvision": dp.TorchConfig(num_workers=0, decoder="torchvision"),
    "torch_on_device": dp.TorchConfig(num_workers=1, normalize_on="device"),
    "dali_cpu": dp.DaliConfig(device="cpu", num_threads=2),
    "dali_cpu_graph": dp.DaliConfig(device="cpu", num_threads=2, resize="dali"),
}
EXACT = ("torch_pil", "torch_on_device")


def batches(manifest, name, transform, **options):
    config = BACKENDS[name]
    options = {"shuffle": False, "last_batch": "partial", **options}
    with dp.build_loader(manifest, config, transform=transform, batch_size=10, **options) as loader:
        return list(loader)


def pixels(manifest, name, transform):
    every = batches(manifest, name, transform)
    return torch.cat([to_steps(batch.images.cpu(), transform) for batch in every]).numpy()


@cache
def every_color():
    """All 256³ colors, (4096, 4096, 3)."""
    values = np.arange(256, dtype=np.uint8)
    return np.stack(np.meshgrid(values, values, values, indexing="ij"), -1).reshape(4096, 4096, 3)


@cache
def by_pillow():
    return np.asarray(Image.fromarray(every_color()).convert("L")).astype(int)


def test_each_color_becomes_pillows_gray():
    made = gray_of(torch.from_numpy(every_color()))
    assert made.shape == (4096, 4096, 1) and np.array_equal(made[..., 0].numpy(), by_pillow())


def test_dali_rounds_one_color_in_770_the_other_way():
    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def pipeline():
        source = [[every_color()]]
        return gray(fn.external_source(source, dtype=types.UINT8, ndim=3, layout="HWC"))

    made = pipeline()
    made.build()
    difference = np.abs(np.asarray(made.run()[0].at(0))[..., 0].astype(int) - by_pillow())
    assert difference.max() == 1 and 1 / 800 < difference.mean() < 1 / 770


PIPELINES = {
    "resized and cropped": (
        dp.EvalTransform(size=48, resize=64, **ONE | {"dtype": "uint8"}),
        lambda: [v2.Resize(64), v2.CenterCrop(48)],
    ),
    "bicubic": (
        dp.EvalTransform(size=(40, 60), resize=(50, 64), interpolation="bicubic", **ONE),
        lambda: [v2.Resize((50, 64), v2.InterpolationMode.BICUBIC), v2.CenterCrop((40, 60))],
    ),
}


def torchvisions(manifest, steps):
    plain, images = v2.Compose([*steps, v2.PILToTensor()]), []
    for number in range(len(manifest)):
        with Image.open(manifest.path(number)) as image:
            images.append(plain(image))
    return torch.stack(images).float().numpy()


@pytest.mark.few
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_it_is_torchvisions_grayscale_before_the_other_steps(real_manifest, name, pipeline):
    transform, steps = PIPELINES[pipeline]
    difference = np.abs(
        pixels(real_manifest, name, transform)
        - torchvisions(real_manifest, [v2.Grayscale(1), *steps()])
    )
    assert difference.max() < 0.001 if name in EXACT else difference.mean() < 0.25
    assert np.percentile(difference, 99) <= 1.001


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_after_a_resize_it_differs_by_rounding(real_manifest, pipeline):
    transform, steps = PIPELINES[pipeline]
    late = torchvisions(real_manifest, [*steps(), v2.Grayscale(1)])
    difference = np.abs(pixels(real_manifest, "torch_pil", transform) - late)
    # more where a bicubic filter overshoots a color and is cut off at 0 and 255
    assert difference.mean() < 0.2 and np.percentile(difference, 99) <= 1.001


TRANSFORMS = {
    "train": Reference.of(dp.TrainTransform, size=(48, 64), **ONE),
    "nearest neighbours": Reference.of(
        dp.TrainTransform, size=48, interpolation="nearest-exact", **ONE
    ),
    "not antialiased": Reference.of(dp.TrainTransform, size=48, antialias=False, **ONE),
    "padded": Reference.of(
        dp.RandomCropTransform,
        size=96,
        padding=8,
        pad_if_needed=True,
        channels=1,
        dtype="uint8",
        vertical_flip=0.5,
    ),
}
AUGMENTED = {
    "operations": Reference.of(
        dp.TrainTransform,
        size=48,
        augment=[
            "TrivialAugmentWide",
            {"name": "ColorJitter", "brightness": 0.4, "contrast": 0.4},
            {"name": "GaussianBlur", "kernel_size": 5},
            "RandomErasing",
        ],
        **ONE,
    ),
    "upright, before the crop": Reference.of(
        dp.TrainTransform,
        size=48,
        exif="apply",
        before=[
            {"name": "RandomRotation", "degrees": 30, "fill": 9},
            {"name": "Pad", "padding": 4, "fill": 77},
            {"name": "Resize", "size": 100},
        ],
        **ONE,
    ),
    "views": Reference.of(
        dp.ViewsTransform,
        views={"global": {"count": 2, "size": 48}, "local": {"count": 2, "size": 24}},
        **ONE,
    ),
}


@cache
def by_reference(manifest, transform):
    reference = (TRANSFORMS | AUGMENTED)[transform]
    plan = Plan(manifest, reference.transform, 10, 2, "sequential", last_batch="partial")
    upright = reference.transform.exif == "apply"
    every = [plan.batch(0, step) for step in range(len(plan))]
    # of several views the first
    made = [reference(each, read_batch(manifest, each, upright))[0][: len(each)] for each in every]
    return torch.cat(made)


@pytest.mark.few
@pytest.mark.compares_pixels
@pytest.mark.parametrize(
    ("name", "transform"),
    [
        *((name, transform) for transform in TRANSFORMS for name in BACKENDS),
        *((name, transform) for transform in AUGMENTED for name in BACKENDS),
    ],
)
def test_gray_pixels_are_those_of_plain_torchvision(real_manifest, name, transform):
    reference = (TRANSFORMS | AUGMENTED)[transform]
    made = batches(real_manifest, name, reference.transform, seed=2)
    images = torch.cat([batch.images for batch in made])
    difference = reference.steps(images, by_reference(real_manifest, transform))
    # of the few bright and dark pixels that an operation moves apart; hue and blur add a step
    mean, p99 = (0.003, 0) if name in EXACT else (0.25, 2)
    assert difference.mean() <= mean and np.percentile(difference, 99) <= p99 + 0.001


def negative(image):
    return 255 - image


@pytest.mark.parametrize("name", ["torch_pil", "dali_cpu"])
def test_what_only_these_have_agrees(thumbnails, name):
    """Noise in rectangles, timm's operations, padding that mirrors, functions of the user's."""
    transform = dp.TrainTransform(
        size=48,
        before=[{"name": "Pad", "padding": 9, "padding_mode": "reflect"}, dp.Augment(negative)],
        augment=["TimmRandAugment", dp.Augment(negative), "TimmRandomErasing"],
        **ONE,
    )
    plain = dp.TorchConfig(num_workers=0, decoder="torchvision")
    with dp.build_loader(thumbnails, plain, transform=transform, batch_size=10) as loader:
        theirs = [batch.images for batch in loader]
    ours = [batch.images for batch in batches(thumbnails, name, transform, shuffle=True)]
    apart = (torch.cat(ours)[: 10 * len(theirs)] - torch.cat(theirs)).abs() * 0.22 * 255
    assert apart.mean() < 0.25 and apart.quantile(0.99) < 2.001


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dtype", ["fp16", "uint8"])
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_form_of_the_images(thumbnails, name, dtype, memory_format):
    form = {"dtype": dtype, "memory_format": memory_format}
    made = batches(thumbnails, name, dp.EvalTransform(size=(24, 20), resize=30, **ONE, **form))
    kinds = {"fp16": torch.float16, "uint8": torch.uint8}
    layouts = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
    for batch in made:
        assert batch.images.shape == (len(batch), 1, 24, 20)
        assert batch.images.dtype == kinds[dtype]
        assert batch.images.is_contiguous(memory_format=layouts[memory_format])


def test_mixing_takes_them(thumbnails):
    mix = dp.RandomChoice([dp.MixUp(num_classes=5), dp.CutMix(num_classes=5)])
    transform = dp.TrainTransform(size=32, **ONE)
    for batch in batches(thumbnails, "dali_cpu", transform, batch_transform=mix):
        assert batch.images.shape[1:] == (1, 32, 32) and batch.labels.shape[1:] == (5,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": 2}, "channels is 2; it takes 3, for red, green and blue, or 1, for gray"),
        ({"channels": True}, "channels is True"),
        ({"channels": 1}, r"mean is \[0.485, .*\]; channels=1 takes one number, such as mean="),
        ({"channels": 1, "mean": [0.5]}, r"std is .*; channels=1 takes one number"),
        ({"mean": [0.5]}, r"mean is \[0.5\]; it takes three numbers, .* unless channels=1"),
        (
            ONE | {"augment": [{"name": "ColorJitter", "saturation": 0.1, "hue": 0.1}]},
            "ColorJitter with saturation and hue changes nothing in images of one channel",
        ),
        (ONE | {"augment": ["RandomGrayscale"]}, "RandomGrayscale changes nothing in images of"),
        (
            ONE | {"augment": [{"name": "TimmRandAugment", "fill": [124, 116, 104]}]},
            r"augment: TimmRandAugment has fill=\[124, 116, 104\], a color, and channels is 1",
        ),
        (
            ONE | {"before": [{"name": "Pad", "padding": 4, "fill": [9, 9, 8]}]},
            r"before: Pad has fill=\[9, 9, 8\], a color, and channels is 1; set three equal",
        ),
    ],
)
def test_what_one_channel_cannot_have_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        dp.TrainTransform(**options)


def test_bytes_need_no_mean():
    assert dp.TrainTransform(channels=1, dtype="uint8").mean == dp.TrainTransform().mean
