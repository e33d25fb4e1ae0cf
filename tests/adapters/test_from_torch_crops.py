"""from_torch with what torchvision pads, and with its five and ten crops of an image."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

import dali_pipes as dp
from dali_pipes.adapters.transforms.reading import NotConvertibleError
from dali_pipes.adapters.transforms.steps import read

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
TORCH = dp.TorchConfig(num_workers=0)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, noise = tmp_path_factory.mktemp("pictures") / "a", np.random.default_rng(0)
    folder.mkdir()
    for number, (height, width) in enumerate([(60, 64), (64, 90), (75, 60), (61, 62)]):
        small = Image.fromarray(noise.integers(0, 256, (9, 12, 3), np.uint8))
        small.resize((width, height), Image.Resampling.BICUBIC).save(folder / f"{number}.png")
    return sorted(map(str, folder.iterdir()))


class Pictures(Dataset):
    def __init__(self, files, transform):
        self.files, self.transform = files, transform

    def __len__(self):
        return len(self.files)

    def __getitem__(self, at):
        return self.transform(Image.open(self.files[at]).convert("RGB")), at % 2


# the options of each step of `before`, and whether a resize of the plan's own is left
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
    "if needed": (
        [v1.RandomCrop((90, 80), (1, 0), True, padding_mode="symmetric")],
        [
            {"name": "Pad", "padding": (1, 0), "padding_mode": "symmetric"},
            {"name": "Pad", "min_size": (1, 80), "padding_mode": "symmetric"},
            {"name": "Pad", "min_size": (90, 1), "padding_mode": "symmetric"},
        ],
    ),
    "if needed, v2": (
        [v2.RandomCrop((90, 80), pad_if_needed=True, padding_mode="edge")],
        [{"name": "Pad", "padding": 0, "min_size": (90, 80), "padding_mode": "edge"}],
    ),
    "Pad, then another crop": (
        [v1.Pad([3], (9, 8, 7)), v1.RandomResizedCrop(32)],
        [{"name": "Pad", "padding": 3, "padding_mode": "constant", "fill": (9, 8, 7)}],
    ),
    "a warp with options": (
        [
            v1.RandomRotation(20, expand=True, fill=9),
            v1.RandomAffine(5, center=(3, 4), fill=(1, 2, 3)),
            v1.RandomResizedCrop(32),
        ],
        [
            {
                "name": "RandomRotation",
                "degrees": (-20.0, 20.0),
                "expand": True,
                "fill": (9, 9, 9),
                "interpolation": "nearest",
            },
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
    transform = reading.built(lambda: None)
    assert [step.name for step in transform.before] == [each["name"] for each in before]
    # what is padded already is not padded by the crop too
    assert not getattr(transform, "padding", 0) and not getattr(transform, "pad_if_needed", False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["after a resize and a flip", "if needed", "a warp with options"])
def test_draws_are_those_of_the_old_loader(name, files):
    steps, _ = PADDED[name]
    data = Pictures(files, v1.Compose([*steps, v1.ToTensor()]))
    loader = DataLoader(data, 2, shuffle=True, drop_last=True)
    with dp.from_torch(loader, TORCH, device="cpu") as ours:
        assert "the largest distance of distributions" in ours.explain()
        images, labels = next(iter(ours))
        assert images.shape == next(iter(loader))[0].shape and labels.shape == (2,)


# without a draw all pixels must be equal
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
    ],
    ids=str,
)
def test_pixels_are_those_of_the_old_loader(steps, files):
    live = v1.Compose([*steps, v1.PILToTensor()])
    transform = dp.transform_from_torch(live)
    manifest = dp.Manifest.scan(Path(files[0]).parents[1])
    with dp.build_loader(
        manifest, TORCH, transform=transform, batch_size=4, shuffle=False, device="cpu"
    ) as loader:
        images = next(iter(loader)).images
    for image, file in zip(images, files, strict=True):
        assert torch.equal(image, live(Image.open(file).convert("RGB")))


def stacked(*each):
    change = v1.Compose(each)
    return v1.Lambda(lambda crops: torch.stack([change(crop) for crop in crops]))


CROPS = {
    "two stacks": [
        v1.Resize(50),
        v1.TenCrop(41),
        stacked(v1.ToTensor()),
        stacked(v1.Normalize(MEAN, STD)),
    ],
    "five, one stack": [v1.FiveCrop((30, 41)), stacked(v1.ToTensor(), v1.Normalize(MEAN, STD))],
    "normalized as a stack": [
        v1.Resize(64),
        v1.FiveCrop(33),
        stacked(v1.ToTensor()),
        v1.Normalize(MEAN, STD),
    ],
    "upside down, bytes": [
        v1.Resize((50, 47)),
        v1.TenCrop(32, vertical_flip=True),
        stacked(v1.PILToTensor()),
    ],
    "v2": [
        v2.Resize(50),
        v2.TenCrop(32),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
        torch.stack,
    ],
}


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", CROPS)
def test_crops_are_those_of_the_old_loader(name, files):
    *steps, last = CROPS[name]
    whole = v1.Compose([*steps, last])
    if name == "v2":
        inner = v2.Compose(steps)
        whole = lambda picture: torch.stack(list(inner(picture)))  # noqa: E731
    old = DataLoader(Pictures(files, whole), 3)
    with dp.from_torch(old, TORCH, device="cpu") as ours:
        assert "TenCropTransform" in ours.explain() and isinstance(
            ours.loader.plan.transform, dp.TenCropTransform
        )
        for (images, labels), (others, theirs) in zip(ours, old, strict=True):
            assert images.shape == others.shape and images.dtype == others.dtype
            assert (images.float() - others.float()).abs().max() <= 1e-6
            assert torch.equal(labels, theirs)


def pick(*places):
    return v1.Lambda(lambda crops: torch.stack([v1.ToTensor()(crops[at]) for at in places]))


REFUSED = {
    "in another order": (
        [v1.TenCrop(32), pick(1, 0, 2, 3, 4)],
        "which are not all of its crops in their order",
    ),
    "some of them": ([v1.FiveCrop(32), pick(0, 1)], "which are not all of its crops"),
    "flipped one by one": (
        [v1.TenCrop(32), stacked(v1.RandomHorizontalFlip(), v1.ToTensor())],
        "it is changed in another way than by Resize, ToTensor and Normalize",
    ),
    "of a random crop": (
        [v1.RandomCrop(50), v1.FiveCrop(32), stacked(v1.ToTensor())],
        "two pictures of a sample come out of one call of RandomCrop",
    ),
    "a fraction as a color": (
        [v1.Pad(3, 0.5), v1.CenterCrop(32), v1.ToTensor()],
        "fill=0.5; use one color for all images, of whole numbers from 0 to 255",
    ),
    "a color for tensors only": (
        [v2.RandomCrop(32, 4, fill={tv_tensors.Image: 9}), v2.PILToTensor()],
        "RandomCrop cannot be carried over: fill=",
    ),
    "negative": ([v1.Pad(-3), v1.CenterCrop(32), v1.ToTensor()], "Pad .*: padding=-3"),
    "after ToTensor": (
        [v1.ToTensor(), v1.RandomCrop(32, 4, padding_mode="edge")],
        "RandomCrop cannot be carried over: it comes after ToTensor",
    ),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_the_same_is_refused(name, files):
    steps, problem = REFUSED[name]
    with pytest.raises(NotConvertibleError, match=problem):
        dp.from_torch(DataLoader(Pictures(files, v1.Compose(steps)), 2), TORCH, device="cpu")


def test_a_transform_alone_does_not_show_what_becomes_of_the_crops():
    with pytest.raises(NotConvertibleError, match=r"TenCrop .* use dp.TenCropTransform, or from_"):
        dp.transform_from_torch(v1.Compose([v1.Resize(50), v1.TenCrop(32), stacked(v1.ToTensor())]))
