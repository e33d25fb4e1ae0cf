"""MixUp and CutMix in PyTorch against torchvision's, their random numbers, and their place in a
loader.
"""

import inspect
import itertools
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from host_waits import GPU, waits_of
from hypothesis import given
from hypothesis import strategies as st
from later import later

import dali_pipes as dp
from dali_pipes.backends.pixels.tensors import MEMORY_FORMATS, TORCH_DTYPES
from dali_pipes.loader.mixing import cut_box, symmetric_beta
from dali_pipes.measure.arms import SyntheticConfig

stats, v2 = later("scipy.stats"), later("torchvision.transforms.v2")

DOCS = Path(__file__).parents[2] / "docs/augmentation.md"
TRANSFORM = dp.TrainTransform(size=16)
FLOATS = st.floats(0, 1, exclude_max=True)
mixes = pytest.mark.parametrize("kind", [dp.MixUp, dp.CutMix])


def batch_of(count, dtype=torch.float32, memory_format=torch.contiguous_format, shape=(3, 20, 28)):
    generator = torch.Generator().manual_seed(count)
    pixels = torch.randint(0, 256, (count, *shape), generator=generator, dtype=torch.uint8)
    images = pixels if dtype == torch.uint8 else (pixels.float() / 77 - 1).to(dtype)
    return dp.Batch(
        images.contiguous(memory_format=memory_format), torch.arange(count) % 5, torch.arange(count)
    )


def theirs(kind, batch, draws, monkeypatch, images=None):
    """What torchvision makes of the batch where it is given our λ, and our centre of the box."""
    radius, angle, *centre = draws.uniform(0).tolist()
    mix = getattr(v2, kind.__name__)(alpha=0.7, num_classes=5)
    monkeypatch.setattr(
        mix._dist,
        "sample",
        lambda shape: torch.tensor(symmetric_beta(0.7, radius, angle), dtype=torch.float64),
    )
    coordinates = iter(centre)
    monkeypatch.setattr(
        torch, "randint", lambda high, size: torch.tensor([int(next(coordinates) * high)])
    )
    return mix(batch.images if images is None else images, batch.labels)


@mixes
@pytest.mark.parametrize("memory_format", MEMORY_FORMATS.values(), ids=str)
@pytest.mark.parametrize("count", [1, 2, 7])
def test_float32_is_torchvisions_bit_for_bit(kind, memory_format, count, monkeypatch):
    batch = batch_of(count, memory_format=memory_format)
    before = batch.images.clone()
    for place in range(20):
        draws = dp.BatchDraws(3, 1, place)
        mixed = kind(alpha=0.7, num_classes=5)(batch, draws)
        with monkeypatch.context() as patched:
            images, labels = theirs(kind, batch, draws, patched)
        assert torch.equal(mixed.images, images) and torch.equal(mixed.labels, labels)
        assert mixed.labels.dtype == torch.float32 and mixed.labels.shape == (count, 5)
        assert mixed.images.is_contiguous(memory_format=memory_format)
        assert torch.equal(mixed.ids, batch.ids)
    assert torch.equal(batch.images, before)


@mixes
def test_mixing_never_waits_for_a_device(kind, monkeypatch):
    batch, draws = batch_of(4), dp.BatchDraws(3, 1, 0)
    there = replace(
        batch, images=batch.images.to(GPU), labels=batch.labels.to(GPU), ids=batch.ids.to(GPU)
    )
    # without what shuts out the modes of a program, of which the witness is one
    mix = inspect.unwrap(kind.__call__)
    assert waits_of(lambda: mix(kind(num_classes=5), there, draws), monkeypatch) == []


@mixes
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("memory_format", MEMORY_FORMATS.values(), ids=str)
def test_other_dtypes_are_rounded_to_nearest(kind, dtype, memory_format, monkeypatch):
    batch = batch_of(5, dtype, memory_format)
    for place in range(20):
        draws = dp.BatchDraws(3, 1, place)
        mixed = kind(alpha=0.7, num_classes=5)(batch, draws)
        with monkeypatch.context() as patched:
            exact, labels = theirs(kind, batch, draws, patched, batch.images.double())
        assert mixed.images.dtype == dtype and mixed.images.is_contiguous(
            memory_format=memory_format
        )
        assert torch.equal(mixed.labels, labels)
        distance = (mixed.images.double() - exact).abs()
        if kind is dp.CutMix:
            assert not distance.any()
        elif dtype == torch.uint8:
            assert distance.max() <= 0.5 + 1e-4
        else:
            assert (distance <= exact.abs() * torch.finfo(dtype).eps / 2 + 1e-6).all()


@mixes
def test_a_batch_of_one_is_mixed_with_itself(kind):
    batch = batch_of(1, torch.uint8)
    mixed = kind(num_classes=5)(batch, dp.BatchDraws(0, 0, 0))
    assert torch.equal(mixed.images, batch.images) and mixed.labels.tolist() == [[1, 0, 0, 0, 0]]


@mixes
def test_labels_that_are_no_class_numbers_are_mixed_as_they_are(kind):
    multi_hot = torch.tensor([[1.0, 0, 1], [0, 1, 0]])
    for labels in (multi_hot, multi_hot[:, 0]):
        mixed = kind()(replace(batch_of(2), labels=labels), dp.BatchDraws(0, 0, 0))
        assert mixed.labels.shape == labels.shape
        assert torch.allclose(mixed.labels.sum(0), labels.sum(0)) and not torch.equal(
            mixed.labels, labels
        )


def test_probability_is_that_of_mixing_and_the_labels_are_soft_anyway():
    batch, mix = batch_of(4), dp.MixUp(num_classes=5, probability=0.3)
    made = [mix(batch, dp.BatchDraws(1, 0, place)) for place in range(1000)]
    untouched = [each for each in made if torch.equal(each.images, batch.images)]
    assert 640 < len(untouched) < 760
    assert all(each.labels.tolist() == torch.eye(5)[:4].tolist() for each in untouched)


def test_a_choice_takes_each_as_often():
    batch = batch_of(4)
    choice = dp.RandomChoice([dp.CutMix(num_classes=5), dp.MixUp(num_classes=5)])
    cut = dp.CutMix(num_classes=5)
    same = [
        torch.equal(choice(batch, draws).images, cut(batch, draws).images)
        for draws in (dp.BatchDraws(2, 5, place) for place in range(1000))
    ]
    assert 440 < sum(same) < 560


# for smaller ones floats just below 1 are too far apart
@pytest.mark.parametrize("alpha", [0.2, 0.5, 1.0, 2.5, 40.0])
def test_the_share_is_beta_distributed(alpha):
    numbers = dp.BatchDraws(7, 0, 0).uniform(np.arange(20_000))
    for radius, angle in (numbers[:2], numbers[2:]):
        drawn = [
            symmetric_beta(alpha, *each)
            for each in zip(radius.tolist(), angle.tolist(), strict=True)
        ]
        assert stats.kstest(drawn, stats.beta(alpha, alpha).cdf).pvalue > 0.001


@given(st.floats(1e-3, 1e6), FLOATS, FLOATS)
def test_a_share_is_a_share(alpha, radius, angle):
    assert 0 <= symmetric_beta(alpha, radius, angle) <= 1


def test_shares_are_those_of_the_first_version():
    """Written down once: another NumPy, or another order of the same arithmetic, must not change a
    run.
    """
    numbers = dp.BatchDraws(1234, 5, 678).uniform([0, 1])
    assert numbers[:, 0].tolist() == dp.BatchDraws(1234, 5, 678).uniform(0).tolist()
    assert [
        symmetric_beta(alpha, *numbers[:2, 0].tolist()).hex() for alpha in (0.2, 1.0)
    ] == KNOWN_SHARES


KNOWN_SHARES = ["0x1.fffff1c4d1203p-1", "0x1.effe2ce8ac9eep-1"]


@given(st.floats(0, 1), st.integers(1, 300), st.integers(1, 300), FLOATS, FLOATS)
def test_a_box_lies_in_the_image(share, height, width, x, y):
    left, top, right, bottom = cut_box(share, height, width, x, y)
    assert 0 <= left <= right <= width and 0 <= top <= bottom <= height
    assert (right - left) * (bottom - top) <= (1 - share) * width * height + 1e-6


def test_draws_of_batches_and_of_samples_are_others():
    from dali_pipes.plan.draws import Draws

    ours = dp.BatchDraws(5, 2, 3).uniform(0)
    assert not np.isclose(Draws(5, 2, np.array([3])).uniform(0)[:, 0], ours).any()
    for other in (dp.BatchDraws(6, 2, 3), dp.BatchDraws(5, 3, 3), dp.BatchDraws(5, 2, 4)):
        assert not np.isclose(other.uniform(0), ours).any()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: dp.MixUp(alpha=0), "alpha of MixUp is 0; it must be positive"),
        (lambda: dp.CutMix(alpha=float("nan")), "CutMix.alpha is nan; it takes finite numbers"),
        (lambda: dp.CutMix(probability=1.5), "probability of CutMix is 1.5"),
        (lambda: dp.RandomChoice([]), "nothing to choose from"),
        (
            lambda: dp.RandomChoice([dp.RandomChoice([dp.MixUp(num_classes=2)])]),
            "pass all transforms to one",
        ),
        (lambda: dp.MixUp()(batch_of(2), dp.BatchDraws(0, 0, 0)), "pass num_classes=len"),
        (
            lambda: dp.MixUp(num_classes=3)(batch_of(9), dp.BatchDraws(0, 0, 0)),
            "a label is 4, but num_classes is 3",
        ),
    ],
)
def test_what_cannot_work_is_said(build, message):
    with pytest.raises(dp.ConfigError, match=message):
        build()


# In a loader


def build(manifest, batch_transform, config=None, **options):
    return dp.build_loader(
        manifest,
        config or SyntheticConfig(),
        **{"transform": TRANSFORM, "batch_size": 8, "batch_transform": batch_transform, **options},
    )


def both(manifest):
    classes = len(manifest.classes)
    mixed = [
        dp.CutMix(alpha=1.0, num_classes=classes),
        dp.MixUp(alpha=0.2, num_classes=classes, probability=0.7),
    ]
    return dp.RandomChoice(mixed)


@pytest.mark.few
@pytest.mark.parametrize(
    "config",
    [
        dp.DaliConfig(device="cpu"),
        dp.TorchConfig(num_workers=1),
        SyntheticConfig(),
    ],
    ids=lambda config: type(config).__name__,
)
@pytest.mark.parametrize(
    ("dtype", "memory_format"), [*itertools.product(TORCH_DTYPES, MEMORY_FORMATS)]
)
def test_every_loader_mixes_alike_and_nothing_that_it_keeps_is_written_to(
    manifest, config, dtype, memory_format
):
    transform = dp.TrainTransform(size=16, dtype=dtype, memory_format=memory_format)
    options = {"config": config, "transform": transform, "last_batch": "partial", "seed": 3}
    with (
        build(manifest, None, **options) as plain,
        build(manifest, both(manifest), **options) as mixing,
    ):
        for epoch in range(2):
            places = itertools.accumulate([8] * 4, initial=0)
            for place, clean, mixed in zip(places, plain, mixing, strict=True):
                expected = both(manifest)(clean, dp.BatchDraws(3, epoch, place))
                assert torch.equal(mixed.images, expected.images) and torch.equal(
                    mixed.labels, expected.labels
                )
                assert torch.equal(mixed.ids, clean.ids)
                assert mixed.images.is_contiguous(memory_format=MEMORY_FORMATS[memory_format])


@pytest.mark.parametrize("delivered", [0, 1, 3, 4, 5])
def test_mixes_resume_bit_for_bit(manifest, delivered):
    with build(manifest, both(manifest)) as loader:
        whole = [batch for _ in range(2) for batch in loader]
    with build(manifest, both(manifest)) as loader:
        stream = itertools.chain.from_iterable(itertools.repeat(loader))
        for _ in range(delivered):
            next(stream)
        state = json.loads(json.dumps(loader.state_dict()))
    with build(manifest, both(manifest)) as loader:
        loader.load_state_dict(state)
        rest = list(
            itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), 8 - delivered)
        )
    for one, two in zip(whole[delivered:], rest, strict=True):
        assert torch.equal(one.images, two.images) and torch.equal(one.labels, two.labels)


def test_shards_and_batches_draw_other_numbers(manifest):
    seen = []

    def note(batch, draws):
        seen.append(tuple(draws.uniform(0).tolist()))
        return batch

    for index in range(3):
        with build(manifest, note, batch_size=4, rank=dp.Rank(index, 3)) as loader:
            for _ in range(2):
                assert len(list(loader)) == 3
    assert len(set(seen)) == len(seen) == 18


def test_other_mixing_is_another_run(manifest):
    with build(manifest, None) as loader:
        state = loader.state_dict()
        old = {
            **state,
            "fingerprint": {
                name: value
                for name, value in state["fingerprint"].items()
                if name != "batch_transform"
            },
        }
        loader.load_state_dict(old)
    with build(manifest, both(manifest)) as loader:
        loader.load_state_dict(loader.state_dict())
        with pytest.raises(
            dp.ConfigError, match=r"have changed: batch_transform \(None → .*MixUp.*0\.2"
        ):
            loader.load_state_dict(state)

    def mix_in_another_way(batch, draws):
        return batch

    with build(manifest, mix_in_another_way) as loader:
        assert loader.state_dict()["fingerprint"]["batch_transform"].endswith("mix_in_another_way")


def test_too_few_classes_are_found_before_the_first_batch(manifest):
    for transform in (dp.MixUp(num_classes=4), dp.RandomChoice([dp.CutMix()])):
        with pytest.raises(
            dp.ConfigError,
            match=r"but the images have 5 classes; pass num_classes=len\(manifest.classes\)",
        ):
            build(manifest, transform)


def test_a_transform_that_fails_is_not_blamed_on_the_images(manifest):
    def fails(batch, draws):
        raise ZeroDivisionError("mine")

    with build(manifest, fails, dp.DaliConfig(device="cpu"), on_bad_sample="substitute") as loader:
        with pytest.raises(ZeroDivisionError, match="mine"):
            next(iter(loader))
        # this batch has not been delivered
        assert loader.bad_samples == [] and loader.state_dict()["samples"] == 0


def test_the_example_of_the_documentation(manifest, monkeypatch):
    """With NumPy in CuPy's place: it takes tensors by DLPack too."""
    example = re.search(r"```python\n(import cupy\n.*?)```", DOCS.read_text(), re.DOTALL)
    monkeypatch.setitem(sys.modules, "cupy", np)
    names = {"manifest": manifest}
    exec(example[1], names)
    with (
        names["loader"] as loader,
        build(
            manifest, None, dp.DaliConfig(), batch_size=32, transform=dp.TrainTransform()
        ) as plain,
    ):
        for mixed, clean in zip(loader, plain, strict=True):
            gain = mixed.images.flatten(1).norm(dim=1) / clean.images.flatten(1).norm(dim=1)
            assert ((gain > 0.8) & (gain < 1.2)).all() and gain.std() > 0.01
            assert torch.allclose(mixed.images, clean.images * gain.reshape(-1, 1, 1, 1), atol=1e-4)
