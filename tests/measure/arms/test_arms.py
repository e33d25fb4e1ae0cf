"""What exists only to be compared, and that the core does not know it."""

import itertools

import pytest
import torch

import dali_pipes as dp
from dali_pipes.backends.backend import Backend
from dali_pipes.backends.registry import is_for_training, list_backends, load_backend
from dali_pipes.measure.arms import (
    ARMS,
    DaliNativeConfig,
    DataLoaderConfig,
    SyntheticConfig,
    arm_of,
    makes_images,
)
from dali_pipes.measure.arms.native_loader import NativeLoader
from dali_pipes.measure.arms.users_loader import UsersLoader

NATIVE = DaliNativeConfig(device="cpu", num_threads=2)
TRANSFORM = dp.TrainTransform(size=32)


def make_dataloader():
    """Batches as people have them: the images are somewhere inside."""
    data = [{"x": torch.full((3, 8, 8), float(number)), "y": number} for number in range(10)]
    return torch.utils.data.DataLoader(data, batch_size=4)


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.config.name)
def test_an_arm_is_not_trained_with(arm):
    config = arm.config()
    assert arm_of(type(config)) is arm and not is_for_training(config)
    assert arm.config.name not in list_backends()
    if arm.follows_plan:
        assert issubclass(load_backend(config), Backend)
    else:
        with pytest.raises(dp.ConfigError, match=f"{arm.config.__name__} is no loader config"):
            load_backend(config)


@pytest.mark.parametrize("name", list_backends())
def test_what_one_trains_with_is_no_arm(name):
    config = list_backends()[name]()
    assert is_for_training(config) and arm_of(type(config)) is None and makes_images(type(config))


def test_the_arms_that_read_no_images():
    assert [arm.config.name for arm in ARMS if not makes_images(arm.config)] == ["synthetic"]
    assert not makes_images(SyntheticConfig)


def test_a_result_may_name_a_loader_that_is_not_here():
    """Of an earlier version, or of a package that is installed elsewhere."""
    assert arm_of("TfDataConfig") is None and makes_images("TfDataConfig")
    assert [arm_of(arm.config.__name__) for arm in ARMS] == list(ARMS)


def test_dali_without_the_plan_has_epochs(thumbnails):
    with NativeLoader(thumbnails, NATIVE, TRANSFORM, 16) as loader:
        steps = -(-len(thumbnails) // 16)
        assert len(loader) == loader.batches_left == steps and "outside the plan" in loader.decodes

        labels = thumbnails.take_labels
        for left, batch in zip(range(steps, 0, -1), loader, strict=True):
            assert loader.batches_left == (left - 1 or steps)
            assert batch.images.shape == (16, 3, 32, 32)
            assert batch.labels.tolist() == labels(batch.ids.numpy()).tolist()
        # a loop that is left early, as the last one of a trial
        next(iter(loader))
        assert len(list(loader)) == steps


def test_a_dataloader_of_ones_own(thumbnails):
    config = DataLoaderConfig(function=f"{__name__}:make_dataloader")
    with UsersLoader(thumbnails.subset(range(8)), config, TRANSFORM, 4) as loader:
        batches = list(itertools.islice(itertools.chain.from_iterable([loader] * 3), 6))
        assert [len(batch) for batch in batches] == [4, 4, 2, 4, 4, 2]
        assert batches[1].images[0, 0, 0, 0] == 4 and batches[1].ids.tolist() == [0] * 4
        assert "make_dataloader, with 0 workers" in loader.decodes
