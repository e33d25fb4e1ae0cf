"""32 pipelines of albumentations for classification, which have its steps as often as programs do:
`from_torch` converts all of them.
"""

from collections import Counter

import numpy as np
import pytest
import torch
from later import later
from library_steps import CASES
from torch.utils.data import DataLoader, Dataset

import dali_pipes as dp

A, cv2 = later("albumentations"), later("cv2")
SIDE = 32
STEPS = {
    "flip": lambda: A.HorizontalFlip(p=0.5),
    "vertical flip": lambda: A.VerticalFlip(p=0.5),
    "contrast": lambda: A.RandomBrightnessContrast(p=0.5),
    "strong contrast": lambda: A.RandomBrightnessContrast(0.3, 0.3, p=1),
    "gamma": lambda: A.RandomGamma(p=0.3),
    "shift": lambda: A.ShiftScaleRotate(p=0.5),
    "affine": lambda: A.Affine(
        scale=(0.9, 1.1), translate_percent=(-0.1, 0.1), rotate=(-15, 15), p=0.7
    ),
    "reflected shift": lambda: A.ShiftScaleRotate(0.05, 0.05, 15, border_mode=4, p=0.5),
    "dropout": lambda: A.CoarseDropout(p=0.5),
    "small dropout": lambda: A.CoarseDropout((1, 8), (4, 8), (4, 8), p=0.5),
    "noise": lambda: A.GaussNoise(p=0.2),
    "ISO noise": lambda: A.ISONoise(p=0.2),
    "factors": lambda: A.MultiplicativeNoise(p=0.3),
    "motion blur": lambda: A.MotionBlur(p=0.2),
    "median blur": lambda: A.MedianBlur(blur_limit=3, p=0.1),
    "one blur": lambda: A.OneOf(
        [
            A.MotionBlur(p=0.2),
            A.MedianBlur(blur_limit=3, p=0.1),
            A.Blur(blur_limit=3, p=0.1),
        ],
        p=0.2,
    ),
    "hue": lambda: A.HueSaturationValue(20, 20, 20, p=0.5),
    "Gaussian blur": lambda: A.GaussianBlur(blur_limit=(3, 5), p=0.3),
    "CLAHE": lambda: A.CLAHE(p=0.3),
    "elastic": lambda: A.ElasticTransform(p=0.2),
    "grid": lambda: A.GridDistortion(p=0.3),
    "rotation": lambda: A.Rotate(limit=30, p=0.5),
    "right angles": lambda: A.RandomRotate90(p=0.5),
    "jitter": lambda: A.ColorJitter(0.2, 0.2, 0.2, 0.1, p=0.5),
    "compression": lambda: A.ImageCompression(quality_range=(80, 100), p=0.3),
    # what gives images their size
    "RESIZE": lambda: A.Resize(SIDE, SIDE),
    "RESIZED CROP": lambda: A.RandomResizedCrop(size=(SIDE, SIDE), scale=(0.5, 1)),
    "SMALLEST": lambda: A.SmallestMaxSize(40),
    "CROP": lambda: A.RandomCrop(SIDE, SIDE),
    "SIZED CROP": lambda: A.RandomSizedCrop(min_max_height=(30, 50), size=(SIDE, SIDE)),
    "LONGEST": lambda: A.LongestMaxSize(SIDE),
    "PAD": lambda: A.PadIfNeeded(SIDE, SIDE),
    "normalize": lambda: A.Normalize(),
    "floats": lambda: A.ToFloat(max_value=255),
}
# each ends with ToTensorV2
PIPELINES = [
    "RESIZE, dropout, flip, noise, vertical flip, rotation, normalize",
    "RESIZE, small dropout, right angles, affine, median blur, Gaussian blur, elastic, CLAHE, "
    "strong contrast, jitter, ISO noise, normalize",
    "RESIZE, flip, rotation, CLAHE, dropout, normalize",
    "RESIZED CROP, rotation, contrast, CLAHE, vertical flip, small dropout, Gaussian blur, "
    "motion blur, flip, normalize",
    "RESIZE, rotation, flip, affine, normalize",
    "gamma, jitter, SIZED CROP, grid, one blur, flip, small dropout, floats",
    "RESIZED CROP, shift, dropout, hue, Gaussian blur, motion blur, flip, normalize",
    "RESIZE, elastic, CLAHE, affine, median blur, flip, strong contrast, ISO noise, "
    "small dropout, normalize",
    "SIZED CROP, gamma, vertical flip, flip, jitter, normalize",
    "contrast, RESIZE, vertical flip, motion blur, normalize",
    "RESIZE, strong contrast, ISO noise, flip, normalize",
    "RESIZE, gamma, grid, flip, factors, hue, one blur, normalize",
    "RESIZED CROP, vertical flip, hue, flip, normalize",
    "RESIZE, flip, median blur, right angles, CLAHE, small dropout, strong contrast, compression, "
    "hue, floats",
    "hue, SMALLEST, CROP, compression, flip, grid, normalize",
    "RESIZE, motion blur, normalize",
    "strong contrast, RESIZE, vertical flip, flip",
    "RESIZE, rotation, reflected shift, one blur, flip, grid, floats",
    "LONGEST, PAD, right angles, compression, flip, Gaussian blur, normalize",
    "strong contrast, RESIZED CROP, ISO noise, vertical flip, compression, flip, rotation, affine, "
    "floats",
    "hue, gamma, RESIZE, dropout, flip, vertical flip, normalize",
    "RESIZED CROP, compression, flip, contrast, normalize",
    "RESIZED CROP, strong contrast, Gaussian blur, ISO noise, affine",
    "jitter, hue, RESIZE, flip, Gaussian blur, reflected shift, normalize",
    "RESIZE, dropout, contrast, shift, noise, hue, normalize",
    "LONGEST, PAD, strong contrast, ISO noise, flip, normalize",
    "CROP, vertical flip, factors, right angles, reflected shift, dropout, flip, gamma",
    "RESIZED CROP, vertical flip, noise, shift, small dropout, contrast, floats",
    "RESIZE, CLAHE, median blur, affine, normalize",
    "RESIZED CROP, gamma, reflected shift, flip, CLAHE, normalize",
    "CROP, jitter, shift, flip, normalize",
    "SMALLEST, CROP, right angles, ISO noise, elastic, Gaussian blur, vertical flip, normalize",
]
# how often programs have a step, in percent, by the names that it has above
FREQUENCIES = [
    (75, ["flip"]),
    (75, ["normalize"]),
    (59, ["contrast", "strong contrast", "gamma"]),
    (50, ["RESIZE"]),
    (44, ["shift", "affine", "reflected shift"]),
    (38, ["dropout", "small dropout"]),
    (38, ["noise", "ISO noise", "factors"]),
    (34, ["vertical flip"]),
    (34, ["motion blur", "median blur", "one blur"]),
    (25, ["hue"]),
    (25, ["RESIZED CROP"]),
    (22, ["Gaussian blur"]),
    (22, ["CLAHE"]),
    (22, ["elastic", "grid"]),
    (19, ["rotation"]),
    (16, ["right angles"]),
    (16, ["jitter"]),
    (16, ["compression"]),
]


class Pictures(Dataset):
    def __init__(self, files, transform):
        self.files, self.transform = files, transform

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        image = cv2.cvtColor(cv2.imread(self.files[index]), cv2.COLOR_BGR2RGB)
        return self.transform(image=image)["image"], index


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for at in range(8):
        coarse = rng.integers(0, 256, (9, 8, 3), np.uint8)
        cv2.imwrite(str(root / f"{at}.png"), coarse.repeat(8, 0).repeat(8, 1)[: 60 + at])
    return sorted(map(str, root.iterdir()))


def test_the_frequencies():
    counts = Counter(step for pipeline in PIPELINES for step in pipeline.split(", "))
    assert len(PIPELINES) == 32 and set(counts) == set(STEPS)
    for percent, names in FREQUENCIES:
        assert sum(counts[name] for name in names) == round(0.32 * percent)
    # 7 change colours before images get their size
    assert sum(pipeline.split(", ")[0].islower() for pipeline in PIPELINES) == 7


@pytest.mark.filterwarnings("ignore:ShiftScaleRotate is a special case of Affine")
def test_docs_say_what_becomes_of_each_step():
    listed = " ".join(case.text for case in CASES if case.library == "albumentations")
    assert all(f"{type(make()).__name__}(" in listed for make in STEPS.values())


@pytest.mark.few(8)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:ShiftScaleRotate is a special case of Affine")
@pytest.mark.parametrize("number", range(len(PIPELINES)))
def test_which_are_converted(files, number):
    steps = [STEPS[name]() for name in PIPELINES[number].split(", ")]
    dataset = Pictures(files, A.Compose([*steps, A.ToTensorV2()]))
    old, config = DataLoader(dataset, batch_size=4, shuffle=True), dp.TorchConfig(num_workers=0)

    theirs, _ = next(iter(old))
    with dp.from_torch(old, config, device="cpu") as new:
        images, labels = next(iter(new))
    assert (images.shape, images.dtype) == (theirs.shape, theirs.dtype) and len(labels) == 4
    assert torch.isfinite(images.float()).all() and len(images.unique()) > 100


def test_a_step_that_changes_the_shape_at_random_is_refused(files):
    """No step of the plan does it, and a step that runs as it is must keep an image's shape."""
    dataset = Pictures(
        files, A.Compose([A.RandomScale((0.5, 0.9), p=1), A.Resize(32, 32), A.ToTensorV2()])
    )
    with pytest.raises(dp.NotConvertibleError) as refused:
        dp.from_torch(DataLoader(dataset, batch_size=4), dp.TorchConfig(num_workers=0))
    (reason,) = (each.by for each in refused.value.steps if each.text.startswith("RandomScale"))
    assert "and the step cannot run as it is: before: the function RandomScale ret" in reason
