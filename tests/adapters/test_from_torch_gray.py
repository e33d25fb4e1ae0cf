"""Grayscale(1) becomes channels=1: the same pixels, or a refusal where a plan has
another order.
"""

import numpy as np
import pytest
import torch
from later import later
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Dataset

import dali_pipes as dp
from dali_pipes.adapters.from_torch import trace
from dali_pipes.adapters.from_torch.conversion import Conversion
from dali_pipes.adapters.transforms.reading import NotConvertibleError
from dali_pipes.adapters.transforms.steps import read

datasets = later("torchvision.datasets")
v1, v2 = later("torchvision.transforms"), later("torchvision.transforms.v2")

HALF = ((0.5,), (0.25,))


@pytest.fixture(autouse=True)
def few_pictures(monkeypatch):
    monkeypatch.setattr(trace, "MADE_UP", trace.MADE_UP[:2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("gray")
    rng = np.random.default_rng(0)
    for number in range(12):
        (root / str(number % 3)).mkdir(exist_ok=True)
        pixels = rng.integers(0, 256, (9, 8 + number, 3), np.uint8)
        picture = Image.fromarray(pixels).resize((120, 100), Image.Resampling.BICUBIC)
        picture = picture.convert("L") if number % 4 == 3 else picture
        picture.save(root / str(number % 3) / f"{number}.png")
    return root


def end(*steps):
    return v1.Compose([*steps, v1.ToTensor(), v1.Normalize(*HALF)])


def invert(image):
    return ImageOps.invert(image)


EQUAL = {
    "first": lambda: end(v1.Grayscale(), v1.Resize(48), v1.CenterCrop(40)),
    "first, squashed": lambda: end(v1.Grayscale(1), v1.Resize((48, 40))),
    "first, then the whole image": lambda: end(
        v1.Grayscale(1), v1.Pad(6, fill=200), v1.Resize(60), v1.Resize((48, 40))
    ),
    "as they are": lambda: end(v1.Grayscale(1), v1.Resize((48, 40)), v1.Lambda(invert)),
}
ROUNDED = {
    "after the crop": lambda: end(v1.Resize(48), v1.CenterCrop(40), v1.Grayscale(1)),
    "of tensors": lambda: v2.Compose(
        [
            *(v2.ToImage(), v2.Grayscale(1), v2.Resize(48), v2.CenterCrop(40)),
            v2.ToDtype(torch.float32, True),
        ]
    ),
    "of floats": lambda: v2.Compose(
        [v2.Resize((48, 40)), v2.ToImage(), v2.ToDtype(torch.float32, True), v2.Grayscale(1)]
    ),
}


@pytest.mark.few(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", EQUAL | ROUNDED)
def test_batches_are_those_of_the_old_loader(folder, name):
    transform = (EQUAL | ROUNDED)[name]()
    old = DataLoader(datasets.ImageFolder(folder, transform), batch_size=4)
    with dp.from_torch(old, dp.TorchConfig(num_workers=0), device="cpu") as loader:
        assert "channels=1" in loader.explain()
        for (ours, labels), (theirs, theirs_labels) in zip(loader, old, strict=True):
            assert ours.shape == theirs.shape and torch.equal(labels, theirs_labels)
            apart = (ours - theirs).abs() * 255 * (0.25 if name != "of floats" else 1)
            # a step at most; a gray that is cut off and not rounded is half a step darker
            assert apart.max() <= (1e-3 if name in EQUAL else 2.01)
            assert apart.mean() <= (1e-4 if name in EQUAL else 0.6)


# convert("L") in code of the user's own, before the transform


class Gray(Dataset):
    """Files as `make` makes gray images of them."""

    def __init__(self, files, transform, make=lambda image: image.convert("L"), end=lambda x: x):
        self.files, self.transform, self.make, self.end = files, transform, make, end

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        with Image.open(self.files[index]) as image:
            return self.end(self.transform(self.make(image))), index


def paths(folder, kinds):
    """The folder's files in colour, or also the gray ones, or these alone."""
    files = sorted(map(str, folder.rglob("*.png")))
    wanted = {"colour": ("RGB",), "gray": ("L",), "both": ("L", "RGB")}[kinds]
    return [file for file in files if mode_of(file) in wanted]


def mode_of(file):
    with Image.open(file) as image:
        return image.mode


EVAL = end(v1.Resize(48), v1.CenterCrop(40))


@pytest.mark.few(3)
@pytest.mark.slow
@pytest.mark.parametrize("kinds", ["colour", "gray", "both"])
@pytest.mark.parametrize(
    "make",
    [
        lambda image: image.convert("L"),
        lambda image: image.convert("RGB").convert("L"),
        lambda image: image if image.mode == "L" else image.convert("L"),
    ],
    ids=["to L", "to RGB and L", "if it is none"],
)
def test_files_that_the_data_set_makes_gray(folder, kinds, make):
    old = DataLoader(Gray(paths(folder, kinds), EVAL, make), batch_size=3)
    with dp.from_torch(old, dp.TorchConfig(num_workers=0), device="cpu") as loader:
        assert 'convert("L")' in loader.explain()
        for (ours, labels), (theirs, theirs_labels) in zip(loader, old, strict=True):
            assert ours.shape == theirs.shape and torch.equal(labels, theirs_labels)
            assert (ours - theirs).abs().max() * 255 * 0.25 <= 1e-3


def test_training_transforms_of_gray_files(folder):
    train = end(v1.RandomResizedCrop(32), v1.RandomHorizontalFlip())
    loader = DataLoader(Gray(paths(folder, "both"), train), 3, shuffle=True)
    transform = Conversion.of(loader).transform
    assert type(transform) is dp.TrainTransform and transform.channels == 1


def spread(image):
    return torch.cat([image] * 3)


@pytest.mark.few
@pytest.mark.parametrize(
    "dataset",
    [
        lambda files: Gray(files, EVAL, lambda image: image.convert("L").convert("RGB")),
        lambda files: Gray(files, EVAL, lambda image: image.convert("RGB").split()[1]),
        lambda files: Gray(files, EVAL, lambda image: image.convert("L").point(lambda x: x // 2)),
        lambda files: Gray(files, EVAL, lambda image: image.convert("L").resize((50, 50))),
        lambda files: Gray(
            files, EVAL, lambda image: image.convert("L", matrix=(0.3, 0.6, 0.1, 0))
        ),
        lambda files: Gray(files, EVAL, end=spread),
        lambda files: Gray(files, EVAL, end=lambda image: image.repeat(3, 1, 1)),
        lambda files: Gray(files, EVAL, end=lambda image: image.expand(3, -1, -1)),
        lambda files: Gray(files, end(v1.Grayscale(), v1.Resize((48, 40))), load, spread),
        lambda files: Gray(
            files, v1.Resize((48, 40)), end=lambda image: EVAL(image.convert("RGB"))
        ),
    ],
    ids=[
        *("to RGB", "green", "points", "resized", "weights"),
        *("cat", "repeat", "expand", "Grayscale and cat", "to RGB between steps"),
    ],
)
def test_other_grays_are_refused(folder, dataset):
    with pytest.raises(NotConvertibleError):
        Conversion.of(DataLoader(dataset(paths(folder, "colour")), 3))


def load(image):
    return image.convert("RGB")


def test_gray_only_for_some_samples_is_refused(folder):
    rare = Gray(paths(folder, "colour") * 10, EVAL)

    def make(image):
        return image.convert("RGB" if image.filename.endswith("10.png") else "L")

    rare.make = make
    with pytest.raises(NotConvertibleError):
        Conversion.of(DataLoader(rare, 3))


def built(*steps):
    return read(end(*steps)).built(lambda: None)


def test_training_transforms():
    jitter = v1.ColorJitter(0.4, 0.3, 0.2, 0.1)
    transform = built(
        v1.Grayscale(), v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), jitter,
        v1.RandomGrayscale(0.2), v1.TrivialAugmentWide(),
    )  # fmt: skip
    assert type(transform) is dp.TrainTransform and transform.channels == 1
    assert (transform.mean, transform.std) == HALF
    jitter, trivial = transform.augment
    assert (jitter.brightness, jitter.contrast) == (0.4, 0.3)
    assert not jitter.colors
    assert trivial.name == "TrivialAugmentWide"


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            lambda: end(v1.CenterCrop(32), v1.ColorJitter(0.4), v1.Grayscale()),
            r"Grayscale\(1\) .* steps that change colours come before it, .* make it the first",
        ),
        (
            lambda: end(v1.RandomRotation(9, fill=(9, 1, 1)), v1.CenterCrop(32), v1.Grayscale()),
            r"Grayscale\(1\) .* steps that change colours come before it",
        ),
        (
            lambda: end(v1.Grayscale(1), v1.CenterCrop(32), v1.Grayscale(3)),
            r"Grayscale\(3\) .* images of one channel reach it",
        ),
        (
            lambda: v1.Compose(
                [v1.Grayscale(1), v1.CenterCrop(32), v1.ToTensor(), v1.Normalize(*[(0.5,) * 3] * 2)]
            ),
            "Normalize .* mean has 3 numbers; give one, for gray",
        ),
    ],
)
def test_what_is_refused(steps, message):
    with pytest.raises(NotConvertibleError, match=message):
        read(steps()).built(lambda: None)
