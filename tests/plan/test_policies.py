"""What the plan draws is what torchvision's transforms draw: the same tables, the same
distributions.
"""

import numpy as np
import pytest
import torch
from later import later

import dali_pipes as dp
from dali_pipes.plan.draws import Draws
from dali_pipes.plan.steps import operations
from dali_pipes.plan.steps.lists import POLICIES, Augmenter
from dali_pipes.plan.steps.operations import CODE, OPS
from dali_pipes.plan.steps.policies import RandomErasing

stats, v2 = later("scipy.stats"), later("torchvision.transforms.v2")

N, SHAPE = 40_000, (96, 64)


def draw(*policies, seed=0, count=N):
    return Augmenter(policies).draw(Draws(seed, 0, np.arange(count)), count, SHAPE)


def theirs(space, bins):
    """torchvision's magnitudes, (operation, bin), and which are signed."""
    values = {name: make(bins, *SHAPE) for name, (make, _) in space.items()}
    return {name: value.numpy() for name, value in values.items() if value is not None}, {
        n for n, (_, s) in space.items() if s
    }


@pytest.mark.parametrize(
    ("ours", "policy", "bins"),
    [
        (
            operations.space(31, shear=0.99, shift=(32.0, 32.0), degrees=135.0, blend=0.99, bits=6),
            "TrivialAugmentWide",
            31,
        ),
        (operations.classic_space(31, SHAPE), "RandAugment", 31),
        (operations.classic_space(10, SHAPE), "AutoAugment", 10),
    ],
)
def test_the_tables_are_torchvisions(ours, policy, bins):
    space = getattr(v2, policy)._AUGMENTATION_SPACE
    values, signed = theirs(space, bins)
    for name in space:
        np.testing.assert_allclose(ours[CODE[name]], values.get(name, np.zeros(bins)), rtol=1e-6)
        assert operations.SIGNED[CODE[name]] == (name in signed)
    assert (
        set(operations.RANDOM_OPS)
        == set(v2.RandAugment._AUGMENTATION_SPACE)
        == set(v2.TrivialAugmentWide._AUGMENTATION_SPACE)
    )


def test_the_pairs_are_torchvisions():
    policies = v2.AutoAugment()._policies
    assert [tuple((op, p, bin or 0) for op, p, bin in pair) for pair in policies] == list(
        operations.IMAGENET_PAIRS
    )


class Recorded:
    """Instead of changing an image, torchvision's policies write down here what they drew."""

    def __init__(self, transform, times):
        self.drawn = []
        transform._apply_image_or_video_transform = self
        image = torch.zeros(3, *SHAPE, dtype=torch.uint8)
        torch.manual_seed(0)
        for _ in range(times):
            transform(image)

    def __call__(self, image, op, magnitude, **_):
        self.drawn.append((op, magnitude))
        return image


@pytest.mark.parametrize("name", ["TrivialAugmentWide", "RandAugment", "AutoAugment"])
def test_operations_and_magnitudes_are_as_often_as_torchvisions(name):
    drawn = Recorded(getattr(v2, name)(), 4000).drawn
    ours = draw(name)
    names, values = np.array(OPS)[ours.ops].ravel(), ours.magnitudes.ravel()
    ops = sorted({op for op, _ in drawn})
    if name == "AutoAugment":  # torchvision leaves out what does not happen
        names, values = names[names != "Identity"], values[names != "Identity"]
    assert set(names) == set(ops)
    counts = np.array(
        [[sum(op == each for each, _ in drawn) for op in ops], [(names == op).sum() for op in ops]]
    )
    assert stats.chi2_contingency(counts).pvalue > 1e-3
    for op in ops:
        reference = np.array([magnitude for each, magnitude in drawn if each == op], np.float32)
        assert stats.ks_2samp(reference.round(4), values[names == op].round(4)).pvalue > 1e-4, op


@pytest.mark.parametrize("name", ["TrivialAugmentWide", "RandAugment", "AutoAugment"])
def test_another_equalize_changes_no_draw(name):
    ours, same = draw(name), draw({"name": name, "equalize": "torchvision"})
    equalizes = ours.ops == CODE["Equalize"]
    assert equalizes.any() and (same.ops[equalizes] == CODE["EqualizeInSteps"]).all()
    np.testing.assert_array_equal(ours.ops[~equalizes], same.ops[~equalizes])
    np.testing.assert_array_equal(ours.magnitudes, same.magnitudes)
    (policy,) = dp.TrainTransform(augment=[{"name": name, "equalize": "torchvision"}]).augment
    drawn = {OPS[code] for code in np.unique(same.ops)}
    assert drawn <= {"Identity"} | {op for slot in policy.slots for op in slot.ops}


def test_an_equalize_that_does_not_exist_is_refused():
    with pytest.raises(
        dp.ConfigError, match="equalize is 'pillow'; choose one of opencv, torchvis"
    ):
        dp.TrainTransform(augment=[{"name": "AutoAugment", "equalize": "pillow"}])


def test_the_pair_of_autoaugment_is_drawn_together():
    ops = draw("AutoAugment").ops
    allowed = {(CODE[a], CODE[b]) for (a, _, _), (b, _, _) in operations.IMAGENET_PAIRS}
    seen = {(int(a), int(b)) for a, b in ops if a and b}
    assert seen <= allowed and len(seen) > 12


def test_color_jitter_is_torchvisions():
    ours = draw(
        {"name": "ColorJitter", "brightness": 0.4, "contrast": 1.5, "saturation": 0.2, "hue": 0.1}
    )
    torch.manual_seed(0)
    jitter = v2.ColorJitter(brightness=0.4, contrast=1.5, saturation=0.2, hue=0.1)
    drawn = [jitter.make_params([]) for _ in range(4000)]
    factors = {
        "Brightness": "brightness_factor",
        "Contrast": "contrast_factor",
        "Color": "saturation_factor",
        "Hue": "hue_factor",
    }
    for op, factor in factors.items():
        reference = np.array([float(each[factor]) for each in drawn]) - (op != "Hue")
        assert stats.ks_2samp(reference, ours.magnitudes[ours.ops == CODE[op]]).pvalue > 1e-4, op
    assert all(sorted(row) == sorted(CODE[op] for op in factors) for row in ours.ops[:100])
    orders, counts = np.unique(ours.ops, axis=0, return_counts=True)
    assert len(orders) == 24 and stats.chisquare(counts).pvalue > 1e-3


def test_color_jitter_happens_with_its_probability_and_in_part():
    ours = draw({"name": "ColorJitter", "brightness": 0.4, "hue": 0.1, "p": 0.3})
    happened = (ours.ops != 0).sum(axis=1)
    assert set(happened) == {0, 2}
    assert stats.binomtest(int((happened == 2).sum()), N, 0.3).pvalue > 1e-3


@pytest.mark.parametrize(
    ("policy", "op", "low", "high", "p"),
    [
        ({"name": "RandomGrayscale", "p": 0.2}, "Color", -1, -1, 0.2),
        (
            {"name": "RandomSolarize", "threshold": 128, "p": 0.2},
            "Solarize",
            np.float32(127.5 / 255),
            np.float32(127.5 / 255),
            0.2,
        ),
        ({"name": "RandomPosterize", "bits": 3, "p": 0.4}, "Posterize", 3, 3, 0.4),
        ({"name": "RandomInvert", "p": 0.3}, "Invert", 0, 0, 0.3),
        ({"name": "RandomAutocontrast", "p": 0.6}, "AutoContrast", 0, 0, 0.6),
        ({"name": "RandomEqualize"}, "Equalize", 0, 0, 0.5),
        ({"name": "RandomEqualize", "equalize": "torchvision"}, "EqualizeInSteps", 0, 0, 0.5),
        (
            {"name": "RandomAdjustSharpness", "sharpness_factor": 1.5, "p": 0.7},
            "Sharpness",
            0.5,
            0.5,
            0.7,
        ),
        ({"name": "GaussianBlur", "sigma": [0.5, 1.5], "p": 0.6}, "GaussianBlur", 0.5, 1.5, 0.6),
        ({"name": "RandomRotation", "degrees": 30}, "Rotate", -30, 30, 1.0),
    ],
)
def test_one_operation_of_uniform_strength(policy, op, low, high, p):
    ours = draw(policy)
    happens = ours.ops[:, 0] == CODE[op]
    assert set(ours.ops[:, 0]) <= {0, CODE[op]}
    assert (p == 1 and happens.all()) or stats.binomtest(int(happens.sum()), N, p).pvalue > 1e-3
    strengths = ours.magnitudes[happens, 0]
    if low < high:
        assert stats.kstest(strengths, stats.uniform(low, high - low).cdf).pvalue > 1e-3
    else:
        assert set(strengths) == {low}


def test_erased_regions_are_torchvisions():
    policy = RandomErasing(p=1.0)
    ours = draw(policy).erased
    torch.manual_seed(0)
    transform, image = v2.RandomErasing(p=1.0), torch.zeros(3, *SHAPE)
    drawn = [transform.make_params([image]) for _ in range(4000)]
    reference = np.array([[each["i"], each["j"], each["h"], each["w"]] for each in drawn])
    for column in range(4):
        assert stats.ks_2samp(reference[:, column], ours[:, column]).pvalue > 1e-4, column
    half = draw(RandomErasing(p=0.5)).erased
    assert stats.binomtest(int((half[:, 2] > 0).sum()), N, 0.5).pvalue > 1e-3


def test_a_region_that_never_fits_erases_nothing():
    assert not draw(
        RandomErasing(p=1.0, scale=(1.0, 1.0), ratio=(1.0, 1.0)), count=100
    ).erased.any()


def test_each_policy_has_numbers_of_its_own():
    """Adding a policy at the end changes nothing before it, and two of a kind are independent."""
    one = draw("TrivialAugmentWide")
    two = draw("TrivialAugmentWide", "TrivialAugmentWide", "RandomErasing")
    np.testing.assert_array_equal(one.ops[:, 0], two.ops[:, 0])
    table = np.histogram2d(two.ops[:, 0], two.ops[:, 1], bins=[np.arange(15) - 0.5] * 2)[0]
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_draws_depend_on_seed_epoch_and_sample_only():
    plan = [
        dp.TrainTransform(size=32, augment=["RandAugment", "RandomErasing"]).augmenter
        for _ in range(2)
    ]
    a = plan[0].draw(Draws(1, 2, np.arange(10)), 10, (32, 32))
    b = plan[1].draw(Draws(1, 2, np.arange(5, 10)), 5, (32, 32))
    np.testing.assert_array_equal(a.ops[5:], b.ops)
    np.testing.assert_array_equal(a.magnitudes[5:], b.magnitudes)
    np.testing.assert_array_equal(a.erased[5:], b.erased)


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        (["Trivial"], "'Trivial' is none of TrivialAugmentWide, RandAugment"),
        (
            [{"name": "ColorJitter", "briteness": 1}],
            "ColorJitter does not take briteness; it takes brightness, contrast",
        ),
        ([{"p": 1}], "is none of"),
        ([3], "is none of"),
        (
            [{"name": "RandAugment", "magnitude": "high"}],
            "magnitude is 'high'; it takes whole numbers",
        ),
        ([{"name": "GaussianBlur", "sigma": 3}], "sigma is 3; it takes two positive numbers"),
        (
            ["RandomErasing", "RandAugment"],
            "RandomErasing works on the normalized image; put it last",
        ),
        (["RandomErasing", "RandomErasing"], "only once"),
        (["ColorJitter"], "ColorJitter changes nothing"),
        ([{"name": "GaussianBlur", "kernel_size": 4}], "kernel_size is 4; it must be odd"),
        ([{"name": "GaussianBlur", "sigma": [2, 1]}], "the smaller first"),
        ([{"name": "RandomRotation", "degrees": 200}], "takes numbers from 0 to 180"),
        ([{"name": "RandAugment", "magnitude": 31}], "takes whole numbers from 0 to 30"),
        ([{"name": "RandAugment", "num_ops": 0}], "num_ops is 0"),
        (
            [{"name": "TrivialAugmentWide", "interpolation": "cubic"}],
            "choose one of nearest, bilinear",
        ),
        ([{"name": "RandomErasing", "p": 2}], "takes numbers from 0 to 1"),
        ([{"name": "RandomErasing", "p": "0.5"}], "RandomErasing.p is '0.5'"),
        ([{"name": "RandAugment", "magnitude": 4.5}], "magnitude is 4.5; it takes whole numbers"),
        (
            [{"name": "TrivialAugmentWide", "num_magnitude_bins": 31.0}],
            "num_magnitude_bins is 31.0; it takes whole numbers",
        ),
        (
            [{"name": "GaussianBlur", "kernel_size": 9.0}],
            "kernel_size is 9.0; it takes whole numbers",
        ),
        (
            [{"name": "GaussianBlur", "kernel_size": 449}],
            r"too large for images of 224; kernel_size can be 447 at most",
        ),
        (
            [{"name": "ColorJitter", "brightness": [0.6, 1.4]}],
            r"brightness is \[0.6, 1.4\]; it takes numbers",
        ),
        (
            [{"name": "ColorJitter", "brightness": float("nan")}],
            "brightness is nan; it takes numbers",
        ),
        ([{"name": ["RandAugment"]}], "is none of"),
        ([{"name": "RandAugment", 3: 4}], "does not take 3"),
        ("TrivialAugmentWide", "it takes a list of policies"),
        ({"name": "TrivialAugmentWide"}, "it takes a list of policies"),
        (None, "it takes a list of policies"),
    ],
)
def test_mistakes_are_named(augment, message):
    with pytest.raises(dp.ConfigError, match=message):
        dp.TrainTransform(augment=augment)


def test_every_policy_is_called_as_in_torchvision_or_in_timm():
    from timm.data import auto_augment, random_erasing

    of_timm = vars(auto_augment) | vars(random_erasing)
    for name in POLICIES.keys() - {"Augment"}:
        known = name.removeprefix("Timm") in of_timm if "Timm" in name else hasattr(v2, name)
        assert known, name
