"""Steps that a plan doesn't have run as they are: their values are those of the old loader, and
what a plan can't repeat is refused.
"""

import random
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pytest
import torch
from later import later
from PIL import Image, ImageFilter, ImageOps
from torch.utils.data import DataLoader, Dataset

import dali_pipes as dp
from dali_pipes.adapters.from_torch import trace

A = later("albumentations")
transforms, v2 = later("torchvision.transforms"), later("torchvision.transforms.v2")
SIZE = 48


@pytest.fixture(autouse=True)
def few_pictures(monkeypatch):
    monkeypatch.setattr(trace, "MADE_UP", trace.MADE_UP[:2])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for number in range(12):
        pixels = rng.integers(0, 256, (70, 60 + number, 3), np.uint8)
        Image.fromarray(pixels).resize((120, 100)).save(root / f"{number}.png")
    return [str(root / f"{number}.png") for number in range(12)]


class Pictures(Dataset):
    def __init__(self, files, transform):
        self.files, self.transform = files, transform

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return self.transform(Image.open(self.files[index]).convert("RGB")), index % 3


class Arrays(Pictures):
    def __getitem__(self, index):
        pixels = np.array(Image.open(self.files[index]).convert("RGB"))
        return self.transform(image=pixels)["image"], index % 3


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


class Kind(Power, Enum):
    HALF = 0.5


class Picky:
    """A step with an option that cannot be hashed; it cannot be compared."""

    __hash__ = None

    def __init__(self):
        self.kind = Kind.HALF

    def __eq__(self, other):
        raise ValueError("compared")

    def __call__(self, image):
        return image.abs() ** self.kind.factor


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
    "what cannot be compared": lambda: compose(transforms.ToTensor(), Picky(), normalize()),
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


def old_and_new(dataset, config):
    old = DataLoader(dataset, batch_size=4)
    with dp.from_torch(old, config, device="cpu") as new:
        yield from zip(old, new, strict=True)


@pytest.mark.few(8)
@pytest.mark.slow
@pytest.mark.parametrize("case", FIXED)
@pytest.mark.parametrize("config", [dp.TorchConfig(num_workers=0), dp.DaliConfig(device="cpu")])
def test_steps_without_random_numbers_give_the_old_values(files, case, config):
    for (theirs, labels), (ours, our_labels) in old_and_new(Pictures(files, FIXED[case]()), config):
        assert torch.equal(labels, our_labels) and theirs.dtype == ours.dtype
        # both resize as Pillow does within one step (docs/pixels.md), which steps make larger
        torch.testing.assert_close(
            ours, theirs, atol=0.15 if theirs.is_floating_point() else 6, rtol=0
        )
        assert (ours.float() - theirs.float()).abs().mean() < (
            0.01 if ours.is_floating_point() else 0.1
        )


@pytest.mark.slow
def test_albumentations_steps_run_as_they_are(files):
    pipeline = A.Compose(
        [
            A.Resize(SIZE, SIZE),
            A.Sharpen(alpha=(0.3, 0.3), lightness=(1.0, 1.0), p=1.0),
            A.Normalize(),
            A.CoarseDropout((2, 2), (0.2, 0.2), (0.2, 0.2), fill=0, p=0.0),
            A.Sharpen(alpha=(0.1, 0.1), lightness=(1.0, 1.0), p=0.0),
            A.ToTensorV2(),
        ]
    )
    for (theirs, _), (ours, _) in old_and_new(
        Arrays(files, pipeline), dp.TorchConfig(num_workers=0)
    ):
        assert (ours - theirs).abs().mean() < 0.02


@pytest.mark.slow
def test_a_compose_of_albumentations_that_is_applied_at_random(files):
    """All of its steps, or none of them."""
    darker = A.RandomBrightnessContrast((-0.4, -0.4), (0.0, 0.0), p=1.0)
    both = A.Compose([darker, A.ToGray(p=1.0)], p=0.4)
    for steps in ([A.Resize(SIZE, SIZE), both], [both, A.Resize(SIZE, SIZE)]):
        data = Arrays(files * 20, A.Compose([*steps, A.ToTensorV2()]))
        old = DataLoader(data, batch_size=len(data))
        with dp.from_torch(old, dp.TorchConfig(num_workers=0), device="cpu") as new:
            images = next(iter(new))[0].float()
        is_gray = (images[:, 0] - images[:, 2]).abs().mean((1, 2)) < 1
        assert 0.25 < is_gray.float().mean() < 0.55
        assert images[is_gray].mean() < 0.8 * images[~is_gray].mean()


@pytest.mark.release
@pytest.mark.slow
def test_albumentations_steps_before_the_crop_run_as_they_are(files):
    """Every resize is OpenCV's, so values are equal."""
    brighter = A.RandomBrightnessContrast((0.2, 0.2), (0.3, 0.3), p=1.0)
    for steps in (
        [brighter, A.Resize(SIZE, SIZE)],
        [A.HorizontalFlip(p=1.0), A.SmallestMaxSize(SIZE + 1), brighter, A.Resize(SIZE, SIZE)],
        [A.Resize(SIZE + 6, SIZE + 8), brighter, A.CenterCrop(SIZE, SIZE)],
    ):
        dataset = Arrays(files, A.Compose([*steps, A.ToTensorV2()]))
        for (theirs, _), (ours, _) in old_and_new(dataset, dp.TorchConfig(num_workers=0)):
            difference = (ours.float() - theirs.float()).abs()
            assert difference.max() <= 2 and (difference > 0).float().mean() < 0.01


@pytest.mark.release
@pytest.mark.slow
def test_colours_before_the_crop_have_the_old_distribution_and_repeat(files):
    steps = [transforms.ColorJitter(0.5), transforms.RandomResizedCrop(SIZE, (0.9, 1))]
    dataset = Pictures(files * 25, transforms.Compose([*steps, transforms.ToTensor()]))
    old = DataLoader(dataset, batch_size=300, shuffle=True)
    theirs = torch.stack([dataset[index][0].mean() for index in range(300)]).sort().values
    epochs = []
    for config in (dp.DaliConfig(device="cpu"), dp.TorchConfig(num_workers=0)):
        with dp.from_torch(old, config, device="cpu") as new:
            epochs.append(next(iter(new))[0])
    # each image has the draws of its own on both
    assert (epochs[0] - epochs[1]).abs().max() < 0.02
    ours = epochs[0].mean((1, 2, 3)).sort().values
    # Kolmogorov and Smirnov: 0.16 of 300 and 300 draws has a probability of 10⁻³
    shares = torch.searchsorted(theirs, ours) / 300
    assert (shares - torch.arange(1, 301) / 300).abs().max() < 0.17
    assert ours.max() / ours.min() > 2


@pytest.mark.release
@pytest.mark.slow
def test_albumentations_steps_after_normalize_get_floats(files):
    """Two holes, each of them a fifth of the height and of the width."""
    pipeline = A.Compose(
        [
            A.Resize(SIZE + 2, SIZE + 2),
            A.Normalize(),
            A.CoarseDropout((2, 2), (0.2, 0.2), (0.2, 0.2), fill=0, p=1.0),
            A.ToTensorV2(),
        ]
    )
    data = Arrays(files * 10, pipeline)
    old = torch.stack([data[index][0] for index in range(120)])
    with dp.from_torch(
        DataLoader(data, batch_size=120), dp.DaliConfig(device="cpu"), device="cpu"
    ) as new:
        ours = next(iter(new))[0]
    theirs, ours = ((images == 0).all(1).float() for images in (old, ours))
    assert theirs.amax((1, 2)).all() and ours.amax((1, 2)).all()
    assert abs(theirs.mean() - ours.mean()) < 0.004
    assert len({tuple(image.flatten().nonzero()[0].tolist()) for image in ours}) > 60


@pytest.mark.slow
def test_random_steps_have_the_old_distribution_and_repeat(files):
    steps = [transforms.ToTensor(), normalize(), AddNoise()]
    old = DataLoader(Pictures(files, compose(*steps)), batch_size=12)
    quiet = next(iter(DataLoader(Pictures(files, compose(*steps[:2])), batch_size=12)))[0]
    epochs = []
    for _ in range(2):
        with dp.from_torch(old, dp.DaliConfig(device="cpu"), device="cpu") as new:
            epochs.append([next(iter(new))[0] for _ in range(2)])
    (first, second), again = epochs
    assert torch.equal(first, again[0]) and torch.equal(second, again[1])
    for images in (first, second):
        noise = images - quiet
        assert abs(noise.std() - 0.2) < 0.005 and abs(noise.mean()) < 0.005
    assert (
        abs(
            torch.corrcoef(torch.stack([(first - quiet).flatten(), (second - quiet).flatten()]))[
                0, 1
            ]
        )
        < 0.02
    )


@pytest.mark.release
@pytest.mark.slow
def test_steps_that_draw_from_random_have_the_old_distribution(files):
    """MoCo v2's blur, applied with a probability, and a flip by a `random.random()`."""
    blur = transforms.RandomApply([GaussianBlur([2.0, 3.0])], p=0.4)
    old = DataLoader(
        Pictures(files * 25, compose(blur, transforms.ToTensor(), ByRandom())), batch_size=300
    )
    plain = next(iter(DataLoader(Pictures(files, compose(transforms.ToTensor())), batch_size=12)))[
        0
    ]
    shares = []
    with dp.from_torch(old, dp.DaliConfig(device="cpu"), device="cpu") as new:
        for images in (next(iter(new))[0], next(iter(new))[0]):
            both = torch.stack([plain, plain.flip(3)]).repeat(1, 25, 1, 1, 1)
            distances = (images - both).abs().mean((2, 3, 4))
            flipped, nearest = distances.argmin(0), distances.amin(0)
            shares.append([flipped.float().mean().item(), (nearest > 0.02).float().mean().item()])
    assert np.allclose(shares, [0.5, 0.4], atol=0.12) and shares[0] != shares[1]


@pytest.mark.slow
def test_albumentations_random_steps_have_the_old_distribution(files):
    pipeline = A.Compose(
        [
            A.Resize(SIZE, SIZE),
            A.InvertImg(p=0.3),
            A.Normalize((0, 0, 0), (1, 1, 1)),
            A.ToTensorV2(),
        ]
    )
    dataset = Arrays(files * 25, pipeline)
    plain = Arrays(files, A.Compose([pipeline[0], *pipeline[2:]]))
    with dp.from_torch(
        DataLoader(dataset, batch_size=300), dp.DaliConfig(device="cpu"), device="cpu"
    ) as new:
        images = next(iter(new))[0]
    means = torch.stack([plain[index][0].mean() for index in range(12)]).repeat(25)
    inverted = (images.mean((1, 2, 3)) - means).abs() > (images.mean((1, 2, 3)) - (1 - means)).abs()
    assert abs(inverted.float().mean() - 0.3) < 0.12


REFUSED = {
    "a generator of its own": (
        lambda: compose(transforms.ToTensor(), ByRandom(random.Random(0))),
        "generator of its own",
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


@pytest.mark.few(3)
@pytest.mark.parametrize("case", REFUSED)
def test_what_no_plan_can_repeat_is_refused(files, case):
    make, reason = REFUSED[case]
    old = DataLoader(Pictures(files, make()), batch_size=4)
    with pytest.raises(dp.NotConvertibleError, match="cannot be carried over") as raised:
        dp.from_torch(old, dp.TorchConfig(num_workers=0), device="cpu")
    assert reason in " ".join([str(raised.value), *(step.by for step in raised.value.steps)])


@pytest.mark.slow
def test_a_step_that_changes_the_shape_of_some_images_is_named(files):
    steps = [Shrink(), transforms.Resize((32, 32)), transforms.ToTensor()]
    old = DataLoader(Pictures(files, transforms.Compose(steps)), batch_size=4)
    with (
        dp.from_torch(old, dp.TorchConfig(num_workers=0), device="cpu", check=False) as new,
        pytest.raises(dp.ConfigError, match=r"Shrink .*returned an image of 50 × 40 .* 120 × 100"),
    ):
        list(new)


@pytest.mark.slow
def test_dali_names_what_its_threads_would_share(files):
    """A step before the crop that draws from `random`."""
    steps = [GaussianBlur([0.1, 2.0]), transforms.RandomResizedCrop(32), transforms.ToTensor()]
    old = DataLoader(Pictures(files, transforms.Compose(steps)), batch_size=4, shuffle=True)
    with pytest.raises(dp.ConfigError, match=r"runs before in threads, and the function Gaussian"):
        dp.from_torch(old, dp.DaliConfig(device="cpu"), device="cpu")
    with dp.from_torch(old, dp.TorchConfig(num_workers=0), device="cpu") as new:
        assert "before: Augment(GaussianBlur" in str(new.explain())
        assert len(next(iter(new))[0]) == 4


@pytest.mark.slow
def test_explain_says_what_runs_as_it_is(files):
    old = DataLoader(
        Pictures(files, compose(Sharpen(), transforms.ToTensor(), Darken(0.5))), batch_size=4
    )
    with dp.from_torch(old, dp.DaliConfig(device="cpu"), device="cpu") as new:
        text = str(new.explain())
    assert "Sharpen" in text and "image by image" in text


@pytest.mark.slow
def test_a_program_state_stays_as_it_was(files):
    before = random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()
    old = DataLoader(Pictures(files, compose(transforms.ToTensor(), AddNoise())), batch_size=4)
    dp.from_torch(old, dp.TorchConfig(num_workers=0), device="cpu").close()
    now = random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()
    assert before == now
