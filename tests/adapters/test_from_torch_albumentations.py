"""Data sets that read with OpenCV and transform with albumentations."""

import albumentations as A
import cv2
import numpy as np
import pytest
from albumentations.pytorch import ToTensorV2
from torch.utils.data import DataLoader, Dataset

import dali_pipes as dp
from dali_pipes.adapters.transforms.reading import NotConvertibleError
from dali_pipes.plan.whole.resize import WholeResize

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Pictures(Dataset):
    def __init__(self, folder, *steps):
        self.files, self.transform = sorted(folder.rglob("*.jpg")), A.Compose(steps)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, at):
        image = cv2.cvtColor(cv2.imread(str(self.files[at])), cv2.COLOR_BGR2RGB)
        return self.transform(image=image)["image"], at % 3


def converted(folder, *steps, shuffle=False):
    loader = DataLoader(Pictures(folder, *steps), batch_size=4, shuffle=shuffle)
    return loader, dp.from_torch(loader, dp.TorchConfig(num_workers=0), device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps",
    [
        [A.Resize(40, 48), A.Normalize(MEAN, STD), ToTensorV2()],
        [A.Compose([A.Resize(48, 49), A.CenterCrop(40, 48)]), A.ToFloat(255), ToTensorV2()],
        [A.Resize(40, 48), ToTensorV2()],
    ],
    ids=["normalized", "cropped", "bytes"],
)
def test_an_evaluation_is_equal(photograph_folder, steps):
    old, new = converted(photograph_folder, *steps)
    with new:
        assert "antialias=False as OpenCV resizes" in new.explain()
        for (images, labels), (ours, our_labels) in zip(old, new, strict=True):
            assert images.dtype == ours.dtype and labels.equal(our_labels)
            step = 1 if images.float().max() > 10 else 1 / (255 * 0.2)
            assert float((images.float() - ours.float()).abs().max()) <= step


def test_smallest_max_size_gives_the_plan_equal_sizes():
    """It rounds the longer side, which torchvision cuts."""
    rng = np.random.default_rng(0)
    for size, (height, width) in zip(
        rng.integers(1, 40, 1000).tolist(), rng.integers(1, 60, (1000, 2)).tolist(), strict=True
    ):
        theirs = A.SmallestMaxSize(size)(image=np.zeros((height, width, 3), np.uint8))["image"]
        step = WholeResize(size=size, antialias=False, rounding="nearest")
        assert step.smallest(np.array([[height, width]])).tolist() == [[*theirs.shape[:2]]]


@pytest.mark.slow
def test_smallest_max_size_is_read(photograph_folder):
    steps = A.SmallestMaxSize(50), A.RandomCrop(40, 48), A.RandomGamma(p=0.5)
    _, new = converted(photograph_folder, *steps, ToTensorV2(), shuffle=True)
    with new:
        (resize,) = new.loader.plan.transform.before
        assert (resize.size, resize.antialias, resize.rounding) == (50, False, "nearest")
        assert "before: Resize(size=50, antialias=False, rounding=nearest)" in new.explain()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (
            [A.LongestMaxSize(48), A.PadIfNeeded(48, 56, border_mode=cv2.BORDER_REFLECT_101)],
            "missing=halved",
        ),
        ([A.Resize(40, 48, interpolation=cv2.INTER_CUBIC)], "interpolation=bicubic"),
        ([A.Transpose(p=1), A.Resize(40, 48)], "before: Transpose(p=1.0)"),
    ],
    ids=["padded", "cubic", "transposed"],
)
def test_an_evaluation_with_steps_before_is_equal(photograph_folder, steps, words):
    old, new = converted(photograph_folder, *steps, ToTensorV2())
    with new:
        assert words in new.explain()
        for (images, labels), (ours, our_labels) in zip(old, new, strict=True):
            assert images.shape == ours.shape and labels.equal(our_labels)
            assert int((images.int() - ours.int()).abs().max()) <= 1


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([A.RandomRotate90(p=0.7), A.Resize(40, 48)], "before: RandomRotate90(p=0.7)"),
        ([A.Transpose(), A.RandomSizedCrop((30, 50), (40, 48))], "min_max_height=(30, 50)"),
        ([A.LongestMaxSize(48), A.HorizontalFlip(), A.PadIfNeeded(48, 48)], "side=longer"),
        ([A.PadIfNeeded(300, 300, fill=7), A.RandomCrop(200, 240)], "missing=halved"),
    ],
    ids=["turned", "cropped", "flipped", "padded"],
)
def test_steps_before_the_crop_are_compared(photograph_folder, steps, words):
    _, new = converted(photograph_folder, *steps, A.RandomGamma(), ToTensorV2(), shuffle=True)
    with new:
        assert words in new.explain() and "largest distance of distributions" in new.explain()
        assert next(iter(new))[0].shape[2:] in ((40, 48), (48, 48), (200, 240))


@pytest.mark.slow
def test_a_training_transform_is_compared(photograph_folder):
    steps = A.RandomResizedCrop(size=(40, 48)), A.HorizontalFlip(p=0.5), A.VerticalFlip(p=0.25)
    _, new = converted(photograph_folder, *steps, A.Normalize(), ToTensorV2(), shuffle=True)
    with new:
        transform = new.loader.plan.transform
        assert (transform.flip, transform.vertical_flip) == (0.5, 0.25)
        assert not transform.antialias and transform.scale == (0.08, 1.0)
        assert "largest distance of distributions" in new.explain()


REFUSED = {
    "a crop with an odd rest": (
        [A.Resize(47, 48), A.CenterCrop(40, 48), ToTensorV2()],
        "of which it leaves the odd one at the end",
    ),
    "another interpolation": (
        [A.Resize(40, 48, interpolation=cv2.INTER_AREA), ToTensorV2()],
        r"albumentations' Resize cannot be carried over: interpolation=area; use cv2.INTER_LIN",
    ),
    "the nearest pixel": (
        [A.Resize(40, 48, interpolation=cv2.INTER_NEAREST), ToTensorV2()],
        "interpolation=nearest; use cv2.INTER_LINEAR",
    ),
    "a filter of eight pixels": (
        [A.Resize(40, 48, interpolation=cv2.INTER_LANCZOS4), ToTensorV2()],
        "interpolation=lanczos; use cv2.INTER_LINEAR",
    ),
    "a cubic crop": (
        [A.RandomResizedCrop((40, 48), interpolation=cv2.INTER_CUBIC), ToTensorV2()],
        r"albumentations' RandomResizedCrop cannot be carried over: interpolation=bicubic",
    ),
    "padding at a corner": (
        [A.LongestMaxSize(48), A.PadIfNeeded(48, 48, position="top_left"), ToTensorV2()],
        "albumentations' PadIfNeeded cannot be carried over: position=top_left",
    ),
    "a color that is no byte": (
        [A.LongestMaxSize(48), A.PadIfNeeded(48, 48, fill=9.5), ToTensorV2()],
        "albumentations' PadIfNeeded cannot be carried over: fill=9.5",
    ),
    "less padding than the resize needs": (
        [A.LongestMaxSize(48), A.PadIfNeeded(40, 48), ToTensorV2()],
        "images keep their own sizes, so they make no batch",
    ),
    "a turn of images of one size": (
        [A.RandomSizedCrop((30, 50), (40, 48)), A.RandomRotate90(), ToTensorV2()],
        "albumentations' RandomRotate90 cannot be carried over: dali_pipes has no such step after",
    ),
    "a step that sometimes happens": (
        [A.Resize(40, 48, p=0.5), ToTensorV2()],
        r"applied with p=0.5, so images have several sizes",
    ),
    "a step that is not there": (
        [A.Resize(40, 48), A.Transpose(p=1), ToTensorV2()],
        "albumentations' Transpose cannot be carried over: dali_pipes has no such step after",
    ),
    "SmallestMaxSize without a crop": (
        [A.SmallestMaxSize(40), ToTensorV2()],
        "albumentations' SmallestMaxSize cannot be carried over: no crop comes after it",
    ),
    "SmallestMaxSize of one of two": (
        [A.SmallestMaxSize([40, 50]), A.RandomCrop(40, 40), ToTensorV2()],
        r"max_size=\[40, 50\], max_size_hw=None; give it one max_size",
    ),
    "a crop before a resize": (
        [A.CenterCrop(40, 48), A.Resize(20, 24), ToTensorV2()],
        "no Resize is before it",
    ),
}


@pytest.mark.few
@pytest.mark.parametrize("name", REFUSED)
def test_what_differs_is_refused(photograph_folder, name):
    steps, problem = REFUSED[name]
    with pytest.raises(NotConvertibleError, match=problem):
        converted(photograph_folder, *steps)


def test_a_compose_that_sometimes_happens_is_refused(photograph_folder):
    data = Pictures(photograph_folder, A.Resize(40, 48), ToTensorV2())
    data.transform.p = 0.5
    with pytest.raises(NotConvertibleError, match=r"albumentations' Compose .* p=0.5"):
        dp.from_torch(DataLoader(data, batch_size=4), dp.TorchConfig(num_workers=0), device="cpu")
