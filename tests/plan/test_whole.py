"""Steps on whole images: torchvision's distributions, and its numbers for the same draw."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

import dali_pipes as dp
from dali_pipes.adapters.from_torch.check import draws, whole
from dali_pipes.backends.common.whole_image import change
from dali_pipes.plan.geometry import BEFORE_DRAW
from dali_pipes.plan.philox import Draws
from dali_pipes.plan.plan import Plan
from dali_pipes.plan.whole import STEPS, check_steps, draw_steps

BILINEAR = InterpolationMode.BILINEAR
# ours, and torchvision's with the same distribution
STEPS_OF_BOTH = {
    "rotation": ([{"name": "RandomRotation", "degrees": 30}], [v1.RandomRotation(30)]),
    "rotation one way": (
        [{"name": "RandomRotation", "degrees": [10, 40], "interpolation": "bilinear"}],
        [v1.RandomRotation((10, 40), interpolation=BILINEAR)],
    ),
    "affine": (
        [
            {
                "name": "RandomAffine",
                "degrees": 20,
                "translate": [0.1, 0.3],
                "scale": [0.7, 1.2],
                "shear": [-5, 10, -8, 3],
            }
        ],
        [v1.RandomAffine(20, (0.1, 0.3), (0.7, 1.2), (-5, 10, -8, 3))],
    ),
    "shear along x": (
        [{"name": "RandomAffine", "shear": 15, "p": 0.4}],
        [v1.RandomApply([v1.RandomAffine(0, shear=15)], 0.4)],
    ),
    "perspective": (["RandomPerspective"], [v1.RandomPerspective()]),
    "several": (
        [
            "RandomHorizontalFlip",
            {"name": "RandomVerticalFlip", "p": 0.3},
            {"name": "Resize", "size": 40},
            {"name": "RandomRotation", "degrees": 90},
        ],
        [
            v1.RandomHorizontalFlip(),
            v1.RandomVerticalFlip(0.3),
            v1.Resize(40),
            v1.RandomRotation(90),
        ],
    ),
}


class Fixed:
    """Draws that are all the same: four numbers."""

    def __init__(self, *numbers):
        self.numbers = np.array(numbers)

    def uniform(self, draw):
        return np.broadcast_to(
            self.numbers.reshape(4, 1, *[1] * np.ndim(draw)), (4, 1, *np.shape(draw))
        )


def draw_one(step, numbers, picture):
    """The arguments of `change` after the picture."""
    steps = check_steps("before", [step])
    drawn = draw_steps(steps, np.array([[picture.height, picture.width]]), Fixed(*numbers))
    return [each.take(0) for each in drawn], steps


@pytest.fixture(scope="module")
def picture():
    rng = np.random.default_rng(0)
    small = Image.fromarray(rng.integers(0, 256, (9, 12, 3), np.uint8))
    return small.resize((121, 90), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("name", STEPS_OF_BOTH)
def test_the_distributions_are_torchvisions(name):
    ours, theirs = STEPS_OF_BOTH[name]
    transform = dp.TrainTransform(before=ours)
    sizes = np.array([(48, 64), (64, 40), (33, 64)] * 500)
    plan = whole.of_plan(transform, sizes, Draws(3, 0, np.arange(len(sizes))))
    live = whole.of_steps(theirs, sizes)
    # Kolmogorov and Smirnov: 0.1 of 1,500 and 1,500 draws has a probability of 10⁻⁶
    for one, other in zip(plan.T, live.T, strict=True):
        assert draws.distance(one, other) < 0.1
        assert abs(np.isnan(one).mean() - np.isnan(other).mean()) < 0.1
    # another strength is seen
    weaker = dp.TrainTransform(before=["RandomHorizontalFlip"])
    plan = whole.of_plan(weaker, sizes, Draws(3, 0, np.arange(len(sizes))))
    assert max(map(draws.distance, plan.T, live.T)) > 0.1


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.93])
def test_the_pixels_of_a_draw_are_torchvisions(interpolation, share, picture):
    mode, of_all = InterpolationMode(interpolation), {"interpolation": interpolation}
    width, height = picture.size

    def ours(step, *numbers):
        return np.asarray(change(picture, *draw_one(step | of_all, numbers, picture)))

    for expand in (False, True):
        step = {"name": "RandomRotation", "degrees": [-20, 40], "expand": expand}
        theirs = F.rotate(picture, -20 + 60 * share, mode, expand=expand)
        assert np.array_equal(ours(step, 0, share, 0, 0), np.asarray(theirs))

    step = {
        "name": "RandomAffine",
        "degrees": 45,
        "translate": [0.2, 0.1],
        "scale": [0.5, 2],
        "shear": [-10, 10, 0, 20],
    }
    theirs = F.affine(
        picture,
        -45 + 90 * share,
        [round((2 * 0 - 1) * 0.2 * width), round((2 * share - 1) * 0.1 * height)],
        0.5 + 1.5 * 0.3,
        [-10 + 20 * 0.3, 20 * share],
        mode,
    )
    assert np.array_equal(ours(step, 0, share, 0.3, share), np.asarray(theirs))

    # x of the first corner, y of it, x of the second and so on come from these four numbers
    across, down = int(0.6 * (width // 2)), int(0.6 * (height // 2))
    first, second = int(share * (across + 1)), int(0.4 * (across + 1))
    top, bottom = int(0.7 * (down + 1)), int(0.2 * (down + 1))
    corners = [
        [first, top],
        [width - 1 - across + second, bottom],
        [width - 1 - across + first, height - 1 - down + top],
        [second, height - 1 - down + bottom],
    ]
    start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    step = {"name": "RandomPerspective", "distortion_scale": 0.6, "p": 1}
    differences = ours(step, share, 0.7, 0.4, 0.2) != np.asarray(
        F.perspective(picture, start, corners, mode)
    )
    # its eight numbers are in single precision, and come from another solver
    assert differences.mean() < 1e-3

    step = {"name": "Resize", "size": 50}
    assert np.array_equal(ours(step, share, 0, 0, 0), np.asarray(F.resize(picture, 50, mode)))


def test_flips_are_torchvisions(picture):
    for name, flip in {"RandomHorizontalFlip": F.hflip, "RandomVerticalFlip": F.vflip}.items():
        flipped = change(picture, *draw_one({"name": name}, [0.49, 0, 0, 0], picture))
        assert np.array_equal(np.asarray(flipped), np.asarray(flip(picture)))
        assert change(picture, *draw_one({"name": name}, [0.5, 0, 0, 0], picture)) is picture


def test_a_step_changes_no_other_draw(thumbnails):
    """Neither the crop's and the policies', nor those of the steps before it in the list."""
    plain = dp.TrainTransform(size=16, augment=["TrivialAugmentWide"])
    steps = [{"name": "RandomRotation", "degrees": 30}, "RandomPerspective"]
    planned = [
        Plan(thumbnails, transform, 4, seed=5).batch(2, 1)
        for transform in (
            plain,
            dp.TrainTransform(size=16, augment=["TrivialAugmentWide"], before=steps[:1]),
            dp.TrainTransform(size=16, augment=["TrivialAugmentWide"], before=steps),
        )
    ]
    one, *others = planned
    for other in others:
        assert np.array_equal(one.geometry.region, other.geometry.region)
        assert np.array_equal(one.augmentation.magnitudes, other.augmentation.magnitudes)
        assert np.array_equal(other.region[:, 2:], one.geometry.source)
    assert np.array_equal(*[other.views[0].before[0].numbers for other in others])
    assert not one.views[0].before


def test_half_of_the_images_are_resized_each_way():
    transform = dp.TrainTransform(interpolation="random")
    drawn = transform.draw_interpolations(Draws(1, 0, np.arange(10_000)))
    # within 4 standard deviations of 5,000
    assert abs(drawn.sum() - 5_000) < 200
    assert dp.TrainTransform().draw_interpolations(Draws(1, 0, np.arange(9))) is None


def test_mistakes_are_named():
    assert set(STEPS) == {
        "RandomRotation",
        "RandomAffine",
        "RandomPerspective",
        "Resize",
        "RandomHorizontalFlip",
        "RandomVerticalFlip",
        "Augment",
    }
    mistakes = {
        "before is 'Resize'; it takes a list of steps": "Resize",
        "before: 'Turn' is none of RandomRotation, ": ["Turn"],
        "before: RandomAffine does not take angle; it takes interpolation, p, degrees": [
            {"name": "RandomAffine", "angle": 1}
        ],
        "before: RandomHorizontalFlip does not take vertical": [
            {"name": "RandomHorizontalFlip", "vertical": True}
        ],
        "degrees is .*; the smaller angle comes first": [
            {"name": "RandomRotation", "degrees": [3, 1]}
        ],
        "translate is .*; it takes 2 numbers": [{"name": "RandomAffine", "translate": 1}],
        "before has 1025 steps": ["RandomPerspective"] * 1025,
        "before has 513 steps; .* a function counts as two": [dp.Augment(abs)] * 513,
        "before: abs is an Augment with where='normalized'; a whole image": [
            dp.Augment(abs, where="normalized")
        ],
        "before: abs is an Augment with per='batch'": [dp.Augment(abs, per="batch")],
        "before: abs is an Augment with geometry": [dp.Augment(abs, geometry=abs)],
        "before: Augment has no function": ["Augment"],
        "before: .* is none of .*; put a function into Augment": [abs],
        "Resize has antialias=False, which needs interpolation=bilinear": [
            {"name": "Resize", "antialias": False, "interpolation": "bicubic"}
        ],
    }
    for text, before in mistakes.items():
        with pytest.raises(dp.ConfigError, match=text):
            dp.TrainTransform(before=before)
    # each step has 16 draws, below those of regions around boxes
    dp.TrainTransform(before=["RandomPerspective"] * 1024)
    assert BEFORE_DRAW + 1024 * 16 == 2**15


def test_degenerate_corners_have_numbers():
    sizes = np.ones((3, 2), np.int64)
    drawn = draw_steps(
        check_steps("before", ["RandomPerspective"]), sizes, Draws(0, 0, sizes[:, 0])
    )
    assert np.isfinite(drawn[0].numbers).all()
    assert torch.from_numpy(drawn[0].size).eq(1).all()
