"""Pipelines of albumentations as transforms of ours: the same pixels, or a refusal by name."""

import albumentations as A
import cv2
import numpy as np
import pytest
import torch
from albumentations.pytorch import ToTensorV2
from PIL import Image

import dali_pipes as dp
from dali_pipes.adapters.transforms.readers.albumentations import alike, parts_of
from dali_pipes.adapters.transforms.reading import NotConvertibleError
from dali_pipes.adapters.transforms.steps import read
from dali_pipes.plan.steps.whole import WholeResize

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def words_of(*steps):
    return " ".join(step.by for step in read(A.Compose(steps)).steps)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([A.Resize(40, 48), A.Normalize(MEAN, STD)], "antialias=False as OpenCV resizes"),
        (
            [A.Compose([A.Resize(48, 49), A.CenterCrop(40, 48)]), A.ToFloat(255)],
            "antialias=False as OpenCV resizes",
        ),
        ([A.Resize(40, 48)], "antialias=False as OpenCV resizes"),
        (
            [A.LongestMaxSize(48), A.PadIfNeeded(48, 56, border_mode=cv2.BORDER_REFLECT_101)],
            "missing=halved",
        ),
        ([A.Resize(40, 48, interpolation=cv2.INTER_CUBIC)], "interpolation=bicubic"),
    ],
    ids=["normalized", "cropped", "bytes", "padded", "cubic"],
)
def test_an_evaluation_is_equal(photographs, steps, words):
    assert words in words_of(*steps)
    live, some = A.Compose([*steps, ToTensorV2()]), photographs.subset(np.arange(6))
    transform = dp.transform_from_torch(live)
    pictures = [np.array(Image.open(some.path(at)).convert("RGB")) for at in range(len(some))]
    theirs = torch.stack([live(image=picture)["image"] for picture in pictures])
    with dp.build_loader(
        some, dp.TorchConfig(num_workers=0), transform=transform, batch_size=6, shuffle=False
    ) as loader:
        ours = next(iter(loader)).images
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    step = 1 if theirs.float().max() > 10 else 1 / (255 * 0.2)
    assert (ours.float() - theirs.float()).abs().max() <= step


def test_smallest_max_size_gives_the_plan_equal_sizes():
    """It rounds the longer side, which torchvision cuts."""
    rng = np.random.default_rng(0)
    for size, (height, width) in zip(
        rng.integers(1, 40, 1000).tolist(), rng.integers(1, 60, (1000, 2)).tolist(), strict=True
    ):
        theirs = A.SmallestMaxSize(size)(image=np.zeros((height, width, 3), np.uint8))["image"]
        step = WholeResize(size=size, antialias=False, rounding="nearest")
        assert step.smallest(np.array([[height, width]])).tolist() == [[*theirs.shape[:2]]]


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (
            [A.SmallestMaxSize(50), A.RandomCrop(40, 48)],
            "before: Resize(size=50, antialias=False, rounding=nearest)",
        ),
        ([A.LongestMaxSize(48), A.HorizontalFlip(), A.PadIfNeeded(48, 48)], "side=longer"),
        ([A.PadIfNeeded(300, 300, fill=7), A.RandomCrop(200, 240)], "missing=halved"),
    ],
    ids=["smallest", "flipped", "padded"],
)
def test_steps_before_the_crop_are_read(steps, words):
    assert words in words_of(*steps, ToTensorV2())


def test_a_training_transform_is_read():
    steps = A.RandomResizedCrop(size=(40, 48)), A.HorizontalFlip(p=0.5), A.VerticalFlip(p=0.25)
    transform = dp.transform_from_torch(A.Compose([*steps, A.Normalize(), ToTensorV2()]))
    assert (transform.flip, transform.vertical_flip) == (0.5, 0.25)
    assert not transform.antialias and transform.scale == (0.08, 1.0)


REFUSED = {
    "a crop with an odd rest": (
        [A.Resize(47, 48), A.CenterCrop(40, 48)],
        "of which it leaves the odd one at the end",
    ),
    "another interpolation": (
        [A.Resize(40, 48, interpolation=cv2.INTER_AREA)],
        r"albumentations' Resize cannot be carried over: interpolation=area; use cv2.INTER_LIN",
    ),
    "a cubic crop": (
        [A.RandomResizedCrop((40, 48), interpolation=cv2.INTER_CUBIC)],
        r"albumentations' RandomResizedCrop cannot be carried over: interpolation=bicubic",
    ),
    "padding at a corner": (
        [A.LongestMaxSize(48), A.PadIfNeeded(48, 48, position="top_left")],
        "albumentations' PadIfNeeded cannot be carried over: position=top_left",
    ),
    "a color that is no byte": (
        [A.LongestMaxSize(48), A.PadIfNeeded(48, 48, fill=9.5)],
        "albumentations' PadIfNeeded cannot be carried over: fill=9.5",
    ),
    "less padding than the resize needs": (
        [A.LongestMaxSize(48), A.PadIfNeeded(40, 48)],
        "images keep their own sizes, so they make no batch",
    ),
    "a step that sometimes happens": (
        [A.Resize(40, 48, p=0.5)],
        r"applied with p=0.5, it leaves images of several sizes",
    ),
    "a step that changes the shape": (
        [A.RandomScale((0.5, 0.9), p=1), A.Resize(32, 32)],
        "albumentations' RandomScale cannot be carried over: dali_pipes has no such step",
    ),
    "SmallestMaxSize without a crop": (
        [A.SmallestMaxSize(40)],
        "albumentations' SmallestMaxSize cannot be carried over: dali_pipes has no such step here",
    ),
    "SmallestMaxSize of one of two": (
        [A.SmallestMaxSize([40, 50]), A.RandomCrop(40, 40)],
        r"max_size=\[40, 50\]; give it one max_size",
    ),
    "a crop before a resize": ([A.CenterCrop(40, 48), A.Resize(20, 24)], "no Resize is before it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_differs_is_refused(name):
    steps, problem = REFUSED[name]
    with pytest.raises(NotConvertibleError, match=problem):
        dp.transform_from_torch(A.Compose([*steps, ToTensorV2()]))


def test_a_compose_that_sometimes_happens_is_refused():
    with pytest.raises(NotConvertibleError, match=r"albumentations' Compose .* p=0.5"):
        dp.transform_from_torch(A.Compose([A.Resize(40, 48), ToTensorV2()], p=0.5))


def test_an_old_albumentations_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(A, "__version__", "1.4.24")
    for steps in (A.Resize(40, 48), A.Compose([A.Resize(40, 48), A.ToFloat(255)])):
        with pytest.raises(NotConvertibleError, match=r"1\.4\.24 is installed, and 2\.0\.8"):
            list(map(alike, parts_of(steps)))
