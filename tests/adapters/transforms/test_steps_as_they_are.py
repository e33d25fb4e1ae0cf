"""Steps that a plan doesn't have run as they are: their values are those of the library, and what a
plan can't repeat is refused.
"""

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from later import later
from PIL import Image, ImageFilter, ImageOps

import dali_pipes as dp

A = later("albumentations")
transforms, v2 = later("torchvision.transforms"), later("torchvision.transforms.v2")
SIZE = 48
TORCH, DALI = dp.TorchConfig(num_workers=0), dp.DaliConfig(device="cpu", num_threads=1)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    (root / "a").mkdir()
    rng = np.random.default_rng(0)
    for number in range(12):
        pixels = rng.integers(0, 256, (70, 60 + number, 3), np.uint8)
        Image.fromarray(pixels).resize((120, 100)).save(root / "a" / f"{number:02}.png")
    return dp.Manifest.scan(root, progress=False)


def epochs_of(images, live, config, count=1):
    """The images of so many epochs of the transform that is read, each as one batch in order."""
    with dp.build_loader(
        images,
        config,
        transform=dp.transform_from_torch(live),
        batch_size=len(images),
        shuffle=False,
        last_batch="partial",
        device="cpu",
    ) as loader:
        return [next(iter(loader)).images for _ in range(count)]


def live_images(images, live):
    pictures = [Image.open(Path(images.path(at))).convert("RGB") for at in range(len(images))]
    if "albumentations" in type(live).__module__:
        return torch.stack([live(image=np.array(each))["image"] for each in pictures])
    return torch.stack(list(map(live, pictures)))


class Sharpen:
    """A step of PIL images."""

    def __call__(self, image):
        return ImageOps.autocontrast(image.filter(ImageFilter.SHARPEN), cutoff=2)


class Darken:
    """A step of floats, from 0 to 1 or normalized."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, image):
        return image * self.factor - 0.1


class AddNoise:
    """Of PyTorch's random numbers."""

    def __call__(self, image):
        return image + 0.2 * torch.randn(image.shape)


@dataclass
class Power:
    """A dataclass, which cannot be hashed."""

    factor: float

    def __call__(self, image):
        return image**self.factor


class ByRandom:
    def __init__(self, numbers=None):
        self.numbers = numbers

    def __call__(self, image):
        return image.flip(2) if (self.numbers or random).random() < 0.5 else image


class GaussianBlur:
    """That of MoCo v2."""

    def __init__(self, sigma):
        self.sigma = sigma

    def __call__(self, image):
        sigma = random.uniform(self.sigma[0], self.sigma[1])
        return image.filter(ImageFilter.GaussianBlur(radius=sigma))


class Turn:
    def __call__(self, image):
        return image.transpose(Image.Transpose.ROTATE_90)


class Shrink:
    """Changes the shape of some images only."""

    def __call__(self, image):
        return image.resize((50, 40)) if image.size == (120, 100) else image


class Counted:
    calls = 0

    def __init__(self):
        self.calls = 0

    def __call__(self, image):
        self.calls += 1
        return image


class Halve:
    def __call__(self, image):
        return image[:, ::2]


def compose(*steps):
    head = transforms.Resize((64, 64)), transforms.CenterCrop(SIZE)
    return transforms.Compose([*head, *steps])


def normalize():
    return transforms.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.25))


FIXED = {
    "PIL": lambda: compose(Sharpen(), transforms.ToTensor(), normalize()),
    "bytes": lambda: compose(
        transforms.PILToTensor(),
        transforms.Lambda(lambda image: 255 - image),
        transforms.ConvertImageDtype(torch.float32),
    ),
    "floats": lambda: compose(transforms.ToTensor(), Darken(0.7), normalize()),
    "a dataclass": lambda: compose(transforms.ToTensor(), Power(0.7), Power(0.9)),
    "normalized": lambda: compose(transforms.ToTensor(), normalize(), Darken(1.5), Darken(0.5)),
    "normalized twice": lambda: compose(transforms.ToTensor(), normalize(), normalize()),
    "PIL and floats": lambda: compose(Sharpen(), transforms.ToTensor(), Darken(0.5), normalize()),
    "a library's, of one value": lambda: compose(
        transforms.RandomPerspective(p=0.0), transforms.ToTensor()
    ),
    "an option that a plan has not": lambda: compose(
        transforms.ColorJitter(brightness=(1.4, 1.4)), transforms.ToTensor(), normalize()
    ),
    "a policy after it": lambda: compose(
        Sharpen(), transforms.RandomInvert(p=1.0), transforms.ToTensor(), normalize()
    ),
    "a flip after it": lambda: compose(
        Sharpen(), transforms.RandomHorizontalFlip(p=1.0), transforms.ToTensor()
    ),
    "before the crop": lambda: transforms.Compose(
        [Sharpen(), transforms.Resize((64, 64)), transforms.CenterCrop(SIZE), transforms.ToTensor()]
    ),
    "between resize and crop": lambda: transforms.Compose(
        [transforms.Resize(64), Sharpen(), transforms.CenterCrop(SIZE), transforms.ToTensor()]
    ),
    "colours and a flip before the crop": lambda: transforms.Compose(
        [
            transforms.RandomHorizontalFlip(1.0),
            transforms.ColorJitter(brightness=(1.4, 1.4)),
            transforms.ColorJitter(contrast=(0.5, 0.5)),
            transforms.RandomGrayscale(1.0),
            transforms.Resize(64),
            transforms.CenterCrop(SIZE),
            transforms.RandomInvert(1.0),
            transforms.ToTensor(),
        ]
    ),
    "bytes before the crop": lambda: transforms.Compose(
        [
            transforms.PILToTensor(),
            transforms.Lambda(lambda image: 255 - image),
            transforms.Resize((SIZE, SIZE)),
            transforms.ConvertImageDtype(torch.float32),
        ]
    ),
    "two flips": lambda: compose(
        transforms.RandomHorizontalFlip(1.0),
        transforms.RandomHorizontalFlip(1.0),
        transforms.ToTensor(),
    ),
}


@pytest.mark.few(8)
@pytest.mark.parametrize("case", FIXED)
@pytest.mark.parametrize("config", [TORCH, DALI], ids=["torch", "dali_cpu"])
def test_steps_without_random_numbers_give_the_library_s_values(images, case, config):
    live = FIXED[case]()
    theirs, (ours,) = live_images(images, live), epochs_of(images, live, config)
    assert theirs.dtype == ours.dtype
    # both resize as Pillow does within one step (docs/pixels.md), which steps make larger
    largest = 0.15 if theirs.is_floating_point() else 6
    torch.testing.assert_close(ours, theirs, atol=largest, rtol=0)
    mean = (ours.float() - theirs.float()).abs().mean()
    assert mean < (0.01 if ours.is_floating_point() else 0.1)


def test_albumentations_steps_run_as_they_are(images):
    sharpen = A.Sharpen(alpha=(0.3, 0.3), lightness=(1.0, 1.0), p=1.0)
    dropout = A.CoarseDropout((2, 2), (0.2, 0.2), (0.2, 0.2), fill=0, p=0.0)
    live = A.Compose([A.Resize(SIZE, SIZE), sharpen, A.Normalize(), dropout, A.ToTensorV2()])
    (ours,) = epochs_of(images, live, TORCH)
    assert (ours - live_images(images, live)).abs().mean() < 0.02


def test_a_compose_of_albumentations_that_is_applied_at_random(images):
    """All of its steps, or none of them."""
    darker = A.RandomBrightnessContrast((-0.4, -0.4), (0.0, 0.0), p=1.0)
    both = A.Compose([darker, A.ToGray(p=1.0)], p=0.4)
    many = images.subset(np.tile(np.arange(12), 20))
    for steps in ([A.Resize(SIZE, SIZE), both], [both, A.Resize(SIZE, SIZE)]):
        (found,) = epochs_of(many, A.Compose([*steps, A.ToTensorV2()]), TORCH)
        found = found.float()
        is_gray = (found[:, 0] - found[:, 2]).abs().mean((1, 2)) < 1
        assert 0.25 < is_gray.float().mean() < 0.55
        assert found[is_gray].mean() < 0.8 * found[~is_gray].mean()


def test_random_steps_have_the_library_s_distribution_and_repeat(images):
    steps = [transforms.ToTensor(), normalize()]
    quiet = live_images(images, compose(*steps))
    live = compose(*steps, AddNoise())
    (first, second), again = (epochs_of(images, live, DALI, 2) for _ in range(2))
    assert torch.equal(first, again[0]) and torch.equal(second, again[1])
    for found in (first, second):
        noise = found - quiet
        assert abs(noise.std() - 0.2) < 0.005 and abs(noise.mean()) < 0.005
    pair = torch.stack([(first - quiet).flatten(), (second - quiet).flatten()])
    assert abs(torch.corrcoef(pair)[0, 1]) < 0.02


@pytest.mark.slow
def test_steps_that_draw_from_random_have_the_library_s_distribution(images):
    """MoCo v2's blur, applied with a probability, and a flip by a `random.random()`."""
    blur = transforms.RandomApply([GaussianBlur([2.0, 3.0])], p=0.4)
    live = compose(blur, transforms.ToTensor(), ByRandom())
    many = images.subset(np.tile(np.arange(12), 25))
    plain, shares = live_images(images, compose(transforms.ToTensor())), []
    for found in epochs_of(many, live, DALI, 2):
        both = torch.stack([plain, plain.flip(3)]).repeat(1, 25, 1, 1, 1)
        distances = (found - both).abs().mean((2, 3, 4))
        flipped, nearest = distances.argmin(0), distances.amin(0)
        shares.append([flipped.float().mean().item(), (nearest > 0.02).float().mean().item()])
    assert np.allclose(shares, [0.5, 0.4], atol=0.12) and shares[0] != shares[1]


REFUSED = {
    "a generator of its own": (
        lambda: compose(transforms.ToTensor(), ByRandom(random.Random(0))),
        "generator of its own",
    ),
    "a count of its calls": (
        lambda: compose(Counted(), transforms.ToTensor()),
        "a call changes its attributes",
    ),
    "a shape": (lambda: compose(transforms.ToTensor(), Halve()), "returned a tensor of"),
    "a shape before the crop": (
        lambda: transforms.Compose(
            [Turn(), transforms.RandomResizedCrop(32), transforms.ToTensor()]
        ),
        "returned a tensor of (3, 128, 96) uint8 on cpu for a tensor of (3, 96, 128)",
    ),
    "floats before the crop": (
        lambda: transforms.Compose(
            [transforms.ToTensor(), Darken(0.5), transforms.Resize((32, 32))]
        ),
        "it takes floats before images have one size",
    ),
    "no crop": (
        lambda: transforms.Compose([Sharpen(), transforms.ToTensor()]),
        "it comes before images have one size",
    ),
    "after erasing": (
        lambda: compose(transforms.ToTensor(), transforms.RandomErasing(), Darken(0.5)),
        "it comes after RandomErasing",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_plan_can_repeat_is_refused(case):
    make, reason = REFUSED[case]
    with pytest.raises(dp.NotConvertibleError, match="cannot be carried over") as raised:
        dp.transform_from_torch(make())
    assert reason in " ".join([str(raised.value), *(step.by for step in raised.value.steps)])


def test_a_step_that_changes_the_shape_of_some_images_is_named(images):
    live = transforms.Compose([Shrink(), transforms.Resize((32, 32)), transforms.ToTensor()])
    with pytest.raises(dp.ConfigError, match=r"Shrink .*returned an image of 50 × 40 .* 120 × 100"):
        epochs_of(images, live, TORCH)


def test_dali_names_what_its_threads_would_share(images):
    """A step before the crop that draws from `random`."""
    steps = [GaussianBlur([0.1, 2.0]), transforms.RandomResizedCrop(32), transforms.ToTensor()]
    live = transforms.Compose(steps)
    with pytest.raises(dp.ConfigError, match=r"runs before in threads, and the function Gaussian"):
        epochs_of(images, live, DALI)
    assert len(epochs_of(images, live, TORCH)[0]) == 12


def test_a_program_state_stays_as_it_was():
    before = random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()
    dp.transform_from_torch(compose(transforms.ToTensor(), AddNoise()))
    now = random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()
    assert before == now
