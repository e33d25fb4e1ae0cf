import itertools

import pytest
import torch

import dali_pipes as dp

TRANSFORM = dp.TrainTransform(size=32)
CONFIGS = [dp.DaliConfig(device="cpu"), dp.TorchConfig(num_workers=1), dp.SyntheticConfig()]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)


def build(manifest, config, batch_size=8, transform=TRANSFORM, **options):
    return dp.build_loader(manifest, config, transform=transform, batch_size=batch_size, **options)


def ids(batches):
    return [batch.ids.tolist() for batch in batches]


@every_config
def test_each_iter_is_the_next_epoch(manifest, config):
    with build(manifest, config) as loader:
        for epoch in range(3):
            assert loader.epoch == epoch
            assert ids(loader) == [loader.plan.rows(epoch, step).ids.tolist() for step in range(4)]


@every_config
def test_leaving_early_abandons_the_epoch(manifest, config):
    with build(manifest, config) as loader:
        assert ids(itertools.islice(loader, 2)) == [loader.plan.rows(0, step).ids.tolist() for step in (0, 1)]
        assert ids(loader)[0] == loader.plan.rows(1, 0).ids.tolist()
        assert ids(loader)[3] == loader.plan.rows(2, 3).ids.tolist()


def test_an_abandoned_iterator_says_so(manifest):
    with build(manifest, dp.SyntheticConfig()) as loader:
        old = iter(loader)
        next(old)
        next(iter(loader))
        with pytest.raises(RuntimeError, match="abandoned"):
            next(old)


@every_config
@pytest.mark.parametrize("delivered", [0, 1, 3, 4, 5])
def test_a_resumed_stream_is_the_uninterrupted_one(manifest, config, delivered):
    with build(manifest, config) as loader:
        whole = [batch for _ in range(3) for batch in loader]
    with build(manifest, config) as loader:
        stream = itertools.chain.from_iterable(itertools.repeat(loader))
        for _ in range(delivered):
            next(stream)
        state = loader.state_dict()
    with build(manifest, config) as loader:
        loader.load_state_dict(state)
        rest = list(itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), 12 - delivered))
    for one, two in zip(whole[delivered:], rest, strict=True):
        assert torch.equal(one.ids, two.ids) and torch.equal(one.images, two.images)


def test_a_state_of_another_run_is_refused_by_name(manifest):
    with build(manifest, dp.SyntheticConfig()) as loader:
        state = loader.state_dict()
    changes = {
        "seed": {"seed": 1},
        "global_batch_size": {"batch_size": 4},
        "transform": {"transform": dp.TrainTransform(size=16)},
        "last_batch": {"last_batch": "pad"},
    }
    for name, options in changes.items():
        with (
            build(manifest, dp.SyntheticConfig(), **options) as loader,
            pytest.raises(dp.ConfigError, match=f"have changed: {name}"),
        ):
            loader.load_state_dict(state)


def test_defaults_follow_the_transform(manifest):
    with (
        build(manifest, dp.SyntheticConfig()) as train,
        build(manifest, dp.SyntheticConfig(), transform=dp.EvalTransform(size=32)) as evaluation,
    ):
        assert (train.plan.shuffle, train.plan.last_batch, len(train)) == (True, "drop", 4)
        assert (evaluation.plan.shuffle, evaluation.plan.last_batch, len(evaluation)) == (False, "partial", 5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize(
    ("config", "options", "told"),
    [
        (dp.DaliConfig(device="gpu"), {}, "loader.device=gpu, but PyTorch finds no GPU"),
        (dp.TorchConfig(), {"device": "cuda"}, "device=cuda, but PyTorch finds no GPU"),
    ],
)
def test_a_gpu_that_is_not_there(manifest, config, options, told):
    with pytest.raises(dp.ConfigError, match=told):
        build(manifest, config, **options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"on_bad_sample": "skip"}, "on_bad_sample is 'skip'"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"last_batch": "keep"}, "last_batch is 'keep'"),
    ],
)
def test_options_that_cannot_work(manifest, options, told):
    with pytest.raises(dp.ConfigError, match=told):
        build(manifest, dp.SyntheticConfig(), **options)


def test_not_a_config(manifest):
    with pytest.raises(dp.ConfigError, match="str is no loader config"):
        build(manifest, "dali")


@every_config
def test_nothing_is_left_after_the_block(manifest, config):
    import psutil

    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with build(manifest, config) as loader:
        next(iter(loader))
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
