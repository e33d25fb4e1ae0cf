"""transform.sizes: the size changes with the epoch, and everything else goes on as if it did
not.
"""

import itertools
import json

import pytest
import torch
from gpu_backends import makes_pixels, needs_cuda_configs

import dali_pipes as dp
from dali_pipes.measure.arms import SyntheticConfig

SIZES = {0: 24, 2: 40, 3: 32}
EXPECTED = [24, 24, 40, 32, 32]
CONFIGS = [
    dp.TorchConfig(num_workers=1),
    dp.DaliConfig(device="cpu"),
    SyntheticConfig(),
    *needs_cuda_configs("dali_gpu"),
]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
cpu_and_gpu = pytest.mark.parametrize(
    "config", [dp.DaliConfig(device="cpu"), *needs_cuda_configs("dali_gpu")], ids=["dali_cpu", None]
)


def build(manifest, config, sizes=SIZES, **options):
    augment = ["RandAugment", "RandomErasing"]
    transform = dp.TrainTransform(size=16, sizes=sizes, augment=augment)
    return dp.build_loader(manifest, config, transform=transform, batch_size=8, **options)


@pytest.mark.few
@every_config
def test_each_epoch_has_its_size_and_its_order(manifest, config):
    with build(manifest, config) as loader:
        for epoch, size in enumerate(EXPECTED):
            batches = list(loader)
            assert [tuple(batch.images.shape) for batch in batches] == [(8, 3, size, size)] * 4
            assert [batch.ids.tolist() for batch in batches] == [
                loader.plan.batch(epoch, step).ids.tolist() for step in range(4)
            ]


@pytest.mark.compares_pixels
@pytest.mark.parametrize(
    "config", [*CONFIGS[:4], *CONFIGS[6:]], ids=lambda config: type(config).__name__
)
def test_the_pixels_are_those_of_a_loader_of_that_size(manifest, config):
    with build(manifest, config) as loader:
        for _ in range(2):
            list(loader)
        changed = list(loader)
    with build(manifest, config, sizes={0: 40}) as fixed:
        for _ in range(2):
            list(fixed)
        for one, other in zip(changed, fixed, strict=True):
            assert torch.equal(one.images, other.images)


@pytest.mark.few
@every_config
def test_resume_is_exact_before_at_and_after_a_change(manifest, config):
    whole, states = [], []
    with build(manifest, config) as loader:
        for batch in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), 18):
            whole.append(batch)
            states.append(loader.state_dict())
    for delivered in (7, 8, 10, 12):
        with build(manifest, config) as resumed:
            resumed.load_state_dict(states[delivered - 1])
            rest = itertools.islice(itertools.chain.from_iterable(itertools.repeat(resumed)), 6)
            for one, other in zip(whole[delivered : delivered + 6], rest, strict=True):
                assert one.ids.tolist() == other.ids.tolist()
                assert one.images.shape == other.images.shape
                if makes_pixels(config):
                    assert torch.equal(one.images, other.images)


@cpu_and_gpu
def test_abandoning_an_epoch_before_a_change(manifest, config):
    with build(manifest, config) as loader:
        list(loader)
        next(iter(loader))
        assert next(iter(loader)).images.shape[-1] == 40


@cpu_and_gpu
def test_a_bad_file_is_survived_in_every_size(scanned, config):
    scanned.path(3).write_bytes(b"gone")
    options = {"on_bad_sample": "substitute", "max_bad_fraction": 0.5}
    with build(scanned, config, **options) as loader:
        for size in EXPECTED:
            for batch in loader:
                assert batch.images.shape[-1] == size and 3 not in batch.ids
        assert [sample for sample, _, _ in loader.bad_samples] == [3]


def test_pairs_are_resumed_and_squares_are_numbers(thumbnails):
    transform = dp.TrainTransform(size=[24, 16], sizes={1: [32, 32], 2: (16, 24)})
    assert (transform.size, transform.sizes) == ((24, 16), {1: 32, 2: (16, 24)})
    assert transform.every_size == {(24, 16), 32, (16, 24)} and transform.largest_shape == (32, 32)
    with dp.build_loader(
        thumbnails, dp.TorchConfig(num_workers=0), transform=transform, batch_size=8
    ) as loader:
        shapes = [{tuple(batch.images.shape[2:]) for batch in loader} for _ in range(4)]
        assert shapes == [{(24, 16)}, {(32, 32)}, {(16, 24)}, {(16, 24)}]
        loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))


def test_what_has_changed_is_named_by_itself(manifest):
    with build(manifest, SyntheticConfig()) as loader:
        state = json.loads(json.dumps(loader.state_dict()))
        loader.load_state_dict(state)
    with (
        build(manifest, SyntheticConfig(), sizes={0: 24, 5: 32}) as other,
        pytest.raises(
            dp.ConfigError,
            match=(
                r"changed: transform.sizes.2 \(40 → None\), transform.sizes.3 .*sizes.5 \(None "
                r"→ 32\);"
            ),
        ),
    ):
        other.load_state_dict(state)


def test_another_schedule_is_another_run(manifest):
    with build(manifest, SyntheticConfig()) as loader:
        state = loader.state_dict()
    with (
        build(manifest, SyntheticConfig(), sizes={0: 24}) as other,
        pytest.raises(dp.ConfigError, match="transform"),
    ):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    "sizes",
    [
        {-1: 32},
        {1: 0},
        {1: [24]},
        {1: [24, 0]},
        {1: "24"},
        {1: True},
        {"a": 1},
        {1: "a"},
        {1: 1.5},
        {0.5: 32},
        {"0": 32, 0: 24},
        [128],
        128,
        None,
    ],
)
def test_mistakes_are_named(sizes):
    with pytest.raises(dp.ConfigError, match="it takes epochs from 0 and sizes in pixels from 1"):
        dp.TrainTransform(sizes=sizes)
