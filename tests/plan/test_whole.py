"""Steps on whole images: torchvision's distributions, and its numbers for the same draw."""

from functools import partial

import albumentations as A
import numpy as np
import pytest
import torch
import whole_places
from distributions import distance
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as F

import dali_pipes as dp
from dali_pipes.backends.pixels.whole import change
from dali_pipes.plan.draws import BEFORE_DRAW, Draws
from dali_pipes.plan.plan import Plan
from dali_pipes.plan.steps.lists import STEPS, check_steps, draw_steps, smallest_sizes
from dali_pipes.plan.steps.whole import WholeResize

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
    "growing, off the middle": (
        [
            {"name": "Pad", "padding": [9, 2, 1, 5], "fill": 200},
            {"name": "Pad", "min_size": [70, 10], "padding_mode": "reflect"},
            {"name": "RandomRotation", "degrees": 40, "center": [10, 20.5], "fill": 9},
            {"name": "RandomRotation", "degrees": [20, 70], "expand": True},
            {"name": "RandomAffine", "degrees": 30, "center": [30, 5]},
        ],
        [
            v1.Pad((9, 2, 1, 5), 200),
            lambda image: F.pad(image, [0, max(0, 70 - image.shape[1])], padding_mode="reflect"),
            v1.RandomRotation(40, center=(10, 20.5), fill=9),
            v1.RandomRotation((20, 70), expand=True),
            v1.RandomAffine(30, center=(30, 5)),
        ],
    ),
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


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS_OF_BOTH)
def test_the_distributions_are_torchvisions(name):
    ours, theirs = STEPS_OF_BOTH[name]
    transform = dp.TrainTransform(before=ours)
    sizes = np.array([(48, 64), (64, 40), (33, 64)] * 500)
    plan = whole_places.of_plan(transform, sizes, Draws(3, 0, np.arange(len(sizes))))
    live = whole_places.of_steps(theirs, sizes)
    # Kolmogorov and Smirnov: 0.1 of 1,500 and 1,500 draws has a probability of 10⁻⁶
    for one, other in zip(plan.T, live.T, strict=True):
        assert distance(one, other) < 0.1
        assert abs(np.isnan(one).mean() - np.isnan(other).mean()) < 0.1
    # another strength is seen
    weaker = dp.TrainTransform(before=["RandomHorizontalFlip"])
    plan = whole_places.of_plan(weaker, sizes, Draws(3, 0, np.arange(len(sizes))))
    assert max(map(distance, plan.T, live.T)) > 0.1


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.93])
def test_the_pixels_of_a_draw_are_torchvisions(interpolation, share, picture):
    mode, of_all = InterpolationMode(interpolation), {"interpolation": interpolation}
    width, height = picture.size

    def ours(step, *numbers):
        return np.asarray(change(picture, *draw_one(step | of_all, numbers, picture)))

    more = [{}, {"expand": True}, {"center": [7, 60], "fill": [9, 200, 30]}]
    for options in (*more, more[1] | more[2]):
        step = {"name": "RandomRotation", "degrees": [-20, 40], **options}
        theirs = F.rotate(picture, -20 + 60 * share, mode, **options)
        assert np.array_equal(ours(step, 0, share, 0, 0), np.asarray(theirs))

    step = {
        "name": "RandomAffine",
        "degrees": 45,
        "translate": [0.2, 0.1],
        "scale": [0.5, 2],
        "shear": [-10, 10, 0, 20],
        "center": [100, 3.5],
        "fill": 77,
    }
    theirs = F.affine(
        picture,
        -45 + 90 * share,
        [round((2 * 0 - 1) * 0.2 * width), round((2 * share - 1) * 0.1 * height)],
        0.5 + 1.5 * 0.3,
        [-10 + 20 * 0.3, 20 * share],
        mode,
        77,
        [100, 3.5],
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
    step = {"name": "RandomPerspective", "distortion_scale": 0.6, "p": 1, "fill": [1, 2, 3]}
    differences = ours(step, share, 0.7, 0.4, 0.2) != np.asarray(
        F.perspective(picture, start, corners, mode, [1, 2, 3])
    )
    # its eight numbers are in single precision, and come from another solver
    assert differences.mean() < 1e-3

    step = {"name": "Resize", "size": 50}
    assert np.array_equal(ours(step, share, 0, 0, 0), np.asarray(F.resize(picture, 50, mode)))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("padding", [0, 5, [3, 8], [130, 1, 0, 200]], ids=str)
def test_paddings_are_torchvisions(mode, padding, picture):
    """Also wider than the image, which is then reflected more than once."""
    step = {"name": "Pad", "padding": padding, "padding_mode": mode, "fill": [250, 0, 9]}
    padded = change(picture, *draw_one(step, [0, 0, 0, 0], picture))
    theirs = F.pad(picture, padding, (250, 0, 9), mode)
    assert np.array_equal(np.asarray(padded), np.asarray(theirs))


def _first_or_last(far, low, high, size, **options):
    return torch.full(size, far * (high - 1))


@pytest.mark.parametrize("mode", ["constant", "reflect"])
@pytest.mark.parametrize("size", [(95, 130), (99, 100), (80, 140), (60, 60)], ids=str)
def test_what_is_missing_is_padded_as_before_a_random_crop(mode, size, picture, monkeypatch):
    """v2's RandomCrop pads once, and v1's up to three times."""
    once = [{"name": "Pad", "padding": [2, 0, 1, 3], "min_size": size, "padding_mode": mode}]
    height, width = size
    thrice = [
        {"name": "Pad", "padding": [2, 0, 1, 3], "padding_mode": mode},
        {"name": "Pad", "min_size": [1, width], "padding_mode": mode},
        {"name": "Pad", "min_size": [height, 1], "padding_mode": mode},
    ]
    options = {"padding": (2, 0, 1, 3), "pad_if_needed": True, "padding_mode": mode}
    whole = np.array([[picture.height, picture.width]])
    for steps, module in ((once, v2), (thrice, v1)):
        steps = check_steps("before", steps)
        drawn = draw_steps(steps, whole, Fixed(0, 0, 0, 0))
        padded = change(picture, [each.take(0) for each in drawn], steps)
        assert steps[0].smallest(whole).tolist() == drawn[0].size.tolist()
        # the crop at the top left, and at the bottom right
        for far in (0, 1):
            monkeypatch.setattr(torch, "randint", partial(_first_or_last, far))
            top, left = (far * (padded.height - height), far * (padded.width - width))
            ours = padded.crop((left, top, left + width, top + height))
            theirs = module.RandomCrop(size, **options)(picture)
            assert np.array_equal(np.asarray(ours), np.asarray(theirs))


def test_flips_are_torchvisions(picture):
    for name, flip in {"RandomHorizontalFlip": F.hflip, "RandomVerticalFlip": F.vflip}.items():
        flipped = change(picture, *draw_one({"name": name}, [0.49, 0, 0, 0], picture))
        assert np.array_equal(np.asarray(flipped), np.asarray(flip(picture)))
        assert change(picture, *draw_one({"name": name}, [0.5, 0, 0, 0], picture)) is picture


def array_after(step, picture, seed):
    """A picture after a step of ours, as an array."""
    steps = check_steps("before", [step])
    sizes = np.array([[picture.height, picture.width]])
    drawn = draw_steps(steps, sizes, Draws(seed, 0, np.array([0])))
    changed = np.asarray(change(picture, [each.take(0) for each in drawn], steps))
    least = smallest_sizes(steps, sizes)[0]
    assert changed.shape[:2] == tuple(drawn[-1].size[0]) and (changed.shape[:2] >= least).all()
    return changed


def test_turns_are_numpys(picture):
    """albumentations calls np.rot90, and transposes."""
    array = np.asarray(picture)
    turned = [np.rot90(array, quarters).tobytes() for quarters in range(4)]
    found = [
        turned.index(array_after("RandomRotate90", picture, seed).tobytes()) for seed in range(40)
    ]
    assert set(found) == {0, 1, 2, 3}
    transposed = array_after({"name": "Transpose", "p": 1}, picture, 0)
    assert np.array_equal(transposed, array.transpose(1, 0, 2))


def test_a_crop_of_a_drawn_size_is_within_the_image(picture):
    array, heights = np.asarray(picture), set()
    step = {"name": "RandomSizedCrop", "min_max_height": [5, 7], "w2h_ratio": 1.5}
    windows = {
        (high, wide): np.lib.stride_tricks.sliding_window_view(array, (high, wide), (0, 1))
        for high, wide in ((5, 7), (6, 9), (7, 10))
    }
    for seed in range(20):
        crop = array_after(step, picture, seed)
        heights.add(len(crop))
        equal = windows[crop.shape[:2]] == np.moveaxis(crop, 2, 0)
        assert equal.all(axis=(2, 3, 4)).any()
    assert heights == {5, 6, 7}
    # what an image does not have is left out
    whole = array_after(step | {"min_max_height": [500, 500], "w2h_ratio": 0.1}, picture, 0)
    assert whole.shape == (90, 50, 3)


@pytest.mark.parametrize("size", [(90, 121), (91, 122), (101, 130), (10, 140)])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_what_is_missing_is_halved_as_albumentations_does(mode, size, picture):
    step = {"name": "Pad", "min_size": size, "missing": "halved", "padding_mode": mode}
    borders = {"constant": 0, "edge": 1, "symmetric": 2, "reflect": 4}
    theirs = A.PadIfNeeded(*size, border_mode=borders[mode])(image=np.array(picture))["image"]
    assert np.array_equal(array_after(step, picture, 0), theirs)


def test_the_longer_side_is_albumentations():
    rng = np.random.default_rng(0)
    for size, shape in zip(
        rng.integers(1, 40, 1000).tolist(), rng.integers(1, 60, (1000, 2)).tolist(), strict=True
    ):
        theirs = A.LongestMaxSize(size)(image=np.zeros((*shape, 3), np.uint8))["image"]
        options = {"size": size, "side": "longer", "antialias": False}
        step = WholeResize(**options, rounding="nearest")
        assert step.smallest(np.array([shape])).tolist() == [[*theirs.shape[:2]]]
        cut = WholeResize(**options).smallest(np.array([shape]))
        assert (np.abs(cut - theirs.shape[:2]) <= 1).all() and cut.max() == size


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
        "Pad",
        "RandomHorizontalFlip",
        "RandomVerticalFlip",
        "RandomRotate90",
        "Transpose",
        "RandomSizedCrop",
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
        "fill is 'red'; it takes": [{"name": "RandomAffine", "fill": "red"}],
        "fill is 300; it takes a whole number from 0 to 255, or": [{"name": "Pad", "fill": 300}],
        "padding is -1; it takes whole numbers from 0 on": [{"name": "Pad", "padding": -1}],
        "Pad does not take interpolation": [{"name": "Pad", "interpolation": "nearest"}],
        "before has 1025 steps": ["RandomPerspective"] * 1025,
        "before has 513 steps; .* a function counts as two": [dp.Augment(abs)] * 513,
        "before: abs is an Augment with where='normalized'; a whole image": [
            dp.Augment(abs, where="normalized")
        ],
        "before: abs is an Augment with per='batch'": [dp.Augment(abs, per="batch")],
        "before: abs is an Augment with geometry": [dp.Augment(abs, geometry=abs)],
        "before: Augment has no function": ["Augment"],
        "before: .* is a function; put it into Augment": [abs],
        "Resize has antialias=False, which needs interpolation=bilinear or bicubic": [
            {"name": "Resize", "antialias": False, "interpolation": "nearest"}
        ],
        "min_max_height is 30; it takes two numbers of pixels": [
            {"name": "RandomSizedCrop", "min_max_height": 30}
        ],
        r"min_max_height is \[50, 30\]; the smaller number comes first": [
            {"name": "RandomSizedCrop", "min_max_height": [50, 30]}
        ],
        "side is 'long'; choose one of shorter, longer": [{"name": "Resize", "side": "long"}],
        "Transpose does not take interpolation": [
            {"name": "Transpose", "interpolation": "nearest"}
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


_SIZING = [
    {"name": "RandomRotate90"},
    {"name": "Transpose", "p": 0.5},
    {"name": "Resize", "size": 64, "side": "longer", "rounding": "nearest"},
    {"name": "Resize", "size": 40},
    {"name": "Resize", "size": (30, 50), "p": 0.5},
    {"name": "Resize", "size": 90, "side": "longer", "p": 0.5},
    {"name": "Pad", "min_size": 80, "missing": "twice"},
    {"name": "Pad", "min_size": (70, 20), "missing": "halved", "p": 0.5},
    {"name": "Pad", "padding": 7},
    {"name": "RandomSizedCrop", "min_max_height": (20, 90), "w2h_ratio": 0.7},
    {"name": "RandomRotation", "degrees": 180, "expand": True},
]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(_SIZING), min_size=1, max_size=5),
    st.tuples(st.integers(4, 300), st.integers(4, 300)),
)
def test_no_image_becomes_smaller_than_the_smallest(steps, size):
    """A random crop that relies on it would be black outside of the image."""
    steps, count = check_steps("before", steps), 300
    sizes = np.tile(np.array([size]), (count, 1))
    least = smallest_sizes(steps, sizes[:1])[0]
    drawn = draw_steps(steps, sizes, Draws(3, 0, np.arange(count)))[-1].size
    assert (drawn >= least).all()
    # and nothing is refused that could be made where one size comes out
    if all(step.p == 1 and step.has_one_size for step in steps) and "QuarterTurn" not in str(steps):
        assert (drawn == least).all()
