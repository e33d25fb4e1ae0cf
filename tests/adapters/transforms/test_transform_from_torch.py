"""transform_from_torch: the same pixels as the transform that it reads, or a refusal by name."""

import composes
import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

import dali_pipes as dp
from dali_pipes.adapters.transforms.reading import NotConvertibleError
from dali_pipes.adapters.transforms.steps import read
from dali_pipes.backends.pixels.tensors import to_steps
from dali_pipes.plan.steps.policies import ColorJitter, RandomGrayscale, RandomSolarize

TORCH = dp.TorchConfig(num_workers=0)
HALF = ((0.5,), (0.25,))


def images_of(manifest, transform, config=TORCH):
    with dp.build_loader(
        manifest,
        config,
        transform=transform,
        batch_size=len(manifest),
        shuffle=False,
        last_batch="partial",
        device="cpu",
    ) as loader:
        return next(iter(loader)).images


def live_images(manifest, live):
    pictures = [Image.open(manifest.path(at)).convert("RGB") for at in range(len(manifest))]
    return torch.stack([live(picture) for picture in pictures])


@pytest.mark.few
@pytest.mark.parametrize("name", composes.EVALUATION)
def test_evaluation_has_the_pixels_of_the_transform(name, photographs):
    live, some = composes.EVALUATION[name](), photographs.subset(np.array([0, 2, 3, 13]))
    transform = dp.transform_from_torch(live)
    theirs, pillow = live_images(some, live), images_of(some, transform)
    assert pillow.shape == theirs.shape and pillow.dtype == theirs.dtype
    if "tensors" not in name and name != "nn.Sequential":
        assert (pillow.float() - theirs.float()).abs().max() <= 1e-6

    dali = images_of(some, transform, dp.DaliConfig(device="cpu", num_threads=2))
    differences = (to_steps(dali, transform) - to_steps(theirs, transform)).abs()
    assert (differences.mean() <= 0.25 and differences.quantile(0.99) <= 2) or "nearest" in name


def test_every_training_transform_is_read():
    found = {name: dp.transform_from_torch(make()) for name, make in composes.TRAINING.items()}
    assert all(transform.training for transform in found.values())
    policies = {
        name: [policy.name for policy in transform.augment] for name, transform in found.items()
    }
    assert policies["torchvision reference, ta_wide"] == ["TrivialAugmentWide", "RandomErasing"]
    assert policies["SimCLR"] == ["ColorJitter", "RandomGrayscale", "GaussianBlur"]
    assert found["SimCLR"].augment[0] == ColorJitter(
        brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2, p=0.8
    )
    assert found["applied at random"].augment == [
        RandomSolarize(threshold=128, p=0.2),
        RandomGrayscale(p=0.3),
    ]
    # pixels are whole numbers, so those from 127.2 on are those from 128 on
    assert found["BYOL, second view"].augment == [RandomSolarize(threshold=128, p=0.2)]
    assert found["timm, both flips"].vertical_flip == 0.5
    assert found["DINO, local"].interpolation == "bicubic"


@pytest.mark.parametrize("name", composes.REFUSED)
def test_refused_by_name(name):
    make, part = composes.REFUSED[name]
    with pytest.raises(NotConvertibleError) as refused:
        dp.transform_from_torch(make())
    assert refused.value.part.startswith(part) and str(refused.value).count("; ") >= 1


def test_all_that_is_wrong_is_in_the_table():
    steps = [v1.RandomResizedCrop(32), v2.RandomZoomOut(p=1), v1.ToTensor(), v1.FiveCrop(8)]
    with pytest.raises(NotConvertibleError, match=r"^RandomZoomOut") as refused:
        read(v1.Compose(steps))
    words = [step.by.startswith("REFUSED") for step in refused.value.steps]
    assert words == [False, True, False, True]


@pytest.mark.parametrize("kind", [v1.Compose, dp.EvalTransform()])
def test_what_is_no_live_transform_is_refused(kind):
    with pytest.raises(dp.ConfigError, match=r"write Compose\(…\)|of dali_pipes already"):
        dp.transform_from_torch(kind)


def test_methods_that_a_program_has_replaced():
    hooked, replaced = v2.CenterCrop(32), v1.CenterCrop(32)
    hooked.register_forward_hook(lambda *given: given[-1])
    replaced.forward = lambda image: image
    for step, what in ((hooked, "a hook"), (replaced, "a forward of its own")):
        with pytest.raises(NotConvertibleError, match=what):
            dp.transform_from_torch(v2.Compose([step, v2.PILToTensor()]))


# what is padded before the crop

REFLECTED = {"name": "Pad", "padding": 4, "padding_mode": "reflect"}
PADDED = {
    "reflected": ([v1.RandomCrop(32, 4, padding_mode="reflect")], [REFLECTED]),
    "white, v2": (
        [v2.RandomCrop(32, (1, 2, 3, 4), fill=255)],
        [
            {
                "name": "Pad",
                "padding": (1, 2, 3, 4),
                "padding_mode": "constant",
                "fill": (255, 255, 255),
            }
        ],
    ),
    "after a resize and a flip": (
        [v1.Resize(40), v1.RandomHorizontalFlip(), v1.RandomCrop(32, 4, padding_mode="edge")],
        [
            {"name": "Resize", "size": 40, "interpolation": "bilinear"},
            {"name": "RandomHorizontalFlip", "p": 0.5},
            {"name": "Pad", "padding": 4, "padding_mode": "edge"},
        ],
    ),
    "Pad, then another crop": (
        [v1.Pad([3], (9, 8, 7)), v1.RandomResizedCrop(32)],
        [{"name": "Pad", "padding": 3, "padding_mode": "constant", "fill": (9, 8, 7)}],
    ),
    "a warp with options": (
        [v1.RandomAffine(5, center=(3, 4), fill=(1, 2, 3)), v1.RandomResizedCrop(32)],
        [
            {
                "name": "RandomAffine",
                "degrees": (-5.0, 5.0),
                "fill": (1, 2, 3),
                "center": (3.0, 4.0),
                "interpolation": "nearest",
            },
        ],
    ),
}


@pytest.mark.parametrize("name", PADDED)
def test_paddings_are_steps_before_the_crop(name):
    steps, before = PADDED[name]
    reading = read(v1.Compose([*steps, v1.PILToTensor()]))
    assert reading.before == before and reading.resize is None
    transform = reading.built()
    assert [step.name for step in transform.before] == [each["name"] for each in before]
    # what is padded already is not padded by the crop too
    assert not getattr(transform, "padding", 0) and not getattr(transform, "pad_if_needed", False)


@pytest.mark.parametrize(
    "steps",
    [
        [v1.Pad((3, 9), (200, 3, 90)), v1.CenterCrop(70)],
        [v1.Resize((30, 40)), v1.Pad((3, 2, 1, 0), padding_mode="reflect")],
        [v1.Resize(20), v1.Pad(25, padding_mode="symmetric"), v1.CenterCrop((66, 60))],
        [v1.Resize(30), v1.CenterCrop((41, 70))],
        # the crop has one place only
        [v1.Resize((40, 48)), v1.RandomCrop((48, 56), 4, padding_mode="reflect")],
        [v2.Resize((40, 48)), v2.RandomCrop((40, 50), (1, 0), fill=(9, 8, 7))],
        # gray, first
        [v1.Grayscale(), v1.Resize(48), v1.CenterCrop(40)],
        [v1.Grayscale(1), v1.Pad(6, fill=200), v1.Resize(60), v1.Resize((48, 40))],
    ],
    ids=str,
)
def test_without_a_draw_all_pixels_are_equal(steps, photographs):
    some, live = photographs.subset(np.arange(4)), v1.Compose([*steps, v1.PILToTensor()])
    transform = dp.transform_from_torch(live)
    assert torch.equal(images_of(some, transform), live_images(some, live))


@pytest.mark.parametrize(
    "steps",
    [
        [v1.Resize(48), v1.CenterCrop(40), v1.Grayscale(1), v1.PILToTensor()],
        [v2.ToImage(), v2.Grayscale(1), v2.Resize(48), v2.CenterCrop(40)],
    ],
    ids=str,
)
def test_gray_after_other_steps_differs_by_rounding(steps, photographs):
    some, live = photographs.subset(np.arange(4)), v2.Compose(steps)
    apart = images_of(some, dp.transform_from_torch(live)).int() - live_images(some, live).int()
    assert apart.abs().max() <= 1 and apart.abs().float().mean() <= 0.7


def gray(*steps):
    return v1.Compose([*steps, v1.ToTensor(), v1.Normalize(*HALF)])


def test_training_transforms_of_gray_images():
    jitter = v1.ColorJitter(0.4, 0.3, 0.2, 0.1)
    steps = [v1.Grayscale(), v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), jitter]
    transform = dp.transform_from_torch(
        gray(*steps, v1.RandomGrayscale(0.2), v1.TrivialAugmentWide())
    )
    assert type(transform) is dp.TrainTransform and transform.channels == 1
    assert (transform.mean, transform.std) == HALF
    jitter, trivial = transform.augment
    assert (jitter.brightness, jitter.contrast) == (0.4, 0.3)
    assert not jitter.colors and trivial.name == "TrivialAugmentWide"


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            [v1.CenterCrop(32), v1.ColorJitter(0.4), v1.Grayscale()],
            r"Grayscale\(1\) .* steps that change colours come before it, .* make it the first",
        ),
        (
            [v1.RandomRotation(9, fill=(9, 1, 1)), v1.CenterCrop(32), v1.Grayscale()],
            r"Grayscale\(1\) .* steps that change colours come before it",
        ),
        (
            [v1.Grayscale(1), v1.CenterCrop(32), v1.Grayscale(3)],
            r"Grayscale\(3\) .* images of one channel reach it",
        ),
        ([v1.Pad(-3), v1.CenterCrop(32)], "Pad .*: padding=-3"),
        (
            [v1.RandomCrop(32, 4, fill=0.5, padding_mode="constant")],
            "RandomCrop cannot be carried over: fill=",
        ),
        ([v1.RandomCrop(90, 1, True, padding_mode="edge")], "RandomCrop .*: padding_mode=edge"),
        ([v1.Resize(50), v1.TenCrop(32)], r"TenCrop.* use dp.TenCropTransform"),
    ],
)
def test_what_is_not_the_same_is_refused(steps, message):
    with pytest.raises(NotConvertibleError, match=message):
        dp.transform_from_torch(gray(*steps))
